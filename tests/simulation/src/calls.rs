//! The calls and events of frameworks, and the answers of masters.

use meseta_daemon::authentication::Caller;
use meseta_master::core::call::Action;
use meseta_master::core::{
    Answer, ConnectionId, Input, ReplyId, Request, SubscribeRequest, is_terminal,
};
use meseta_proto::meseta::v1::agent_frame;
use meseta_proto::mesos::v1::scheduler::{call, event};
use meseta_proto::mesos::v1::{self as pb, TaskState};
use meseta_resources::ContainerId;

use crate::behaviour::Allowed;
use crate::checks::Broken;
use crate::cluster::Cluster;
use crate::executors::Next;
use crate::framework::{Framework, Kind, Stream, Task};
use crate::names;
use crate::operators::Asked;
use crate::plan::Feature;
use meseta_agent::core::Exit;

impl Cluster {
    fn any_framework(&mut self) -> usize {
        self.rng.usize(..self.frameworks.len())
    }

    /// Returns a framework with work to do, if there is one.
    fn busy_framework(&mut self, is_busy: impl Fn(&Framework) -> bool) -> Option<usize> {
        let frameworks = self.frameworks.iter().enumerate();
        let busy = frameworks.filter(|(_, framework)| is_busy(framework));
        let busy: Vec<usize> = busy.map(|(at, _)| at).collect();
        (!busy.is_empty()).then(|| busy[self.rng.usize(..busy.len())])
    }

    /// Makes a framework's next call, or an action by its own decision.
    pub(crate) fn call(&mut self) {
        self.act_copies();
        let has_calls = |one: &Framework| {
            let writes = one.jobs.as_ref().is_some_and(|jobs| jobs.has_writes());
            let calls = !one.calls.is_empty() || one.answers > 0 || one.must_answer();
            one.is_subscribed() && (calls || writes)
        };
        let busy = match self.rng.u32(..8) {
            0 => None,
            _ => self.busy_framework(has_calls),
        };
        let at = busy.unwrap_or_else(|| self.any_framework());
        let time = self.time;
        let framework = &mut self.frameworks[at];
        let (Some(stream), true) = (framework.stream, framework.is_subscribed()) else {
            return;
        };
        if !self.is_running(stream.master) {
            return;
        }
        let framework = &mut self.frameworks[at];
        if framework.answers > 0 {
            let answers = std::mem::take(&mut framework.answers);
            let connection = ConnectionId(stream.id);
            return self.step_master(
                stream.master,
                Input::AnswersRead {
                    connection,
                    answers,
                },
            );
        }
        if let Some(action) = framework.calls.pop_front() {
            if self.happens(Feature::Repeats, 4)
                && let Some(again) = repeated(&action)
            {
                self.frameworks[at].calls.push_back(again);
            }
            return self.make_call(at, stream, action);
        }
        if let Some(jobs) = &mut framework.jobs {
            match self.rng.u32(..3) {
                0 | 1 if jobs.has_writes() => {
                    self.story.note(("disk", "jobs"), [at as u64, 0], || {
                        "a write of the job scheduler is durable".to_owned()
                    });
                    jobs.flush(time);
                }
                _ if self.is_wild => jobs.act(time, &mut self.rng),
                _ => jobs.pass(time),
            }
            return self.take_jobs_calls(at);
        }
        if !framework.offers.is_empty() && !framework.is_holding {
            let features = &self.features;
            let allowed = Allowed::from_features(|feature| features.contains(&feature));
            return framework.answer_offer(&mut self.rng, allowed);
        }
        if !self.is_wild {
            return;
        }
        let allowed = Allowed::from_features(|feature| self.features.contains(&feature));
        let framework = &mut self.frameworks[at];
        match framework.kind {
            Kind::Malicious => self.harm(at, stream, allowed),
            _ => framework.act(&mut self.rng, allowed),
        }
    }

    /// Queues all calls of the job scheduler, and notes their tasks as for any framework.
    pub(crate) fn take_jobs_calls(&mut self, at: usize) {
        let steps = self.steps;
        let framework = &mut self.frameworks[at];
        let Some(jobs) = &mut framework.jobs else {
            return;
        };
        for action in jobs.take_calls() {
            let action = match action {
                Action::UpdateFramework(changed) => {
                    let mut whole = framework.subscription();
                    whole.info.roles = changed.info.roles;
                    whole.suppressed_roles = changed.suppressed_roles;
                    Action::UpdateFramework(Box::new(whole))
                }
                Action::Accept(accept) => {
                    let tasks = accept.operations.iter();
                    let tasks = tasks.filter_map(|operation| operation.launch.as_ref());
                    for task in tasks.flat_map(|launch| &launch.task_infos) {
                        let known = framework.tasks.entry(task.task_id.value.clone());
                        known.or_insert_with(|| Task::on(&task.agent_id, steps));
                    }
                    framework.offers.clear();
                    Action::Accept(accept)
                }
                other => other,
            };
            framework.calls.push_back(action);
        }
    }

    pub(crate) fn make_call(&mut self, at: usize, stream: Stream, action: Action) {
        let Some(framework_id) = self.frameworks[at].id.clone() else {
            return;
        };
        if let Some(role) = self.withdrawn_role(at, &action) {
            let refused = Some(format!("not allowed to register in role {role}"));
            if let Some(jobs) = &mut self.frameworks[at].jobs {
                jobs.roles_answered(self.time, refused);
            }
            return self.take_jobs_calls(at);
        }
        if let Action::Kill(kill) = &action {
            self.note_kill(at, stream.master, &framework_id, &kill.task_id.value);
        }
        let asked = match &action {
            Action::Reconcile(call) => {
                let tasks = call.tasks.iter();
                tasks.map(|task| task.task_id.value.clone()).collect()
            }
            _ => Vec::new(),
        };
        self.ask(at, stream, framework_id, action, asked, false);
    }

    /// Returns the forbidden role that a change of the roles requests, if any.
    fn withdrawn_role(&self, at: usize, action: &Action) -> Option<&'static str> {
        let Action::UpdateFramework(changed) = action else {
            return None;
        };
        let withdrawn = &self.frameworks[at].jobs.as_ref()?.withdrawn;
        let asks = |role: &&str| changed.info.roles.iter().any(|asked| asked == role);
        withdrawn.iter().copied().find(asks)
    }

    /// Remembers a KILL of a task that this master knows: the master has promised its execution.
    fn note_kill(&mut self, at: usize, master: u64, framework: &str, task: &str) {
        let Some(known) = self.master(master) else {
            return;
        };
        let snapshot = known.core.snapshot();
        let mut tasks = snapshot
            .agents
            .iter()
            .flat_map(|agent| agent.tasks.values());
        let is_live = tasks.any(|one| {
            let is_it = one.framework_id.as_str() == framework && one.task_id.as_str() == task;
            is_it && !is_terminal(one.state)
        });
        if is_live {
            self.frameworks[at].killed.insert(task.to_owned(), master);
        }
    }

    /// Sends a call; a `foreign` one must be refused.
    pub(crate) fn ask(
        &mut self,
        at: usize,
        stream: Stream,
        framework_id: String,
        action: Action,
        asked: Vec<String>,
        foreign: bool,
    ) {
        let reply = self.number();
        let name = names::of_action(&action);
        self.story.note(("call", name), [at as u64, reply], || {
            format!("of framework {at} to master {}: {action:?}", stream.master)
        });
        let asked = Asked::Call {
            framework: at,
            name,
            asked,
            foreign,
        };
        self.operators.replies.insert(reply, (stream.master, asked));
        self.step_master(
            stream.master,
            Input::Request {
                reply: ReplyId(reply),
                request: Request::Call {
                    framework_id,
                    stream_id: Some(stream.id.to_string()),
                    action: Box::new(action),
                    caller: Caller::default(),
                },
            },
        );
    }

    /// Handles a master's answer to a request.
    pub(crate) fn answered(&mut self, reply: u64, answer: Answer) {
        let Some((master, asked)) = self.operators.replies.remove(&reply) else {
            return;
        };
        let taken = matches!(answer, Answer::Accepted | Answer::Done);
        let time = self.time;
        match asked {
            Asked::Call {
                framework,
                name,
                asked,
                foreign,
            } => {
                self.story
                    .count(("answer to a call", names::of_answer(&answer)));
                if foreign && taken {
                    let what = format!("{name} in the name of another framework is taken");
                    self.broken.push(Broken::new("I29", what));
                }
                let one = &mut self.frameworks[framework];
                if taken {
                    one.questions.asked(asked.into_iter());
                }
                if let Some(jobs) = &mut one.jobs {
                    let refused = (!taken).then(|| answer.outcome().to_owned());
                    if name == "UPDATE_FRAMEWORK" {
                        jobs.roles_answered(time, refused);
                        self.take_jobs_calls(framework);
                    } else if refused.is_some() {
                        // A framework gives up a stream on which a call was refused.
                        self.cut_stream(framework);
                    }
                }
            }
            Asked::Administration { request, role } => {
                let name = names::of_administration(&request);
                self.story
                    .count(("answer to an operator", names::of_answer(&answer)));
                self.story.count((name, names::of_answer(&answer)));
                if matches!(answer, Answer::Done | Answer::Warned(_)) {
                    self.check_acknowledged(master, &request, role.as_deref());
                }
            }
            Asked::Other { framework } => {
                self.story
                    .count(("answer to an operator", names::of_answer(&answer)));
                if let Some(at) = framework.filter(|_| taken) {
                    self.frameworks[at].is_over = true;
                }
            }
        }
    }

    /// Delivers an event to a framework.
    pub(crate) fn hear(&mut self) {
        let (steps, time) = (self.steps, self.time);
        let reads = |one: &Framework| one.busy_until <= steps && one.has_news();
        let Some(at) = self.busy_framework(reads) else {
            return;
        };
        let framework = &mut self.frameworks[at];
        let Some(event) = framework.next_event() else {
            return;
        };
        let kind = event.r#type();
        self.story.note(
            ("event arrives", kind.as_str_name()),
            [at as u64, 0],
            || format!("at framework {at}: {event:?}"),
        );
        if let Some(status) = event.update.as_ref().map(|update| &update.status) {
            self.story
                .count(("task state told", status.state().as_str_name()));
            let reason = status.reason.and_then(|one| one.try_into().ok());
            let reason: Option<pb::task_status::Reason> = reason;
            if let Some(reason) = reason {
                self.story.count(("reason told", reason.as_str_name()));
            }
        }
        framework.hear(&event);
        if kind == event::Type::Error && framework.is_removed {
            framework.is_over = true;
        }
        if let Some(jobs) = &mut framework.jobs {
            framework.offers.clear();
            match (kind == event::Type::Error, framework.is_removed) {
                (true, true) => jobs.step(time, meseta_jobs::core::Input::FrameworkRemoved),
                _ => jobs.hear(time, *event),
            }
            self.take_jobs_calls(at);
        }
    }

    /// Lets a framework without a stream open one.
    pub(crate) fn subscribe(&mut self) {
        let is_away = |one: &Framework| one.stream.is_none() && !one.is_over;
        let Some(at) = self.busy_framework(is_away) else {
            return;
        };
        // A search for the leader may find the previous one.
        let which = match self.rng.u32(..8) {
            0 => 0,
            _ => self.masters.len() - 1,
        };
        let master = self.masters[which].number;
        if !self.is_running(master) {
            return;
        }
        self.open_stream(at, master);
    }

    /// Opens a stream of a framework to a running master.
    pub(crate) fn open_stream(&mut self, at: usize, master: u64) {
        let time = self.time;
        if let Some(jobs) = &mut self.frameworks[at].jobs
            && jobs.is_refused_subscription()
        {
            self.story
                .count(("answer to a call", "SUBSCRIBE of a withdrawn role"));
            jobs.step(time, meseta_jobs::core::Input::SubscriptionRefused);
            return self.take_jobs_calls(at);
        }
        let id = self.number();
        self.story.note(("call", "SUBSCRIBE"), [at as u64, id], || {
            format!("framework {at} on {id} to master {master}")
        });
        let framework = &mut self.frameworks[at];
        framework.stream = Some(Stream { id, master });
        if let Some(jobs) = &mut framework.jobs {
            jobs.subscribing();
        }
        let call = Box::new(framework.subscription());
        self.step_master(
            master,
            Input::Subscribe(SubscribeRequest {
                connection: ConnectionId(id),
                stream_id: id.to_string(),
                call,
                caller: Caller::default(),
            }),
        );
    }

    /// Breaks the stream of a framework.
    pub(crate) fn cut_stream(&mut self, at: usize) {
        if let Some(stream) = self.frameworks[at].stream {
            self.story
                .note(("fault", "stream cut"), [at as u64, stream.id], || {
                    format!("the stream {} of framework {at} breaks", stream.id)
                });
            self.frameworks[at].disconnected();
            let connection = ConnectionId(stream.id);
            self.step_master(stream.master, Input::SchedulerGone { connection });
        }
    }

    /// Makes a malicious framework act.
    fn harm(&mut self, at: usize, stream: Stream, allowed: Allowed) {
        let victim = self.any_framework();
        let own = self.frameworks[at].id.clone();
        let other = self.frameworks[victim].id.clone();
        let (Some(own), Some(other)) = (own, other.filter(|_| victim != at)) else {
            return self.frameworks[at].act(&mut self.rng, allowed);
        };
        if self.rng.u32(..10) == 0 {
            return self.steal(at, stream.master, other);
        }
        let tasks = &self.frameworks[victim].tasks;
        let chosen = self.rng.usize(..tasks.len().max(1));
        let task = tasks.keys().nth(chosen).cloned().unwrap_or_default();
        let agent = tasks.get(&task).map(|task| task.agent.clone());
        let agent = agent.unwrap_or_default();
        let uuid = tasks.get(&task).and_then(|task| task.order.last().cloned());
        let uuid = uuid
            .and_then(|uuid| uuid.try_into().ok())
            .unwrap_or([0; 16]);
        let offers = &self.frameworks[victim].offers;
        let foreign_offer = offers.front().map(|offer| offer.id.clone());
        let used = self.frameworks[at].used_offers.back().cloned();
        let decline = |offer_ids: Vec<pb::OfferId>| {
            Action::Decline(call::Decline {
                offer_ids,
                filters: Some(pb::Filters {
                    refuse_seconds: Some(f64::NAN),
                }),
            })
        };
        let kill = Action::Kill(call::Kill {
            task_id: pb::TaskId {
                value: task.clone(),
            },
            agent_id: None,
            kill_policy: None,
        });
        let acknowledge = Action::Acknowledge {
            agent_id: agent.clone(),
            task_id: task.clone(),
            uuid,
        };
        let (id, action) = match self.rng.u32(..10) {
            0 => (other, Action::Teardown),
            1 => (other, kill),
            2 => (other, acknowledge),
            3 => (own, kill),
            4 => (own, acknowledge),
            5 => (own, decline(foreign_offer.into_iter().collect())),
            6 | 7 => {
                let offers: Vec<_> = foreign_offer.into_iter().chain(used).collect();
                (own, self.frameworks[at].accept_again(offers, &agent))
            }
            8 => (own, Action::Unknown),
            _ => (own, decline(vec![pb::OfferId::default(); 300])),
        };
        let foreign = Some(&id) != self.frameworks[at].id.as_ref();
        self.ask(at, stream, id, action, Vec::new(), foreign);
    }

    /// Subscribes with the id of another principal's framework.
    fn steal(&mut self, at: usize, master: u64, other: String) {
        if !self.has(Feature::Principals) {
            return;
        }
        let id = self.number();
        self.story.note(("call", "theft"), [at as u64, id], || {
            format!("framework {at} on {id} to master {master} as {other}")
        });
        let mut call = Box::new(self.frameworks[at].subscription());
        call.info.id = Some(pb::FrameworkId { value: other });
        self.thieves.insert((master, id));
        let connection = ConnectionId(id);
        self.step_master(
            master,
            Input::Subscribe(SubscribeRequest {
                connection,
                stream_id: id.to_string(),
                call,
                caller: Caller::default(),
            }),
        );
    }

    /// Ends a container by itself, successfully or not.
    pub(crate) fn end_container(&mut self, at: usize, container: &ContainerId) {
        let exit = match self.rng.u32(..8) {
            0 => Exit::Code(1),
            1 => Exit::Signal(11),
            2 => Exit::Unknown("the supervisor is gone".to_owned()),
            _ => Exit::Code(0),
        };
        let of_memory = self.happens(Feature::OutOfMemory, 30);
        let agent = &mut self.agents[at];
        agent.end(container, exit);
        if of_memory {
            agent.machine.was_out_of_memory(container);
        }
    }

    pub(crate) fn act_executor(&mut self, at: usize, container: &ContainerId) {
        let time = self.time;
        let agent = &mut self.agents[at];
        match agent.executors.act(container, &mut self.rng) {
            Next::Tell(input) => agent.step(time, input),
            Next::Exit if !self.is_calm => agent.end(container, Exit::Code(0)),
            Next::Exit | Next::Nothing => {}
        }
    }

    /// Records an agent's success of a job's task.
    pub(crate) fn note_success(&mut self, message: &agent_frame::Message) {
        let agent_frame::Message::StatusUpdate(update) = message else {
            return;
        };
        let status = &update.status;
        if status.state() != TaskState::TaskFinished || !is_terminal(status.state()) {
            return;
        }
        let mut frameworks = self.frameworks.iter_mut();
        let of = |one: &&mut Framework| one.id.as_ref() == Some(&update.framework_id.value);
        let Some(framework) = frameworks.find(of) else {
            return;
        };
        let (given_up, tasks) = (&self.given_up, &framework.tasks);
        let is_given_up = |status: &pb::TaskStatus| {
            let task = tasks.get(&status.task_id.value);
            task.is_none_or(|task| task.is_forgotten || task.is_given_up(given_up))
        };
        let jobs = framework.jobs.as_mut();
        // A restored registry may not know agents and their tasks.
        if let Some(what) = jobs.and_then(|jobs| jobs.succeeded(status, is_given_up))
            && self.registry.rollbacks == 0
        {
            self.broken.push(Broken::new("J2", what));
        }
    }
}

/// Returns a repetition of a call, if its repetition has no further effect.
fn repeated(action: &Action) -> Option<Action> {
    match action {
        Action::Kill(kill) => Some(Action::Kill(kill.clone())),
        Action::Shutdown(shutdown) => Some(Action::Shutdown(shutdown.clone())),
        Action::Decline(decline) => Some(Action::Decline(decline.clone())),
        Action::Reconcile(reconcile) => Some(Action::Reconcile(reconcile.clone())),
        Action::Acknowledge {
            agent_id,
            task_id,
            uuid,
        } => Some(Action::Acknowledge {
            agent_id: agent_id.clone(),
            task_id: task_id.clone(),
            uuid: *uuid,
        }),
        Action::AcknowledgeOperationStatus {
            agent_id,
            operation_id,
            uuid,
        } => Some(Action::AcknowledgeOperationStatus {
            agent_id: agent_id.clone(),
            operation_id: operation_id.clone(),
            uuid: *uuid,
        }),
        _ => None,
    }
}
