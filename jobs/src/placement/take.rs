//! What one task takes of what is offered.

use std::collections::BTreeMap;

use meseta_resources::{
    Range, Ranges, Resource, ResourceName, ResourceQuantities, Resources, Scalar, Value,
};

use super::{Placement, Why};
use crate::spec::JobSpec;

const CPUS: &str = "cpus";
const PORTS: &str = "ports";

/// What each task of a job needs.
#[derive(Debug)]
pub(super) struct Demand<'a> {
    port_names: &'a [String],
    /// Scalars that are taken from what is guaranteed.
    plain: Resources,
    /// CPUs of a best-effort job.
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

    /// Takes a new task's resources of what is left of the offer with this index: what is reserved first.
    ///
    /// # Errors
    /// [`Why::Short`] when there is too little.
    pub(super) fn take(&self, offer: usize, left: &Resources) -> Result<Placement, Why> {
        let short = || self.short(left);
        let mut placement = self.take_task(offer, left).ok_or_else(short)?;
        if !self.volume.is_empty() {
            let rest = left - &placement.resources;
            placement.new_volume = rest.cover(&self.volume).ok_or_else(short)?;
        }
        Ok(placement)
    }

    /// The same with a volume that exists already.
    ///
    /// # Errors
    /// [`Why::Short`] when there is too little beside the volume.
    pub(super) fn take_on_volume(
        &self,
        offer: usize,
        left: &Resources,
        volume: &Resource,
    ) -> Result<Placement, Why> {
        let taken = self.take_task(offer, left);
        let mut placement = taken.ok_or_else(|| self.short(left))?;
        placement.resources += volume;
        Ok(placement)
    }

    fn take_task(&self, offer: usize, left: &Resources) -> Option<Placement> {
        let mut resources = left.cover(&self.plain)?;
        if !self.revocable.is_empty() {
            let revocable = left.revocable().with_revocable(false);
            resources += revocable.cover(&self.revocable)?.with_revocable(true);
        }
        let mut ports = BTreeMap::new();
        if !self.port_names.is_empty() {
            let numbers = ports_of(left, self.port_names.len())?;
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
        })
    }

    /// How many tasks the resources hold, by the scarcest of them; 0 to infinity.
    pub(super) fn room(&self, left: &Resources) -> f64 {
        let available = self.available(left);
        let shares = self.needed();
        let shares = shares
            .iter()
            .map(|(name, needed)| available.get(name.as_str()).to_f64() / needed.to_f64());
        shares.fold(f64::INFINITY, f64::min)
    }

    fn short(&self, left: &Resources) -> Why {
        let needed = self.needed();
        let missing = &needed - &self.available(left);
        Why::Short {
            missing,
            needed,
            is_revocable: !self.revocable.is_empty(),
        }
    }

    fn needed(&self) -> ResourceQuantities {
        let mut needed = self.plain.quantities();
        let others = [self.revocable.quantities(), self.volume.quantities()];
        for (name, amount) in others.iter().flat_map(ResourceQuantities::iter) {
            needed.increase(name, amount);
        }
        if let (Ok(name), false) = (ResourceName::new(PORTS), self.port_names.is_empty()) {
            needed.set(&name, Scalar::from_units(self.port_names.len() as u64));
        }
        needed
    }

    /// What a task could take, whatever the amount.
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

/// The lowest ports, reserved ones first.
fn ports_of(left: &Resources, count: usize) -> Option<Vec<u16>> {
    let left = left.named(PORTS).unrevocable();
    let all = [left.reserved(None), left.unreserved()];
    let ranges = all.iter().filter_map(|one| one.ports());
    let numbers = ranges.flat_map(|ranges| {
        let ranges: Vec<Range> = ranges.iter().collect();
        ranges
            .into_iter()
            .flat_map(|range| range.begin().max(1)..=range.end().min(u64::from(u16::MAX)))
    });
    let numbers = numbers.filter_map(|number| u16::try_from(number).ok());
    let numbers: Vec<u16> = numbers.take(count).collect();
    (numbers.len() == count).then_some(numbers)
}
