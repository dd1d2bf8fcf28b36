//! Keeps the services of a machine busy until its next boot, and compares the updates before with the state afterwards.
//! Only `tests/vm/reboots` runs it usefully.
//!
//! `reboots KNOWN MEMORY [last]`, once a boot. `KNOWN` holds the output of the earlier run, or nothing; this run writes its
//! knowledge to `MEMORY`, which outlives the boot. With `last` it ends after the comparison. Prints `WRONG` and a reason
//! for each error, and `BUSY` when the machine may be booted.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use meseta_tests::framework::framework_info;
use meseta_tests::power_cuts::facts::{self, Place};
use meseta_tests::power_cuts::load::{Load, active_agent};
use meseta_tests::power_cuts::memory::{Memory, Remembered, tasks_after_a_reboot};
use meseta_tests::{Encoding, Framework, wait};
use serde_json::json;

/// The time for services to start in an emulated machine.
const PATIENCE: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(50);
const REPORT: Duration = Duration::from_secs(1);

fn main() {
    let mut given = std::env::args().skip(1);
    let known = given.next().expect("KNOWN");
    let memory = PathBuf::from(given.next().expect("MEMORY"));
    let is_last = given.next().as_deref() == Some("last");
    let known = Remembered::last_of(&std::fs::read_to_string(known).unwrap_or_default());
    let place = Place {
        master_url: "http://127.0.0.1:5050".to_owned(),
        agent_url: "http://127.0.0.1:5051".to_owned(),
        work_dir: PathBuf::from("/var/lib/meseta/agent"),
        marks: PathBuf::from("/tmp/marks"),
    };
    std::fs::create_dir_all(&place.marks).expect("a folder of marks");
    let agent = wait::eventually("an agent is registered", PATIENCE, || active_agent(&place));
    let agent_id = agent["id"].as_str().expect("an id").to_owned();
    let mut framework = subscribe(&place, known.as_ref());
    if let Some(known) = &known {
        compare(&place, known, &mut framework);
    }
    framework.accepted(json!({"type": "REVIVE"}));
    run_one(&mut framework, known.as_ref());
    if is_last {
        return;
    }
    let mut load = Load::new(framework, place, 7);
    load.remember_in(open(&memory), &agent_id, known.as_ref());
    println!("BUSY");
    let mut reported = Instant::now();
    loop {
        load.step(LOOK);
        if reported.elapsed() >= REPORT {
            reported = Instant::now();
            println!("WORDS {}", load.counts.updates + load.counts.operations);
        }
    }
}

fn open(memory: &Path) -> Memory {
    Memory::open(memory).unwrap_or_else(|error| panic!("{}: {error}", memory.display()))
}

fn subscribe(place: &Place, known: Option<&Remembered>) -> Framework {
    let mut info = framework_info(facts::ROLE);
    info["failover_timeout"] = json!(86_400.0);
    if let Some(known) = known {
        info["id"] = json!({"value": known.framework_id});
    }
    let url = format!("{}/api/v1/scheduler", place.master_url);
    wait::eventually("the framework is subscribed", PATIENCE, || {
        Framework::try_subscribe(&url, Encoding::Json, &info).ok()
    })
}

/// Prints the differences from the updates before the boot.
fn compare(place: &Place, known: &Remembered, framework: &mut Framework) {
    for (number, synced) in &known.synced {
        let mark = facts::synced_mark(place, *number);
        std::fs::write(mark, format!("{synced}\n")).expect("written");
    }
    let mut wrong = facts::wrongs(place, &known.agent_id, &known.reservations);
    let (wrong_of_tasks, counts) = tasks_after_a_reboot(framework, known);
    wrong.extend(wrong_of_tasks);
    for (what, count) in counts {
        println!("TOLD {count} {what}");
    }
    println!(
        "COMPARED {} tasks, {} reservations, {} volumes with data; {} wrong",
        known.tasks.len(),
        known.reservations.len(),
        known.synced.len(),
        wrong.len()
    );
    for wrong in wrong {
        println!("WRONG {wrong}");
    }
}

/// Waits until a new task has run.
fn run_one(framework: &mut Framework, known: Option<&Remembered>) {
    let id = format!("new-{}", known.map_or(0, |known| known.life + 1));
    let offer = framework.offer();
    framework.launch_task(&offer, &id, "true", &[("cpus", 0.1), ("mem", 32.0)]);
    framework.until_state(&id, "TASK_FINISHED");
    println!("a new task has run");
}
