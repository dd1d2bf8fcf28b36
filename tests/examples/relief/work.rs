//! The tasks of the measurement: regular work, a sleeper that must be punctual, hogs.
//!
//! Each appends its progress to its own file, some times a second, with the time of day; the measurement cuts its windows
//! out of these files afterwards.

use std::fs::File;
use std::hint::black_box;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail};

/// The file during whose existence regular work wants all its guarantee.
const AWAKE: &str = "awake";
/// The period of sleeping work, and the busy part of it.
const PERIOD: Duration = Duration::from_millis(20);
const BUSY: Duration = Duration::from_millis(3);
const NOTE_EVERY: Duration = Duration::from_millis(100);
/// The maximum delay of a note.
const NOTES_LATE_MAX: Duration = Duration::from_secs(10);
/// Steps between two reads of the clock: some tens of microseconds.
const STEPS: u64 = 20_000;
const NAP: Duration = Duration::from_millis(1);

/// Returns the time since the epoch in microseconds, the same for all processes of a machine.
pub(crate) fn now_us() -> u64 {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// Wakes regular work, or puts it to sleep.
pub(crate) fn wake(dir: &Path, awake: bool) -> anyhow::Result<()> {
    let path = dir.join(AWAKE);
    if awake {
        File::create(&path).with_context(|| format!("failed to create {}", path.display()))?;
    } else {
        let removed = std::fs::remove_file(&path);
        removed.with_context(|| format!("failed to remove {}", path.display()))?;
    }
    Ok(())
}

/// Runs one of the tasks for ever.
pub(crate) fn run(role: &str, dir: &Path, name: &str) -> anyhow::Result<()> {
    let notes = Notes::new(dir.join(name))?;
    match role {
        "work" => work(dir, notes),
        "nap" => nap(notes),
        "hog" => hog(notes),
        _ => bail!("what is {role}? `relief` without arguments measures"),
    }
}

/// A file to which one line is added at a time.
struct Notes {
    file: File,
    last: Instant,
}

impl Notes {
    fn new(path: PathBuf) -> anyhow::Result<Self> {
        let file = File::create(&path);
        let file = file.with_context(|| format!("failed to create {}", path.display()))?;
        Ok(Self {
            file,
            last: Instant::now(),
        })
    }

    fn is_due(&self) -> bool {
        self.last.elapsed() >= NOTE_EVERY
    }

    fn write(&mut self, figures: &str) -> anyhow::Result<()> {
        self.last = Instant::now();
        let line = format!("{} {figures}\n", now_us());
        self.file
            .write_all(line.as_bytes())
            .context("failed to note")
    }
}

fn spin() {
    for step in 0..STEPS {
        black_box(step);
    }
}

/// Counts its progress: a little while asleep, as much as possible while awake.
fn work(dir: &Path, mut notes: Notes) -> anyhow::Result<()> {
    let awake = dir.join(AWAKE);
    let mut done = 0_u64;
    loop {
        let began = Instant::now();
        let is_awake = awake.exists();
        let until = if is_awake { PERIOD } else { BUSY };
        while began.elapsed() < until {
            spin();
            done += 1;
        }
        if !is_awake {
            std::thread::sleep(PERIOD.saturating_sub(began.elapsed()));
        }
        if notes.is_due() {
            notes.write(&done.to_string())?;
        }
    }
}

/// Sleeps for a millisecond repeatedly, and notes the delay of each wake-up, in microseconds.
fn nap(mut notes: Notes) -> anyhow::Result<()> {
    let mut late = String::new();
    loop {
        let began = Instant::now();
        std::thread::sleep(NAP);
        let by = began.elapsed().saturating_sub(NAP).as_micros();
        late.push_str(&format!("{by} "));
        if notes.is_due() {
            notes.write(late.trim_end())?;
            late.clear();
        }
    }
}

/// Keeps two processors busy.
fn hog(mut notes: Notes) -> anyhow::Result<()> {
    std::thread::spawn(|| {
        loop {
            spin();
        }
    });
    let mut done = 0_u64;
    loop {
        spin();
        done += 1;
        if notes.is_due() {
            notes.write(&done.to_string())?;
        }
    }
}

/// Returns the notes in a file: times and figures.
fn noted(path: &Path) -> anyhow::Result<Vec<(u64, Vec<u64>)>> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("failed to read {}", path.display()))?;
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let line = |line: &str| -> Option<(u64, Vec<u64>)> {
        let mut figures = line.split(' ').map(|word| word.parse::<u64>().ok());
        let at = figures.next()??;
        Some((at, figures.collect::<Option<_>>()?))
    };
    Ok(whole.lines().filter_map(line).collect())
}

/// Waits until the notes reach a time: a process with little processor time writes them late too.
pub(crate) fn until_told(path: &Path, to_us: u64) -> anyhow::Result<()> {
    let began = Instant::now();
    let is_told = || {
        let notes = noted(path).unwrap_or_default();
        notes.last().is_some_and(|(at, _)| *at >= to_us)
    };
    while !is_told() {
        if began.elapsed() > NOTES_LATE_MAX {
            bail!("{} has no note for {NOTES_LATE_MAX:?}", path.display());
        }
        std::thread::sleep(NOTE_EVERY);
    }
    Ok(())
}

/// Returns the work done between two times, for each second.
pub(crate) fn throughput(path: &Path, from_us: u64, to_us: u64) -> anyhow::Result<f64> {
    let notes = noted(path)?;
    let at = |moment: u64| -> Option<f64> {
        let after = notes.iter().position(|(at, _)| *at >= moment)?;
        let (then, done) = (notes.get(after)?, notes.get(after.checked_sub(1)?)?);
        let (from, to) = (float(done.0), float(then.0));
        let share = (float(moment) - from) / (to - from).max(1.0);
        let (low, high) = (float(*done.1.first()?), float(*then.1.first()?));
        Some(low + share * (high - low))
    };
    let (Some(before), Some(after)) = (at(from_us), at(to_us)) else {
        bail!("{} does not tell of the whole window", path.display());
    };
    Ok((after - before) * 1e6 / (float(to_us) - float(from_us)))
}

/// Returns the 99th percentile of lateness between two times, in milliseconds.
pub(crate) fn lateness_p99_ms(path: &Path, from_us: u64, to_us: u64) -> anyhow::Result<f64> {
    let notes = noted(path)?;
    let within = notes
        .iter()
        .filter(|(at, _)| (from_us..=to_us).contains(at));
    let mut late: Vec<u64> = within.flat_map(|(_, late)| late.iter().copied()).collect();
    late.sort_unstable();
    let p99 = late.get(late.len() * 99 / 100);
    Ok(float(*p99.context("the sleeper noted nothing")?) / 1e3)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "microseconds since the epoch stay below 2^53"
)]
fn float(number: u64) -> f64 {
    number as f64
}
