//! The sweep: life after life, each with faults at other points, until every point has had its own.
//!
//! Points in the same life are far apart. A point that was not reached is tried once more alone, and so is each point of a
//! life with errors.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;

use super::calls::{self, Effect};
use super::ledger::{Fault, Point, by_novelty};
use super::life::{Outcome, Stage};

/// Lives without a fault, whose calls are the points.
const COUNTED: usize = 3;
const ERRORS: [Errno; 4] = [Errno::ENOSPC, Errno::EIO, Errno::EMFILE, Errno::ENOMEM];

/// The faults of a sweep.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Mode {
    /// No faults: names the points.
    Count,
    /// SIGKILL right before a call with a change.
    KillBefore,
    /// SIGKILL right after such a call.
    KillAfter,
    /// Errors at every call that can fail.
    Errors,
}

/// The selected part of a sweep.
#[derive(Clone, Debug)]
pub struct Options {
    pub mode: Mode,
    /// The first point, from 0, in the order of [`by_novelty`](super::ledger::by_novelty).
    pub from: usize,
    pub points: usize,
    /// The number of points with faults in one life.
    pub together: usize,
    /// The number of first calls of each site.
    pub ordinals: usize,
    /// The selected part of all points, and the number of parts, for programs that run side by side.
    pub share: (u64, u64),
    /// The number of calls of a site that fail, from the point's on.
    pub times: usize,
    /// A text that the names of sites must contain.
    pub only: Option<String>,
    /// Only points with these names, as the output of lives shows them.
    pub listed: Option<BTreeSet<String>>,
    /// The folder for the agents' logs of lives with errors.
    pub logs: Option<PathBuf>,
    /// A flag that makes the present life the last.
    pub over: Arc<AtomicBool>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: Mode::Count,
            from: 0,
            points: usize::MAX,
            together: 1,
            ordinals: usize::MAX,
            share: (0, 1),
            times: 1,
            only: None,
            listed: None,
            logs: None,
            over: Arc::default(),
        }
    }
}

/// The result of a sweep.
#[derive(Debug, Default)]
pub struct Report {
    /// The number of points; each error of a call counts separately.
    pub points: usize,
    /// The number of sites of the points.
    pub sites: usize,
    /// The names of the points with an injected fault.
    pub met: BTreeSet<String>,
    /// Points whose call was not made in the lives that waited for it.
    pub not_reached: usize,
    /// The number of times that an agent ended, by itself or killed.
    pub ends: usize,
    pub lives: usize,
    /// Lives with a violation, each with its faults.
    pub wrong: Vec<String>,
}

/// Runs a part of a sweep, and prints each life.
pub fn run(options: &Options, mut tell: impl FnMut(&str)) -> Report {
    let mut stage = Stage::open();
    let mut report = Report::default();
    let mut lives = Vec::new();
    for _ in 0..COUNTED {
        let outcome = stage.live(&[]);
        record(&mut report, options, &[], &outcome, &mut tell);
        lives.push(outcome.seen);
    }
    let points = by_novelty(lives.iter().map(Vec::as_slice));
    let planned = planned(options, points);
    report.points = planned.len();
    let sites: BTreeSet<_> = planned.iter().map(|(point, _)| &point.site).collect();
    report.sites = sites.len();
    if options.mode == Mode::Count {
        for (point, _) in &planned {
            tell(&point.to_string());
        }
        return report;
    }
    let end = options.from.saturating_add(options.points);
    let part = &planned[options.from.min(planned.len())..end.min(planned.len())];
    for faults in batches(part, options.together) {
        let is_right = tried(&mut stage, &mut report, options, &faults, &mut tell);
        if !is_right && faults.len() > 1 {
            // Find out which of them caused the error.
            alone(&mut stage, &mut report, options, &faults, &mut tell);
        }
    }
    let missed = part
        .iter()
        .filter(|fault| !report.met.contains(&name_of(fault)));
    let missed: Vec<_> = missed.cloned().collect();
    if options.together > 1 {
        alone(&mut stage, &mut report, options, &missed, &mut tell);
    }
    let is_met = |fault: &&(Point, Fault)| report.met.contains(&name_of(fault));
    report.not_reached = part.len() - part.iter().filter(is_met).count();
    report
}

fn name_of((point, fault): &(Point, Fault)) -> String {
    format!("{fault} {point}")
}

/// Runs a separate life for each of these faults.
fn alone(
    stage: &mut Stage,
    report: &mut Report,
    options: &Options,
    faults: &[(Point, Fault)],
    tell: &mut impl FnMut(&str),
) {
    for fault in faults.chunks(1) {
        tried(stage, report, options, fault, tell);
    }
}

/// Plays one life with these faults; returns whether all was right.
fn tried(
    stage: &mut Stage,
    report: &mut Report,
    options: &Options,
    faults: &[(Point, Fault)],
    tell: &mut impl FnMut(&str),
) -> bool {
    if options.over.load(Ordering::Relaxed) {
        return true;
    }
    let outcome = stage.live(faults);
    let is_met = |(point, _): &&(Point, Fault)| outcome.fired.iter().any(|(met, _)| met == point);
    report.met.extend(faults.iter().filter(is_met).map(name_of));
    record(report, options, faults, &outcome, tell);
    let is_right = outcome.wrong.is_empty();
    if !is_right {
        // The next life must not find the same error again.
        *stage = Stage::open();
    }
    is_right
}

fn record(
    report: &mut Report,
    options: &Options,
    faults: &[(Point, Fault)],
    outcome: &Outcome,
    tell: &mut impl FnMut(&str),
) {
    report.lives += 1;
    report.ends += outcome.ends;
    let mut text = format!(
        "life {} {:.1} s, {} calls, {} ends, {} fired:",
        report.lives,
        outcome.took.as_secs_f64(),
        outcome.seen.len(),
        outcome.ends,
        outcome.fired.len()
    );
    for (point, fault) in faults {
        let is_met = outcome.fired.iter().any(|(met, _)| met == point);
        let end = if is_met { "" } else { ", not reached" };
        let _ = write!(text, " [{fault} {point}{end}]");
    }
    for wrong in &outcome.wrong {
        let _ = write!(text, "\n  WRONG {wrong}");
    }
    tell(&text);
    if outcome.wrong.is_empty() {
        return;
    }
    if let Some(dir) = &options.logs {
        let path = dir.join(format!("life-{}.log", report.lives));
        if let Err(error) = std::fs::write(&path, &outcome.log) {
            tell(&format!("{} was not written: {error}", path.display()));
        }
    }
    report.wrong.push(text);
}

/// Returns the faults for the selected points.
fn planned(options: &Options, points: Vec<Point>) -> Vec<(Point, Fault)> {
    let is_wanted = |point: &Point| {
        let only = options.only.as_deref().unwrap_or_default();
        let (part, parts) = options.share;
        let name = point.to_string();
        let is_shared = share_of(&name, parts) == part;
        let is_listed = options
            .listed
            .as_ref()
            .is_none_or(|names| names.contains(&name));
        is_shared && is_listed && point.ordinal <= options.ordinals && name.contains(only)
    };
    let points = points.into_iter().filter(is_wanted);
    let changes = |point: &Point| {
        let effect = point.site.effect;
        matches!(effect, Effect::Changes | Effect::Forks | Effect::Signals)
    };
    match options.mode {
        Mode::Count | Mode::KillBefore => points
            .filter(changes)
            .map(|point| (point, Fault::KillBefore))
            .collect(),
        Mode::KillAfter => points
            .filter(changes)
            .map(|point| (point, Fault::KillAfter))
            .collect(),
        Mode::Errors => points
            .flat_map(|point| errors_of(&point, options.times))
            .collect(),
    }
}

fn errors_of(point: &Point, times: usize) -> Vec<(Point, Fault)> {
    let site = &point.site;
    ERRORS
        .into_iter()
        .filter(|errno| calls::may_fail(site.effect, site.call, *errno))
        .map(|errno| (point.clone(), Fault::Error { errno, times }))
        .collect()
}

/// Returns the part of a point, the same in every program. The hash is FNV-1a: the standard library's hash may differ
/// between two builds.
fn share_of(name: &str, parts: u64) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The last bytes, which distinguish ordinals, affect these bits, and not all of the lower ones.
    (hash >> 40) % parts.max(1)
}

/// Returns batches of this size with points far from each other.
fn batches(part: &[(Point, Fault)], together: usize) -> Vec<Vec<(Point, Fault)>> {
    let count = part.len().div_ceil(together.max(1));
    (0..count)
        .map(|first| part.iter().skip(first).step_by(count).cloned().collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Site;
    use super::*;

    fn point(call: &'static str, effect: Effect) -> Point {
        Point {
            site: Site {
                call,
                effect,
                file: "/f".to_owned(),
            },
            ordinal: 1,
        }
    }

    #[test]
    fn point_has_every_possible_error() {
        let options = Options {
            mode: Mode::Errors,
            ..Options::default()
        };
        let points = vec![
            point("write", Effect::Changes),
            point("kill", Effect::Signals),
        ];
        let planned = planned(&options, points);
        let errors: Vec<String> = planned.iter().map(|(_, fault)| fault.to_string()).collect();
        assert_eq!(errors, ["ENOSPC x1 at", "EIO x1 at", "ENOMEM x1 at"]);
    }

    #[test]
    fn sweep_parts_cover_points_once() {
        let points: Vec<Point> = (1..=40)
            .map(|ordinal| Point {
                ordinal,
                ..point("write", Effect::Changes)
            })
            .collect();
        let part = |share| {
            let options = Options {
                mode: Mode::KillAfter,
                ordinals: 30,
                share,
                ..Options::default()
            };
            planned(&options, points.clone())
        };
        let [first, second] = [(0, 2), (1, 2)].map(part);
        assert!(first.len() > 5 && second.len() > 5);
        assert_eq!(first.len() + second.len(), 30);
        assert!(first.iter().all(|one| !second.contains(one)));
    }

    #[test]
    fn batches_hold_every_point_once() {
        let part: Vec<_> = ["a", "b", "c", "d", "e"]
            .map(|call| (point(call, Effect::Changes), Fault::KillBefore))
            .to_vec();
        let batches = batches(&part, 2);
        let names: Vec<Vec<&str>> = batches
            .iter()
            .map(|batch| batch.iter().map(|(point, _)| point.site.call).collect())
            .collect();
        assert_eq!(names, [vec!["a", "d"], vec!["b", "e"], vec!["c"]]);
    }
}
