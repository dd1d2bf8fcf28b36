//! Every metric of the master: names, units, help and values, for Prometheus and for Mesos.
//!
//! This module counts nothing: both formats are made from a [`Snapshot`] on each request, in a registry of its own.
//! Labels come from closed sets, so their number is bounded. `resource_sums` takes the kinds of resources from here,
//! where their families are declared.

mod failures;
mod frameworks;
mod mesos;
mod page;
mod process;
mod resource_sums;
mod resources;
mod roles;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{self, MetricFamily};
use prometheus::{Counter, Encoder, GaugeVec, IntCounterVec, Opts, Registry, TextEncoder};

use meseta_daemon::disk_pulse::DiskSilence;
use meseta_daemon::tls::Served;
use meseta_daemon::verbosity::log_lines_left_out;
use meseta_etcd::leadership::Role;
use tokio::sync::watch;

use crate::chunked_response::Document;
use crate::core::{Snapshot, is_terminal, state_name};
use crate::measures::{ALLOCATION_BOUNDS, Histogram, Measures};
use mesos::MetricWriter;
use process::ProcessStats;
pub(crate) use resource_sums::{ResourceTotals, totals};

/// The kinds of resources with series of their own; others appear only in `/state`.
const RESOURCES: [(&str, &str, f64); 4] = [
    ("cpus", "cpus", 1.0),
    ("mem", "mem_bytes", MEGABYTE),
    ("disk", "disk_bytes", MEGABYTE),
    ("gpus", "gpus", 1.0),
];

const MEGABYTE: f64 = 1_048_576.0;

/// Makes metrics from snapshots.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// The path of the registry, if it is a file.
    pub(crate) registry: Option<PathBuf>,
    /// The master's role; without it the master leads.
    pub(crate) role: Option<watch::Receiver<Role>>,
    /// The time for reading the registry at the start.
    pub(crate) registry_read: OnceLock<Duration>,
    /// The time since the last response of an embedded registry's disk.
    pub(crate) disk_silence: DiskSilence,
    /// The served certificate, if connections are encrypted.
    pub(crate) certificate: Option<Arc<Served>>,
}

/// The data of the metrics for one reader.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// The whole cluster: every reader of metrics may see its totals.
    pub(crate) all: Arc<Snapshot>,
    /// The part of the cluster that the reader may see, for metrics by framework.
    pub(crate) seen: Arc<Snapshot>,
    pub(crate) measures: Measures,
}

impl Measured {
    /// A snapshot without measurements.
    pub(crate) fn from_snapshot(snapshot: Arc<Snapshot>) -> Self {
        Self {
            all: snapshot.clone(),
            seen: snapshot,
            measures: Measures::default(),
        }
    }
}

impl Metrics {
    fn is_elected(&self) -> bool {
        self.role().is_elected()
    }

    fn role(&self) -> Role {
        let role = self.role.as_ref();
        role.map_or(Role::Leading, |role| role.borrow().clone())
    }

    /// The metrics in the Prometheus text format.
    pub(crate) fn prometheus(&self, measured: &Measured) -> Result<Vec<u8>, prometheus::Error> {
        let registry = Registry::new();
        let mut families = families(measured, &self.role())?;
        let certificate = self.certificate.as_ref();
        families.extend(certificate_end(certificate.and_then(|one| one.end()))?);
        families.extend(registry_silence(self.disk_silence.get())?);
        registry.register(Box::new(SnapshotCollector(families.into())))?;
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text)?;
        Ok(text)
    }

    /// `/metrics/snapshot`: calls `visit` once for each Mesos key with its value.
    pub(crate) fn mesos(&self, measured: &Measured, visit: &mut dyn FnMut(&str, f64)) {
        mesos::visit(self, measured, visit);
        let seen = &measured.seen;
        for framework in seen.frameworks.iter() {
            frameworks::visit(seen, framework, visit);
        }
        frameworks::principals(&mut MetricWriter(visit), seen);
    }

    /// `/metrics/snapshot` as a page, optionally without the keys of frameworks and principals.
    pub(crate) fn document(
        metrics: &Arc<Self>,
        measured: &Measured,
        has_frameworks: bool,
    ) -> Document {
        page::document(metrics.clone(), measured.clone(), has_frameworks)
    }
}

/// The families of one snapshot, collected once.
struct SnapshotCollector(Mutex<Vec<MetricFamily>>);

impl Collector for SnapshotCollector {
    fn desc(&self) -> Vec<&Desc> {
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Metric families under construction.
struct Families(Vec<MetricFamily>);

impl Families {
    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        labels: &[&str],
        values: impl IntoIterator<Item = (Vec<String>, f64)>,
    ) -> Result<(), prometheus::Error> {
        let vector = GaugeVec::new(Opts::new(name, help), labels)?;
        for (labels, value) in values {
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            vector.get_metric_with_label_values(&labels)?.set(value);
        }
        self.0.extend(vector.collect());
        Ok(())
    }

    fn count(
        &mut self,
        name: &str,
        help: &str,
        labels: &[&str],
        values: impl IntoIterator<Item = (Vec<String>, usize)>,
    ) -> Result<(), prometheus::Error> {
        let value = |count| to_f64(u64::try_from(count).unwrap_or(u64::MAX));
        let values = values.into_iter();
        let values = values.map(|(labels, count)| (labels, value(count)));
        self.gauge(name, help, labels, values)
    }

    fn counter(
        &mut self,
        name: &str,
        help: &str,
        labels: &[&str],
        values: impl IntoIterator<Item = (Vec<String>, u64)>,
    ) -> Result<(), prometheus::Error> {
        let vector = IntCounterVec::new(Opts::new(name, help), labels)?;
        for (labels, value) in values {
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            vector.get_metric_with_label_values(&labels)?.inc_by(value);
        }
        self.0.extend(vector.collect());
        Ok(())
    }
}

impl Families {
    fn allocation_times(&mut self, times: &Histogram) {
        let mut total = 0;
        let buckets = ALLOCATION_BOUNDS.iter().zip(times.counts);
        let buckets = buckets.map(|(bound, count)| {
            total += count;
            let mut bucket = proto::Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(total);
            bucket
        });
        let mut histogram = proto::Histogram::default();
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(total + times.beyond);
        histogram.set_sample_sum(times.sum.as_secs_f64());
        let mut metric = proto::Metric::default();
        metric.set_histogram(histogram);
        let mut family = MetricFamily::default();
        family.set_name("meseta_master_allocator_run_seconds".to_owned());
        family.set_help("Duration of allocation cycles.".to_owned());
        family.set_field_type(proto::MetricType::HISTOGRAM);
        family.set_metric(vec![metric]);
        self.0.push(family);
    }

    /// A counter with fractions.
    fn float_counter(
        &mut self,
        name: &str,
        help: &str,
        value: Option<f64>,
    ) -> Result<(), prometheus::Error> {
        let counter = Counter::new(name, help)?;
        if let Some(value) = value {
            counter.inc_by(value);
            self.0.extend(counter.collect());
        }
        Ok(())
    }
}

fn one<T>(value: T) -> [(Vec<String>, T); 1] {
    [(Vec::new(), value)]
}

fn labelled<T>(values: impl IntoIterator<Item = (&'static str, T)>) -> Vec<(Vec<String>, T)> {
    values
        .into_iter()
        .map(|(label, value)| (vec![label.to_owned()], value))
        .collect()
}

fn families(measured: &Measured, role: &Role) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let (snapshot, seen) = (&*measured.all, &*measured.seen);
    let mut families = Families(Vec::new());
    process(&mut families, snapshot)?;
    leadership(&mut families, role)?;
    cluster(&mut families, snapshot)?;
    resources::families(&mut families, snapshot)?;
    resources::in_use(&mut families, measured.measures.usage)?;
    activity(&mut families, snapshot)?;
    families.allocation_times(&measured.measures.allocation_times);
    roles::families(&mut families, snapshot, seen)?;
    failures::families(&mut families, snapshot, seen)?;
    Ok(families.0)
}

/// The standard process metrics of every Prometheus client.
fn own(families: &mut Families, snapshot: &Snapshot) -> Result<(), prometheus::Error> {
    let own = ProcessStats::read();
    let some = |value: Option<u64>| value.map(|value| (Vec::new(), to_f64(value)));
    families.gauge(
        "meseta_master_build_info",
        "Always 1, with labels: Meseta's version, the version of the Mesos interface, and the commit.",
        &["version", "interface", "revision"],
        [(
            vec![
                snapshot.identity.build.version.to_owned(),
                snapshot.identity.version.clone(),
                snapshot.identity.build.commit.unwrap_or_default().to_owned(),
            ],
            1.0,
        )],
    )?;
    families.counter(
        "meseta_master_log_lines_left_out_total",
        "Log lines left out because too many had the same cause.",
        &[],
        one(log_lines_left_out()),
    )?;
    families.gauge(
        "process_start_time_seconds",
        "Start of the master since the Unix epoch.",
        &[],
        one(snapshot.started.as_secs_f64()),
    )?;
    families.float_counter(
        "process_cpu_seconds_total",
        "CPU time of the master itself.",
        own.cpu_seconds,
    )?;
    families.gauge(
        "process_resident_memory_bytes",
        "Resident memory of the master itself.",
        &[],
        some(own.resident_bytes),
    )?;
    families.count(
        "process_open_fds",
        "Open file descriptors of the master itself.",
        &[],
        own.open_fds.map(|count| (Vec::new(), count)),
    )?;
    families.gauge(
        "process_max_fds",
        "Limit on open file descriptors of the master.",
        &[],
        some(own.fds_max),
    )?;
    families.gauge(
        "process_threads",
        "Threads of the master itself.",
        &[],
        some(own.threads),
    )
}

fn registry_silence(silence: Duration) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let mut families = Families(Vec::new());
    families.gauge(
        "meseta_master_registry_silent_seconds",
        "Seconds without an answer from the disk of the embedded registry; 0 while the disk answers. After 30 seconds, /health reports this.",
        &[],
        one(silence.as_secs_f64()),
    )?;
    Ok(families.0)
}

fn certificate_end(end: Option<Duration>) -> Result<Vec<MetricFamily>, prometheus::Error> {
    let mut families = Families(Vec::new());
    families.gauge(
        "meseta_master_certificate_end_seconds",
        "Expiry of the server certificate, in seconds since the Unix epoch.",
        &[],
        end.map(|end| (Vec::new(), end.as_secs_f64())),
    )?;
    Ok(families.0)
}

fn leadership(families: &mut Families, role: &Role) -> Result<(), prometheus::Error> {
    families.count(
        "meseta_master_elected",
        "1 if this master leads, else 0.",
        &[],
        one(usize::from(role.is_elected())),
    )?;
    let is = |name: &str| usize::from(name == role.name());
    families.count(
        "meseta_master_leadership",
        "Leadership state of this master: 1 for the present state, 0 for the other states.",
        &["state"],
        Role::NAMES.map(|name| (vec![name.to_owned()], is(name))),
    )
}

fn process(families: &mut Families, snapshot: &Snapshot) -> Result<(), prometheus::Error> {
    own(families, snapshot)?;
    families.gauge(
        "meseta_master_start_time_seconds",
        "When this master started, in seconds since the Unix epoch.",
        &[],
        one(snapshot.started.as_secs_f64()),
    )?;
    families.gauge(
        "meseta_master_registry_epoch",
        "Epoch of the registry under this master.",
        &[],
        one(to_f64(snapshot.epoch)),
    )?;
    families.count(
        "meseta_master_registry_pending_mutations",
        "Pending mutations of the registry that are not durable yet.",
        &[],
        one(snapshot.pending_mutations),
    )?;
    families.counter(
        "meseta_master_invariant_violations_total",
        "Inconsistencies between master and allocator; each one is a defect.",
        &[],
        one(snapshot.counters.invariant_violations),
    )
}

fn cluster(families: &mut Families, snapshot: &Snapshot) -> Result<(), prometheus::Error> {
    let connected = snapshot
        .agents
        .iter()
        .filter(|agent| agent.connected)
        .count();
    families.count(
        "meseta_master_agents",
        "Agents by condition.",
        &["state"],
        labelled([
            ("connected", connected),
            ("disconnected", snapshot.agents.len() - connected),
            ("recovered", snapshot.recovered_agents.len()),
            ("unreachable", snapshot.unreachable_agents.len()),
        ]),
    )?;
    let subscribed = snapshot.frameworks.iter().filter(|f| f.connected).count();
    let recovered = snapshot.frameworks.iter().filter(|f| f.recovered).count();
    families.count(
        "meseta_master_frameworks",
        "Frameworks by condition.",
        &["state"],
        labelled([
            ("subscribed", subscribed),
            (
                "disconnected",
                snapshot.frameworks.len() - subscribed - recovered,
            ),
            ("recovered", recovered),
            ("completed", snapshot.completed_frameworks.len()),
        ]),
    )?;
    families.count(
        "meseta_master_recovery_mode",
        "1 if offers wait for agents after a restart, because a quota exists; else 0.",
        &[],
        one(usize::from(snapshot.recovery_mode.is_some())),
    )?;
    families.count(
        "meseta_master_recovery_mode_awaited_agents",
        "Agents that must come back after a restart before the master makes offers; 0 outside recovery mode.",
        &[],
        one(snapshot.recovery_mode.map_or(0, |mode| mode.missing)),
    )?;
    families.count(
        "meseta_master_outstanding_offers",
        "Offers that frameworks hold.",
        &[],
        one(snapshot.offers.len()),
    )?;
    families.count(
        "meseta_master_tasks",
        "Tasks that have not ended, by state.",
        &["state"],
        live_tasks(snapshot).into_iter().map(|(state, count)| {
            (
                vec![state.to_owned()],
                usize::try_from(count).unwrap_or(usize::MAX),
            )
        }),
    )?;
    families.counter(
        "meseta_master_tasks_ended_total",
        "Terminal updates that the master forwarded or created, by state.",
        &["state"],
        labelled(
            snapshot
                .counters
                .terminal
                .iter()
                .map(|(state, count)| (*state, *count)),
        ),
    )
}

fn activity(families: &mut Families, snapshot: &Snapshot) -> Result<(), prometheus::Error> {
    let counters = &snapshot.counters;
    families.counter(
        "meseta_master_calls_total",
        "Accepted calls of schedulers, by type.",
        &["type"],
        labelled(counters.calls.iter().map(|(name, count)| (*name, *count))),
    )?;
    families.counter(
        "meseta_master_calls_rejected_total",
        "Calls of schedulers that the master's core answered with an error.",
        &[],
        one(counters.rejected_calls),
    )?;
    families.counter(
        "meseta_master_agent_frames_total",
        "Frames of agents, by type.",
        &["type"],
        labelled(
            counters
                .agent_frames
                .iter()
                .map(|(name, count)| (*name, *count)),
        ),
    )?;
    families.counter(
        "meseta_master_agent_events_total",
        "Arrivals and departures of agents, by event.",
        &["event"],
        labelled([
            ("registered", counters.agent_registrations),
            ("reregistered", counters.agent_reregistrations),
            ("unreachable", counters.agent_unreachable_completed),
            ("unregistered", counters.agent_removals_unregistered),
            ("replaced", counters.agent_removals_registered),
        ]),
    )?;
    families.counter(
        "meseta_master_offers_total",
        "Offers, by outcome.",
        &["event"],
        labelled([
            ("made", counters.offers_made),
            ("accepted", counters.offers_accepted),
            ("declined", counters.offers_declined),
            ("rescinded", counters.offers_rescinded),
        ]),
    )?;
    families.counter(
        "meseta_master_tasks_launched_total",
        "Tasks sent to agents.",
        &[],
        one(counters.tasks_launched),
    )?;
    families.counter(
        "meseta_master_allocator_runs_total",
        "Allocation cycles.",
        &[],
        one(counters.allocation_runs),
    )?;
    families.counter(
        "meseta_master_status_updates_total",
        "Status updates of agents, valid or invalid.",
        &["valid"],
        labelled([
            ("true", counters.valid_status_updates),
            ("false", counters.invalid_status_updates),
        ]),
    )?;
    families.counter(
        "meseta_master_reconciliations_unanswered_total",
        "Pending reconciliation questions that only a returning agent can answer.",
        &[],
        one(counters.reconciliations_unanswered),
    )?;
    families.counter(
        "meseta_master_messages_dropped_total",
        "Events and frames without an open stream.",
        &[],
        one(counters.dropped_messages),
    )
}

/// The number of live tasks by the metric name of their state. Every state is present, so that series do not come and
/// go.
fn live_tasks(snapshot: &Snapshot) -> BTreeMap<&'static str, u64> {
    let mut counts: BTreeMap<&'static str, u64> = [
        "task_staging",
        "task_starting",
        "task_running",
        "task_killing",
        "task_unreachable",
    ]
    .into_iter()
    .map(|state| (state, 0))
    .collect();
    for (state, count) in snapshot.states().total().iter() {
        if !is_terminal(state)
            && let Some(name) = state_name(state)
        {
            *counts.entry(name).or_default() += count;
        }
    }
    let unreachable: usize = snapshot
        .frameworks
        .iter()
        .map(|f| f.unreachable.len())
        .sum();
    let unreachable = u64::try_from(unreachable).unwrap_or(u64::MAX);
    counts.insert("task_unreachable", unreachable);
    counts
}

/// Counts as floating point; exact up to 2^53.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts beyond 2^53 do not occur"
)]
fn to_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::tests::many_frameworks;

    fn measured() -> Measured {
        Measured::from_snapshot(many_frameworks(1, 1))
    }

    /// The page includes families that a young master has no series of, and that a scrape does not show.
    #[test]
    fn every_family_is_in_the_reference() {
        let page = include_str!("../../docs/metrics.md");
        let page = page.split("## `meseta agent`").next().unwrap_or_default();
        let mut families = families(&measured(), &Role::Leading).unwrap();
        families.extend(certificate_end(None).unwrap());
        assert!(families.len() > 35, "{}", families.len());
        for family in families {
            let kind = format!("{:?}", family.get_field_type()).to_lowercase();
            let row = format!("| `{}` | {kind} | {} |", family.name(), family.help());
            assert!(page.contains(&row), "not in docs/metrics.md: {row}");
        }
    }

    #[test]
    fn dashboard_uses_only_existing_metrics() {
        let text = include_str!("../../docs/grafana/masters.json");
        let _: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let families = families(&measured(), &Role::Leading).unwrap();
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let mut shown = 0;
        for (at, _) in text.match_indices("meseta_master_") {
            let rest = text.get(at..).unwrap_or_default();
            let name = rest.split(|c: char| !is_name(c)).next().unwrap_or_default();
            let is_known = families.iter().any(|family| family.name() == name);
            assert!(is_known, "{name}");
            shown += 1;
        }
        assert!(shown > 15, "{shown}");
    }

    #[test]
    fn exactly_one_leadership_state_is_set() {
        let suspended = Role::Suspended {
            reason: "no etcd".to_owned(),
        };
        let families = families(&measured(), &suspended).unwrap();
        let family = |name: &str| families.iter().find(|family| family.name() == name);
        let states = family("meseta_master_leadership").unwrap().get_metric();
        let set: Vec<_> = states
            .iter()
            .filter(|state| state.get_gauge().get_value() > 0.0)
            .map(|state| state.get_label()[0].value())
            .collect();
        assert_eq!(set, ["suspended"]);
    }
}
