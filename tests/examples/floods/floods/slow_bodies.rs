//! Bodies that arrive at one byte a second, some of them after half a mebibyte, with right credentials and without.

use std::io::{self, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::bench::{Bench, Tally};
use crate::fleet::{SHARED, authorization, client_address};
use crate::sockets::{connect, send_head};

const GROUP: u8 = 5;
/// Bodies that are sent to each daemon.
const BODIES: usize = 200;
const ANNOUNCED_BYTES: usize = 1_000_000;
/// Bytes that some of the bodies for the master send at once: together more than one principal may have in flight.
const BEGUN_BYTES: usize = 512 << 10;
const BEGUN: usize = 90;
const BYTE_PAUSE: Duration = Duration::from_secs(1);

pub(super) fn run(bench: &Bench, tally: &Tally) -> anyhow::Result<()> {
    let authorization = authorization("flood");
    let master = bench.fleet.master_address();
    let node = bench.fleet.node_address(SHARED);
    let targets = [
        (master, "POST /api/v1/scheduler"),
        (node, "POST /api/v1/executor"),
        (bench.fleet.scheduler_address(), "POST /v1/jobs"),
    ];
    let mut bodies: Vec<(TcpStream, Instant)> = Vec::new();
    while !bench.time.is_over() {
        for number in bodies.len()..targets.len() * BODIES {
            let (to, line) = targets[number % targets.len()];
            let opened = connect(to, Some(client_address(GROUP, 1))).and_then(|mut stream| {
                let headers = [
                    ("Content-Type", "application/json"),
                    ("Authorization", authorization.as_str()),
                ];
                send_head(&mut stream, line, &headers, ANNOUNCED_BYTES)?;
                if to != node && number / targets.len() < BEGUN {
                    // A refused body is counted below.
                    let _ = stream.write_all(&vec![b'x'; BEGUN_BYTES]);
                }
                Ok(stream)
            });
            match opened {
                Ok(stream) => {
                    tally.count("begun");
                    bodies.push((stream, Instant::now()));
                }
                Err(error) => {
                    tally.count(format!("{:?}", error.kind()));
                    break;
                }
            }
        }
        bodies.retain_mut(|(stream, began)| {
            let is_open = stream.write_all(b"x").is_ok() && is_open(stream);
            if !is_open {
                tally.count("ended by the daemon");
                tally.most("ms for the longest", began.elapsed());
            }
            is_open
        });
        bench.time.pause(BYTE_PAUSE);
    }
    for (_, began) in &bodies {
        tally.most("ms for the longest", began.elapsed());
    }
    Ok(())
}

/// Whether no answer has come.
fn is_open(stream: &TcpStream) -> bool {
    let looked = stream
        .set_nonblocking(true)
        .and_then(|()| stream.peek(&mut [0]));
    let _ = stream.set_nonblocking(false);
    matches!(looked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}
