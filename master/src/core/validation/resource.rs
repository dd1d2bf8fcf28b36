//! Validation of the resources of a task, of an executor, and of both together.
//!
//! The rules and messages are those of Mesos. The checks read the resources as given, because addition would merge a
//! resource given twice. Invariant: no function here depends on the cluster.

use std::collections::{BTreeMap, BTreeSet};

use meseta_proto::convert;
use meseta_proto::mesos::v1;
use meseta_proto::{Invalid, invalid};
use meseta_resources::{Range, Resource, Resources, Value};

/// Checks for whole gpus, unique volumes, one role, and no name both revocable and not.
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

/// Checks the resources that a task, or the tasks of a group, and their executor use together; each list is already
/// valid.
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

/// Checks that a volume's id is unique within its role; a shared volume may be repeated.
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

/// Whether two of these lists have a common port, or a common item of a set. Lists may have very many entries.
fn overlap(lists: &[Vec<Resource>]) -> bool {
    let mut items: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut ranges: BTreeMap<&str, Vec<(Range, usize)>> = BTreeMap::new();
    for (list, resources) in lists.iter().enumerate() {
        for resource in resources {
            let name = resource.name().as_str();
            match resource.value() {
                Value::Scalar(_) => {}
                Value::Set(set) => {
                    let is_others = |item| *items.entry((name, item)).or_insert(list) != list;
                    if set.iter().any(is_others) {
                        return true;
                    }
                }
                Value::Ranges(all) => {
                    let all = all.iter().map(|range| (range, list));
                    ranges.entry(name).or_default().extend(all);
                }
            }
        }
    }
    ranges.into_values().any(meet)
}

/// Whether ranges of two lists overlap.
fn meet(mut ranges: Vec<(Range, usize)>) -> bool {
    ranges.sort_unstable_by_key(|(range, list)| (range.begin(), *list));
    // The furthest end of the ranges so far, and the furthest end of another list.
    let mut furthest: Option<(u64, usize)> = None;
    let mut other: Option<(u64, usize)> = None;
    for (range, list) in ranges {
        let goes_on = |end: Option<(u64, usize)>| {
            end.is_some_and(|(end, whose)| whose != list && end >= range.begin())
        };
        if goes_on(furthest) || goes_on(other) {
            return true;
        }
        match furthest {
            Some((end, whose)) if whose == list => furthest = Some((end.max(range.end()), list)),
            Some((end, _)) if end >= range.end() => other = other.max(Some((range.end(), list))),
            before => (furthest, other) = (Some((range.end(), list)), before),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use meseta_resources::Role;

    fn lists(texts: &[&str]) -> Vec<Vec<Resource>> {
        let list = |text: &&str| {
            let parts = text.split('+').filter(|part| !part.is_empty());
            let parsed = parts.map(|part| Resources::parse(part, &Role::star()).expect("valid"));
            parsed
                .flat_map(|all| all.iter().cloned().collect::<Vec<_>>())
                .collect()
        };
        texts.iter().map(list).collect()
    }

    #[test]
    fn resources_overlap_in_ports_or_items() {
        for (texts, expected) in [
            (&["cpus:1", "cpus:1"][..], false),
            (&["ports:[1-5]", "ports:[6-9]"], false),
            (&["ports:[1-5]", "ports:[5-9]"], true),
            (&["ports:[5-9]", "ports:[1-5]"], true),
            (&["ports:[1-100]+ports:[3-4]", "ports:[101-102]"], false),
            (
                &["ports:[1-100]+ports:[3-4]", "ports:[200-201]+ports:[50-50]"],
                true,
            ),
            (&["ports:[1-9]", "others:[1-9]"], false),
            (
                &["ports:[10-30]+ports:[1-2]", "ports:[3-4]", "ports:[2-2]"],
                true,
            ),
            (
                &[
                    "ports:[1-9]",
                    "ports:[20-29]",
                    "ports:[15-17]+ports:[22-22]",
                ],
                true,
            ),
            (&["disks:{a,b}+disks:{a}", "disks:{c}"], false),
            (&["disks:{a,b}", "disks:{c}", "disks:{b}"], true),
            (&["disks:{a}", "other:{a}"], false),
            (&[], false),
        ] {
            assert_eq!(overlap(&lists(texts)), expected, "{texts:?}");
        }
    }

    /// The code used to compare each list with all others.
    #[test]
    fn many_resources_are_validated_once_each() {
        const MANY: u64 = 50_000;
        let range = |at| Resources::parse(&format!("ports:[{at}-{at}]"), &Role::star());
        let one = |at| {
            range(at)
                .expect("valid")
                .iter()
                .next()
                .cloned()
                .expect("one")
        };
        let evens: Vec<Resource> = (0..MANY).map(|at| one(2 * at)).collect();
        let mut odds: Vec<Resource> = (0..MANY).map(|at| one(2 * at + 1)).collect();
        assert!(!overlap(&[evens.clone(), odds.clone()]));
        odds.push(one(2 * MANY - 2));
        assert!(overlap(&[evens, odds]));
    }
}
