//! The consumption of the daemons: resident and anonymous memory and descriptors, each second, as the kernel counts them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::bench::Bench;
use crate::fleet::Fleet;

const INTERVAL: Duration = Duration::from_secs(1);
/// The time after the floods for connections to close and memory to be released; less after short floods.
const SETTLE: Duration = Duration::from_secs(30);

/// The usage at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    pub(crate) resident_kib: u64,
    pub(crate) anonymous_kib: u64,
    pub(crate) descriptors: u64,
}

/// The first, the highest and the last figures of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Course {
    pub(crate) first: Sample,
    pub(crate) highest: Sample,
    pub(crate) last: Sample,
}

pub(crate) type Courses = BTreeMap<&'static str, Course>;

/// Takes a sample every second until the end of the run.
pub(crate) fn follow(bench: &Bench) -> Courses {
    let mut courses = Courses::new();
    while !bench.time.is_over() {
        sample_all(&bench.fleet, &mut courses);
        bench.time.pause(INTERVAL);
    }
    sample_all(&bench.fleet, &mut courses);
    courses
}

/// Takes samples until the time for releasing memory is over, after floods of this length.
pub(crate) fn settle(fleet: &Fleet, courses: &mut Courses, length: Duration) {
    let began = Instant::now();
    while began.elapsed() < SETTLE.min(length) {
        std::thread::sleep(INTERVAL);
        sample_all(fleet, courses);
    }
}

fn sample_all(fleet: &Fleet, courses: &mut Courses) {
    for (name, pid) in fleet.processes() {
        let Some((sample, highest_kib)) = sample(pid) else {
            continue;
        };
        let course = courses.entry(name).or_default();
        if course.first.resident_kib == 0 {
            course.first = sample;
        }
        let highest = &mut course.highest;
        highest.resident_kib = highest.resident_kib.max(highest_kib);
        highest.anonymous_kib = highest.anonymous_kib.max(sample.anonymous_kib);
        highest.descriptors = highest.descriptors.max(sample.descriptors);
        course.last = sample;
    }
}

/// Returns the usage of a process, and its peak of resident memory; `None` if the process is gone.
fn sample(pid: i32) -> Option<(Sample, u64)> {
    let kib = |name| meseta_tests::kernel::memory_kib(pid, name);
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let sample = Sample {
        resident_kib: kib("VmRSS")?,
        anonymous_kib: kib("RssAnon")?,
        descriptors: u64::try_from(descriptors.count()).ok()?,
    };
    Some((sample, kib("VmHWM")?))
}
