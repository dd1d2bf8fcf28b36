//! Messages to very many receivers, sent in portions.
//!
//! Entered when a framework's info changes, when an agent is lost, and at each allocation tick. Invariant: a small
//! message goes out at once; in one step no receiver gets more than its queue can hold.

use meseta_proto::meseta::v1::{self as meseta, master_frame};
use meseta_proto::mesos::v1::scheduler::event;
use meseta_resources::{AgentId, FrameworkId};
use prost::Message as _;

use super::master::MasterCore;
use super::wire::event_of;

/// The bytes sent for one framework before the next framework's turn; at least one info.
const INFO_TURN_BYTES: usize = 64 * 1024;
/// The number of frameworks skipped in a row; the next call, or tick, tries the others.
const PASSED_OVER_MAX: usize = 64;

impl MasterCore {
    /// Sends the framework's info to the agents that run its tasks or executors. For them the info is a sign of life:
    /// they repeat their waiting updates.
    pub(super) fn broadcast_info(&mut self, id: &FrameworkId) {
        let agents = self.agents_of(id);
        self.paced_messages.add_info(id, agents);
        self.tell_infos();
    }

    /// Sends infos of the frameworks in turn, equally many bytes each, as long as there is room. Skips an info that
    /// does not fit, up to [`PASSED_OVER_MAX`] in a row.
    fn tell_infos(&mut self) {
        let mut passed_over = 0;
        while passed_over < self.paced_messages.infos_len().min(PASSED_OVER_MAX) {
            let Some(mut receivers) = self.paced_messages.next_info() else {
                return;
            };
            let Some(framework) = self.frameworks.get(&receivers.framework) else {
                continue;
            };
            let info = framework.terms.info.clone();
            let bytes = info.encoded_len().max(1);
            let mut told = 0;
            while told < INFO_TURN_BYTES
                && !receivers.agents.is_empty()
                && self.paced_messages.take_info(bytes, &self.config.memory)
                && let Some(agent) = receivers.agents.pop_front()
            {
                told += bytes;
                let framework = (*info).clone();
                let message = meseta::UpdateFramework { framework };
                self.frame(&agent, master_frame::Message::UpdateFramework(message));
            }
            passed_over = if told == 0 { passed_over + 1 } else { 0 };
            self.paced_messages.put_back_info(receivers);
        }
    }

    /// Sends every scheduler the FAILURE event of a lost agent.
    pub(super) fn agent_failure(&mut self, id: &AgentId) {
        self.paced_messages.add_failure(id.clone());
        self.tell_failures();
    }

    fn tell_failures(&mut self) {
        let schedulers = self.schedulers.len();
        while let Some(agent) = self
            .paced_messages
            .take_failure(schedulers, &self.config.memory)
        {
            let frameworks: Vec<FrameworkId> = self.schedulers.values().cloned().collect();
            for framework in frameworks {
                let mut event = event_of(event::Type::Failure);
                event.failure = Some(event::Failure {
                    agent_id: Some((&agent).into()),
                    ..event::Failure::default()
                });
                self.event(&framework, event);
            }
        }
    }

    /// Continues with the queued messages.
    pub(super) fn tell_more(&mut self) {
        self.paced_messages.refill(&self.config.memory);
        self.tell_infos();
        self.tell_failures();
    }
}
