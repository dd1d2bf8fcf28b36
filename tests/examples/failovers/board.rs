//! The present knowledge about the masters, and the check that at most one of them leads.
//!
//! A term is the time in which one start of one master leads. Terms are known by the masters' own answers and by the
//! acknowledgements of changes. Once a later term is known, no answer to a later question may belong to an earlier term.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use meseta_tests::http;

/// The pause between two questions to each master.
const INTERVAL: Duration = Duration::from_millis(100);
/// The time limit of a request to a master.
const LIMIT: Duration = Duration::from_millis(500);
/// The age at which an answer says nothing about the present.
const FRESH: Duration = Duration::from_secs(1);

/// A start of a master, as a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) master: usize,
    pub(crate) start: u32,
}

impl std::fmt::Display for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "master {} (start {})", self.master, self.start)
    }
}

/// The answer of a master about itself.
#[derive(Clone, Debug)]
struct Said {
    role: String,
    at: Instant,
}

#[derive(Debug, Default)]
struct Known {
    starts: Vec<u32>,
    said: Vec<Option<Said>>,
    /// Known terms in the order of discovery, with the time of each.
    terms: Vec<(Term, Instant)>,
    /// Terms that ended on an isolated host.
    cut_off: Vec<Term>,
    wrong: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) urls: Vec<String>,
    known: Mutex<Known>,
    over: AtomicBool,
}

impl Board {
    pub(crate) fn new(urls: Vec<String>) -> Self {
        let known = Known {
            starts: vec![0; urls.len()],
            said: vec![None; urls.len()],
            ..Known::default()
        };
        Self {
            urls,
            known: Mutex::new(known),
            over: AtomicBool::new(false),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the whole run.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Notes that a master is about to be restarted.
    pub(crate) fn restarts(&self, master: usize) {
        let mut known = self.known();
        known.starts[master] += 1;
        known.said[master] = None;
    }

    /// Returns the present term of a master.
    pub(crate) fn term(&self, master: usize) -> Term {
        let start = self.known().starts[master];
        Term { master, start }
    }

    /// Queries one master until the end of the run.
    pub(crate) fn watch(&self, master: usize) {
        let url = format!("{}/leader", self.urls[master]);
        while !self.is_over() {
            let (term, sent) = (self.term(master), Instant::now());
            let role = match http::get_within(LIMIT, &url) {
                Ok(answer) if answer.status == 200 => answer.json()["role"].clone(),
                _ => serde_json::Value::Null,
            };
            let role = role.as_str().unwrap_or("silent").to_owned();
            if role == "leading" {
                self.leads(term, sent, "says that it leads");
            }
            let mut known = self.known();
            if known.starts[master] == term.start {
                let at = Instant::now();
                known.said[master] = Some(Said { role, at });
            }
            drop(known);
            std::thread::sleep(INTERVAL);
        }
    }

    /// Records that a term answered, as a leader does, a question sent at `sent`.
    pub(crate) fn leads(&self, term: Term, sent: Instant, how: &str) {
        let mut known = self.known();
        let Some(at) = known.terms.iter().position(|(known, _)| *known == term) else {
            known.terms.push((term, Instant::now()));
            return;
        };
        let later = known.terms[at + 1..].iter();
        let later = later.map(|(later, since)| (*later, *since));
        let before: Vec<_> = later.filter(|(_, since)| *since < sent).collect();
        if let Some((later, since)) = before.first() {
            let after = sent.duration_since(*since);
            let wrong = format!("{term} {how} {after:?} after {later} was known to lead");
            known.wrong.push(wrong);
        }
    }

    /// Returns the present leader's term, as far as known.
    pub(crate) fn leader(&self) -> Option<Term> {
        let known = self.known();
        let (term, _) = *known.terms.last()?;
        let said = known.said[term.master].as_ref()?;
        let leads = known.starts[term.master] == term.start && said.role == "leading";
        (leads && said.at.elapsed() < FRESH).then_some(term)
    }

    /// Returns the last answer of a master; empty before its first answer.
    pub(crate) fn role(&self, master: usize) -> String {
        let said = self.known().said[master].clone();
        let said = said.filter(|said| said.at.elapsed() < FRESH);
        said.map(|said| said.role).unwrap_or_default()
    }

    /// Marks the host of a term that is about to be cut off: messages sent before may arrive when it is back.
    pub(crate) fn cuts_off(&self, term: Term) {
        self.known().cut_off.push(term);
    }

    pub(crate) fn was_cut_off(&self, term: Term) -> bool {
        self.known().cut_off.contains(&term)
    }

    /// Returns the number of terms so far.
    pub(crate) fn terms_count(&self) -> usize {
        self.known().terms.len()
    }

    pub(crate) fn note(&self, wrong: String) {
        self.known().wrong.push(wrong);
    }

    /// Returns the errors since the last call.
    pub(crate) fn take_wrong(&self) -> Vec<String> {
        std::mem::take(&mut self.known().wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_answer_of_earlier_term_fails() {
        let board = Board::new(vec![String::new(), String::new()]);
        let (one, two) = (board.term(0), board.term(1));
        let sent = Instant::now();
        board.leads(one, sent, "leads");
        board.leads(two, sent, "leads");
        // The question was sent before the other term was known.
        board.leads(one, sent, "leads");
        assert_eq!(board.take_wrong(), Vec::<String>::new());
        board.leads(one, Instant::now() + LIMIT, "leads");
        assert_eq!(board.take_wrong().len(), 1);
        // The same master has been started again.
        board.restarts(0);
        board.leads(board.term(0), Instant::now(), "leads");
        assert_eq!((board.take_wrong().len(), board.terms_count()), (0, 3));
    }
}
