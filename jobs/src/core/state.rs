//! The state machine itself: inputs in, effects out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_proto::reconciler::{ReconcileIntervals, Reconciler};
use meseta_resources::Now;

use super::clock::Clock;
use super::commands::JOBS_MAX;
use super::connection::Connection;
use super::gangs::Gangs;
use super::give_way::Claims;
use super::job::{Job, Phase, Run, Task};
use super::jobs::Jobs;
use super::kills::KillQueue;
use super::names::name_in_roles;
use super::next_ports::NextPorts;
use super::offer_pool::{AcceptLimits, STEP_WORK_MAX, Turns};
use super::open_offers::OpenOffers;
use super::outbox::Outbox;
use super::records::{Key, Meta, RestoreError, Stored, orphan};
use super::released_volumes::ReleasedVolumes;
use super::roles::Roles;
use super::seen_offers::SeenOffers;
use super::spread::Spreads;
use super::task_name::TaskName;
use super::totals::Statistics;
use super::versions::SPEC_BYTES_MAX;
use super::view::MayRun;
use super::volume::Volume;
use crate::spec::Cron;

/// The options that apply to all jobs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The time that the agent of a service's task may be away before the core replaces the task.
    pub service_unreachable: Duration,
    /// The time that the agent of a batch's task may be away: the task might have succeeded there.
    pub batch_unreachable: Duration,
    /// Returns the first time of a schedule after another time, both since the Unix epoch, if any.
    pub next_time: fn(&Cron, Duration) -> Option<Duration>,
    pub reconcile: ReconcileIntervals,
    /// The principal of the framework at the master, in whose name reservations and volumes are made.
    pub principal: Option<String>,
    /// The number that this process has drawn at its start. It tells the volumes and the ids of tasks of this scheduler from
    /// those of others.
    pub drawn: u32,
}

/// The limits on the jobs, and on the work of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The number of jobs that may exist.
    pub(super) jobs: usize,
    /// The limit on the bytes of all specifications.
    pub(super) spec_bytes: usize,
    /// The work of one step for offers.
    pub(super) step_work: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            jobs: JOBS_MAX,
            spec_bytes: SPEC_BYTES_MAX,
            step_work: STEP_WORK_MAX,
        }
    }
}

/// The state of the scheduler: the durable records, and its knowledge of the cluster.
#[derive(Debug)]
pub struct State {
    pub(super) options: Options,
    pub(super) limits: Limits,
    pub(super) clock: Clock,
    pub(super) meta: Meta,
    pub(super) connection: Connection,
    pub(super) jobs: Jobs,
    pub(super) released: ReleasedVolumes,
    pub(super) kills: KillQueue,
    pub(super) offers: OpenOffers,
    pub(super) accept_limits: AcceptLimits,
    /// The rest of the last offer of each agent to a role, to find room for tasks: most of these offers have been answered.
    pub(super) seen: SeenOffers,
    /// The port from which an agent's next ports are taken: a freed port is not reused at once, while other programs still
    /// have its address.
    pub(super) next_ports: NextPorts,
    pub(super) roles: Roles,
    pub(super) spreads: Spreads,
    pub(super) turns: Turns,
    pub(super) gangs: Gangs,
    /// The trees of roles that wait while a gang keeps offers back.
    pub(super) claims: Claims,
    pub(super) reconciler: Reconciler,
    pub(super) outbox: Outbox,
    pub(super) statistics: Statistics,
    /// The check of permissions; without it, each submitter may run what it submitted.
    pub(super) may_run: Option<MayRun>,
}

impl State {
    /// Restores a scheduler from the records of its store.
    pub fn restore(
        options: Options,
        now: Now,
        records: impl IntoIterator<Item = (String, Vec<u8>)>,
    ) -> Result<Self, RestoreError> {
        let mut stored = Stored::read(records)?;
        if !stored.is_new {
            stored.meta.begin_generation(now.unix, options.drawn);
        }
        let is_new = stored.is_new;
        let mut clock = Clock::resumed(stored.meta.clock);
        clock.read(now);
        let reconcile = options.reconcile;
        let mut state = Self {
            options,
            limits: Limits::default(),
            connection: Connection::lost_since(clock.at()),
            clock,
            meta: stored.meta.clone(),
            jobs: Jobs::default(),
            released: ReleasedVolumes::default(),
            kills: KillQueue::default(),
            offers: OpenOffers::default(),
            accept_limits: AcceptLimits::default(),
            seen: SeenOffers::default(),
            next_ports: NextPorts::default(),
            roles: Roles::default(),
            spreads: Spreads::default(),
            turns: Turns::default(),
            gangs: Gangs::default(),
            claims: Claims::default(),
            reconciler: Reconciler::new(reconcile),
            outbox: Outbox::default(),
            statistics: Statistics::default(),
            may_run: None,
        };
        state.take_over(stored)?;
        if !is_new {
            // The record is durable before any launch, because everything that waits for a write waits for it as well.
            state.outbox.write(Key::Meta.put(&state.meta));
        }
        Ok(state)
    }

    fn take_over(&mut self, stored: Stored) -> Result<(), RestoreError> {
        for (name, record) in stored.jobs {
            let mut job = Job::new(&name, record);
            job.progress.at = self.clock.at();
            job.restore_inline();
            let runs = job.record.runs.iter();
            job.runs = runs
                .map(|(number, run)| (*number, Run::new(run.count)))
                .collect();
            if job.record.attempts > 0 {
                job.runs.insert(0, Run::after(job.record.attempts));
            }
            self.jobs.mark_dirty(&name);
            self.jobs.insert(name, job);
        }
        for (job, number, version) in stored.versions {
            match self.jobs.get_mut(&job) {
                Some(job) => job.restore_version(number, version),
                None => return Err(orphan(&Key::Version { job, number })),
            }
        }
        let renamed = name_in_roles(&mut self.jobs);
        self.outbox.write_all(renamed);
        let at = self.clock.at();
        for (name, run, index, mut slot) in stored.slots {
            let job = self.jobs.get_mut(&name);
            let job = job.ok_or_else(|| {
                orphan(&Key::Slot {
                    job: name,
                    run,
                    index,
                })
            })?;
            slot.not_before = slot.not_before.min(at.saturating_add(job.longest_pause()));
            *job.runs.entry(run).or_default().slot_mut(index) = slot;
        }
        let absence = self.clock.absence(self.meta.clock);
        for (id, mut record) in stored.tasks {
            record.not_after(at);
            let name = id.parse::<TaskName>();
            let job = name.ok().and_then(|name| {
                let job = self.jobs.get_mut(&name.job)?;
                Some((name, job))
            });
            let (name, job) = job.ok_or_else(|| orphan(&Key::Task(id.clone())))?;
            if job.is_service() {
                // A restart does not reset the patience with an absent agent.
                let unreachable = record.unreachable;
                record.unreachable = unreachable.map(|since| since.saturating_sub(absence));
            }
            self.reconciler.track(&id, Some(&record.agent_id));
            self.next_ports.used(&record.agent_id, &record.ports);
            let mut task = Task::new(name, record, Phase::Launched);
            task.is_unheard = true;
            task.message = "not heard of since the scheduler started".to_owned();
            job.tasks.insert(id, task);
        }
        for (id, mut record) in stored.volumes {
            record.not_after(at);
            let volume = Volume::new(id.clone(), record);
            if volume.record.release.is_some() {
                self.released.insert(volume);
                continue;
            }
            let job = self.jobs.get_mut(&volume.record.job);
            let job = job.ok_or_else(|| orphan(&Key::Volume(id)))?;
            job.volumes.insert(volume.record.index, volume);
        }
        for job in self.jobs.values_mut() {
            let mut busy: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
            for task in job.tasks.values() {
                let indexes = busy.entry(task.name.run).or_default();
                indexes.insert(task.name.index);
            }
            for (number, run) in &mut job.runs {
                run.recount(busy.get(number).unwrap_or(&BTreeSet::new()));
            }
            // A gang that is ending lacks a task from the start. A complete run was launched by a release that does not
            // know the mark and left it in the record.
            job.record.broken = job.record.broken && !job.is_whole();
            job.begin_dealt();
            job.resume_kills(self.clock.at());
        }
        Ok(())
    }

    /// Returns the framework's id, once the framework has subscribed.
    #[must_use]
    pub fn framework_id(&self) -> Option<&str> {
        self.meta.framework_id.as_deref()
    }

    /// Returns the id of the jobs' cluster, once a master has sent one.
    #[must_use]
    pub fn cluster_id(&self) -> Option<&str> {
        self.meta.cluster_id.as_deref()
    }
}
