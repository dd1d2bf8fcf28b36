//! A property: despite losses, repetitions and interruptions, every update is sent in order until acknowledged, and
//! every task ends once.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_resources::ContainerId;
use proptest::prelude::*;

use super::simulation::{Seen, Simulation, registered, task};
use crate::core::{Exit, Input, State, is_terminal};

const TASKS: usize = 4;

#[derive(Clone, Debug)]
enum Happening {
    Run(usize),
    Start(usize),
    LaunchFails(usize),
    End(usize, i32),
    Kill(usize),
    Flush(usize),
    Acknowledge,
    AcknowledgeTwice,
    AcknowledgeNonsense(usize),
    CutLink,
    Register,
    Wait(u64),
    Crash,
    Reboot,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        3 => (0..TASKS).prop_map(Happening::Run),
        4 => (0..TASKS).prop_map(Happening::Start),
        1 => (0..TASKS).prop_map(Happening::LaunchFails),
        3 => (0..TASKS, 0..3).prop_map(|(task, code)| Happening::End(task, code)),
        1 => (0..TASKS).prop_map(Happening::Kill),
        6 => (1..5_usize).prop_map(Happening::Flush),
        6 => Just(Happening::Acknowledge),
        1 => Just(Happening::AcknowledgeTwice),
        1 => (0..TASKS).prop_map(Happening::AcknowledgeNonsense),
        1 => Just(Happening::CutLink),
        3 => Just(Happening::Register),
        2 => (1..30_u64).prop_map(Happening::Wait),
        1 => Just(Happening::Crash),
        1 => Just(Happening::Reboot),
    ]
}

/// A scheduler's view of one run of a task.
#[derive(Debug, Default)]
struct Told {
    /// Uuids in the order of their first arrival.
    order: Vec<Vec<u8>>,
    acknowledged: usize,
    ended: bool,
}

struct World {
    simulation: Simulation,
    told: BTreeMap<String, Told>,
    /// The requested containers, by the number of their task.
    asked: BTreeMap<usize, ContainerId>,
    looked: usize,
    last: Option<meseta_proto::mesos::v1::TaskStatus>,
}

impl World {
    fn new() -> Self {
        let mut simulation = Simulation::registered();
        simulation.quick_disk = false;
        Self {
            simulation,
            told: BTreeMap::new(),
            asked: BTreeMap::new(),
            looked: 0,
            last: None,
        }
    }

    fn connected(&self) -> bool {
        self.simulation.core.state() == State::Running
    }

    /// Notes launches, for the last run of each task number.
    fn look(&mut self) {
        let snapshot = self.simulation.core.snapshot();
        for seen in self.simulation.seen.iter().skip(self.looked) {
            if let Seen::Launch(container) = seen {
                for executor in snapshot.executors() {
                    let number = executor
                        .key
                        .executor
                        .as_str()
                        .trim_start_matches('t')
                        .parse();
                    if executor.key.container == *container
                        && let Ok(number) = number
                    {
                        self.asked.insert(number, container.clone());
                    }
                }
            }
        }
        self.looked = self.simulation.seen.len();
    }

    /// Checks the received updates against the expected ones.
    fn receive(&mut self, acknowledge: bool) {
        let connected = self.connected();
        for update in self.simulation.take_updates() {
            let status = update.status;
            let uuid = status.uuid.clone().expect("a uuid");
            // A task that never had a container counts as a run with a single update.
            let container = status
                .container_status
                .as_ref()
                .and_then(|status| status.container_id.as_ref())
                .map(|id| id.value.clone())
                .unwrap_or_else(|| format!("{uuid:?}"));
            let run = format!("{} {container}", status.task_id.value);
            let told = self.told.entry(run).or_default();
            match told.order.iter().position(|known| *known == uuid) {
                // A repeated update must be one whose acknowledgement the agent does not know. No update returns after
                // the agent got its acknowledgement, except the last, which may have been lost.
                Some(at) => assert!(at + 1 >= told.acknowledged, "went back"),
                None => {
                    assert!(!told.ended, "something follows the end");
                    assert_eq!(told.order.len(), told.acknowledged, "two in flight");
                    told.order.push(uuid.clone());
                    told.ended = is_terminal(status.state);
                }
            }
            if acknowledge && connected {
                if told.order.last() == Some(&uuid) {
                    told.acknowledged = told.order.len();
                }
                self.simulation.acknowledge(&status);
            }
            self.last = Some(status);
        }
    }

    fn happen(&mut self, happening: &Happening) {
        match happening {
            Happening::Run(number) if self.connected() => {
                self.simulation.run(task(&format!("t{number}")));
            }
            Happening::Start(number) => {
                if let Some(container) = self.asked.get(number).cloned()
                    && !self.simulation.machine.contains_key(&container)
                {
                    self.simulation.start(&container);
                }
            }
            Happening::LaunchFails(number) => {
                if let Some(container) = self.asked.get(number).cloned()
                    && !self.simulation.machine.contains_key(&container)
                {
                    self.asked.remove(number);
                    let cause = "x".to_owned();
                    self.simulation
                        .step(Input::LaunchFailed { container, cause });
                }
            }
            Happening::End(number, code) => {
                if let Some(container) = self.asked.get(number).cloned()
                    && self.simulation.machine.contains_key(&container)
                {
                    self.asked.remove(number);
                    self.simulation.end(&container, Exit::Code(*code));
                }
            }
            Happening::Kill(number) if self.connected() => {
                self.simulation.kill(&format!("t{number}"), None);
            }
            Happening::Flush(count) => self.simulation.flush(*count),
            Happening::Acknowledge => self.receive(true),
            Happening::AcknowledgeTwice if self.connected() => {
                if let Some(status) = self.last.clone() {
                    let told = self.told.values_mut();
                    for told in told {
                        if told.order.last() == status.uuid.as_ref() {
                            told.acknowledged = told.order.len();
                        }
                    }
                    self.simulation.acknowledge(&status);
                    self.simulation.acknowledge(&status);
                }
            }
            Happening::AcknowledgeNonsense(number) if self.connected() => {
                self.simulation
                    .acknowledge_uuid(&format!("t{number}"), vec![1; 16]);
            }
            Happening::CutLink if self.connected() => self.simulation.link_down(),
            Happening::Register if !self.connected() => self.reconnect(),
            Happening::Wait(seconds) => self.simulation.advance(Duration::from_secs(*seconds)),
            Happening::Crash => {
                self.receive(false);
                self.simulation.crash(false);
                // Launches in progress end with the agent.
                let machine = &self.simulation.machine;
                self.asked
                    .retain(|_, container| machine.contains_key(container));
            }
            Happening::Reboot => {
                self.receive(false);
                self.simulation.crash(true);
                self.asked.clear();
            }
            _ => {}
        }
        self.look();
        self.receive(false);
    }

    fn reconnect(&mut self) {
        self.simulation.flush(usize::MAX);
        if self.simulation.link.is_none() {
            return;
        }
        self.simulation.link_up();
        self.simulation.flush(usize::MAX);
        self.simulation.tell(registered());
    }

    /// Restores everything: all running tasks end, and all messages arrive.
    fn heal(&mut self) {
        self.simulation.quick_disk = true;
        for _ in 0..200 {
            self.simulation.flush(usize::MAX);
            self.look();
            if !self.connected() {
                self.simulation.advance(Duration::from_secs(16));
                if !self.connected() {
                    self.reconnect();
                }
            }
            for number in 0..TASKS {
                self.happen(&Happening::Start(number));
                self.happen(&Happening::End(number, 0));
            }
            self.simulation.advance(Duration::from_secs(11));
            self.receive(true);
            if self.simulation.core.snapshot().frameworks.is_empty() {
                return;
            }
        }
        let left: Vec<_> = self
            .simulation
            .core
            .snapshot()
            .executors()
            .map(|executor| {
                let states: Vec<_> = executor.tasks.values().map(|task| task.state).collect();
                format!("{:?} {states:?}", executor.container.phase)
            })
            .collect();
        panic!("not everything was told in the end: {left:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn updates_arrive_in_order(
        happenings in prop::collection::vec(happening(), 1..120)
    ) {
        let mut world = World::new();
        for happening in &happenings {
            world.happen(happening);
        }
        world.heal();
        for (run, told) in &world.told {
            prop_assert!(told.ended, "{run} never ended: {told:?}");
        }
        prop_assert!(world.simulation.image().frameworks.is_empty());
    }
}
