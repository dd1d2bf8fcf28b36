//! Oversubscription: runs the resource estimator and the QoS controller after each sample.
//!
//! Entered through [`Configured::read`], which refuses invalid settings, and [`Service::run`]. After each sweep of the
//! monitor the service queries the controller and the estimator, and passes their answers to the core. A separate task
//! calls each plug-in. Invariant: no decision is taken here, and nothing waits for a plug-in.

mod deprived;
mod health;
mod host;
mod modules;
mod plugin;
mod sample;
mod usage;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use meseta_daemon::error_chain::chain;
use meseta_estimators::{
    Assessment, ConfigError, ContainerUsage, ControllerSpec, Estimate, EstimatorSpec, Gate,
    QosController, ResourceEstimator, UsageSample,
};
use meseta_resources::{Moment, Resources, format_duration};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::checkpoint::{Layout, read_learned_profile, write_learned_profile};
use crate::clock::unix_now;
use crate::configuration::flags::Flags;
use crate::core::{Report, Snapshot};
use crate::handle::Handle;
use crate::monitor::Samples;
use deprived::{Deprived, Stalls};
use health::Health;
use host::HostReader;
pub use modules::ModulesError;
use plugin::{Answer, Failure, Plugin, Question};
pub(crate) use plugin::{DETECTOR as PLUGIN_DETECTOR, FAILURE_KINDS, Role};
use sample::Clocks;

/// The interval at which the estimator's learned profile is written.
const PROFILE_INTERVAL: Duration = Duration::from_secs(300);
/// Answers of plug-ins that may wait: each plug-in has one call in progress.
const ANSWERS_MAX: usize = 4;

/// The reason why oversubscription cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum OversubscriptionError {
    /// The value of `--modules` or `--modules_dir`.
    #[error(transparent)]
    Modules(#[from] ModulesError),
    /// An unknown name or an invalid parameter.
    #[error("--{flag}: {wrong}")]
    Config {
        /// The flag that names the estimator or the controller.
        flag: &'static str,
        wrong: ConfigError,
    },
    /// An interval so long that all readings of an estimator or a controller are outdated.
    #[error(
        "--{flag}={interval}: {module} ignores readings further apart than its parameter \
         stale_after, {stale_after}; give at most {interval_max}, or a longer stale_after \
         (--modules)"
    )]
    Interval {
        flag: &'static str,
        interval: String,
        /// The estimator or the controller.
        module: &'static str,
        stale_after: String,
        interval_max: String,
    },
    /// The address of a plug-in is invalid.
    #[error("--{flag}={address}: {wrong}")]
    Address {
        flag: &'static str,
        address: String,
        /// The error in the address.
        wrong: String,
    },
}

/// A built-in estimator or controller, or the address of a plug-in.
#[derive(Debug)]
enum Selection<T: ?Sized> {
    Builtin(Box<T>),
    Remote(String),
}

#[derive(Debug)]
pub(crate) struct Configured {
    estimator: Selection<dyn ResourceEstimator>,
    controller: Selection<dyn QosController>,
    qos_interval: Duration,
    host_proc: PathBuf,
    is_noop: bool,
}

impl Configured {
    pub(crate) fn read(flags: &Flags) -> Result<Self, OversubscriptionError> {
        let modules = modules::read(&flags.modules, flags.modules_dir.as_deref())?;
        let of_estimator = |wrong| OversubscriptionError::Config {
            flag: Role::Estimator.as_str(),
            wrong,
        };
        let of_controller = |wrong| OversubscriptionError::Config {
            flag: Role::Controller.as_str(),
            wrong,
        };
        let estimator = EstimatorSpec::parse(&flags.resource_estimator).map_err(of_estimator)?;
        let controller = ControllerSpec::parse(&flags.qos_controller).map_err(of_controller)?;
        let estimator = match estimator {
            EstimatorSpec::Remote(address) => Selection::Remote(checked(Role::Estimator, address)?),
            spec => Selection::Builtin(spec.build(&modules).map_err(of_estimator)?),
        };
        let controller = match controller {
            ControllerSpec::Remote(address) => {
                Selection::Remote(checked(Role::Controller, address)?)
            }
            spec => Selection::Builtin(spec.build(&modules).map_err(of_controller)?),
        };
        if let Selection::Builtin(estimator) = &estimator {
            // Queried after each sweep, which may be late.
            let interval = ("monitor_interval", flags.monitor_interval);
            let stale_after = estimator.stale_after();
            check_interval(interval, estimator.name(), stale_after, |stale| {
                stale / 3 * 2
            })?;
        }
        if let Selection::Builtin(controller) = &controller {
            // Queried with the first sweep after the interval, and sweeps are not more frequent.
            let flag = "qos_correction_interval_min";
            let interval = (flag, flags.qos_correction_interval_min);
            let stale_after = controller.stale_after();
            check_interval(interval, controller.name(), stale_after, |stale| stale / 2)?;
        }
        let is_noop = matches!(&estimator, Selection::Builtin(one) if one.name() == "noop")
            && matches!(&controller, Selection::Builtin(one) if one.name() == "noop");
        Ok(Self {
            estimator,
            controller,
            qos_interval: flags.qos_correction_interval_min,
            host_proc: flags.host_proc.clone(),
            is_noop,
        })
    }
}

fn check_interval(
    (flag, interval): (&'static str, Duration),
    module: &'static str,
    stale_after: Option<Duration>,
    longest: fn(Duration) -> Duration,
) -> Result<(), OversubscriptionError> {
    let Some(stale_after) = stale_after.filter(|stale_after| interval > longest(*stale_after))
    else {
        return Ok(());
    };
    Err(OversubscriptionError::Interval {
        flag,
        interval: format_duration(interval),
        module,
        stale_after: format_duration(stale_after),
        interval_max: format_duration(longest(stale_after)),
    })
}

fn checked(role: Role, address: String) -> Result<String, OversubscriptionError> {
    match plugin::check_address(&address) {
        Ok(()) => Ok(address),
        Err(wrong) => Err(OversubscriptionError::Address {
            flag: role.as_str(),
            address,
            wrong: wrong.into(),
        }),
    }
}

/// Failed calls of plug-ins, by plug-in and kind; shared with the metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures(Arc<Mutex<BTreeMap<(Role, &'static str), u64>>>);

impl Failures {
    fn count(&self, role: Role, kind: &'static str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((role, kind)).or_default() += 1;
    }

    pub(crate) fn counts(&self) -> BTreeMap<(Role, &'static str), u64> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The state that the loops use.
#[derive(Debug)]
pub(crate) struct ServiceContext {
    pub(crate) core: Handle,
    pub(crate) samples: Samples,
    pub(crate) layout: Layout,
    pub(crate) failures: Failures,
    pub(crate) enable_cfs: bool,
}

#[derive(Debug)]
pub(crate) struct Service {
    context: ServiceContext,
    estimator: Backend<dyn ResourceEstimator>,
    controller: Backend<dyn QosController>,
    qos_interval: Duration,
    last_assessed: Option<Moment>,
    gate: Gate,
    host: HostReader,
    deprived: Deprived,
    origin: (Instant, Duration),
    profile_due: Moment,
    answers: mpsc::Receiver<Answer>,
}

#[derive(Debug)]
enum Backend<T: ?Sized> {
    Builtin(Box<T>),
    Remote { plugin: Plugin, health: Health },
}

impl Service {
    /// Creates the service; `None` if both parts do nothing.
    pub(crate) fn new(configured: Configured, context: ServiceContext) -> Option<Self> {
        if configured.is_noop {
            return None;
        }
        let (sender, answers) = mpsc::channel(ANSWERS_MAX);
        let estimator = backend(configured.estimator, Role::Estimator, &sender)?;
        let controller = backend(configured.controller, Role::Controller, &sender)?;
        let mut service = Self {
            context,
            estimator,
            controller,
            qos_interval: configured.qos_interval,
            last_assessed: None,
            gate: Gate::Open,
            host: HostReader::at(&configured.host_proc),
            deprived: Deprived::default(),
            origin: (Instant::now(), since_boot()),
            profile_due: Moment::ORIGIN,
            answers,
        };
        service.restore();
        Some(service)
    }

    /// Runs the loop for ever.
    pub(crate) async fn run(mut self) {
        if matches!(self.controller, Backend::Remote { .. }) {
            // Until the first answer, no controller supervises the oversubscription.
            self.gate = Gate::Closed;
            self.report(Resources::new(), None, Some(plugin::unwatched(&[])))
                .await;
        }
        loop {
            tokio::select! {
                () = self.context.samples.swept() => self.turn().await,
                Some(answer) = self.answers.recv() => self.answered(answer).await,
            }
        }
    }

    fn clocks(&self) -> Clocks {
        let (origin, boot) = self.origin;
        Clocks {
            boot: boot + origin.elapsed(),
            unix: unix_now(),
        }
    }

    async fn turn(&mut self) {
        let Some(snapshot) = self.context.core.snapshot().await else {
            return;
        };
        let readings = self.context.samples.last();
        let reader = self.host.clone();
        let Ok(host) = tokio::task::spawn_blocking(move || reader.read()).await else {
            return;
        };
        let clocks = self.clocks();
        // The stalls of regular containers are in the sample, by container.
        let mut sample = sample::usage_sample(clocks, host, &snapshot, &readings);
        sample.host = host_of(&sample, &mut self.deprived, &readings);
        self.watch(&sample);
        let question = self.question(&sample, &snapshot, &readings);
        let assessment = self.assess(&sample, question.as_ref());
        let assessment = assessment.or_else(|| self.expire(&sample, Instant::now()));
        if let Some(assessment) = &assessment {
            self.gate = assessment.gate();
        }
        let estimate = self.estimate(&sample, question.as_ref());
        self.save_learned_profile(sample.at);
        self.report(sample.allocated_revocable(), estimate, assessment)
            .await;
    }

    /// Requests more frequent samples while revocable resources are in use.
    fn watch(&self, sample: &UsageSample) {
        let is_oversubscribed = sample.containers.iter().any(ContainerUsage::is_revocable);
        let interval_max = match &self.controller {
            Backend::Builtin(controller) if is_oversubscribed => controller.interval_max(),
            _ => None,
        };
        // Samples more frequent than the corrections are of no use.
        let interval_max = interval_max.map(|interval| interval.max(self.qos_interval));
        self.context.samples.watch(interval_max);
    }

    fn question(
        &self,
        sample: &UsageSample,
        snapshot: &Snapshot,
        readings: &BTreeMap<meseta_resources::ContainerId, crate::monitor::Sample>,
    ) -> Option<Question> {
        let remote = matches!(self.estimator, Backend::Remote { .. })
            || matches!(self.controller, Backend::Remote { .. });
        remote.then(|| Question {
            usage: Arc::new(usage::message(
                sample,
                snapshot,
                readings,
                self.context.enable_cfs,
            )),
            allocated: sample.allocated_revocable(),
        })
    }

    fn assess(&mut self, sample: &UsageSample, question: Option<&Question>) -> Option<Assessment> {
        let since = |last| sample.at.saturating_since(last);
        if self
            .last_assessed
            .is_some_and(|last| since(last) < self.qos_interval)
        {
            return None;
        }
        self.last_assessed = Some(sample.at);
        match &mut self.controller {
            Backend::Builtin(controller) => Some(controller.assess(sample)),
            Backend::Remote { plugin, health } => {
                plugin.ask(question?.clone());
                health.asked(Instant::now());
                None
            }
        }
    }

    fn estimate(&mut self, sample: &UsageSample, question: Option<&Question>) -> Option<Estimate> {
        match &mut self.estimator {
            Backend::Builtin(estimator) => Some(estimator.estimate(sample, self.gate)),
            Backend::Remote { plugin, .. } => {
                plugin.ask(question?.clone());
                None
            }
        }
    }

    async fn report(
        &self,
        allocated: Resources,
        estimate: Option<Estimate>,
        assessment: Option<Assessment>,
    ) {
        let report = Report {
            allocated,
            estimate,
            assessment,
        };
        self.context.core.report(report).await;
    }

    async fn answered(&mut self, answer: Answer) {
        match answer {
            Answer::Estimate(outcome) => {
                note(
                    &mut self.estimator,
                    Role::Estimator,
                    &outcome,
                    &self.context.failures,
                );
                match *outcome {
                    Ok((allocated, mut estimate)) => {
                        if self.gate == Gate::Closed {
                            estimate.oversubscribable = Some(Resources::new());
                        }
                        self.report(allocated, Some(estimate), None).await;
                    }
                    Err(failure) => self.withdraw_estimate(&failure.why).await,
                }
            }
            Answer::Assessment(outcome) => {
                note(
                    &mut self.controller,
                    Role::Controller,
                    &outcome,
                    &self.context.failures,
                );
                if let Ok(assessment) = *outcome {
                    self.gate = assessment.gate();
                    self.report(self.allocated().await, None, Some(assessment))
                        .await;
                }
            }
        }
    }

    /// The resources of revocable work now.
    async fn allocated(&self) -> Resources {
        match self.context.core.snapshot().await {
            Some(snapshot) => snapshot.allocated().revocable().unallocate(),
            None => Resources::new(),
        }
    }

    async fn withdraw_estimate(&self, why: &str) {
        let estimate = Estimate {
            oversubscribable: Some(Resources::new()),
            held_back: Some(format!("the resource estimator does not answer: {why}")),
            ..Estimate::default()
        };
        self.report(self.allocated().await, Some(estimate), None)
            .await;
    }

    /// Replaces the decisions of a silent controller: nothing is throttled any more, and oversubscription stops until a
    /// controller supervises it again.
    fn expire(&mut self, sample: &UsageSample, now: Instant) -> Option<Assessment> {
        let Backend::Remote { health, .. } = &mut self.controller else {
            return None;
        };
        health
            .expires(now)
            .then(|| plugin::unwatched(&sample.containers))
    }

    fn restore(&mut self) {
        let Backend::Builtin(estimator) = &mut self.estimator else {
            return;
        };
        let (origin, boot) = self.origin;
        let now = Moment::ORIGIN + boot + origin.elapsed();
        self.profile_due = now + PROFILE_INTERVAL;
        let profile = match read_learned_profile(&self.context.layout) {
            Ok(Some(profile)) => profile,
            Ok(None) => return,
            Err(error) => {
                return warn!(error = %chain(&error), "failed to restore the learned \
                usage");
            }
        };
        match estimator.restore(now, &profile) {
            Ok(()) => info!(estimator = estimator.name(), "restored the learned usage"),
            // The profile is probably that of another estimator.
            Err(error) => info!(%error, "the saved usage is invalid"),
        }
    }

    fn save_learned_profile(&mut self, now: Moment) {
        let Backend::Builtin(estimator) = &self.estimator else {
            return;
        };
        if now < self.profile_due {
            return;
        }
        self.profile_due = now + PROFILE_INTERVAL;
        let profile = estimator.checkpoint(now);
        if profile.is_empty() {
            return;
        }
        let layout = self.context.layout.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = write_learned_profile(&layout, &profile) {
                warn!(error = %chain(&error), "failed to save the learned usage");
            }
        });
    }
}

fn backend<T: ?Sized>(
    selection: Selection<T>,
    role: Role,
    answers: &mpsc::Sender<Answer>,
) -> Option<Backend<T>> {
    match selection {
        Selection::Builtin(one) => Some(Backend::Builtin(one)),
        Selection::Remote(address) => match Plugin::start(role, &address, answers.clone()) {
            Ok(plugin) => {
                info!(plugin = role.as_str(), address, "calling a plug-in");
                let health = Health::default();
                Some(Backend::Remote { plugin, health })
            }
            Err(error) => {
                warn!(address, error = %chain(&error), "failed to call the plug-in");
                None
            }
        },
    }
}

/// Notes the result of a call, and logs a warning once when plug-ins begin to fail.
fn note<T: ?Sized, A>(
    backend: &mut Backend<T>,
    role: Role,
    outcome: &Result<A, Failure>,
    failures: &Failures,
) {
    let Backend::Remote { health, .. } = backend else {
        return;
    };
    let plugin = role.as_str();
    match outcome {
        Ok(_) => {
            if health.answered() {
                info!(plugin, "the plug-in answers again");
            }
        }
        Err(failure) => {
            failures.count(role, failure.kind);
            if health.failed() {
                warn!(
                    plugin,
                    kind = failure.kind,
                    why = failure.why,
                    "the plug-in does not answer"
                );
            }
        }
    }
}

fn host_of(
    sample: &UsageSample,
    deprived: &mut Deprived,
    readings: &BTreeMap<meseta_resources::ContainerId, crate::monitor::Sample>,
) -> meseta_estimators::HostUsage {
    let usages = readings.iter().map(|(id, reading)| (id, &reading.usage));
    let (cpu, memory) = deprived.observe(sample, &Stalls::by_container(usages));
    meseta_estimators::HostUsage {
        regular_cpu_pressure: cpu,
        regular_memory_pressure: memory,
        ..sample.host.clone()
    }
}

/// The time since the machine was booted, from which process start times count.
fn since_boot() -> Duration {
    use procfs::Current as _;
    match procfs::Uptime::current() {
        Ok(uptime) => uptime.uptime_duration(),
        Err(_) => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    /// Regression: a rarely queried controller never did anything, and nothing reported that.
    #[test]
    fn interval_beyond_staleness_is_refused() {
        let read = |args: &[&str]| {
            let usual = ["agent", "--master=127.0.0.1:5050"];
            let line = Line::try_parse_from(usual.iter().chain(args)).expect("flags");
            Configured::read(&line.flags).map_err(|error| error.to_string())
        };
        let gentle = "--qos_correction_interval_min=90secs";
        let seldom = "--monitor_interval=40secs";
        let modules = r#"--modules={"libraries": {"modules": [{"name": "pressure", "parameters":
            {"key": "stale_after", "value": "3mins"}}]}}"#;
        for args in [
            &["--qos_controller=noop", gentle, seldom][..],
            &["--qos_controller=pressure", seldom],
            &["--qos_controller=pressure", gentle, modules],
            &[
                "--qos_controller=pressure",
                "--qos_correction_interval_min=30secs",
            ],
            &["--resource_estimator=slack", "--monitor_interval=30secs"],
        ] {
            assert_eq!(read(args).err(), None, "{args:?}");
        }
        for (args, named) in [
            (
                &["--qos_controller=pressure", gentle][..],
                [
                    "--qos_correction_interval_min=90secs: pressure",
                    "1mins",
                    "at most 30secs",
                ],
            ),
            (
                &["--resource_estimator=max(noop,slack)", seldom],
                ["--monitor_interval=40secs: max", "45secs", "at most 30secs"],
            ),
        ] {
            let error = read(args).expect_err("refused");
            for words in named.iter().chain(&["stale_after"]) {
                assert!(error.contains(words), "{error}");
            }
        }
    }
}
