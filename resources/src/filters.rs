//! Parts of a collection: by reservation, allocation, revocability, name.

use std::collections::{BTreeMap, BTreeSet};

use crate::name::{CPUS, DISK, GPUS, MEM, PORTS};
use crate::resources::Entry;
use crate::{Ranges, Resource, ResourceName, ResourceQuantities, Resources, Role, Scalar};

impl Resources {
    #[must_use]
    pub fn revocable(&self) -> Self {
        self.filtered(Resource::is_revocable)
    }

    #[must_use]
    pub fn unrevocable(&self) -> Self {
        self.filtered(|resource| !resource.is_revocable())
    }

    /// The resources reserved to exactly this role, or to any role.
    #[must_use]
    pub fn reserved(&self, role: Option<&Role>) -> Self {
        self.filtered(|resource| match role {
            Some(role) => resource.is_reserved_to(role),
            None => resource.is_reserved(),
        })
    }

    #[must_use]
    pub fn unreserved(&self) -> Self {
        self.filtered(Resource::is_unreserved)
    }

    #[must_use]
    pub fn persistent_volumes(&self) -> Self {
        self.filtered(Resource::is_persistent_volume)
    }

    #[must_use]
    pub fn shared(&self) -> Self {
        self.filtered(Resource::is_shared)
    }

    #[must_use]
    pub fn unshared(&self) -> Self {
        self.filtered(|resource| !resource.is_shared())
    }

    #[must_use]
    pub fn scalars(&self) -> Self {
        self.filtered(|resource| resource.scalar().is_some())
    }

    #[must_use]
    pub fn named(&self, name: &str) -> Self {
        self.filtered(|resource| resource.name() == name)
    }

    /// The reserved resources, by their reservation role.
    #[must_use]
    pub fn reservations(&self) -> BTreeMap<Role, Self> {
        self.split(Resource::reservation_role)
    }

    /// The allocated resources, by their allocation role.
    #[must_use]
    pub fn allocations(&self) -> BTreeMap<Role, Self> {
        self.split(Resource::allocation_role)
    }

    fn split(&self, key: impl Fn(&Resource) -> Option<&Role>) -> BTreeMap<Role, Self> {
        let mut parts: BTreeMap<Role, Self> = BTreeMap::new();
        for Entry { resource, copies } in self.entries() {
            if let Some(role) = key(resource) {
                parts
                    .entry(role.clone())
                    .or_default()
                    .add_copies(resource.clone(), *copies);
            }
        }
        parts
    }

    /// A copy of the resources, all allocated to `role`.
    #[must_use]
    pub fn allocate(&self, role: &Role) -> Self {
        self.reallocate(Some(role))
    }

    /// A copy of the resources without allocation.
    #[must_use]
    pub fn unallocate(&self) -> Self {
        self.reallocate(None)
    }

    fn reallocate(&self, role: Option<&Role>) -> Self {
        let mut owners = self.iter().map(Resource::allocation_role);
        let first = owners.next().flatten();
        if owners.all(|owner| owner == first) {
            return self
                .clone()
                .map_in_place(|resource| resource.set_allocation(role.cloned()));
        }
        // Entries that differed only in their allocation become one, so each is added separately.
        let mut all = Self::new();
        for Entry { resource, copies } in self.entries() {
            let mut resource = resource.clone();
            resource.set_allocation(role.cloned());
            all.add_copies(resource, *copies);
        }
        all
    }

    /// The sum of all scalars with this name; `None` if there is no such scalar.
    #[must_use]
    pub fn scalar(&self, name: &str) -> Option<Scalar> {
        self.iter()
            .filter(|resource| resource.name() == name)
            .filter_map(Resource::scalar)
            .reduce(|total, scalar| total + scalar)
    }

    /// The union of all ranges with this name; `None` if there is no such range.
    #[must_use]
    pub fn ranges(&self, name: &str) -> Option<Ranges> {
        self.iter()
            .filter(|resource| resource.name() == name)
            .filter_map(|resource| resource.value().as_ranges().cloned())
            .reduce(|all, ranges| all.union(&ranges))
    }

    #[must_use]
    pub fn cpus(&self) -> Option<Scalar> {
        self.scalar(CPUS)
    }

    /// The amount of memory, in megabytes.
    #[must_use]
    pub fn mem(&self) -> Option<Scalar> {
        self.scalar(MEM)
    }

    /// The amount of disk, in megabytes.
    #[must_use]
    pub fn disk(&self) -> Option<Scalar> {
        self.scalar(DISK)
    }

    #[must_use]
    pub fn gpus(&self) -> Option<Scalar> {
        self.scalar(GPUS)
    }

    #[must_use]
    pub fn ports(&self) -> Option<Ranges> {
        self.ranges(PORTS)
    }

    /// Whether there is a resource of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.iter().any(|resource| resource.name() == name)
    }

    #[must_use]
    pub fn names(&self) -> BTreeSet<ResourceName> {
        self.iter()
            .map(|resource| resource.name().clone())
            .collect()
    }

    /// The part of the scalars that fits into the quantities; resources with other names are dropped. An indivisible resource is
    /// taken whole or not at all, in the order of the collection.
    #[must_use]
    pub fn shrink_to(&self, quantities: &ResourceQuantities) -> Self {
        let mut kept = Self::new();
        let mut taken = ResourceQuantities::new();
        for Entry { resource, copies } in self.entries() {
            let mut resource = resource.clone();
            let name = resource.name().as_str();
            let left = quantities.get(name).floor_sub(taken.get(name));
            if resource.shrink_to(left) {
                taken.increase(resource.name(), resource.value().quantity());
                kept.add_copies(resource, *copies);
            }
        }
        kept
    }
}
