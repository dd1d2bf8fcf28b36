//! The calls of one stream: in order, except for acknowledgements, which have no order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};
use meseta_daemon::client::{self, Client};
use meseta_daemon::error_chain::chain;
use meseta_etcd::leadership::Fence;
use meseta_proto::mesos::v1::FrameworkId;
use meseta_proto::mesos::v1::scheduler::{Call, call};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{MEDIA, REASON_BYTES_MAX, shortened};
use crate::core::{Input, RefusedAccept};
use crate::service::FromLink;

const STREAM_ID: HeaderName = HeaderName::from_static("mesos-stream-id");
/// Calls that may wait; while there are more, the core reads no input that causes others.
const QUEUE_MAX: usize = 4_096;
/// The number of attempts for a call that a busy master refuses, and the longest pause between two attempts.
const TRIES_MAX: u32 = 30;
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Connections for acknowledgements, the most frequent calls.
const ACKNOWLEDGERS: usize = 4;

/// The queue of calls to the master on one stream.
#[derive(Clone, Debug)]
pub(crate) struct CallQueue {
    ordered: mpsc::Sender<Call>,
    /// The number of kills among the ordered calls.
    kills: Arc<AtomicUsize>,
    acknowledgements: Vec<mpsc::Sender<Call>>,
}

/// An open stream to the master.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) client: Client,
    pub(super) url: String,
    pub(super) stream_id: HeaderValue,
    pub(super) framework_id: String,
    /// Receives the master's answers to updates of the roles.
    pub(super) told: mpsc::Sender<FromLink>,
    /// Ends the sending. The token is cancelled when a call cannot be delivered.
    pub(super) broken: CancellationToken,
    /// The lease fence; while it is closed, no call leaves.
    pub(super) fence: Fence,
}

impl CallQueue {
    /// Sends the queued calls until the stream is broken.
    pub(super) fn start(stream: &Stream) -> Self {
        let kills = Arc::new(AtomicUsize::new(0));
        let start = || {
            let (queue, waiting) = mpsc::channel(QUEUE_MAX);
            tokio::spawn(stream.clone().send_all(waiting, kills.clone()));
            queue
        };
        Self {
            ordered: start(),
            kills: kills.clone(),
            acknowledgements: (0..ACKNOWLEDGERS).map(|_| start()).collect(),
        }
    }

    /// Notes a call that will be sent.
    pub(super) fn count(&self, call: &Call) {
        if call.r#type() == call::Type::Kill {
            self.kills.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the queue of a call: one order for all, except for acknowledgements, which keep the order per task.
    pub(super) fn lane(&self, call: &Call) -> &mpsc::Sender<Call> {
        let Some(acknowledge) = &call.acknowledge else {
            return &self.ordered;
        };
        let bytes = acknowledge.task_id.value.bytes();
        let sum = bytes.fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        });
        &self.acknowledgements[sum % ACKNOWLEDGERS]
    }

    /// Returns the number of kills in the queue.
    pub(crate) fn kills_waiting(&self) -> usize {
        self.kills.load(Ordering::Relaxed)
    }

    /// Returns a queue that nothing reads, and its calls.
    #[cfg(test)]
    pub(crate) fn idle() -> (Self, mpsc::Receiver<Call>) {
        let (ordered, waiting) = mpsc::channel(QUEUE_MAX);
        let acknowledgements = (0..ACKNOWLEDGERS).map(|_| mpsc::channel(QUEUE_MAX).0);
        let queue = Self {
            ordered,
            kills: Arc::default(),
            acknowledgements: acknowledgements.collect(),
        };
        (queue, waiting)
    }
}

impl Stream {
    async fn send_all(self, mut waiting: mpsc::Receiver<Call>, kills: Arc<AtomicUsize>) {
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
            if kind == call::Type::Kill {
                kills.fetch_sub(1, Ordering::Relaxed);
            }
            if let Err(error) = self.send(call).await {
                tracing::warn!(error = %chain(&error), call = kind.as_str_name(), "failed to send a call to the master");
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
        let reply = self.ask(&call).await?;
        // A refusal for one role or one ACCEPT must not cost the stream: the tasks of all others continue.
        let is_refused = reply.status.is_client_error();
        if kind == call::Type::UpdateFramework && (is_refused || reply.status.is_success()) {
            self.tell_roles(is_refused.then(|| reply.text()));
            return Ok(());
        }
        if reply.status.is_success() {
            return Ok(());
        }
        let is_question = matches!(
            kind,
            call::Type::Reconcile | call::Type::ReconcileOperations
        );
        // The second status means that too many questions wait for responses.
        let is_too_much = matches!(
            reply.status,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::BAD_REQUEST
        );
        if is_question && is_too_much {
            // A new stream would ask the same question. Unanswered questions are repeated after a pause.
            let why = shortened(&reply.text(), REASON_BYTES_MAX);
            tracing::warn!(%why, call = kind.as_str_name(), "the master rejects a reconciliation \
                call");
            return Ok(());
        }
        let is_unknown = matches!(
            reply.status,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS
        );
        if let Some(accept) = call.accept.filter(|_| is_refused && !is_unknown) {
            self.tell_accept(accept, &reply);
            return Ok(());
        }
        Err(client::Error::Refused {
            url: self.url.clone(),
            status: reply.status,
            body: reply.text(),
        })
    }

    /// Sends a call, and retries if the master lacks time or memory at the moment.
    async fn ask(&self, call: &Call) -> Result<client::Reply, client::Error> {
        let mut tries = 1;
        loop {
            let message = client::Call::message(&self.url, MEDIA, call);
            let request = message.header(STREAM_ID, self.stream_id.clone());
            let reply = self.client.request(request).await?;
            let Some(pause) = pause_of(&reply).filter(|_| tries < TRIES_MAX) else {
                return Ok(reply);
            };
            tries += 1;
            tokio::select! {
                () = self.broken.cancelled() => return Ok(reply),
                () = tokio::time::sleep(pause) => {}
            }
            self.fence.opened().await;
        }
    }

    fn tell_roles(&self, refused: Option<String>) {
        if let Some(why) = &refused {
            tracing::warn!(%why, "the master refuses roles");
        }
        let refused = refused.map(|why| shortened(&why, REASON_BYTES_MAX));
        // There is one update at a time. A late answer is useless to the next stream, which sends a new update.
        self.tell(FromLink::Answer {
            input: Input::RolesAnswered { refused },
            broken: self.broken.clone(),
        });
    }

    fn tell_accept(&self, accept: call::Accept, reply: &client::Reply) {
        let why = shortened(&reply.text(), REASON_BYTES_MAX);
        tracing::warn!(status = %reply.status, %why, "the master refuses an ACCEPT");
        let mut refused = RefusedAccept {
            offers: accept.offer_ids.into_iter().map(|id| id.value).collect(),
            why,
            ..RefusedAccept::default()
        };
        for operation in accept.operations {
            refused.operations.extend(operation.id.map(|id| id.value));
            let tasks = operation.launch.unwrap_or_default().task_infos.into_iter();
            refused.tasks.extend(tasks.map(|task| task.task_id.value));
        }
        // As many inputs as there were calls in the queue.
        self.tell(FromLink::Input(Input::AcceptRefused(refused)));
    }

    /// Sends a message outside the queue: the core, which receives it, may itself wait for room in the queue.
    fn tell(&self, from_link: FromLink) {
        let told = self.told.clone();
        tokio::spawn(async move {
            // The scheduler may be ending.
            let _ = told.send(from_link).await;
        });
    }
}

/// Returns the time that the master requests before a retry of the same call.
fn pause_of(reply: &client::Reply) -> Option<Duration> {
    let is_busy = matches!(
        reply.status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    );
    let seconds = reply.header("retry-after").filter(|_| is_busy)?;
    let pause = Duration::from_secs(seconds.parse().ok()?);
    Some(pause.clamp(Duration::from_secs(1), PAUSE_MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::body::{Body, Bytes};
    use axum::response::Response;
    use axum::routing::post;
    use meseta_etcd::leadership::fence::BootTime;
    use meseta_proto::reconciler;
    use prost::Message as _;

    use super::*;
    use crate::core::Accept;
    use crate::link::{Registration, calls};
    use crate::placement::Offer;

    /// The calls that a master received, and the status of its next response to each kind.
    #[derive(Default)]
    struct Master {
        calls: Vec<call::Type>,
        answers: Vec<(call::Type, u16)>,
    }

    fn answer(master: &Mutex<Master>, body: &Bytes) -> Response {
        let call = Call::decode(&**body).expect("a call");
        let mut master = master.lock().expect("the master");
        master.calls.push(call.r#type());
        let planned = master
            .answers
            .iter()
            .position(|(kind, _)| *kind == call.r#type());
        let status = planned.map_or(202, |at| master.answers.remove(at).1);
        let mut answer = Response::builder().status(status);
        if matches!(status, 429 | 503) {
            answer = answer.header("retry-after", "0");
        }
        answer.body(Body::from("so it is")).expect("an answer")
    }

    /// Opens a stream to a master with these responses.
    async fn stream_to(
        answers: &[(call::Type, u16)],
    ) -> (Arc<Mutex<Master>>, Stream, mpsc::Receiver<FromLink>) {
        let master = Arc::new(Mutex::new(Master {
            calls: Vec::new(),
            answers: answers.to_vec(),
        }));
        let asked = master.clone();
        let handler = post(move |body: Bytes| async move { answer(&asked, &body) });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        tokio::spawn(async move {
            let served = axum::serve(listener, Router::new().route("/", handler)).await;
            served.expect("it serves");
        });
        let (told, inputs) = mpsc::channel(8);
        let fence = Fence::closed();
        fence.extend(BootTime::now().after(Duration::from_secs(3_600)));
        let stream = Stream {
            client: Client::plaintext(client::Options::default(), None),
            url,
            stream_id: HeaderValue::from_static("s"),
            framework_id: "f".to_owned(),
            told,
            broken: CancellationToken::new(),
            fence,
        };
        (master, stream, inputs)
    }

    fn an_accept() -> Call {
        let offer = Offer {
            id: "o1".to_owned(),
            ..Offer::default()
        };
        let accept = Accept {
            offer,
            operations: Vec::new(),
            tasks: Vec::new(),
        };
        calls::accept(&accept, &Registration::default())
    }

    #[tokio::test]
    async fn refused_accept_keeps_the_stream() {
        for status in [400, 413] {
            let (master, stream, mut inputs) = stream_to(&[(call::Type::Accept, status)]).await;
            stream.send(an_accept()).await.expect("refused, and told");
            let told = inputs.recv().await;
            let Some(FromLink::Input(Input::AcceptRefused(refused))) = told else {
                panic!("{told:?}");
            };
            assert_eq!(
                (&*refused.offers, &*refused.why),
                (&["o1".to_owned()][..], "so it is")
            );
            stream
                .send(an_accept())
                .await
                .expect("the next one is taken");
            assert_eq!(master.lock().expect("the master").calls.len(), 2);
        }
    }

    #[tokio::test]
    async fn too_large_question_keeps_the_stream() {
        let question = reconciler::Request::Implicit.into_call();
        for status in [400, 413] {
            let (_, stream, _inputs) = stream_to(&[(call::Type::Reconcile, status)]).await;
            stream.send(question.clone()).await.expect("dropped");
        }
        // Other refusals concern the stream.
        let (_, stream, _inputs) = stream_to(&[(call::Type::Reconcile, 403)]).await;
        assert!(stream.send(question).await.is_err());
    }

    #[tokio::test]
    async fn call_refused_by_busy_master_repeats() {
        let busy = [(call::Type::Kill, 429), (call::Type::Kill, 503)];
        let (master, stream, _inputs) = stream_to(&busy).await;
        let kill = calls::kill("t".to_owned(), None);
        stream.send(kill.clone()).await.expect("taken at last");
        assert_eq!(master.lock().expect("the master").calls.len(), 3);
        // A master accepts no call of a framework that it does not know.
        let unknown = [(call::Type::Accept, 403)];
        let (_, stream, _inputs) = stream_to(&unknown).await;
        assert!(stream.send(an_accept()).await.is_err());
    }
}
