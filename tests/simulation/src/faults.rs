//! Faults of networks, processes, machines, disks, clocks and people.

use meseta_agent::checkpoint::DiskCondition;
use meseta_agent::core::{ExitReason, Input as AgentInput, Report};
use meseta_estimators::{Action, Assessment, Correction, Estimate, Explanation, Unit};
use meseta_resources::{ContainerId, Resources, Role};

use crate::checks::Broken;
use crate::cluster::{Cluster, SECOND};
use crate::framework::Kind;
use crate::plan::Feature;

/// The longest stop of a process.
const PAUSE_MAX: u64 = 300 * SECOND;
const DAY_SECONDS: i64 = 24 * 3600;

impl Cluster {
    /// Injects a fault that this run allows.
    pub(crate) fn fault(&mut self) {
        if self.plan.is_of_jobs && self.rng.bool() {
            return self.break_jobs();
        }
        let feature = match self.rng.u32(..100) {
            0..14 => Feature::Cut,
            14..30 => Feature::Stall,
            30..42 => Feature::AgentCrash,
            42..48 => Feature::MasterCrash,
            48..51 => Feature::Takeover,
            51 => Feature::Rollback,
            52..57 => Feature::StreamCut,
            57..62 => Feature::SlowReader,
            62..66 => Feature::FrameworkRestart,
            66..72 => Feature::Pause,
            72..75 => Feature::WallClock,
            75..78 => Feature::Reboot,
            78..84 => Feature::DiskFull,
            84..86 => Feature::DiskFailure,
            86..98 => Feature::Revocable,
            _ => return self.revive_agents(),
        };
        if self.has(feature) {
            self.break_something(feature);
        }
    }

    fn break_something(&mut self, feature: Feature) {
        let at = self.rng.usize(..self.agents.len());
        let framework = self.rng.usize(..self.frameworks.len());
        match feature {
            Feature::Cut => self.cut(),
            Feature::Stall => self.stall(),
            Feature::AgentCrash => self.crash_agent(at),
            Feature::DiskFailure => self.crash_agent(at),
            Feature::MasterCrash => {
                let leader = self.leader();
                self.told("master crash", leader);
                let late = self.happens(Feature::LateWrites, 60);
                self.crash_master(late);
            }
            Feature::Takeover => {
                let leader = self.leader();
                self.told("takeover", leader);
                self.take_over();
            }
            Feature::Rollback => self.roll_back(),
            Feature::StreamCut => self.cut_stream(framework),
            Feature::SlowReader => {
                let is_slow = self.frameworks[framework].kind == Kind::Slow;
                let longest = if is_slow { 4_000 } else { 400 };
                let until = self.steps + self.rng.u64(..longest);
                self.told("slow reader", framework as u64);
                self.frameworks[framework].busy_until = until;
            }
            Feature::FrameworkRestart => self.restart_framework(framework),
            Feature::Pause => self.pause(at),
            Feature::WallClock => self.set_clock(at),
            Feature::Reboot => self.reboot(at),
            Feature::DiskFull => self.fill_disk(at),
            Feature::Revocable => self.oversubscribe(at),
            _ => {}
        }
    }

    pub(crate) fn told(&mut self, name: &'static str, whom: u64) {
        self.story
            .note(("fault", name), [whom, 0], || format!("of {whom}"));
    }

    fn cut(&mut self) {
        let Some(id) = self.network.any(&mut self.rng) else {
            return;
        };
        self.told("cut", id);
        if let Some(connection) = self.network.connections.get_mut(&id) {
            connection.cut(&mut self.rng);
        }
    }

    fn stall(&mut self) {
        let Some(id) = self.network.any(&mut self.rng) else {
            return;
        };
        let direction = self.rng.usize(..2);
        let is_stalled = self.rng.bool();
        self.told(if is_stalled { "stall" } else { "goes on" }, id);
        if let Some(connection) = self.network.connections.get_mut(&id) {
            connection.is_stalled[direction] = is_stalled;
        }
    }

    /// Ends the process of an agent abruptly, and starts another one.
    fn crash_agent(&mut self, at: usize) {
        self.told("agent crash", at as u64);
        self.agents[at].disk.end_silence();
        let late = self.happens(Feature::LateWrites, 60);
        let tears = self.happens(Feature::TornWrite, 50);
        self.lose_agent(at);
        let waiting = self.agents[at].disk.waiting();
        // A full disk accepts no further write.
        let is_writable = self.agents[at].disk.condition == DiskCondition::Writable;
        let kept = match late && is_writable {
            true => self.rng.usize(..=waiting),
            false => 0,
        };
        let time = self.time;
        let mut rng = self.rng.fork();
        let tears = (tears && is_writable).then_some(&mut rng);
        self.agents[at].crash(time, kept, tears);
        self.tell_disk(at);
    }

    /// Loses the unread input of an agent with its process.
    fn lose_agent(&mut self, at: usize) {
        let mut rng = self.rng.fork();
        for connection in self.network.connections.values_mut() {
            if connection.agent == at {
                connection.lose_agent(&mut rng);
            }
        }
    }

    pub(crate) fn tell_disk(&mut self, at: usize) {
        let (time, agent) = (self.time, &mut self.agents[at]);
        agent.step(time, AgentInput::Disk(agent.disk.condition));
    }

    /// Restores an older copy of the registry, and restarts all masters; or makes a copy.
    fn roll_back(&mut self) {
        if self.rng.u32(..4) > 0 {
            self.told("backup", 0);
            return self.registry.back_up();
        }
        let choice = self.rng.usize(..4);
        if !self.registry.restore(choice) {
            return;
        }
        self.told("rollback", 0);
        let all: Vec<u64> = self.masters.iter().map(|master| master.number).collect();
        for number in all {
            self.end_master(number);
        }
        self.take_over();
    }

    /// Ends a framework, which returns as another process with the same id.
    fn restart_framework(&mut self, at: usize) {
        self.told("framework restart", at as u64);
        self.cut_stream(at);
        self.frameworks[at].restart();
        self.restart_jobs(at);
    }

    /// Stops a process for a while.
    fn pause(&mut self, at: usize) {
        let until = self.time + self.rng.u64(..PAUSE_MAX);
        let span = Some((self.time, until));
        if self.rng.u32(..3) == 0 {
            let leader = self.leader();
            self.told("master pause", leader);
            if let Some(master) = self.master(leader) {
                master.paused = master.paused.or(span);
            }
        } else if self.agents[at].is_up() {
            self.told("agent pause", at as u64);
            self.agents[at].paused = span;
        }
    }

    fn set_clock(&mut self, at: usize) {
        let seconds = self.rng.i64(-DAY_SECONDS..DAY_SECONDS);
        self.told("clock set", seconds.unsigned_abs());
        match self.rng.u32(..3) {
            0 => {
                let leader = self.leader();
                if let Some(master) = self.master(leader) {
                    master.clock.set_wall(seconds);
                }
            }
            _ => self.agents[at].clock.set_wall(seconds),
        }
    }

    fn reboot(&mut self, at: usize) {
        self.told("reboot", at as u64);
        self.agents[at].disk.end_silence();
        self.lose_agent(at);
        let time = self.time;
        self.agents[at].reboot(time);
        self.tell_disk(at);
    }

    fn fill_disk(&mut self, at: usize) {
        let falls_silent = self.has(Feature::DiskSilent) && self.rng.bool();
        let agent = &mut self.agents[at];
        agent.disk.condition = match agent.disk.condition {
            DiskCondition::Writable if falls_silent => DiskCondition::Silent,
            DiskCondition::Writable if self.rng.bool() => DiskCondition::Full,
            DiskCondition::Writable => DiskCondition::Failing,
            _ => DiskCondition::Writable,
        };
        let name = match self.agents[at].disk.condition {
            DiskCondition::Silent => "silent disk",
            _ => "disk",
        };
        self.told(name, at as u64);
        if self.agents[at].is_up() {
            self.tell_disk(at);
        }
    }

    /// Lets an agent estimate oversubscribable resources, or decide that a revocable container has to end.
    fn oversubscribe(&mut self, at: usize) {
        if !self.agents[at].is_up() {
            return;
        }
        self.told("estimate", at as u64);
        let cpus = ["cpus:1", "cpus:2", "cpus:0.5"][self.rng.usize(..3)];
        let estimate = Resources::parse(cpus, &Role::star()).unwrap_or_default();
        let machine = &self.agents[at].machine;
        let mut allocated = Resources::new();
        for process in machine.running.values() {
            for resource in process.plan.resources.revocable().unallocate().iter() {
                allocated.insert(resource.clone());
            }
        }
        let with_all = self.rng.u32(..4) == 0;
        let victims = machine.running.iter();
        let victims =
            victims.filter(|(_, one)| with_all || !one.plan.resources.revocable().is_empty());
        let victims: Vec<_> = victims.map(|(id, _)| id.clone()).collect();
        let victim = victims.get(self.rng.usize(..victims.len().max(1))).cloned();
        let victim = victim.filter(|_| self.rng.bool());
        let assessment = victim.and_then(|id| self.correction(at, id));
        let report = Report {
            allocated,
            estimate: Some(Estimate {
                oversubscribable: Some(estimate.with_revocable(true)),
                ..Estimate::default()
            }),
            assessment,
        };
        let time = self.time;
        self.agents[at].step(time, AgentInput::Oversubscription(Box::new(report)));
    }

    /// Returns a controller's request to end a container, allowed or not.
    fn correction(&self, at: usize, container: ContainerId) -> Option<Assessment> {
        let process = self.agents[at].machine.running.get(&container)?;
        let run = process.plan.run.clone();
        let correction = Correction {
            action: Action::Kill,
            framework: run.framework.clone(),
            executor: run.executor.clone(),
            container: Some(container),
            why: Explanation {
                detector: "simulated",
                value: 1.0,
                threshold: 0.5,
                unit: Unit::Share,
                held: std::time::Duration::ZERO,
                gap: None,
                victim: None,
                words: None,
            },
        };
        Some(Assessment {
            corrections: vec![correction],
            ..Assessment::default()
        })
    }

    /// Restarts ended agents with their state, or as new agents if the end was permanent.
    pub(crate) fn revive_agents(&mut self) {
        for at in 0..self.agents.len() {
            let Some(reason) = self.agents[at].exit.clone() else {
                continue;
            };
            self.story
                .note(("agent exits", exit_name(&reason)), [at as u64, 0], || {
                    format!("agent {at}: {reason:?}")
                });
            self.lose_agent(at);
            let time = self.time;
            let id = self.agents[at].core.snapshot().agent_id;
            self.given_up
                .extend(id.map(|id| (id.to_string(), self.steps)));
            let is_down =
                matches!(&reason, ExitReason::Shutdown(why) if why.contains("maintenance"));
            let is_gone = matches!(&reason, ExitReason::Shutdown(why) if why.contains("gone"));
            let known = is_down || is_gone || self.registry.rollbacks > 0;
            if !known {
                let what = format!("agent {at} ends: {reason:?}");
                self.broken.push(Broken::new("I38", what));
            }
            if matches!(reason, ExitReason::Shutdown(_))
                && !self.agents[at].machine.running.is_empty()
            {
                let what = format!("agent {at} was shut down and its containers run");
                self.broken.push(Broken::new("I26", what));
            }
            if is_down {
                self.agents[at].crash(time, 0, None);
            } else {
                self.replaced[at] += 1;
                let replaced = self.agents[at].replace(time);
                let failed = replaced.err();
                let failed = failed.map(|error| Broken::new("I34", error.to_string()));
                self.broken.extend(failed);
            }
        }
    }
}

fn exit_name(reason: &ExitReason) -> &'static str {
    match reason {
        ExitReason::Stopped => "stopped",
        ExitReason::Unregistered => "unregistered",
        ExitReason::Shutdown(_) => "shut down",
        ExitReason::Refused(_) => "refused",
    }
}
