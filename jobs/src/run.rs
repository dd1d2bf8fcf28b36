//! The life of the daemon: from flags to a listening and subscribed scheduler, and its end.
//!
//! [`run`] refuses impossible settings before it writes anything. Tasks continue after its end; the next start takes them
//! over.

mod starting;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use meseta_daemon::authentication::{Authentication, SettingsError};
use meseta_daemon::build_info::BuildInfo;
use meseta_daemon::clock::Clock;
use meseta_daemon::flag_error::FlagError;
use meseta_daemon::server::{self, CancellationToken};
use meseta_daemon::{hostname, tls, user, work_dir};
use meseta_etcd::leadership::election::{Candidate, LeaseTimes};
use meseta_etcd::leadership::fence::BootTime;
use meseta_etcd::leadership::presence::Presence;
use meseta_etcd::leadership::{Fence, Leader, ProvenLeader, Role, Standing, required_proof};
use meseta_etcd::store::Keys;
use meseta_etcd::{Client, SettingsError as EtcdSettingsError};
use meseta_proto::leader::is_host_port;
use meseta_proto::reconciler::ReconcileIntervals;
use meseta_resources::HostPort;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tracing::info;

use crate::cluster::Cluster;
use crate::core::{Options, RestoreError};
use crate::flags::Flags;
use crate::health::Health;
use crate::http;
use crate::lead::{Acting, Candidacy, LeadError, STEP_MAX};
use crate::link::{Link, Registration, Unusable};
use crate::service::{Ends, Handle};
use crate::spec::Cron;
use crate::spec::schedule::Schedule;
use crate::store::disk_report::{DiskReport, READING};
use crate::store::embedded::StoreError;
use crate::store::{self, Records};
use starting::{make_work_dir, publish, tell_started, unless_ended};

/// The time that an ending scheduler may keep the store from the next one: the kernel closes the files of a killed process
/// after its end is reported.
const STORE_PATIENCE: Duration = Duration::from_secs(10);
/// The file in `--work_dir` that holds the durable state.
const STORE: &str = "jobs.redb";

/// The environment of the daemon that its process provides.
#[derive(Debug)]
pub struct RunEnv {
    /// The build of this program.
    pub build: BuildInfo,
    /// Receives the address once the scheduler listens.
    pub ready: Option<oneshot::Sender<SocketAddr>>,
    /// Receives the health handle once the scheduler has started.
    pub started: Option<oneshot::Sender<Health>>,
    /// The token that ends the scheduler.
    pub shutdown: CancellationToken,
}

/// The reason why a scheduler does not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(
        "--master={0:?} is not host:port (for example 10.0.0.1:5050), nor a list of these, \
         separated by commas"
    )]
    Master(String),
    #[error(
        "--user: the user of the scheduler has no name on this machine; give the default user \
         for tasks"
    )]
    User,
    /// Authentication or TLS is missing or cannot be configured.
    #[error(transparent)]
    Authentication(#[from] SettingsError),
    #[error(
        "failed to listen on {address}: is another scheduler running? (--port=0 takes a free port)"
    )]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to {doing} {path}: can this user write --work_dir?")]
    Directory {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Flag(#[from] FlagError),
    #[error("the settings of etcd are invalid")]
    Etcd(#[from] EtcdSettingsError),
    #[error(transparent)]
    Lead(#[from] LeadError),
    #[error("the core of the scheduler panicked")]
    Core,
    #[error(transparent)]
    Unusable(#[from] Unusable),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("failed to restore the contents of {path}")]
    Restore {
        path: PathBuf,
        #[source]
        source: RestoreError,
    },
}

/// Runs a scheduler until its shutdown.
///
/// Boxed, so that its code is generated with this crate and not with each program that runs it.
pub fn run(
    flags: Flags,
    env: RunEnv,
) -> Pin<Box<dyn Future<Output = Result<(), RunError>> + Send>> {
    Box::pin(start(flags, env))
}

async fn start(flags: Flags, env: RunEnv) -> Result<(), RunError> {
    let masters = masters(&flags.master)?;
    let settings = flags
        .access
        .settings(flags.ip, flags.insecure, flags.hostname.clone());
    let (authentication, certificate) = settings.build()?;
    let identity = flags.access.identity()?;
    let user = user(&flags)?;
    let principal = identity.principal()?;
    let store = store_of(&flags)?;
    let (listener, address) = listen(SocketAddr::new(flags.ip, flags.port))?;
    let scheme = certificate.as_ref().map_or("http", |_| "https");
    let hostname = flags.hostname.clone();
    let hostname = hostname.unwrap_or_else(|| hostname::for_address(address.ip()));
    let authority = HostPort::new(hostname.as_str(), address.port()).to_string();
    let registration = Registration {
        user: user.clone(),
        principal: principal.clone(),
        webui_url: format!("{scheme}://{authority}/"),
        hostname: hostname.clone(),
        ..Registration::default()
    };
    let stop = CancellationToken::new();
    let (role, of_role) = watch::channel(store.first_role());
    let kind = tls::DaemonKind::Scheduler;
    let proof = required_proof(kind, certificate.as_ref(), flags.insecure);
    let standing = standing(of_role, store.fence(), proof.clone());
    let (leader, of_leader) = watch::channel(None);
    let ends = Ends::new(registration, standing.clone());
    let acting = Acting {
        inbox: ends.inbox,
        link: Link {
            masters: masters.clone(),
            adopts_cluster: flags.adopt_cluster,
            identity: identity.clone(),
            registration: ends.registration,
            events: ends.link,
            leader,
            fence: standing.fence,
            seed: uuid::Uuid::new_v4().as_u64_pair().0,
        },
        clock: Clock::new(),
        options: options(&flags, principal),
        may_run: http::may_run(authentication.approvers(), user.clone()),
    };
    let me = candidate(hostname, &authority, env.build.version);
    watch_cluster(&acting, &ends.handle, &of_leader, &stop);
    let (schedulers, of_schedulers) = watch::channel(vec![authority.clone()]);
    let report = store.report();
    report.set_waiting(READING);
    watch_files(certificate.as_ref(), &authentication, &stop);
    let handle = ends.handle;
    let context = Arc::new(http::Context {
        authentication,
        handle: handle.clone(),
        bodies: http::Bodies::new(),
        changes: http::Changes::new(),
        files: http::FileReader::new(),
        readers: http::Readers::new(),
        quotas: http::MasterQuotas::new(identity, masters, of_leader.clone()),
        user,
        leader: of_leader,
        address: authority,
        schedulers: of_schedulers,
        build: env.build,
        shutdown: stop.clone(),
        disk_report: report.clone(),
    });
    let serving = serve(listener, context, certificate, &stop);
    info!(%address, "listening");
    let health = Health::new(handle, &report);
    tokio::spawn(tell_started(env.started, health, stop.clone()));
    let opening = async {
        make_work_dir(&flags.work_dir, &report).await?;
        let driving = store.drive(acting, (me, proof), (role, schedulers), stop.clone());
        let driving = driving.await?;
        report.set_ready();
        let driving = tokio::spawn(driving);
        publish(&flags.work_dir, (scheme, address), &report, &stop).await?;
        Ok(driving)
    };
    let driving = match unless_ended(&env.shutdown, opening).await {
        Ok(Some(driving)) => driving,
        not_opened => {
            stop.cancel();
            join_server(serving).await;
            return not_opened
                .map(|_| info!("received a request to end during the start; exiting"));
        }
    };
    if let Some(ready) = env.ready {
        // The receiver may have left.
        let _unsent = ready.send(address);
    }
    wait_for_end(&env.shutdown, driving, serving, &stop, &flags.work_dir).await
}

/// Rereads the certificate, the credentials and the ACLs when their files change, until `stop`.
fn watch_files(
    certificate: Option<&Arc<tls::Served>>,
    authentication: &Authentication,
    stop: &CancellationToken,
) {
    if let Some(served) = certificate.cloned() {
        tokio::spawn(served.watch(tls::WATCH_INTERVAL, stop.clone()));
    }
    tokio::spawn(authentication.watch(tls::WATCH_INTERVAL, stop.clone()));
}

fn serve(
    listener: TcpListener,
    context: Arc<http::Context>,
    certificate: Option<Arc<tls::Served>>,
    stop: &CancellationToken,
) -> JoinHandle<()> {
    let options = server::Options {
        http2: false,
        ..server::Options::default()
    };
    let router = http::router(context);
    let serving = server::serve_with(listener, router, options, certificate, stop.clone());
    tokio::spawn(serving)
}

/// Returns the standing of a scheduler that redirects clients to a leader with a scheduler's certificate.
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

/// Sends the agents of the cluster to the core.
fn watch_cluster(
    acting: &Acting,
    core: &Handle,
    leader: &watch::Receiver<Option<String>>,
    stop: &CancellationToken,
) {
    let cluster = Cluster {
        identity: acting.link.identity.clone(),
        masters: acting.link.masters.clone(),
        leader: leader.clone(),
        core: core.clone(),
        told: acting.link.events.clone(),
    };
    tokio::spawn(cluster.run(stop.clone()));
}

/// Waits until the scheduler shuts down or cannot continue.
async fn wait_for_end(
    shutdown: &CancellationToken,
    mut driving: JoinHandle<Result<(), RunError>>,
    serving: JoinHandle<()>,
    stop: &CancellationToken,
    work_dir: &Path,
) -> Result<(), RunError> {
    let ended = tokio::select! {
        () = shutdown.cancelled() => None,
        ended = &mut driving => Some(ended),
    };
    info!("exiting; tasks continue");
    stop.cancel();
    join_server(serving).await;
    let ended = match ended {
        Some(ended) => ended,
        None => driving.await,
    };
    work_dir::remove_endpoint(work_dir);
    ended.map_err(|_| RunError::Core)?
}

async fn join_server(serving: JoinHandle<()>) {
    if serving.await.is_err() {
        tracing::error!("the server panicked");
    }
}

/// The place of the scheduler's records.
enum StoreOf {
    /// The records are in a file that no other scheduler writes.
    One { path: PathBuf, report: DiskReport },
    /// The records are in etcd, which elects one of several schedulers.
    Several {
        client: Client,
        keys: Keys,
        times: LeaseTimes,
    },
}

fn store_of(flags: &Flags) -> Result<StoreOf, RunError> {
    const NEEDED_BY: &str = "--store=etcd";
    if flags.store != "etcd"
        && let Some(unused) = flags.etcd.unused(NEEDED_BY)
    {
        tracing::warn!("{unused}");
    }
    match flags.store.as_str() {
        "embedded" => Ok(StoreOf::One {
            path: flags.work_dir.join(STORE),
            report: DiskReport::default(),
        }),
        "etcd" => {
            let ttl = flags.etcd.lease_ttl()?;
            let settings = flags.etcd.settings(ttl, NEEDED_BY, flags.insecure)?;
            Ok(StoreOf::Several {
                client: Client::new(settings)?,
                keys: store::etcd::keys(&flags.etcd.etcd_prefix),
                times: LeaseTimes { ttl },
            })
        }
        other => {
            let reason = "it is not a store: give embedded or etcd";
            Err(FlagError::new("store", other, reason).into())
        }
    }
}

/// The run of a scheduler, from its loaded state to its end.
type Driving = Pin<Box<dyn Future<Output = Result<(), RunError>> + Send>>;

impl StoreOf {
    fn fence(&self) -> Fence {
        match self {
            Self::One { .. } => Fence::never(),
            Self::Several { .. } => Fence::closed(),
        }
    }

    /// The role before the store is open: a scheduler without others leads, and has to read its jobs.
    fn first_role(&self) -> Role {
        match self {
            Self::One { .. } => Role::Recovering,
            Self::Several { .. } => Role::Following(None),
        }
    }

    /// The report on the disk of the store; etcd has a metric and a role of its own.
    fn report(&self) -> DiskReport {
        match self {
            Self::One { report, .. } => report.clone(),
            Self::Several { .. } => DiskReport::default(),
        }
    }

    /// Runs the scheduler until `stop`. A single scheduler has read its store on return.
    async fn drive(
        self,
        acting: Acting,
        (me, proof): (Leader, Option<tls::ServerProof>),
        (role, schedulers): (watch::Sender<Role>, watch::Sender<Vec<String>>),
        stop: CancellationToken,
    ) -> Result<Driving, RunError> {
        let (client, keys, times) = match self {
            Self::One { path, report } => {
                return alone((path, report), acting, role, stop).await;
            }
            Self::Several {
                client,
                keys,
                times,
            } => (client, keys, times),
        };
        let presence = Presence {
            client: client.clone(),
            prefix: keys.members("schedulers"),
            me: me.clone(),
            proof,
        };
        let candidacy = Candidacy {
            candidate: Candidate {
                client,
                key: keys.leader(),
                me,
                times,
                clock: BootTime::now,
            },
            keys,
            role,
            step_max: STEP_MAX,
        };
        Ok(Box::pin(async move {
            tokio::select! {
                led = candidacy.run(acting, stop) => Ok(led?),
                never = presence.keep(schedulers) => match never {},
            }
        }))
    }
}

/// Starts a single scheduler, which reads the store and leads. Until then an empty state answers questions.
async fn alone(
    (path, report): (PathBuf, DiskReport),
    mut acting: Acting,
    role: watch::Sender<Role>,
    stop: CancellationToken,
) -> Result<Driving, RunError> {
    let failed = |source| RunError::Restore {
        path: path.clone(),
        source,
    };
    let nothing = acting.restore(Records::new()).map_err(failed)?;
    let opening = store::embedded::open(&path, STORE_PATIENCE, &report);
    let (records, store) = tokio::select! {
        () = acting.inbox.stand_by(&nothing) => return Ok(Box::pin(async { Ok(()) })),
        opened = opening => opened?,
    };
    let restoring = acting.restore_apart(records);
    let restored = tokio::select! {
        () = acting.inbox.stand_by(&nothing) => return Ok(Box::pin(async { Ok(()) })),
        restored = restoring => restored,
    };
    let state = restored.map_err(failed)?;
    let _following = role.send_replace(Role::Leading);
    Ok(Box::pin(async move {
        // The role stays available for as long as the core runs.
        let _role = role;
        Ok(acting.run(state, store, stop).await?)
    }))
}

fn options(flags: &Flags, principal: Option<String>) -> Options {
    Options {
        service_unreachable: flags.service_unreachable_timeout,
        batch_unreachable: flags.batch_unreachable_timeout,
        next_time,
        reconcile: ReconcileIntervals::default(),
        principal,
        drawn: uuid::Uuid::new_v4().as_fields().0,
    }
}

/// Returns this scheduler's entry, which other schedulers read.
fn candidate(hostname: String, authority: &str, version: &str) -> Leader {
    Leader {
        id: uuid::Uuid::new_v4().to_string(),
        hostname,
        address: authority.to_owned(),
        version: version.to_owned(),
    }
}

fn masters(text: &str) -> Result<Vec<String>, RunError> {
    let masters: Vec<_> = text.split(',').map(|one| one.trim().to_owned()).collect();
    match masters.iter().all(|master| is_host_port(master)) {
        true => Ok(masters),
        false => Err(RunError::Master(text.to_owned())),
    }
}

fn user(flags: &Flags) -> Result<String, RunError> {
    let given = flags.user.clone();
    given.or_else(user::name).ok_or(RunError::User)
}

fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), RunError> {
    let listening = server::listen(address).and_then(|listener| {
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    listening.map_err(|source| RunError::Listen { address, source })
}

/// Returns the next time of a schedule. Both times are since 1970.
fn next_time(cron: &Cron, after: Duration) -> Option<Duration> {
    let schedule = Schedule::parse(&cron.schedule, &cron.time_zone).ok()?;
    let next = schedule.next_after(i64::try_from(after.as_secs()).ok()?)?;
    Some(Duration::from_secs(u64::try_from(next).ok()?))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    #[test]
    fn masters_are_a_list_of_addresses() {
        assert_eq!(masters("a:1, b:2").unwrap(), ["a:1", "b:2"]);
        let error = masters("zk://a:2181/mesos").unwrap_err().to_string();
        assert!(error.contains("host:port"), "{error}");
    }

    /// The answer to GET, once the scheduler listens.
    async fn answer_of(address: SocketAddr, path: &str) -> String {
        loop {
            let asked = async {
                let mut stream = TcpStream::connect(address).await?;
                let request =
                    format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
                stream.write_all(request.as_bytes()).await?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await?;
                std::io::Result::Ok(answer)
            };
            if let Ok(answer) = asked.await {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    }

    /// The store is not there for the scheduler, as on a disk that is full or does not answer.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn start_without_store_answers_and_ends() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            flags: Flags,
        }
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(STORE);
        let (_, held) = store::embedded::open(&path, Duration::ZERO, &DiskReport::default())
            .await
            .expect("a store");
        // An address of this process alone.
        let [.., high, low] = std::process::id().to_be_bytes();
        let address = SocketAddr::from(([127, high, low, 77], 5099));
        let (ip, port) = (address.ip(), address.port());
        let work_dir = dir.path().display();
        let flags = Line::parse_from([
            "scheduler".to_owned(),
            "--master=127.0.0.1:1".to_owned(),
            "--insecure".to_owned(),
            "--user=nobody".to_owned(),
            format!("--ip={ip}"),
            format!("--port={port}"),
            format!("--work_dir={work_dir}"),
        ]);
        let (ready, mut is_ready) = oneshot::channel();
        let (started, is_started) = oneshot::channel();
        let shutdown = CancellationToken::new();
        let env = RunEnv {
            build: BuildInfo::default(),
            ready: Some(ready),
            started: Some(started),
            shutdown: shutdown.clone(),
        };
        let mut running = tokio::spawn(run(flags.flags, env));
        let told = "another process has the store";
        let asked = async {
            loop {
                let answer = answer_of(address, "/health").await;
                if answer.contains(told) {
                    return answer;
                }
            }
        };
        let answer = tokio::select! {
            answer = asked => answer,
            ended = &mut running => panic!("it ended: {ended:?}"),
        };
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        // A list without its jobs would be taken for the whole.
        let jobs = answer_of(address, "/v1/jobs").await;
        assert!(
            jobs.starts_with("HTTP/1.1 503") && jobs.contains(told),
            "{jobs}"
        );
        let metrics = answer_of(address, "/metrics").await;
        assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
        assert!(is_ready.try_recv().is_err(), "its jobs are not read");
        let health = is_started.await.expect("it reports why it waits");
        let status = health.status().await;
        assert!(status.is_some_and(|status| status.contains(told)));
        shutdown.cancel();
        let ended = running.await.expect("no panic");
        assert!(ended.is_ok(), "{ended:?}");
        held.close().await;
    }
}
