//! Operators' writes at a steady pace: they show since when the cluster accepts changes again, and that none is lost.
//!
//! Each write sets the weight of one role to a number that is never used twice. A read may show the last acknowledged
//! number, or one whose write had no answer: such a write may take effect late.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use meseta_tests::http;
use serde_json::{Value, json};

use crate::board::{Board, Term};

/// The pause between two writes that are answered at once.
const INTERVAL: Duration = Duration::from_millis(50);
/// The time limit of a write.
const LIMIT: Duration = Duration::from_secs(1);
/// The time limit of a check.
const CHECK_LIMIT: Duration = Duration::from_secs(5);
/// The number of writes after which everything written is read.
const READ_BACK: u32 = 5;
/// The number of roles that the writes alternate between, so that a check covers as many writes.
const ROLES: u32 = 40;
/// The time after which a write without an answer can no longer take effect: packets on the way are lost then.
const LATE: Duration = Duration::from_secs(120);

/// The possible values of one role's weight.
#[derive(Clone, Debug, Default)]
struct Register {
    acknowledged: Option<u32>,
    /// Whether it was reset to an earlier state, and not written since.
    is_forgotten: bool,
    unanswered: Vec<(Instant, u32)>,
}

impl Register {
    fn may_be(&self, found: Option<u32>) -> bool {
        let is_found = |(_, number): &(Instant, u32)| Some(*number) == found;
        self.is_forgotten || found == self.acknowledged || self.unanswered.iter().any(is_found)
    }
}

/// A write that a master has acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) term: Term,
    pub(crate) at: Instant,
}

#[derive(Debug, Default)]
struct Written {
    registers: Vec<Register>,
    acknowledged: Vec<Acknowledged>,
    /// Writes with the response 503.
    refused: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Pulse {
    written: Mutex<Written>,
}

impl Pulse {
    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes until the end of the run.
    pub(crate) fn run(&self, board: &Board) {
        let roles = usize::try_from(ROLES).unwrap_or_default();
        self.written().registers = vec![Register::default(); roles];
        let (mut number, mut last) = (0_u32, None);
        while !board.is_over() {
            if let Some(term) = board.leader() {
                // A new leader shows the writes that the earlier one acknowledged.
                let is_new = last.replace(term) != Some(term);
                if is_new || number.is_multiple_of(READ_BACK) {
                    self.check(board, term)
                        .unwrap_or_else(|wrong| board.note(wrong));
                }
                number += 1;
                self.write(board, term, number);
            }
            std::thread::sleep(INTERVAL);
        }
    }

    fn write(&self, board: &Board, term: Term, number: u32) {
        let url = &board.urls[term.master];
        let role = number % ROLES;
        let body = json!([{"role": format!("pulse-{role}"), "weight": f64::from(number)}]);
        let sent = Instant::now();
        let answer = http::put_within(LIMIT, &format!("{url}/weights"), &body.to_string());
        let status = answer.map(|answer| answer.status).unwrap_or_default();
        let mut written = self.written();
        let register = &mut written.registers[usize::try_from(role).unwrap_or_default()];
        if status != 200 {
            register.unanswered.push((sent, number));
            written.refused += usize::from(status == 503);
            return;
        }
        register.acknowledged = Some(number);
        register.is_forgotten = false;
        register
            .unanswered
            .retain(|(since, _)| since.elapsed() < LATE);
        let at = Instant::now();
        written.acknowledged.push(Acknowledged { term, at });
        drop(written);
        board.leads(term, sent, "acknowledges a change");
    }

    /// Checks that a leading master shows the acknowledged writes; a master that is cut off or may be behind is skipped.
    fn check(&self, board: &Board, term: Term) -> Result<(), String> {
        let registers = self.written().registers.clone();
        let sent = Instant::now();
        let url = format!("{}/weights", board.urls[term.master]);
        let Ok(answer) = http::get_within(CHECK_LIMIT, &url) else {
            return Ok(());
        };
        if answer.status != 200 || answer.header("meseta-stale").is_some() {
            return Ok(());
        }
        board.leads(term, sent, "answers a question without a mark");
        let page = answer.json();
        for (role, register) in registers.iter().enumerate() {
            let found = weight_of(&page, &format!("pulse-{role}"));
            if !register.may_be(found) {
                return Err(format!(
                    "{term} shows {found:?} for pulse-{role}, which may be {register:?}"
                ));
            }
        }
        Ok(())
    }

    /// Marks all writes as uncertain: the registry is about to be reset to an earlier state.
    pub(crate) fn forget(&self) {
        for register in &mut self.written().registers {
            register.is_forgotten = true;
        }
    }

    /// Returns the first write that was acknowledged after a time, by a term other than this.
    pub(crate) fn first_after(&self, time: Instant, not: Option<Term>) -> Option<Acknowledged> {
        let written = self.written();
        let all = written.acknowledged.iter().rev();
        let after = all.take_while(|one| one.at > time);
        after.filter(|one| Some(one.term) != not).last().copied()
    }

    /// Returns the longest time without an acknowledged write that ended after this time, with its end.
    pub(crate) fn longest_gap_after(&self, time: Instant) -> (Duration, Instant) {
        let written = self.written();
        let all = written.acknowledged.iter().rev().map(|one| one.at);
        let mut after: Vec<_> = all.take_while(|at| *at > time).collect();
        after.push(time);
        let gap = |pair: &[Instant]| (pair[0].duration_since(pair[1]), pair[0]);
        after
            .windows(2)
            .map(gap)
            .max()
            .unwrap_or((Duration::ZERO, time))
    }

    /// Returns how many writes were acknowledged, and how many refused with 503.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let written = self.written();
        (written.acknowledged.len(), written.refused)
    }
}

fn weight_of(page: &Value, role: &str) -> Option<u32> {
    let mut all = page.as_array()?.iter();
    let weight = &all.find(|one| one["role"] == role)?["weight"];
    // The writes use whole numbers.
    weight.to_string().trim_end_matches(".0").parse().ok()
}
