//! The model of reservations: resources reserved to a role are offered to that role and those below it, and to no other; a
//! reservation or volume stays until it is removed; reserving changes no amount.

use std::collections::BTreeSet;

use meseta_resources::{Resource, ResourceQuantities, Resources, Role};

/// Returns the first of these resources that is reserved to other roles.
pub(crate) fn foreign<'a>(resources: &'a Resources, role: &Role) -> Option<&'a Resource> {
    let is_above = |of: &Role| {
        let below = role.as_str().strip_prefix(of.as_str());
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let is_foreign = |resource: &&Resource| {
        let reserved = resource.reservations().last();
        reserved.is_some_and(|reservation| !is_above(&reservation.role))
    };
    resources.iter().find(is_foreign)
}

/// Returns the total amount, reserved or not: the same for ever.
pub(crate) fn amount(total: &Resources) -> ResourceQuantities {
    total.unrevocable().scalar_quantities()
}

/// Returns the volumes among resources, by their ids.
pub(crate) fn volumes(total: &Resources) -> BTreeSet<String> {
    let disks = total.iter().filter_map(Resource::disk);
    let persistent = disks.filter_map(|disk| disk.persistence.as_ref());
    persistent.map(|one| one.id.to_string()).collect()
}
