//! The resources reserved for one instance of a job with a volume, which no other task may use.
//!
//! A reservation that the scheduler makes for an instance has the id of its volume in a label. The volume itself has the id
//! as its persistence id, also on a disk that the agent's `--resources` reserve, which has no label.

use std::collections::BTreeMap;

use meseta_resources::{Resource, Resources};

/// The label of a reservation with the id of its volume.
pub const VOLUME_LABEL: &str = "meseta.volume";

/// Returns the volume for which the scheduler has reserved a resource.
#[must_use]
pub fn reserved_for(resource: &Resource) -> Option<&str> {
    let mut labels = resource.reservations().last()?.labels.iter();
    let label = labels.find(|label| label.key == VOLUME_LABEL);
    label.and_then(|label| label.value.as_deref())
}

/// Returns the volume that a resource is, or for which it is reserved.
fn holder(resource: &Resource) -> Option<&str> {
    let disk = resource.disk();
    reserved_for(resource).or_else(|| Some(&*disk?.persistence.as_ref()?.id))
}

/// Divides resources into those for any task, and those held for an instance, by the id of its volume.
pub(super) fn divide(resources: Resources) -> (Resources, BTreeMap<String, Resources>) {
    let mut held: BTreeMap<String, Resources> = BTreeMap::new();
    for resource in &resources {
        if let Some(id) = holder(resource) {
            let of_volume = held.entry(id.to_owned()).or_default();
            of_volume.insert(resource.clone());
        }
    }
    if held.is_empty() {
        return (resources, held);
    }
    let free = resources.filtered(|resource| holder(resource).is_none());
    (free, held)
}

/// Returns the volume of this id among the resources held for it.
#[must_use]
pub fn volume_in(held: &Resources, id: &str) -> Option<Resource> {
    let is_it = |volume: &&Resource| {
        let persistence = volume.disk().and_then(|disk| disk.persistence.as_ref());
        persistence.is_some_and(|persistence| &*persistence.id == id)
    };
    held.iter().find(is_it).cloned()
}
