//! The daemon's life: from flags to a scheduler that listens and is subscribed, and its end.
//!
//! [`run`] refuses what cannot work before anything is written. Tasks go on when it ends; the next start takes them over.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use meseta_daemon::authentication::SettingsError;
use meseta_daemon::build_info::BuildInfo;
use meseta_daemon::clock::Clock;
use meseta_daemon::server::{self, CancellationToken};
use meseta_daemon::{hostname, tls, work_dir};
use meseta_proto::leader::is_host_port;
use meseta_proto::reconciler::ReconcileIntervals;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tracing::info;

use crate::core::{Options, RestoreError, State};
use crate::flags::Flags;
use crate::http;
use crate::link::{Link, Registration};
use crate::service::Service;
use crate::spec::Cron;
use crate::spec::schedule::Schedule;
use crate::store::{self, StoreError};

/// How long a scheduler that ends may keep the store from the next one: the kernel closes the files of a killed process
/// after the process is told to be gone.
const STORE_PATIENCE: Duration = Duration::from_secs(10);
/// The file in `--work_dir` that holds all that is durable.
const STORE: &str = "jobs.redb";

/// What the process around the daemon gives it.
#[derive(Debug)]
pub struct RunEnv {
    /// Which program this is.
    pub build: BuildInfo,
    /// Told once where the scheduler listens.
    pub ready: Option<oneshot::Sender<SocketAddr>>,
    /// Cancelled when the scheduler is to end.
    pub shutdown: CancellationToken,
}

/// Why a scheduler does not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(
        "--master={0:?} is not host:port (for example 10.0.0.1:5050), nor several with commas between"
    )]
    Master(String),
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
    Store(#[from] StoreError),
    #[error("failed to restore what {path} has")]
    Restore {
        path: PathBuf,
        #[source]
        source: RestoreError,
    },
}

/// Runs a scheduler until it is told to end.
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
    let user = user(&flags);
    let principal = identity.principal()?;
    make_work_dir(&flags.work_dir)?;
    let path = flags.work_dir.join(STORE);
    let (records, store) = store::open(&path, STORE_PATIENCE).await?;
    let clock = Clock::new();
    let options = Options {
        service_unreachable: flags.service_unreachable_timeout,
        batch_unreachable: flags.batch_unreachable_timeout,
        next_time,
        reconcile: ReconcileIntervals::default(),
        principal: principal.clone(),
        owner: uuid::Uuid::new_v4().as_fields().0,
    };
    let state = State::restore(options, clock.now(), records);
    let state = state.map_err(|source| RunError::Restore { path, source })?;
    let address = SocketAddr::new(flags.ip, flags.port);
    let (listener, address) = listen(address)?;
    let scheme = if certificate.is_some() {
        "https"
    } else {
        "http"
    };

    let hostname = flags.hostname.clone();
    let hostname = hostname.unwrap_or_else(|| hostname::of(address.ip()));
    let authority = hostname::with_port(&hostname, address.port());
    let registration = Registration {
        user: user.clone(),
        principal,
        webui_url: format!("{scheme}://{authority}/"),
        hostname,
        ..Registration::default()
    };
    let (leader, of_leader) = watch::channel(None);
    let (service, ends) = Service::new(state, store, clock, registration);
    let stop = CancellationToken::new();
    // Both end with the token.
    if let Some(served) = certificate.clone() {
        tokio::spawn(served.watch(tls::WATCH_INTERVAL, stop.clone()));
    }
    tokio::spawn(authentication.watch(tls::WATCH_INTERVAL, stop.clone()));
    let context = Arc::new(http::Context {
        authentication,
        handle: ends.handle,
        user,
        leader: of_leader,
        build: env.build,
        shutdown: stop.clone(),
    });
    let link = Link {
        masters,
        identity,
        registration: ends.registration,
        events: ends.link,
        leader,
        seed: uuid::Uuid::new_v4().as_u64_pair().0,
    };
    let serving = server::serve_with(
        listener,
        http::router(context),
        server::Options {
            http2: false,
            ..server::Options::default()
        },
        certificate,
        stop.clone(),
    );
    let serving = tokio::spawn(serving);
    let linking = tokio::spawn(link.run(stop.clone()));
    let driving = tokio::spawn(service.run(stop.clone()));
    work_dir::write_endpoint(&flags.work_dir, scheme, address)
        .map_err(|source| failed("write the endpoint in", &flags.work_dir, source))?;
    info!(%address, "listening");
    if let Some(ready) = env.ready {
        // Whoever wanted to know may have left.
        let _unsent = ready.send(address);
    }
    env.shutdown.cancelled().await;
    info!("ending; tasks go on");
    stop.cancel();
    let _ = tokio::join!(serving, linking, driving);
    work_dir::remove_endpoint(&flags.work_dir);
    Ok(())
}

fn masters(text: &str) -> Result<Vec<String>, RunError> {
    let masters: Vec<_> = text.split(',').map(|one| one.trim().to_owned()).collect();
    match masters.iter().all(|master| is_host_port(master)) {
        true => Ok(masters),
        false => Err(RunError::Master(text.to_owned())),
    }
}

fn user(flags: &Flags) -> String {
    let given = flags.user.clone();
    given.unwrap_or_else(|| std::env::var("USER").unwrap_or_else(|_| "root".to_owned()))
}

/// Owner only: job files may hold secrets in their environment.
fn make_work_dir(path: &Path) -> Result<(), RunError> {
    work_dir::prepare(path, &[STORE]).map_err(|source| failed("prepare", path, source))
}

fn failed(doing: &'static str, path: &Path, source: io::Error) -> RunError {
    RunError::Directory {
        doing,
        path: path.to_owned(),
        source,
    }
}

fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), RunError> {
    let listening = server::listen(address).and_then(|listener| {
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    listening.map_err(|source| RunError::Listen { address, source })
}

/// The next time of a schedule, both since 1970.
fn next_time(cron: &Cron, after: Duration) -> Option<Duration> {
    let schedule = Schedule::parse(&cron.schedule, &cron.time_zone).ok()?;
    let next = schedule.next_after(i64::try_from(after.as_secs()).ok()?)?;
    Some(Duration::from_secs(u64::try_from(next).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_are_a_list_of_addresses() {
        assert_eq!(masters("a:1, b:2").unwrap(), ["a:1", "b:2"]);
        let error = masters("zk://a:2181/mesos").unwrap_err().to_string();
        assert!(error.contains("host:port"), "{error}");
    }
}
