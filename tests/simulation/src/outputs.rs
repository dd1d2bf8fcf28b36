//! The effects of a master's outputs, and the messages of connections.

use meseta_agent::core::{Input as AgentInput, LinkId};
use meseta_daemon::authentication::Caller;
use meseta_master::core::{Input, Output};
use meseta_proto::meseta::v1::{MasterFrame, master_frame};
use meseta_proto::mesos::v1::scheduler::event;
use prost::Message as _;

use crate::agent::{Agent, FRAME_BYTES_MAX, Wanted};
use crate::checks::Broken;
use crate::cluster::Cluster;
use crate::names;
use crate::network::{Connection, ToAgent};

/// Events that may wait on a stream; a scheduler that is further behind loses the stream, as with the daemon's sinks.
const EVENTS_MAX: usize = 3_000;

/// Whether a running agent waits for the acceptance of its connection before it sends data.
fn waits_for_taking(agent: &Agent) -> bool {
    agent.is_up() && !agent.is_older
}

impl Cluster {
    pub(crate) fn carry_out(&mut self, master: u64, output: Output) {
        match output {
            Output::Event { to, event } => {
                self.story.count(("event", event.r#type().as_str_name()));
                if event.r#type() == event::Type::Subscribed
                    && self.thieves.contains(&(master, to.0))
                    && self.registry.rollbacks == 0
                {
                    let what = "a framework is given to one with another principal";
                    self.broken.push(Broken::new("I29", what));
                }
                let Some(at) = self.framework_on(master, to.0) else {
                    if let Some(copy) = self.copy_on(master, to.0) {
                        copy.events.push_back(event);
                    }
                    return;
                };
                self.frameworks[at].events.push_back(event);
                if self.frameworks[at].events.len() > EVENTS_MAX {
                    self.story
                        .note(("fault", "overflow"), [to.0, 0], || format!("stream {to}"));
                    self.cut_stream(at);
                }
            }
            Output::CloseScheduler { connection, .. } => {
                if let Some(at) = self.framework_on(master, connection.0) {
                    self.frameworks[at].close();
                } else if let Some(copy) = self.copy_on(master, connection.0) {
                    copy.is_closed = true;
                }
                let gone = Input::SchedulerGone { connection };
                self.step_master(master, gone);
            }
            Output::Frame { to, frame } => self.send_frame(to.0, frame),
            Output::CloseAgent { connection, .. } => {
                if let Some(connection) = self.network.connections.get_mut(&connection.0) {
                    connection.to_agent.push_back(ToAgent::End);
                    connection.is_broken = true;
                    connection.to_master.clear();
                    connection.to_master.push_back(None);
                }
            }
            Output::Reply { reply, answer } => self.answered(reply.0, answer),
            Output::OperationFinished { uuid, status, .. } => {
                self.story
                    .count(("operation of an operator", status.state().as_str_name()));
                self.operators.finished(uuid);
            }
            Output::OperationTaken { .. } | Output::OperatorEvent(_) => {}
        }
    }

    /// Returns the framework of a stream.
    fn framework_on(&self, master: u64, stream: u64) -> Option<usize> {
        let on = |one: &crate::framework::Framework| {
            one.stream
                .is_some_and(|at| at.master == master && at.id == stream)
        };
        self.frameworks.iter().position(on)
    }

    /// Returns the scheduler whose framework another one has taken over, by its stream.
    fn copy_on(&mut self, master: u64, stream: u64) -> Option<&mut crate::jobs::Copy> {
        let copies = self
            .frameworks
            .iter_mut()
            .filter_map(|one| one.copy.as_mut());
        let mut copies = copies.filter(|copy| copy.stream.master == master);
        copies.find(|copy| copy.stream.id == stream)
    }

    fn send_frame(&mut self, to: u64, frame: Box<MasterFrame>) {
        let name = names::of_master_frame(frame.message.as_ref());
        self.story.count(("frame to an agent", name));
        let Some(connection) = self.network.connections.get(&to) else {
            return;
        };
        let agent = connection.agent;
        let bytes = u64::try_from(frame.encoded_len()).unwrap_or(u64::MAX);
        if bytes > FRAME_BYTES_MAX[agent] {
            let what =
                format!("a frame {name} of {bytes} bytes is longer than agent {agent} takes");
            self.broken.push(Broken::new("I49", what));
        }
        if let Some(master_frame::Message::Registered(registered)) = &frame.message {
            self.check_admitted(to, agent, &registered.agent_id.value);
        }
        if let Some(connection) = self.network.connections.get_mut(&to)
            && !connection.is_broken
        {
            connection.to_agent.push_back(ToAgent::Frame(frame));
        }
    }

    /// Checks a registration: it is durable before the agent learns of it, so that the next master knows it too; no two
    /// agents have one id, and no agent marked gone is accepted again.
    fn check_admitted(&mut self, connection: u64, agent: usize, id: &str) {
        self.agent_ids.insert(connection, id.to_owned());
        // Its next pong says how its disk is.
        for master in &mut self.masters {
            master.silent_disks.remove(id);
        }
        let leads = self.network.connections.get(&connection);
        let leads = leads.is_some_and(|one| self.registry.is_led_by(one.master));
        if leads && !self.registry.has_agent(id) {
            let what = format!("agent {id} is registered before that is durable");
            self.broken.push(Broken::new("I42", what));
        }
        if leads && self.registry.gone.contains(id) {
            let what = format!("agent {id} was marked gone and is registered");
            self.broken.push(Broken::new("I42", what));
        }
        let life = (agent, self.replaced[agent]);
        let owner = *self.id_owners.entry(id.to_owned()).or_insert(life);
        if owner != life && self.registry.rollbacks == 0 {
            let what = format!("agents {} and {agent} both have the id {id}", owner.0);
            self.broken.push(Broken::new("I38", what));
        }
    }

    /// Delivers data on a connection.
    pub(crate) fn deliver(&mut self) {
        let (masters, agents) = (&self.masters, &self.agents);
        let hears = |one: &Connection, at_master: bool| match at_master {
            true => masters
                .iter()
                .any(|master| master.number == one.master && master.paused.is_none()),
            false => agents[one.agent].is_up(),
        };
        let ready = self.network.ready(hears);
        if ready.is_empty() {
            return;
        }
        let (id, to_master) = ready[self.rng.usize(..ready.len())];
        match to_master {
            true => self.deliver_to_master(id),
            false => self.deliver_to_agent(id),
        }
    }

    fn deliver_to_master(&mut self, id: u64) {
        let Some(connection) = self.network.connections.get_mut(&id) else {
            return;
        };
        let master = connection.master;
        if !connection.is_taken {
            return self.take_connection(id, master);
        }
        let Some(message) = connection.to_master.pop_front() else {
            return;
        };
        let name = message
            .as_ref()
            .map_or("end", |one| names::of_agent_frame(one));
        self.story
            .note(("frame to a master", name), [id, master], || {
                format!("on {id} to master {master}: {message:?}")
            });
        if let Some(message) = &message {
            self.note_heard(master, id, message);
        }
        let connection = Self::connection(id);
        self.step_master(
            master,
            match message {
                Some(message) => Input::AgentFrame {
                    connection,
                    message,
                },
                None => Input::AgentGone { connection },
            },
        );
    }

    /// Accepts a connection at a master, and sends the agent the master's epoch.
    fn take_connection(&mut self, id: u64, number: u64) {
        let Some(master) = self.master(number) else {
            return;
        };
        let connection = Self::connection(id);
        let led = master.core.agent_connected(connection, Caller::default());
        if let Some(connection) = self.network.connections.get_mut(&id) {
            connection.is_taken = true;
            let name = match connection.is_broken {
                true => "taken late",
                false => "taken",
            };
            self.story.note(("network", name), [id, number], || {
                format!("master {number} takes connection {id}: {name}")
            });
            // An older agent does not wait for this, and may have sent its messages.
            if !connection.is_broken && !self.agents[connection.agent].is_older {
                connection.to_agent.push_back(ToAgent::Taken(led));
            }
        }
    }

    fn deliver_to_agent(&mut self, id: u64) {
        let Some(connection) = self.network.connections.get_mut(&id) else {
            return;
        };
        let (at, link) = (connection.agent, connection.link);
        let Some(arrived) = connection.to_agent.pop_front() else {
            return;
        };
        let name = match &arrived {
            ToAgent::Taken(_) => "taken",
            ToAgent::Frame(frame) => names::of_master_frame(frame.message.as_ref()),
            ToAgent::End => "end",
        };
        self.story
            .note(("frame arrives", name), [id, at as u64], || {
                format!("on {id} to agent {at}: {arrived:?}")
            });
        match arrived {
            ToAgent::Taken(led) => {
                let epoch = led.epoch;
                let led = Some(led);
                let time = self.time;
                self.agents[at].step(time, AgentInput::LinkUp { link, led });
                self.note_epoch(at, epoch);
            }
            ToAgent::Frame(frame) => self.frame_arrives(at, link, frame),
            ToAgent::End => {
                let reason = "cut".to_owned();
                let time = self.time;
                self.agents[at].step(time, AgentInput::LinkDown { link, reason });
            }
        }
    }

    fn frame_arrives(&mut self, at: usize, link: LinkId, frame: Box<MasterFrame>) {
        let time = self.time;
        let agent = &mut self.agents[at];
        let epoch = frame.epoch;
        let stale = epoch < agent.highest_epoch;
        let launches = matches!(
            frame.message,
            Some(
                master_frame::Message::RunTask(_)
                    | master_frame::Message::RunTaskGroup(_)
                    | master_frame::Message::KillTask(_)
                    | master_frame::Message::ApplyOperation(_)
            )
        );
        let writes = agent.disk.waiting();
        agent.step(
            time,
            AgentInput::Frame {
                link,
                frame,
                charge: None,
            },
        );
        if stale && launches && agent.disk.waiting() > writes {
            let what = format!(
                "agent {at} obeys epoch {epoch} after {}",
                agent.highest_epoch
            );
            self.broken.push(Broken::new("I41", what));
        }
        self.note_epoch(at, epoch);
    }

    /// Notes the epoch only if the agent accepted it: an agent ignores frames on an old connection.
    fn note_epoch(&mut self, at: usize, epoch: u64) {
        let agent = &mut self.agents[at];
        if epoch > agent.highest_epoch && agent.core.snapshot().master_epoch == Some(epoch) {
            agent.highest_epoch = epoch;
        }
    }

    /// Makes agents give up connections that no master has accepted for long.
    pub(crate) fn give_connections_up(&mut self) {
        let time = self.time;
        let agents = &self.agents;
        let waiting = self.network.connections.iter_mut();
        let late = waiting.filter(|(_, one)| {
            let is_late = one.deadline().is_some_and(|at| at <= time);
            is_late && waits_for_taking(&agents[one.agent])
        });
        for (id, one) in late {
            one.end();
            let of = [*id, one.agent as u64];
            self.story.note(("network", "given up"), of, || {
                format!("agent {} gives connection {id} up", one.agent)
            });
        }
    }

    /// Returns the time when the next agent gives up.
    pub(crate) fn next_giving_up(&self) -> Option<u64> {
        let connections = self.network.connections.values();
        let waiting = connections.filter(|one| waits_for_taking(&self.agents[one.agent]));
        waiting.filter_map(Connection::deadline).min()
    }

    /// Executes the agents' requests to the network.
    pub(crate) fn carry(&mut self) {
        for number in 0..self.agents.len() {
            while !self.agents[number].wanted.is_empty() {
                let wanted = std::mem::take(&mut self.agents[number].wanted);
                for one in wanted {
                    self.carry_one(number, one);
                }
            }
        }
    }

    fn carry_one(&mut self, agent: usize, wanted: Wanted) {
        match wanted {
            Wanted::Connect(link) => {
                let id = self.number();
                // A search for the leader may find the previous one.
                let at = match self.rng.u32(..8) {
                    0 => 0,
                    _ => self.masters.len() - 1,
                };
                let master = self.masters[at].number;
                self.story
                    .note(("network", "connect"), [id, agent as u64], || {
                        format!("agent {agent} connects on {id} to master {master}")
                    });
                let time = self.time;
                let connection = Connection::new(agent, link, master, time);
                self.network.connections.insert(id, connection);
                if self.agents[agent].is_older {
                    let up = AgentInput::LinkUp { link, led: None };
                    self.agents[agent].step(time, up);
                }
            }
            Wanted::Disconnect(link) => {
                if let Some(connection) = self.network.of_link(agent, link) {
                    connection.to_agent.clear();
                    connection.to_master.push_back(None);
                    connection.is_stalled = [false; 2];
                    connection.is_broken = true;
                }
            }
            Wanted::Send(link, message) => {
                let name = names::of_agent_frame(&message);
                self.story.count(("frame of an agent", name));
                self.note_success(&message);
                if let Some(connection) = self.network.of_link(agent, link)
                    && !connection.is_broken
                {
                    connection.to_master.push_back(Some(message));
                }
            }
        }
    }
}
