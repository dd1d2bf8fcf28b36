//! Silent connections from the nodes' own address and from others, as many as are permitted and more.

use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use crate::bench::{Bench, Tally, lock};
use crate::fleet::{ADDRESS, SHARED, client_address};
use crate::scheduler::{Scheduler, Subscription};
use crate::sockets::connect;

const NAME: &str = "silent-connections";
const GROUP: u8 = 3;
/// Connections from each address to each daemon: more than the permitted 512.
const CONNECTIONS: usize = 600;
/// The pause before closed connections are opened again.
const PAUSE: Duration = Duration::from_secs(2);
/// The pause between two registrations of a node and a framework from the same address.
const RETURN_EVERY: Duration = Duration::from_secs(60);

pub(super) fn run(bench: &Bench, tally: &Tally) -> anyhow::Result<()> {
    let master = bench.fleet.master_address();
    let node = bench.fleet.node_address(SHARED);
    let scheduler = bench.fleet.scheduler_address();
    let pairs = [
        (ADDRESS, master),
        (ADDRESS, node),
        (client_address(GROUP, 1), master),
        (client_address(GROUP, 1), node),
        (client_address(GROUP, 1), scheduler),
    ];
    let mut groups: Vec<Vec<TcpStream>> = pairs.iter().map(|_| Vec::new()).collect();
    let mut returned: Option<Instant> = None;
    while !bench.time.is_over() {
        for ((from, to), group) in pairs.iter().zip(&mut groups) {
            group.retain_mut(|stream| {
                let is_open = is_open(stream);
                if !is_open {
                    tally.count("closed by the daemon");
                }
                is_open
            });
            refill(bench, tally, (*from, *to), group);
        }
        if returned.is_none_or(|when| when.elapsed() > RETURN_EVERY) {
            returned = Some(Instant::now());
            come_back(bench, tally)?;
        }
        bench.time.pause(PAUSE);
    }
    Ok(())
}

/// Connects an agent and a framework with credentials from the address that has its limit of silent connections.
fn come_back(bench: &Bench, tally: &Tally) -> anyhow::Result<()> {
    {
        let _victim = lock(&bench.fleet.victim);
        bench.restart_victim(tally)?;
    }
    let mut subscription = Subscription::hostile(&[NAME]);
    subscription.from = Some(ADDRESS);
    match Scheduler::subscribed(&bench.fleet, subscription) {
        Ok(scheduler) => {
            tally.count("frameworks let in");
            tally.answer("TEARDOWN", &scheduler.teardown());
        }
        Err(error) => tally.count(format!("frameworks kept out: {:?}", error.kind())),
    }
    Ok(())
}

fn refill(
    bench: &Bench,
    tally: &Tally,
    (from, to): (Ipv4Addr, SocketAddrV4),
    group: &mut Vec<TcpStream>,
) {
    while group.len() < CONNECTIONS && !bench.time.is_over() {
        let opened = connect(to, Some(from)).and_then(|stream| {
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => {
                tally.count("opened");
                group.push(stream);
            }
            Err(error) => {
                tally.count(format!("{:?}", error.kind()));
                return;
            }
        }
    }
}

fn is_open(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 256]) {
        Ok(count) => count > 0,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}
