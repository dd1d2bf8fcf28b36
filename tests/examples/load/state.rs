//! Readers of a large cluster: `/state` and `/metrics/snapshot`, read by another process, and the latency of the core's
//! other callers meanwhile.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;
use tonic::transport::Channel;

use crate::framework::{Framework, Identity};
use crate::{Process, number, report, start_agents, start_master, wait_for_agents};

/// Frameworks that own the tasks.
pub(crate) const OWNERS: usize = 10;
const ROUNDS: usize = 5;
const FRAMEWORKS_PER_CONNECTION: usize = 10;

pub(crate) async fn measure(arguments: &[String]) -> anyhow::Result<()> {
    let number = |index, default| number(arguments, index, default);
    let (agents, tasks, frameworks) = (number(0, 10_000)?, number(1, 100_000)?, number(2, 10_000)?);
    let dir = tempfile::tempdir()?;
    let flags = [
        "--max_completed_tasks_per_framework=1000000",
        "--agent_ping_timeout=5mins",
    ];
    let (master, address) = start_master(dir.path(), &flags).await?;
    let _agents = start_agents(address, agents)?;
    let began = Instant::now();
    wait_for_agents(address, agents).await?;
    println!(
        "{agents} agents after {:.1} s, {} MB resident",
        began.elapsed().as_secs_f64(),
        master.resident_mb()?
    );
    let began = Instant::now();
    fill(address, agents, tasks).await?;
    println!(
        "{tasks} tasks ended and {tasks} running after {:.1} s, {} MB resident",
        began.elapsed().as_secs_f64(),
        master.resident_mb()?
    );
    let mut asking = Framework::subscribe_suppressed(address, "asking").await?;
    read_beside_declines(address, &master, &mut asking, "/state", None).await?;
    others(address, frameworks).await?;
    println!(
        "{frameworks} more frameworks: {} MB resident",
        master.resident_mb()?
    );
    read_beside_declines(address, &master, &mut asking, "/metrics/snapshot", None).await
}

/// Subscribes frameworks one after the other, each with a role and a user of its own.
pub(crate) fn owners(
    address: SocketAddr,
) -> impl Iterator<Item = impl Future<Output = anyhow::Result<Framework>>> {
    (0..OWNERS).map(move |index| async move {
        let who = Identity {
            role: format!("role-{index}"),
            user: format!("user-{index}"),
            ..Identity::plain(&format!("owner-{index}"))
        };
        Framework::subscribe_as(address, &who).await
    })
}

/// Lets the owners run tasks to their end, and as many lasting ones.
pub(crate) async fn fill(address: SocketAddr, agents: usize, tasks: usize) -> anyhow::Result<()> {
    for owner in owners(address) {
        let mut owner = owner.await?;
        while owner.offers() < agents {
            owner.step().await?;
        }
        owner.run_tasks(tasks / OWNERS).await?;
        while owner.offers() < agents {
            owner.step().await?;
        }
        owner.keep_tasks(tasks / OWNERS).await?;
        owner.suppress().await?;
        owner.read_in_background();
    }
    Ok(())
}

/// Subscribes frameworks without demand, and leaves them subscribed.
async fn others(address: SocketAddr, count: usize) -> anyhow::Result<()> {
    let mut channel: Option<Channel> = None;
    for index in 0..count {
        if index % FRAMEWORKS_PER_CONNECTION == 0 {
            let endpoint = Channel::from_shared(format!("http://{address}"))?;
            channel = Some(endpoint.connect().await?);
        }
        let channel = channel.clone().context("a connection")?;
        let one = Framework::over(channel, &format!("idle-{index}"), true).await?;
        one.read_in_background();
    }
    Ok(())
}

/// Reads a page a few times, alone and during DECLINE calls.
pub(crate) async fn read_beside_declines(
    address: SocketAddr,
    master: &Process,
    asking: &mut Framework,
    path: &str,
    who: Option<&str>,
) -> anyhow::Result<()> {
    let url = format!("{address}{path}");
    for _ in 0..ROUNDS {
        let mut reader = reader(&url, who)?;
        while reader.try_wait()?.is_none() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
    let before = asking.decline_until({
        let began = Instant::now();
        move || began.elapsed().as_millis() > 500
    });
    report("DECLINE with nobody reading", &before.await?);
    let mut all = Vec::new();
    for _ in 0..ROUNDS {
        let reader = std::sync::Mutex::new(reader(&url, who)?);
        let is_over = || {
            let mut reader = reader
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            !matches!(reader.try_wait(), Ok(None))
        };
        all.extend(asking.decline_until(is_over).await?);
    }
    report(&format!("DECLINE while {path} is read"), &all);
    println!("then: {} MB resident", master.resident_mb()?);
    Ok(())
}

fn reader(url: &str, who: Option<&str>) -> anyhow::Result<Child> {
    let program = std::env::current_exe()?;
    Ok(Command::new(program)
        .args(["read", url])
        .args(who)
        .stdout(Stdio::inherit())
        .spawn()?)
}

/// Sends a GET as bytes on a socket, with this `Authorization`; prints when the first and the last byte of the answer came.
pub(crate) fn read(url: &str, who: Option<&str>) -> anyhow::Result<()> {
    let (address, path) = url.split_once('/').context("an address and a path")?;
    let mut stream = TcpStream::connect(address)?;
    let mut buffer = vec![0; 1 << 20];
    let who = who.map_or_else(String::new, |who| format!("Authorization: {who}\r\n"));
    let began = Instant::now();
    write!(
        stream,
        "GET /{path} HTTP/1.1\r\nHost: localhost\r\n{who}Connection: close\r\n\r\n"
    )?;
    let mut bytes = stream.read(&mut buffer)?;
    let first = began.elapsed();
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            more => bytes += more,
        }
    }
    println!(
        "/{path}: first byte after {:.2} ms, all {} KB after {:.1} ms",
        first.as_secs_f64() * 1e3,
        bytes / 1024,
        began.elapsed().as_secs_f64() * 1e3
    );
    Ok(())
}
