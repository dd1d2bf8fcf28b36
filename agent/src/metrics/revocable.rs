//! Metrics of what is lent, how much of it is used, and what is done to those who borrowed.

use std::collections::BTreeMap;

use meseta_estimators::Level;

use super::families::{counter, gauge};
use super::{Book, Family, count, number, scalar};
use crate::core::Snapshot;
use crate::http::Surface;
use crate::oversubscription::Role;

/// Kinds of resources that can be lent.
const NAMES: [&str; 4] = ["cpus", "mem", "disk", "gpus"];
/// Corrections that are shown also before the first of them.
const CORRECTIONS: [(&str, &str); 5] = [
    ("load-5min", "kill"),
    ("load-15min", "kill"),
    ("cpu-util", "throttle"),
    ("cpu-util", "kill"),
    ("mem-watermark", "kill"),
];

/// Failures of plug-ins, the same.
const PLUGINS: [(Role, &str); 2] = [
    (Role::Estimator, "deadline"),
    (Role::Controller, "deadline"),
];

/// See [`super::FAMILIES`].
pub(super) const FAMILIES: &[Family] = &[
    gauge(
        "meseta_agent_revocable_resources",
        "What is lent and what more can be, as the master is told.",
    ),
    gauge(
        "meseta_agent_revocable_allocated",
        "What live tasks hold of what is lent.",
    ),
    gauge(
        "meseta_agent_oversubscribed_forecast",
        "The estimator's reckoning: capacity, promised, used now, peak foretold, total to be lent.",
    ),
    gauge(
        "meseta_agent_oversubscribed_slack",
        "Promised to regular work and not used by it now.",
    ),
    gauge(
        "meseta_agent_oversubscribed_stopped",
        "Whether the QoS controller lets nothing be offered.",
    ),
    counter(
        "meseta_agent_oversubscribed_updates_total",
        "Totals of revocable resources told to the master.",
    ),
    gauge(
        "meseta_agent_revocable_throttle_cpus",
        "What all revocable work together may use; -1 when it is not held.",
    ),
    gauge(
        "meseta_agent_revocable_frozen",
        "Revocable containers that stand still.",
    ),
    counter(
        "meseta_agent_qos_corrections_total",
        "Corrections carried out, by what decided and what was done.",
    ),
    counter(
        "meseta_agent_qos_corrections_refused_total",
        "Corrections that named a container which may not be touched.",
    ),
    gauge(
        "meseta_agent_qos_detector_level",
        "How far a detector has gone: 0 clear, 1 stop, 2 throttle, 3 kill.",
    ),
    gauge(
        "meseta_agent_qos_detector_value",
        "What a detector saw last, in its own unit.",
    ),
    counter(
        "meseta_agent_executors_preempted_total",
        "Executors evicted for the sake of regular work.",
    ),
    counter(
        "meseta_agent_plugin_failures_total",
        "Calls of an estimator or a controller in another process that came to nothing.",
    ),
];

pub(super) fn write(book: &mut Book, surface: &Surface, snapshot: &Snapshot) {
    let state = &snapshot.oversubscription;
    let (lent, held) = (
        state.total.clone().unwrap_or_default(),
        snapshot.allocated().revocable(),
    );
    for name in NAMES {
        let labels = [("name", name)];
        book.add(
            "meseta_agent_revocable_resources",
            &labels,
            Some(scalar(&lent, name)),
        );
        book.add(
            "meseta_agent_revocable_allocated",
            &labels,
            Some(scalar(&held, name)),
        );
    }
    for forecast in &state.forecasts {
        let name = ("name", forecast.resource);
        for (quantity, value) in [
            ("capacity", forecast.capacity),
            ("promised", forecast.promised),
            ("used", forecast.used),
            ("peak", forecast.peak),
            ("total", forecast.total),
        ] {
            let labels = [name, ("quantity", quantity)];
            book.add("meseta_agent_oversubscribed_forecast", &labels, Some(value));
        }
        let slack = (forecast.promised - forecast.used).max(0.0);
        book.add("meseta_agent_oversubscribed_slack", &[name], Some(slack));
    }
    let stopped = f64::from(u8::from(state.stopped.is_some()));
    book.add("meseta_agent_oversubscribed_stopped", &[], Some(stopped));
    book.add(
        "meseta_agent_oversubscribed_updates_total",
        &[],
        Some(number(state.updates)),
    );
    let throttle = state
        .throttle
        .as_ref()
        .map_or(-1.0, |throttle| throttle.cpus);
    book.add("meseta_agent_revocable_throttle_cpus", &[], Some(throttle));
    book.add(
        "meseta_agent_revocable_frozen",
        &[],
        Some(count(state.frozen.len())),
    );
    corrections(book, snapshot);
    let preempted = number(snapshot.counters.executors_preempted);
    book.add(
        "meseta_agent_executors_preempted_total",
        &[],
        Some(preempted),
    );
    let mut failures: BTreeMap<_, _> = PLUGINS.iter().map(|key| (*key, 0)).collect();
    failures.extend(surface.plugin_failures.counts());
    for ((plugin, kind), failures) in failures {
        let labels = [("plugin", plugin.as_str()), ("kind", kind)];
        book.add(
            "meseta_agent_plugin_failures_total",
            &labels,
            Some(number(failures)),
        );
    }
}

fn corrections(book: &mut Book, snapshot: &Snapshot) {
    let state = &snapshot.oversubscription;
    let mut done: BTreeMap<_, _> = CORRECTIONS.iter().map(|key| (*key, 0)).collect();
    done.extend(state.corrections.iter().map(|(key, times)| (*key, *times)));
    for ((detector, action), times) in done {
        let labels = [("detector", detector), ("action", action)];
        book.add(
            "meseta_agent_qos_corrections_total",
            &labels,
            Some(number(times)),
        );
    }
    let refused = number(state.corrections_refused);
    book.add(
        "meseta_agent_qos_corrections_refused_total",
        &[],
        Some(refused),
    );
    for reading in &state.readings {
        let labels = [("detector", reading.detector)];
        let level = match reading.level {
            Level::Clear => 0.0,
            Level::Stop => 1.0,
            Level::Throttle => 2.0,
            Level::Kill => 3.0,
        };
        book.add("meseta_agent_qos_detector_level", &labels, Some(level));
        book.add("meseta_agent_qos_detector_value", &labels, reading.value);
    }
}
