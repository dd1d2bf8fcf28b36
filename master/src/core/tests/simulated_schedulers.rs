//! Simulated frameworks and operators: their calls, and the answers.

use super::*;

impl World {
    /// A new master, an agent, and a framework with an offer of the whole agent.
    pub(super) fn with_offer(
        info: v1::FrameworkInfo,
        resources: &str,
    ) -> (Self, Node, Scheduler, v1::Offer) {
        let (mut world, node, scheduler) = Self::with_framework(info, resources);
        let offer = world.offers(&scheduler).pop().unwrap();
        (world, node, scheduler, offer)
    }

    /// A new master, an agent, and a framework whose offer of the agent is still unread.
    pub(super) fn with_framework(
        info: v1::FrameworkInfo,
        resources: &str,
    ) -> (Self, Node, Scheduler) {
        let (mut world, node) = Self::with_agent(resources);
        let scheduler = world.subscribe(info);
        (world, node, scheduler)
    }

    /// A new master, and a framework with the task `t` running on an agent.
    pub(super) fn with_running_task(info: v1::FrameworkInfo) -> (Self, Node, Scheduler) {
        let (mut world, node, scheduler, offer) = Self::with_offer(info, "cpus:4;mem:1024");
        world.launch(&scheduler, &offer, "t", "cpus:1;mem:64");
        world.update(&node, &scheduler, "t", TaskState::TaskRunning, 1);
        world.acknowledge(&node, &scheduler, "t", 1);
        world.take_events(scheduler.connection);
        (world, node, scheduler)
    }

    pub(super) fn subscribe(&mut self, info: v1::FrameworkInfo) -> Scheduler {
        let connection = self.try_subscribe(info);
        let events = self.take_events(connection);
        let subscribed = first(&events, |event| event.subscribed.as_ref());
        let id = subscribed.framework_id.value.clone();
        // The events may include offers.
        let rest = events
            .into_iter()
            .filter(|event| event.offers.is_some())
            .collect();
        self.events.insert(connection, rest);
        Scheduler {
            connection,
            stream: format!("stream-{connection}"),
            id,
        }
    }

    pub(super) fn try_subscribe(&mut self, info: v1::FrameworkInfo) -> ConnectionId {
        let connection = ConnectionId(self.number());
        self.input(Input::Subscribe(SubscribeRequest {
            connection,
            stream_id: format!("stream-{connection}"),
            call: Box::new(Subscribe {
                info,
                suppressed_roles: Vec::new(),
                offer_constraints: None,
            }),
            caller: self.caller.clone(),
        }));
        connection
    }

    pub(super) fn with_id(mut info: v1::FrameworkInfo, id: &str) -> v1::FrameworkInfo {
        info.id = Some(framework_id(id));
        info
    }

    pub(super) fn call(&mut self, scheduler: &Scheduler, action: Action) -> Answer {
        self.call_as(&scheduler.id, Some(&scheduler.stream), action)
    }

    pub(super) fn call_as(&mut self, id: &str, stream: Option<&str>, action: Action) -> Answer {
        let before = self.refusals_change_nothing.then(|| {
            // Carries out due work first.
            self.input(Input::Tick);
            self.digest()
        });
        let answer = self.ask(Request::Call {
            framework_id: id.to_owned(),
            stream_id: stream.map(str::to_owned),
            action: Box::new(action),
            caller: self.caller.clone(),
        });
        if !matches!(answer, Answer::Accepted | Answer::Done)
            && let Some(before) = before
        {
            assert_eq!(before, self.digest(), "refused: {answer:?}");
        }
        answer
    }

    #[track_caller]
    pub(super) fn call_accepted(&mut self, scheduler: &Scheduler, action: Action) {
        assert_eq!(self.call(scheduler, action), Answer::Accepted);
    }

    #[track_caller]
    pub(super) fn call_done(&mut self, scheduler: &Scheduler, action: Action) {
        assert_eq!(self.call(scheduler, action), Answer::Done);
    }

    /// Launches a task on the agent of the offer.
    pub(super) fn launch(&mut self, scheduler: &Scheduler, offer: &v1::Offer, id: &str, of: &str) {
        let task = task_on(&offer.agent_id.value, id, of);
        self.call_accepted(scheduler, accept(&[offer], vec![task]));
    }

    /// Launches a task on the framework's next offer.
    pub(super) fn launch_next(&mut self, scheduler: &Scheduler, id: &str, resources: &str) {
        let offer = self.offers(scheduler).pop().unwrap();
        self.launch(scheduler, &offer, id, resources);
    }

    /// Ends the stream of a framework.
    pub(super) fn lose_stream(&mut self, scheduler: &Scheduler) {
        let connection = scheduler.connection;
        self.input(Input::SchedulerGone { connection });
    }

    #[track_caller]
    pub(super) fn administer_done(&mut self, request: Administration) {
        assert_eq!(self.administer(request), Answer::Done);
    }

    /// The answer to an operator's request, once durable.
    pub(super) fn administer(&mut self, request: Administration) -> Answer {
        let reply = ReplyId(self.number());
        self.administer_as(reply, request);
        self.answers.remove(&reply).unwrap()
    }

    /// Sends an operator's request; the answer may come later.
    pub(super) fn administer_as(&mut self, reply: ReplyId, request: Administration) {
        let approver = self.caller.approver.clone();
        let administration = Box::new(request);
        let request = Request::Administer {
            administration,
            approver,
        };
        self.input(Input::Request { reply, request });
    }

    /// Sends a request that gets its answer at once.
    pub(super) fn ask(&mut self, request: Request) -> Answer {
        let reply = ReplyId(self.number());
        self.input(Input::Request { reply, request });
        self.answers.remove(&reply).unwrap()
    }

    pub(super) fn take_events(&mut self, connection: ConnectionId) -> Vec<Event> {
        let events = self.events.remove(&connection).unwrap_or_default();
        let answers = events.iter().filter(|event| is_answer(event)).count();
        if answers > 0 {
            // Reading makes room for more answers.
            self.input(Input::AnswersRead {
                connection,
                answers,
            });
        }
        events
    }

    /// The number of rescinded offers.
    pub(super) fn rescinded(&mut self, scheduler: &Scheduler) -> usize {
        let events = self.take_events(scheduler.connection).into_iter();
        events.filter(|event| event.rescind.is_some()).count()
    }

    pub(super) fn offers(&mut self, scheduler: &Scheduler) -> Vec<v1::Offer> {
        let events = self.take_events(scheduler.connection);
        offers_in(events)
    }

    pub(super) fn updates(&mut self, scheduler: &Scheduler) -> Vec<TaskStatus> {
        let events = self.take_events(scheduler.connection);
        events
            .into_iter()
            .filter_map(|event| event.update)
            .map(|update| update.status)
            .collect()
    }

    pub(super) fn acknowledge(&mut self, node: &Node, scheduler: &Scheduler, task: &str, uuid: u8) {
        let action = Action::Acknowledge {
            agent_id: node.id.clone(),
            task_id: task.to_owned(),
            uuid: [uuid; 16],
        };
        assert_eq!(self.call(scheduler, action), Answer::Accepted);
    }
}
