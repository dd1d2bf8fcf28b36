//! The runs of batch and cron jobs: their start, their wanted tasks, and their end.

use std::collections::BTreeSet;
use std::time::Duration;

use meseta_daemon::calendar::utc;

use super::clock::Clock;
use super::consequence::Consequence;
use super::dealt_times::Dealt;
use super::input::Record;
use super::job::{Job, KillReason, PutOff, Run};
use super::records::{Key, Outcome, RunRecord, RunSummary};
use super::sizes::Sizes;
use super::state::State;
use crate::spec::{Cron, GANG_MAX, JobSpec, Kind, Overlap};

/// Concurrent runs of a job whose runs may overlap.
const RUNS_MAX: usize = 16;
/// Ended runs that a job remembers.
const OVER_MAX: usize = 20;
/// A last time of a schedule that is this far in the future shows that the clock was set back since. After a smaller step
/// back, the schedule does not repeat its times.
const SET_BACK_MIN: Duration = Duration::from_secs(60);
/// The time after a subscription during which a schedule waits for the master's reports about its runs. A silent run then
/// counts as running: its agent is away, and the master does not know that yet.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
/// Times of all schedules that one step examines, some microseconds each, before the next step continues.
pub(super) const TIMES_MAX: usize = 10_000;
/// Missed times of a schedule that are counted.
const MISSED_MAX: u32 = 100;
/// Missed times within this span before the last do not come again if the clock is set back. For earlier times it is
/// unknown whether they were missed, or the clock was ahead.
const MISSED_SPAN: Duration = Duration::from_secs(3 * 3600);

impl Job {
    /// Whether tasks of a cancelled run have not ended, so that none of another may start.
    pub(super) fn is_clearing(&self) -> bool {
        let mut runs = self.record.runs.iter();
        runs.any(|(number, record)| {
            record.cancelled && self.runs.get(number).is_some_and(|run| run.live > 0)
        })
    }

    /// Continues a schedule from now, after a version that may have been stopped: earlier times are not made up for, even
    /// if the clock is set back a little.
    pub(super) fn go_on_from(&mut self, now: Duration, (before, was_stopped): (u64, bool)) {
        let schedule = |version| match &self.spec_of(version)?.kind {
            Kind::Cron(cron) => Some((&cron.schedule, &cron.time_zone)),
            Kind::Service(_) | Kind::Batch(_) => None,
        };
        let is_cron = self.is_cron();
        let is_same = schedule(before) == schedule(self.record.target);
        if is_same && !was_stopped && self.put_off_time(now).is_some() {
            // The postponed time is not dealt with, and the job still waits for it.
            return;
        }
        let record = &mut self.record;
        let last_due = std::mem::replace(&mut record.last_due, now);
        if !is_same {
            // The times of another schedule say little about this one.
            record.dealt = Dealt::default();
        }
        if is_cron && !was_stopped {
            let after = last_due.max(now.saturating_sub(MISSED_SPAN));
            record.dealt.add(after, now);
        }
        self.begin_dealt();
    }

    /// Returns the postponed time of a schedule, if any.
    pub(super) fn put_off_time(&self, now: Duration) -> Option<Duration> {
        let is_due = |time: &Duration| self.record.last_due < *time && *time <= now;
        let put_off = self.put_off.map(|put_off| put_off.time).filter(is_due);
        put_off.filter(|_| self.record.stop.is_none())
    }

    /// Starts the list of dealt times with the begin of the schedule, or with the last time that an earlier release
    /// recorded.
    pub(super) fn begin_dealt(&mut self) {
        if self.is_cron() && self.record.dealt.is_empty() {
            self.record.dealt.add_one(self.record.last_due);
        }
    }

    /// Returns the runs in progress, as far as known.
    fn under_way(&self, is_connected: bool) -> UnderWay {
        let tasks = self.tasks.values();
        let heard = tasks.filter(|task| is_connected && !task.is_asked_for);
        let heard: BTreeSet<u64> = heard.map(|task| task.name.run).collect();
        let mut under_way = UnderWay::default();
        for (number, _) in self.active_runs() {
            let run = self.runs.get(&number);
            match heard.contains(&number) || run.is_some_and(|run| !run.waiting.is_empty()) {
                true => under_way.certain += 1,
                false => under_way.doubtful += 1,
            }
        }
        under_way
    }

    pub(super) fn cancel_runs(&mut self) {
        for run in self.record.runs.values_mut() {
            run.cancelled = true;
        }
    }

    /// Whether the job has a gang of more tasks than may start together, as an earlier release accepted.
    pub(super) fn has_gang_too_large(&self) -> bool {
        if self.is_service() {
            let is_whole = self.is_gang(self.record.target) && self.tasks.is_empty();
            return is_whole && self.spec().is_some_and(|spec| spec.count > GANG_MAX);
        }
        self.active_runs().any(|(number, record)| {
            let run = self.runs.get(&number);
            self.is_gang(record.version) && run.is_some_and(is_gang_too_large)
        })
    }

    /// Whether the tasks of a version start together or not at all.
    pub(super) fn is_gang(&self, version: u64) -> bool {
        self.spec_of(version)
            .is_some_and(|spec| spec.gang.is_some())
    }
}

/// Ends the runs of a job that are over, and the tasks of gangs and of cancelled runs that must not go on.
pub(super) fn decide_runs(job: &mut Job, may_start: bool, clock: &Clock) -> Vec<Consequence> {
    let mut consequences = end_cancelled_runs(job, clock);
    job.is_held = !may_start && job.is_before_its_start();
    let mut over = Vec::new();
    let mut broken = Vec::new();
    for (number, record) in job.active_runs() {
        let Some(run) = job.runs.get(&number) else {
            continue;
        };
        let ended = run.succeeded.saturating_add(run.failed);
        if ended >= record.count && run.live == 0 {
            over.push(number);
        } else if job.is_gang(record.version) && run.failed > 0 {
            broken.push(number);
        }
    }
    for number in broken {
        consequences.extend(give_up_gang(job, number));
    }
    for number in over {
        consequences.extend(end_run(job, number, clock));
    }
    consequences
}

/// Gives up the gang: one of its tasks has failed for good.
fn give_up_gang(job: &mut Job, number: u64) -> Vec<Consequence> {
    let tasks = tasks_of_run(job, number);
    if !tasks.is_empty() {
        return kill_all(tasks, KillReason::Gang);
    }
    let Some(run) = job.runs.get_mut(&number) else {
        debug_assert!(false, "run {number} was found before");
        return Vec::new();
    };
    let mut changed = Vec::new();
    for (_, index) in std::mem::take(&mut run.waiting).iter() {
        let slot = run.slot_mut(index);
        slot.outcome = Outcome::Failed;
        changed.push((index, *slot));
        run.failed += 1;
    }
    let records = changed
        .into_iter()
        .map(|(index, slot)| job.slot_key(number, index).put(&slot));
    let writes = records.map(Consequence::Write);
    writes.chain([Consequence::Decide]).collect()
}

/// Kills the remaining tasks of cancelled runs, and ends the runs that have none left.
pub(super) fn end_cancelled_runs(job: &mut Job, clock: &Clock) -> Vec<Consequence> {
    let cancelled = job.record.runs.iter().filter(|(_, run)| run.cancelled);
    let cancelled: Vec<u64> = cancelled.map(|(number, _)| *number).collect();
    let mut consequences = Vec::new();
    for number in cancelled {
        let tasks = tasks_of_run(job, number);
        consequences.extend(match tasks.is_empty() {
            true => end_run(job, number, clock),
            false => kill_all(tasks, KillReason::Cancelled),
        });
    }
    consequences
}

fn tasks_of_run(job: &Job, number: u64) -> Vec<String> {
    let of_run = job.tasks.iter().filter(|(_, task)| task.name.run == number);
    of_run.map(|(id, _)| id.clone()).collect()
}

fn kill_all(tasks: Vec<String>, reason: KillReason) -> Vec<Consequence> {
    let tasks = tasks.into_iter();
    tasks.map(|task| Consequence::Kill(task, reason)).collect()
}

fn end_run(job: &mut Job, number: u64, clock: &Clock) -> Vec<Consequence> {
    let (Some(record), Some(run)) = (job.record.runs.remove(&number), job.runs.remove(&number))
    else {
        debug_assert!(false, "run {number} was found before");
        return Vec::new();
    };
    job.record.over.push(RunSummary {
        run: number,
        version: record.version,
        started: record.started,
        ended: clock.unix(),
        succeeded: run.succeeded,
        failed: run.failed,
        cancelled: record.cancelled,
    });
    if job.record.over.len() > OVER_MAX {
        job.record.over.remove(0);
    }
    let mut records = forget_slots(&job.name, number, &run);
    records.extend(job.records());
    let what = match (record.cancelled, run.failed) {
        (true, _) => "cancelled",
        (false, 0) => "complete",
        (false, _) => "failed",
    };
    let text = format!(
        "run {number} {what}: {} of {} tasks succeeded, {} failed",
        run.succeeded, record.count, run.failed
    );
    save_and_tell(job, records, text, clock)
}

/// Starts a run of a job.
pub(super) fn start_run(job: &mut Job, clock: &Clock) -> Vec<Consequence> {
    let Some(count) = job.spec().map(|spec| spec.count) else {
        return Vec::new();
    };
    let number = job.record.next_run;
    job.record.next_run += 1;
    let run = RunRecord {
        version: job.record.target,
        count,
        started: clock.unix(),
        cancelled: false,
    };
    job.record.runs.insert(number, run);
    job.runs.insert(number, Run::new(count));
    let records = job.records();
    let text = format!("run {number} of {count} tasks started");
    save_and_tell(job, records, text, clock)
}

fn save_and_tell(
    job: &mut Job,
    records: Vec<Record>,
    text: String,
    clock: &Clock,
) -> Vec<Consequence> {
    let event = job.add_event(clock.unix(), None, text);
    let writes = records.into_iter().map(Consequence::Write);
    let rest = [Consequence::Decide, Consequence::Tell(event)];
    writes.chain(rest).collect()
}

/// Returns the deletions of the written slots of a run. A run that has launched nothing has none, however large it is.
pub(super) fn forget_slots(job: &str, number: u64, run: &Run) -> Vec<Record> {
    let keys = run.written().map(|index| Key::Slot {
        job: job.to_owned(),
        run: number,
        index,
    });
    keys.map(|key| key.delete()).collect()
}

/// Forgets the slots of instances beyond `count`, once their tasks have ended. Other jobs of the role can use the size
/// that this frees. Returns the records of the change.
pub(super) fn forget_slots_beyond(job: &mut Job, count: u32) -> Vec<Record> {
    let indexes = job.drop_slots(count as usize).into_iter();
    let deletions = indexes.map(|index| job.slot_key(0, index).delete());
    let mut records: Vec<Record> = deletions.collect();
    if !records.is_empty() {
        records.extend(job.records());
    }
    records
}

/// Starts the due run of a schedule, unless earlier runs have used up the step, or the end of the previous run is
/// unknown.
pub(super) fn fire(state: &mut State, name: &str, firing: &mut Firing) {
    let now = state.clock.unix();
    let Some(first) = next_due(state, name).filter(|next| *next <= now) else {
        return;
    };
    if firing.times == 0 {
        return;
    }
    end_runs(state, name, firing);
    let Some(job) = state.jobs.get_mut(name) else {
        return;
    };
    let Some(spec) = job.spec().cloned() else {
        return;
    };
    let Kind::Cron(cron) = &spec.kind else {
        return;
    };
    let under_way = job.under_way(state.connection.is_open());
    let is_patient = !state
        .connection
        .has_lasted(state.clock.at(), ANSWERS_WITHIN);
    let put_off = job.put_off.take().filter(|put_off| put_off.time == first);
    if is_patient && under_way.may_change(cron.overlap) {
        let (time, since) = (first, now);
        job.put_off = put_off.or(Some(PutOff { time, since }));
        return;
    }
    let put_off = put_off.map(|put_off| put_off.since);
    let Some(job) = state.jobs.get(name) else {
        return;
    };
    let dealt = &job.record.dealt;
    let due = find_due(
        state.options.next_time,
        (cron, dealt),
        (first, put_off),
        now,
        &mut firing.times,
    );
    deal_with(state, name, first, &due);
    if due.skipped > 0 {
        let least = if due.has_more { "at least " } else { "" };
        let away = match put_off {
            Some(_) => "the scheduler or the master was away",
            None => "the scheduler was away",
        };
        let text = format!("{least}{} runs were missed: {away}", due.skipped);
        state.event(name, None, text);
    }
    if due.is_startable {
        start_due(state, name, (&spec, cron.overlap), &under_way, firing);
    }
}

/// Ends the runs of a job that are over according to this step's inputs, before the step decides on them.
fn end_runs(state: &mut State, name: &str, firing: &mut Firing) {
    if !state.jobs.is_dirty(name) {
        return;
    }
    let before = state.jobs.get(name).map_or(0, Job::size);
    state.decide_runs(name);
    if let (Some(sizes), Some(job)) = (&mut firing.sizes, state.jobs.get(name)) {
        sizes.change(job.role(), before, job.size());
    }
}

/// Notes the times of a schedule up to the last due time as dealt with.
fn deal_with(state: &mut State, name: &str, first: Duration, due: &Due) {
    let now = state.clock.unix();
    if let Some(job) = state.jobs.get_mut(name) {
        let after = match due.last.saturating_sub(first) > MISSED_SPAN {
            true => due.last.saturating_sub(MISSED_SPAN),
            false => job.record.last_due,
        };
        // For times missed longer ago the clock may be ahead, and the time may still come.
        if due.is_startable || now.saturating_sub(due.last) <= MISSED_SPAN {
            job.record.dealt.add(after, due.last);
        }
        job.record.last_due = due.last;
    }
    state.save(name);
}

/// Starts the run of a time that is due, as far as the runs before it and the tasks of all jobs allow.
fn start_due(
    state: &mut State,
    name: &str,
    (spec, overlap): (&JobSpec, Overlap),
    under_way: &UnderWay,
    firing: &mut Firing,
) {
    let is_skipped = match overlap {
        Overlap::Skip => under_way.all() > 0,
        Overlap::Allow => under_way.all() >= RUNS_MAX,
        Overlap::Replace => false,
    };
    if is_skipped {
        let text = match under_way.may_change(overlap) {
            true => "a run was skipped: it is not known whether the one before has ended",
            false => "a run was skipped: the one before has not ended",
        };
        return state.event(name, None, text);
    }
    let job_size = state.jobs.get(name).map_or(0, Job::size);
    let count = if overlap == Overlap::Replace {
        0
    } else {
        job_size
    };
    let wanted = count + u64::from(spec.count);
    let sizes = firing
        .sizes
        .get_or_insert_with(|| Sizes::count(&state.jobs));
    if let Err(why) = sizes.check(&state.jobs, (name, &spec.role), wanted) {
        return state.event(name, None, format!("a run was skipped: {why}"));
    }
    if overlap == Overlap::Replace
        && let Some(job) = state.jobs.get_mut(name)
    {
        job.cancel_runs();
    }
    state.start_run(name);
    sizes.change(&spec.role, job_size, wanted);
}

/// Handles a clock that was ahead and is set back. The schedule continues from now if it would otherwise leave out a
/// time that it has not dealt with; else it waits, and its status names the reason.
pub(super) fn follow_set_clock(state: &mut State, name: &str) {
    let (now, next_time) = (state.clock.unix(), state.options.next_time);
    let is_ahead = |job: &&mut Job| job.record.last_due > now.saturating_add(SET_BACK_MIN);
    let Some(job) = state.jobs.get_mut(name).filter(is_ahead) else {
        return;
    };
    let Some(Kind::Cron(cron)) = job.spec().map(|spec| &spec.kind) else {
        return;
    };
    let last_due = job.record.last_due;
    let next = job.record.dealt.next(now, |after| next_time(cron, after));
    if next.is_some_and(|next| next <= last_due) {
        job.record.last_due = now;
        state.save(name);
        let text =
            "the clock was set back: the schedule goes on from now, but for times that it has had";
        return state.event(name, None, text);
    }
    if job.record.stop.is_none() {
        let until = utc(last_due.as_secs_f64());
        let text = format!(
            "the clock was set back: the schedule has had its times until {until}, and goes on after that"
        );
        state.event(name, None, text);
    }
}

/// Returns the next time of a schedule that is not stopped, computed once for each time and version.
fn next_due(state: &mut State, name: &str) -> Option<Duration> {
    let next_time = state.options.next_time;
    let job = state.jobs.get_mut(name)?;
    if job.record.stop.is_some() {
        return None;
    }
    let key = (job.record.target, job.record.last_due);
    if let Some((known, next)) = job.next_due
        && known == key
    {
        return next;
    }
    let next = match &job.spec()?.kind {
        Kind::Cron(cron) => {
            let record = &job.record;
            let next = |after| next_time(cron, after);
            record.dealt.next(record.last_due, next)
        }
        Kind::Service(_) | Kind::Batch(_) => None,
    };
    job.next_due = Some((key, next));
    next
}

/// Returns the last due time, and the number of missed times from the first on. Postponed times keep their original
/// delay.
fn find_due(
    next_time: fn(&Cron, Duration) -> Option<Duration>,
    (cron, dealt): (&Cron, &Dealt),
    (first, put_off): (Duration, Option<Duration>),
    now: Duration,
    times: &mut usize,
) -> Due {
    let mut next = |after| {
        let next = |after| {
            *times = times.saturating_sub(1);
            next_time(cron, after)
        };
        dealt.next(after, next).filter(|due| *due <= now)
    };
    let (mut due, mut skipped) = (first, 0);
    let mut later = next(due);
    while let Some(time) = later.filter(|_| skipped < MISSED_MAX) {
        skipped += 1;
        due = time;
        later = next(due);
    }
    let has_more = later.is_some();
    if has_more {
        due = last_by(due, now, next);
    }
    let seen = put_off.map_or(now, |since| since.max(due));
    let is_startable = seen.saturating_sub(due) <= cron.start_within;
    Due {
        last: due,
        skipped: skipped + u32::from(!is_startable && !has_more),
        has_more,
        is_startable,
    }
}

/// Returns the last time of `next` up to now, given that one comes after `due`. The number of looks grows with the digits
/// of the seconds in between, and not with the number of times.
fn last_by(
    due: Duration,
    now: Duration,
    mut next: impl FnMut(Duration) -> Option<Duration>,
) -> Duration {
    let (mut last, mut from, mut until) = (due, due.as_secs(), now.as_secs() + 1);
    while until - from > 1 {
        let middle = from + (until - from) / 2;
        match next(Duration::from_secs(middle)) {
            Some(time) => (last, from) = (time, middle.max(time.as_secs())),
            None => until = middle,
        }
    }
    last
}

/// Whether the run of a gang has more tasks left than may start together.
pub(super) fn is_gang_too_large(run: &Run) -> bool {
    run.live == 0 && run.waiting.len() > GANG_MAX as usize
}

/// The common data of all schedules that a step starts.
#[derive(Debug)]
pub(super) struct Firing {
    /// The tasks of all jobs, counted once.
    sizes: Option<Sizes>,
    /// The number of times that may still be examined.
    times: usize,
}

impl Default for Firing {
    fn default() -> Self {
        Self {
            sizes: None,
            times: TIMES_MAX,
        }
    }
}

/// The runs of a job that are not over, as far as the scheduler knows.
#[derive(Clone, Copy, Debug, Default)]
struct UnderWay {
    /// The runs that have tasks or tasks to launch.
    certain: usize,
    /// The runs of which the master of this stream has reported nothing: all their tasks may have ended.
    doubtful: usize,
}

impl UnderWay {
    fn all(&self) -> usize {
        self.certain + self.doubtful
    }

    /// Whether the doubtful runs make a difference to the next run.
    fn may_change(&self, overlap: Overlap) -> bool {
        match overlap {
            Overlap::Skip => self.certain == 0 && self.doubtful > 0,
            Overlap::Allow => self.certain < RUNS_MAX && self.all() >= RUNS_MAX,
            Overlap::Replace => self.doubtful > 0,
        }
    }
}

struct Due {
    last: Duration,
    /// The missed times that were counted, and whether there were more.
    skipped: u32,
    has_more: bool,
    is_startable: bool,
}
