//! Tasks with command checks that never return.

use std::io;
use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::TaskRunning;

use crate::bench::{Bench, Tally};
use crate::scheduler::{Scheduler, Subscription, shell, task};

const NAME: &str = "hung-checks";
const TASKS: usize = 140;
const LIMIT: Duration = Duration::from_secs(30);
const KEPT_OPEN: Duration = Duration::from_secs(120);
/// The timeout that a check declares.
const CHECK_SECONDS: f64 = 3600.0;

pub(super) fn run(bench: &Bench, tally: &Tally) -> anyhow::Result<()> {
    super::repeat(bench, tally, LIMIT, || round(bench, tally));
    Ok(())
}

fn round(bench: &Bench, tally: &Tally) -> io::Result<()> {
    let subscription = Subscription::hostile(&[NAME]);
    let mut scheduler = Scheduler::subscribed(&bench.fleet, subscription)?;
    let (_, offer) = scheduler.offer(NAME, LIMIT)?;
    let one = |number: usize| {
        let mut checked = task(&offer, &format!("checked-{number}"), "exec sleep 1000");
        checked.check = Some(Box::new(pb::CheckInfo {
            r#type: Some(pb::check_info::Type::Command.into()),
            command: Some(pb::check_info::Command {
                command: shell("exec sleep 1000"),
            }),
            delay_seconds: Some(0.0),
            interval_seconds: Some(0.1),
            timeout_seconds: Some(CHECK_SECONDS),
            ..pb::CheckInfo::default()
        }));
        checked
    };
    let tasks = (0..TASKS).map(one).collect();
    tally.answer("ACCEPT", &scheduler.launch(&offer, tasks, 3600.0));
    for _ in 0..TASKS {
        scheduler.update(LIMIT, |status| status.state() == TaskRunning)?;
        tally.count("tasks running");
    }
    bench.time.pause(KEPT_OPEN);
    scheduler.acknowledge_all()?;
    tally.count("rounds");
    tally.answer("TEARDOWN", &scheduler.teardown());
    Ok(())
}
