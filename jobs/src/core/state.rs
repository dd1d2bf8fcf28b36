//! The state machine itself: inputs in, effects out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_proto::reconciler::{self, ReconcileIntervals, Reconciler};
use meseta_resources::Now;

use super::clock::Clock;
use super::commands::JOBS_MAX;
use super::connection::Connection;
use super::gangs::Gangs;
use super::give_way::Claims;
use super::input::{Accept, Effect, Input, Request};
use super::job::{Job, KillReason, Phase, Run, Task};
use super::jobs::Jobs;
use super::kills::{KillQueue, Press, kill_task};
use super::names::name_in_roles;
use super::next_ports::NextPorts;
use super::offer_pool::{AcceptLimits, STEP_WORK_MAX, Turns};
use super::open_offers::OpenOffers;
use super::outbox::{Deferred, Outbox};
use super::records::{Key, Meta, RestoreError, Stored, orphan};
use super::released_volumes::ReleasedVolumes;
use super::roles::{RoleSet, Roles};
use super::seen_offers::SeenOffers;
use super::spread::Spreads;
use super::task_name::TaskName;
use super::totals::Statistics;
use super::versions::SPEC_BYTES_MAX;
use super::view::MayRun;
use super::volume::Volume;
use crate::placement::Offer;
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
        if let Some(passed) = self.clock.read(now) {
            self.stood_still(passed);
        }
        // Timers are processed last, after all other inputs.
        let is_time = |input: &Input| matches!(input, Input::Tick { .. });
        let (times, told): (Vec<_>, Vec<_>) = inputs.into_iter().partition(is_time);
        for input in told.into_iter().chain(times) {
            self.take(input);
        }
        self.settle();
        self.outbox.take_effects()
    }

    /// Excludes a time without input from the patience with updates, with absent agents, and with the master's answers
    /// after a subscription.
    fn stood_still(&mut self, passed: Duration) {
        let at = self.clock.at();
        let later = |since: Duration| since.saturating_add(passed).min(at);
        self.connection.exclude(passed, at);
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
            Input::MasterRegion(region) => self.connection.set_region(region),
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
                self.spreads.remove_agent(&agent_id);
            }
            Input::Agents(agents) => self.replace_agents(agents),
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
        if self.connection.is_open() {
            while let Some(request) = self.reconciler.poll(self.clock.moment()) {
                self.outbox.send(Effect::Reconcile(request));
            }
        }
        let failures = self.jobs.take_failures();
        self.outbox.write_all(failures);
        for deferred in self.outbox.flush() {
            self.release(deferred);
        }
    }

    /// Requests offers in the roles of waiting jobs, and no others.
    fn ask_for_offers(&mut self) {
        let (at, is_connected) = (self.clock.at(), self.connection.is_open());
        self.jobs.count_demand(at);
        let calls = self
            .roles
            .follow_demand(at, &self.jobs, &self.released, is_connected);
        for call in calls {
            self.outbox.send(call);
        }
    }

    /// Handles the master's response to an update of the roles.
    fn roles_answered(&mut self, refused: Option<String>) {
        let Some(role) = self.roles.answered(self.clock.at(), refused) else {
            return;
        };
        let text = self.roles.refused_text(&role).unwrap_or_default();
        let in_role = self.jobs.values().filter(|job| job.role() == role);
        let names: Vec<String> = in_role.map(|job| job.name.clone()).collect();
        for name in names {
            self.event(&name, None, text.clone());
        }
    }

    /// Replaces the list of agents, and marks those in other regions.
    fn replace_agents(&mut self, mut agents: Vec<Offer>) {
        for agent in &mut agents {
            agent.is_remote = self.connection.is_remote(agent);
        }
        self.spreads.replace_agents(agents);
    }

    fn subscribed(&mut self, framework_id: String, roles: &RoleSet) {
        if self.meta.framework_id.as_ref() != Some(&framework_id) {
            self.meta.framework_id = Some(framework_id);
            self.save_meta();
        }
        let opened = self.connection.open(self.clock.at());
        self.roles.subscribed(roles);
        if let Some(since) = opened.away_since {
            for job in self.jobs.values_mut() {
                job.progress.pause(since, self.clock.at());
            }
        }
        self.seen.clear();
        self.offers.clear();
        self.gangs.stop_collecting();
        for task in self
            .jobs
            .values_mut()
            .flat_map(|job| job.tasks.values_mut())
        {
            // The last known state may be outdated.
            task.is_asked_for = true;
            // Earlier queries may have been lost.
            if let Some(killing) = &mut task.killing {
                killing.next = self.clock.at();
            }
        }
        self.reconciler.start(self.clock.moment());
        if opened.is_first {
            // Unknown tasks that run end at once.
            let all = Effect::Reconcile(reconciler::Request::Implicit);
            self.outbox.send(all);
        }
        self.ask_for_volumes_anew();
        // The calls of the previous stream are gone.
        self.kills.allow(0);
        self.jobs.mark_all_dirty();
        self.kills.add_jobs(self.jobs.keys());
    }

    fn disconnected(&mut self) {
        self.connection.close(self.clock.at());
        self.offers.clear();
        self.gangs.stop_collecting();
        self.reconciler.disconnected();
        self.roles.disconnected();
    }

    /// Handles the removal of the framework: all its tasks are gone, and the next framework begins with none.
    fn framework_removed(&mut self) {
        self.disconnected();
        self.meta.framework_id = None;
        self.save_meta();
        self.kills.forget_strays();
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
            offer.is_remote = self.connection.is_remote(&offer);
            offer.ports_from = self.next_ports.for_agent(&offer.agent_id);
            self.observe_volumes(&offer);
            self.seen.insert(offer.clone());
            self.offers.insert(offer);
        }
    }

    fn stored(&mut self, id: u64) {
        for deferred in self.outbox.stored(id) {
            self.release(deferred);
        }
    }

    fn release(&mut self, deferred: Deferred) {
        match deferred {
            Deferred::Effect(effect) => self.outbox.send(effect),
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
                self.offers.free_again(&accept.offer.id);
                continue;
            }
            for task in &go {
                self.launched(&task.task_id, &accept.offer.agent_id);
            }
            self.offers.remove(&accept.offer.id);
            accept.tasks = go;
            self.outbox.send(Effect::Accept(accept));
        }
    }

    /// Whether the offer of an ACCEPT is still open.
    fn is_open(&self, accept: &Accept) -> bool {
        self.connection.is_open() && self.offers.is_committed(&accept.offer.id)
    }

    fn is_still_wanted(&self, id: &str) -> bool {
        let task = self.jobs.task(id);
        task.is_some_and(|task| task.killing.is_none() && task.phase == Phase::Intended)
    }

    fn launched(&mut self, id: &str, agent_id: &str) {
        self.reconciler.track(id, Some(agent_id));
        let (at, mut waited) = (self.clock.at(), Duration::ZERO);
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
        self.statistics.count_launch(waited);
    }

    /// Records an event of a job, for its followers and its history.
    pub(super) fn event(&mut self, job: &str, task_id: Option<&str>, text: impl Into<String>) {
        let unix = self.clock.unix();
        let event = self.jobs.add_event(job, task_id, text.into(), unix);
        self.outbox.send(Effect::Event(event));
    }

    /// Makes the record of a job durable as it is now.
    pub(super) fn save(&mut self, name: &str) {
        let records = self.jobs.save(name);
        self.outbox.write_all(records);
    }

    /// Writes the scheduler's own record to the store, with the present time of the clock.
    pub(super) fn save_meta(&mut self) {
        self.meta.clock = Some(self.clock.saved());
        self.outbox.write(Key::Meta.put(&self.meta));
    }

    /// Makes durable from time to time how long tasks have been watched.
    pub(super) fn save_clock(&mut self) {
        let is_due = self.clock.is_save_due(self.meta.clock);
        if is_due && self.jobs.values().any(|job| !job.tasks.is_empty()) {
            self.save_meta();
        }
    }

    /// Begins to kill a task, unless that has begun; the kill is sent at the end of a step.
    pub(super) fn ask_kill(&mut self, id: &str, reason: KillReason) {
        if let Some(job) = self.jobs.begin_kill(id, reason, self.clock.at()) {
            self.kills.add_job(job);
        }
    }

    /// Sends the due kills for which there is room.
    fn press_kills(&mut self) {
        let is_connected = self.connection.is_open();
        for press in self
            .kills
            .press(self.clock.at(), &mut self.jobs, is_connected)
        {
            match press {
                Press::Send(kill) => self.outbox.send(kill),
                Press::Write(record, kill) => {
                    self.outbox.write(record);
                    self.outbox.defer(kill);
                }
                Press::Stray {
                    job,
                    task_id,
                    agent_id,
                } => {
                    if let Some(job) = job {
                        let text = "killed: it was replaced, or its job is gone";
                        self.event(&job, Some(&task_id), text);
                    }
                    self.statistics.count_stray_kill();
                    self.outbox.send(Effect::Kill { task_id, agent_id });
                }
                Press::AskForAll => {
                    let all = Effect::Reconcile(reconciler::Request::Implicit);
                    self.outbox.send(all);
                }
            }
        }
    }

    /// Sends a kill whose reason is durable.
    fn release_kill(&mut self, id: &str) {
        let job = id.parse::<TaskName>().ok().map(|name| name.job);
        let job = job.and_then(|job| self.jobs.get_mut(&job));
        let kill = job.and_then(|job| kill_task(job, id, self.clock.at()));
        if let Some(kill) = kill.filter(|_| self.connection.is_open()) {
            self.outbox.send(kill);
        }
    }

    fn request(&mut self, id: u64, request: Request) {
        let answer = self.carry_out(request);
        let answer = Effect::Answer { id, answer };
        self.outbox.defer(Deferred::Effect(answer));
    }
}
