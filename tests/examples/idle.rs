//! The cost of idle connections: `cargo run --release -p meseta-tests --example idle -- [COUNT]`.
//!
//! Opens this number of connections to a master (10,000 by default), makes one request on each and keeps it open; prints
//! the memory per connection, and the latency of other requests meanwhile. Then a tenth as many subscribe to events and
//! never read one, while frameworks come and go.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use meseta_tests::daemon::Daemon;
use meseta_tests::framework::framework_info;
use meseta_tests::{Encoding, Framework, kernel};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Requests whose time is measured.
const REQUESTS: usize = 2_000;
/// Short-lived frameworks, and the length of their names, which makes events too large to keep in memory.
const FRAMEWORKS: usize = 300;
const NAME_BYTES: usize = 4_096;

fn main() {
    let count = std::env::args().nth(1);
    let count: usize = count.map_or(10_000, |text| text.parse().expect("a number"));
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("room for connections");
    let dir = tempfile::tempdir().expect("a directory");
    let master = Daemon::start("master", dir.path(), &["--port=0".to_owned()]);
    let mut probe = connect(master.address());
    request(&mut probe);
    let (before, _) = measure(&master, &mut probe);
    let idle: Vec<TcpStream> = (0..count)
        .map(|_| {
            let mut stream = connect(master.address());
            request(&mut stream);
            stream
        })
        .collect();
    let (after, times) = measure(&master, &mut probe);
    println!(
        "connections {}  rss before {before} KiB  after {after} KiB  each {:.1} KiB",
        idle.len(),
        (after - before) / f64::from(u32::try_from(count).expect("a count"))
    );
    report("with idle connections", &times);
    drop(idle);
    stalled(&master, &mut probe, count / 10);
}

fn report(what: &str, times: &[Duration]) {
    let place = |share: usize| times[(times.len() * share / 1_000).min(times.len() - 1)];
    println!(
        "GET /version {what}: p50 {:?}  p99 {:?}  max {:?}",
        place(500),
        place(990),
        place(1_000)
    );
}

/// Opens subscriptions that never read their events.
fn stalled(master: &Daemon, probe: &mut TcpStream, count: usize) {
    let body = r#"{"type":"SUBSCRIBE"}"#;
    let text = format!(
        "POST /api/v1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let (before, _) = measure(master, probe);
    let streams: Vec<TcpStream> = (0..count)
        .map(|_| {
            let mut stream = connect(master.address());
            stream.write_all(text.as_bytes()).expect("sent");
            stream
        })
        .collect();
    let url = format!("{}/api/v1/scheduler", master.url);
    for number in 0..FRAMEWORKS {
        let mut info = framework_info("dev");
        info["name"] = format!("{number}-{}", "x".repeat(NAME_BYTES)).into();
        drop(Framework::subscribe(&url, Encoding::Json, &info));
    }
    let (after, times) = measure(master, probe);
    println!(
        "subscribers that do not read {}  rss before {before} KiB  after {after} KiB",
        streams.len()
    );
    report("with them", &times);
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connected");
    stream.set_nodelay(true).expect("no delay");
    let limit = Some(Duration::from_secs(30));
    stream.set_read_timeout(limit).expect("a timeout");
    stream
}

/// Sends a request, and reads the whole short response.
fn request(stream: &mut TcpStream) {
    let text = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(text).expect("sent");
    let mut answer = Vec::new();
    let mut piece = [0; 1_024];
    while !answer.ends_with(b"}") {
        let count = stream.read(&mut piece).expect("an answer");
        assert!(count > 0, "the connection was closed");
        answer.extend_from_slice(&piece[..count]);
    }
}

/// Returns the master's memory in KiB, and the sorted times of requests.
fn measure(master: &Daemon, probe: &mut TcpStream) -> (f64, Vec<Duration>) {
    let mut times: Vec<Duration> = (0..REQUESTS)
        .map(|_| {
            let begin = Instant::now();
            request(probe);
            begin.elapsed()
        })
        .collect();
    times.sort();
    let kib = kernel::memory_kib(master.pid(), "VmRSS").expect("VmRSS");
    (f64::from(u32::try_from(kib).expect("less than TiB")), times)
}
