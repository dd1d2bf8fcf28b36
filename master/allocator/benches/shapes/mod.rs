//! Clusters in the shapes of Mesos's allocator benchmarks, for a comparison of the figures.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_allocator::{
    AgentFacts, AgentSpec, Allocation, Allocator, FrameworkCapabilities, FrameworkSpec, Options,
    Quota,
};
use meseta_resources::{
    AgentId, FrameworkId, Moment, Ranges, Resource, ResourceName, ResourceQuantities, Resources,
    Role, Scalar, Value,
};

/// A time longer than any benchmark.
pub(crate) const FOREVER: Duration = Duration::from_secs(1_000_000);

pub(crate) struct Cluster {
    pub(crate) allocator: Allocator,
    pub(crate) agents: Vec<AgentId>,
    pub(crate) frameworks: Vec<FrameworkId>,
    pub(crate) now: Moment,
}

pub(crate) fn role(name: &str) -> Role {
    Role::new(name).expect("a valid role")
}

pub(crate) fn resources(text: &str) -> Resources {
    Resources::parse(text, &Role::star()).expect("valid resources")
}

pub(crate) fn in_role(name: &str) -> FrameworkSpec {
    FrameworkSpec {
        roles: BTreeSet::from([role(name)]),
        capabilities: FrameworkCapabilities {
            multi_role: true,
            revocable_resources: true,
            shared_resources: true,
            ..Default::default()
        },
        ..Default::default()
    }
}

/// 16 ranges from 31000-32000, the ports in use in the benchmarks of Mesos.
pub(crate) fn fragmented_ports() -> Resource {
    let ranges: Ranges = (0..16)
        .map(|at| {
            meseta_resources::Range::new(31000 + at * 62, 31000 + at * 62 + 30).expect("ordered")
        })
        .collect();
    Resource::plain(ResourceName::ports(), Value::Ranges(ranges))
}

/// Ids as long as real ones.
fn id(kind: &str, index: usize) -> String {
    format!("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0-{kind}{index:06}")
}

impl Cluster {
    /// Adds the frameworks first, spread over the roles, then the agents; a framework uses one agent in `used_by`.
    pub(crate) fn new(agents: usize, frameworks: usize, roles: usize) -> Self {
        let mut cluster = Self::without_agents(frameworks, roles);
        let total = resources("cpus:24;mem:4096;disk:4096;ports:[31000-32000]");
        let mut used = resources("cpus:16;mem:2014;disk:1024");
        used.insert(fragmented_ports());
        for index in 0..agents {
            let of = index % frameworks;
            let name = cluster.role_of(of, roles);
            cluster.add_agent(&total, Some((of, used.allocate(&name))));
        }
        cluster
    }

    pub(crate) fn role_of(&self, framework: usize, roles: usize) -> Role {
        role(&format!("role{}", framework % roles))
    }

    pub(crate) fn without_agents(frameworks: usize, roles: usize) -> Self {
        let mut cluster = Self {
            allocator: Allocator::new(Options::default()),
            agents: Vec::new(),
            frameworks: Vec::new(),
            now: Moment::ORIGIN,
        };
        for index in 0..frameworks {
            let id = FrameworkId::new(&id("F", index)).expect("a valid id");
            let spec = in_role(&format!("role{}", index % roles));
            cluster
                .allocator
                .add_framework(&id, &spec, true, &BTreeMap::new())
                .expect("new");
            cluster.frameworks.push(id);
        }
        cluster
    }

    pub(crate) fn add_agent(&mut self, total: &Resources, used: Option<(usize, Resources)>) {
        let id = AgentId::new(&id("S", self.agents.len())).expect("a valid id");
        let mut spec = AgentSpec::new(AgentFacts::named("host.example.com"), total.clone());
        if let Some((framework, used)) = used {
            spec.used.insert(self.frameworks[framework].clone(), used);
        }
        self.allocator.add_agent(&id, spec).expect("new");
        self.agents.push(id);
    }

    /// Runs one forced full cycle.
    #[inline(never)]
    pub(crate) fn measured_sweep(&mut self) -> Vec<Allocation> {
        self.allocator.sweep(self.now)
    }

    /// Declines all offers, by default permanently.
    #[inline(never)]
    pub(crate) fn measured_decline(&mut self, offers: &[Allocation], refuse: Option<Duration>) {
        for offer in offers {
            self.allocator
                .recover_resources(
                    self.now,
                    &offer.framework,
                    &offer.agent,
                    &offer.resources,
                    refuse,
                )
                .expect("held");
        }
    }
}

/// Amounts of cpus, mem and disk.
pub(crate) fn quantities(cpus: u64, mem: u64, disk: u64) -> ResourceQuantities {
    let names = [
        ResourceName::cpus(),
        ResourceName::mem(),
        ResourceName::disk(),
    ];
    names
        .into_iter()
        .zip([cpus, mem, disk].map(Scalar::from_units))
        .collect()
}

/// Guarantees that are limits too.
pub(crate) fn quota(cpus: u64, mem: u64, disk: u64) -> Quota {
    let guarantees = quantities(cpus, mem, disk);
    let limits = guarantees
        .iter()
        .map(|(name, amount)| (name.clone(), amount))
        .collect();
    Quota {
        guarantees,
        limits,
        legacy: false,
    }
}

/// The agent of the PersistentVolumes benchmark: fully reserved, with one volume.
pub(crate) fn with_volume(index: usize, shared: bool) -> Resources {
    let mut total =
        resources("cpus(role0):24;mem(role0):4096;disk(role0):3072;ports(role0):[31000-32000]");
    let disk = resources("disk(role0):1024");
    for resource in &disk {
        let mut parts = resource.clone().into_parts();
        parts.disk = Some(meseta_resources::Disk {
            persistence: Some(meseta_resources::Persistence {
                id: format!("id{index}").into(),
                principal: None,
            }),
            volume: None,
            source: None,
        });
        parts.shared = shared;
        total.insert(Resource::new(parts).expect("a volume"));
    }
    total
}
