//! The effects of the work directory's disk on the agent's decisions: accepting tasks, answering the master.
//!
//! While the disk is silent, the agent accepts no task, and each pong reports this, so that the master makes no offers
//! of this agent. After [`super::Options::disk_timeout`] the agent stops answering the master, which then marks it
//! unreachable like any silent agent. Kills continue all the time (`kill.rs`). Invariant: once the disk answers, all of
//! this ends automatically.

use meseta_proto::meseta::v1::{self as wire, agent_frame};
use tracing::{error, info};

use super::{Agent, State, Step, Timer};
use crate::checkpoint::DiskCondition;

impl Agent {
    pub(super) fn disk_changed(&mut self, step: &mut Step<'_>, condition: DiskCondition) {
        let before = std::mem::replace(&mut self.disk, condition);
        match (before, condition) {
            (DiskCondition::Silent, DiskCondition::Silent) => {}
            (_, DiskCondition::Silent) => {
                error!(
                    "the disk of the work directory does not answer: the agent takes no tasks, and reports ended tasks after the disk answers again; kills continue"
                );
                if let Some(timeout) = step.options.disk_timeout {
                    step.set_timer(step.now.moment + timeout, Timer::DiskTimeout);
                }
                self.tell_disk(step);
            }
            (DiskCondition::Silent, _) => {
                info!("the disk of the work directory answers again");
                step.remove_timer(&Timer::DiskTimeout);
                if std::mem::take(&mut self.given_up_for_disk) {
                    self.connect_due(step, self.link.id);
                }
                self.tell_disk(step);
            }
            _ => {}
        }
    }

    pub(super) fn disk_timed_out(&mut self) {
        if self.disk == DiskCondition::Silent {
            error!(
                "the disk has not answered for --disk_timeout: the master is answered no more, and marks this agent \
                 unreachable"
            );
            self.given_up_for_disk = true;
        }
    }

    /// Tells a master that has just taken the agent, and knows nothing of its disk, that the disk does not answer.
    pub(super) fn tell_silent_disk(&mut self, step: &mut Step<'_>) {
        if self.disk == DiskCondition::Silent {
            self.tell_disk(step);
        }
    }

    /// Tells the master how the disk is before its next ping, in an answer to no ping.
    fn tell_disk(&mut self, step: &mut Step<'_>) {
        if self.state == State::Running
            && let Some(pong) = self.pong(0)
        {
            step.send_now(agent_frame::Message::Pong(pong));
        }
    }

    /// The answer to a ping; `None` if the agent no longer answers.
    pub(super) fn pong(&self, sequence: u64) -> Option<wire::Pong> {
        (!self.given_up_for_disk).then(|| wire::Pong {
            sequence,
            // Set when the pong is sent.
            usage: None,
            disk_silent: (self.disk == DiskCondition::Silent).then_some(true),
        })
    }

    /// Whether the agent does not answer the master because of its disk.
    pub(super) fn is_given_up_for_disk(&self) -> bool {
        self.given_up_for_disk
    }
}
