//! The store of this crate as a pull uses it.
//!
//! Implements [`ImageStore`] for [`Store`]. Invariant: a record that cannot be read counts as missing, so that the image is pulled
//! again.

use std::io::Read;
use std::sync::Arc;
use std::time::SystemTime;

use super::{ImageStaging, ImageStore, NewImage, StoreFailure};
use crate::descriptor::{Digest, LayerDescriptor};
use crate::store::{self, Store};

impl ImageStore for Store {
    fn find(&self, name: &str) -> Option<Digest> {
        match Store::find(self, name) {
            Ok(found) => found.map(|record| record.manifest_digest),
            Err(error) => {
                tracing::warn!(name, %error, "cannot read the record of an image");
                None
            }
        }
    }

    fn begin(&self) -> Result<Arc<dyn ImageStaging>, StoreFailure> {
        Ok(Arc::new(self.begin_image()))
    }

    fn missing_layers(&self, layers: &[LayerDescriptor]) -> Vec<LayerDescriptor> {
        Store::missing_layers(self, layers)
    }
}

impl ImageStaging for store::ImageStaging {
    fn unpack_layer(
        &self,
        layer: &LayerDescriptor,
        from: &mut dyn Read,
    ) -> Result<(), StoreFailure> {
        Ok(store::ImageStaging::unpack_layer(self, layer, from)?)
    }

    fn commit(&self, image: NewImage, now: SystemTime) -> Result<(), StoreFailure> {
        let image = store::NewImage {
            name: image.name,
            manifest_digest: image.digest,
            config: image.config,
            layers: image.layers,
        };
        store::ImageStaging::commit(self, image, now)?;
        Ok(())
    }
}
