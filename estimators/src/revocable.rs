//! Resources that may be taken back.

use meseta_resources::Resource;

/// A copy of the resource, marked as revocable.
pub(crate) fn revocable(resource: &Resource) -> Option<Resource> {
    let mut parts = resource.clone().into_parts();
    parts.revocable = true;
    Resource::new(parts).ok()
}
