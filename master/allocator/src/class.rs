//! Interning: resource names become kinds, and all other properties of a resource become a class.
//!
//! The hot path sees only the integers. A sweep removes unused classes when they outnumber the used ones, and kinds
//! without a class, so volumes and names that come and go do not pile up. Invariant: a name that a framework only
//! requests is never interned.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use meseta_resources::{Resource, ResourceName, Resources, Role, Scalar, Value};

use crate::bits::Bits;
use crate::bundle::{Bundle, ClassKey, Items};
use crate::roles::{RoleKey, RoleTree};
use crate::slab::{KeyMap, Slab, key_of};
use crate::sorter::Kind;

/// The number of classes below which no sweep runs: up to here unused classes cost little memory.
const SWEEP_CLASSES_MIN: usize = 1024;
/// The number of kinds below which no sweep runs. A cluster has a dozen kinds.
const SWEEP_KINDS_MIN: usize = 128;
/// The number of classes that a search tries one by one before it uses the index. The first classes are usually plain
/// cpus, mem and disk, and this finds them fastest.
const SCAN_MAX: usize = 8;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Scalar,
    Ranges,
    Set,
}

#[derive(Clone, Debug)]
pub(crate) struct Class {
    /// An unallocated resource of the class; its value matters only for an indivisible resource.
    pub(crate) template: Resource,
    pub(crate) kind: Kind,
    pub(crate) shape: Shape,
    /// The step of amounts: the whole amount for a resource that cannot be divided.
    pub(crate) unit: i64,
    /// The role of the reservation.
    pub(crate) owner: Option<RoleKey>,
    /// Whether only frameworks with reservation refinement understand this stack of reservations.
    pub(crate) stacked: bool,
    pub(crate) revocable: bool,
    pub(crate) shared: bool,
    /// The number of the run. Within a run, the order of keys is the order of a collection.
    run: u32,
    /// Whether the class is unreserved and not revocable. Quota and headroom concern the scalars of such classes.
    pub(crate) regular: bool,
}

impl Class {
    /// Whether the class is regular and not shared. Most agents have only such classes.
    pub(crate) const fn is_plain(&self) -> bool {
        self.regular && !self.shared
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    classes: Slab<Class>,
    by_digest: KeyMap<u64, Vec<ClassKey>>,
    names: Slab<ResourceName>,
    kinds: KeyMap<ResourceName>,
    /// The bound of the permanent kinds, which no sweep removes.
    permanent_kinds: Kind,
    /// The number of kinds left by the last sweep.
    kinds_swept: usize,
    sweep_at: usize,
    live: usize,
    /// The newest class; below, the number of runs.
    newest: Option<ClassKey>,
    runs: u32,
}

impl std::ops::Index<ClassKey> for Classes {
    type Output = Class;
    #[inline]
    fn index(&self, class: ClassKey) -> &Class {
        &self.classes[class]
    }
}

impl Classes {
    pub(crate) fn kind(&mut self, name: &ResourceName) -> Kind {
        if let Some(kind) = self.find_kind(name) {
            return kind;
        }
        let kind = self.names.insert(name.clone());
        self.kinds.insert(name.clone(), kind);
        kind
    }

    pub(crate) fn find_kind(&self, name: &ResourceName) -> Option<Kind> {
        self.kinds.get(name).copied()
    }

    /// Makes all current kinds permanent.
    pub(crate) fn keep_kinds(&mut self) {
        self.permanent_kinds = self.names.bound();
    }

    pub(crate) fn find_permanent_kind(&self, name: &ResourceName) -> Option<Kind> {
        self.find_kind(name)
            .filter(|kind| *kind < self.permanent_kinds)
    }

    /// The highest kind plus one.
    pub(crate) fn kinds(&self) -> Kind {
        self.names.bound()
    }

    pub(crate) fn name(&self, kind: Kind) -> &ResourceName {
        &self.names[kind]
    }

    /// Returns the class of a resource; creates it if necessary.
    pub(crate) fn intern(&mut self, roles: &mut RoleTree, resource: &Resource) -> ClassKey {
        if let Some(class) = self.find(resource) {
            return class;
        }
        let kind = self.kind(resource.name());
        let owner = resource.reservation_role().map(|role| roles.pin(role));
        let revocable = resource.is_revocable();
        let template = resource.clone().with_allocation(None);
        let run = self.run_after(&template);
        let class = Class {
            template,
            run,
            kind,
            shape: match resource.value() {
                Value::Scalar(_) => Shape::Scalar,
                Value::Ranges(_) => Shape::Ranges,
                Value::Set(_) => Shape::Set,
            },
            unit: whole_of(resource).unwrap_or(1),
            owner,
            stacked: resource.needs_reservation_stack(),
            revocable,
            shared: resource.is_shared(),
            regular: owner.is_none() && !revocable,
        };
        let key = self.classes.insert(class);
        self.newest = Some(key);
        self.by_digest
            .entry(digest(resource))
            .or_default()
            .push(key);
        self.live += 1;
        key
    }

    /// The run of a new class: that of the newest class, if the new class has a higher key and sorts after the
    /// newest.
    fn run_after(&mut self, template: &Resource) -> u32 {
        let next = self.classes.next_key();
        let newest = self
            .newest
            .and_then(|key| Some((key, self.classes.try_get(key)?)));
        if let Some((_, class)) =
            newest.filter(|(key, class)| *key < next && class.template.precedes(template))
        {
            return class.run;
        }
        self.runs += 1;
        self.runs
    }

    /// Finds the class of a resource.
    pub(crate) fn find(&self, resource: &Resource) -> Option<ClassKey> {
        let whole = resource.is_exclusive();
        if !whole {
            for key in 0..key_of(SCAN_MAX).min(self.classes.bound()) {
                if let Some(class) = self.classes.try_get(key)
                    && class.template.shares_identity_with(resource)
                    && class.shape == shape(resource)
                {
                    return Some(key);
                }
            }
        }
        self.by_digest
            .get(&digest(resource))?
            .iter()
            .copied()
            .find(|key| {
                let class = &self.classes[*key];
                class.shape == shape(resource)
                    && class.template.is_same_thing_as(resource)
                    && (!whole || class.template.value() == resource.value())
            })
    }

    /// Converts resources to a bundle; interns new classes.
    pub(crate) fn bundle(&mut self, roles: &mut RoleTree, resources: &Resources) -> Bundle {
        let mut bundle = Bundle::default();
        for resource in resources {
            let class = self.intern(roles, resource);
            add_to(&mut bundle, class, resource, resources);
        }
        bundle
    }

    /// Converts resources to a bundle. Fails with the first resource of an unknown class.
    pub(crate) fn find_bundle<'a>(&self, resources: &'a Resources) -> Result<Bundle, &'a Resource> {
        let mut bundle = Bundle::default();
        for resource in resources {
            let class = self.find(resource).ok_or(resource)?;
            add_to(&mut bundle, class, resource, resources);
        }
        Ok(bundle)
    }

    /// Converts a bundle to resources.
    pub(crate) fn resources(&self, bundle: &Bundle, role: Option<&Role>) -> Resources {
        let whole = |entry: &(ClassKey, i64)| self.classes[entry.0].unit != 1;
        if bundle.scalars.iter().any(whole) {
            return self.resources_with_whole_items(bundle, role);
        }
        let scalars = bundle.scalars.iter().map(|(key, amount)| {
            let value = Value::Scalar(Scalar::from_millis(*amount));
            self.classes[*key]
                .template
                .with_value_for(value, role.cloned())
        });
        let all = scalars.chain(self.items(bundle, role));
        if self.is_one_run(bundle) {
            Resources::from_ascending_unchecked(all)
        } else {
            Resources::from_ascending(all)
        }
    }

    /// Whether the scalars and then the items are in the order of a collection.
    fn is_one_run(&self, bundle: &Bundle) -> bool {
        let (Some(first), last) = (bundle.classes().next(), bundle.scalars.last()) else {
            return true;
        };
        let run = self.classes[first].run;
        bundle.classes().all(|class| self.classes[class].run == run)
            && bundle
                .items
                .first()
                .is_none_or(|item| last.is_none_or(|last| last.0 < item.0))
    }

    fn resources_with_whole_items(&self, bundle: &Bundle, role: Option<&Role>) -> Resources {
        let scalars = bundle.scalars.iter().flat_map(|(key, amount)| {
            let class = &self.classes[*key];
            let (each, copies) = match class.unit {
                1 => (*amount, 1),
                unit => (unit, amount / unit),
            };
            let value = Value::Scalar(Scalar::from_millis(each));
            (0..copies).map(move |_| class.template.with_value_for(value.clone(), role.cloned()))
        });
        scalars.chain(self.items(bundle, role)).collect()
    }

    fn items<'a>(
        &'a self,
        bundle: &'a Bundle,
        role: Option<&'a Role>,
    ) -> impl Iterator<Item = Resource> + 'a {
        bundle.items.iter().map(move |(key, items)| {
            let value = match items {
                Items::Ranges(ranges) => Value::Ranges(ranges.clone()),
                Items::Set(set) => Value::Set(set.clone()),
            };
            self.classes[*key]
                .template
                .with_value_for(value, role.cloned())
        })
    }

    /// Whether a sweep of unused classes and kinds is due.
    pub(crate) fn needs_sweep(&self) -> bool {
        self.live > SWEEP_CLASSES_MIN.max(self.sweep_at)
            || self.kinds.len() > SWEEP_KINDS_MIN.max(self.kinds_swept * 2)
    }

    /// Removes the classes that are not in `living`.
    pub(crate) fn sweep(&mut self, roles: &mut RoleTree, living: &Bits) {
        let dead: Vec<ClassKey> = self
            .classes
            .iter()
            .map(|(key, _)| key)
            .filter(|key| !living.contains(*key))
            .collect();
        for key in dead {
            if let Some(class) = self.classes.remove(key) {
                self.live -= 1;
                let digest = digest(&class.template);
                if let Some(bucket) = self.by_digest.get_mut(&digest) {
                    bucket.retain(|other| *other != key);
                    if bucket.is_empty() {
                        self.by_digest.remove(&digest);
                    }
                }
                if let Some(owner) = class.owner {
                    roles.unpin(owner);
                }
            }
        }
        self.sweep_at = self.live * 2;
    }

    /// Removes the kinds without a class that are not among `others`. Their counts are zero, so their keys may stand
    /// for other names later.
    pub(crate) fn sweep_kinds(&mut self, others: impl Iterator<Item = Kind>) {
        let mut living = Bits::default();
        let of_classes = self.classes.iter().map(|(_, class)| class.kind);
        for kind in of_classes.chain(others).chain(0..self.permanent_kinds) {
            living.insert(kind);
        }
        let kinds = 0..self.names.bound();
        for kind in kinds.filter(|kind| !living.contains(*kind)) {
            if let Some(name) = self.names.remove(kind) {
                self.kinds.remove(&name);
            }
        }
        self.kinds_swept = self.kinds.len();
    }
}

fn shape(resource: &Resource) -> Shape {
    match resource.value() {
        Value::Scalar(_) => Shape::Scalar,
        Value::Ranges(_) => Shape::Ranges,
        Value::Set(_) => Shape::Set,
    }
}

/// The whole amount of an indivisible resource.
fn whole_of(resource: &Resource) -> Option<i64> {
    if !resource.is_exclusive() {
        return None;
    }
    resource.scalar().map(|scalar| scalar.millis().max(1))
}

fn add_to(bundle: &mut Bundle, class: ClassKey, resource: &Resource, all: &Resources) {
    match resource.value() {
        Value::Scalar(scalar) => {
            let copies = if resource.is_shared() {
                all.count(resource)
            } else {
                1
            };
            let copies = i64::from(copies);
            bundle.add_scalar(class, scalar.millis().saturating_mul(copies));
        }
        Value::Ranges(ranges) => bundle.add_items(class, Items::Ranges(ranges.clone())),
        Value::Set(set) => bundle.add_items(class, Items::Set(set.clone())),
    }
}

/// A hash: equal for the same class, almost always different for different classes.
fn digest(resource: &Resource) -> u64 {
    let mut hasher = DefaultHasher::new();
    resource.name().hash(&mut hasher);
    resource.reservations().hash(&mut hasher);
    if let Some(disk) = resource.disk() {
        disk.source.hash(&mut hasher);
        disk.persistence
            .as_ref()
            .map(|persistence| &persistence.id)
            .hash(&mut hasher);
    }
    (resource.is_revocable(), resource.is_shared()).hash(&mut hasher);
    resource.provider_id().hash(&mut hasher);
    whole_of(resource).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use meseta_resources::{AgentId, FrameworkId, Moment, ResourceQuantities};

    use super::*;
    use crate::{AgentFacts, AgentSpec, Allocator, FrameworkSpec, Options, Quota};

    const NOW: Moment = Moment::ORIGIN;

    fn role() -> Role {
        Role::new("dev").expect("a valid role")
    }

    fn quantities(text: &str) -> ResourceQuantities {
        crate::quantities(&resources(text)).expect("plain")
    }

    fn resources(text: &str) -> Resources {
        Resources::parse(text, &Role::star()).expect("valid resources")
    }

    fn framework() -> FrameworkId {
        FrameworkId::new("f").expect("a valid id")
    }

    fn requiring(least: &[&str]) -> FrameworkSpec {
        let least = least.iter().map(|text| quantities(text)).collect();
        FrameworkSpec {
            roles: [role()].into(),
            min_allocatable: BTreeMap::from([(role(), least)]),
            ..FrameworkSpec::default()
        }
    }

    fn subscribe(allocator: &mut Allocator, spec: &FrameworkSpec) {
        let added = allocator.add_framework(&framework(), spec, true, &BTreeMap::new());
        added.expect("new");
    }

    fn add_agent(allocator: &mut Allocator, name: &str, total: &str) -> AgentId {
        let id = AgentId::new(name).expect("a valid id");
        let spec = AgentSpec::new(AgentFacts::named("host"), resources(total));
        allocator.add_agent(&id, spec).expect("new");
        id
    }

    #[test]
    fn framework_minimums_add_no_resource_kinds() {
        let mut allocator = Allocator::new(Options::default());
        subscribe(&mut allocator, &requiring(&["x:1"]));
        let kinds = allocator.classes.kinds();
        for number in 0..1_000 {
            let spec = requiring(&[&format!("x{number}:1;y{number}:1")]);
            allocator
                .update_framework(&framework(), &spec)
                .expect("known");
        }
        assert_eq!(allocator.classes.kinds(), kinds);
    }

    /// The check includes resources that no agent had when the framework subscribed.
    #[test]
    fn minimum_requires_enough_of_each_resource() {
        for (least, is_met) in [
            (&["disk:100"][..], true),
            (&["disk:101"], false),
            (&["disk:100;x:1"], false),
            (&["x:1", "cpus:4"], true),
            (&["cpus:5"], false),
        ] {
            let mut allocator = Allocator::new(Options::default());
            subscribe(&mut allocator, &requiring(least));
            add_agent(&mut allocator, "a", "cpus:4;mem:400;disk:100");
            let offers = allocator.allocate(NOW).len();
            assert_eq!(offers, usize::from(is_met), "{least:?}");
        }
    }

    #[test]
    fn removed_agents_and_quotas_free_kinds() {
        let mut allocator = Allocator::new(Options::default());
        subscribe(&mut allocator, &requiring(&["cpus:1"]));
        let stays = add_agent(&mut allocator, "a", "cpus:4;mem:400;special:7");
        let before = allocator.allocate(NOW);
        assert_eq!(before.len(), 1);
        let quota = |name: &str| Quota {
            guarantees: quantities(name),
            ..Quota::default()
        };
        for number in 0..2_000 {
            let named = format!("cpus:1;mem:10;x{number}:5");
            let id = add_agent(&mut allocator, &format!("a{number}"), &named);
            allocator
                .update_quota(&role(), &quota(&format!("y{number}:1")))
                .expect("valid");
            let offers = allocator.allocate(NOW);
            assert!(offers.iter().all(|offer| offer.agent == id));
            allocator.remove_agent(&id).expect("known");
        }
        let kinds = usize::try_from(allocator.classes.kinds()).expect("few");
        assert!(kinds <= 2 * SWEEP_KINDS_MIN, "{kinds} kinds");
        // A reused key counts only the new name's amounts.
        allocator
            .update_quota(&role(), &Quota::default())
            .expect("valid");
        assert_eq!(allocator.total(), quantities("cpus:4;mem:400;special:7"));
        assert_eq!(allocator.allocated(), allocator.total());
        let held = before[0].resources.clone();
        allocator
            .recover_resources(NOW, &framework(), &stays, &held, None)
            .expect("held");
        assert!(allocator.allocated().is_empty());
    }
}
