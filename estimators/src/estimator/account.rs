//! The account of one resource of a node, computed from a sample: capacity, promised and used.
//!
//! The code is the same for cpus and for memory, so that the predictors do not depend on the resource. Invariant: unreadable
//! regular work counts at its limit, and an unreadable host forbids to oversubscribe more.

use meseta_resources::{Moment, Resource, Resources, Scalar};

use crate::numbers::{MEGABYTE, bytes, sound};
use crate::rates::{Meter, Reading};
use crate::{ContainerUsage, ExecutorKey, Gate, UsageSample};

use super::Forecast;
use super::shaper::{ShapeRequest, Shaper};

/// The measured resource and its unit.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Processors, by their number.
    Cpus,
    /// The size of memory, in megabytes.
    Mem,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Cpus => meseta_resources::name::CPUS,
            Self::Mem => meseta_resources::name::MEM,
        }
    }

    /// The smallest reported step.
    const fn quantum(self) -> f64 {
        match self {
            Self::Cpus => 0.1,
            Self::Mem => 32.0,
        }
    }

    /// The amount in the selected resources.
    fn sum(self, resources: &Resources, meant: impl Fn(&Resource) -> bool) -> f64 {
        let name = self.name();
        let of_kind = resources
            .iter()
            .filter(|resource| resource.name() == name && meant(resource));
        let scalars = of_kind.filter_map(Resource::scalar);
        scalars
            .fold(Scalar::ZERO, |sum, scalar| sum + scalar)
            .to_f64()
    }

    fn limit(self, container: &ContainerUsage) -> Option<f64> {
        match self {
            Self::Cpus => container.cpus_limit,
            Self::Mem => container
                .memory_limit_bytes
                .map(|limit| bytes(limit) / MEGABYTE),
        }
    }

    fn host_capacity(self, sample: &UsageSample) -> Option<f64> {
        match self {
            Self::Cpus => sample.host.cpus.map(f64::from),
            Self::Mem => sample
                .host
                .memory
                .map(|memory| bytes(memory.total_bytes) / MEGABYTE),
        }
    }

    fn host_use(self, sample: &UsageSample, meter: &Meter) -> Reading {
        match self {
            Self::Cpus => meter.host(),
            Self::Mem => sample.host.memory.map_or(Reading::Unknown, |memory| {
                Reading::Fresh(bytes(memory.used_bytes()) / MEGABYTE)
            }),
        }
    }

    fn container_use(
        self,
        container: &ContainerUsage,
        key: &ExecutorKey,
        sample: &UsageSample,
        meter: &Meter,
    ) -> Reading {
        match self {
            Self::Cpus => meter.container(key),
            Self::Mem => match container.memory_bytes {
                Some(used) if meter.was_read(key) => Reading::Fresh(bytes(used) / MEGABYTE),
                Some(used) if container.is_fresh(sample.at, meter.stale_after()) => {
                    Reading::Held(bytes(used) / MEGABYTE)
                }
                _ => Reading::Unknown,
            },
        }
    }
}

fn is_regular(resource: &Resource) -> bool {
    !resource.is_revocable()
}

fn is_reserved(resource: &Resource) -> bool {
    is_regular(resource) && resource.is_reserved()
}

/// An executor without revocable resources.
#[derive(Clone, Debug)]
pub(super) struct Regular {
    pub(super) key: ExecutorKey,
    /// The limit, at least the promised amount.
    pub(super) limit: f64,
    pub(super) used: Reading,
    pub(super) started: Option<Moment>,
}

impl Regular {
    /// The use, or the limit if the use is unknown.
    pub(super) fn used_or_limit(&self) -> f64 {
        self.used.value().unwrap_or(self.limit)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) capacity: f64,
    pub(super) promised: f64,
    pub(super) used: f64,
    pub(super) regular: Vec<Regular>,
    /// The use of the system outside the containers.
    system: f64,
    /// The regular part of containers that are revocable as a whole: kept free, never oversubscribed again.
    mixed: f64,
    unused_reservations: f64,
    host_known: bool,
    all_fresh: bool,
}

impl Account {
    /// The account of a resource; `None` if the capacity is unknown.
    pub(super) fn from_kind(
        kind: Kind,
        sample: &UsageSample,
        meter: &Meter,
        reserved_for_system: f64,
    ) -> Option<Self> {
        let agent = Some(kind.sum(&sample.total, is_regular)).filter(|total| *total > 0.0)?;
        let capacity = kind
            .host_capacity(sample)
            .and_then(sound)
            .map_or(agent, |c| c.min(agent));
        let mut account = Self {
            capacity,
            promised: 0.0,
            used: 0.0,
            regular: Vec::new(),
            system: reserved_for_system,
            mixed: 0.0,
            unused_reservations: kind.sum(&sample.total, is_reserved),
            host_known: false,
            all_fresh: true,
        };
        let mut in_containers = 0.0;
        for container in &sample.containers {
            in_containers += account.count(kind, container, sample, meter);
        }
        if let Reading::Fresh(host) = kind.host_use(sample, meter) {
            account.host_known = true;
            account.system = account.system.max(host - in_containers);
        }
        Some(account)
    }

    /// Enters a container; returns its known use.
    fn count(
        &mut self,
        kind: Kind,
        container: &ContainerUsage,
        sample: &UsageSample,
        meter: &Meter,
    ) -> f64 {
        let key = container.key();
        let used = kind.container_use(container, &key, sample, meter);
        let promised = kind.sum(&container.allocated, is_regular);
        self.unused_reservations -= kind.sum(&container.allocated, is_reserved);
        if container.is_revocable() {
            self.mixed += promised;
            return used.value().unwrap_or(0.0);
        }
        // An infinite limit means the whole capacity.
        let limit = kind
            .limit(container)
            .filter(|limit| *limit > 0.0)
            .unwrap_or(promised);
        let limit = limit.min(self.capacity).max(promised);
        let regular = Regular {
            key,
            limit,
            used,
            started: container.started,
        };
        // A container that has not begun yet has no readings, and counts at its limit.
        let has_begun = container.at.is_some() || meter.container(&regular.key) != Reading::Unknown;
        self.all_fresh &= !has_begun || matches!(used, Reading::Fresh(_));
        self.promised += promised;
        self.used += regular.used_or_limit();
        self.regular.push(regular);
        used.value().unwrap_or(0.0)
    }

    /// The total that may be oversubscribed for this peak of regular work, after the caps and the ramp.
    pub(super) fn settle(
        &self,
        kind: Kind,
        sample: &UsageSample,
        peak: f64,
        lend_reservations: bool,
        shaper: &mut Shaper,
    ) -> Forecast {
        let caps = shaper.config();
        let mut slack = self.promised - peak;
        if lend_reservations {
            slack += self.unused_reservations.max(0.0);
        }
        let room = caps.utilization_cap * self.capacity - peak - self.system - self.mixed;
        let total = slack.min(room).min(caps.offer_cap * self.capacity);
        let request = ShapeRequest {
            at: sample.at,
            total,
            capacity: self.capacity,
            quantum: kind.quantum(),
            may_grow: self.host_known && self.all_fresh,
        };
        let total = shaper.shape(request);
        self.forecast(kind, peak, total)
    }

    pub(super) const fn forecast(&self, kind: Kind, peak: f64, total: f64) -> Forecast {
        Forecast {
            resource: kind.name(),
            capacity: self.capacity,
            promised: self.promised,
            used: self.used,
            peak,
            total,
        }
    }

    /// The reason why no more can be oversubscribed than before, if there is one.
    pub(super) const fn blind(&self) -> Option<&'static str> {
        match (self.host_known, self.all_fresh) {
            (false, _) => Some("failed to read the usage of the host"),
            (true, false) => Some("failed to read the usage of a container"),
            (true, true) => None,
        }
    }
}

/// The revocable allocations of the resource.
pub(super) fn oversubscribed(kind: Kind, sample: &UsageSample) -> f64 {
    sample
        .containers
        .iter()
        .map(|container| kind.sum(&container.allocated, Resource::is_revocable))
        .sum()
}

/// Prevents that the time of a closed gate counts as time to grow.
pub(super) fn gate_is_shut(shaper: &mut Shaper, at: Moment, gate: Gate) -> bool {
    let shut = shaper.gate(at, gate);
    if shut {
        shaper.hold(at);
    }
    shut
}
