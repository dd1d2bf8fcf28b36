//! One port for HTTP/1 and gRPC (HTTP/2 without TLS), told apart by how a connection begins.
//!
//! [`serve`] owns the accept loop and all connections. Invariant: when it returns, no connection is
//! left. Limits of bodies are the routes' affair.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tower::ServiceExt as _;
use tracing::{debug, warn};

pub use tokio_util::sync::CancellationToken;

#[derive(Copy, Clone, Debug)]
pub struct Options {
    /// From the connection to the end of its first request's header.
    pub header_timeout: Duration,
    /// How long a connection may wait for its next request. Clients keep connections over long
    /// silences and do not all repeat a call that met a closed one, so this is generous.
    pub idle_timeout: Duration,
    /// Connections beyond this are closed as soon as they are accepted.
    pub connections_max: usize,
    /// From the beginning of shutdown to the end of the last connection.
    pub drain_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(600),
            connections_max: 16_384,
            drain_timeout: Duration::from_secs(5),
        }
    }
}

/// How often an HTTP/2 peer is asked whether it is still there, and how long it may take to answer.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(20);
/// After accept fails for want of descriptors, so that the loop does not spin.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Serves until `shutdown` is cancelled, then closes the listener, tells every connection to end
/// after its current response, waits, and aborts what is left.
///
/// Endless responses must watch the same token, as [`stream_body`] does; a handler that does not is
/// cut off at the end of `drain_timeout`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    options: Options,
    shutdown: CancellationToken,
) {
    let permits = Arc::new(Semaphore::new(options.connections_max));
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
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            if !is_full {
                warn!(%peer, limit = options.connections_max, "connection refused: too many");
            }
            is_full = true;
            continue;
        };
        is_full = false;
        let connection = Connection {
            stream,
            peer,
            router: router.clone(),
            permit,
        };
        connections.spawn(connection.run(options, graceful.watcher()));
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

struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    permit: OwnedSemaphorePermit,
}

impl Connection {
    async fn run(self, options: Options, watcher: hyper_util::server::graceful::Watcher) {
        let Self {
            stream,
            peer,
            router,
            permit: _permit,
        } = self;
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%peer, %error, "failed to set TCP_NODELAY");
        }
        let first_request = Arc::new(Notify::new());
        let notify = Arc::clone(&first_request);
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            notify.notify_one();
            request.extensions_mut().insert(ConnectInfo(peer));
            call(router.clone(), request)
        });
        let builder = builder(options);
        let connection = builder
            .serve_connection_with_upgrades(TokioIo::new(stream), service)
            .into_owned();
        let connection = watcher.watch(connection);
        tokio::pin!(connection);
        // hyper's own timer starts only when the kind of connection is known.
        let result = tokio::select! {
            result = &mut connection => result,
            begun = tokio::time::timeout(options.header_timeout, first_request.notified()) => {
                if begun.is_err() {
                    debug!(%peer, "connection closed: no request in time");
                    return;
                }
                connection.await
            }
        };
        if let Err(error) = result {
            debug!(%peer, error = %error, "connection failed");
        }
    }
}

fn builder(options: Options) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(options.idle_timeout)
        // Old clients look for `Mesos-Stream-Id` in this spelling.
        .title_case_headers(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HTTP2_PING_INTERVAL)
        .keep_alive_timeout(HTTP2_PING_TIMEOUT);
    builder
}

async fn call(router: Router, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    router.oneshot(request.map(Body::new)).await
}

/// A body that is what `records` yields until its sender is dropped or `shutdown` is cancelled.
/// Every item is one HTTP chunk, which clients rely on.
pub fn stream_body(records: mpsc::Receiver<Bytes>, shutdown: CancellationToken) -> Body {
    Body::new(StreamBody {
        records,
        shutdown: Box::pin(shutdown.cancelled_owned()),
    })
}

struct StreamBody {
    records: mpsc::Receiver<Bytes>,
    shutdown: std::pin::Pin<Box<tokio_util::sync::WaitForCancellationFutureOwned>>,
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        use std::future::Future as _;
        use std::task::Poll;
        match self.records.poll_recv(context) {
            Poll::Ready(record) => return Poll::Ready(record.map(|bytes| Ok(Frame::data(bytes)))),
            Poll::Pending => {}
        }
        self.shutdown.as_mut().poll(context).map(|()| None)
    }
}
