//! Interning: names of resources become kinds, and all that tells resources apart becomes a class.
//!
//! The hot path sees only the integers. Classes that nobody holds any more are swept out when they
//! outnumber the living, so volumes that come and go do not pile up.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use meseta_resources::{Resource, ResourceName, Resources, Role, Scalar, Value};

use crate::bundle::{Bundle, ClassKey, Items};
use crate::roles::{RoleKey, RoleTree};
use crate::slab::{KeyMap, Slab, at, key_of};
use crate::sorter::Kind;

/// How many classes may exist before dead ones are looked for.
const SWEEP_CLASSES_MIN: usize = 1024;
/// The first classes are the plain cpus, mem, disk and so on: a look at each is the fastest search.
const SCAN_MAX: usize = 8;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Scalar,
    Ranges,
    Set,
}

#[derive(Clone, Debug)]
pub(crate) struct Class {
    /// Unallocated; its value is only meaningful if the class can only be had whole.
    pub(crate) template: Resource,
    pub(crate) kind: Kind,
    pub(crate) shape: Shape,
    /// What amounts are multiples of: the whole, of what can only be had whole.
    pub(crate) unit: i64,
    /// Whom it is reserved to.
    pub(crate) owner: Option<RoleKey>,
    /// For frameworks that know the stack of reservations alone.
    pub(crate) stacked: bool,
    pub(crate) revocable: bool,
    pub(crate) shared: bool,
    /// Classes of one run stand in a collection in the order of their keys.
    run: u32,
    /// Unreserved and not revocable: what quota and headroom are about, if it is a scalar.
    pub(crate) regular: bool,
}

impl Class {
    /// Whether it is for everybody, each unit once: what most agents have nothing but.
    pub(crate) const fn is_plain(&self) -> bool {
        self.regular && !self.shared
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    classes: Slab<Class>,
    by_digest: KeyMap<u64, Vec<ClassKey>>,
    names: Vec<ResourceName>,
    kinds: KeyMap<ResourceName>,
    sweep_at: usize,
    live: usize,
    /// The class that was made last, and how many runs there have been.
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
        let kind = key_of(self.names.len());
        self.names.push(name.clone());
        self.kinds.insert(name.clone(), kind);
        kind
    }

    pub(crate) fn find_kind(&self, name: &ResourceName) -> Option<Kind> {
        self.kinds.get(name).copied()
    }

    /// One past the highest kind.
    pub(crate) fn kinds(&self) -> Kind {
        key_of(self.names.len())
    }

    pub(crate) fn name(&self, kind: Kind) -> &ResourceName {
        &self.names[at(kind)]
    }

    /// The class of a resource, made if it is new.
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

    /// The run that a new class belongs to: that of the newest, if the key that it will get is the next
    /// and it stands after it.
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

    /// The class of a resource if there is one.
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

    /// As a bundle; new classes are made.
    pub(crate) fn bundle(&mut self, roles: &mut RoleTree, resources: &Resources) -> Bundle {
        let mut bundle = Bundle::default();
        for resource in resources {
            let class = self.intern(roles, resource);
            add_to(&mut bundle, class, resource, resources);
        }
        bundle
    }

    /// As a bundle, unless something of it is of a class that nobody has.
    pub(crate) fn find_bundle<'a>(&self, resources: &'a Resources) -> Result<Bundle, &'a Resource> {
        let mut bundle = Bundle::default();
        for resource in resources {
            let class = self.find(resource).ok_or(resource)?;
            add_to(&mut bundle, class, resource, resources);
        }
        Ok(bundle)
    }

    /// Back to what the rest of the world speaks.
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

    /// Whether scalars and then items stand in the order of a collection.
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

    /// Whether it is time to look for classes that nobody holds.
    pub(crate) fn needs_sweep(&self) -> bool {
        self.live > SWEEP_CLASSES_MIN.max(self.sweep_at)
    }

    /// Forgets the classes that are not among the living.
    pub(crate) fn sweep(&mut self, roles: &mut RoleTree, living: &crate::bits::Bits) {
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
}

fn shape(resource: &Resource) -> Shape {
    match resource.value() {
        Value::Scalar(_) => Shape::Scalar,
        Value::Ranges(_) => Shape::Ranges,
        Value::Set(_) => Shape::Set,
    }
}

/// The amount of what can only be had whole.
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

/// Equal for the same class; almost always different for different ones.
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
