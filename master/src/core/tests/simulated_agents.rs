//! Agents, played: how they come, what they tell, and that they answer pings.

use super::*;

impl World {
    /// For what the books need not agree about while it lasts.
    pub(super) fn input_unchecked_on(
        &mut self,
        connection: ConnectionId,
        message: agent_frame::Message,
    ) {
        let message = Box::new(message);
        self.carry_out(Input::AgentFrame {
            connection,
            message,
        });
        for (lsn, mutation) in std::mem::take(&mut self.unwritten) {
            self.apply(mutation);
            self.carry_out(Input::Persisted { lsn });
        }
    }

    pub(super) fn agent(&mut self, port: i32, resources: &str) -> Node {
        self.agent_that_says(register(port, resources))
    }

    pub(super) fn agent_that_says(&mut self, register: meseta::Register) -> Node {
        let connection = self.handshake(agent_frame::Message::Register(register.clone()));
        let id = self.registered(connection).agent_id.value;
        Node {
            connection,
            id,
            register,
        }
    }

    pub(super) fn handshake(&mut self, message: agent_frame::Message) -> ConnectionId {
        let connection = ConnectionId(self.number());
        self.say_on(connection, message);
        connection
    }

    pub(super) fn registered(&mut self, connection: ConnectionId) -> meseta::Registered {
        let frames = self.take_frames(connection);
        let registered = frames.into_iter().find_map(|frame| match frame {
            master_frame::Message::Registered(registered) => Some(registered),
            _ => None,
        });
        registered.expect("the agent was not registered")
    }

    pub(super) fn say(&mut self, node: &Node, message: agent_frame::Message) {
        self.say_on(node.connection, message);
    }

    pub(super) fn say_on(&mut self, connection: ConnectionId, message: agent_frame::Message) {
        self.input(Input::AgentFrame {
            connection,
            message: Box::new(message),
        });
    }

    pub(super) fn take_frames(&mut self, connection: ConnectionId) -> Vec<master_frame::Message> {
        self.frames.remove(&connection).unwrap_or_default()
    }

    /// The agent comes back on a new connection with these tasks.
    pub(super) fn reregister(
        &mut self,
        node: &Node,
        tasks: Vec<v1::Task>,
        frameworks: Vec<v1::FrameworkInfo>,
    ) -> Node {
        let connection = self.handshake(agent_frame::Message::Reregister(report(
            node, tasks, frameworks,
        )));
        Node {
            connection,
            ..node.clone()
        }
    }

    /// Says that a task is in a state, with a uuid made of the number.
    pub(super) fn update(
        &mut self,
        node: &Node,
        scheduler: &Scheduler,
        task: &str,
        state: TaskState,
        uuid: u8,
    ) {
        let status = TaskStatus {
            task_id: v1::TaskId {
                value: task.to_owned(),
            },
            state: state.into(),
            uuid: Some(vec![uuid; 16]),
            timestamp: Some(self.now.unix.as_secs_f64()),
            ..TaskStatus::default()
        };
        self.say(
            node,
            agent_frame::Message::StatusUpdate(meseta::StatusUpdate {
                framework_id: v1::FrameworkId {
                    value: scheduler.id.clone(),
                },
                status,
                latest_state: Some(state.into()),
            }),
        );
    }

    pub(super) fn pong(&mut self, node: &Node) {
        for frame in self.take_frames(node.connection) {
            if let master_frame::Message::Ping(ping) = frame {
                let sequence = ping.sequence;
                self.say(node, agent_frame::Message::Pong(meseta::Pong { sequence }));
            }
        }
    }

    /// Lets time pass with these agents answering.
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
