//! The machine below an agent: containers that begin, run, end, hang and outlive the agent's process.
//!
//! Plays the containerizer and the supervisors: the result of a container is kept until the core permits its removal, and
//! is lost only with the machine itself. Invariant: a container is launched once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use meseta_agent::checkpoint::Limitation;
use meseta_agent::core::{
    ContainerAction, Ending, Exit, Found, Input, LaunchPlan, Probe, ProbeMethod, ProbeResult,
    Subject,
};
use meseta_isolators::{BootId, ProcessIdentity};
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::{ContainerId, Resources};

/// The number of pids, so few that they come again soon.
const PIDS: u64 = 40;
const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;

/// The processes of a running container.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) identity: ProcessIdentity,
    pub(crate) plan: Box<LaunchPlan>,
    /// The received signal that the process has not heeded.
    signal: Option<i32>,
    /// Ends by SIGKILL only, and late.
    is_stuck: bool,
}

/// An event of a container for the core.
#[derive(Debug)]
pub(crate) enum News {
    LaunchFailed(String),
    Ended(Ending),
}

#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// Launches that have not started.
    pub(crate) launching: BTreeMap<ContainerId, Box<LaunchPlan>>,
    pub(crate) running: BTreeMap<ContainerId, Process>,
    pub(crate) news: BTreeMap<ContainerId, News>,
    /// Containers with a change of limits in progress.
    pub(crate) resizes: VecDeque<ContainerId>,
    /// Every container that was ever launched here.
    launched: BTreeSet<ContainerId>,
    /// The ends of tasks whose process is a container's, by framework and task: whether successful.
    pub(crate) exits: BTreeMap<(String, String), bool>,
    /// Containers with a kill.
    pub(crate) killed: BTreeSet<ContainerId>,
    /// Unanswered probes, by the probed task.
    pub(crate) probes: VecDeque<(Probe, (String, String))>,
    /// Whether a probe of each task has failed, and whether one was good.
    pub(crate) probed: BTreeMap<(String, String), [bool; 2]>,
    started: u64,
    boots: u64,
}

fn ending(exit: Exit) -> News {
    News::Ended(Ending {
        exit,
        limitation: None,
        kill_requested: None,
    })
}

impl Machine {
    /// Returns the present boot of the machine.
    pub(crate) fn boot(&self) -> BootId {
        BootId::from_text(&format!("boot-{}", self.boots))
    }

    /// Executes an action of the core; returns the broken promise, if any.
    pub(crate) fn carry_out(&mut self, action: ContainerAction, is_stuck: bool) -> Option<String> {
        match action {
            ContainerAction::Launch(plan) => {
                if !self.launched.insert(plan.container.clone()) {
                    return Some(format!("container {} is launched twice", plan.container));
                }
                let outer = plan.container.parent();
                if outer.is_some_and(|outer| !self.running.contains_key(&outer)) {
                    let cause = "the container around it is gone".to_owned();
                    self.news.insert(plan.container, News::LaunchFailed(cause));
                    return None;
                }
                self.launching.insert(plan.container.clone(), plan);
            }
            ContainerAction::Kill { container, .. } => self.signal(&container, SIGTERM, is_stuck),
            ContainerAction::Destroy { container } => {
                self.killed.insert(container.clone());
                self.end(&container, Exit::Signal(SIGKILL));
            }
            ContainerAction::Resize {
                container,
                resources,
                ..
            } => {
                if let Some(process) = self.running.get_mut(&container) {
                    process.plan.resources = resources;
                }
                self.resizes.push_back(container);
            }
            ContainerAction::Forget { container } => drop(self.news.remove(&container)),
            ContainerAction::Probe(probe) => return self.begin_probe(*probe),
            ContainerAction::Freeze { .. } | ContainerAction::ThrottleRevocable { .. } => {}
        }
        None
    }

    /// Starts a probe of a task that runs or has just ended, at most once for each of its two checks.
    fn begin_probe(&mut self, probe: Probe) -> Option<String> {
        const CHECKS: usize = 2;
        let container = probe.container.clone();
        let Some(process) = self.running.get(&container) else {
            let is_known = self.news.contains_key(&container);
            return (!is_known).then(|| format!("a probe of {container}, which does not run"));
        };
        let (framework, task) = process.task()?;
        let task = (framework.to_owned(), task.to_owned());
        self.probes.push_back((probe, task));
        let of_this = self.probes.iter();
        let of_this = of_this.filter(|(probe, _)| probe.container == container);
        (of_this.count() > CHECKS).then(|| format!("too many probes of {container}"))
    }

    /// Returns the result of a probe. Some tasks are sick.
    pub(crate) fn answer_probe(&mut self, rng: &mut fastrand::Rng) -> Option<Input> {
        let (probe, task) = self.probes.pop_front()?;
        let is_sick = task.1.bytes().map(u32::from).sum::<u32>() % 3 == 0;
        let is_good = rng.u32(..8) >= if is_sick { 6 } else { 1 };
        let result = match (rng.u32(..10), &probe.method) {
            (0, _) => ProbeResult::NotRun("no memory".to_owned()),
            (1, _) if !is_good => ProbeResult::NoAnswer("timeout".to_owned()),
            (_, ProbeMethod::Command(_)) => ProbeResult::ExitCode(i32::from(!is_good)),
            (_, ProbeMethod::Http { .. }) => ProbeResult::Status(if is_good { 200 } else { 500 }),
            (_, ProbeMethod::Tcp { .. }) => ProbeResult::Connected(is_good),
        };
        if !matches!(result, ProbeResult::NotRun(_)) {
            self.probed.entry(task).or_default()[usize::from(is_good)] = true;
        }
        Some(Input::Probed {
            container: probe.container,
            id: probe.id,
            result,
        })
    }

    fn signal(&mut self, container: &ContainerId, signal: i32, is_stuck: bool) {
        self.killed.insert(container.clone());
        if self.launching.remove(container).is_some() {
            let cause = "it was killed before it began".to_owned();
            self.news
                .insert(container.clone(), News::LaunchFailed(cause));
        } else if let Some(process) = self.running.get_mut(container) {
            process.signal = Some(signal);
            process.is_stuck |= is_stuck;
        }
    }

    /// Starts to run a container, and returns its supervisor, or `None` if the launch was withdrawn.
    pub(crate) fn start(&mut self, container: &ContainerId) -> Option<ProcessIdentity> {
        let plan = self.launching.remove(container)?;
        self.started += 1;
        let identity = ProcessIdentity {
            pid: i32::try_from(100 + self.started % PIDS).unwrap_or_default(),
            start_ticks: self.started,
            boot_id: self.boot(),
        };
        let process = Process {
            identity: identity.clone(),
            plan,
            signal: None,
            is_stuck: false,
        };
        self.running.insert(container.clone(), process);
        Some(identity)
    }

    /// Fails the launch of a container.
    pub(crate) fn fail_launch(&mut self, container: &ContainerId) {
        if self.launching.remove(container).is_some() {
            let cause = "no such file".to_owned();
            self.news
                .insert(container.clone(), News::LaunchFailed(cause));
        }
    }

    /// Ends a container by itself, with everything within it.
    pub(crate) fn end(&mut self, container: &ContainerId, exit: Exit) {
        let within = format!("{container}+");
        let is_within = |id: &ContainerId| id.as_str().starts_with(&within);
        let running = self.running.keys().filter(|id| is_within(id)).cloned();
        let launching = self.launching.keys().filter(|id| is_within(id)).cloned();
        let nested: Vec<_> = running.chain(launching).collect();
        for id in nested {
            self.end_one(&id, Exit::Signal(SIGKILL));
        }
        self.end_one(container, exit);
    }

    fn end_one(&mut self, container: &ContainerId, exit: Exit) {
        if let Some(process) = self.running.remove(container) {
            if let Some((framework, task)) = process.task() {
                let task = (framework.to_owned(), task.to_owned());
                self.exits.insert(task, exit == Exit::Code(0));
            }
            self.news.insert(container.clone(), ending(exit));
        } else if self.launching.remove(container).is_some() {
            let cause = "its executor ended".to_owned();
            self.news
                .insert(container.clone(), News::LaunchFailed(cause));
        }
    }

    /// Notes that a container which has just ended had reached its memory limit.
    pub(crate) fn was_out_of_memory(&mut self, container: &ContainerId) {
        if let Some(News::Ended(ending)) = self.news.get_mut(container) {
            ending.exit = Exit::Signal(SIGKILL);
            ending.limitation = Some(Limitation {
                reason: Reason::ContainerLimitationMemory,
                message: "Memory limit exceeded".to_owned(),
                resources: Vec::new(),
            });
        }
    }

    /// Ends a container that has received a signal, sooner or later.
    pub(crate) fn heed(&mut self, container: &ContainerId) {
        let Some(process) = self.running.get_mut(container) else {
            return;
        };
        // A stuck container ends later: the core destroys overdue ones.
        if let Some(signal) = process.signal
            && !process.is_stuck
        {
            self.end(container, Exit::Signal(signal));
        }
    }

    /// Handles the end of the agent's process: launches that had not begun do not begin any more.
    pub(crate) fn agent_died(&mut self) {
        for container in std::mem::take(&mut self.launching).into_keys() {
            self.news.insert(container, ending(Exit::NeverBegun));
        }
        for news in self.news.values_mut() {
            if let News::LaunchFailed(_) = news {
                *news = ending(Exit::NeverBegun);
            }
        }
        self.resizes.clear();
        self.probes.clear();
    }

    /// Reboots the machine: no containers and no results are left.
    pub(crate) fn reboot(&mut self) {
        self.boots += 1;
        for process in std::mem::take(&mut self.running).into_values() {
            if let Some((framework, task)) = process.task() {
                let task = (framework.to_owned(), task.to_owned());
                self.exits.insert(task, false);
            }
        }
        self.news.clear();
    }

    /// Returns the recorded containers that the next agent finds; the others are destroyed.
    pub(crate) fn find<'a>(
        &mut self,
        recorded: impl Iterator<Item = &'a ContainerId>,
    ) -> BTreeMap<ContainerId, Found> {
        let mut found = BTreeMap::new();
        for id in recorded {
            if let Some(process) = self.running.get(id) {
                found.insert(id.clone(), Found::Alive(process.identity.clone()));
            } else if self.news.contains_key(id) {
                found.insert(id.clone(), Found::Ending);
            }
        }
        self.running.retain(|id, _| found.contains_key(id));
        self.news.retain(|id, _| found.contains_key(id));
        found
    }

    /// Returns the resources of running containers without a kill.
    pub(crate) fn held(&self) -> Resources {
        let running = self.running.iter().map(|(id, process)| (id, &process.plan));
        let plans = running.chain(&self.launching);
        let plans = plans.filter(|(id, _)| !self.killed.contains(*id));
        let mut held = Resources::new();
        for (_, plan) in plans {
            if matches!(plan.subject, Subject::Nested(_)) {
                // The container is also within its executor's container.
                continue;
            }
            for resource in plan.resources.iter() {
                held.insert(resource.clone());
            }
        }
        held
    }

    /// Returns a random container among these.
    pub(crate) fn any<T>(
        of: &BTreeMap<ContainerId, T>,
        rng: &mut fastrand::Rng,
    ) -> Option<ContainerId> {
        let at = rng.usize(..of.len().max(1));
        of.keys().nth(at).cloned()
    }
}

impl Process {
    /// Returns the task of this process, with its framework.
    pub(crate) fn task(&self) -> Option<(&str, &str)> {
        task_of(&self.plan)
    }
}

/// Returns the task of this plan, with its framework.
pub(crate) fn task_of(plan: &LaunchPlan) -> Option<(&str, &str)> {
    match &plan.subject {
        Subject::Task(task) | Subject::Nested(task) => {
            Some((plan.run.framework.as_str(), task.task_id.value.as_str()))
        }
        Subject::Executor(_) | Subject::Group(_) => None,
    }
}
