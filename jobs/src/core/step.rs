//! The step of the state machine: each input goes to its owner, then the core decides for all jobs.
//!
//! Invariant: this file states the order of effects. [`State::apply`] carries out the consequences of the change of a job.

use std::time::Duration;

use meseta_proto::mesos::v1::{TaskState, TaskStatus};
use meseta_proto::reconciler;
use meseta_resources::Now;

use super::consequence::Consequence;
use super::input::{Accept, Effect, Event, Input, Request};
use super::job::{KillReason, Phase};
use super::kills::{Press, kill_task};
use super::names::plain;
use super::outbox::Deferred;
use super::records::Key;
use super::roles::RoleSet;
use super::state::State;
use super::task_name::TaskName;
use super::updates;
use crate::placement::{self, Offer};

impl State {
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
            Input::Cluster(id) => self.set_cluster(id),
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

    fn set_cluster(&mut self, id: String) {
        if self.meta.cluster_id.as_ref() != Some(&id) {
            self.meta.cluster_id = Some(id);
            self.save_meta();
        }
    }

    fn update(&mut self, status: TaskStatus) {
        self.take_update(&status);
        if status.uuid.is_some() && status.agent_id.is_some() {
            let acknowledge = Effect::Acknowledge(Box::new(status));
            self.outbox.defer(Deferred::Effect(acknowledge));
        }
    }

    fn take_update(&mut self, status: &TaskStatus) {
        let id = &*status.task_id.value;
        let Ok(state) = TaskState::try_from(status.state) else {
            return;
        };
        let found = self.jobs.with_task_mut(id);
        let Some((name, job)) = found else {
            return self.stray(status, state);
        };
        let Some(news) = updates::read(job, &name, (state, status), self.clock.at()) else {
            return;
        };
        let consequences = updates::note(job, &name, &news, &self.clock);
        self.reconciler.observe(self.clock.moment(), status);
        if let Some(agent_id) = &news.lost_agent {
            self.seen.agent_lost(agent_id);
        }
        self.apply(&name.job, consequences);
    }

    /// Handles an unknown task: its job is gone, or the scheduler gave it up.
    fn stray(&mut self, status: &TaskStatus, state: TaskState) {
        let id = &status.task_id.value;
        self.reconciler.observe(self.clock.moment(), status);
        let is_live = matches!(
            state,
            TaskState::TaskStaging | TaskState::TaskStarting | TaskState::TaskRunning
        );
        if state == TaskState::TaskFinished
            && let Ok(name) = id.parse::<TaskName>()
            && let Some(job) = self.jobs.get_mut(&name.job)
        {
            let consequences = updates::credit(job, &name, &self.clock);
            self.apply(&name.job, consequences);
        }
        let agent_id = status.agent_id.clone().map(|agent| agent.value);
        match is_live {
            true => self.kills.add_stray(id, agent_id),
            false => self.kills.remove_stray(id),
        }
    }

    /// Handles the loss of a task that is given up, or that the framework's removal has ended.
    pub(super) fn task_lost(&mut self, id: &str, why: &str) {
        let Some((name, job)) = self.jobs.with_task_mut(id) else {
            return;
        };
        let (lost, consequences) = updates::lose(job, &name, why, &self.clock);
        // The scheduler no longer asks for the task, and kills it if it comes back.
        self.reconciler.observe(self.clock.moment(), &lost);
        self.apply(&name.job, consequences);
    }

    /// Undoes a launch that was not sent.
    fn abandon(&mut self, id: &str) {
        let Some((name, job)) = self.jobs.with_task_mut(id) else {
            return;
        };
        let consequences = updates::abandon(job, &name, self.clock.at());
        self.apply(&name.job, consequences);
    }

    /// Carries out the consequences of a change of a job, in their order.
    pub(super) fn apply(&mut self, key: &str, consequences: Vec<Consequence>) {
        for consequence in consequences {
            match consequence {
                Consequence::Write(record) => self.outbox.write(record),
                Consequence::SaveFailure => self.jobs.mark_failing(key),
                Consequence::Tell(event) => self.outbox.send(Effect::Event(event)),
                Consequence::Kill(task, reason) => self.ask_kill(&task, reason),
                Consequence::Decide => self.jobs.mark_dirty(key),
                Consequence::CountStart => self.statistics.count_start(),
                Consequence::CountSuccess => self.statistics.count_success(),
                Consequence::CountFailure(role) => self.statistics.count_failure(key, &role),
                Consequence::CountLoss => self.statistics.count_loss(),
                Consequence::CountRestart => self.statistics.count_restart(),
                Consequence::VolumeRuns(id) => self.volume_runs(&id),
                Consequence::Freed { spec, agent_id } => {
                    // No offers may come that show the resources.
                    if self.roles.is_suppressed(&spec.role) {
                        let freed = placement::requested(&spec);
                        self.seen.freed(&agent_id, &spec.role, &freed);
                    }
                }
            }
        }
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
                self.task_lost(&task, "the master has removed the framework");
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
        let event = match self.jobs.get_mut(job) {
            Some(job) => job.add_event(unix, task_id, text),
            // The job of a stray task is gone.
            None => Event {
                time: unix.as_secs(),
                job: plain(job).to_owned(),
                role: None,
                task_id: task_id.map(str::to_owned),
                agent_id: None,
                text: text.into(),
            },
        };
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
