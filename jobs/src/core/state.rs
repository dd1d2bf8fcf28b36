//! The state machine itself: inputs in, effects out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_proto::reconciler::{self, ReconcileIntervals, Reconciler};
use meseta_resources::{Moment, Now};

use super::clock::Clock;
use super::commands::JOBS_MAX;
use super::give_way::Claims;
use super::input::{Accept, Effect, Event, Input, Request};
use super::job::{Job, Phase, Run, Task};
use super::jobs::Jobs;
use super::kills::{KILLS_MAX, Strays};
use super::names::plain;
use super::next_ports::NextPorts;
use super::outbox::{Deferred, Outbox};
use super::pool::{AcceptLimits, STEP_WORK_MAX};
use super::records::{Key, Meta, RestoreError, Stored, orphan};
use super::roles::{RoleSet, Roles};
use super::seen_offers::SeenOffers;
use super::spread::{Agents, Waits};
use super::task_name::TaskName;
use super::totals::{JobFailures, Totals};
use super::versions::SPEC_BYTES_MAX;
use super::view::MayRun;
use super::volume::Volume;
use crate::placement::Offer;
use crate::spec::Cron;

/// A longer pause between two steps means that the process stood still: unread input may wait.
const STANDSTILL_MIN: Duration = Duration::from_secs(5);
/// The time after such a pause during which no schedule starts a run: the core reads the waiting input first.
pub(super) const CATCHING_UP: Duration = Duration::from_millis(500);

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

/// The state of the scheduler: the durable records, and its knowledge of the cluster.
#[derive(Debug)]
pub struct State {
    pub(super) options: Options,
    pub(super) clock: Clock,
    pub(super) moment: Moment,
    pub(super) meta: Meta,
    pub(super) jobs: Jobs,
    /// Volumes that are to be released when they are offered, by id.
    pub(super) releasing: BTreeMap<String, Volume>,
    /// Jobs that may need a decision.
    pub(super) dirty: BTreeSet<String>,
    /// The jobs that may have due kills.
    pub(super) pressing: BTreeSet<String>,
    /// The number of kills that may be sent before time passes.
    pub(super) kills_left: usize,
    pub(super) strays: Strays,
    pub(super) is_connected: bool,
    /// The time when that stream was opened.
    pub(super) connected_since: Duration,
    /// No schedule starts a run before this time: the core first reads the input that came while the process stood still.
    pub(super) fires_from: Duration,
    /// The region of the master. Tasks stay in it if their job names no region.
    pub(super) master_region: Option<String>,
    /// The scheduler has sent no queries to a master since its start.
    is_fresh: bool,
    /// The time since when no master has answered.
    pub(super) away_since: Option<Duration>,
    pub(super) offers: BTreeMap<String, HeldOffer>,
    pub(super) accept_limits: AcceptLimits,
    /// The rest of the last offer of each agent to a role, to find room for tasks: most of these offers have been answered.
    pub(super) seen: SeenOffers,
    /// The roles for which plans are made, and the time until which the framework requests their offers.
    pub(super) looked_for: BTreeMap<String, Duration>,
    /// The port from which an agent's next ports are taken: a freed port is not reused at once, while other programs still
    /// have its address.
    pub(super) next_ports: NextPorts,
    pub(super) roles: Roles,
    /// The agents of the cluster, and those that spread jobs wait for.
    pub(super) agents: Agents,
    pub(super) spread_waits: BTreeMap<String, Waits>,
    /// The number of jobs that may exist.
    pub(super) jobs_max: usize,
    /// The limit on the bytes of all specifications.
    pub(super) spec_bytes_max: usize,
    /// The work of one step for offers, and the job of each role with which the next step continues.
    pub(super) step_work_max: usize,
    pub(super) resume: BTreeMap<String, String>,
    pub(super) collector: Option<Collector>,
    /// Gangs that held offers in vain, until they start or their jobs change.
    pub(super) resting: BTreeMap<String, Rest>,
    pub(super) claims: Claims,
    pub(super) reconciler: Reconciler,
    pub(super) outbox: Outbox,
    pub(super) effects: Vec<Effect>,
    pub(super) totals: Totals,
    pub(super) job_failures: JobFailures,
    /// Jobs with a failure in this step: each is written once, however many of its tasks have failed.
    pub(super) failing: BTreeSet<String>,
    /// The check of permissions; without it, each submitter may run what it submitted.
    pub(super) may_run: Option<MayRun>,
}

/// An offer that has not been answered.
#[derive(Clone, Debug)]
pub(super) struct HeldOffer {
    pub(super) offer: Offer,
    /// Whether tasks for the offer are being made durable.
    pub(super) is_committed: bool,
}

/// The gang that keeps offers back.
#[derive(Clone, Debug)]
pub(super) struct Collector {
    pub(super) job: String,
    /// The role of the offers.
    pub(super) role: String,
    pub(super) until: Duration,
    /// The last offers in which the gang did not fit.
    pub(super) tried: Option<Tried>,
}

/// Offers that could not hold this gang.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    pub(super) version: u64,
    pub(super) tasks: usize,
    pub(super) offers: BTreeSet<String>,
    /// The offers among them that are kept back.
    pub(super) kept: BTreeSet<String>,
}

/// The time until which a gang keeps no offers, and the length of this rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    pub(super) until: Duration,
    pub(super) pause: Duration,
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
            clock,
            moment: now.moment,
            meta: stored.meta.clone(),
            jobs: Jobs::default(),
            releasing: BTreeMap::new(),
            dirty: BTreeSet::new(),
            pressing: BTreeSet::new(),
            kills_left: KILLS_MAX,
            strays: Strays::default(),
            is_connected: false,
            connected_since: clock.at,
            fires_from: Duration::ZERO,
            master_region: None,
            is_fresh: true,
            away_since: Some(clock.at),
            offers: BTreeMap::new(),
            accept_limits: AcceptLimits::default(),
            seen: SeenOffers::default(),
            looked_for: BTreeMap::new(),
            next_ports: NextPorts::default(),
            roles: Roles::default(),
            agents: Agents::default(),
            spread_waits: BTreeMap::new(),
            jobs_max: JOBS_MAX,
            spec_bytes_max: SPEC_BYTES_MAX,
            step_work_max: STEP_WORK_MAX,
            resume: BTreeMap::new(),
            collector: None,
            resting: BTreeMap::new(),
            claims: Claims::new(),
            reconciler: Reconciler::new(reconcile),
            outbox: Outbox::default(),
            effects: Vec::new(),
            totals: Totals::default(),
            job_failures: JobFailures::default(),
            failing: BTreeSet::new(),
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
            job.progress.at = self.clock.at;
            job.restore_inline();
            let runs = job.record.runs.iter();
            job.runs = runs
                .map(|(number, run)| (*number, Run::new(run.count)))
                .collect();
            if job.record.attempts > 0 {
                job.runs.insert(0, Run::after(job.record.attempts));
            }
            self.dirty.insert(name.clone());
            self.jobs.insert(name, job);
        }
        for (job, number, version) in stored.versions {
            match self.jobs.get_mut(&job) {
                Some(job) => job.restore_version(number, version),
                None => return Err(orphan(&Key::Version { job, number })),
            }
        }
        self.name_in_roles();
        let at = self.clock.at;
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
                self.releasing.insert(id, volume);
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
            job.resume_kills(self.clock.at);
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

    fn of_cluster(&mut self, id: String) {
        if self.meta.cluster_id.as_ref() != Some(&id) {
            self.meta.cluster_id = Some(id);
            self.save_meta();
        }
    }

    /// Processes an input and returns the effects, in order.
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Effect> {
        self.step_all(now, [input])
    }

    /// Processes several inputs together, with one decision for all.
    pub fn step_all(&mut self, now: Now, inputs: impl IntoIterator<Item = Input>) -> Vec<Effect> {
        self.clock.read(now);
        let passed = now.moment.saturating_since(self.moment);
        self.moment = now.moment;
        if passed > STANDSTILL_MIN {
            self.stood_still(passed);
        }
        // Timers are processed last, after all other inputs.
        let is_time = |input: &Input| matches!(input, Input::Tick { .. });
        let (times, told): (Vec<_>, Vec<_>) = inputs.into_iter().partition(is_time);
        for input in told.into_iter().chain(times) {
            self.take(input);
        }
        self.settle();
        std::mem::take(&mut self.effects)
    }

    /// Excludes a time without input from the patience with updates, with absent agents, and with the master's answers
    /// after a subscription.
    fn stood_still(&mut self, passed: Duration) {
        let at = self.clock.at;
        let later = |since: Duration| since.saturating_add(passed).min(at);
        self.connected_since = later(self.connected_since);
        // A core that needs this long for each step lets every other step fire.
        if self.fires_from.saturating_add(passed) <= at {
            self.fires_from = at.saturating_add(CATCHING_UP);
        }
        for job in self.jobs.values_mut() {
            job.progress.at = later(job.progress.at);
            for task in job.tasks.values_mut() {
                task.record.unreachable = task.record.unreachable.map(later);
            }
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Request { id, request } => self.request(id, request),
            Input::Subscribed {
                framework_id,
                roles,
            } => self.subscribed(framework_id, &roles),
            Input::Cluster(id) => self.of_cluster(id),
            Input::MasterRegion(region) => self.master_region = region,
            Input::SubscriptionRefused => {
                self.disconnected();
                self.roles.doubted();
            }
            Input::RolesAnswered { refused } => self.roles_answered(refused),
            Input::Disconnected => self.disconnected(),
            Input::FrameworkRemoved => self.framework_removed(),
            Input::Offers(offers) => self.offered(offers),
            Input::UnreadableOffers(offers) => self.decline_unreadable(offers),
            Input::Rescinded(id) => {
                self.offers.remove(&id);
                self.seen.rescinded(&id);
            }
            Input::AgentLost(agent_id) => {
                self.seen.agent_lost(&agent_id);
                self.agents.remove(&agent_id);
            }
            Input::Agents(agents) => self.agents_told(agents),
            Input::AcceptRefused(refused) => self.accept_refused(refused),
            Input::Update(status) => self.update(*status),
            Input::OperationUpdate(status) => self.operation_update(*status),
            Input::Stored(id) => self.stored(id),
            Input::Tick { kills_waiting } => self.tick(kills_waiting),
        }
    }

    /// Decides until no decision follows from another.
    fn settle(&mut self) {
        self.decide();
        self.press_kills();
        self.answer_offers();
        self.give_way();
        self.ask_for_offers();
        if self.is_connected {
            while let Some(request) = self.reconciler.poll(self.moment) {
                self.effects.push(Effect::Reconcile(request));
            }
        }
        self.save_failures();
        let (store, at_once) = self.outbox.flush();
        self.effects.extend(store);
        for deferred in at_once {
            self.release(deferred);
        }
    }

    fn subscribed(&mut self, framework_id: String, roles: &RoleSet) {
        if self.meta.framework_id.as_ref() != Some(&framework_id) {
            self.meta.framework_id = Some(framework_id);
            self.save_meta();
        }
        self.is_connected = true;
        self.connected_since = self.clock.at;
        self.roles.subscribed(roles);
        if let Some(since) = self.away_since.take() {
            for job in self.jobs.values_mut() {
                job.progress.pause(since, self.clock.at);
            }
        }
        self.seen.clear();
        self.offers.clear();
        self.collector = None;
        for task in self
            .jobs
            .values_mut()
            .flat_map(|job| job.tasks.values_mut())
        {
            // The last known state may be outdated.
            task.is_asked_for = true;
            // Earlier queries may have been lost.
            if let Some(killing) = &mut task.killing {
                killing.next = self.clock.at;
            }
        }
        self.reconciler.start(self.moment);
        if std::mem::take(&mut self.is_fresh) {
            // Unknown tasks that run end at once.
            let all = Effect::Reconcile(reconciler::Request::Implicit);
            self.effects.push(all);
        }
        self.ask_for_volumes_anew();
        // The calls of the previous stream are gone.
        self.allow_kills(0);
        self.dirty.extend(self.jobs.keys().cloned());
        self.pressing.extend(self.jobs.keys().cloned());
    }

    fn disconnected(&mut self) {
        self.is_connected = false;
        self.away_since.get_or_insert(self.clock.at);
        self.offers.clear();
        self.collector = None;
        self.reconciler.disconnected();
        self.roles.disconnected();
    }

    /// Handles the removal of the framework: all its tasks are gone, and the next framework begins with none.
    fn framework_removed(&mut self) {
        self.disconnected();
        self.meta.framework_id = None;
        self.save_meta();
        self.strays = Strays::default();
        let names: Vec<_> = self.jobs.keys().cloned().collect();
        for name in names {
            let tasks = self.jobs.get(&name).map(|job| job.tasks.keys().cloned());
            let tasks: Vec<_> = tasks.into_iter().flatten().collect();
            for task in tasks {
                self.task_lost(&name, &task, "the master has removed the framework");
            }
        }
    }

    fn offered(&mut self, offers: Vec<Offer>) {
        for mut offer in offers {
            offer.is_remote = self.is_remote(&offer);
            offer.ports_from = self.next_ports.for_agent(&offer.agent_id);
            self.observe_volumes(&offer);
            self.seen.insert(offer.clone());
            let held = HeldOffer {
                offer,
                is_committed: false,
            };
            self.offers.insert(held.offer.id.clone(), held);
        }
    }

    fn stored(&mut self, id: u64) {
        for deferred in self.outbox.stored(id) {
            self.release(deferred);
        }
    }

    fn release(&mut self, deferred: Deferred) {
        match deferred {
            Deferred::Effect(effect) => self.effects.push(effect),
            Deferred::Kill(id) => self.release_kill(&id),
            Deferred::Launch { accepts, is_gang } => self.launch(accepts, is_gang),
        }
    }

    /// Launches tasks whose records are durable, unless their offers are gone. A gang launches whole or not at all.
    fn launch(&mut self, accepts: Vec<Accept>, is_gang: bool) {
        let is_ready = |accept: &Accept| {
            let mut tasks = accept.tasks.iter();
            self.is_open(accept) && tasks.all(|task| self.is_still_wanted(&task.task_id))
        };
        let is_whole = !is_gang || accepts.iter().all(is_ready);
        for mut accept in accepts {
            let is_sent = is_whole && self.is_open(&accept);
            let (go, stay): (Vec<_>, Vec<_>) = accept
                .tasks
                .into_iter()
                .partition(|task| is_sent && self.is_still_wanted(&task.task_id));
            for task in stay {
                self.abandon(&task.task_id);
            }
            if go.is_empty() {
                if let Some(held) = self.offers.get_mut(&accept.offer.id) {
                    held.is_committed = false;
                }
                continue;
            }
            for task in &go {
                self.launched(&task.task_id, &accept.offer.agent_id);
            }
            self.offers.remove(&accept.offer.id);
            accept.tasks = go;
            self.effects.push(Effect::Accept(accept));
        }
    }

    /// Whether the offer of an ACCEPT is still open.
    fn is_open(&self, accept: &Accept) -> bool {
        let held = self.offers.get(&accept.offer.id);
        self.is_connected && held.is_some_and(|held| held.is_committed)
    }

    fn is_still_wanted(&self, id: &str) -> bool {
        let task = self.task(id);
        task.is_some_and(|task| task.killing.is_none() && task.phase == Phase::Intended)
    }

    fn launched(&mut self, id: &str, agent_id: &str) {
        self.reconciler.track(id, Some(agent_id));
        self.totals.launched += 1;
        let (at, mut waited) = (self.clock.at, Duration::ZERO);
        if let Ok(name) = id.parse::<TaskName>()
            && let Some(job) = self.jobs.get_mut(&name.job)
        {
            waited = at.saturating_sub(job.startable_since(&name, &self.clock));
            if let Some(task) = job.tasks.get_mut(id) {
                task.phase = Phase::Launched;
                // The master can know of the task only from now on, however long the write of its record took.
                task.record.launched = at;
                let volume = job.volumes.get_mut(&name.index);
                let own = volume.filter(|one| task.record.volume.as_ref() == Some(&one.id));
                if let Some(volume) = own {
                    volume.record.since = at;
                }
            }
        }
        self.totals.queue.add(waited);
    }

    pub(super) fn task(&self, id: &str) -> Option<&Task> {
        let name: TaskName = id.parse().ok()?;
        self.jobs.get(&name.job)?.tasks.get(id)
    }

    pub(super) fn task_mut(&mut self, id: &str) -> Option<&mut Task> {
        let name: TaskName = id.parse().ok()?;
        self.jobs.get_mut(&name.job)?.tasks.get_mut(id)
    }

    /// Records an event of a job, for its followers and its history.
    pub(super) fn event(&mut self, job: &str, task_id: Option<&str>, text: impl Into<String>) {
        let task = task_id.and_then(|id| self.task(id));
        let event = Event {
            time: self.clock.unix.as_secs(),
            job: plain(job).to_owned(),
            role: self.role_of(job).map(str::to_owned),
            task_id: task_id.map(str::to_owned),
            agent_id: task.map(|task| task.record.agent_id.clone()),
            text: text.into(),
        };
        if let Some(job) = self.jobs.get_mut(job) {
            job.remember(event.clone());
        }
        self.effects.push(Effect::Event(event));
    }

    fn request(&mut self, id: u64, request: Request) {
        let answer = self.carry_out(request);
        let answer = Effect::Answer { id, answer };
        self.outbox.defer(Deferred::Effect(answer));
    }
}
