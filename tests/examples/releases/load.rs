//! The load: one client with a bounded number of requests in flight, which notes each failed one.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::message;

/// Concurrent requests: seven of the ten that ten instances can handle.
const AT_ONCE: usize = 7;
/// The time after which a request has failed.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct Counts {
    answered: AtomicU64,
    longest_ms: AtomicU64,
    failures: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct Load {
    counts: Arc<Counts>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    pub(crate) fn start(proxy: SocketAddr) -> Self {
        let counts = Arc::new(Counts::default());
        let threads = (0..AT_ONCE).map(|_| {
            let counts = Arc::clone(&counts);
            std::thread::spawn(move || {
                while !counts.is_over.load(Ordering::Relaxed) {
                    counts.ask(proxy);
                }
            })
        });
        Self {
            threads: threads.collect(),
            counts,
        }
    }

    /// Returns the number of answered requests, and the longest duration since the last call.
    pub(crate) fn answered(&self) -> (u64, Duration) {
        let longest = self.counts.longest_ms.swap(0, Ordering::Relaxed);
        let answered = self.counts.answered.load(Ordering::Relaxed);
        (answered, Duration::from_millis(longest))
    }

    /// Returns the requests that failed since the last call, each with the reason.
    pub(crate) fn take_failures(&self) -> Vec<String> {
        let mut failures = self.counts.failures.lock();
        std::mem::take(failures.as_mut().unwrap_or_else(|error| error.get_mut()))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.counts.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Counts {
    fn ask(&self, proxy: SocketAddr) {
        let began = Instant::now();
        match request(proxy) {
            Ok(()) => {
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(why) => {
                let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
                failures.push(format!("{why:#}"));
                // The pause limits the requests to a refusing proxy.
                drop(failures);
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.longest_ms.fetch_max(took, Ordering::Relaxed);
    }
}

fn request(proxy: SocketAddr) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect_timeout(&proxy, LIMIT).context("failed to connect")?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(&message::request("/"))?;
    let head = message::read_head(&mut stream).context("no answer")?;
    let status = message::status(&head).context("the answer is no HTTP")?;
    anyhow::ensure!(status == 200, "the proxy answered {status}");
    Ok(())
}
