//! The resources that one task takes from an offer.

use std::collections::BTreeMap;

use meseta_resources::{
    Range, Ranges, Resource, ResourceName, ResourceQuantities, Resources, Scalar, Value,
};

use super::{Offer, Placement, Returned, Why};
use crate::spec::JobSpec;

const CPUS: &str = "cpus";
const PORTS: &str = "ports";

#[cfg(test)]
thread_local! {
    /// Counts the computations of an offer's room, and the tasks placed or tried.
    pub(crate) static ROOMS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    pub(crate) static TAKEN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The needs of each task of a job.
#[derive(Debug)]
pub(super) struct Demand<'a> {
    port_names: &'a [String],
    /// The scalars that are taken from guaranteed resources.
    plain: Resources,
    /// The CPUs of a best-effort job.
    revocable: Resources,
    /// The disk of the volume of a new instance.
    volume: Resources,
}

impl<'a> Demand<'a> {
    pub(super) fn new(spec: &'a JobSpec) -> Self {
        let scalars = spec.task.requests.iter();
        let scalars = scalars.filter_map(|(name, amount)| scalar(name, *amount));
        let all: Resources = scalars.collect();
        let is_revocable = |one: &Resource| spec.best_effort && one.name() == CPUS;
        let volume = spec.volume.as_ref();
        let volume = volume.and_then(|volume| scalar("disk", volume.size_mb));
        Self {
            port_names: &spec.task.ports,
            plain: all.filtered(|one| !is_revocable(one)),
            revocable: all.filtered(is_revocable),
            volume: volume.into_iter().collect(),
        }
    }

    /// Takes a new task's resources from the rest of the offer with this index: reserved resources first, and ports from
    /// `ports_from` on.
    ///
    /// # Errors
    ///
    /// [`Why::Short`] when there is too little.
    pub(super) fn take(
        &self,
        (offer, ports_from): (usize, u16),
        left: &Resources,
    ) -> Result<Placement, Why> {
        #[cfg(test)]
        TAKEN.set(TAKEN.get() + 1);
        let short = || self.short(left);
        let mut placement = self
            .take_amount((offer, ports_from), &self.plain, left)
            .ok_or_else(short)?;
        if !self.volume.is_empty() {
            let rest = left - &placement.resources;
            placement.new_volume = self.new_volume(&rest).ok_or_else(short)?;
        }
        Ok(placement)
    }

    /// Takes the resources of an instance whose volume exists: held resources first, then further ones.
    ///
    /// # Errors
    ///
    /// [`Why::Short`] when there is too little beside the held resources.
    pub(super) fn take_on_volume(
        &self,
        (index, offer): (usize, &Offer),
        held: &Resources,
        (id, volume): (&str, Resource),
    ) -> Result<Placement, Why> {
        let mut surplus = held.clone();
        surplus -= &volume;
        let (mut used, mut missing) = (Resources::new(), Resources::new());
        for needed in &self.plain {
            let Some(amount) = needed.scalar() else {
                continue;
            };
            let there = surplus.named(needed.name().as_str());
            let there = there.scalar(needed.name().as_str()).unwrap_or_default();
            let part = Resources::from(needed.with_value(Value::Scalar(amount.min(there))));
            used += &surplus.cover(&part).unwrap_or_default();
            missing.insert(needed.with_value(Value::Scalar(amount - amount.min(there))));
        }
        surplus -= &used;
        let short = || self.short_beside(&offer.resources, held);
        let mut placement = self
            .take_amount((index, offer.ports_from), &missing, &offer.resources)
            .ok_or_else(short)?;
        placement.returned = Some(Returned {
            id: id.to_owned(),
            volume,
            used,
            surplus,
        });
        Ok(placement)
    }

    /// Returns the disk for a new volume, from one disk: a volume is one resource.
    fn new_volume(&self, left: &Resources) -> Option<Resources> {
        let size = self.volume.scalar("disk")?;
        let disks = left.named("disk");
        let mut fitting: Vec<&Resource> = disks
            .iter()
            .filter(|disk| disk.disk().is_none() && !disk.is_revocable() && !disk.is_shared())
            .filter(|disk| disk.provider_id().is_none())
            .filter(|disk| disk.scalar().is_some_and(|there| there >= size))
            .collect();
        fitting.sort_by_key(|disk| std::cmp::Reverse(disk.reservations().len()));
        let disk = fitting.first()?;
        Some(disk.with_value(Value::Scalar(size)).into())
    }

    /// Takes these guaranteed scalars, and the ports and revocable CPUs of each task.
    fn take_amount(
        &self,
        (offer, ports_from): (usize, u16),
        plain: &Resources,
        left: &Resources,
    ) -> Option<Placement> {
        let mut resources = left.cover(plain)?;
        if !self.revocable.is_empty() {
            let revocable = left.revocable().with_revocable(false);
            resources += revocable.cover(&self.revocable)?.with_revocable(true);
        }
        let mut ports = BTreeMap::new();
        if !self.port_names.is_empty() {
            let numbers = ports_of(left, ports_from, self.port_names.len())?;
            let ranges: Ranges = numbers
                .iter()
                .map(|number| Range::single(u64::from(*number)))
                .collect();
            let name = ResourceName::new(PORTS).ok()?;
            let wanted = Resources::from(Resource::plain(name, Value::Ranges(ranges)));
            resources += left.cover(&wanted)?;
            ports = self.port_names.iter().cloned().zip(numbers).collect();
        }
        Some(Placement {
            offer,
            resources,
            ports,
            new_volume: Resources::new(),
            returned: None,
        })
    }

    /// Returns the resources of a task without ports, as if nothing were reserved.
    pub(super) fn requested(&self) -> Resources {
        &self.plain + &self.revocable.with_revocable(true)
    }

    /// Returns the number of tasks that the resources hold, by the scarcest of them; 0 to infinity.
    pub(super) fn room(&self, left: &Resources) -> f64 {
        #[cfg(test)]
        ROOMS.set(ROOMS.get() + 1);
        let available = self.available(left);
        let shares = self.needed();
        let shares = shares
            .iter()
            .map(|(name, needed)| available.get(name.as_str()).to_f64() / needed.to_f64());
        shares.fold(f64::INFINITY, f64::min)
    }

    fn short(&self, left: &Resources) -> Why {
        self.short_of(self.available(left))
    }

    /// Returns the shortage, given the resources held for the instance.
    fn short_beside(&self, left: &Resources, held: &Resources) -> Why {
        let mut available = self.available(left);
        for (name, amount) in held.quantities().iter() {
            available.increase(name, amount);
        }
        self.short_of(available)
    }

    fn short_of(&self, available: ResourceQuantities) -> Why {
        let needed = self.needed();
        let missing = &needed - &available;
        Why::Short {
            missing,
            needed,
            is_revocable: !self.revocable.is_empty(),
        }
    }

    fn needed(&self) -> ResourceQuantities {
        let mut needed = self.guaranteed();
        needed += &self.revocable.quantities();
        needed
    }

    /// Returns the guaranteed amounts of a new task, including its ports and its volume.
    pub(super) fn guaranteed(&self) -> ResourceQuantities {
        let mut needed = self.plain.quantities();
        needed += &self.volume.quantities();
        if let (Ok(name), false) = (ResourceName::new(PORTS), self.port_names.is_empty()) {
            needed.set(&name, Scalar::from_units(self.port_names.len() as u64));
        }
        needed
    }

    /// Returns the amounts that a task could take, whatever the amount.
    fn available(&self, left: &Resources) -> ResourceQuantities {
        let is_best_effort = !self.revocable.is_empty();
        let usable = left.filtered(|one| {
            let is_plain = one.disk().is_none() && !one.is_shared() && one.provider_id().is_none();
            is_plain && one.is_revocable() == (is_best_effort && one.name() == CPUS)
        });
        usable.quantities()
    }
}

fn scalar(name: &str, amount: f64) -> Option<Resource> {
    let name = ResourceName::new(name).ok()?;
    let amount = Scalar::from_f64(amount).ok()?;
    Some(Resource::plain(name, Value::Scalar(amount)))
}

/// Returns the lowest ports from a number on, then those below it; reserved ports come first.
fn ports_of(left: &Resources, from: u16, count: usize) -> Option<Vec<u16>> {
    let left = left.named(PORTS).unrevocable();
    let from = u64::from(from);
    let mut numbers: Vec<u16> = Vec::new();
    for part in [left.reserved(None), left.unreserved()] {
        let ranges = part.ports();
        let ranges: Vec<Range> = ranges.iter().flat_map(Ranges::iter).collect();
        for (low, high) in [
            (from.max(1), u64::from(u16::MAX)),
            (1, from.saturating_sub(1)),
        ] {
            let within = ranges
                .iter()
                .flat_map(|range| range.begin().max(low)..=range.end().min(high));
            let within = within.filter_map(|number| u16::try_from(number).ok());
            numbers.extend(within.take(count - numbers.len()));
        }
    }
    (numbers.len() == count).then_some(numbers)
}
