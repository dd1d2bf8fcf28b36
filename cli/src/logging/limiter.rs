//! The limit on log lines of the same cause, and the count of omitted lines.
//!
//! A cause is the place in the program that writes the line, and the client that the line is about, if the line names one.
//! Each client has a limit of its own, so that one client cannot silence the lines about others; all clients together have
//! a limit too, so that many clients cannot fill the disk. Invariant: every omitted line is counted and reported once. The
//! limiter reads no clock.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A burst of lines at once, and a rate per second in the long run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    burst: f64,
    per_second: f64,
}

/// The rate of lines from one place in the program: a burst has room for all agents of a cluster that return at once.
const PER_PLACE: Rate = Rate {
    burst: 500.0,
    per_second: 50.0,
};
/// The rate of lines from one place about one framework, principal or job.
const PER_CLIENT: Rate = Rate {
    burst: 100.0,
    per_second: 10.0,
};
/// The rate of audited changes of one principal: far above that of operators' scripts.
const PER_AUDITED: Rate = Rate {
    burst: 2000.0,
    per_second: 200.0,
};

/// Causes that are remembered. Beyond this number, lines about new clients count for their place alone.
const CAUSES_MAX: usize = 4096;

/// The time after which omitted lines are reported, even if no further line of their cause comes.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The cause of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cause {
    /// The place in the program.
    pub(super) place: u64,
    /// The client to which the line refers.
    pub(super) client: Option<u64>,
    /// Whether the line belongs to the audit log. Audit lines share no limit: no principal can silence another.
    pub(super) is_audit: bool,
}

/// Lines that were left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeftOut {
    pub(super) lines: u64,
    /// The message of these lines, which is a constant.
    pub(super) message: String,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    refilled: Instant,
    left_out: u64,
    left_out_since: Instant,
    message: String,
}

impl Bucket {
    fn new(rate: Rate, now: Instant) -> Self {
        Self {
            tokens: rate.burst,
            refilled: now,
            left_out: 0,
            left_out_since: now,
            message: String::new(),
        }
    }

    fn refill(&mut self, rate: Rate, now: Instant) {
        let passed = now.saturating_duration_since(self.refilled).as_secs_f64();
        self.tokens = rate.burst.min(self.tokens + passed * rate.per_second);
        self.refilled = now;
    }

    fn is_idle(&self, rate: Rate) -> bool {
        self.left_out == 0 && self.tokens >= rate.burst
    }
}

/// The limits of a log.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    places: HashMap<u64, Bucket>,
    clients: HashMap<Cause, Bucket>,
}

impl Limiter {
    /// Whether a line of this cause is written now. A suppressed line is counted for the next report.
    pub(super) fn admit(&mut self, now: Instant, cause: Cause, message: &str) -> bool {
        let rate = client_rate(cause);
        if self.clients.len() >= CAUSES_MAX && !self.clients.contains_key(&cause) {
            self.forget_idle(now);
        }
        let has_room = self.clients.len() < CAUSES_MAX;
        let client = match (cause.client, self.clients.get_mut(&cause)) {
            (None, _) => None,
            (Some(_), Some(known)) => Some(known),
            (Some(_), None) if has_room => Some(
                self.clients
                    .entry(cause)
                    .or_insert_with(|| Bucket::new(rate, now)),
            ),
            (Some(_), None) => None,
        };
        let place = (!cause.is_audit || client.is_none()).then(|| {
            let new = || Bucket::new(PER_PLACE, now);
            self.places.entry(cause.place).or_insert_with(new)
        });
        let mut buckets: Vec<(&mut Bucket, Rate)> = Vec::with_capacity(2);
        buckets.extend(client.map(|bucket| (bucket, rate)));
        let place_rate = if cause.is_audit {
            PER_AUDITED
        } else {
            PER_PLACE
        };
        buckets.extend(place.map(|bucket| (bucket, place_rate)));
        for (bucket, rate) in &mut buckets {
            bucket.refill(*rate, now);
        }
        if let Some((short, _)) = buckets.iter_mut().find(|(bucket, _)| bucket.tokens < 1.0) {
            if short.left_out == 0 {
                short.left_out_since = now;
                message.clone_into(&mut short.message);
            }
            short.left_out += 1;
            return false;
        }
        for (bucket, _) in &mut buckets {
            bucket.tokens -= 1.0;
        }
        true
    }

    /// Takes the unreported lines that were left out for [`REPORT_INTERVAL`], or at the end all of them.
    pub(super) fn take_left_out(&mut self, now: Instant, is_end: bool) -> Vec<LeftOut> {
        let is_due = |bucket: &Bucket| {
            let waited = now.saturating_duration_since(bucket.left_out_since);
            bucket.left_out > 0 && (is_end || waited >= REPORT_INTERVAL)
        };
        let buckets = self.places.values_mut().chain(self.clients.values_mut());
        let mut reports: Vec<LeftOut> = Vec::new();
        for bucket in buckets.filter(|bucket| is_due(bucket)) {
            let lines = std::mem::take(&mut bucket.left_out);
            let message = std::mem::take(&mut bucket.message);
            // One report covers all clients: the reports must not be a flood themselves.
            match reports.iter_mut().find(|report| report.message == message) {
                Some(report) => report.lines += lines,
                None => reports.push(LeftOut { lines, message }),
            }
        }
        reports
    }

    fn forget_idle(&mut self, now: Instant) {
        self.clients.retain(|cause, bucket| {
            let rate = client_rate(*cause);
            bucket.refill(rate, now);
            !bucket.is_idle(rate)
        });
    }
}

const fn client_rate(cause: Cause) -> Rate {
    if cause.is_audit {
        PER_AUDITED
    } else {
        PER_CLIENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Cause = Cause {
        place: 1,
        client: None,
        is_audit: false,
    };

    fn admitted(limiter: &mut Limiter, now: Instant, cause: Cause, lines: usize) -> usize {
        (0..lines)
            .filter(|_| limiter.admit(now, cause, "task failed"))
            .count()
    }

    #[test]
    fn floods_are_cut_and_counted() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        assert_eq!(admitted(&mut limiter, start, LINE, 10_000), 500);
        let later = start + Duration::from_secs(2);
        assert_eq!(admitted(&mut limiter, later, LINE, 10_000), 100);
        assert_eq!(limiter.take_left_out(later, false), [], "it is too early");
        let due = start + REPORT_INTERVAL;
        let report = LeftOut {
            lines: 20_000 - 600,
            message: "task failed".to_owned(),
        };
        assert_eq!(limiter.take_left_out(due, false), [report]);
        assert_eq!(limiter.take_left_out(due, true), [], "reported once");
        let other = Cause { place: 2, ..LINE };
        assert_eq!(admitted(&mut limiter, start, other, 10), 10);
    }

    #[test]
    fn clients_cannot_silence_each_other() {
        let (mut limiter, now) = (Limiter::default(), Instant::now());
        let of = |client| Cause {
            client: Some(client),
            ..LINE
        };
        assert_eq!(admitted(&mut limiter, now, of(1), 10_000), 100);
        assert_eq!(admitted(&mut limiter, now, of(2), 10), 10);
        // Clients that change their names share the limit of the place.
        let all = (3..10_000).map(|client| admitted(&mut limiter, now, of(client), 1));
        assert_eq!(all.sum::<usize>(), 500 - 110);
        assert!(limiter.clients.len() <= CAUSES_MAX);
        assert_eq!(limiter.take_left_out(now, true).len(), 1, "one report");
    }

    #[test]
    fn audit_lines_share_no_limit() {
        let (mut limiter, now) = (Limiter::default(), Instant::now());
        let of = |client| Cause {
            client,
            is_audit: true,
            ..LINE
        };
        assert_eq!(admitted(&mut limiter, now, of(Some(1)), 10_000), 2000);
        assert_eq!(admitted(&mut limiter, now, of(Some(2)), 2000), 2000);
        assert_eq!(admitted(&mut limiter, now, of(Some(3)), 2000), 2000);
        assert_eq!(limiter.take_left_out(now, true)[0].lines, 8000);
    }

    #[test]
    fn idle_causes_are_forgotten() {
        let (mut limiter, now) = (Limiter::default(), Instant::now());
        for client in 0..CAUSES_MAX as u64 {
            let client = Some(client);
            limiter.admit(now, Cause { client, ..LINE }, "m");
        }
        let later = now + Duration::from_secs(60);
        let client = Some(u64::MAX);
        assert!(limiter.admit(later, Cause { client, ..LINE }, "m"));
        assert!(limiter.clients.len() < 100, "{}", limiter.clients.len());
    }
}
