//! Requests for `/version` in a loop by unauthenticated clients, at a master with rules.

use std::time::{Duration, Instant};

use crate::bench::{Bench, Tally};
use crate::fleet::client_address;
use crate::sockets::Client;

const GROUP: u8 = 6;

pub(super) fn run(bench: &Bench, tally: &Tally) -> anyhow::Result<()> {
    let mut client = Client::new(bench.fleet.master_address(), Some(client_address(GROUP, 1)));
    while !bench.time.is_over() {
        let began = Instant::now();
        let answer = client.send("GET /version", &[], b"");
        tally.answer("asked", &answer.map(|reply| reply.status));
        tally.most("ms for the slowest", began.elapsed());
        if began.elapsed() > Duration::from_secs(1) {
            tally.count("slower than a second");
        }
    }
    Ok(())
}
