//! The context of the server: the common state of all endpoints, over HTTP and gRPC.

use std::collections::BTreeMap;
use std::sync::Arc;

use meseta_daemon::authentication::{Authentication, Caller};
use meseta_daemon::files::FileReads;
use meseta_daemon::verbosity::Verbosity;
use meseta_proto::budget::Budget;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower_http::services::ServeDir;

use crate::budgets::Peer;
use crate::buffered_response::BufferedResponses;
use crate::call_rate_limit::CallRateLimit;
use crate::chunked_response::Renderer;
use crate::core::Identity;
use crate::files::Files;
use crate::handle::Handle;
use crate::history::History;
use crate::metrics::Metrics;
use crate::subscription_rate::SubscriptionRate;

/// The largest body of a scheduler call, in bytes.
pub(crate) const SCHEDULER_BODY_MAX: usize = 32 * 1024 * 1024;

/// The largest body of any other call, in bytes.
pub(crate) const BODY_MAX: usize = 6 * 1024 * 1024;

/// The state shared by the HTTP and gRPC APIs.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) handle: Handle,
    pub(crate) identity: Identity,
    /// The known addresses of all masters of the cluster.
    pub(crate) masters: watch::Receiver<Vec<String>>,
    /// The flags in effect, as texts.
    pub(crate) flags: BTreeMap<String, String>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) history: Arc<History>,
    pub(crate) renderer: Renderer,
    pub(crate) buffered_responses: BufferedResponses,
    pub(crate) files: Files,
    /// The reader of files for clients.
    pub(crate) file_reads: FileReads,
    pub(crate) authentication: Authentication,
    /// Limits the rate of frameworks' calls.
    pub(crate) call_rate_limit: CallRateLimit,
    /// Limits the rate of subscriptions.
    pub(crate) subscription_rate: SubscriptionRate,
    pub(crate) verbosity: Verbosity,
    /// The files of the web page, served at the root.
    pub(crate) webui: Option<ServeDir>,
    /// Cancelled when all streams must end.
    pub(crate) shutdown: CancellationToken,
}

impl Context {
    /// The limit of one request, within that of all requests of the caller's group.
    pub(crate) fn request_of(&self, caller: &Caller) -> Budget {
        self.handle.budgets.request_of(peer_of(caller))
    }
}

/// The peer that a caller's requests count for.
pub(crate) fn peer_of(caller: &Caller) -> Peer {
    caller.group()
}
