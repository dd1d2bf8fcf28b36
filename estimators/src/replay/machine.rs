//! A machine that runs some tasks of a trace, and the samples that an agent on it would have made.

use std::time::Duration;

use meseta_resources::{ExecutorId, FrameworkId, Moment, Resource, Resources};

use super::Trace;
use super::predictors::Seen;
use super::trace::Task;
use crate::numbers::amount;
use crate::{ContainerUsage, UsageSample};

/// Deals tasks out to machines: for each machine, `size` of `tasks`, without duplicates on a machine, at random from a seed.
/// The same arguments give the same machines.
#[must_use]
pub fn machines(tasks: &[usize], count: usize, size: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut random = SplitMix(seed);
    let deal = |_| {
        let mut pool = tasks.to_vec();
        let mut dealt = Vec::new();
        while dealt.len() < size && !pool.is_empty() {
            let index = random.below(pool.len());
            dealt.push(pool.swap_remove(index));
        }
        dealt
    };
    (0..count).map(deal).collect()
}

/// Steele, Lea and Flood's generator, for which all seeds are equally good.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(mixed % bound).unwrap_or(0)
    }
}

/// A machine whose capacity is the sum of its tasks' limits, as if each task had been promised its limit.
#[derive(Debug)]
pub struct Machine<'a> {
    step: Duration,
    next: usize,
    steps: usize,
    tasks: Vec<Running<'a>>,
    sample: UsageSample,
    capacity: f64,
    used: f64,
    by_task: Vec<(f64, f64)>,
}

#[derive(Debug)]
struct Running<'a> {
    task: &'a Task,
    usage: ContainerUsage,
    /// The first step in which the task runs, and the one after its last.
    begins: usize,
    ends: usize,
    spent: Duration,
    last: f64,
}

impl<'a> Machine<'a> {
    #[must_use]
    pub fn new(trace: &'a Trace, tasks: &[usize]) -> Self {
        let running: Vec<Running<'a>> = tasks
            .iter()
            .filter_map(|index| Running::new(trace.task(*index)?, *index))
            .collect();
        let capacity = running.iter().map(|running| running.task.limit).sum();
        // The total is the sum of the promises after their rounding to thousandths.
        let mut total = Resources::new();
        for running in &running {
            total += &running.usage.allocated;
        }
        let mut sample = UsageSample {
            at: Moment::ORIGIN + trace.step(),
            total,
            ..UsageSample::default()
        };
        sample.host.cpu_time = Some(Duration::ZERO);
        let (step, steps) = (trace.step(), trace.len());
        let by_task = Vec::new();
        Self {
            step,
            next: 0,
            steps,
            tasks: running,
            sample,
            capacity,
            used: 0.0,
            by_task,
        }
    }

    #[must_use]
    pub const fn capacity(&self) -> f64 {
        self.capacity
    }

    /// The observations after the next step; `None` after the last step.
    pub fn step(&mut self) -> Option<Seen<'_>> {
        if self.next >= self.steps {
            return None;
        }
        self.sample.at += self.step;
        self.sample.containers.clear();
        self.used = 0.0;
        self.by_task.clear();
        for running in &mut self.tasks {
            if !(running.begins..running.ends).contains(&self.next) {
                continue;
            }
            running.run(self.next, self.step, self.sample.at);
            self.used += running.last;
            self.by_task.push((running.last, running.task.limit));
            self.sample.containers.push(running.usage.clone());
        }
        let spent = self.step.mul_f64(self.used);
        self.sample.host.cpu_time = self.sample.host.cpu_time.map(|before| before + spent);
        self.next += 1;
        Some(Seen {
            sample: &self.sample,
            capacity: self.capacity,
            used: self.used,
            by_task: &self.by_task,
        })
    }
}

impl<'a> Running<'a> {
    fn new(task: &'a Task, index: usize) -> Option<Self> {
        let begins = task.used.iter().position(Option::is_some)?;
        let ends = task.used.iter().rposition(Option::is_some)? + 1;
        let allocated = Resources::from(Resource::cpus(amount(task.limit)));
        let usage = ContainerUsage::new(
            FrameworkId::new("trace").ok()?,
            // The trace's author may have chosen task names that are invalid as ids.
            ExecutorId::new(&format!("task-{index}")).ok()?,
            allocated,
        );
        Some(Self {
            task,
            usage,
            begins,
            ends,
            spent: Duration::ZERO,
            last: 0.0,
        })
    }

    fn run(&mut self, step: usize, length: Duration, now: Moment) {
        let read = self.task.used.get(step).copied().flatten();
        self.last = read.unwrap_or(self.last);
        self.spent += length.mul_f64(self.last);
        self.usage.cpu_time = read.map(|_| self.spent);
        self.usage.at = read.map(|_| now);
        self.usage.cpus_limit = Some(self.task.limit);
    }
}
