//! The daemon's life: from flags to a listening, recovered, registered agent, and its end.
//!
//! [`run`] refuses invalid settings with a message that names the remedy, before it changes anything on the machine.
//! The end of the agent touches no task, unless that was requested.

mod address;
mod description;
mod error;
mod hierarchies;
mod opening;
pub(crate) mod serving;
mod start_wait;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use meseta_daemon::authentication::ClientIdentity;
use meseta_daemon::build_info::BuildInfo;
use meseta_daemon::disk_pulse::SILENT_AFTER;
use meseta_daemon::server;
pub use meseta_daemon::server::CancellationToken;
use meseta_daemon::tls;
use meseta_daemon::verbosity::Verbosity;
use meseta_daemon::work_dir::remove_in_time;
use meseta_isolators::{BootId, Containers};
use meseta_proto::mesos::v1 as pb;
use meseta_resources::HostPort;
use tokio::sync::oneshot;
use tracing::{info, warn};

pub(crate) use address::ip_to_advertise;
use address::{advertised, bind, local_address};
pub(crate) use description::hostname_of;
use description::{CAPABILITIES, agent_info};
pub use error::RunError;
pub(crate) use hierarchies::narrow;
use opening::{OwnAddress, open};
use serving::context;
use start_wait::StartWait;

use crate::checkpoint::writer;
use crate::checkpoint::{Image, Layout, VolumePlaces};
use crate::clock::Clock;
use crate::configuration::flags::{Flags, Recover};
use crate::configuration::isolation::TaskRights;
use crate::configuration::{self, Configuration};
use crate::containerizer::inspection;
use crate::containerizer::recover::{self, Adopted};
use crate::containerizer::{self, Containerizer};
use crate::context::Context;
use crate::core::{AgentCore, BootClock, Enforceable, ExitReason, Input, Options};
use crate::descriptors;
use crate::detect::Machine;
use crate::directories::{RuntimeFolder, endpoint_path, publish_endpoint, remove_empty};
use crate::disk_report::DiskReport;
use crate::gc;
use crate::handle::{Handle, Mailbox, mailbox};
use crate::health::Health;
use crate::http;
use crate::link::reach::Reach;
use crate::link::{Links, MasterAddress};
use crate::monitor;
use crate::oversubscription::{self, Configured, ServiceContext};
use crate::service::Service;
use crate::spec::LaunchSettings;
use crate::spec::environment::AgentEnvironment;
use crate::spec::user_switching::UserSwitching;

/// The environment from the process around the daemon.
#[derive(Debug)]
pub struct RunEnv {
    /// The version and build of this program.
    pub build: BuildInfo,
    /// All flags in force, as text, for `/flags` and `/state`.
    pub flags_view: BTreeMap<String, String>,
    /// Changes the log level, for operators.
    pub verbosity: Verbosity,
    /// Receives the address when the agent listens.
    pub ready: Option<oneshot::Sender<SocketAddr>>,
    /// Receives the health after recovery, with or without a registration.
    pub started: Option<oneshot::Sender<Health>>,
    /// Cancelled to end the agent.
    pub shutdown: CancellationToken,
    /// Cancelled to make the agent leave its cluster: its tasks end, it unregisters, and ends.
    pub unregister: CancellationToken,
}

/// Runs an agent until it is asked to end.
///
/// Boxed, so that its code is generated with this crate and not with each program that runs it.
pub fn run(
    flags: Flags,
    env: RunEnv,
) -> Pin<Box<dyn Future<Output = Result<(), RunError>> + Send>> {
    Box::pin(start(flags, env))
}

async fn start(flags: Flags, env: RunEnv) -> Result<(), RunError> {
    let start = Instant::now();
    descriptors::take_all();
    let master = MasterAddress::parse(&flags.master)?;
    let (authentication, certificate) = flags
        .access
        .settings(flags.ip, flags.insecure, flags.hostname.clone())
        .build()?;
    let identity = flags.access.identity()?;
    let configuration = configuration::read(&flags)?;
    configuration.misnamed().for_each(|text| warn!("{text}"));
    let oversubscription = Configured::read(&flags)?;
    let start_wait = StartWait::new(&flags.work_dir, &env.shutdown, DiskReport::default());
    let Some((layout, _lock)) = start_wait.take_work_dir().await? else {
        return Ok(());
    };
    let listen = SocketAddr::new(flags.ip, flags.port);
    let listener = bind(listen)?;
    let address = local_address(&listener, listen)?;
    let advertised = advertised(&flags, address, &master);
    info!(%address, %advertised, "listening");

    let Some(tokens) = start_wait.open_tokens(&flags, &layout).await? else {
        return Ok(());
    };
    let (handle, mailbox) = mailbox();
    let http_shutdown = CancellationToken::new();
    let context = context(
        (&flags, configuration.budgets),
        &layout,
        handle.clone(),
        (env.flags_view, env.verbosity, env.build),
        (advertised, start),
        &http_shutdown,
        (authentication, tokens),
    );
    if let Some(certificate) = &certificate {
        let watch = certificate
            .clone()
            .watch(tls::WATCH_INTERVAL, http_shutdown.clone());
        tokio::spawn(watch);
    }
    let watch = context
        .authentication
        .watch(tls::WATCH_INTERVAL, http_shutdown.clone());
    tokio::spawn(watch);
    let scheme = scheme_of(certificate.is_some());
    let serving = tokio::spawn(server::serve_with(
        listener,
        http::router(context.clone()),
        server::Options {
            connections_max: serving::connections_max(context.budgets),
            // The server has no gRPC, and an HTTP/2 connection may carry many requests.
            http2: false,
            ..server::Options::default()
        },
        certificate,
        http_shutdown.clone(),
    ));
    if let Some(ready) = env.ready {
        let _ = ready.send(address);
    }
    let node = Node {
        started: env.started,
        flags,
        configuration,
        oversubscription,
        layout,
        address,
        scheme,
        identity,
        advertised,
        handle,
        context,
        start,
    };
    let close = node.flags.shutdown_tasks_on_exit || node.flags.recover == Recover::Cleanup;
    let stop = Stop {
        shutdown: env.shutdown,
        unregister: env.unregister,
    };
    let outcome = node.live(mailbox, master, stop).await;
    http_shutdown.cancel();
    let _ = serving.await;
    let Some(ended) = outcome? else {
        return Ok(());
    };
    // A container that the agent has thawed at its end must not stay frozen until the agent is back.
    ended.containerizer.flush_throttle().await;
    // A running container needs its groups and its folder; without running containers everything is removed.
    if close || ended.containerizer.is_idle() {
        ended.containerizer.close().await;
        remove_empty(&ended.runtime_dir);
    }
    match ended.outcome? {
        ExitReason::Stopped | ExitReason::Unregistered | ExitReason::Shutdown(_) => Ok(()),
        ExitReason::Refused(why) => Err(RunError::Refused(why)),
    }
}

fn scheme_of(has_certificate: bool) -> &'static str {
    if has_certificate { "https" } else { "http" }
}

/// The remains of an agent that has ended.
struct Ended {
    outcome: Result<ExitReason, RunError>,
    containerizer: Containerizer,
    runtime_dir: PathBuf,
}

/// The signals to end an agent: at once, or after it has left its cluster.
struct Stop {
    shutdown: CancellationToken,
    unregister: CancellationToken,
}

/// A listening agent, between its start and its end.
struct Node {
    started: Option<oneshot::Sender<Health>>,
    flags: Flags,
    configuration: Configuration,
    oversubscription: Configured,
    layout: Layout,
    address: SocketAddr,
    scheme: &'static str,
    identity: ClientIdentity,
    advertised: SocketAddr,
    handle: Handle,
    context: Arc<Context>,
    start: Instant,
}

impl Node {
    /// Recovers, registers, runs; returns when the core ends, or `None` if SIGTERM ended the start.
    async fn live(
        mut self,
        mailbox: Mailbox,
        master: MasterAddress,
        stop: Stop,
    ) -> Result<Option<Ended>, RunError> {
        let report = self.context.disk_report.clone();
        let start_wait = StartWait::new(self.layout.work_dir(), &stop.shutdown, report.clone());
        let own_address = OwnAddress {
            port: self.address.port(),
            endpoint: HostPort::from(self.advertised).to_string(),
        };
        let opening = open(&self.flags, &self.layout, &self.configuration, own_address);
        let Some(opened) = start_wait.wait_for("read the records", opening).await else {
            return Ok(None);
        };
        let opened = opened?;
        let runtime_dir = opened.runtime_folder.path().to_owned();
        let places = opened.store.volume_places();
        let rights = (opened.rights, opened.privileged);
        let containers = (opened.containers, opened.runtime_folder);
        let containerizer = self.containerizer(containers, rights, places);
        let clock = Clock::new();
        let boot_clock = clock.boot_clock(&opened.boot);
        let core = self.core(
            &opened.image,
            opened.machine,
            opened.enforceable,
            boot_clock,
        )?;
        // The file exists only when the agent's start can no longer be refused.
        let work_dir = self.layout.work_dir().to_owned();
        let publishing = tokio::spawn(publish_endpoint(work_dir, self.scheme, self.address));
        let publishing = start_wait.join("write the endpoint file", publishing);
        let Some(publishing) = publishing.await? else {
            return Ok(None);
        };
        let publishing = publishing?;
        let writer = writer::start(opened.store, opened.first, report)
            .map_err(|error| RunError::Internal(format!("start a thread: {error}")))?;
        let links = self.links(master);
        let streams = self.context.streams.clone();
        let service = Service::new(
            core,
            mailbox,
            writer,
            links,
            containerizer.clone(),
            streams,
            self.context.gc.clone(),
            self.layout.clone(),
            self.context.dropped.clone(),
            self.configuration.budgets,
            clock,
        );
        let driving = tokio::spawn(service.run());
        let endpoint = endpoint_path(self.layout.work_dir());
        let recovering = self.recover(opened.image, &opened.boot, &containerizer, &start_wait);
        if recovering.await?.is_none() {
            // The process exits; the thread that waits for the disk is left behind.
            driving.abort();
            remove_in_time(endpoint);
            return Ok(None);
        }
        let collecting = tokio::spawn(self.context.gc.clone().run(opened.boot));

        // Nothing can be launched before, even if the agent is registered; without a launcher the agent ends.
        let ready = containerizer.ready().await;
        self.begin(ready.is_ok()).await;
        let monitoring = tokio::spawn(monitor::run(
            containerizer.clone(),
            self.context.samples.clone(),
            self.flags.monitor_interval,
        ));
        let inspecting = tokio::spawn(inspection::run(containerizer.clone(), opened.watch));
        let stopping = self.stop_when(stop);
        let oversubscription = self.start_oversubscription();
        let reason = driving
            .await
            .map_err(|error| RunError::Internal(format!("run the core: {error}")))?;
        info!(?reason, "ending");
        stopping.abort();
        monitoring.abort();
        inspecting.abort();
        collecting.abort();
        oversubscription.abort();
        if let Some(publishing) = publishing {
            publishing.abort();
            let _ = publishing.await;
        }
        let _ = (monitoring.await, inspecting.await);
        remove_in_time(endpoint);
        Ok(Some(Ended {
            outcome: ready
                .map(|()| reason)
                .map_err(|failure| RunError::Containers(failure.into())),
            containerizer,
            runtime_dir,
        }))
    }

    fn containerizer(
        &self,
        (containers, runtime_folder): (Containers, RuntimeFolder),
        (rights, privileged): (TaskRights, bool),
        places: VolumePlaces,
    ) -> Containerizer {
        let flags = &self.flags;
        let containerizer = Containerizer::new(
            containerizer::Options {
                settings: LaunchSettings {
                    layout: self.layout.clone(),
                    environment: AgentEnvironment {
                        tokens: self.context.tokens.clone(),
                        ..task_environment(flags, &self.configuration, self.advertised)
                    },
                    user_switching: UserSwitching::from_flag(flags.switch_user, privileged),
                    rights,
                    logs: self.configuration.logs,
                    mount_disks: self.configuration.mount_disks(self.layout.work_dir()),
                    places,
                },
                launches_at_once: flags.launches_at_once,
                destroy_timeout: flags.cgroups_destroy_timeout,
                fetcher_stall_timeout: flags.fetcher_stall_timeout,
                enforce_disk: flags.isolation.enforce_container_disk_quota,
            },
            containers,
            runtime_folder,
            self.handle.inputs(),
        );
        let _ = self.context.containerizer.set(containerizer.clone());
        self.context
            .authentication
            .set_container_sockets(Arc::new(containerizer.clone()));
        containerizer
    }

    fn core(
        &self,
        image: &Image,
        machine: Machine,
        enforceable: Enforceable,
        boot_clock: BootClock,
    ) -> Result<AgentCore, RunError> {
        let resources = self
            .configuration
            .resources_of_machine(machine, image.agent.as_ref())?;
        let info = agent_info(
            &self.flags,
            &self.configuration,
            &resources,
            self.advertised,
        );
        configuration::check_compatible(&self.flags, image.agent.as_ref(), &info)?;
        configuration::check_holdings(self.layout.work_dir(), &resources, image.holdings.as_ref())?;
        let budgets = self.configuration.budgets;
        let options = Options {
            address: pb::Address {
                hostname: Some(info.hostname.clone()),
                ip: Some(self.advertised.ip().to_string()),
                port: i32::from(self.advertised.port()),
            },
            info,
            resources,
            version: meseta_proto::INTERFACE_VERSION.to_owned(),
            capabilities: CAPABILITIES.to_vec(),
            registration_backoff_factor: self.flags.registration_backoff_factor,
            oversubscribed_resources_interval: self.flags.oversubscribed_resources_interval,
            enforceable,
            max_completed_executors_per_framework: self.flags.max_completed_executors_per_framework,
            history_bytes_max: budgets.history(),
            operations_bytes_max: budgets.operations(),
            frame_bytes_max: u64::try_from(budgets.frame_bytes_max()).unwrap_or(u64::MAX),
            check_updates_bytes_max: budgets.check_updates(),
            executor_event_bytes_max: budgets.events(),
            container_ip: self.advertised.ip().to_string(),
            boot_clock,
            executor_registration_timeout: self.flags.executor_registration_timeout,
            executor_reregistration_timeout: self.flags.executor_reregistration_timeout,
            executor_shutdown_grace: self.flags.executor_shutdown_grace_period,
            disk_timeout: disk_timeout(self.flags.disk_timeout),
        };
        Ok(AgentCore::new(options, random_seed()))
    }

    fn links(&self, master: MasterAddress) -> Links {
        let reach = Reach::new(self.advertised.ip());
        Links::new(
            master,
            self.identity.clone(),
            self.handle.inputs(),
            self.context.dropped.clone(),
            self.configuration.budgets,
            (self.context.samples.clone(), reach),
        )
    }

    /// Passes the checkpointed state and the containers' states to the core.
    async fn recover(
        &self,
        image: Image,
        boot: &BootId,
        containerizer: &Containerizer,
        start_wait: &StartWait,
    ) -> Result<Option<()>, RunError> {
        let (shared, boot) = (containerizer.clone(), boot.clone());
        let (gc, layout) = (self.context.gc.clone(), self.layout.clone());
        let recovering = tokio::task::spawn_blocking(move || {
            // Before any launch, so that a new sandbox is not mistaken for an old one.
            gc::keep_those_of(&gc, &image, &layout);
            recover::recover(image, &boot, &shared)
        });
        let Some(recovered) = start_wait.join("recover containers", recovering).await? else {
            return Ok(None);
        };
        let (recovery, adoptions) = recovered.map_err(RunError::ListContainers)?;
        let (adopted, orphans) = Adopted::enter(adoptions, containerizer);
        recover::remove_orphans(orphans, containerizer).await;
        self.context.recovered.store(true, Ordering::Release);
        self.handle.tell(Input::Recovered(Box::new(recovery))).await;
        adopted.attend(containerizer);
        let took = self.start.elapsed();
        let _ = self.context.recovery.set(took);
        info!(seconds = took.as_secs_f64(), "recovered");
        Ok(Some(()))
    }

    /// Reports that the agent has started, or ends it: without a launcher, or after a cleanup.
    async fn begin(&mut self, is_ready: bool) {
        if !is_ready {
            self.handle.tell(Input::Stop { kill_tasks: false }).await;
        } else if self.flags.recover == Recover::Cleanup {
            info!("killing earlier tasks, then exiting");
            self.handle.tell(Input::Stop { kill_tasks: true }).await;
        } else if let Some(started) = self.started.take() {
            // The receiver may be gone.
            let _unsent = started.send(Health {
                context: self.context.clone(),
                master: self.flags.master.clone(),
            });
        }
    }

    /// Starts the loops of oversubscription.
    fn start_oversubscription(self) -> tokio::task::JoinHandle<()> {
        let service_context = ServiceContext {
            core: self.handle,
            samples: self.context.samples.clone(),
            layout: self.layout,
            failures: self.context.plugin_failures.clone(),
            enable_cfs: self.flags.cgroups_enable_cfs,
        };
        let service = oversubscription::Service::new(self.oversubscription, service_context);
        tokio::spawn(async move {
            if let Some(service) = service {
                service.run().await;
            }
        })
    }

    /// Forwards the stop signals to the core. An agent that is leaving its cluster can still be stopped at once.
    fn stop_when(&self, stop: Stop) -> tokio::task::JoinHandle<()> {
        let Stop {
            shutdown,
            unregister,
        } = stop;
        let handle = self.handle.clone();
        let kill_tasks = self.flags.shutdown_tasks_on_exit;
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {}
                () = unregister.cancelled() => {
                    handle.tell(Input::Unregister).await;
                    shutdown.cancelled().await;
                }
            }
            handle.tell(Input::Stop { kill_tasks }).await;
        })
    }
}

/// The time from the report of a silent disk until the agent stops answering the master; the flag counts from the
/// disk's last answer.
fn disk_timeout(flag: Duration) -> Option<Duration> {
    (!flag.is_zero()).then(|| flag.saturating_sub(SILENT_AFTER))
}

fn gc_options(flags: &Flags) -> gc::Options {
    gc::Options {
        delay: flags.gc_delay,
        headroom: flags.gc_disk_headroom,
        interval: flags.disk_watch_interval,
    }
}

fn task_environment(
    flags: &Flags,
    configuration: &Configuration,
    advertised: SocketAddr,
) -> AgentEnvironment {
    AgentEnvironment {
        endpoint: HostPort::from(advertised).to_string(),
        ip: advertised.ip().to_string(),
        operator: configuration.task_variables.clone(),
        shutdown_grace: flags.executor_shutdown_grace_period,
        recovery_timeout: flags.recovery_timeout,
        reregistration_timeout: flags.executor_reregistration_timeout,
        tokens: None,
    }
}

/// A seed from the operating system, for the core's generator.
fn random_seed() -> u64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    high ^ low
}
