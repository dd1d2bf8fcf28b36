//! Messages to agents, schedulers and clients.
//!
//! [`Effects`](super::effect::Effects) marks each with the mutation that must be durable before the message leaves.

use meseta_proto::meseta::v1::{MasterFrame, master_frame};
use meseta_proto::mesos::v1::scheduler::Event;
use meseta_resources::{AgentId, FrameworkId};

use super::answer::Answer;
use super::effect::Output;
use super::ids::{ConnectionId, ReplyId};
use super::master::MasterCore;
use super::state::allocator_adapter::AllocatorError;

impl MasterCore {
    pub(super) fn reply(&mut self, reply: ReplyId, answer: Answer) {
        if let Answer::BadRequest(_)
        | Answer::Forbidden(_)
        | Answer::NotFound(_)
        | Answer::Conflict(_) = &answer
        {
            self.counters.rejected_calls += 1;
        }
        self.effects.emit(Output::Reply { reply, answer });
    }

    /// Sends an event to a framework; drops it if the framework is not connected.
    pub(super) fn event(&mut self, framework: &FrameworkId, event: Event) {
        let framework = self.frameworks.get_mut(framework);
        let connected = framework.and_then(|framework| Some((framework.connection()?, framework)));
        let Some((to, framework)) = connected else {
            self.counters.dropped_messages += 1;
            return;
        };
        framework.counters().event(event.r#type());
        self.send_event(to, event);
    }

    pub(super) fn event_to(&mut self, to: ConnectionId, event: Event) {
        let framework = self.schedulers.get(&to);
        if let Some(framework) = framework.and_then(|id| self.frameworks.get_mut(id)) {
            framework.counters().event(event.r#type());
        }
        self.send_event(to, event);
    }

    pub(super) fn send_event(&mut self, to: ConnectionId, event: Event) {
        self.effects.emit(Output::Event {
            to,
            event: Box::new(event),
        });
    }

    /// Sends a frame to an agent; returns whether the agent was connected.
    pub(super) fn frame(&mut self, agent: &AgentId, message: master_frame::Message) -> bool {
        let Some(to) = self.agents.get(agent).and_then(|agent| agent.connection) else {
            self.counters.dropped_messages += 1;
            return false;
        };
        self.frame_to(to, message);
        true
    }

    pub(super) fn frame_to(&mut self, to: ConnectionId, message: master_frame::Message) {
        let is_first = matches!(
            message,
            master_frame::Message::Registered(_)
                | master_frame::Message::Refused(_)
                | master_frame::Message::Shutdown(_)
        );
        let frame = MasterFrame {
            epoch: self.epochs.current(),
            cluster_id: self.epochs.cluster_id().filter(|_| is_first).cloned(),
            message: Some(message),
        };
        self.effects.emit(Output::Frame {
            to,
            frame: Box::new(frame),
        });
    }

    /// Records that the allocator refused a valid call: a defect, never a consequence of input.
    pub(super) fn agreed(&mut self, what: &'static str, result: Result<(), AllocatorError>) {
        if let Err(error) = result {
            self.counters.invariant_violations += 1;
            tracing::error!(%error, "the allocator disagrees: {what}");
        }
    }
}
