//! Six hundred unread downloads of a large file from a sandbox.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use meseta_proto::mesos::v1::TaskState::TaskRunning;
use serde_json::Value;

use crate::bench::{Bench, Tally};
use crate::fleet::{OPERATOR, SHARED, client_address};
use crate::scheduler::{Scheduler, Subscription, task};
use crate::sockets::{Client, connect_small_buffer, send_head};

const ROLE: &str = "downloads";
const GROUP: u8 = 2;
const DOWNLOADS: usize = 600;
const CLIENTS_PER_ADDRESS: usize = 300;
/// More than all sockets and buffers between the two sides hold.
const FILE_MIB: usize = 64;
const KEPT_OPEN: Duration = Duration::from_secs(40);
const LIMIT: Duration = Duration::from_secs(30);

pub(super) fn run(bench: &Bench, tally: &Tally) -> anyhow::Result<()> {
    super::repeat(bench, tally, LIMIT, || round(bench, tally));
    Ok(())
}

fn round(bench: &Bench, tally: &Tally) -> io::Result<()> {
    let subscription = Subscription::hostile(&[ROLE]);
    let mut scheduler = Scheduler::subscribed(&bench.fleet, subscription)?;
    let (_, offer) = scheduler.offer(ROLE, LIMIT)?;
    let command = format!("head -c {FILE_MIB}M /dev/zero > large; exec sleep 1000");
    let writer = task(&offer, "writer", &command);
    tally.answer("ACCEPT", &scheduler.launch(&offer, vec![writer], 3600.0));
    scheduler.update(LIMIT, |status| status.state() == TaskRunning)?;
    let sandbox = sandbox(bench, &scheduler.id.value)?;
    // The file is there, whatever its present length.
    let path = format!("{sandbox}/large");
    let is_written =
        || std::fs::metadata(&path).is_ok_and(|file| file.len() >> 20 >= FILE_MIB as u64);
    bench.time.wait_for(LIMIT, is_written);
    let line = format!("GET /files/download?path={path}");
    let mut open_connections: Vec<TcpStream> = Vec::new();
    for number in 0..DOWNLOADS {
        if bench.time.is_over() {
            break;
        }
        let address = u8::try_from(number / CLIENTS_PER_ADDRESS + 1).unwrap_or(u8::MAX);
        let to = bench.fleet.node_address(SHARED);
        let asked = connect_small_buffer(to, Some(client_address(GROUP, address))).and_then(
            |mut stream| {
                send_head(&mut stream, &line, &[], 0)?;
                Ok(stream)
            },
        );
        match asked {
            Ok(stream) => {
                tally.count("downloads");
                open_connections.push(stream);
            }
            Err(error) => tally.count(format!("downloads {:?}", error.kind())),
        }
    }
    bench.time.pause(KEPT_OPEN);
    tally.count("rounds");
    tally.answer("TEARDOWN", &scheduler.teardown());
    Ok(())
}

/// Returns the sandbox of the only executor of a framework.
fn sandbox(bench: &Bench, framework: &str) -> io::Result<String> {
    let mut client = Client::new(bench.fleet.node_address(SHARED), Some(OPERATOR));
    let reply = client.send("GET /state", &[], b"")?;
    let page: Value = serde_json::from_slice(&reply.body)?;
    let frameworks = page["frameworks"].as_array();
    let mut frameworks = frameworks.into_iter().flatten();
    let found = frameworks.find(|one| one["id"] == framework);
    let directory = found.and_then(|one| one["executors"][0]["directory"].as_str());
    let directory = directory.ok_or_else(|| io::Error::other("no sandbox on the node's /state"))?;
    Ok(directory.to_owned())
}
