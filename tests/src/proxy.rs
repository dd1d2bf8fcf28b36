//! A TCP proxy on loopback: it delays bytes, cuts connections after a number of bytes, stalls them, or records them.
//!
//! Cuts apply to connections accepted from then on, [`Proxy::hold`] to the present ones. Each direction of each connection
//! has a thread; all end with the proxy.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::network::loopback;

/// Bytes of a client that the proxy keeps at most.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// The value without a limit for the bytes of a direction.
const NEVER: usize = usize::MAX;

/// The sender of the bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Sender {
    Client,
    Server,
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// The number of bytes of each side after which the connection is closed.
    ends: [AtomicUsize; 2],
    passed: [AtomicUsize; 2],
    is_held: Mutex<bool>,
    released: Condvar,
    is_over: AtomicBool,
    /// The delay of each piece from the server, in ms.
    delay_ms: Arc<AtomicU64>,
    kept: Mutex<Vec<u8>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    fn close(&self) {
        for stream in [&self.client, &self.server] {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.is_over.store(true, Ordering::SeqCst);
        self.set_held(false);
    }

    fn set_held(&self, held: bool) {
        *lock(&self.is_held) = held;
        self.released.notify_all();
    }

    fn pass_on(&self, from: Sender) {
        let (mut source, mut target) = match from {
            Sender::Client => (&self.client, &self.server),
            Sender::Server => (&self.server, &self.client),
        };
        let at = from as usize;
        let mut bytes = vec![0; 16 << 10];
        while let Ok(count @ 1..) = source.read(&mut bytes) {
            let delay = self.delay_ms.load(Ordering::SeqCst);
            if from == Sender::Server && delay > 0 {
                std::thread::sleep(Duration::from_millis(delay));
            }
            let held = lock(&self.is_held);
            drop(self.released.wait_while(held, |held| *held));
            let passed = self.passed[at].load(Ordering::SeqCst);
            let end = self.ends[at].load(Ordering::SeqCst);
            let count = count.min(end.saturating_sub(passed));
            if from == Sender::Client {
                let mut kept = lock(&self.kept);
                let room = KEPT_BYTES_MAX.saturating_sub(kept.len());
                kept.extend(&bytes[..count.min(room)]);
            }
            let is_sent = target.write_all(&bytes[..count]).is_ok();
            self.passed[at].store(passed + count, Ordering::SeqCst);
            if !is_sent || passed + count >= end {
                break;
            }
        }
        self.close();
    }
}

#[derive(Debug)]
struct Shared {
    target: String,
    over: AtomicBool,
    delay_ms: Arc<AtomicU64>,
    ends: [AtomicUsize; 2],
    connections: Mutex<Vec<Arc<Connection>>>,
}

#[derive(Debug)]
pub struct Proxy {
    pub address: String,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Listens on a free port for a server at this address.
    pub fn new(target: &str) -> Self {
        let listener = TcpListener::bind((loopback(), 0)).expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            over: AtomicBool::new(false),
            delay_ms: Arc::default(),
            ends: [AtomicUsize::new(NEVER), AtomicUsize::new(NEVER)],
            connections: Mutex::default(),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || accept(&listener, &accepting));
        Self { address, shared }
    }

    /// Closes connections from now on after this many bytes of one side.
    pub fn cut_after(&self, from: Sender, bytes: usize) {
        self.shared.ends[from as usize].store(bytes, Ordering::SeqCst);
    }

    /// Stops closing connections from now on.
    pub fn mend(&self) {
        for end in &self.shared.ends {
            end.store(NEVER, Ordering::SeqCst);
        }
    }

    /// Closes the newest connection after this many more bytes of one side.
    pub fn cut_newest_after(&self, from: Sender, bytes: usize) {
        let newest = self.newest();
        let at = from as usize;
        let end = newest.passed[at].load(Ordering::SeqCst) + bytes;
        newest.ends[at].store(end, Ordering::SeqCst);
    }

    /// Delays each piece from the server from now on, on all connections.
    pub fn delay(&self, each: Duration) {
        let each_ms = u64::try_from(each.as_millis()).unwrap_or(u64::MAX);
        self.shared.delay_ms.store(each_ms, Ordering::SeqCst);
    }

    /// Stalls all present connections: no bytes pass, and neither side notices.
    pub fn hold(&self) {
        for connection in lock(&self.shared.connections).iter() {
            connection.set_held(true);
        }
    }

    /// Ends the stall of [`Self::hold`]: delayed bytes arrive.
    pub fn release(&self) {
        for connection in lock(&self.shared.connections).iter() {
            connection.set_held(false);
        }
    }

    /// Returns the number of connections so far.
    pub fn count(&self) -> usize {
        lock(&self.shared.connections).len()
    }

    /// Whether the newest connection is closed.
    pub fn is_newest_over(&self) -> bool {
        self.newest().is_over.load(Ordering::SeqCst)
    }

    /// Returns the bytes from the client of the newest connection, from its beginning.
    pub fn said(&self) -> Vec<u8> {
        lock(&self.newest().kept).clone()
    }

    fn newest(&self) -> Arc<Connection> {
        let connections = lock(&self.shared.connections);
        connections.last().expect("a connection").clone()
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while let Ok((client, _)) = listener.accept() {
        if shared.over.load(Ordering::SeqCst) {
            return;
        }
        // An absent server is equivalent to a connection that closes at once.
        let Ok(server) = TcpStream::connect(&shared.target) else {
            continue;
        };
        for stream in [&client, &server] {
            let _ = stream.set_nodelay(true);
        }
        let connection = Arc::new(Connection {
            client,
            server,
            ends: shared
                .ends
                .each_ref()
                .map(|end| AtomicUsize::new(end.load(Ordering::SeqCst))),
            passed: Default::default(),
            is_held: Mutex::new(false),
            released: Condvar::new(),
            is_over: AtomicBool::new(false),
            delay_ms: shared.delay_ms.clone(),
            kept: Mutex::default(),
        });
        lock(&shared.connections).push(connection.clone());
        for from in [Sender::Client, Sender::Server] {
            let connection = connection.clone();
            std::thread::spawn(move || connection.pass_on(from));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // The connection wakes the accepting thread.
        let _ = TcpStream::connect(&self.address);
        for connection in lock(&self.shared.connections).drain(..) {
            connection.close();
        }
    }
}
