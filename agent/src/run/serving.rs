//! The agent's HTTP and gRPC servers, and the limits of their connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use meseta_daemon::authentication::Authentication;
use meseta_daemon::build_info::BuildInfo;
use meseta_daemon::files::FileReads;
use meseta_daemon::server::CancellationToken;
use meseta_daemon::verbosity::Verbosity;
use meseta_proto::budget::{Budget, Shares};
use meseta_resources::HostPort;

use super::gc_options;
use crate::budgets::Budgets;
use crate::byte_semaphore::ByteSemaphore;
use crate::checkpoint::Layout;
use crate::clock::unix_now;
use crate::configuration::flags::Flags;
use crate::context::Context;
use crate::descriptors::DescriptorShares;
use crate::disk_report::DiskReport;
use crate::executor_connections::ExecutorConnections;
use crate::executor_tokens::{ExecutorTokens, TokenError};
use crate::gc::Gc;
use crate::handle::Handle;
use crate::link::outgoing::Dropped;
use crate::monitor::Samples;
use crate::nested::NestedContainers;
use crate::oversubscription::Failures;
use crate::service::executor_streams::ExecutorStreams;

/// The bytes of bodies and answers that a caller may always use, regardless of other callers.
const CALLER_FLOOR_BYTES: usize = 64 * 1024;

/// Connections at a time, limited by descriptors and by memory.
pub(super) fn connections_max(budgets: Budgets) -> usize {
    let by_descriptors = DescriptorShares::of_process().connections;
    by_descriptors.min(budgets.connections_max())
}

/// The tokens that the agent gives to executors, if its flags ask for some. Blocks: the key may be a file of the work
/// directory.
pub(crate) fn executor_tokens(
    flags: &Flags,
    layout: &Layout,
) -> Result<Option<ExecutorTokens>, TokenError> {
    let key = flags.access.jwt_secret_key.as_deref();
    let has_tokens = flags.access.authenticate_http_executors;
    has_tokens
        .then(|| ExecutorTokens::open(key, layout))
        .transpose()
}

/// State shared by the handlers.
pub(crate) fn context(
    (flags, budgets): (&Flags, Budgets),
    layout: &Layout,
    core: Handle,
    (flags_view, verbosity, build): (BTreeMap<String, String>, Verbosity, BuildInfo),
    (advertised, start): (SocketAddr, Instant),
    shutdown: &CancellationToken,
    (authentication, tokens): (Authentication, Option<ExecutorTokens>),
) -> Arc<Context> {
    Arc::new(Context {
        core,
        recovered: AtomicBool::new(false),
        samples: Samples::default(),
        streams: ExecutorStreams::new(budgets.events()),
        nested: NestedContainers::default(),
        gc: Gc::new(gc_options(flags), layout.clone()),
        shutdown: shutdown.clone(),
        containerizer: std::sync::OnceLock::new(),
        layout: layout.clone(),
        flags: flags_view,
        build,
        pid: format!("slave(1)@{}", HostPort::from(advertised)),
        start_time: unix_now(),
        started: start,
        recovery: std::sync::OnceLock::new(),
        enable_cfs: flags.cgroups_enable_cfs,
        plugin_failures: Failures::default(),
        tokens,
        dropped: Dropped::default(),
        reading: ByteSemaphore::new(budgets.reading()),
        waiting: ByteSemaphore::new(budgets.waiting()),
        unacknowledged: ByteSemaphore::new(budgets.unacknowledged()),
        executor_connections: ExecutorConnections::new(connections_max(budgets)),
        verbosity,
        authentication,
        budgets,
        bodies: Shares::new(Budget::new(budgets.bodies()), CALLER_FLOOR_BYTES),
        answers: Shares::new(Budget::new(budgets.answers()), CALLER_FLOOR_BYTES),
        file_reads: FileReads::new(budgets.downloads_max()),
        disk_report: DiskReport::default(),
    })
}
