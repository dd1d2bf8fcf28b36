//! Figures of a container with nested ones: the outer container includes their counts, also once they are gone.

use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use meseta_isolators::cgroup::Version;
use meseta_isolators::isolator::UsageSource;
use meseta_isolators::{
    ContainerSpec, ContainerUsage, Controller, DestroyOptions, Isolation, Isolator, Launched,
    Limit, NodeOptions, SLOW_EVERY, Sampler, TaskIsolation,
};

use crate::Test;
use crate::test_node::{TestNode, same};

pub(crate) const TESTS: &[(&str, Test)] = tests![
    nested_work_counts_for_the_outer_one,
    nested_throttling_counts_for_the_outer_one,
    nested_kills_count_for_the_outer_one,
    what_a_crash_left_noted_counts_once,
    reused_id_adds_to_what_a_crash_left_noted,
    what_cannot_be_read_for_a_moment_is_absent_and_noted_later,
    threads_of_which_some_cannot_be_counted_are_absent,
];

const MB: u64 = 1 << 20;
const OUTER: &str = "exec sleep 1000";

/// Less than the time that an end waits for the note of its container's counters: half a second, see `shortage::again`. A
/// machine that stands still may shorten that time.
const NOTE_WAIT: Duration = Duration::from_millis(400);
const NOTED_ATTEMPTS: u32 = 20;

/// The command writes past the page cache, and has forks refused.
const WORK: &str = "dd if=/dev/zero of=file bs=1M count=4 oflag=direct 2>/dev/null; \
    (while :; do sleep 1000 & done) 2>/dev/null; echo worked; exec sleep 1000";

/// Makes v1 count the operations on the device of a folder: it counts only where something is throttled.
fn count_io(test_node: &TestNode, spec: &ContainerSpec, dir: &Path) -> Result<(), Failed> {
    let groups = test_node.groups(&spec.name);
    let group = groups.get(Controller::Blkio).ok_or("no group")?;
    if group.version == Version::V1 {
        let device = fs::metadata(dir)?.dev();
        let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
        let rule = format!("{major}:{minor} 1073741824");
        fs::write(group.dir.join("blkio.throttle.write_bps_device"), rule)?;
    }
    Ok(())
}

/// The summed counters, none of which may be missing.
fn counted(usage: &ContainerUsage) -> Result<[u64; 3], Failed> {
    let counts = (usage.io.write_bytes, usage.io.writes, usage.pids.refused);
    match counts {
        (Some(bytes), Some(writes), Some(refused)) => Ok([bytes, writes, refused]),
        _ => Err(format!("a counter is missing: {usage:?}").into()),
    }
}

/// Checks that each known figure counts exactly once. Version 2 also counts later writeback.
fn counts_once(usage: &ContainerUsage, known: [u64; 3]) -> Result<(), Failed> {
    let now = counted(usage)?;
    let is_known = now[0] >= known[0] && now[0] < known[0] + 4 * MB && now[1] >= known[1];
    check!(is_known, "{now:?} after {known:?}");
    same(now[2], known[2])
}

/// Samples until a complete reading; checks that no sample is below the known figures.
fn sampled(
    test_node: &TestNode,
    sampler: &RefCell<Sampler>,
    spec: &ContainerSpec,
    known: [u64; 3],
) -> Result<ContainerUsage, Failed> {
    let mut last = None;
    for _ in 0..SLOW_EVERY {
        let mut sampler = sampler.borrow_mut();
        sampler.begin_sweep();
        let sample = test_node
            .with(|containers| sampler.sample(containers, &spec.name, None, Duration::ZERO))?;
        let now = counted(&sample)?;
        let went_on = now.iter().zip(&known).all(|(now, known)| now >= known);
        check!(went_on, "{now:?} after {known:?}");
        last = Some(sample);
    }
    last.ok_or_else(|| "no sample".into())
}

fn nested_work_counts_for_the_outer_one(test_node: &TestNode) -> Result<(), Failed> {
    test_node.open_more("cgroups/blkio", &NodeOptions::default())?;
    let mut outer_spec = test_node.spec("outer", OUTER);
    outer_spec.demand.pids_limit = Some(Limit::At(16));
    let outer = test_node.launch(&outer_spec)?;
    count_io(test_node, &outer_spec, &test_node.sandbox())?;
    let task_spec = test_node.spec("outer+task", OUTER);
    let task = test_node.launch(&task_spec)?;
    let sampler = RefCell::new(Sampler::new(64));
    let mut known = [0; 3];
    // A session in the task, then a second one.
    for name in ["outer+task+one", "outer+task+two"] {
        let before = test_node.usage(&outer_spec)?.io.write_bytes.unwrap_or(0);
        let spec = test_node.spec(name, WORK);
        let launched = test_node.launch(&spec)?;
        test_node.wait_output(&spec, "worked")?;
        test_node.eventually("as many processes as threads", || {
            let pids = test_node.usage(&outer_spec).map(|usage| usage.pids);
            pids.is_ok_and(|pids| pids.processes == pids.threads && pids.processes > Some(8))
        })?;
        let sample = sampled(test_node, &sampler, &outer_spec, known)?;
        let now = counted(&sample)?;
        check!(now[0] >= before + 4 * MB, "{now:?} after {before}");
        check!(
            now[1] > known[1] && now[2] > known[2],
            "{now:?} after {known:?}"
        );
        same(sample.pids.processes, sample.pids.threads)?;
        // The figures of a nested container count for the task too, where the kernel counts them apart.
        let of_task = test_node.usage(&task_spec)?.io.write_bytes;
        check!(of_task.is_none_or(|bytes| bytes >= 4 * MB), "{of_task:?}");
        known = now;
        test_node.destroy(&spec, &launched)?;
        test_node.forget(&spec)?;
        let sample = sampled(test_node, &sampler, &outer_spec, known)?;
        counts_once(&sample, known)?;
        same(sample.pids.processes, Some(2))?;
    }
    test_node.destroy(&task_spec, &task)?;
    counts_once(&test_node.usage(&outer_spec)?, known)?;
    // A restarted agent knows it too.
    test_node.open_more("cgroups/blkio", &NodeOptions::default())?;
    counts_once(&test_node.usage(&outer_spec)?, known)?;
    test_node.forget(&task_spec)?;
    test_node.destroy(&outer_spec, &outer)
}

fn nested_throttling_counts_for_the_outer_one(test_node: &TestNode) -> Result<(), Failed> {
    let outer_spec = test_node.spec("outer", OUTER);
    let outer = test_node.launch(&outer_spec)?;
    let mut spec = test_node.spec("outer+busy", "while :; do :; done");
    spec.demand.cpus_limit = Some(Limit::At(50));
    let own = TaskIsolation {
        own_limits: true,
        ..TaskIsolation::default()
    };
    let launched = test_node.launch_with(&spec, &own)?;
    let throttled = || {
        let usage = test_node.usage(&outer_spec);
        let cpu = usage.map(|usage| usage.cpu).unwrap_or_default();
        (
            cpu.nr_throttled.unwrap_or(0),
            cpu.throttled_secs.unwrap_or(0.0),
        )
    };
    test_node.eventually("it is throttled", || throttled().0 >= 3)?;
    let before = throttled();
    check!(before.1 > 0.0, "{before:?}");
    test_node.destroy(&spec, &launched)?;
    let after = throttled();
    check!(
        after.0 >= before.0 && after.1 >= before.1,
        "{after:?} after {before:?}"
    );
    test_node.forget(&spec)?;
    test_node.destroy(&outer_spec, &outer)
}

fn nested_kills_count_for_the_outer_one(test_node: &TestNode) -> Result<(), Failed> {
    let outer_spec = test_node.spec("outer", OUTER);
    let outer = test_node.launch(&outer_spec)?;
    let hog = "head -c 209715200 /dev/zero | tail >/dev/null; exit $?";
    let spec = test_node.spec("outer+hog", hog);
    let inner = test_node.launch(&spec)?;
    test_node.wait_end(&spec, &inner)?;
    let kills = || {
        let usage = test_node.usage(&outer_spec);
        usage.ok().and_then(|usage| usage.memory.oom_kills)
    };
    test_node.eventually("a kill", || kills() > Some(0))?;
    let before = kills();
    test_node.destroy(&spec, &inner)?;
    check!(kills() >= before, "{:?} after {before:?}", kills());
    test_node.forget(&spec)?;
    test_node.destroy(&outer_spec, &outer)
}

/// An agent was killed between the note of a nested container's counters and the end of its groups.
fn what_a_crash_left_noted_counts_once(test_node: &TestNode) -> Result<(), Failed> {
    let (outer_spec, outer) = test_node.sleeper("outer")?;
    let (task_spec, task) = test_node.sleeper("outer+task")?;
    let noted = test_node.with(|containers| containers.runtime_dir(&outer_spec.name));
    let text = "gone 1 - - - - - - - -\n+task 4 - - - - - - - -\n+other 16 - - - - - - - -\n";
    fs::write(noted.join("ended"), text)?;
    let read_bytes = || Ok::<_, Failed>(test_node.usage(&outer_spec)?.io.read_bytes);
    same(read_bytes()?, Some(21))?;
    test_node.destroy(&task_spec, &task)?;
    same(read_bytes()?, Some(21))?;
    // The restarted agent does the same again.
    test_node.with(|containers| {
        let options = DestroyOptions::default();
        containers.destroy(&task_spec.name, None, options)
    })?;
    same(read_bytes()?, Some(21))?;
    let text = fs::read_to_string(noted.join("ended"))?;
    check!(!text.contains("+task") && text.contains("+other"), "{text}");
    // An unreadable note has unknown contents, and is not overwritten.
    let usage = test_node.usage(&outer_spec)?;
    check!(
        usage.pids.processes == Some(1) && usage.pids.refused.is_some(),
        "{usage:?}"
    );
    fs::rename(noted.join("ended"), noted.join("away"))?;
    fs::create_dir(noted.join("ended"))?;
    let usage = test_node.usage(&outer_spec)?;
    same(
        (
            usage.io.read_bytes,
            usage.pids.refused,
            usage.pids.processes,
        ),
        (None, None, None),
    )?;
    check!(usage.memory.total_bytes.is_some(), "{usage:?}");
    test_node.forget(&task_spec)?;
    test_node.destroy(&outer_spec, &outer)
}

/// Counts seven bytes in each nested container, or fails like an agent that lacks descriptors.
#[derive(Debug, Default)]
struct Counter {
    fails: AtomicBool,
    failures: AtomicU64,
}

#[derive(Debug)]
struct Counting(Arc<Counter>);

impl Isolator for Counting {
    fn name(&self) -> &'static str {
        "site/counting"
    }

    fn local_usage(&self, source: &UsageSource<'_>, usage: &mut ContainerUsage) {
        if !self.0.fails.load(Ordering::SeqCst) {
            usage.io.read_bytes = Some(7);
            return;
        }
        // Reading the first byte fails.
        let _ = source
            .files
            .number(&Arc::from(Path::new("/proc/self")), "mem");
        self.0.failures.fetch_add(1, Ordering::SeqCst);
    }
}

/// Regression: the sum left an unreadable figure out and lost it when its container ended, and samples waited for the pauses
/// between attempts.
fn what_cannot_be_read_for_a_moment_is_absent_and_noted_later(
    test_node: &TestNode,
) -> Result<(), Failed> {
    let counter = Arc::new(Counter::default());
    let isolation = Isolation::default_for(test_node.host());
    let counting = Box::new(Counting(counter.clone()));
    test_node.open_custom(isolation, &NodeOptions::default(), vec![counting])?;
    let (outer_spec, outer) = test_node.sleeper("outer")?;
    let read_bytes = || Ok::<_, Failed>(test_node.usage(&outer_spec)?.io.read_bytes);
    // An end waits for its note only for a limited time: a slower attempt here proves nothing.
    for number in 0..NOTED_ATTEMPTS {
        let known = read_bytes()?.unwrap_or(0);
        let (spec, inner) = test_node.sleeper(&format!("outer+task{number}"))?;
        same(read_bytes()?, Some(known + 7))?;
        counter.fails.store(true, Ordering::SeqCst);
        same(read_bytes()?, None)?;
        let (sampled, took) = ended_after_a_failed_look(test_node, &counter, (&spec, &inner))?;
        test_node.forget(&spec)?;
        if took < NOTE_WAIT {
            same(sampled, None)?;
            same(read_bytes()?, Some(known + 7))?;
            return test_node.destroy(&outer_spec, &outer);
        }
    }
    Err("a sample took as long as the end each time, or the machine stood still".into())
}

/// Regression: an agent that crashed between the removal of groups and its note left the former container noted as ending;
/// the larger of both counts was used, and not their sum.
fn reused_id_adds_to_what_a_crash_left_noted(test_node: &TestNode) -> Result<(), Failed> {
    let counting = Box::new(Counting(Arc::default()));
    let isolation = Isolation::default_for(test_node.host());
    test_node.open_custom(isolation, &NodeOptions::default(), vec![counting])?;
    let (outer_spec, outer) = test_node.sleeper("outer")?;
    let noted = test_node.with(|containers| containers.runtime_dir(&outer_spec.name));
    fs::write(noted.join("ended"), "+task 4 - - - - - - - -\n")?;
    let read_bytes = || Ok::<_, Failed>(test_node.usage(&outer_spec)?.io.read_bytes);
    same(read_bytes()?, Some(4))?;
    let (task_spec, task) = test_node.sleeper("outer+task")?;
    same(read_bytes()?, Some(11))?;
    test_node.destroy(&task_spec, &task)?;
    test_node.forget(&task_spec)?;
    same(read_bytes()?, Some(11))?;
    test_node.destroy(&outer_spec, &outer)
}

/// Ends a container whose counter works again after a first failed read, and a complete sample; returns the sample and the
/// time of both.
fn ended_after_a_failed_look(
    test_node: &TestNode,
    counter: &Counter,
    (spec, launched): (&ContainerSpec, &Launched),
) -> Result<(Option<u64>, Duration), Failed> {
    let (outer, _) = spec.name.nesting().ok_or("not nested")?;
    let before = counter.failures.load(Ordering::SeqCst);
    test_node.with(|containers| {
        thread::scope(|scope| {
            let destroy = || {
                let options = DestroyOptions::default();
                containers.destroy(&spec.name, Some(&launched.supervisor), options)
            };
            let ending = scope.spawn(destroy);
            let not_yet = Cell::new(Instant::now());
            let looked = test_node.eventually("a look before the end", || {
                let now = Instant::now();
                let has_failed = counter.failures.load(Ordering::SeqCst) > before;
                if !has_failed {
                    not_yet.set(now);
                }
                has_failed
            });
            let sampled = containers.usage(&outer, None, Duration::ZERO);
            counter.fails.store(false, Ordering::SeqCst);
            let took = not_yet.get().elapsed();
            let ended = ending.join().map_err(|_| "the destroy panicked")?;
            looked?;
            ended?;
            Ok::<_, Failed>((sampled?.io.read_bytes, took))
        })
    })
}

/// Regression: without `cgroups/pids` the usage showed only the threads of the outer container.
fn threads_of_which_some_cannot_be_counted_are_absent(test_node: &TestNode) -> Result<(), Failed> {
    let counter = Arc::new(Counter::default());
    let node = NodeOptions {
        count_processes: true,
        ..NodeOptions::default()
    };
    let counting = Box::new(Counting(counter.clone()));
    let isolation = Isolation::parse("cgroups/cpu,cgroups/mem")?;
    test_node.open_custom(isolation, &node, vec![counting])?;
    let (outer_spec, outer) = test_node.sleeper("outer")?;
    let (spec, inner) = test_node.sleeper("outer+task")?;
    let counts = || {
        let pids = test_node.usage(&outer_spec)?.pids;
        Ok::<_, Failed>((pids.processes, pids.threads))
    };
    same(counts()?, (Some(2), Some(2)))?;
    counter.fails.store(true, Ordering::SeqCst);
    same(counts()?, (None, None))?;
    counter.fails.store(false, Ordering::SeqCst);
    test_node.destroy(&spec, &inner)?;
    test_node.forget(&spec)?;
    test_node.destroy(&outer_spec, &outer)
}
