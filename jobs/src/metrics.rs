//! The metrics of the scheduler: names, help and values, for Prometheus.
//!
//! Entered through [`text`]. Counts nothing itself: each request builds the families from the core and the kernel. Labels
//! come from closed sets, so their number is bounded.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_daemon::descriptors;
use meseta_etcd::leadership::Role;
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};
use prometheus::{Encoder as _, TextEncoder};

use crate::core::{JobFailures, QUEUE_BOUNDS, Queue, State, Tally, Totals};
use crate::service::{Handle, Unavailable};

/// The measured values between two steps.
#[derive(Debug)]
pub(crate) struct Measures {
    tally: Tally,
    totals: Totals,
    failures: JobFailures,
    is_connected: bool,
    role: Role,
}

impl Measures {
    /// Measures the jobs, some of them at a time.
    pub(crate) async fn from_handle(handle: &Handle) -> Result<Self, Unavailable> {
        let role = handle.standing.now();
        let (mut tally, mut last) = (Tally::default(), None);
        loop {
            let looked = move |state: &State| {
                let (some, next) = state.tally_behind(last.as_deref());
                let failures = next.is_none().then(|| state.job_failures());
                (some, next, state.totals(), failures, state.is_connected())
            };
            let (some, next, totals, failures, is_connected) = handle.read(looked).await?;
            tally.add(&some);
            last = next;
            if last.is_none() {
                return Ok(Self {
                    tally,
                    totals,
                    failures: failures.unwrap_or_default(),
                    is_connected,
                    role,
                });
            }
        }
    }
}

/// The measured values of the process, which the core does not know.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Process {
    /// The end of the served certificate, since the Unix epoch.
    certificate_end: Option<Duration>,
    /// The time for which the store's disk has not answered.
    disk_silence: Duration,
    descriptors: Option<usize>,
    descriptors_max: Option<u64>,
}

impl Process {
    /// Reads the current values of the process.
    pub(crate) fn read(certificate_end: Option<Duration>, disk_silence: Duration) -> Self {
        Self {
            certificate_end,
            disk_silence,
            descriptors: descriptors::open(),
            descriptors_max: descriptors::limit(),
        }
    }
}

/// Encodes the measures in the text exposition format.
///
/// `sees` says whether the reader may view a role: an empty name stands for the jobs of the other roles.
pub(crate) fn text(
    measures: &Measures,
    process: Process,
    sees: &dyn Fn(&str) -> bool,
) -> Result<Vec<u8>, prometheus::Error> {
    let mut text = Vec::new();
    let families = families(measures, process, sees);
    // The encoder refuses a family without any series.
    let families: Vec<_> = families
        .into_iter()
        .filter(|family| !family.get_metric().is_empty())
        .collect();
    TextEncoder::new().encode(&families, &mut text)?;
    Ok(text)
}

fn families(
    measures: &Measures,
    process: Process,
    sees: &dyn Fn(&str) -> bool,
) -> Vec<MetricFamily> {
    let mut families = vec![gauge(
        "meseta_scheduler_certificate_end_seconds",
        "Expiry of the server certificate, in seconds since the Unix epoch.",
        some(process.certificate_end.map(|end| end.as_secs())),
    )];
    families.push(job_failures(&measures.failures, sees));
    families.extend(families_of_jobs(measures));
    families.push(gauge(
        "meseta_scheduler_store_silent_seconds",
        "Seconds without an answer from the disk of the embedded store; 0 while the disk answers.",
        some(Some(process.disk_silence.as_secs())),
    ));
    families.push(gauge(
        "process_max_fds",
        "Limit on open file descriptors of the scheduler.",
        some(process.descriptors_max),
    ));
    families.push(gauge(
        "process_open_fds",
        "Open file descriptors of the scheduler itself.",
        process.descriptors.map_or_else(Vec::new, one),
    ));
    families
}

fn families_of_jobs(measures: &Measures) -> Vec<MetricFamily> {
    let Measures {
        tally,
        totals,
        is_connected,
        role,
        ..
    } = measures;
    let leadership = Role::NAMES.map(|name| (Some(name), usize::from(name == role.name())));
    vec![
        gauge(
            "meseta_scheduler_jobs",
            "Jobs by state.",
            by_state(&tally.jobs),
        ),
        gauge(
            "meseta_scheduler_leadership",
            "Leadership state of this scheduler: 1 for the present state, 0 for the other states.",
            leadership.into(),
        ),
        counter(
            "meseta_scheduler_log_lines_left_out_total",
            "Log lines left out because too many had the same cause.",
            meseta_daemon::verbosity::log_lines_left_out(),
        ),
        counter(
            "meseta_scheduler_offers_unreadable_total",
            "Offers that the scheduler declined because it could not parse them.",
            totals.unreadable_offers,
        ),
        histogram(
            "meseta_scheduler_queue_seconds",
            "Time from the submission of the job, or from the time at which a task may start, to its launch.",
            &totals.queue,
        ),
        gauge(
            "meseta_scheduler_subscribed",
            "1 if a master answers, else 0.",
            one(usize::from(*is_connected)),
        ),
        counter(
            "meseta_scheduler_tasks_failed_total",
            "Tasks that failed, or that the scheduler killed because their run took too long.",
            totals.failed,
        ),
        gauge(
            "meseta_scheduler_tasks_healthy",
            "Healthy tasks of services.",
            one(tally.healthy),
        ),
        counter(
            "meseta_scheduler_tasks_launched_total",
            "Tasks launched since the start.",
            totals.launched,
        ),
        counter(
            "meseta_scheduler_tasks_lost_total",
            "Tasks that were lost with their agents, or preempted.",
            totals.lost,
        ),
        gauge(
            "meseta_scheduler_tasks_pending",
            "Waiting tasks.",
            one(tally.pending),
        ),
        counter(
            "meseta_scheduler_tasks_restarts_total",
            "Tasks that ended or were lost unexpectedly, and start again.",
            totals.restarts,
        ),
        gauge(
            "meseta_scheduler_tasks_running",
            "Tasks that run.",
            one(tally.running),
        ),
        counter(
            "meseta_scheduler_tasks_started_total",
            "Tasks that reached the state running.",
            totals.started,
        ),
        counter(
            "meseta_scheduler_tasks_strays_killed_total",
            "Tasks killed because the scheduler did not know them.",
            totals.strays_killed,
        ),
        counter(
            "meseta_scheduler_tasks_succeeded_total",
            "Tasks that succeeded.",
            totals.succeeded,
        ),
        gauge(
            "meseta_scheduler_volumes",
            "Volumes of instances by state; a volume to release waits for an offer of its agent.",
            by_state(&tally.volumes),
        ),
    ]
}

type Values = Vec<(Option<&'static str>, usize)>;

fn one(value: usize) -> Values {
    vec![(None, value)]
}

fn some(value: Option<u64>) -> Values {
    let value = value.map(|value| usize::try_from(value).unwrap_or(usize::MAX));
    value.map_or_else(Vec::new, one)
}

fn by_state(counts: &BTreeMap<&'static str, usize>) -> Values {
    let counts = counts.iter();
    counts
        .map(|(state, count)| (Some(*state), *count))
        .collect()
}

fn gauge(name: &str, help: &str, values: Values) -> MetricFamily {
    let metrics = values.into_iter().map(|(state, value)| {
        let mut gauge = Gauge::default();
        gauge.set_value(to_f64(u64::try_from(value).unwrap_or(u64::MAX)));
        let labels = state.map(|state| {
            let mut label = LabelPair::default();
            label.set_name("state".to_owned());
            label.set_value(state.to_owned());
            label
        });
        let mut metric = Metric::from_label(labels.into_iter().collect());
        metric.set_gauge(gauge);
        metric
    });
    family(name, help, MetricType::GAUGE, metrics.collect())
}

/// Writes one series for each job with a failed task.
fn job_failures(failures: &JobFailures, sees: &dyn Fn(&str) -> bool) -> MetricFamily {
    let failures = failures.seen(sees).into_iter();
    let metrics = failures.map(|((job, role), count)| {
        let label = |name: &str, value: &str| {
            let mut label = LabelPair::default();
            label.set_name(name.to_owned());
            label.set_value(value.to_owned());
            label
        };
        let mut counter = Counter::default();
        counter.set_value(to_f64(count));
        let labels = vec![
            label("job_name", job),
            label("role", role),
            label("state", "task_failed"),
        ];
        let mut metric = Metric::from_label(labels);
        metric.set_counter(counter);
        metric
    });
    family(
        "meseta_scheduler_job_tasks_failed_total",
        "Tasks that failed, by job (`job_name`: Prometheus has a label `job` of its own), role and state; an empty name stands for jobs that are purged, moved to another role, beyond the first thousand, or in roles that the reader may not view.",
        MetricType::COUNTER,
        metrics.collect(),
    )
}

fn counter(name: &str, help: &str, value: u64) -> MetricFamily {
    let mut counter = Counter::default();
    counter.set_value(to_f64(value));
    let mut metric = Metric::default();
    metric.set_counter(counter);
    family(name, help, MetricType::COUNTER, vec![metric])
}

fn histogram(name: &str, help: &str, queue: &Queue) -> MetricFamily {
    let mut total = 0;
    let buckets = QUEUE_BOUNDS.iter().zip(queue.counts).map(|(bound, count)| {
        total += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound.as_secs_f64());
        bucket.set_cumulative_count(total);
        bucket
    });
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(total + queue.beyond);
    histogram.set_sample_sum(queue.sum.as_secs_f64());
    let mut metric = Metric::default();
    metric.set_histogram(histogram);
    family(name, help, MetricType::HISTOGRAM, vec![metric])
}

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

/// Prometheus counts in floating point, which is exact up to 2^53.
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

    fn measures(totals: Totals) -> Measures {
        Measures {
            tally: Tally::default(),
            totals,
            failures: JobFailures::default(),
            is_connected: true,
            role: Role::Leading,
        }
    }

    #[test]
    fn exactly_one_leadership_state_is_set() {
        let text = text(&measures(Totals::default()), Process::default(), &|_| true).expect("text");
        let text = String::from_utf8(text).expect("text");
        let is = |state: &str, value: u8| {
            let line = format!("meseta_scheduler_leadership{{state=\"{state}\"}} {value}");
            assert!(text.lines().any(|one| one == line), "{line} in {text}");
        };
        is("leading", 1);
        is("following", 0);
    }

    #[test]
    fn reference_lists_exactly_the_families() {
        let page = include_str!("../../docs/metrics.md");
        let part = page.split("## `meseta scheduler`").nth(1).expect("a part");
        let part = part.split("\n## ").next().expect("a part");
        let rows = part.lines().filter(|line| line.starts_with("| `"));
        let rows: Vec<&str> = rows.collect();
        let families = families(&measures(Totals::default()), Process::default(), &|_| true);
        let expected: Vec<String> = families
            .iter()
            .map(|family| {
                let kind = format!("{:?}", family.get_field_type()).to_lowercase();
                format!("| `{}` | {kind} | {} |", family.name(), family.help())
            })
            .collect();
        assert_eq!(rows, expected, "docs/metrics.md");
    }

    #[test]
    fn alerts_name_existing_metrics() {
        let families = families(&measures(Totals::default()), Process::default(), &|_| true);
        let rules = include_str!("../../docs/alerts/cluster.rules.yml");
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let mut named = 0;
        for (at, _) in rules.match_indices("meseta_scheduler_") {
            let rest = rules.get(at..).unwrap_or_default();
            let name = rest.split(|c: char| !is_name(c)).next().unwrap_or_default();
            let is_known = families.iter().any(|family| family.name() == name);
            assert!(is_known, "{name}");
            named += 1;
        }
        assert!(named >= 5, "{named}");
    }

    #[test]
    fn the_process_is_measured_too() {
        let process = Process::read(
            Some(Duration::from_secs(1_900_000_000)),
            Duration::from_secs(31),
        );
        let text = text(&measures(Totals::default()), process, &|_| true).expect("text");
        let text = String::from_utf8(text).expect("text");
        let end = "meseta_scheduler_certificate_end_seconds 1900000000\n";
        let silent = "\nmeseta_scheduler_store_silent_seconds 31\n";
        for part in [end, silent, "\nprocess_open_fds ", "\nprocess_max_fds "] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn queue_times_are_counted_in_buckets() {
        let mut totals = Totals::default();
        for seconds in [0, 3, 7, 100_000] {
            totals.queue.add(Duration::from_secs(seconds));
        }
        let text = text(&measures(totals), Process::default(), &|_| true).expect("text");
        let text = String::from_utf8(text).expect("text");
        for line in [
            "# TYPE meseta_scheduler_queue_seconds histogram",
            "meseta_scheduler_queue_seconds_bucket{le=\"0.1\"} 1",
            "meseta_scheduler_queue_seconds_bucket{le=\"5\"} 2",
            "meseta_scheduler_queue_seconds_bucket{le=\"10\"} 3",
            "meseta_scheduler_queue_seconds_bucket{le=\"+Inf\"} 4",
            "meseta_scheduler_queue_seconds_sum 100010",
            "meseta_scheduler_queue_seconds_count 4",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in {text}");
        }
    }
}
