//! The calls made, by names that are the same in every run, and the plan for some of them.

use std::collections::BTreeMap;
use std::fmt;

use nix::errno::Errno;

use super::calls::{self, Effect};

/// A system call, with the kind of file that it concerns.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct Site {
    pub call: &'static str,
    pub effect: Effect,
    pub file: String,
}

/// A call of a site in one life, by its ordinal; the first is 1.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct Point {
    pub site: Site,
    pub ordinal: usize,
}

impl Point {
    /// Returns the first call of this name on such a file, or `None` if calls of this name are not intercepted.
    pub fn first(call: &str, file: &str) -> Option<Self> {
        let call = calls::all().find(|known| known.name == call)?;
        let site = Site {
            call: call.name,
            effect: call.effect,
            file: file.to_owned(),
        };
        Some(Self { site, ordinal: 1 })
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} #{}", self.site.call, self.site.file, self.ordinal)
    }
}

/// The fate of a call under a fault.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Fault {
    /// Kills the agent instead of the call.
    KillBefore,
    /// Kills the agent as soon as the call was made.
    KillAfter,
    /// Fails the call and the next ones of its site, `times` in all, with this error.
    Error { errno: Errno, times: usize },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KillBefore => write!(f, "SIGKILL before"),
            Self::KillAfter => write!(f, "SIGKILL after"),
            Self::Error { errno, times } => write!(f, "{errno:?} x{times} at"),
        }
    }
}

/// The calls of one life of an agent.
#[derive(Debug, Default)]
pub struct Ledger {
    counts: BTreeMap<Site, usize>,
    seen: Vec<Point>,
    planned: Vec<(Point, Fault)>,
    fired: Vec<(Point, Fault)>,
}

impl Ledger {
    /// Starts a life in which these faults will be injected.
    pub fn begin(&mut self, planned: Vec<(Point, Fault)>) {
        *self = Self {
            planned,
            ..Self::default()
        };
    }

    /// Drops the remaining plan; returns the faults that were injected, each with its call.
    pub fn end(&mut self) -> Vec<(Point, Fault)> {
        self.planned.clear();
        std::mem::take(&mut self.fired)
    }

    /// Returns the calls of this life, in their order.
    pub fn seen(&self) -> &[Point] {
        &self.seen
    }

    /// Counts a call, and returns its planned fault.
    pub fn pass(&mut self, site: Site) -> Option<Fault> {
        let count = self.counts.entry(site.clone()).or_default();
        *count += 1;
        let point = Point {
            site,
            ordinal: *count,
        };
        let fault = self.planned.iter().find_map(|(planned, fault)| {
            let times = match fault {
                Fault::Error { times, .. } => *times,
                _ => 1,
            };
            let range = planned.ordinal..planned.ordinal + times;
            (planned.site == point.site && range.contains(&point.ordinal)).then_some(*fault)
        });
        if let Some(fault) = fault {
            self.fired.push((point.clone(), fault));
        }
        self.seen.push(point);
        fault
    }
}

/// Returns the points of several lives without repetitions: the first of every site, then the second, and so on.
pub fn by_novelty<'a>(lives: impl Iterator<Item = &'a [Point]>) -> Vec<Point> {
    let mut places: BTreeMap<&Point, usize> = BTreeMap::new();
    for life in lives {
        for point in life {
            let place = places.len();
            places.entry(point).or_insert(place);
        }
    }
    let mut points: Vec<(usize, usize, &Point)> = places
        .into_iter()
        .map(|(point, place)| (point.ordinal, place, point))
        .collect();
    points.sort_by_key(|(ordinal, place, _)| (*ordinal, *place));
    points
        .into_iter()
        .map(|(_, _, point)| point.clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(call: &'static str) -> Site {
        Site {
            call,
            effect: Effect::Changes,
            file: "/f".to_owned(),
        }
    }

    fn point(call: &'static str, ordinal: usize) -> Point {
        Point {
            site: site(call),
            ordinal,
        }
    }

    #[test]
    fn fault_strikes_call_as_planned() {
        let mut ledger = Ledger::default();
        let fault = Fault::Error {
            errno: Errno::EIO,
            times: 2,
        };
        ledger.begin(vec![(point("a", 2), fault)]);
        let met: Vec<bool> = ["a", "b", "a", "b", "a", "a"]
            .map(|call| ledger.pass(site(call)).is_some())
            .to_vec();
        assert_eq!(met, [false, false, true, false, true, false]);
        assert_eq!(
            ledger.end(),
            [(point("a", 2), fault), (point("a", 3), fault)]
        );
        ledger.begin(Vec::new());
        assert_eq!(ledger.pass(site("a")), None);
        assert_eq!(ledger.seen(), [point("a", 1)]);
    }

    #[test]
    fn new_points_come_first() {
        let one = [point("b", 1), point("b", 2), point("a", 1)];
        let other = [point("c", 1), point("b", 1)];
        let order = by_novelty([one.as_slice(), other.as_slice()].into_iter());
        let expected = [point("b", 1), point("a", 1), point("c", 1), point("b", 2)];
        assert_eq!(order, expected);
    }
}
