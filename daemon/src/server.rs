//! The server on one port: HTTP/1 and, with gRPC, HTTP/2, with TLS or without, distinguished by the first bytes of a
//! connection.
//!
//! [`serve`] and [`serve_with`] own the accept loop and all connections. Invariant: when they return, no connection is
//! left. Limits of bodies belong to the routes; [`super::authentication`] identifies the caller.

mod admission;
mod half_close;
mod peer;
mod stall;
mod unread;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Request, Response, Version};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::ServiceExt as _;
use tracing::{debug, warn};

use super::body::{PolledBody, guarded};
use super::compression::Compressible;
use super::owner::SocketOwner;
use super::tls::{PeerCertificate, Served};
pub(crate) use admission::Network;
use admission::{Admission, InUse, Limits};
use half_close::{Exchange, Exchanges, HalfClose, RequestBody};
pub use peer::{Connection, Peer};
use stall::StallTimeout;
use unread::ReadOn;

pub use tokio_util::sync::CancellationToken;

/// The header for the origins that may embed a response, as a script or an image.
pub(crate) const RESOURCE_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-resource-policy");

#[derive(Copy, Clone, Debug)]
pub struct Options {
    /// The time limit from the connection to the end of its first request's header.
    pub header_timeout: Duration,
    /// The longest time that a connection may wait for its next request. Clients keep connections over long silences and do
    /// not all repeat a call that met a closed connection, so this is generous.
    pub idle_timeout: Duration,
    /// The maximum number of connections; beyond it a new connection evicts one without an authenticated client, of the
    /// tenant with the most.
    pub connections_max: usize,
    /// The maximum of unauthenticated connections per address, or per 64 bits of an IPv6 address. Loopback, and local
    /// clients whose user the kernel knows, have no such limit.
    pub connections_per_address_max: usize,
    /// The longest time for which a client may take nothing of its response.
    pub stall_timeout: Duration,
    /// The time from the beginning of shutdown to the end of the last connection.
    pub drain_timeout: Duration,
    /// Whether the server speaks HTTP/2, which gRPC needs, or HTTP/1 alone, where a connection has one request at a time.
    pub http2: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(600),
            connections_max: 16_384,
            connections_per_address_max: 512,
            stall_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(5),
            http2: true,
        }
    }
}

/// The pause between two pings of an HTTP/2 peer, and the time limit for its answer.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes in memory per connection for an incomplete request, and for an answer that the client has not taken. Longer
/// headers are refused.
const BUFFER_BYTES_MAX: usize = 32 * 1024;
/// Bytes that an HTTP/2 peer may send before the reader requests them, on one stream and on the whole connection. This much
/// memory may wait per agent, and more would not be faster within a cluster.
const HTTP2_STREAM_BYTES: u32 = 128 * 1024;
const HTTP2_CONNECTION_BYTES: u32 = 256 * 1024;
/// Requests of one connection at a time: agents, schedulers and operators have a handful, and each needs memory.
const HTTP2_STREAMS_MAX: u32 = 16;
/// Bytes that may wait to be sent on one stream.
const HTTP2_SEND_BYTES_MAX: usize = 64 * 1024;
/// The pause after accept fails for lack of descriptors, so that the loop does not spin.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Connections that may wait to be accepted, as far as `net.core.somaxconn` permits. After a failover thousands of agents
/// connect at once, and an agent without room retries only after a second.
const BACKLOG: u32 = 16 << 10;

/// Listens at an address; port 0 selects a free port.
pub fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `shutdown` is cancelled, then closes the listener, lets every connection end after its current response,
/// waits, and aborts the remaining ones.
///
/// Endless responses must watch the same token, as [`stream_body`] does; a handler that does not is cut off at the end of
/// `drain_timeout`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    options: Options,
    shutdown: CancellationToken,
) {
    serve_with(listener, router, options, None, shutdown).await;
}

/// Serves over TLS if there is a certificate. A local connection without TLS then still reaches the routes, which see that
/// it has no TLS; any other connection gets the hint that the port requires TLS, and is closed.
pub async fn serve_with(
    listener: TcpListener,
    router: Router,
    options: Options,
    certificate: Option<Arc<Served>>,
    shutdown: CancellationToken,
) {
    let admission = Admission::new(Limits {
        connections_max: options.connections_max,
        unauthenticated_max: options.connections_per_address_max,
    });
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let mut is_full = false;
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            _ = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "failed to accept a connection");
                // Most often the descriptors have run out.
                admission.evict_idle(Instant::now());
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let local = stream.local_addr().ok();
        let owner = local.and_then(|local| SocketOwner::find_local(peer, local));
        let Some(slot) = admission.admit(peer.ip(), owner, Instant::now()) else {
            if !is_full {
                warn!(%peer, "connection refused: at the limit, and no connection can be evicted");
            }
            is_full = true;
            continue;
        };
        is_full = false;
        let connection = Accepted {
            peer: Peer::new(peer, local, (slot, owner)),
            stream,
            router: router.clone(),
        };
        let closed = connection.peer.connection();
        let watcher = graceful.watcher();
        let certificate = certificate.clone();
        connections.spawn(async move {
            tokio::select! {
                () = connection.run(certificate, options, watcher) => {}
                () = closed.closed() => debug!(%peer, "connection closed: evicted in favour of \
                    others"),
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(options.drain_timeout, graceful.shutdown())
        .await
        .is_err()
    {
        debug!(
            connections = connections.len(),
            "connections aborted: not drained in time"
        );
    }
    connections.shutdown().await;
}

struct Accepted {
    stream: TcpStream,
    peer: Peer,
    router: Router,
}

/// The first byte of every TLS connection: the record type of a handshake.
const HANDSHAKE: u8 = 0x16;
/// The response to plain HTTP on a TLS port from another machine.
const NOT_ENCRYPTED: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\
    Content-Length: 42\r\nConnection: close\r\n\r\nThis port speaks TLS: use https:// instead";

impl Accepted {
    async fn run(
        self,
        certificate: Option<Arc<Served>>,
        options: Options,
        watcher: hyper_util::server::graceful::Watcher,
    ) {
        match certificate {
            Some(certificate) => self.run_encrypted(certificate, options, watcher).await,
            None => self.run_plain(options, watcher).await,
        }
    }

    async fn run_plain(self, options: Options, watcher: hyper_util::server::graceful::Watcher) {
        let address = self.peer.address;
        if let Err(error) = self.stream.set_nodelay(true) {
            debug!(peer = %address, %error, "failed to set TCP_NODELAY");
        }
        serve_connection(self.stream, self.peer, self.router, options, watcher).await;
    }

    async fn run_encrypted(
        mut self,
        certificate: Arc<Served>,
        options: Options,
        watcher: hyper_util::server::graceful::Watcher,
    ) {
        let address = self.peer.address;
        let mut first = [0];
        let peeked = tokio::time::timeout(options.header_timeout, self.stream.peek(&mut first));
        match peeked.await {
            Ok(Ok(1)) if first == [HANDSHAKE] => {}
            Ok(Ok(1)) if self.peer.is_local() => return self.run_plain(options, watcher).await,
            Ok(Ok(1)) => {
                // Best effort: the client may not read the response.
                let _ = self.stream.write_all(NOT_ENCRYPTED).await;
                let _ = self.stream.shutdown().await;
                debug!(peer = %address, "connection closed: the client did not start TLS");
                return;
            }
            _ => {
                return debug!(peer = %address, "connection closed: the client sent nothing in \
                time");
            }
        }
        if let Err(error) = self.stream.set_nodelay(true) {
            debug!(peer = %address, %error, "failed to set TCP_NODELAY");
        }
        let Self {
            stream,
            mut peer,
            router,
        } = self;
        let accepted = certificate.acceptor(options.http2).accept(stream);
        let stream = match tokio::time::timeout(options.header_timeout, accepted).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return debug!(peer = %address, %error, "TLS handshake failed"),
            Err(_) => return debug!(peer = %address, "TLS handshake not done in time"),
        };
        peer.encrypted = true;
        peer.certificate = PeerCertificate::from_connection(stream.get_ref().1).map(Arc::new);
        if let Some(certificate) = &peer.certificate {
            // All clients without a principal share one.
            peer.set_principal(&certificate.principal().unwrap_or_default());
        }
        serve_connection(stream, peer, router, options, watcher).await;
    }
}

/// Serves one connection until its end.
async fn serve_connection<S>(
    stream: S,
    peer: Peer,
    router: Router,
    options: Options,
    watcher: hyper_util::server::graceful::Watcher,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let address = peer.address;
    let first_request = Arc::new(Notify::new());
    let notify = Arc::clone(&first_request);
    let exchanges = Exchanges::new();
    let stream = StallTimeout::new(stream, options.stall_timeout);
    let stream = HalfClose::new(stream, exchanges.clone());
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        notify.notify_one();
        let in_use = Arc::new(peer.begin());
        request.extensions_mut().insert(ConnectInfo(address));
        request.extensions_mut().insert(peer.clone());
        // HTTP/2 signals the end of a request differently.
        let exchange = (request.version() < Version::HTTP_2).then(|| exchanges.begin());
        call(router.clone(), request, in_use, exchange)
    });
    let builder = builder(options);
    let connection = builder
        .serve_connection(TokioIo::new(stream), service)
        .into_owned();
    let connection = watcher.watch(connection);
    tokio::pin!(connection);
    // hyper's own timer starts only when the protocol of the connection is known.
    let result = tokio::select! {
        result = &mut connection => result,
        begun = tokio::time::timeout(options.header_timeout, first_request.notified()) => {
            if begun.is_err() {
                debug!(peer = %address, "connection closed: the client sent no request in time");
                return;
            }
            connection.await
        }
    };
    if let Err(error) = result {
        debug!(peer = %address, error = %error, "connection failed");
    }
}

fn builder(options: Options) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(options.idle_timeout)
        .max_buf_size(BUFFER_BYTES_MAX)
        // Old clients expect `Mesos-Stream-Id` in this spelling.
        .title_case_headers(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HTTP2_PING_INTERVAL)
        .keep_alive_timeout(HTTP2_PING_TIMEOUT)
        .initial_stream_window_size(HTTP2_STREAM_BYTES)
        .initial_connection_window_size(HTTP2_CONNECTION_BYTES)
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .max_send_buf_size(HTTP2_SEND_BYTES_MAX);
    if options.http2 {
        builder
    } else {
        builder.http1_only()
    }
}

async fn call(
    router: Router,
    request: Request<Incoming>,
    in_use: Arc<InUse>,
    exchange: Option<Exchange>,
) -> Result<Response<impl http_body::Body<Data = Bytes, Error = axum::Error>>, Infallible> {
    const GRPC: &[u8] = b"application/grpc";
    let kind = request.headers().get(CONTENT_TYPE);
    let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(GRPC));
    let mut coming = exchange.as_ref().map(Exchange::body);
    if request.body().is_end_stream() {
        in_use.start();
        coming = None;
    }
    // The streams of gRPC have no end to wait for, and its clients understand a reset after an answer.
    let reads_on = request.version() == Version::HTTP_2 && !is_grpc;
    let request = request.map(|body| {
        let body = ReadOn::new(body, reads_on);
        started_when_read(body, Arc::downgrade(&in_use), coming)
    });
    let mut response = router.oneshot(request).await?;
    in_use.start();
    if !is_grpc {
        add_browser_headers(&mut response);
    }
    if let Some(exchange) = &exchange {
        // Streams of events, whose length is unknown at the beginning, are never compressed.
        let is_marked = response.extensions().get::<Compressible>().is_some();
        exchange.answer(is_marked || response.body().size_hint().exact().is_some());
    }
    // The connection is in use until the response is sent.
    Ok(response.map(|body| guarded(body, (in_use, exchange))))
}

/// Adds headers that forbid browsers to guess the type of an answer and to share it with another page.
fn add_browser_headers(response: &mut Response<Body>) {
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let own = HeaderValue::from_static("same-origin");
    headers.entry(RESOURCE_POLICY).or_insert(own);
}

/// Wraps a request's body. Once the body is complete, the request counts as being answered.
fn started_when_read(body: ReadOn, in_use: Weak<InUse>, mut coming: Option<RequestBody>) -> Body {
    let poll = move |mut body: Pin<&mut ReadOn>, context: &mut Context<'_>| {
        let polled = body.as_mut().poll_frame(context);
        let is_last = matches!(polled, Poll::Ready(None));
        if is_last || body.is_end_stream() {
            coming = None;
            if let Some(in_use) = in_use.upgrade() {
                in_use.start();
            }
        } else if let (Poll::Pending, Some(coming)) = (&polled, &coming) {
            coming.wait(context.waker());
        }
        polled
    };
    Body::new(PolledBody::new(body, poll))
}

/// Returns a body of the items of `records`, until its sender is dropped or `shutdown` is cancelled. Every item is one HTTP
/// chunk, which clients rely on.
pub fn stream_body(records: mpsc::Receiver<Bytes>, shutdown: CancellationToken) -> Body {
    Body::new(StreamBody {
        records,
        shutdown: Box::pin(shutdown.cancelled_owned()),
    })
}

struct StreamBody {
    records: mpsc::Receiver<Bytes>,
    shutdown: Pin<Box<tokio_util::sync::WaitForCancellationFutureOwned>>,
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        use std::future::Future as _;
        match self.records.poll_recv(context) {
            Poll::Ready(record) => return Poll::Ready(record.map(|bytes| Ok(Frame::data(bytes)))),
            Poll::Pending => {}
        }
        self.shutdown.as_mut().poll(context).map(|()| None)
    }
}
