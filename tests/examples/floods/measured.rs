//! The well-behaved framework: its waiting times for offers, launches and kills during the floods.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{TaskFinished, TaskKilled, TaskRunning};

use crate::bench::Bench;
use crate::fleet::{ADDRESS, GUEST, MEASURED};
use crate::scheduler::{Scheduler, Subscription, is_terminal, shell, task};

/// The waiting time from which a request counts as starved.
const STARVED: Duration = Duration::from_secs(30);
/// The pause between two rounds: a scheduler has other things to do too.
const PAUSE: Duration = Duration::from_millis(20);
/// The number of rounds between two tasks on the own node, and on the flooded one.
const OWN_EVERY: usize = 5;
const GUEST_EVERY: usize = 20;
/// A refusal that lasts for the whole run.
const REFUSE_SECONDS: f64 = 3600.0;
const FILES_PORT: u16 = 7000;
/// Failures that the report keeps.
const FAILURES_KEPT: usize = 20;

#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) offer_after_revive: Vec<Duration>,
    pub(crate) offer_after_end: Vec<Duration>,
    pub(crate) own_running: Vec<Duration>,
    pub(crate) guest_running: Vec<Duration>,
    pub(crate) guest_checked: Vec<Duration>,
    pub(crate) guest_killed: Vec<Duration>,
    pub(crate) job_running: Vec<Duration>,
    /// The actions that failed within half a minute, or were refused.
    pub(crate) failures: Vec<String>,
    pub(crate) failures_count: usize,
}

impl Figures {
    fn fail(&mut self, what: &str, error: &io::Error) {
        self.failures_count += 1;
        if self.failures.len() < FAILURES_KEPT {
            self.failures.push(format!("{what}: {error}"));
        }
    }
}

/// Works until the end of the run.
pub(crate) fn run(bench: &Bench) -> Figures {
    let mut figures = Figures::default();
    while !bench.time.is_over() {
        let subscription = Subscription::measured(&[MEASURED, GUEST]);
        match Scheduler::subscribed(&bench.fleet, subscription) {
            Ok(scheduler) => work(bench, scheduler, &mut figures),
            Err(error) => figures.fail("SUBSCRIBE", &error),
        }
    }
    figures
}

/// Works until the time is over or the stream has ended.
fn work(bench: &Bench, mut scheduler: Scheduler, figures: &mut Figures) {
    let mut round = 0;
    while !bench.time.is_over() {
        {
            let _runs = bench
                .master_runs
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            round += 1;
            let mut done = ("offer after REVIVE", offered(&mut scheduler, figures));
            if done.1.is_ok() && round % OWN_EVERY == 0 {
                let id = format!("own-{}-{round}", scheduler.id.value);
                done = (
                    "task on the own node",
                    own_task(&mut scheduler, &id, figures),
                );
            }
            if done.1.is_ok() && round % GUEST_EVERY == 0 {
                let id = format!("guest-{}-{round}", scheduler.id.value);
                let worked = guest_task(&mut scheduler, &id, figures);
                done = ("task on the flooded node", worked);
            }
            if let (what, Err(error)) = done {
                figures.fail(what, &error);
                // Begin again: the result of the action is unknown.
                let _ = scheduler.teardown();
                return;
            }
        }
        bench.time.pause(PAUSE);
    }
    let _ = scheduler.teardown();
}

/// Declines an offer permanently, and asks for another.
fn offered(scheduler: &mut Scheduler, figures: &mut Figures) -> io::Result<()> {
    let (_, offer) = scheduler.offer(MEASURED, STARVED)?;
    scheduler.decline(&offer, REFUSE_SECONDS)?;
    let asked = Instant::now();
    scheduler.revive(MEASURED)?;
    let (when, offer) = scheduler.offer(MEASURED, STARVED)?;
    let waited = when.saturating_duration_since(asked);
    figures.offer_after_revive.push(waited);
    // The offer is kept for the next round, through the same queue as all others.
    scheduler.put_back(when, offer);
    Ok(())
}

/// Runs a task, and waits for the offer after its end.
fn own_task(scheduler: &mut Scheduler, id: &str, figures: &mut Figures) -> io::Result<()> {
    let (_, offer) = scheduler.offer(MEASURED, STARVED)?;
    let began = Instant::now();
    let launched = task(&offer, id, "true");
    expect(scheduler.launch(&offer, vec![launched], REFUSE_SECONDS)?)?;
    let ran = until(scheduler, id, TaskRunning)?;
    figures
        .own_running
        .push(ran.saturating_duration_since(began));
    let ended = until(scheduler, id, TaskFinished)?;
    let (when, offer) = scheduler.offer(MEASURED, STARVED)?;
    let waited = when.saturating_duration_since(ended);
    figures.offer_after_end.push(waited);
    scheduler.put_back(when, offer);
    Ok(())
}

/// Runs a task with a fetch and a check on the shared node, and kills it.
fn guest_task(scheduler: &mut Scheduler, id: &str, figures: &mut Figures) -> io::Result<()> {
    let (_, offer) = scheduler.offer(GUEST, STARVED)?;
    let mut launched = task(&offer, id, "test -e small && exec sleep 1000");
    if let Some(command) = &mut launched.command {
        command.uris = vec![pb::command_info::Uri {
            value: format!("http://{ADDRESS}:{FILES_PORT}/small"),
            ..pb::command_info::Uri::default()
        }];
    }
    launched.check = Some(Box::new(pb::CheckInfo {
        r#type: Some(pb::check_info::Type::Command.into()),
        command: Some(pb::check_info::Command {
            command: shell("true"),
        }),
        delay_seconds: Some(0.0),
        interval_seconds: Some(60.0),
        timeout_seconds: Some(20.0),
        ..pb::CheckInfo::default()
    }));
    let began = Instant::now();
    expect(scheduler.launch(&offer, vec![launched], REFUSE_SECONDS)?)?;
    let ran = until(scheduler, id, TaskRunning)?;
    figures
        .guest_running
        .push(ran.saturating_duration_since(began));
    let (checked, _) = scheduler.update(STARVED, |status| {
        let check = status.check_status.as_ref();
        let code = check.and_then(|check| check.command.as_ref()?.exit_code);
        status.task_id.value == id && code == Some(0)
    })?;
    figures
        .guest_checked
        .push(checked.saturating_duration_since(ran));
    let began = Instant::now();
    scheduler.kill(id)?;
    let killed = until(scheduler, id, TaskKilled)?;
    figures
        .guest_killed
        .push(killed.saturating_duration_since(began));
    Ok(())
}

fn expect(status: u16) -> io::Result<()> {
    match status {
        202 => Ok(()),
        status => Err(io::Error::other(format!("ACCEPT was answered {status}"))),
    }
}

/// Waits for a task's updates until this state, and returns the time of its arrival.
fn until(scheduler: &mut Scheduler, id: &str, state: pb::TaskState) -> io::Result<Instant> {
    loop {
        let (when, status) = scheduler.update(STARVED, |status| status.task_id.value == id)?;
        if status.state() == state {
            return Ok(when);
        }
        if is_terminal(&status) {
            let end = format!("{id} ended before {state:?}: {status:?}");
            return Err(io::Error::other(end));
        }
    }
}

/// Serves the small file that the tasks fetch; the thread ends with the program.
pub(crate) fn serve_files() -> io::Result<()> {
    let listener = TcpListener::bind((ADDRESS, FILES_PORT))?;
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|count| count > 2) {
                line.clear();
            }
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nsmall";
            let _ = reader.get_mut().write_all(answer);
        }
    });
    Ok(())
}
