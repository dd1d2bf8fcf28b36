//! Simulated agents: registration, reports, and answers to pings.

use super::*;

impl World {
    /// Applies an input without checking invariants, for a state in which tables may disagree.
    pub(super) fn input_unchecked_on(&mut self, connection: ConnectionId, message: AgentMessage) {
        let message = Box::new(message);
        self.carry_out(Input::AgentFrame {
            connection,
            message,
        });
        for (lsn, mutation) in std::mem::take(&mut self.unwritten) {
            self.registry.apply(mutation);
            self.carry_out(Input::Persisted { lsn });
        }
    }

    /// A new master, and an agent.
    pub(super) fn with_agent(resources: &str) -> (Self, Node) {
        let mut world = Self::new();
        let node = world.agent(5051, resources);
        (world, node)
    }

    pub(super) fn agent(&mut self, port: i32, resources: &str) -> Node {
        self.agent_that_says(register(port, resources))
    }

    pub(super) fn agent_that_says(&mut self, register: meseta::Register) -> Node {
        let connection = self.handshake(AgentMessage::Register(register.clone()));
        let id = self.registered(connection).agent_id.value;
        Node {
            connection,
            id,
            register,
        }
    }

    pub(super) fn handshake(&mut self, message: AgentMessage) -> ConnectionId {
        let connection = ConnectionId(self.number());
        self.say_on(connection, message);
        connection
    }

    pub(super) fn registered(&mut self, connection: ConnectionId) -> meseta::Registered {
        let frames = self.take_frames(connection);
        let registered = frames.into_iter().find_map(|frame| match frame {
            MasterMessage::Registered(registered) => Some(registered),
            _ => None,
        });
        registered.expect("the agent was not registered")
    }

    /// Ends the stream of an agent.
    pub(super) fn lose_agent(&mut self, node: &Node) {
        let connection = node.connection;
        self.input(Input::AgentGone { connection });
    }

    pub(super) fn say(&mut self, node: &Node, message: AgentMessage) {
        self.say_on(node.connection, message);
    }

    pub(super) fn say_on(&mut self, connection: ConnectionId, message: AgentMessage) {
        self.input(Input::AgentFrame {
            connection,
            message: Box::new(message),
        });
    }

    pub(super) fn take_frames(&mut self, connection: ConnectionId) -> Vec<MasterMessage> {
        self.frames.remove(&connection).unwrap_or_default()
    }

    /// Reregisters the agent on a new connection with these tasks.
    pub(super) fn reregister(
        &mut self,
        node: &Node,
        tasks: Vec<v1::Task>,
        frameworks: Vec<v1::FrameworkInfo>,
    ) -> Node {
        let connection = self.handshake(AgentMessage::Reregister(report(node, tasks, frameworks)));
        Node {
            connection,
            ..node.clone()
        }
    }

    /// The number of unreachable agents.
    pub(super) fn lost(&mut self) -> usize {
        self.core.snapshot().unreachable_agents.len()
    }

    pub(super) fn return_empty(&mut self, node: &Node) -> Node {
        self.reregister(node, Vec::new(), Vec::new())
    }

    /// Reregisters the agent with the running task `t`.
    pub(super) fn return_running(
        &mut self,
        node: &Node,
        scheduler: &Scheduler,
        frameworks: Vec<v1::FrameworkInfo>,
    ) -> Node {
        let task = running(node, scheduler, "t", "cpus:1;mem:64", "dev");
        self.reregister(node, vec![task], frameworks)
    }

    /// Sends a task state from the agent, with a uuid made of the number.
    pub(super) fn update(
        &mut self,
        node: &Node,
        scheduler: &Scheduler,
        task: &str,
        state: TaskState,
        uuid: u8,
    ) {
        let status = TaskStatus {
            task_id: task_id(task),
            state: state.into(),
            uuid: Some(vec![uuid; 16]),
            timestamp: Some(self.now.unix.as_secs_f64()),
            ..TaskStatus::default()
        };
        self.say(
            node,
            AgentMessage::StatusUpdate(meseta::StatusUpdate {
                framework_id: framework_id(&scheduler.id),
                status,
                latest_state: Some(state.into()),
            }),
        );
    }

    pub(super) fn tell_status(
        &mut self,
        node: &Node,
        scheduler: &Scheduler,
        status: TaskStatus,
        latest_state: Option<i32>,
    ) {
        let framework_id = framework_id(&scheduler.id);
        let update = meseta::StatusUpdate {
            framework_id,
            status,
            latest_state,
        };
        self.say(node, AgentMessage::StatusUpdate(update));
    }

    /// Ends the executor `e`.
    pub(super) fn executor_exits(&mut self, node: &Node, scheduler: &Scheduler, status: i32) {
        let exited = meseta::ExecutorExited {
            framework_id: framework_id(&scheduler.id),
            executor_id: executor_id("e"),
            status: Some(status),
        };
        self.say(node, AgentMessage::ExecutorExited(exited));
    }

    pub(super) fn unregister(&mut self, node: &Node) {
        let unregister = meseta::Unregister::default();
        self.say(node, AgentMessage::Unregister(unregister));
    }

    pub(super) fn pong(&mut self, node: &Node) {
        for frame in self.take_frames(node.connection) {
            if let MasterMessage::Ping(ping) = frame {
                let sequence = ping.sequence;
                self.say(
                    node,
                    AgentMessage::Pong(meseta::Pong {
                        sequence,
                        ..meseta::Pong::default()
                    }),
                );
            }
        }
    }

    /// Advances the time with these agents answering.
    pub(super) fn live(&mut self, time: Duration, nodes: &[&Node]) {
        let end = self.now.moment + time;
        while self.now.moment < end {
            self.advance(SECOND);
            for node in nodes {
                self.pong(node);
            }
        }
    }
}
