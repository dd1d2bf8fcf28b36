//! The calls of one stream: in order, but for acknowledgements, which have no order.

use http::{HeaderName, HeaderValue};
use meseta_daemon::client::{self, Client};
use meseta_daemon::error_chain::chain;
use meseta_etcd::leadership::Fence;
use meseta_proto::mesos::v1::FrameworkId;
use meseta_proto::mesos::v1::scheduler::{Call, call};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::MEDIA;
use crate::core::Input;
use crate::service::FromLink;

const STREAM_ID: HeaderName = HeaderName::from_static("mesos-stream-id");
/// Calls that may wait; more hold the scheduler up until the master has taken some.
const QUEUE_MAX: usize = 4_096;
/// What is kept of the reason of a refusal.
const REASON_CHARS_MAX: usize = 512;
/// Connections for acknowledgements, of which there are most.
const ACKNOWLEDGERS: usize = 4;

/// The way to the master on one stream.
#[derive(Clone, Debug)]
pub(crate) struct CallQueue {
    ordered: mpsc::Sender<Call>,
    acknowledgements: Vec<mpsc::Sender<Call>>,
}

/// A stream that is open.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) client: Client,
    pub(super) url: String,
    pub(super) stream_id: HeaderValue,
    pub(super) framework_id: String,
    /// Told how the master answers an update of the roles.
    pub(super) told: mpsc::Sender<FromLink>,
    /// Ends the sending, and is cancelled when a call does not arrive.
    pub(super) broken: CancellationToken,
    /// No call leaves while it is closed.
    pub(super) fence: Fence,
}

impl CallQueue {
    /// Sends what is queued until the stream is broken.
    pub(super) fn start(stream: &Stream) -> Self {
        let start = || {
            let (queue, waiting) = mpsc::channel(QUEUE_MAX);
            tokio::spawn(stream.clone().send_all(waiting));
            queue
        };
        Self {
            ordered: start(),
            acknowledgements: (0..ACKNOWLEDGERS).map(|_| start()).collect(),
        }
    }

    /// Queues a call. One of a stream that has ended is dropped: the core is told of the end.
    pub(crate) async fn send(&self, call: Call) {
        let _ = self.ordered.send(call).await;
    }

    /// Queues an acknowledgement; those of one task keep their order.
    pub(crate) async fn acknowledge(&self, call: Call) {
        let task = call
            .acknowledge
            .as_ref()
            .map(|acknowledge| &acknowledge.task_id.value);
        let bytes = task.map(|task| task.bytes()).into_iter().flatten();
        let sum = bytes.fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        });
        let _ = self.acknowledgements[sum % ACKNOWLEDGERS].send(call).await;
    }
}

impl Stream {
    async fn send_all(self, mut waiting: mpsc::Receiver<Call>) {
        loop {
            let call = tokio::select! {
                () = self.broken.cancelled() => return,
                call = waiting.recv() => call,
            };
            let Some(call) = call else {
                return;
            };
            tokio::select! {
                () = self.broken.cancelled() => return,
                () = self.fence.opened() => {}
            }
            let kind = call.r#type();
            if let Err(error) = self.send(call).await {
                tracing::warn!(error = %chain(&error), call = kind.as_str_name(), "call did not arrive");
                self.broken.cancel();
                return;
            }
        }
    }

    async fn send(&self, mut call: Call) -> Result<(), client::Error> {
        let id = FrameworkId {
            value: self.framework_id.clone(),
        };
        if let Some(update) = &mut call.update_framework {
            update.framework_info.id = Some(id.clone());
        }
        call.framework_id = Some(id);
        let kind = call.r#type();
        let message = client::Call::message(&self.url, MEDIA, &call);
        let request = message.header(STREAM_ID, self.stream_id.clone());
        let reply = self.client.request(request).await?;
        // A change of roles that is refused must not cost the stream: the tasks of the other roles go on.
        let is_refused = reply.status.is_client_error();
        if kind == call::Type::UpdateFramework && (is_refused || reply.status.is_success()) {
            self.tell_roles(is_refused.then(|| reply.text()));
            return Ok(());
        }
        if reply.status.is_success() {
            return Ok(());
        }
        Err(client::Error::Refused {
            url: self.url.clone(),
            status: reply.status,
            body: reply.text(),
        })
    }

    /// Beside the queue: the core, which takes this, may be waiting for room in it. There is one update at a time.
    fn tell_roles(&self, refused: Option<String>) {
        if let Some(why) = &refused {
            tracing::warn!(%why, "the master refuses roles");
        }
        let refused = refused.map(|why| why.chars().take(REASON_CHARS_MAX).collect());
        let told = self.told.clone();
        tokio::spawn(async move {
            let answer = FromLink::Input(Input::RolesAnswered { refused });
            // The scheduler may be ending.
            let _ = told.send(answer).await;
        });
    }
}
