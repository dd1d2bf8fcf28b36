//! The server and the client against each other, over loopback.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::response::IntoResponse as _;
use axum::routing::{get, post};
use bytes::Bytes;
use http::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use meseta_proto::media::{self, MediaType};
use meseta_proto::meseta::v1::CallAccepted;
use meseta_proto::meseta::v1::scheduler_client::SchedulerClient;
use meseta_proto::meseta::v1::scheduler_server::{Scheduler, SchedulerServer};
use meseta_proto::mesos::v1::scheduler;
use meseta_proto::mesos::v1::scheduler::{Event, event};
use meseta_proto::recordio;

use crate::client::{Call, Client, Error};
use crate::compression::Compressible;
use crate::server::{CancellationToken, Options, serve, stream_body};

/// Returns a body that a test sends, and the sender of its data.
pub(crate) fn sent() -> (mpsc::Sender<Bytes>, axum::body::Body) {
    let (sender, receiver) = mpsc::channel(64);
    let body = crate::server::stream_body(receiver, crate::server::CancellationToken::new());
    (sender, body)
}

struct Running {
    address: SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    async fn start(options: Options, router: impl FnOnce(CancellationToken) -> Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let router = router(shutdown.clone());
        let task = tokio::spawn(serve(listener, router, options, shutdown.clone()));
        Self {
            address,
            shutdown,
            task,
        }
    }

    /// Starts a GET of a path.
    fn asking(&self, path: &str) -> JoinHandle<Result<crate::client::Reply, Error>> {
        let url = self.url(path);
        tokio::spawn(async move { Client::default().get(&url).await })
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }
}

/// Returns all bytes from the connection until it ends.
async fn talk(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut out = String::new();
    stream.read_to_string(&mut out).await.unwrap();
    out
}

fn plain(_: CancellationToken) -> Router {
    Router::new()
        .route(
            "/who",
            get(|peer: ConnectInfo<SocketAddr>| async move { peer.ip().to_string() }),
        )
        .route("/echo", post(|body: Bytes| async move { body }))
        .route("/gone", get(|| async { (StatusCode::GONE, "no longer") }))
}

#[tokio::test]
async fn unary_requests_go_there_and_back() {
    let server = Running::start(Options::default(), plain).await;
    let client = Client::default();
    let reply = client.get(&server.url("/who")).await.unwrap();
    assert_eq!(
        (reply.status.as_u16(), reply.text().as_str()),
        (200, "127.0.0.1")
    );
    assert_eq!(reply.header("content-length"), Some("9"));
    let reply = client.get(&server.url("/gone")).await.unwrap();
    assert_eq!(
        (reply.status.as_u16(), reply.text().as_str()),
        (410, "no longer")
    );
    let body = vec![7u8; 1 << 20];
    let call = Call::post(&server.url("/echo")).body(body.clone());
    assert_eq!(client.request(call).await.unwrap().body, body);
    server.stop().await;
    let error = client.get("http://127.0.0.1:1/").await.unwrap_err();
    assert_eq!(error.to_string(), "failed to reach http://127.0.0.1:1/");
    assert!(matches!(
        client.get("not a url").await,
        Err(Error::Request { .. })
    ));
}

#[tokio::test]
async fn too_large_answer_is_refused() {
    let server = Running::start(Options::default(), plain).await;
    let options = super::client::Options {
        body_max_bytes: 8,
        ..Default::default()
    };
    let error = Client::new(options)
        .get(&server.url("/who"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::TooLong { max: 8, .. }), "{error}");
    server.stop().await;
}

/// Returns a route that streams the records of the test for any request.
fn streaming(records: mpsc::Receiver<Bytes>) -> impl FnOnce(CancellationToken) -> Router {
    let records = std::sync::Arc::new(std::sync::Mutex::new(Some(records)));
    move |shutdown| {
        let handler = move || async move {
            match records.lock().unwrap().take() {
                Some(records) => stream_body(records, shutdown).into_response(),
                None => StatusCode::CONFLICT.into_response(),
            }
        };
        Router::new().route("/stream", post(handler))
    }
}

#[tokio::test]
async fn records_stream_until_shutdown() {
    let (sender, records) = mpsc::channel(4);
    let server = Running::start(Options::default(), streaming(records)).await;
    let client = Client::default();
    let event = Event {
        r#type: Some(event::Type::Heartbeat.into()),
        ..Default::default()
    };
    let record = media::encode_record(MediaType::Json, &event);
    sender.send(record.clone()).await.unwrap();
    let call = || Call::message(&server.url("/stream"), MediaType::Json, &event);
    let mut stream = client.stream(call()).await.unwrap();
    assert_eq!(stream.header("transfer-encoding"), Some("chunked"));
    for _ in 0..3 {
        let next = stream.next_message::<Event>(MediaType::Json).await.unwrap();
        assert_eq!(next.as_ref(), Some(&event));
        sender.send(record.clone()).await.unwrap();
    }
    let Err(Error::Refused { status, .. }) = client.stream(call()).await else {
        panic!("it was not refused");
    };
    assert_eq!(status, StatusCode::CONFLICT);
    stream.next_record().await.unwrap();
    server.stop().await;
    // The stream has a regular end, although the sender still exists.
    assert_eq!(stream.next_record().await.unwrap(), None);
    assert!(sender.is_closed());
}

#[tokio::test]
async fn record_is_one_chunk_despite_close() {
    let (sender, records) = mpsc::channel(4);
    let server = Running::start(Options::default(), streaming(records)).await;
    for record in [&b"{}"[..], b"[1]"] {
        sender.send(recordio::encode(record)).await.unwrap();
    }
    drop(sender);
    let request =
        "POST /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    let answer = talk(server.address, request).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("Transfer-Encoding: chunked"), "{head}");
    assert_eq!(body, "4\r\n2\n{}\r\n5\r\n3\n[1]\r\n0\r\n\r\n");
    server.stop().await;
}

#[tokio::test]
async fn chunked_request_bodies_are_read() {
    let server = Running::start(Options::default(), plain).await;
    let request = "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
                   Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
    let answer = talk(server.address, request).await;
    assert!(answer.ends_with("\r\n\r\nabc"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn silent_connection_is_closed_in_time() {
    let options = Options {
        header_timeout: Duration::from_millis(20),
        ..Options::default()
    };
    let server = Running::start(options, plain).await;
    for beginning in ["", "P", "PRI * HTTP/2.0\r\n", "GET / HTTP/1.1\r\nHost: "] {
        assert_eq!(talk(server.address, beginning).await, "", "{beginning:?}");
    }
    server.stop().await;
}

/// Returns a route that reports a request, and answers when the test permits it.
fn blocked(
    arrived: mpsc::Sender<()>,
    release: CancellationToken,
) -> impl FnOnce(CancellationToken) -> Router {
    move |shutdown| {
        let stuck = move || async move {
            arrived.send(()).await.unwrap();
            release.cancelled().await;
        };
        plain(shutdown).route("/held", get(stuck))
    }
}

#[tokio::test]
async fn incomplete_requests_are_evicted_for_others() {
    let options = Options {
        connections_max: 8,
        ..Options::default()
    };
    let server = Running::start(options, plain).await;
    let begun = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n";
    let mut unfinished = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(begun.as_bytes()).await.unwrap();
        unfinished.push(stream);
        let whole =
            "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx";
        assert!(talk(server.address, whole).await.ends_with('x'));
    }
    drop(unfinished);
    server.stop().await;
}

#[tokio::test]
async fn answering_connections_outlive_silent_ones() {
    let options = Options {
        connections_max: 2,
        ..Options::default()
    };
    let (arrived, mut arrivals) = mpsc::channel(1);
    let release = CancellationToken::new();
    let server = Running::start(options, blocked(arrived, release.clone())).await;
    let asking = server.asking("/held");
    arrivals.recv().await.unwrap();
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    for _ in 0..5 {
        let client = Client::default();
        let reply = client.get(&server.url("/who")).await.unwrap();
        assert_eq!(reply.status, StatusCode::OK);
    }
    assert_eq!(silent.read(&mut [0; 1]).await.unwrap(), 0, "the oldest");
    // With all connections in use the newcomer is refused.
    let other = server.asking("/held");
    arrivals.recv().await.unwrap();
    let mut third = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(third.read(&mut [0; 1]).await.unwrap(), 0);
    release.cancel();
    assert_eq!(asking.await.unwrap().unwrap().status, StatusCode::OK);
    assert_eq!(other.await.unwrap().unwrap().status, StatusCode::OK);
    server.stop().await;
}

/// A value in a body that reports its own drop.
struct TellsItsEnd(mpsc::Sender<()>);

impl Drop for TellsItsEnd {
    fn drop(&mut self) {
        let _ = self.0.try_send(());
    }
}

#[tokio::test]
async fn stalled_reader_of_answer_times_out() {
    let options = Options {
        stall_timeout: Duration::from_millis(50),
        ..Options::default()
    };
    let (dropped, mut drops) = mpsc::channel::<()>(1);
    let server = Running::start(options, |_| {
        let endless = move || async move {
            let blocked = TellsItsEnd(dropped.clone());
            let pieces = tokio_stream::StreamExt::map(tokio_stream::iter(0_u64..), move |_| {
                let _held = &blocked;
                Ok::<_, std::convert::Infallible>(Bytes::from(vec![b'x'; 64 * 1024]))
            });
            axum::body::Body::from_stream(pieces)
        };
        Router::new().route("/endless", get(endless))
    })
    .await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = "GET /endless HTTP/1.1\r\nHost: x\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.peek(&mut [0; 1]).await.unwrap();
    // The body is dropped although the client read nothing, and the server still runs.
    assert_eq!(drops.recv().await, Some(()));
    server.stop().await;
}

#[tokio::test]
async fn answers_are_same_origin_and_nosniff() {
    let server = Running::start(Options::default(), plain).await;
    for path in ["/who", "/gone", "/nowhere"] {
        let reply = Client::default().get(&server.url(path)).await.unwrap();
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        let policy = reply.header("cross-origin-resource-policy");
        assert_eq!(policy, Some("same-origin"), "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn undrained_connections_are_aborted() {
    let options = Options {
        drain_timeout: Duration::from_millis(20),
        ..Options::default()
    };
    let (arrived, mut arrivals) = mpsc::channel::<()>(1);
    let never = CancellationToken::new();
    let server = Running::start(options, blocked(arrived, never)).await;
    let waiting = server.asking("/held");
    arrivals.recv().await.unwrap();
    server.stop().await;
    waiting.await.unwrap().unwrap_err();
}

#[tokio::test]
async fn port_without_grpc_uses_http1() {
    let options = Options {
        http2: false,
        ..Options::default()
    };
    let server = Running::start(options, plain).await;
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let answer = talk(server.address, preface).await;
    let is_refused = answer.is_empty() || answer.starts_with("HTTP/1.1 400");
    assert!(is_refused, "{answer}");
    let request = "GET /who HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = talk(server.address, request).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.stop().await;
}

/// A `scheduler::Call` with a `kill` without a task.
#[derive(Clone, PartialEq, prost::Message)]
struct KillOfNothing {
    #[prost(message, optional, tag = "6")]
    kill: Option<()>,
}

struct Refusing;

#[tonic::async_trait]
impl Scheduler for Refusing {
    type SubscribeStream = tokio_stream::Pending<Result<Event, tonic::Status>>;

    async fn subscribe(
        &self,
        _: tonic::Request<scheduler::call::Subscribe>,
    ) -> Result<tonic::Response<Self::SubscribeStream>, tonic::Status> {
        Ok(tonic::Response::new(tokio_stream::pending()))
    }

    async fn call(
        &self,
        call: tonic::Request<scheduler::Call>,
    ) -> Result<tonic::Response<CallAccepted>, tonic::Status> {
        match call.into_inner().r#type {
            Some(_) => Ok(tonic::Response::new(CallAccepted {})),
            None => Err(tonic::Status::invalid_argument(
                "Expecting 'type' to be present",
            )),
        }
    }
}

#[tokio::test]
async fn grpc_and_http_share_the_port() {
    let options = Options {
        drain_timeout: Duration::from_millis(20),
        ..Options::default()
    };
    let server = Running::start(options, |shutdown| {
        tonic::service::Routes::new(SchedulerServer::new(Refusing))
            .into_axum_router()
            .fallback(|| async { StatusCode::NOT_FOUND })
            .merge(plain(shutdown))
    })
    .await;
    let channel = tonic::transport::Channel::from_shared(server.url("")).unwrap();
    let channel = channel.connect().await.unwrap();
    let mut client = SchedulerClient::new(channel.clone());
    let call = scheduler::Call {
        r#type: Some(3),
        ..Default::default()
    };
    client.call(call).await.unwrap();
    let refused = client.call(scheduler::Call::default()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    let mut raw = tonic::client::Grpc::new(channel);
    raw.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/meseta.v1.Scheduler/Call");
    let codec = meseta_proto::grpc::Codec::<KillOfNothing, CallAccepted>::default();
    let kill = tonic::Request::new(KillOfNothing { kill: Some(()) });
    let refused = raw.unary(kill, path, codec).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(refused.message().contains("kill.task_id"), "{refused}");
    let mut events = client
        .subscribe(scheduler::call::Subscribe::default())
        .await
        .unwrap();
    let http = Client::default();
    assert_eq!(
        http.get(&server.url("/who")).await.unwrap().text(),
        "127.0.0.1"
    );
    assert_eq!(http.get(&server.url("/nothing")).await.unwrap().status, 404);
    server.stop().await;
    events.get_mut().message().await.unwrap_err();
}

/// Encodes a frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, stream];
    frame.extend_from_slice(payload);
    frame
}

/// Reads the kind, flags, stream and payload of the next frame.
async fn next_frame(connection: &mut TcpStream) -> (u8, u8, u32, Vec<u8>) {
    let mut header = [0; 9];
    connection.read_exact(&mut header).await.unwrap();
    let [a, b, c, kind, flags, stream @ ..] = header;
    let length = u32::from_be_bytes([0, a, b, c]);
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    connection.read_exact(&mut payload).await.unwrap();
    (kind, flags, u32::from_be_bytes(stream), payload)
}

/// Found with curl 7.88 and a following master: half of the calls lost the redirection.
#[tokio::test]
async fn early_answer_resets_no_unfinished_stream() {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RESET: u8 = 3;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    let server = Running::start(Options::default(), plain).await;
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    let mut begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    begin.extend(frame(SETTINGS, 0, 0, &[]));
    connection.write_all(&begin).await.unwrap();
    // A POST over http to an unknown path.
    let headers = b"\x83\x86\x04\x08/nothing\x01\x01a";
    for (stream, is_ended) in [(1, true), (3, false)] {
        let request = frame(HEADERS, END_HEADERS, stream, headers);
        connection.write_all(&request).await.unwrap();
        loop {
            let (kind, flags, of, _) = next_frame(&mut connection).await;
            assert_ne!(kind, RESET, "before the answer is whole");
            if of == u32::from(stream) && flags & END_STREAM != 0 {
                break;
            }
        }
        if is_ended {
            let mut rest = frame(DATA, END_STREAM, stream, &[0; 21]);
            rest.extend(frame(PING, 0, 0, &[7; 8]));
            connection.write_all(&rest).await.unwrap();
        }
        // Frames sent before the answer to the ping have arrived by then.
        let (expected, unexpected) = if is_ended {
            (PING, RESET)
        } else {
            (RESET, PING)
        };
        loop {
            let (kind, _, _, payload) = next_frame(&mut connection).await;
            assert_ne!(kind, unexpected, "stream {stream}");
            if kind == expected {
                assert!(is_ended || payload == [0; 4], "not without error");
                break;
            }
        }
    }
    server.stop().await;
}

/// Returns the answer to a client that sends this and closes its sending half.
async fn half_closed(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut out = String::new();
    stream.read_to_string(&mut out).await.unwrap();
    out
}

/// Returns routes whose answers take longer than the client's data.
fn slow(shutdown: CancellationToken) -> Router {
    const TOOK: Duration = Duration::from_secs(1);
    let large = || async {
        let pieces = tokio_stream::iter(0_u64..64).map(|_| {
            let piece = Bytes::from(vec![b'x'; 64 * 1024]);
            Ok::<_, std::convert::Infallible>(piece)
        });
        let body = axum::body::Body::from_stream(pieces.throttle(TOOK));
        (axum::Extension(Compressible), body)
    };
    let late = || async {
        tokio::time::sleep(TOOK).await;
        "at last"
    };
    let echo = |body: Bytes| async move {
        tokio::time::sleep(TOOK).await;
        body
    };
    plain(shutdown)
        .route("/late", get(late))
        .route("/late-echo", post(echo))
        .route("/large", get(large))
}

/// Found with `nc -N` and Python's `shutdown(SHUT_WR)`: calls were executed but not answered.
#[tokio::test(start_paused = true)]
async fn half_closed_client_is_answered() {
    let server = Running::start(Options::default(), slow).await;
    let head = "HTTP/1.1\r\nHost: x\r\n";
    for (request, expected) in [
        (format!("GET /late {head}\r\n"), "at last"),
        (format!("GET /who {head}\r\n"), "127.0.0.1"),
        (
            format!("POST /late-echo {head}Content-Length: 5\r\n\r\nhello"),
            "hello",
        ),
        (
            format!(
                "POST /late-echo {head}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
            ),
            "hello",
        ),
        // No handler reads that body.
        (
            format!("POST /nothing {head}Content-Length: 5\r\n\r\nhello"),
            "HTTP/1.1 404 Not Found",
        ),
        // The first of two requests that arrive together.
        (
            format!("GET /late {head}\r\nGET /who {head}\r\n"),
            "127.0.0.1",
        ),
    ] {
        let answer = half_closed(server.address, &request).await;
        assert!(answer.contains(expected), "{request}: {answer}");
    }
    let answer = half_closed(server.address, &format!("GET /large {head}\r\n")).await;
    let body = answer.bytes().filter(|byte| *byte == b'x').count();
    assert_eq!(body, 64 * 64 * 1024);
    // The server does not wait for an incomplete body.
    let begun = Instant::now();
    let cut = format!("POST /late-echo {head}Content-Length: 6\r\n\r\nhello");
    let answer = half_closed(server.address, &cut).await;
    assert!(!answer.contains("200 OK"), "{answer}");
    assert!(begun.elapsed() < Duration::from_secs(2));
    server.stop().await;
}

/// Regression: hyper took the whole answer at once, wrote as much as the socket could take, and then met the end of the
/// request.
#[tokio::test]
async fn half_closed_client_gets_large_answer() {
    /// A length that exceeds the buffers of sockets.
    const LENGTH: usize = 32 << 20;
    let large = || async { Bytes::from(vec![b'x'; LENGTH]) };
    let routes = |shutdown| plain(shutdown).route("/whole", get(large));
    let server = Running::start(Options::default(), routes).await;
    let request = "GET /whole HTTP/1.1\r\nHost: a\r\n\r\n";
    let answer = half_closed(server.address, request).await;
    let body = answer.bytes().filter(|byte| *byte == b'x').count();
    assert!(body >= LENGTH, "{body} of {LENGTH} bytes");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn stream_ends_when_reader_leaves() {
    let (sender, records) = mpsc::channel(1);
    let server = Running::start(Options::default(), streaming(records)).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = "POST /stream HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}";
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.read_exact(&mut [0; 12]).await.unwrap();
    let begun = Instant::now();
    drop(stream);
    sender.closed().await;
    assert!(begun.elapsed() < Duration::from_secs(1));
    server.stop().await;
}
