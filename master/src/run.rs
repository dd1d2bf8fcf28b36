//! A master from its flags to its end.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use meseta_daemon::advertised::advertised_ip;
use meseta_daemon::authentication;
use meseta_daemon::build_info::BuildInfo;
use meseta_daemon::clock::Clock;
use meseta_daemon::disk_pulse::{self, DiskPulse, DiskSilence};
use meseta_daemon::files::FileReads;
use meseta_daemon::flag_error::FlagError;
use meseta_daemon::server::{self, CancellationToken};
use meseta_daemon::tls;
use meseta_daemon::verbosity::Verbosity;
use meseta_daemon::work_dir;
use meseta_etcd::leadership::election::{Candidate, LeaseTimes};
use meseta_etcd::leadership::fence::BootTime;
use meseta_etcd::leadership::presence::Presence;
use meseta_etcd::leadership::{Fence, Leader, ProvenLeader, Role, Standing, required_proof};
use meseta_etcd::store::{Cluster, Keys};
use meseta_etcd::{Client, SettingsError};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tower_http::services::ServeDir;

use crate::budgets::Budgets;
use crate::buffered_response::BufferedResponses;
use crate::call_rate_limit::CallRateLimit;
use crate::chunked_response::Renderer;
use crate::context::Context;
use crate::core::{Config, Identity, Lsn, MasterCore, Memory, Recovered};
use crate::files::Files;
use crate::flags::{Flags, Options};
use crate::handle::{Handle, Inbox};
use crate::health::Health;
use crate::lead::{Lead, LeadError, Start};
use crate::metrics::Metrics;
use crate::registry::{self, Kind, OpenError};
use crate::service::Service;
use crate::subscription_rate::SubscriptionRate;
use crate::{grpc, http, whitelist};

/// The environment that the caller gives to a master.
pub struct RunEnv {
    /// The build of the program.
    pub build: BuildInfo,
    /// The flags in effect, for `/flags`.
    pub flags_view: BTreeMap<String, String>,
    /// The control of the log level, for operators.
    pub verbosity: Verbosity,
    /// Receives the address once the master listens.
    pub ready: Option<oneshot::Sender<SocketAddr>>,
    /// Receives the health once the registry is read and the master serves.
    pub started: Option<oneshot::Sender<Health>>,
    /// A future whose completion ends the master.
    pub shutdown: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl fmt::Debug for RunEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunEnv")
            .field("flags_view", &self.flags_view)
            .finish_non_exhaustive()
    }
}

/// The reason why a master failed to start or to end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Flag(#[from] FlagError),
    #[error("the settings of etcd are invalid")]
    Etcd(#[from] SettingsError),
    #[error(transparent)]
    Lead(#[from] LeadError),
    #[error("--registry={0} is not a registry: use embedded, in_memory or etcd")]
    UnknownRegistry(String),
    #[error("failed to write to the work directory {path}: give a writable one with --work_dir")]
    WorkDir {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "--webui_dir={path} is not a directory: give one with an index.html, or leave the flag out"
    )]
    WebuiDir { path: PathBuf },
    #[error(transparent)]
    Authentication(#[from] authentication::SettingsError),
    #[error(transparent)]
    Registry(#[from] OpenError),
    #[error(
        "{address} is in use by another process: stop that process or give another --port (0 takes a free port)"
    )]
    InUse { address: SocketAddr },
    #[error("failed to listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("the core of the master panicked")]
    Core,
}

/// Runs a master until `env.shutdown` completes.
///
/// Boxed, so that the code is generated with this crate and not with each program that runs it.
pub fn run(
    flags: Flags,
    env: RunEnv,
) -> Pin<Box<dyn Future<Output = Result<(), RunError>> + Send>> {
    Box::pin(start(flags, env))
}

async fn start(flags: Flags, env: RunEnv) -> Result<(), RunError> {
    let mut end = env.shutdown;
    let options = flags.options()?;
    let (authentication, certificate) = flags
        .access
        .settings(flags.ip, flags.insecure, flags.hostname.clone())
        .build()?;
    let call_rate_limit = CallRateLimit::new(options.rate_limits.as_ref());
    let registry = registry_of(&flags)?;
    if !prepare_work_dir(&flags.work_dir, &mut end).await? {
        return Ok(());
    }
    // The port comes first: a master that cannot listen must not start a new epoch.
    let listener = listen(SocketAddr::new(flags.ip, flags.port))?;
    let address = listener.local_addr().map_err(|source| RunError::Listen {
        address: SocketAddr::new(flags.ip, flags.port),
        source,
    })?;
    let identity = Identity {
        domain: options.domain.clone(),
        build: env.build,
        ..identity(&flags, address)
    };
    let shutdown = CancellationToken::new();
    let (role_told, role) = watch::channel(Role::Following(None));
    let fence = match &registry {
        RegistryOf::One(_) => Fence::never(),
        RegistryOf::Several(_) => Fence::closed(),
    };
    let proof = required_proof(
        tls::DaemonKind::Master,
        certificate.as_ref(),
        flags.insecure,
    );
    let standing = standing(role, fence, proof.clone());
    let (handle, inbox) = Handle::new(Budgets::from_total_bytes(options.memory_budget), standing);
    let metrics = Arc::new(metrics(&registry, &handle, certificate.clone()));
    let (masters_told, masters) = watch::channel(vec![identity.address()]);
    let cores = Cores {
        masters: masters_told,
        proof,
        flags: flags.clone(),
        options,
        identity: identity.clone(),
        handle: handle.clone(),
        metrics: metrics.clone(),
        shutdown: shutdown.clone(),
    };
    let core_shutdown = CancellationToken::new();
    // A single master reads its registry before it serves.
    let core = cores.core(registry, inbox, role_told, core_shutdown.clone());
    let Some(core) = disk_pulse::wait_at_start(&flags.work_dir, &mut end, core).await else {
        return Ok(());
    };
    let core = core?;
    let context = Arc::new(Context {
        handle: handle.clone(),
        identity,
        masters,
        flags: env.flags_view,
        metrics,
        history: Arc::default(),
        renderer: Renderer::default(),
        subscription_rate: SubscriptionRate::default(),
        buffered_responses: BufferedResponses::default(),
        files: Files::new(flags.external_log_file.clone()),
        file_reads: FileReads::default(),
        authentication,
        call_rate_limit,
        verbosity: env.verbosity,
        webui: webui(&flags)?,
        shutdown: shutdown.clone(),
    });
    let history = context.history.clone();
    let (sampled, stop) = (handle.clone(), shutdown.clone());
    tokio::spawn(async move { history.keep(sampled, stop).await });
    let router = http::router(context.clone()).merge(grpc::router(&context).await);
    let core_task = tokio::spawn(core);
    let scheme = certificate.as_ref().map_or("http", |_| "https");
    watch_files(certificate.as_ref(), &context, &shutdown);
    let serving = tokio::spawn(server::serve_with(
        listener,
        router,
        server::Options::default(),
        certificate,
        shutdown.clone(),
    ));

    write_endpoint(&flags.work_dir, scheme, address)?;
    tracing::info!(%address, "listening");
    if let Some(ready) = env.ready {
        // The receiver may have left.
        let _unsent = ready.send(address);
    }
    if let Some(started) = env.started {
        let _unsent = started.send(Health { handle });
    }
    wait_for_end(end, core_task, core_shutdown, serving, shutdown).await
}

/// The standing of a master that redirects clients only to a leader with a certificate of a master.
fn standing(
    role: watch::Receiver<Role>,
    fence: Fence,
    proof: Option<tls::ServerProof>,
) -> Standing {
    Standing {
        proven: ProvenLeader::by_certificate(proof, &role),
        role,
        fence,
    }
}

/// Reloads the certificate and the authentication files when they change.
fn watch_files(
    certificate: Option<&Arc<tls::Served>>,
    context: &Context,
    shutdown: &CancellationToken,
) {
    if let Some(certificate) = certificate {
        let certificate = certificate.clone();
        tokio::spawn(certificate.watch(tls::WATCH_INTERVAL, shutdown.clone()));
    }
    let authentication = &context.authentication;
    tokio::spawn(authentication.watch(tls::WATCH_INTERVAL, shutdown.clone()));
}

/// The kind of registry.
enum RegistryOf {
    /// A registry that no other master writes.
    One(Kind),
    /// A registry in etcd, which elects one of several masters.
    Several(Box<Candidacy>),
}

/// The parameters of an election.
struct Candidacy {
    client: Client,
    keys: Keys,
    times: LeaseTimes,
}

/// A core in its service, from its registry to its end.
type Core = Pin<Box<dyn Future<Output = Result<(), RunError>> + Send>>;

/// The parts for building a core.
struct Cores {
    flags: Flags,
    options: Options,
    identity: Identity,
    handle: Handle,
    metrics: Arc<Metrics>,
    /// The addresses of all masters of the cluster.
    masters: watch::Sender<Vec<String>>,
    /// The proof that other masters owe before they are listed.
    proof: Option<tls::ServerProof>,
    shutdown: CancellationToken,
}

impl Cores {
    async fn core(
        self,
        registry: RegistryOf,
        inbox: Inbox,
        role: watch::Sender<Role>,
        end: CancellationToken,
    ) -> Result<Core, RunError> {
        match registry {
            RegistryOf::One(kind) => self.alone(kind, inbox, role, end).await,
            RegistryOf::Several(candidacy) => Ok(self.among_others(*candidacy, inbox, role, end)),
        }
    }

    /// Reads the registry and leads.
    async fn alone(
        self,
        kind: Kind,
        inbox: Inbox,
        role: watch::Sender<Role>,
        end: CancellationToken,
    ) -> Result<Core, RunError> {
        let (sender, persisted) = watch::channel(Lsn::default());
        let on_persisted = Box::new(move |lsn| {
            sender.send_replace(lsn);
        });
        let begun = Instant::now();
        let pulse = DiskPulse::default();
        let watching = watch_disk(pulse.clone(), self.metrics.disk_silence.clone());
        let watching = AbortOnDropHandle::new(tokio::spawn(watching));
        let opening =
            tokio::task::spawn_blocking(move || registry::open(&kind, pulse, on_persisted));
        let (recovered, registry) = opening.await.map_err(|_| RunError::Core)??;
        let service = self.start(
            begun,
            Start {
                recovered,
                registry,
                persisted,
                inbox,
            },
        );
        let _following = role.send_replace(Role::Leading);
        Ok(Box::pin(async move {
            // The role and the disk's state stay available as long as the core runs.
            let (_role, _watching) = (role, watching);
            service.run(end).await;
            Ok(())
        }))
    }

    /// Follows, and leads once elected.
    fn among_others(
        self,
        candidacy: Candidacy,
        inbox: Inbox,
        role: watch::Sender<Role>,
        end: CancellationToken,
    ) -> Core {
        let clock = Clock::new();
        let config = config(&self.flags, self.options.clone(), self.identity.clone());
        let nothing = MasterCore::new(config, Recovered::default(), clock.now()).snapshot();
        let me = Leader {
            id: self.identity.id.clone(),
            hostname: self.identity.hostname.clone(),
            address: self.identity.address(),
            version: self.identity.build.version.to_owned(),
        };
        let presence = Presence {
            client: candidacy.client.clone(),
            prefix: candidacy.keys.members("masters"),
            me: me.clone(),
            proof: self.proof.clone(),
        };
        let lead = Lead {
            candidate: Candidate {
                client: candidacy.client,
                key: candidacy.keys.leader(),
                me,
                times: candidacy.times,
                clock: BootTime::now,
            },
            keys: candidacy.keys,
            cluster: Cluster {
                name: self.flags.cluster.clone().unwrap_or_default(),
                new_id: uuid::Uuid::new_v4().to_string(),
            },
            role,
            nothing,
        };
        let begun = Instant::now();
        let masters = self.masters.clone();
        let start = move |start: Start| self.start(begun, start);
        Box::pin(async move {
            tokio::select! {
                led = lead.run(inbox, start, end) => Ok(led?),
                never = presence.keep(masters) => match never {},
            }
        })
    }

    /// Builds the core in its service.
    fn start(self, begun: Instant, start: Start) -> Service {
        let (flags, options) = (self.flags, self.options);
        let _known = self.metrics.registry_read.set(begun.elapsed());
        let recovered = start.recovered;
        tracing::info!(
            epoch = recovered.epoch,
            agents = recovered.agents.len(),
            unreachable = recovered.unreachable.len(),
            master_id = %self.identity.id,
            "registry recovered"
        );
        if options.ignores_weights(recovered.weights.as_deref()) {
            tracing::warn!(
                "--weights is ignored: the registry has weights that were set at run time; set \
                 weights with PUT /weights \
                 or `meseta weights set`, and remove --weights"
            );
        }
        for role in options.roles_without_weight(recovered.weights.as_deref()) {
            tracing::warn!(%role, "a role in --roles has no weight in --weights; using 1");
        }
        let clock = Clock::new();
        let known = options.whitelist.clone();
        let config = config(&flags, options, self.identity);
        let core = MasterCore::new(config, recovered, clock.now());
        if let (Some(path), Some(known)) = (flags.whitelist.clone(), known) {
            let watching = whitelist::watch(path, known, self.handle.clone(), self.shutdown);
            tokio::spawn(watching);
        }
        Service::new(
            core,
            clock,
            start.registry,
            start.persisted,
            &self.handle,
            start.inbox,
            flags.max_operator_event_stream_subscribers,
        )
    }
}

/// Tracks the time since the last response of the registry's disk. Logs when the disk stops responding, and when it
/// resumes.
async fn watch_disk(pulse: DiskPulse, silence: DiskSilence) {
    let report = |is_silent| match is_silent {
        true => tracing::error!(
            "the disk of the registry does not answer: the master admits no agent or framework \
             and makes no change until it answers"
        ),
        false => tracing::info!("the disk of the registry answers again"),
    };
    match disk_pulse::watch(pulse, silence, report).await {}
}

/// Stops the servers first, then the core, so that no answer promises a lost change.
async fn wait_for_end(
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    mut core_task: tokio::task::JoinHandle<Result<(), RunError>>,
    core_shutdown: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    let ended = tokio::select! {
        () = end => None,
        ended = &mut core_task => Some(ended),
    };
    tracing::info!("shutting down");
    shutdown.cancel();
    if serving.await.is_err() {
        tracing::error!("the server panicked");
    }
    core_shutdown.cancel();
    let (ended, was_told) = match ended {
        Some(ended) => (ended, false),
        None => (core_task.await, true),
    };
    match ended {
        Ok(Ok(())) if was_told => Ok(()),
        Ok(Err(error)) => Err(error),
        Ok(Ok(())) | Err(_) => Err(RunError::Core),
    }
}

/// The files of the web page, if their directory exists.
fn webui(flags: &Flags) -> Result<Option<ServeDir>, RunError> {
    let Some(dir) = &flags.webui_dir else {
        return Ok(None);
    };
    if !dir.is_dir() {
        return Err(RunError::WebuiDir { path: dir.clone() });
    }
    Ok(Some(ServeDir::new(dir)))
}

fn registry_of(flags: &Flags) -> Result<RegistryOf, RunError> {
    const NEEDED_BY: &str = "--registry=etcd";
    if flags.registry != "etcd"
        && let Some(unused) = flags.etcd.unused(NEEDED_BY)
    {
        tracing::warn!("{unused}");
    }
    match flags.registry.as_str() {
        "embedded" => Ok(RegistryOf::One(Kind::Embedded {
            work_dir: flags.work_dir.clone(),
        })),
        "in_memory" => Ok(RegistryOf::One(Kind::InMemory)),
        "etcd" => {
            let ttl = flags.etcd.lease_ttl()?;
            let settings = flags.etcd.settings(ttl, NEEDED_BY, flags.insecure)?;
            let client = Client::new(settings)?;
            Ok(RegistryOf::Several(Box::new(Candidacy {
                client,
                keys: Keys::new(&flags.etcd.etcd_prefix),
                times: LeaseTimes { ttl },
            })))
        }
        other => Err(RunError::UnknownRegistry(other.to_owned())),
    }
}

pub(crate) fn identity(flags: &Flags, address: SocketAddr) -> Identity {
    let given = flags.advertise_ip;
    let ip = given.unwrap_or_else(|| advertised_ip(address.ip(), &[]));
    Identity {
        id: uuid::Uuid::new_v4().to_string(),
        hostname: flags.hostname.clone().unwrap_or_else(|| ip.to_string()),
        ip,
        port: flags.advertise_port.unwrap_or_else(|| address.port()),
        cluster: flags.cluster.clone(),
        version: meseta_proto::INTERFACE_VERSION.to_owned(),
        build: BuildInfo::default(),
        domain: None,
    }
}

pub(crate) fn config(flags: &Flags, options: Options, identity: Identity) -> Config {
    Config {
        identity,
        allocation_interval: options.allocation_interval,
        agent_ping_timeout: options.agent_ping_timeout,
        max_agent_ping_timeouts: flags.max_agent_ping_timeouts,
        agent_reregister_timeout: options.agent_reregister_timeout,
        agent_removal_interval: options.agent_removal_interval,
        agent_removal_percent: options.agent_removal_percent,
        offer_timeout: options.offer_timeout,
        max_completed_frameworks: flags.max_completed_frameworks,
        max_completed_tasks_per_framework: flags.max_completed_tasks_per_framework,
        max_unreachable_tasks_per_framework: flags.max_unreachable_tasks_per_framework,
        registry_max_agent_age: options.registry_max_agent_age,
        registry_max_agent_count: flags.registry_max_agent_count,
        registry_gc_interval: options.registry_gc_interval,
        registry_epoch_rise_max: flags.registry_epoch_rise_max,
        memory: Memory::from_total_bytes(options.memory_budget),
        root_submissions: flags.root_submissions,
        require_agent_domain: flags.require_agent_domain,
        whitelist: options.whitelist.map(|whitelist| whitelist.0),
        roles: options.roles,
        weights: options.weights,
        quota_semantics: options.quota_semantics,
        allocator: options.allocator,
    }
}

/// Prepares the work directory. Returns false if the master is told to end before.
async fn prepare_work_dir(
    path: &Path,
    end: &mut (impl Future<Output = ()> + Unpin),
) -> Result<bool, RunError> {
    let work_dir = path.to_owned();
    let preparing =
        tokio::task::spawn_blocking(move || work_dir::prepare(&work_dir, &registry::FILES));
    let Some(prepared) = disk_pulse::wait_at_start(path, end, preparing).await else {
        return Ok(false);
    };
    let prepared = prepared.map_err(|_| RunError::Core)?;
    prepared.map_err(|source| RunError::WorkDir {
        path: path.to_owned(),
        source,
    })?;
    Ok(true)
}

fn metrics(
    registry: &RegistryOf,
    handle: &Handle,
    certificate: Option<Arc<tls::Served>>,
) -> Metrics {
    Metrics {
        registry: match registry {
            RegistryOf::One(Kind::Embedded { work_dir }) => Some(registry::registry_path(work_dir)),
            RegistryOf::One(Kind::InMemory) | RegistryOf::Several(_) => None,
        },
        role: Some(handle.standing.role.clone()),
        registry_read: OnceLock::new(),
        disk_silence: handle.disk_silence.clone(),
        certificate,
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, RunError> {
    meseta_daemon::server::listen(address).map_err(|source| {
        if source.kind() == io::ErrorKind::AddrInUse {
            RunError::InUse { address }
        } else {
            RunError::Listen { address, source }
        }
    })
}

fn write_endpoint(path: &Path, scheme: &str, address: SocketAddr) -> Result<(), RunError> {
    work_dir::write_endpoint(path, scheme, address).map_err(|source| RunError::WorkDir {
        path: path.to_owned(),
        source,
    })
}
