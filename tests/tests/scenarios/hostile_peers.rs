//! Peers that abuse HTTP and its formats: excessive, truncated and unnecessary data. Each is refused or closed, costs
//! little memory, and delays no other client.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use meseta_tests::daemon::Daemon;
use meseta_tests::raw::Raw;
use meseta_tests::{Cluster, http, kernel, wait};

meseta_tests::scenarios! {
    crate::anywhere:
        overlong_requests_are_refused_early,
        overlong_and_deep_messages_are_refused,
        useless_frames_cost_nothing,
        slow_requests_are_closed_in_time;
}

/// The growth of a daemon in KiB under any input: twice the memory of all unfinished requests.
const GROWTH_KIB_MAX: u64 = 32 << 10;
/// Bytes beyond a limit that the daemon accepts at most, including the buffers of both sides of the connection.
const TAKEN_BYTES_MAX: usize = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// The limit of an answer: a longer one was delayed by others; a busy machine alone takes one or two seconds.
const ANSWER_MAX: Duration = Duration::from_secs(5);

fn resident_kib(daemon: &Daemon) -> u64 {
    kernel::memory_kib(daemon.pid(), "VmRSS").expect("it runs")
}

/// Connects, with limits in case the other side goes away.
fn connect(daemon: &Daemon) -> TcpStream {
    let stream = TcpStream::connect(daemon.address()).expect("connected");
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).expect("a timeout");
    stream.set_write_timeout(limit).expect("a timeout");
    stream
}

/// Returns the status of the answer, if one comes.
fn status(stream: &mut TcpStream) -> Option<u16> {
    let mut answer = Vec::new();
    let _ = stream.take(1024).read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    answer.split(' ').nth(1)?.parse().ok()
}

/// Sends a piece repeatedly until a refusal or this limit, and returns the number of bytes.
fn send_without_end(stream: &mut TcpStream, piece: &[u8], most: usize) -> usize {
    let mut sent = 0;
    while sent < most && stream.write_all(piece).is_ok() {
        sent += piece.len();
    }
    sent
}

fn both(cluster: &Cluster) -> [(&'static str, &Daemon, &'static str); 2] {
    [
        ("master", &cluster.master, "/api/v1/scheduler"),
        ("agent", cluster.agent(), "/api/v1/executor"),
    ]
}

/// Checks that both daemons answer at once, and have not grown.
fn unharmed(cluster: &Cluster, before: &[u64; 2]) {
    for ((name, daemon, _), before) in both(cluster).into_iter().zip(before) {
        assert_eq!(http::get(&format!("{}/health", daemon.url)).status, 200);
        let grown = resident_kib(daemon).saturating_sub(*before);
        eprintln!("the {name} has {grown} KiB more");
        assert!(grown < GROWTH_KIB_MAX, "{name}: {grown} KiB");
    }
}

fn memory(cluster: &Cluster) -> [u64; 2] {
    [resident_kib(&cluster.master), resident_kib(cluster.agent())]
}

/// Returns a kilobyte of gzip that inflates to a megabyte of zeroes: a stored header, and one block of runs.
fn bomb() -> Vec<u8> {
    let mut child = std::process::Command::new("sh")
        .args(["-c", "head -c 1000000 /dev/zero | gzip -9"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut bytes = Vec::new();
    let mut output = child.stdout.take().expect("its output");
    output.read_to_end(&mut bytes).expect("read");
    child.wait().expect("it ends");
    bytes
}

fn overlong_requests_are_refused_early() {
    let cluster = Cluster::default();
    let before = memory(&cluster);
    for (name, daemon, path) in both(&cluster) {
        let mut stream = connect(daemon);
        let url = format!("GET /state?x={} HTTP/1.1\r\n", "x".repeat(64 << 10));
        let _ = stream.write_all(url.as_bytes());
        let answer = status(&mut stream);
        assert!(
            matches!(answer, None | Some(414 | 431)),
            "{name}: {answer:?}"
        );

        let mut stream = connect(daemon);
        let _ = stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n");
        let taken = send_without_end(&mut stream, &b"X-More: more\r\n".repeat(1_000), 64 << 20);
        assert!(taken < TAKEN_BYTES_MAX, "{name}: {taken} bytes of headers");
        let answer = status(&mut stream);
        assert!(matches!(answer, None | Some(431)), "{name}: {answer:?}");

        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        );
        let mut stream = connect(daemon);
        let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n0\r\n");
        let _ = stream.write_all(chunked.as_bytes());
        let taken = send_without_end(&mut stream, &b"X-Late: late\r\n".repeat(1_000), 64 << 20);
        assert!(taken < TAKEN_BYTES_MAX, "{name}: {taken} bytes of trailers");

        let mut stream = connect(daemon);
        let huge = format!("{head}Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n");
        let _ = stream.write_all(huge.as_bytes());
        let taken = send_without_end(&mut stream, &[b' '; 64 << 10], 256 << 20);
        assert!(taken < 48 << 20, "{name}: {taken} bytes of one chunk");

        let bomb = bomb();
        let mut raw = Raw::connect(daemon.address());
        let head = format!(
            "{head}Content-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
            bomb.len()
        );
        raw.send(&[head.as_bytes(), &bomb].concat());
        let answer = raw.head().status;
        assert!(
            [400, 415].contains(&answer),
            "{name}: a packed body: {answer}"
        );
    }
    unharmed(&cluster, &before);
}

/// Returns container ids nested to this depth, as raw protobuf.
fn nested(depth: usize) -> Vec<u8> {
    let mut message = vec![0x0a, 1, b'x'];
    for _ in 0..depth {
        let mut length = message.len();
        let mut outer = vec![0x0a, 1, b'x', 0x12];
        while length >= 0x80 {
            outer.push(u8::try_from(length & 0x7f).expect("seven bits") | 0x80);
            length >>= 7;
        }
        outer.push(u8::try_from(length).expect("seven bits"));
        outer.extend(message);
        message = outer;
    }
    message
}

fn overlong_and_deep_messages_are_refused() {
    let cluster = Cluster::default();
    let before = memory(&cluster);
    let deep =
        |open: &str, close: &str| (open.repeat(100_000) + &close.repeat(100_000)).into_bytes();
    let far = [0x0a, 0xff, 0xff, 0xff, 0xff, 0x07];
    let mut field = vec![0x22];
    field.extend(&far[1..]);
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("application/json", deep("[", "]")),
        ("application/json", deep("{\"a\":", "}")),
        (
            "application/json",
            deep("{\"container_id\":{\"parent\":", "}"),
        ),
        ("application/x-protobuf", nested(10_000)),
        ("application/x-protobuf", far.to_vec()),
        ("application/x-protobuf", field),
        ("application/x-protobuf", vec![0x0b; 100_000]),
        ("application/x-protobuf", vec![0xff; 100_000]),
    ];
    for (name, daemon, path) in both(&cluster) {
        for path in [path, "/api/v1"] {
            for (media, body) in &bodies {
                let url = format!("{}{path}", daemon.url);
                let answer = http::post(&url, &[("content-type", media)], body);
                assert_eq!(
                    answer.status,
                    400,
                    "{name} {path} {media}: {}",
                    answer.text()
                );
                assert!(answer.body.len() < 4_096, "{}", answer.text());
            }
        }
    }
    let stream = "POST /api/v1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/recordio\r\n\
        Message-Content-Type: application/json\r\nAccept: application/json\r\nConnection: close\r\n";
    for length in [
        "99999999999999999999",
        "-1",
        "-0",
        "00000000000000000000001",
        "1e3",
        " 5",
        "+5",
        "",
    ] {
        let mut raw = connect(cluster.agent());
        let text = format!("{length}\n{{}}");
        let request = format!("{stream}Content-Length: {}\r\n\r\n{text}", text.len());
        raw.write_all(request.as_bytes()).expect("sent");
        assert_eq!(status(&mut raw), Some(400), "{length:?}");
    }
    unharmed(&cluster, &before);
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Encodes a frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("small").to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns `GET /health` of localhost, by the static table and three literals.
fn get() -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x04, 7];
    block.extend(b"/health");
    block.extend([0x01, 9]);
    block.extend(b"localhost");
    block
}

/// A peer's abuse of its connection: the bytes of each round, by its number.
type Abuse = fn(u32) -> Vec<u8>;

/// The abuses: their bytes, their number of rounds, and whether the connection has to be closed for them.
const ABUSES: &[(&str, u32, bool, Abuse)] = &[
    ("requests that are reset at once", 30_000, true, |round| {
        let stream = 2 * round + 1;
        let mut bytes = frame(HEADERS, END_HEADERS | END_STREAM, stream, &get());
        bytes.extend(frame(RESET, 0, stream, &8_u32.to_be_bytes()));
        bytes
    }),
    (
        "headers that never end",
        30_000,
        true,
        |round| match round {
            0 => frame(HEADERS, END_STREAM, 1, &get()),
            _ => frame(CONTINUATION, 0, 1, &[0x40, 1, b'x', 1, b'y'].repeat(200)),
        },
    ),
    ("settings without end", 100_000, false, |_| {
        frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])
    }),
    ("pings without end", 100_000, false, |_| {
        frame(PING, 0, 0, &[7; 8])
    }),
    ("answers that are not taken", 1, false, |_| {
        let mut bytes = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
        for stream in 0..100 {
            let flags = END_HEADERS | END_STREAM;
            bytes.extend(frame(HEADERS, flags, 2 * stream + 1, &get()));
        }
        bytes
    }),
];

fn useless_frames_cost_nothing() {
    let cluster = Cluster::default();
    let before = memory(&cluster);
    let mut open = Vec::new();
    for (what, rounds, is_closed, abuse) in ABUSES {
        let mut stream = connect(&cluster.master);
        let limit = Some(Duration::from_secs(2));
        stream.set_write_timeout(limit).expect("a timeout");
        stream.write_all(PREFACE).expect("sent");
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).expect("sent");
        // The test reads none of the answer.
        let began = Instant::now();
        let refused = (0..*rounds).find(|round| stream.write_all(&abuse(*round)).is_err());
        eprintln!(
            "{what}: refused in round {refused:?} after {:?}",
            began.elapsed()
        );
        let asked = Instant::now();
        assert_eq!(
            http::get(&format!("{}/health", cluster.master.url)).status,
            200
        );
        assert!(
            asked.elapsed() < ANSWER_MAX,
            "{what}: {:?}",
            asked.elapsed()
        );
        assert!(
            refused.is_some() || !is_closed,
            "{what}: all of it was taken"
        );
        open.push(stream);
    }
    unharmed(&cluster, &before);
}

fn slow_requests_are_closed_in_time() {
    const SLOW: usize = 1_000;
    let cluster = Cluster::default();
    let before = memory(&cluster);
    let began = Instant::now();
    let mut slow: Vec<TcpStream> = (0..SLOW)
        .map(|number| {
            let daemon = match number % 2 {
                0 => &cluster.master,
                _ => cluster.agent(),
            };
            let mut stream = connect(daemon);
            stream.write_all(b"GET /state HT").expect("sent");
            stream.set_nonblocking(true).expect("set");
            stream
        })
        .collect();
    let mut slowest = Duration::ZERO;
    wait::eventually("all are closed", PATIENCE, || {
        slow.retain_mut(|stream| match stream.read(&mut [0; 64]) {
            Ok(count) => count > 0,
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        });
        let asked = Instant::now();
        assert_eq!(
            http::get(&format!("{}/health", cluster.master.url)).status,
            200
        );
        slowest = slowest.max(asked.elapsed());
        slow.is_empty().then_some(())
    });
    let took = began.elapsed();
    eprintln!("all are closed after {took:?}; the slowest answer meanwhile took {slowest:?}");
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert!(slowest < ANSWER_MAX, "{slowest:?}");
    unharmed(&cluster, &before);
}
