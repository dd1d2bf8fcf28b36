//! Nodes and containers for the tests of this crate.

use std::time::Duration;

use meseta_resources::{ContainerId, ExecutorId, FrameworkId, Moment, Resources, Role};

use crate::{ContainerUsage, HostMemory, LoadAverage, UsageSample};

pub(crate) fn resources(text: &str) -> Resources {
    Resources::parse(text, &Role::star()).unwrap()
}

pub(crate) fn revocable(text: &str) -> Resources {
    resources(text)
        .iter()
        .map(|resource| crate::revocable::revocable(resource).unwrap())
        .collect()
}

pub(crate) fn revocable_cpus(cpus: &str) -> Resources {
    revocable(&format!("cpus:{cpus}"))
}

pub(crate) fn container(framework: &str, executor: &str, allocated: &Resources) -> ContainerUsage {
    ContainerUsage::new(
        FrameworkId::new(framework).unwrap(),
        ExecutorId::new(executor).unwrap(),
        allocated.clone(),
    )
}

/// A machine that a test drives from sample to sample.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) sample: UsageSample,
    /// The processors in use outside the containers.
    pub(crate) system: f64,
}

impl Node {
    /// A node with one regular container for each number of cpus.
    pub(crate) fn new(cpus: u32, regular: &[f64]) -> Self {
        let mut sample = UsageSample {
            at: Moment::from_nanos(1),
            ..UsageSample::default()
        };
        sample.total = resources(&format!("cpus:{cpus};mem:10240"));
        sample.host.cpus = Some(cpus);
        sample.host.cpu_time = Some(Duration::ZERO);
        sample.host.load = Some(LoadAverage::default());
        sample.host.memory = Some(HostMemory {
            total_bytes: 10 << 30,
            available_bytes: 10 << 30,
        });
        let mut node = Self {
            sample,
            system: 0.0,
        };
        for (index, cpus) in regular.iter().enumerate() {
            node.add(
                "regular",
                &format!("r{index}"),
                &resources(&format!("cpus:{cpus};mem:1024")),
            );
        }
        node
    }

    pub(crate) fn add(&mut self, framework: &str, executor: &str, allocated: &Resources) {
        let mut new = container(framework, executor, allocated);
        new.container = Some(ContainerId::new(&format!("c-{executor}")).unwrap());
        new.at = Some(self.sample.at);
        new.cpu_time = Some(Duration::ZERO);
        new.memory_bytes = Some(0);
        self.sample.containers.push(new);
    }

    /// Advances the time; the containers use these numbers of processors, and frozen ones none.
    pub(crate) fn step(&mut self, elapsed: Duration, used: &[f64]) -> UsageSample {
        self.sample.at += elapsed;
        let mut total = self.system;
        for (container, used) in self.sample.containers.iter_mut().zip(used) {
            container.at = Some(self.sample.at);
            let used = if container.frozen { 0.0 } else { *used };
            total += used;
            container.cpu_time = container
                .cpu_time
                .map(|spent| spent + elapsed.mul_f64(used));
        }
        self.sample.host.cpu_time = self
            .sample
            .host
            .cpu_time
            .map(|spent| spent + elapsed.mul_f64(total));
        self.sample.clone()
    }
}
