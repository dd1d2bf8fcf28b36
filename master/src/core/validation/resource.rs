//! Whether the resources of a task, of an executor, and of both together make sense.
//!
//! The rules and words are those of Mesos. Judged as they were given, for what is given twice is one
//! amount once it is added up. Invariant: nothing here depends on the cluster.

use std::collections::BTreeSet;

use meseta_proto::convert;
use meseta_proto::mesos::v1;
use meseta_proto::{Invalid, invalid};
use meseta_resources::{Resource, Resources, Value};

/// Whole gpus, volumes once each, one role, and no name both revocable and not.
pub(super) fn check_resources(
    given: &[v1::Resource],
    resources: &Resources,
    what: &str,
) -> Result<(), Invalid> {
    for resource in resources {
        resource.check_gpus().map_err(Invalid::within(format_args!(
            "{what} uses invalid resources: Invalid 'gpus' resource"
        )))?;
    }
    check_unique([given]).map_err(Invalid::within(format_args!(
        "{what} uses duplicate persistence ID"
    )))?;
    check_role(resources)
        .map_err(|text| format!("Invalid {} resources: {text}", what.to_lowercase()))?;
    check_revocable(resources.iter()).map_err(Invalid::within(format_args!(
        "{what} mixes revocable and non-revocable resources"
    )))
}

/// What a task, or the tasks of a group, and their executor use together, each list by itself valid.
pub(super) fn check_together(
    who: &str,
    given: &[&[v1::Resource]],
    overlapping: impl FnOnce() -> String,
) -> Result<(), Invalid> {
    let lists: Vec<Vec<Resource>> = given.iter().map(|list| parsed(list).collect()).collect();
    if overlap(&lists) {
        return Err(overlapping().into());
    }
    check_unique(given.iter().copied()).map_err(Invalid::within(format_args!(
        "{who} use duplicate persistence ID"
    )))?;
    check_revocable(lists.iter().flatten()).map_err(Invalid::within(format_args!(
        "{who} mix revocable and non-revocable resources"
    )))
}

fn parsed(given: &[v1::Resource]) -> impl Iterator<Item = Resource> {
    given
        .iter()
        .filter_map(|resource| convert::resource(resource).ok())
}

/// A volume's id is its own among those of its role; a shared volume may be named again.
fn check_unique<'a>(given: impl IntoIterator<Item = &'a [v1::Resource]>) -> Result<(), Invalid> {
    let mut seen = BTreeSet::new();
    let mut shared: Vec<Resource> = Vec::new();
    let lists = given.into_iter();
    let volumes = lists.flat_map(|list| list.iter().filter(|resource| resource.disk.is_some()));
    for volume in volumes.filter_map(|volume| convert::resource(volume).ok()) {
        let persistence = volume.disk().and_then(|disk| disk.persistence.as_ref());
        let (Some(role), Some(persistence)) = (volume.reservation_role(), persistence) else {
            continue;
        };
        if !seen.insert((role.clone(), persistence.id.clone())) && !shared.contains(&volume) {
            return Err(invalid!(
                "Persistence ID '{}' is not unique",
                persistence.id
            ));
        }
        if volume.is_shared() {
            shared.push(volume);
        }
    }
    Ok(())
}

fn check_role(resources: &Resources) -> Result<(), Invalid> {
    let mut roles = resources.iter().filter_map(Resource::allocation_role);
    let Some(first) = roles.next() else {
        return Ok(());
    };
    match roles.find(|role| *role != first) {
        None => Ok(()),
        Some(other) => Err(invalid!(
            "The resources have multiple allocation roles ('{other}' and '{first}') but only one \
             allocation role is allowed"
        )),
    }
}

fn check_revocable<'a>(
    resources: impl Iterator<Item = &'a Resource> + Clone,
) -> Result<(), Invalid> {
    let names = |revocable: bool| {
        let of_kind = resources
            .clone()
            .filter(move |resource| resource.is_revocable() == revocable);
        of_kind.map(Resource::name).collect::<BTreeSet<_>>()
    };
    match names(true).intersection(&names(false)).next() {
        None => Ok(()),
        Some(name) => Err(invalid!(
            "Cannot use both revocable and non-revocable '{name}' at the same time"
        )),
    }
}

/// Whether two of these lists name the same port, or the same item of a set.
fn overlap(lists: &[Vec<Resource>]) -> bool {
    let mut rest = lists;
    while let Some((first, others)) = rest.split_first() {
        for one in first {
            let mut others = others.iter().flatten();
            if others.any(|other| other.name() == one.name() && meet(one.value(), other.value())) {
                return true;
            }
        }
        rest = others;
    }
    false
}

fn meet(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Ranges(one), Value::Ranges(other)) => !one.intersection(other).is_empty(),
        (Value::Set(one), Value::Set(other)) => one.iter().any(|item| other.contains_item(item)),
        (Value::Scalar(_) | Value::Ranges(_) | Value::Set(_), _) => false,
    }
}
