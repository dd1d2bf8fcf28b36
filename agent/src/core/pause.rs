//! Extends deadlines after a pause of the agent's process: stopped by a signal, frozen with its machine, or without CPU
//! time.
//!
//! Messages sent by others during the pause wait unread in sockets and pipes, so that no peer may miss a deadline that
//! passed then. Invariant: after a pause every peer keeps the rest of its time, and at least [`CATCH_UP_TIME`]; only
//! deadlines that tasks set by the wall clock continue unchanged.

use std::time::Duration;

use tracing::warn;

use super::{Agent, Step, Timer};

/// The time to read the messages that arrived during the pause.
pub(super) const CATCH_UP_TIME: Duration = Duration::from_secs(5);

impl Agent {
    pub(super) fn paused(&mut self, step: &mut Step<'_>, lasted: Duration) {
        warn!(
            lasted_s = lasted.as_secs_f64(),
            "the agent's process was paused; deadlines of others are extended"
        );
        self.extend_deadlines(step, lasted, Timer::waits_for_others);
    }

    /// Extends deadlines after a time without inputs, because too many writes were waiting for the disk. Peers that the
    /// agent did not hear get more time; kills do not wait for the disk and get none.
    pub(super) fn held_up(&mut self, step: &mut Step<'_>, lasted: Duration) {
        let waits = |timer: &Timer| timer.waits_for_others() && !timer.ends_a_container();
        self.extend_deadlines(step, lasted, waits);
    }

    fn extend_deadlines(
        &mut self,
        step: &mut Step<'_>,
        lasted: Duration,
        waits: impl Fn(&Timer) -> bool,
    ) {
        let least = step.now.moment + CATCH_UP_TIME;
        step.extend_timers(lasted, least, waits);
        self.registration.extend_deadlines(step.now.moment, lasted);
        self.probes_paused = self.probes;
    }
}
