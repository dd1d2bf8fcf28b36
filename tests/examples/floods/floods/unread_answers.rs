//! Streams of events and large pages of the master and of a node that are requested and never read.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::Duration;

use crate::bench::{Bench, Tally};
use crate::fleet::{SHARED, authorization, client_address};
use crate::sockets::{connect_small_buffer, send_head};

/// Addresses of clients, each with the maximum of unauthenticated connections.
const GROUP: u8 = 1;
const CLIENTS_PER_ADDRESS: usize = 100;
/// The number of streams of each kind and daemon.
const EVENTS: usize = 200;
const PAGES: usize = 100;
/// More than there are places for.
const WHOLE: usize = 60;
/// The time until all are closed and requested again.
const KEPT_OPEN: Duration = Duration::from_secs(30);

pub(super) fn run(bench: &Bench, tally: &Tally) -> anyhow::Result<()> {
    let master = bench.fleet.master_address();
    let node = bench.fleet.node_address(SHARED);
    let scheduler = bench.fleet.scheduler_address();
    let json = ("Content-Type", "application/json");
    let authorization = authorization("flood");
    // The scheduler answers nobody else.
    let signed_in = [json, ("Authorization", &*authorization)];
    let kinds = [
        (
            master,
            "events",
            "POST /api/v1",
            r#"{"type":"SUBSCRIBE"}"#,
            EVENTS,
        ),
        (master, "/state", "GET /state", "", PAGES),
        (
            master,
            "GET_STATE",
            "POST /api/v1",
            r#"{"type":"GET_STATE"}"#,
            WHOLE,
        ),
        (node, "node's /state", "GET /state", "", PAGES),
        (
            node,
            "node's GET_STATE",
            "POST /api/v1",
            r#"{"type":"GET_STATE"}"#,
            WHOLE,
        ),
        (
            scheduler,
            "scheduler's events",
            "GET /v1/events",
            "",
            EVENTS,
        ),
        (scheduler, "scheduler's jobs", "GET /v1/jobs", "", PAGES),
    ];
    while !bench.time.is_over() {
        let mut open_connections = Vec::new();
        for (to, name, line, body, count) in kinds {
            for _ in 0..count {
                if bench.time.is_over() {
                    return Ok(());
                }
                let number = open_connections.len() / CLIENTS_PER_ADDRESS + 1;
                let from = client_address(GROUP, u8::try_from(number)?);
                let headers = if to == scheduler {
                    &signed_in[..]
                } else {
                    &signed_in[..1]
                };
                match ask((to, from), headers, line, body) {
                    Ok(stream) => {
                        tally.count(name);
                        open_connections.push(stream);
                    }
                    Err(error) => tally.count(format!("{name} {:?}", error.kind())),
                }
            }
        }
        tally.count("rounds");
        bench.time.pause(KEPT_OPEN);
    }
    Ok(())
}

fn ask(
    (to, from): (SocketAddrV4, Ipv4Addr),
    headers: &[(&str, &str)],
    line: &str,
    body: &str,
) -> io::Result<TcpStream> {
    let mut stream = connect_small_buffer(to, Some(from))?;
    send_head(&mut stream, line, headers, body.len())?;
    stream.write_all(body.as_bytes())?;
    Ok(stream)
}
