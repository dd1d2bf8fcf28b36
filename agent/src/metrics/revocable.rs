//! Metrics of oversubscription.

use std::collections::BTreeMap;

use meseta_estimators::{Forecast, Level};

use super::{MetricsBuilder, count, number, scalar, unit};
use crate::context::Context;
use crate::core::Snapshot;
use crate::oversubscription::{FAILURE_KINDS, PLUGIN_DETECTOR, Role};

/// Kinds of resources that can be oversubscribed.
const NAMES: [&str; 4] = ["cpus", "mem", "disk", "gpus"];
/// Corrections shown from the start, since nobody would see the increase of a new series: all evictions.
const CORRECTIONS: [(&str, &str); 10] = [
    ("load-5min", "kill"),
    ("load-15min", "kill"),
    ("cpu-util", "throttle"),
    ("cpu-util", "kill"),
    ("psi-cpu", "kill"),
    ("psi-mem-some", "kill"),
    ("psi-mem-full", "kill"),
    ("mem-watermark", "kill"),
    ("be-satisfaction", "kill"),
    (PLUGIN_DETECTOR, "kill"),
];

const FORECAST: &str = "meseta_agent_oversubscription_forecast_amount";
const SLACK: &str = "meseta_agent_oversubscription_slack_amount";

/// The families of oversubscription, in the same form as [`super::FAMILIES`].
pub(super) const FAMILIES: &str = "\
meseta_agent_revocable_resources Deprecated: meseta_agent_resource_amount. Oversubscribed resources, allocated and free, as reported to the master.
meseta_agent_revocable_allocated Deprecated: meseta_agent_resource_amount. Oversubscribed resources that are allocated to live tasks.
meseta_agent_oversubscription_forecast_amount The estimator's forecast: capacity, promised, used now, predicted peak, total to oversubscribe; memory and disk in bytes.
meseta_agent_oversubscription_slack_amount Resources that regular tasks are promised but do not use now; memory and disk in bytes.
meseta_agent_oversubscribed_forecast Deprecated: meseta_agent_oversubscription_forecast_amount. The estimator's forecast (MB for mem and disk).
meseta_agent_oversubscribed_slack Deprecated: meseta_agent_oversubscription_slack_amount. Resources that regular tasks are promised but do not use now (MB for mem and disk).
meseta_agent_oversubscribed_stopped 1 if the QoS controller stops all offers of oversubscribed resources.
meseta_agent_oversubscribed_updates_total Reports of revocable resources to the master.
meseta_agent_revocable_throttle_cpus CPUs that all revocable tasks together may use; -1 without a limit.
meseta_agent_revocable_frozen Frozen revocable containers.
meseta_agent_qos_corrections_total Corrections that the agent carried out, by detector and action.
meseta_agent_qos_corrections_refused_total Refused corrections: they named a container that is not revocable.
meseta_agent_qos_detector_level Level of a detector: 0 clear, 1 stop, 2 throttle, 3 kill.
meseta_agent_qos_detector_value Last value of a detector, in its own unit.
meseta_agent_executors_preempted_total Executors evicted in favour of regular tasks.
meseta_agent_plugin_failures_total Failed calls of an estimator or controller in another process.";

pub(super) fn write(builder: &mut MetricsBuilder, context: &Context, snapshot: &Snapshot) {
    let state = &snapshot.oversubscription;
    let (oversubscribed, held) = (
        state.total().cloned().unwrap_or_default(),
        snapshot.allocated().revocable(),
    );
    super::amounts(builder, &oversubscribed, &held, "true");
    for name in NAMES {
        let labels = [("name", name)];
        builder.add(
            "meseta_agent_revocable_resources",
            &labels,
            scalar(&oversubscribed, name),
        );
        builder.add(
            "meseta_agent_revocable_allocated",
            &labels,
            scalar(&held, name),
        );
    }
    forecasts(builder, state.forecasts());
    let stopped = f64::from(u8::from(state.stopped().is_some()));
    builder.one("meseta_agent_oversubscribed_stopped", stopped);
    builder.one(
        "meseta_agent_oversubscribed_updates_total",
        number(state.updates()),
    );
    let throttle = state.throttle().map_or(-1.0, |throttle| throttle.cpus);
    builder.one("meseta_agent_revocable_throttle_cpus", throttle);
    builder.one(
        "meseta_agent_revocable_frozen",
        count(snapshot.frozen.len()),
    );
    corrections(builder, snapshot);
    let preempted = number(snapshot.counters.executors_preempted);
    builder.one("meseta_agent_executors_preempted_total", preempted);
    let roles = [Role::Estimator, Role::Controller];
    let kinds = roles.map(|role| FAILURE_KINDS.map(|kind| ((role, kind), 0)));
    let mut failures: BTreeMap<_, _> = kinds.into_iter().flatten().collect();
    failures.extend(context.plugin_failures.counts());
    for ((plugin, kind), failures) in failures {
        let labels = [("plugin", plugin.as_str()), ("kind", kind)];
        builder.add(
            "meseta_agent_plugin_failures_total",
            &labels,
            number(failures),
        );
    }
}

/// The forecasts in the units and with the labels common to all daemons, and in those of older versions.
fn forecasts(builder: &mut MetricsBuilder, forecasts: &[Forecast]) {
    for forecast in forecasts {
        let (name, resource) = (("name", forecast.resource), ("resource", forecast.resource));
        let scale = unit(forecast.resource);
        for (quantity, value) in [
            ("capacity", forecast.capacity),
            ("promised", forecast.promised),
            ("used", forecast.used),
            ("peak", forecast.peak),
            ("total", forecast.total),
        ] {
            let quantity = ("quantity", quantity);
            let (family, labels) = (FORECAST, [resource, quantity]);
            builder.add(family, &labels, value * scale);
            let labels = [name, quantity];
            builder.add("meseta_agent_oversubscribed_forecast", &labels, value);
        }
        let slack = (forecast.promised - forecast.used).max(0.0);
        builder.add(SLACK, &[resource], slack * scale);
        builder.add("meseta_agent_oversubscribed_slack", &[name], slack);
    }
}

fn corrections(builder: &mut MetricsBuilder, snapshot: &Snapshot) {
    let state = &snapshot.oversubscription;
    let mut done: BTreeMap<_, _> = CORRECTIONS.iter().map(|key| (*key, 0)).collect();
    done.extend(
        state
            .corrections()
            .iter()
            .map(|(key, times)| (*key, *times)),
    );
    for ((detector, action), times) in done {
        let labels = [("detector", detector), ("action", action)];
        builder.add("meseta_agent_qos_corrections_total", &labels, number(times));
    }
    let refused = number(state.corrections_refused());
    builder.one("meseta_agent_qos_corrections_refused_total", refused);
    for reading in state.readings() {
        let labels = [("detector", reading.detector)];
        let level = match reading.level {
            Level::Clear => 0.0,
            Level::Stop => 1.0,
            Level::Throttle => 2.0,
            Level::Kill => 3.0,
        };
        builder.add("meseta_agent_qos_detector_level", &labels, level);
        builder.add("meseta_agent_qos_detector_value", &labels, reading.value);
    }
}
