//! The total, allocated and used resources of the cluster over the last hour, for the web page.
//!
//! Entered through [`History::keep`], which takes samples regularly, and [`History::view`]. Invariant: at most
//! [`SAMPLES_MAX`] samples, however long the master runs; a new leader has no earlier samples.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meseta_daemon::server::CancellationToken;
use serde_json::{Map, Value, json};
use tokio::time::MissedTickBehavior;

use crate::core::{Snapshot, Usage};
use crate::handle::{Handle, Query};
use crate::metrics::{self, ResourceTotals};

/// The interval between samples; [`SAMPLES_MAX`] of them make an hour.
const INTERVAL: Duration = Duration::from_secs(15);
/// The number of samples in an hour.
const SAMPLES_MAX: usize = 240;
const MEGABYTE: f64 = 1_048_576.0;

/// The newest samples, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<VecDeque<Sample>>);

/// The cluster at one moment.
#[derive(Clone, Debug)]
struct Sample {
    /// The time since the Unix epoch.
    at: Duration,
    totals: Vec<ResourceTotals>,
    usage: Usage,
}

impl History {
    /// Takes samples as long as the master runs, while it leads.
    pub(crate) async fn keep(&self, handle: Handle, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = ticks.tick() => {}
            }
            if !handle.standing.now().is_elected() {
                continue;
            }
            let Ok((snapshot, measures)) = handle.query(Query::Measure).await else {
                return;
            };
            self.add(measures.now, &snapshot, measures.usage);
        }
    }

    fn add(&self, at: Duration, snapshot: &Snapshot, usage: Usage) {
        let totals = metrics::totals(snapshot);
        let mut samples = self.samples();
        if samples.len() >= SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(Sample { at, totals, usage });
    }

    fn samples(&self) -> MutexGuard<'_, VecDeque<Sample>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A column for each figure, with the samples after `since` (seconds since the Unix epoch).
    pub(crate) fn view(&self, since: f64) -> Value {
        let samples = self.samples();
        let later = samples.iter().filter(|one| one.at.as_secs_f64() > since);
        let later: Vec<_> = later.collect();
        let mut view = Map::new();
        view.insert("interval_seconds".to_owned(), json!(INTERVAL.as_secs()));
        let times = later.iter().map(|one| one.at.as_secs_f64());
        view.insert("times".to_owned(), column(times));
        let names = samples.back().into_iter().flat_map(|one| &one.totals);
        for (kind, name) in names.map(|one| one.name).enumerate() {
            let of = |figure: fn(&ResourceTotals) -> f64| {
                let figures = later.iter().filter_map(|one| one.totals.get(kind));
                column(figures.map(figure))
            };
            let mut figures = json!({
                "total": of(|one| one.total),
                "allocated": of(|one| one.allocated),
                "offered": of(|one| one.offered),
                "revocable_total": of(|one| one.revocable_total),
                "revocable_allocated": of(|one| one.revocable_allocated),
            });
            let usage: Option<fn(&Usage) -> f64> = match name {
                "cpus" => Some(|usage| usage.cpus),
                "mem" => Some(mem_mb),
                _ => None,
            };
            if let Some(usage) = usage {
                figures["used"] = column(later.iter().map(|one| usage(&one.usage)));
            }
            view.insert(name.to_owned(), figures);
        }
        Value::Object(view)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn mem_mb(usage: &Usage) -> f64 {
    usage.mem_bytes as f64 / MEGABYTE
}

/// Figures with at most three decimals, like resources.
fn column(figures: impl Iterator<Item = f64>) -> Value {
    figures
        .map(|figure| json!((figure * 1e3).round() / 1e3))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::tests::many_frameworks;

    #[test]
    fn history_keeps_one_hour_for_readers() {
        let (history, snapshot) = (History::default(), many_frameworks(1, 1));
        for second in 0..1_000_u32 {
            let usage = Usage {
                cpus: f64::from(second),
                mem_bytes: 3 << 20,
            };
            let at = Duration::from_secs(u64::from(second) * 15);
            history.add(at, &snapshot, usage);
        }
        let whole = history.view(0.0);
        let times = whole["times"].as_array().unwrap();
        assert_eq!((times.len(), &times[239]), (240, &json!(14_985.0)));
        assert_eq!(whole["cpus"]["used"][0], json!(760.0));
        assert_eq!(whole["mem"]["used"][239], json!(3.0));
        assert_eq!(whole["disk"].get("used"), None);
        let rest = history.view(14_970.0);
        assert_eq!(rest["times"], json!([14_985.0]));
        assert_eq!(rest["gpus"]["total"], json!([0.0]));
        assert_eq!(History::default().view(0.0)["times"], json!([]));
    }
}
