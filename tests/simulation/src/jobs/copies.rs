//! Faults of the scheduler: its process dies, an older copy of its store is restored, a copy of its store is started
//! elsewhere and takes the framework over, the master withdraws roles.
//!
//! Invariant: of two schedulers with one framework id, the one that subscribed last owns the framework; the other one acts
//! on a stream that the master has ended until it learns of that.

use std::collections::VecDeque;

use meseta_jobs::core::{Input, RestoreError, State};
use meseta_proto::mesos::v1::scheduler::{Event, event};

use super::{BACKUPS_MAX, Jobs, Promises, Store, options, specs};
use crate::checks::Broken;
use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::framework::Stream;
use crate::plan::Feature;

/// The maximum difference between clocks of two machines, in seconds.
const CLOCKS_DIFFER_MAX: i64 = 12 * 3600;
/// Takeovers of one framework after which two schedulers fight.
const TAKEOVERS_MAX: usize = 20;

/// The faults of a scheduler, all equally likely.
const FAULTS: [Feature; 5] = [
    Feature::SchedulerClock,
    Feature::SchedulerBackups,
    Feature::SchedulerCopies,
    Feature::WithdrawnRoles,
    Feature::FrameworkRestart,
];

/// A scheduler whose framework another one has taken over, and its stream.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) jobs: Box<Jobs>,
    pub(crate) stream: Stream,
    pub(crate) events: VecDeque<Box<Event>>,
    /// The stream ends behind the waiting events.
    pub(crate) is_closed: bool,
}

impl Jobs {
    /// Ends the process; another one reads the store, which has the first `kept` of the unconfirmed writes.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub(crate) fn crash(&mut self, time: u64, kept: usize, drawn: u32) -> Result<(), RestoreError> {
        for _ in 0..kept.min(self.writes.len()) {
            self.write_one();
        }
        self.begin(time, drawn)
    }

    /// Starts a process on the store, with a number that is drawn at each start.
    fn begin(&mut self, time: u64, drawn: u32) -> Result<(), RestoreError> {
        self.writes.clear();
        self.calls.clear();
        self.time = time;
        self.promises.began();
        self.clock = self.clock.restarted(time);
        let store = self.store.clone();
        self.state = State::restore(options(self.is_wide, drawn), self.clock.now(time), store)?;
        Ok(())
    }

    /// Saves an operator's copy of the store, unless the store is empty.
    fn back_up(&mut self) {
        if self.store.is_empty() {
            return;
        }
        if self.backups.len() == BACKUPS_MAX {
            self.backups.pop_front();
        }
        self.backups.push_back(self.store.clone());
    }

    /// Returns one of the backups, if there are any.
    fn backup(&self, choice: usize) -> Option<&Store> {
        self.backups.get(choice % self.backups.len().max(1))
    }

    /// Restores the store of a backup, if there is one. The process has ended: its writes do not reach the restored store.
    fn put_back(&mut self, choice: usize) {
        if let Some(backup) = self.backup(choice).cloned() {
            self.store = backup;
            self.writes.clear();
            self.promises.forgot();
        }
    }

    /// Returns another process on a copy of a store.
    fn copied(
        &self,
        time: u64,
        clock: Clock,
        (store, drawn): (Store, u32),
    ) -> Result<Self, RestoreError> {
        let mut copy = Self::new(clock, self.is_wide)?;
        copy.store = store;
        copy.begin(time, drawn)?;
        Ok(copy)
    }

    /// Passes the users of the framework, and the promises to them, to the scheduler that has it now.
    fn hand_over(&mut self, to: &mut Self) {
        std::mem::swap(&mut self.clients, &mut to.clients);
        std::mem::swap(&mut self.names, &mut to.names);
        std::mem::swap(&mut self.answers, &mut to.answers);
        std::mem::swap(&mut self.backups, &mut to.backups);
        std::mem::swap(&mut self.ill_version, &mut to.ill_version);
        std::mem::swap(&mut self.withdrawn, &mut to.withdrawn);
        std::mem::swap(&mut self.promises, &mut to.promises);
        self.promises = Promises::default();
        to.promises.forgot();
    }
}

impl Cluster {
    /// Ends and restarts the process of the job scheduler: perhaps on another machine, or on an older store.
    pub(crate) fn restart_jobs(&mut self, at: usize) {
        let late = self.rng.usize(..3);
        let drawn = self.rng.u32(..);
        let moves = self.happens(Feature::SchedulerClock, 40);
        let clock = moves.then(|| self.clock_elsewhere());
        let time = self.time;
        let Some(jobs) = &mut self.frameworks[at].jobs else {
            return;
        };
        if let Some(clock) = clock {
            jobs.clock = clock;
        }
        let begun = jobs.crash(time, late, drawn);
        self.note_start(begun.err());
    }

    fn note_start(&mut self, failed: Option<RestoreError>) {
        let failed = failed.map(|error| Broken::new("J3", error.to_string()));
        self.broken.extend(failed);
    }

    /// Returns the clock of a machine on which a scheduler starts now.
    fn clock_elsewhere(&mut self) -> Clock {
        let machine = self.rng.u64(100..200);
        let drift = self.drift(machine);
        let mut clock = Clock::new(self.time, drift);
        clock.set_wall(self.rng.i64(-CLOCKS_DIFFER_MAX..CLOCKS_DIFFER_MAX));
        clock
    }

    /// Injects a fault of the scheduler that this run allows.
    pub(crate) fn break_jobs(&mut self) {
        let Some(at) = self.frameworks.iter().position(|one| one.jobs.is_some()) else {
            return;
        };
        let feature = FAULTS[self.rng.usize(..FAULTS.len())];
        if !self.has(feature) {
            return;
        }
        match feature {
            Feature::SchedulerClock => self.set_jobs_clock(at),
            Feature::SchedulerBackups => self.roll_jobs_back(at),
            Feature::SchedulerCopies => self.start_copy(at),
            Feature::WithdrawnRoles => self.change_permission(at),
            _ => {
                self.cut_stream(at);
                self.restart_jobs(at);
            }
        }
    }

    fn set_jobs_clock(&mut self, at: usize) {
        let seconds = self.rng.i64(-CLOCKS_DIFFER_MAX..CLOCKS_DIFFER_MAX);
        let kind = ("fault", "scheduler's clock set");
        self.story.note(kind, [seconds.unsigned_abs(), 0], || {
            format!("by {seconds} seconds")
        });
        if let Some(jobs) = &mut self.frameworks[at].jobs {
            jobs.clock.set_wall(seconds);
        }
    }

    /// Makes a copy of the store, or restores an older one, as an operator does.
    fn roll_jobs_back(&mut self, at: usize) {
        let choice = self.rng.usize(..BACKUPS_MAX);
        let keeps = self.rng.bool();
        let Some(jobs) = &mut self.frameworks[at].jobs else {
            return;
        };
        if keeps || jobs.backups.is_empty() {
            return jobs.back_up();
        }
        self.cut_stream(at);
        if let Some(jobs) = &mut self.frameworks[at].jobs {
            jobs.put_back(choice);
        }
        self.story.note(
            ("fault", "scheduler's store put back"),
            [at as u64, 0],
            || format!("backup {choice}"),
        );
        self.frameworks[at].forget_tasks();
        self.restart_jobs(at);
    }

    /// Starts another scheduler on a copy of the store, which takes the framework over.
    fn start_copy(&mut self, at: usize) {
        let clock = self.clock_elsewhere();
        let is_old = self.rng.bool();
        let choice = self.rng.usize(..BACKUPS_MAX);
        let drawn = self.rng.u32(..);
        let time = self.time;
        let framework = &mut self.frameworks[at];
        let is_served = framework.is_subscribed() && framework.copy.is_none();
        let master = framework.stream.map(|stream| stream.master);
        let Some(master) = master.filter(|master| is_served && self.is_running(*master)) else {
            return;
        };
        let Some(jobs) = &self.frameworks[at].jobs else {
            return;
        };
        let old = jobs.backup(choice).filter(|_| is_old);
        let store = old.unwrap_or(&jobs.store).clone();
        let copied = jobs.copied(time, clock, (store, drawn));
        self.story
            .note(("fault", "scheduler copied"), [at as u64, 0], String::new);
        match copied {
            Ok(copy) => self.take_over_jobs(at, Box::new(copy), master),
            Err(error) => self.note_start(Some(error)),
        }
    }

    /// Subscribes a scheduler as a framework that another one has.
    fn take_over_jobs(&mut self, at: usize, mut jobs: Box<Jobs>, master: u64) {
        let framework = &mut self.frameworks[at];
        let (Some(mut before), Some(stream)) = (framework.jobs.take(), framework.stream) else {
            framework.jobs = Some(jobs);
            return;
        };
        before.hand_over(&mut jobs);
        let events = std::mem::take(&mut framework.events);
        framework.disconnected();
        framework.forget_tasks();
        framework.jobs = Some(jobs);
        framework.copy = Some(Copy {
            jobs: before,
            stream,
            events,
            is_closed: false,
        });
        framework.takeovers += 1;
        if !self.is_wild && self.frameworks[at].takeovers > TAKEOVERS_MAX {
            let what = "two schedulers with copies of one store take each other's framework";
            self.broken.push(Broken::new("J12", what));
        }
        self.open_stream(at, master);
    }

    /// Lets a scheduler whose framework another one has read its input, and lets time pass.
    pub(crate) fn act_copies(&mut self) {
        for at in 0..self.frameworks.len() {
            self.act_copy(at);
        }
    }

    fn act_copy(&mut self, at: usize) {
        let time = self.time;
        let Some(copy) = &mut self.frameworks[at].copy else {
            return;
        };
        let master = copy.stream.master;
        let is_closed = copy.is_closed || !self.masters.iter().any(|one| one.number == master);
        let Some(copy) = &mut self.frameworks[at].copy else {
            return;
        };
        let next = copy.events.pop_front();
        let ended = match &next {
            Some(event) if event.r#type() == event::Type::Error => event.error.as_ref(),
            Some(event) => {
                copy.jobs.hear(time, Event::clone(event));
                None
            }
            None => None,
        };
        if ended.is_some_and(|error| meseta_jobs::is_failover(&error.message)) {
            self.story.note(
                ("fault", "copied scheduler ends"),
                [at as u64, 0],
                String::new,
            );
            self.frameworks[at].copy = None;
            return;
        }
        if ended.is_some() || (next.is_none() && is_closed) {
            return self.return_copy(at);
        }
        while copy.jobs.has_writes() {
            copy.jobs.flush(time);
        }
        copy.jobs.pass(time);
        // The master accepts no call on a stream that it has ended.
        copy.jobs.take_calls();
    }

    /// Subscribes a scheduler again that does not know that another one has its framework.
    fn return_copy(&mut self, at: usize) {
        let master = self.leader();
        if !self.is_running(master) || self.frameworks[at].is_over {
            return;
        }
        let time = self.time;
        let framework = &mut self.frameworks[at];
        let Some(mut copy) = framework.copy.take() else {
            return;
        };
        self.story.note(
            ("fault", "copied scheduler returns"),
            [at as u64, 0],
            String::new,
        );
        copy.jobs.step(time, Input::Disconnected);
        copy.jobs.take_calls();
        if framework.stream.is_none() {
            // The other scheduler has no stream, and subscribes later than this one: it gets no event, and gets everything
            // back.
            let Some(mut before) = framework.jobs.take() else {
                return;
            };
            before.hand_over(&mut copy.jobs);
            framework.forget_tasks();
            framework.jobs = Some(copy.jobs);
            return;
        }
        self.take_over_jobs(at, copy.jobs, master);
    }

    /// Withdraws a role from the framework, or returns it.
    fn change_permission(&mut self, at: usize) {
        let roles: Vec<_> = specs::roles().collect();
        let role = roles[self.rng.usize(..roles.len())];
        self.story
            .note(("fault", "permission changed"), [at as u64, 0], || {
                format!("of role {role}")
            });
        if let Some(jobs) = &mut self.frameworks[at].jobs
            && !jobs.withdrawn.remove(role)
        {
            jobs.withdrawn.insert(role);
        }
    }
}
