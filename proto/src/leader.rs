//! Which of several masters to ask, and when: for clients that keep to the one that leads.
//!
//! A state machine without I/O: the caller connects to what [`MasterSearch::next_attempt`] gives, after its pause, and
//! shows a failure to [`MasterSearch::failed`]. A master that follows names the one that leads in the metadata of its
//! refusal, which is asked next and at once. Invariant: nobody is asked twice without a pause but on such a word, and
//! those words are followed without one only as often as there are masters.

use std::time::Duration;

use meseta_resources::HostPort;
use tonic::{Code, Status};

/// Where a master that follows names the one that leads, in the metadata of a gRPC status.
pub const LEADER: &str = "meseta-leader";

/// Masters in a list at most; a cluster has three or five.
pub const MASTERS_MAX: usize = 64;

/// Pauses between rounds begin with this.
const PAUSE_MIN: Duration = Duration::from_millis(250);

/// They do not grow beyond this: a new leader is there within ten seconds.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The address of the leader that a refused call names, if it names one that can be an address.
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

/// Pauses that double, each between half of its length and all of it, so that clients do not come together.
#[derive(Clone, Debug)]
pub struct Backoff {
    pauses: u32,
    random: fastrand::Rng,
}

impl Backoff {
    /// Pauses by this seed; two clients have two.
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

    /// Begins anew, after a success.
    pub fn reset(&mut self) {
        self.pauses = 0;
    }
}

/// A list of masters that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    #[error("{0:?} is not host:port (for example 10.0.0.1:5050)")]
    Malformed(String),
    #[error("a list of {0} masters is longer than {MASTERS_MAX}")]
    TooLong(usize),
}

/// Whom to ask, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Its host and port.
    pub master: String,
    /// Time to wait first.
    pub pause: Duration,
}

/// The search for the master that leads.
#[derive(Clone, Debug)]
pub struct MasterSearch {
    masters: Vec<String>,
    /// The place in the list of the one that is asked next.
    next: usize,
    /// Whom the last one named.
    named: Option<String>,
    /// How often such a word was followed since the last pause.
    followed: usize,
    /// Those of the list that were asked since the last pause.
    asked: usize,
    backoff: Backoff,
}

impl MasterSearch {
    /// Among the masters of a list with commas between.
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

    /// Whom to ask next: the leader that was named, or the next of the list; after a whole round there is a pause.
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

    /// The one that was asked refused or could not be reached. Says whether another attempt can help: a call that a
    /// leader refuses is refused again.
    pub fn failed(&mut self, status: &Status) -> bool {
        self.named = named_leader(status).map(str::to_owned);
        self.named.is_some() || status.code() == Code::Unavailable
    }

    /// The one that was asked leads. When it is lost, the search begins with it.
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
    fn every_master_is_asked_before_there_is_a_pause() {
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
    fn masters_that_name_each_other_are_not_asked_for_ever_without_a_pause() {
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
    fn pauses_double_and_differ_from_client_to_client() {
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
    fn what_is_no_address_is_refused() {
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
