//! A round-robin proxy that follows `/v1/discovery/http_sd` of the scheduler, as proxies in front of a service do.
//!
//! The proxy sends requests to instances that are listed as healthy, and waits a bounded time for a connection. After a
//! failed request or a 5xx, it sends the request to another instance, and pauses the failed one. Each retry is recorded
//! with its reason.

use std::collections::HashMap;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use meseta_tests::http;
use serde_json::Value;

use crate::message;

/// The pause between two requests for the list. An instance has to drain for longer.
const REFRESH: Duration = Duration::from_millis(200);
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Instances that a request is tried on, one after the other.
const TRIES_MAX: usize = 4;
/// The time for which a failed instance gets no requests, while there are others.
const LEFT_OUT_FOR: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
struct Shared {
    backends: Mutex<Vec<SocketAddr>>,
    /// The last failure of each instance.
    failed: Mutex<HashMap<SocketAddr, Instant>>,
    next: AtomicUsize,
    retries: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// Listens on loopback, and follows the instances of a job at the scheduler of this URL.
    pub(crate) fn start(scheduler: &str, job: &'static str) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("failed to listen")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let follower = Arc::clone(&shared);
        let list = format!("{scheduler}/v1/discovery/http_sd");
        std::thread::spawn(move || {
            while !follower.is_over.load(Ordering::Relaxed) {
                // The last list applies while the scheduler does not respond.
                if let Some(backends) = listed(&list, job) {
                    *lock(&follower.backends) = backends;
                }
                std::thread::sleep(REFRESH);
            }
        });
        let acceptor = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&acceptor);
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Ok(Self { address, shared })
    }

    /// Returns the reasons of the retries since the last call.
    pub(crate) fn take_retries(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.shared.retries))
    }

    pub(crate) fn backends(&self) -> usize {
        lock(&self.shared.backends).len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

/// Returns the healthy instances of a job, or `None` while the scheduler does not respond.
fn listed(list: &str, job: &str) -> Option<Vec<SocketAddr>> {
    let answer = http::get_within(CONNECT_LIMIT, list).ok()?;
    if answer.status != 200 {
        return None;
    }
    let page: Value = serde_json::from_slice(&answer.body).ok()?;
    let healthy = page.as_array()?.iter().filter(|one| {
        let labels = &one["labels"];
        labels["__meta_meseta_job"] == job && labels["__meta_meseta_healthy"] == "true"
    });
    let addresses = healthy.filter_map(|one| one["targets"][0].as_str()?.parse().ok());
    Some(addresses.collect())
}

impl Shared {
    fn serve(&self, mut client: TcpStream) {
        let _ = client.set_read_timeout(Some(ANSWER_LIMIT));
        if message::read_head(&mut client).is_err() {
            return;
        }
        let mut answer = message::response("502 Bad Gateway");
        for _ in 0..TRIES_MAX {
            let Some(backend) = self.choose() else {
                self.note("no instance is listed".to_owned());
                break;
            };
            match ask(backend) {
                Ok(good) => {
                    answer = good;
                    break;
                }
                Err(why) => {
                    lock(&self.failed).insert(backend, Instant::now());
                    self.note(format!("{backend}: {why:#}"));
                }
            }
        }
        let _ = client.write_all(&answer);
    }

    fn choose(&self) -> Option<SocketAddr> {
        let backends = lock(&self.backends);
        let mut failed = lock(&self.failed);
        failed.retain(|_, since| since.elapsed() < LEFT_OUT_FOR);
        let mut good = backends.clone();
        good.retain(|backend| !failed.contains_key(backend));
        let all = if good.is_empty() { &*backends } else { &good };
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let place = turn.checked_rem(all.len())?;
        all.get(place).copied()
    }

    fn note(&self, why: String) {
        lock(&self.retries).push(why);
    }
}

/// Returns the response of an instance, or an error if another instance must be tried.
fn ask(backend: SocketAddr) -> anyhow::Result<Vec<u8>> {
    let mut stream =
        TcpStream::connect_timeout(&backend, CONNECT_LIMIT).context("failed to connect")?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream
        .write_all(&message::request("/"))
        .context("failed to send the request")?;
    let head = message::read_head(&mut stream).context("no answer")?;
    let status = message::status(&head).context("the answer is no HTTP")?;
    anyhow::ensure!(status < 500, "it answered {status}");
    Ok(head.into_bytes())
}
