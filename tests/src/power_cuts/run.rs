//! A series of cuts at random moments of a busy node and of its starts.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::facts::Place;
use super::load::{Load, registered};
use super::node::{Flush, Journal, Node};
use crate::dice::Dice;
use crate::kernel;

/// The time from the start until the agent is registered.
const STARTING: Duration = Duration::from_secs(60);
/// The time for all updates after the last cut.
const TELLING: Duration = Duration::from_secs(90);
/// The time for folders of volumes, and for processes, to be gone.
const SETTLING: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);
/// The maximum number of updates between the registration and a cut, which comes some milliseconds later.
const WORDS: u64 = 60;
const AFTER_WORD_MS: u64 = 300;
/// The longest time before a cut, with any number of updates.
const BUSY_MAX: Duration = Duration::from_secs(10);
/// The maximum time in ms between a start and an early cut, which comes from time to time.
const STARTING_MS: u64 = 600;
const EARLY_IN: u64 = 5;
/// Before one cut in this number the agent is killed, and another reports its remains, synced or not.
const KILLED_IN: u64 = 4;

/// The selection of cuts.
#[derive(Clone, Debug)]
pub struct Options {
    pub cuts: usize,
    pub seed: u64,
    pub journal: Journal,
    /// The folder for checkpoints and logs of a run with errors.
    pub keep: Option<PathBuf>,
    /// A flag that makes the next cut the last.
    pub over: Arc<AtomicBool>,
}

/// The results of the run.
#[derive(Debug, Default)]
pub struct Report {
    pub cuts: usize,
    /// The number of cuts while the agent was starting.
    pub early: usize,
    /// The times from the start until the agent was registered, the shortest first.
    pub starts: Vec<Duration>,
    pub tasks: usize,
    pub volumes: usize,
    pub updates: usize,
    pub operations: usize,
    pub dropped: usize,
    /// The number of tasks by kind and update.
    pub told: String,
    pub wrong: Vec<String>,
    /// The log of the agent.
    pub log: String,
}

/// Cuts the power repeatedly; must be called [`super::node::in_own_mounts`].
pub fn run(options: &Options, mut tell: impl FnMut(&str)) -> Report {
    let mut run = Run::open(options);
    for number in 1..=options.cuts {
        if options.over.load(Ordering::Relaxed) {
            break;
        }
        let line = run.one_cut();
        tell(&format!("cut {number} {line}"));
        if run.has_failed {
            break;
        }
    }
    run.finish()
}

struct Run {
    node: Node,
    place: Place,
    load: Load,
    dice: Dice,
    agent_id: String,
    report: Report,
    /// The time of the power cut, until the agent is back.
    absent_since: Option<Instant>,
    started: Instant,
    /// The registration time of the earlier agent process.
    registered_before: Option<f64>,
    has_failed: bool,
    keep: Option<PathBuf>,
}

impl Run {
    fn open(options: &Options) -> Self {
        let node = Node::open(options.journal);
        let cluster = &node.cluster;
        let marks = cluster.dir.path().join("marks");
        std::fs::create_dir(&marks).expect("made");
        let place = Place {
            master_url: cluster.master.url.clone(),
            agent_url: cluster.agent().url.clone(),
            work_dir: cluster.agent_dir(0),
            marks,
        };
        let load = Load::new(cluster.framework(), place.clone(), options.seed);
        Self {
            agent_id: cluster.agent_id(),
            node,
            place,
            load,
            dice: Dice::new(options.seed),
            report: Report::default(),
            absent_since: None,
            started: Instant::now(),
            registered_before: None,
            has_failed: false,
            keep: options.keep.clone(),
        }
    }

    /// Lets the node be busy for a while, cuts its power and starts it again; returns the line of the report.
    fn one_cut(&mut self) -> String {
        let is_early = self.absent_since.is_some() && self.dice.roll(EARLY_IN) == 0;
        let mut line = String::new();
        if is_early {
            self.report.early += 1;
            let moment = Duration::from_millis(self.dice.roll(STARTING_MS));
            self.work(self.started + moment);
            let _ = write!(line, "{moment:?} after a start");
        } else {
            self.come_back();
            let words = self.be_busy();
            let _ = write!(line, "{words} words after a registration");
        }
        if self.has_failed {
            return line;
        }
        if self.dice.roll(KILLED_IN) == 0 {
            let moment = self.kill_agent();
            let _ = write!(line, ", {moment:?} after a kill");
        }
        if self.has_failed {
            return line;
        }
        let flush = match self.dice.roll(3) {
            0 => Flush::Journal,
            _ => Flush::Nothing,
        };
        let now = Instant::now();
        self.absent_since.get_or_insert(now);
        self.load.excuses.cuts.push(now);
        self.registered_before = registered(&self.place);
        self.node.cut(flush);
        self.report.cuts += 1;
        let _ = write!(line, ", with {flush:?}; {:?}", now.elapsed());
        self.node.start();
        self.started = Instant::now();
        line
    }

    /// Kills the agent, and lets the next one run for a moment.
    fn kill_agent(&mut self) -> Duration {
        self.absent_since.get_or_insert_with(Instant::now);
        self.node.cluster.agents[0].kill();
        self.node.start();
        self.started = Instant::now();
        let moment = Duration::from_millis(self.dice.roll(STARTING_MS));
        self.work(self.started + moment);
        moment
    }

    /// Waits until the agent is registered, and checks that all updates are true.
    fn come_back(&mut self) {
        let Some(since) = self.absent_since else {
            return;
        };
        let end = self.started + STARTING;
        loop {
            let found = registered(&self.place);
            if found.is_some() && found != self.registered_before {
                break;
            }
            if Instant::now() >= end {
                self.fail("the agent did not register".to_owned());
                return;
            }
            self.work(Instant::now() + LOOK);
            if self.has_failed {
                return;
            }
        }
        self.report.starts.push(self.started.elapsed());
        self.load.excuses.absences.push((since, Instant::now()));
        self.absent_since = None;
        self.load.check(&self.agent_id);
        self.has_failed |= !self.load.wrong.is_empty();
    }

    /// Waits for some updates, and a moment longer; returns their number.
    fn be_busy(&mut self) -> usize {
        let words = |load: &Load| load.counts.updates + load.counts.operations;
        let before = words(&self.load);
        let limit = usize::try_from(self.dice.roll(WORDS)).unwrap_or_default();
        let end = Instant::now() + BUSY_MAX;
        while !self.has_failed && words(&self.load) < before + limit && Instant::now() < end {
            self.work(Instant::now() + LOOK);
        }
        let moment = Duration::from_millis(self.dice.roll(AFTER_WORD_MS));
        self.work(Instant::now() + moment);
        words(&self.load) - before
    }

    /// Keeps the node busy until this time.
    fn work(&mut self, until: Instant) {
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            self.load.step(left.min(LOOK));
            if self.node.cluster.agents[0].has_ended() {
                self.fail("the agent has ended by itself".to_owned());
                return;
            }
        }
    }

    fn fail(&mut self, why: String) {
        self.load.wrong.push(why);
        self.has_failed = true;
    }

    /// Lets all tasks and operations end, and judges the outcome.
    fn finish(mut self) -> Report {
        self.come_back();
        self.load.is_open = false;
        let end = Instant::now() + TELLING;
        while !self.has_failed && !self.load.is_over() {
            if Instant::now() >= end {
                let left = self.load.left();
                self.fail(format!("not all was told: {left}"));
            }
            self.work(Instant::now() + LOOK);
        }
        self.load.check(&self.agent_id);
        let mut wrong = Vec::new();
        let root = self.node.cluster.cgroups_root.clone();
        crate::wait::holds(SETTLING, || {
            wrong = self.load.wrongs_at_the_end();
            let left = kernel::tasks_below(&root);
            if !left.is_empty() {
                wrong.push(format!("processes are left in containers: {left:?}"));
            }
            wrong.is_empty()
        });
        let mut report = self.report;
        report.wrong = self.load.wrong.clone();
        report.wrong.append(&mut wrong);
        let told = self.load.told();
        report.tasks = told.values().sum();
        for ((kind, what), count) in told {
            let _ = writeln!(report.told, "{count:6} {kind:?}: {what}");
        }
        report.volumes = self.load.volumes();
        report.updates = self.load.counts.updates;
        report.operations = self.load.counts.operations;
        report.dropped = self.load.counts.dropped;
        report.starts.sort_unstable();
        report.log = self.node.cluster.agent().log_text();
        if let Some(line) = report.log.lines().find(|line| line.contains("panicked")) {
            report.wrong.push(format!("the agent panicked: {line}"));
        }
        if let (false, Some(to)) = (report.wrong.is_empty(), &self.keep)
            && let Err(error) = keep(&self.place, &report.log, to)
        {
            let wrong = format!("nothing is kept in {}: {error}", to.display());
            report.wrong.push(wrong);
        }
        report
    }
}

/// Copies the checkpoints, with the files set aside as damaged, and the log.
fn keep(place: &Place, log: &str, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    std::fs::write(to.join("agent.log"), log)?;
    let meta = place.work_dir.join("meta");
    let copied = Command::new("cp").arg("-a").arg(meta).arg(to).status()?;
    match copied.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("cp: {copied}"))),
    }
}
