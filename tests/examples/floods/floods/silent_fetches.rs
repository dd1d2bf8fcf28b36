//! Tasks whose files come from a server that accepts every connection and never answers.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::Duration;

use meseta_proto::mesos::v1 as pb;

use crate::bench::{Bench, Tally, lock};
use crate::fleet::ADDRESS;
use crate::scheduler::{Scheduler, Subscription, task};

const NAME: &str = "silent-fetches";
const TASKS: usize = 32;
const LIMIT: Duration = Duration::from_secs(30);
const KEPT_OPEN: Duration = Duration::from_secs(60);
/// The number of connections that are kept; older ones are closed.
const CONNECTIONS_MAX: usize = 1_000;

pub(super) fn run(bench: &Bench, tally: &Tally) -> anyhow::Result<()> {
    let listener = TcpListener::bind((ADDRESS, 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let kept = Mutex::new(Vec::new());
    std::thread::scope(|threads| {
        threads.spawn(|| accept(bench, tally, &listener, &kept));
        super::repeat(bench, tally, LIMIT, || round(bench, tally, port));
    });
    Ok(())
}

/// Keeps the accepted connections, and never answers.
fn accept(bench: &Bench, tally: &Tally, listener: &TcpListener, kept: &Mutex<Vec<TcpStream>>) {
    while !bench.time.is_over() {
        let Ok((stream, _)) = listener.accept() else {
            bench.time.pause(Duration::from_millis(50));
            continue;
        };
        tally.count("fetches");
        let mut kept = lock(kept);
        if kept.len() == CONNECTIONS_MAX {
            kept.remove(0);
        }
        kept.push(stream);
    }
}

fn round(bench: &Bench, tally: &Tally, port: u16) -> io::Result<()> {
    let subscription = Subscription::hostile(&[NAME]);
    let mut scheduler = Scheduler::subscribed(&bench.fleet, subscription)?;
    let (_, offer) = scheduler.offer(NAME, LIMIT)?;
    let one = |number: usize| {
        let mut fetching = task(&offer, &format!("fetching-{number}"), "true");
        let uri = pb::command_info::Uri {
            value: format!("http://{ADDRESS}:{port}/{number}"),
            ..pb::command_info::Uri::default()
        };
        if let Some(command) = &mut fetching.command {
            command.uris = vec![uri];
        }
        fetching
    };
    let tasks = (0..TASKS).map(one).collect();
    tally.answer("ACCEPT", &scheduler.launch(&offer, tasks, 3600.0));
    bench.time.pause(KEPT_OPEN);
    for _ in 0..scheduler.acknowledge_all()? {
        tally.count("tasks ended");
    }
    tally.count("rounds");
    tally.answer("TEARDOWN", &scheduler.teardown());
    Ok(())
}
