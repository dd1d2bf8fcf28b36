//! Extends deadlines after the agent's process was paused: stopped by a signal, frozen with its machine, or starved of
//! the processor.
//!
//! What others did meanwhile waits unread in sockets and pipes, so that no peer may miss a deadline
//! that passed then. Invariant: after a pause every peer keeps the rest of its time, and [`CATCH_UP_TIME`]
//! at least; only what a task was promised by the clock of the wall goes on as if nothing had been.

use std::time::Duration;

use meseta_resources::Now;
use tracing::warn;

use super::{AgentCore, Timer};

/// Time to read what came meanwhile.
pub(super) const CATCH_UP_TIME: Duration = Duration::from_secs(5);

impl AgentCore {
    pub(super) fn paused(&mut self, now: Now, lasted: Duration) {
        warn!(
            lasted_s = lasted.as_secs_f64(),
            "the agent's process was paused; deadlines of others are extended"
        );
        self.extend_deadlines(now, lasted, Timer::waits_for_others);
    }

    /// The agent hears nobody because too much waits for its disk. Those who are not heard have more time; kills, which
    /// do not wait for the disk, have not.
    pub(super) fn held_up(&mut self, now: Now, lasted: Duration) {
        let waits = |timer: &Timer| timer.waits_for_others() && !timer.ends_a_container();
        self.extend_deadlines(now, lasted, waits);
    }

    fn extend_deadlines(&mut self, now: Now, lasted: Duration, waits: impl Fn(&Timer) -> bool) {
        let least = now.moment + CATCH_UP_TIME;
        self.timers.extend(lasted, least, waits);
        self.link.last_ping = (self.link.last_ping + lasted).min(now.moment);
        self.epochs.paused(now.moment, lasted);
        self.probes_paused = self.probes;
    }
}
