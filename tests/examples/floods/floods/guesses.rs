//! Guesses of credentials at full speed, and first uses of right credentials in the midst of them.

use std::time::{Duration, Instant};

use crate::bench::{Bench, Tally};
use crate::fleet::{ADDRESS, NEWCOMERS, authorization, client_address, newcomer};
use crate::sockets::Client;

const GROUP: u8 = 4;
/// The pause before each newcomer with right credentials.
const PER_NEWCOMER: Duration = Duration::from_secs(20);
const LINE: &str = "POST /api/v1/scheduler";
/// A call that changes no state.
const BODY: &[u8] = br#"{"type":"REVIVE","framework_id":{"value":"nobody"}}"#;

pub(super) fn run(bench: &Bench, tally: &Tally) -> anyhow::Result<()> {
    std::thread::scope(|threads| {
        for from in [client_address(GROUP, 1), ADDRESS] {
            threads.spawn(move || {
                super::lower_priority();
                guess(bench, tally, from);
            });
        }
        // As many as there are; longer runs have pauses in between that are longer.
        for number in 0..NEWCOMERS {
            bench.time.pause(PER_NEWCOMER);
            if bench.time.is_over() {
                break;
            }
            let mut client = Client::new(bench.fleet.master_address(), None);
            let header = authorization(&newcomer(number));
            let began = Instant::now();
            let answer = ask(&mut client, &header);
            tally.answer("right at first", &answer);
            tally.most("ms for the slowest right one", began.elapsed());
        }
    });
    Ok(())
}

fn guess(bench: &Bench, tally: &Tally, from: std::net::Ipv4Addr) {
    let mut client = Client::new(bench.fleet.master_address(), Some(from));
    let mut number = 0_u64;
    while !bench.time.is_over() {
        number += 1;
        let header = meseta_access::basic::header("measured", format!("{number}").as_bytes());
        let answer = ask(&mut client, &header);
        tally.answer("guess", &answer);
        if answer.is_err() {
            bench.time.pause(Duration::from_millis(100));
        }
    }
}

fn ask(client: &mut Client, header: &str) -> std::io::Result<u16> {
    let headers = [
        ("Content-Type", "application/json"),
        ("Authorization", header),
    ];
    client.send(LINE, &headers, BODY).map(|reply| reply.status)
}
