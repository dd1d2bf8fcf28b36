//! The place that an image comes from, and the way from its name to its layers.
//!
//! [`Origin::resolve`] follows indexes to the manifest for a platform and reads the configuration. Invariant: a
//! [`ResolvedImage`] has as many layers as its configuration names, and each document had the digest that led to it.

use std::io::{self, Read};
use std::sync::Arc;

use crate::activity::Activity;
use crate::archive::{ArchiveError, ArchiveImage};
use crate::config::{CONFIG_BYTES_MAX, ConfigError, ImageConfig};
use crate::descriptor::{BlobDescriptor, Digest, LayerDescriptor, Verified};
use crate::manifest::{Document, Manifest, ManifestError, Platform};
use crate::registry::{FetchedManifest, RegistryError, Repository};

/// Indexes within indexes.
const INDEX_DEPTH_MAX: usize = 4;
/// Bytes of all layers of an image together: a manifest that promises more is an error or an attack.
const IMAGE_BYTES_MAX: u64 = 1 << 40;

/// The source of one image.
#[derive(Clone, Debug)]
pub enum Origin {
    Registry(Arc<Repository>),
    Archive(Arc<ArchiveImage>),
}

/// An image that is described completely, and of which no layer has been read.
#[derive(Clone, Debug)]
pub struct ResolvedImage {
    /// The digest that the name stands for: of the manifest, or of the index that contains it.
    pub digest: Digest,
    /// The configuration as its builder wrote it.
    pub config: Vec<u8>,
    /// Bottom first.
    pub layers: Vec<LayerDescriptor>,
}

/// The failure to find or describe an image.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error("cannot use the manifest of {image}")]
    Manifest {
        image: String,
        #[source]
        source: ManifestError,
    },
    #[error("cannot use the configuration of {image}")]
    Config {
        image: String,
        #[source]
        source: ConfigError,
    },
    #[error("{image} has more than {INDEX_DEPTH_MAX} indexes within each other")]
    TooDeep { image: String },
    #[error("the layers of {image} have {bytes} bytes: the limit is {IMAGE_BYTES_MAX}")]
    TooLarge { image: String, bytes: u64 },
}

impl Origin {
    fn image(&self) -> String {
        match self {
            Self::Registry(repository) => repository.reference().to_string(),
            Self::Archive(archive) => archive.name().to_owned(),
        }
    }

    /// Returns the digest that the name stands for now, if one request or none finds it.
    pub fn head(&self, activity: &Activity) -> Result<Option<Digest>, OriginError> {
        match self {
            Self::Registry(repository) => match repository.reference().digest() {
                Some(digest) => Ok(Some(digest.clone())),
                None => Ok(repository.head(activity)?),
            },
            Self::Archive(archive) => Ok(Some(archive.digest().clone())),
        }
    }

    /// Describes the image for a platform.
    pub fn resolve(
        &self,
        platform: &Platform,
        activity: &Activity,
    ) -> Result<ResolvedImage, OriginError> {
        let image = || self.image();
        let unusable = |source| OriginError::Manifest {
            image: image(),
            source,
        };
        if let Self::Archive(archive) = self
            && let Some(saved) = archive.saved()
        {
            return self.check_size(saved.clone());
        }
        let top = self.manifest(None, activity)?;
        let digest = top.digest.clone();
        let manifest = self.find_manifest(top, platform, activity)?;
        manifest.check_config_type().map_err(unusable)?;
        let config = self.document(&manifest.config.blob(), activity)?;
        let parsed = ImageConfig::parse(&config);
        let parsed = parsed.map_err(|source| OriginError::Config {
            image: image(),
            source,
        })?;
        platform
            .check(&parsed.os, &parsed.architecture)
            .map_err(unusable)?;
        let layers = manifest.layers(parsed.diff_ids()).map_err(unusable)?;
        self.check_size(ResolvedImage {
            digest,
            config,
            layers,
        })
    }

    fn check_size(&self, image: ResolvedImage) -> Result<ResolvedImage, OriginError> {
        let sizes = image.layers.iter().map(|layer| layer.blob.size);
        let bytes = sizes.fold(0, u64::saturating_add);
        match bytes > IMAGE_BYTES_MAX {
            true => Err(OriginError::TooLarge {
                image: self.image(),
                bytes,
            }),
            false => Ok(image),
        }
    }

    fn find_manifest(
        &self,
        top: FetchedManifest,
        platform: &Platform,
        activity: &Activity,
    ) -> Result<Manifest, OriginError> {
        let unusable = |source| OriginError::Manifest {
            image: self.image(),
            source,
        };
        let mut fetched = top;
        for _ in 0..=INDEX_DEPTH_MAX {
            match Document::parse(&fetched.bytes, &fetched.media_type).map_err(unusable)? {
                Document::Manifest(manifest) => return Ok(manifest),
                Document::Index(index) => {
                    let chosen = index.choose(platform).map_err(unusable)?;
                    fetched = self.manifest(Some(&chosen.digest), activity)?;
                }
            }
        }
        Err(OriginError::TooDeep {
            image: self.image(),
        })
    }

    fn manifest(
        &self,
        digest: Option<&Digest>,
        activity: &Activity,
    ) -> Result<FetchedManifest, OriginError> {
        match self {
            Self::Registry(repository) => Ok(repository.manifest(digest, activity)?),
            Self::Archive(archive) => Ok(archive.manifest(digest)?),
        }
    }

    fn document(&self, blob: &BlobDescriptor, activity: &Activity) -> Result<Vec<u8>, OriginError> {
        match self {
            Self::Registry(repository) => {
                Ok(repository.document(blob, CONFIG_BYTES_MAX, activity)?)
            }
            Self::Archive(archive) => Ok(archive.document(&blob.digest, CONFIG_BYTES_MAX)?),
        }
    }

    /// Returns the bytes of a layer, checked against its size and digest. Nothing is opened before the first read.
    pub fn open(&self, layer: &LayerDescriptor, activity: &Arc<Activity>) -> Box<dyn Read + Send> {
        match self {
            Self::Registry(repository) => {
                let reader = repository.blob(&layer.blob, activity.clone());
                Box::new(Verified::new(reader, &layer.blob))
            }
            Self::Archive(archive) => {
                let reader = LazyLayer {
                    archive: archive.clone(),
                    digest: layer.blob.digest.clone(),
                    opened: None,
                    activity: activity.clone(),
                };
                Box::new(Verified::new(reader, &layer.blob))
            }
        }
    }
}

/// A layer of an archive, opened at the first read.
struct LazyLayer {
    archive: Arc<ArchiveImage>,
    digest: Digest,
    opened: Option<Box<dyn Read + Send>>,
    activity: Arc<Activity>,
}

impl Read for LazyLayer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let opened = match &mut self.opened {
            Some(opened) => opened,
            closed => closed.insert(self.archive.open(&self.digest).map_err(io::Error::other)?),
        };
        let count = opened.read(buffer)?;
        self.activity.record_bytes(count as u64);
        Ok(count)
    }
}
