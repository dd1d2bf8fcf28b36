//! The choice of the next master to contact, and its time: for clients that stay with the leader.
//!
//! A state machine without I/O: the caller connects to the master of [`MasterSearch::next_attempt`] after its pause, and
//! reports a failure to [`MasterSearch::failed`]. A follower names the leader in the metadata of its refusal, and the search
//! tries this master next, without a pause. Invariant: the search tries a master a second time only after a pause or a
//! redirect, and it follows at most as many redirects without a pause as there are masters.

use std::time::Duration;

use meseta_resources::HostPort;
use tonic::{Code, Status};

/// The metadata key of a gRPC status in which a follower names the leader.
pub const LEADER: &str = "meseta-leader";

/// The maximum number of masters in a list; a cluster has three or five.
pub const MASTERS_MAX: usize = 64;

/// The first pause between rounds.
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// The longest pause: a new leader is there within ten seconds.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The address of the leader that a refused call names, if it is valid.
#[must_use]
pub fn named_leader(status: &Status) -> Option<&str> {
    let leader = status.metadata().get(LEADER)?.to_str().ok()?;
    is_host_port(leader).then_some(leader)
}

/// Returns whether the text is a host, by name or address, and a port above 0.
#[must_use]
pub fn is_host_port(text: &str) -> bool {
    text.parse::<HostPort>().is_ok()
}

/// Pauses that double, each between half of its length and its full length, so that clients do not retry together.
#[derive(Clone, Debug)]
pub struct Backoff {
    pauses: u32,
    random: fastrand::Rng,
}

impl Backoff {
    /// Pauses from this seed; each client needs its own.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            pauses: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// The next pause: from 125 to 250 ms at first, from 2.5 to 5 s at last.
    pub fn next_pause(&mut self) -> Duration {
        let longest = PAUSE_MIN
            .saturating_mul(1 << self.pauses.min(16))
            .min(PAUSE_MAX);
        self.pauses = self.pauses.saturating_add(1);
        longest * self.random.u32(500..=1_000) / 1_000
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.pauses = 0;
    }
}

/// Errors in a list of masters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    #[error("{0:?} is not host:port (for example 10.0.0.1:5050)")]
    Malformed(String),
    #[error("a list of {0} masters is longer than {MASTERS_MAX}")]
    TooLong(usize),
}

/// The next master to try, and the pause before the attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The host and port of the master.
    pub master: String,
    /// The time to wait first.
    pub pause: Duration,
}

/// The search for the leading master.
#[derive(Clone, Debug)]
pub struct MasterSearch {
    masters: Vec<String>,
    /// The position in the list of the next master.
    next: usize,
    /// The leader that the last tried master named.
    named: Option<String>,
    /// The number of redirects followed since the last pause.
    followed: usize,
    /// The number of masters of the list tried since the last pause.
    asked: usize,
    backoff: Backoff,
}

impl MasterSearch {
    /// Parses a comma-separated list of masters.
    pub fn parse(list: &str, seed: u64) -> Result<Self, ListError> {
        let masters: Vec<_> = list.split(',').map(|one| one.trim().to_owned()).collect();
        if masters.len() > MASTERS_MAX {
            return Err(ListError::TooLong(masters.len()));
        }
        match masters.iter().find(|one| !is_host_port(one)) {
            Some(malformed) => Err(ListError::Malformed(malformed.clone())),
            None => Ok(Self {
                masters,
                next: 0,
                named: None,
                followed: 0,
                asked: 0,
                backoff: Backoff::new(seed),
            }),
        }
    }

    /// The next master to try: the named leader, or the next of the list; after a whole round there is a pause.
    pub fn next_attempt(&mut self) -> Attempt {
        if let Some(master) = self.named.take() {
            self.followed += 1;
            let pause = match self.followed > self.masters.len() {
                true => self.pause(),
                false => Duration::ZERO,
            };
            return Attempt { master, pause };
        }
        let pause = match self.asked == self.masters.len() {
            true => self.pause(),
            false => Duration::ZERO,
        };
        self.asked += 1;
        let master = self.masters.get(self.next).cloned().unwrap_or_default();
        self.next = (self.next + 1) % self.masters.len().max(1);
        Attempt { master, pause }
    }

    /// Reports that the master refused the call or was unreachable. Returns whether another attempt can help: a call refused by a
    /// leader would be refused again.
    pub fn failed(&mut self, status: &Status) -> bool {
        self.named = named_leader(status).map(str::to_owned);
        self.named.is_some() || status.code() == Code::Unavailable
    }

    /// Reports that this master leads. After it is lost, the search begins with this master.
    pub fn succeeded(&mut self, master: &str) {
        if let Some(place) = self.masters.iter().position(|one| one == master) {
            self.next = place;
        }
        self.named = None;
        (self.followed, self.asked) = (0, 0);
        self.backoff.reset();
    }

    fn pause(&mut self) -> Duration {
        (self.followed, self.asked) = (0, 0);
        self.backoff.next_pause()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follows(leader: &str) -> Status {
        let mut status = Status::unavailable(format!("{leader} leads"));
        let leader = leader.parse().expect("metadata");
        status.metadata_mut().insert(LEADER, leader);
        status
    }

    fn search() -> MasterSearch {
        MasterSearch::parse("a:1, b:1,c:1", 7).expect("a list")
    }

    #[test]
    fn a_follower_is_believed_at_once() {
        let mut search = search();
        assert_eq!(search.next_attempt().master, "a:1");
        assert!(search.failed(&follows("d:1")));
        let attempt = search.next_attempt();
        assert_eq!(
            (attempt.master.as_str(), attempt.pause),
            ("d:1", Duration::ZERO)
        );
        search.succeeded("d:1");
        assert_eq!(search.next_attempt().master, "b:1");
    }

    #[test]
    fn every_master_is_tried_before_pausing() {
        let mut search = search();
        for round in 0..4 {
            for (place, master) in ["a:1", "b:1", "c:1"].into_iter().enumerate() {
                let attempt = search.next_attempt();
                assert_eq!(attempt.master, master);
                let is_pause = attempt.pause > Duration::ZERO;
                assert_eq!(is_pause, round > 0 && place == 0, "{round} {place}");
                assert!(search.failed(&Status::unavailable("nobody leads")));
            }
        }
        assert!(!search.failed(&Status::invalid_argument("no name")));
    }

    #[test]
    fn circular_redirects_lead_to_a_pause() {
        let mut search = search();
        let mut paused = 0;
        for number in 0..100 {
            let attempt = search.next_attempt();
            paused += usize::from(attempt.pause > Duration::ZERO);
            search.failed(&follows(["a:1", "b:1"][number % 2]));
        }
        assert!(paused >= 20, "{paused}");
    }

    #[test]
    fn a_lost_leader_is_asked_first() {
        let mut search = search();
        search.next_attempt();
        search.next_attempt();
        search.succeeded("b:1");
        let attempt = search.next_attempt();
        assert_eq!(
            (attempt.master.as_str(), attempt.pause),
            ("b:1", Duration::ZERO)
        );
    }

    #[test]
    fn pauses_double_and_vary_by_client() {
        let pauses = |seed| {
            let mut backoff = Backoff::new(seed);
            (0..12).map(|_| backoff.next_pause()).collect::<Vec<_>>()
        };
        for (number, pause) in pauses(1).into_iter().enumerate() {
            let longest = (PAUSE_MIN * (1 << number)).min(PAUSE_MAX);
            assert!(pause <= longest && pause >= longest / 2, "{pause:?}");
        }
        assert_ne!(pauses(1), pauses(2));
    }

    #[test]
    fn malformed_addresses_are_refused() {
        for bad in ["", "host", "a:1,", "a:1,b", "zk://a:1/x", "a b:1", "a:0"] {
            let refused = MasterSearch::parse(bad, 0);
            assert!(matches!(refused, Err(ListError::Malformed(_))), "{bad}");
        }
        let long = vec!["a:1"; MASTERS_MAX + 1].join(",");
        assert!(matches!(
            MasterSearch::parse(&long, 0),
            Err(ListError::TooLong(_))
        ));
        assert_eq!(named_leader(&follows("x$(id):5050")), None);
    }
}
