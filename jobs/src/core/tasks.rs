//! The tasks of a job that are not known to have ended: by id, and in the order of the lists.
//!
//! Invariant: the cost of finding a page of the list is one operation for each task of the page, plus one for each
//! thousand indexes before the page.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::fmt;
use std::ops::{Bound, Deref};
use std::str::FromStr;

use super::job::Task;
use super::task_name::TaskName;

/// The number of indexes whose tasks are counted together.
const BLOCK: u32 = 1_024;

#[cfg(test)]
thread_local! {
    /// Counts the tasks and blocks that were skipped on the way to a page.
    pub(super) static PASSED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The position of a task among those of its job, in the order of the lists. As text it is the place behind which a page
/// begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskOrder {
    run: u64,
    index: u32,
    attempt: u32,
    version: u64,
    generation: u64,
}

/// The error for a text that is no place of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the place of a task is RUN.INDEX.ATTEMPT.VERSION[.GENERATION], as `next` has it")]
pub struct NoPlace;

impl TaskOrder {
    fn from_name(name: &TaskName) -> Self {
        Self {
            run: name.run,
            index: name.index,
            attempt: name.attempt,
            version: name.version,
            generation: name.generation,
        }
    }

    fn id_in(self, job: &str) -> String {
        let name = TaskName {
            job: job.to_owned(),
            version: self.version,
            run: self.run,
            index: self.index,
            attempt: self.attempt,
            generation: self.generation,
        };
        name.to_string()
    }

    fn block(self) -> (u64, u32) {
        (self.run, self.index / BLOCK)
    }

    /// Returns the position before all tasks of an index.
    fn before(run: u64, index: u32) -> Self {
        Self {
            run,
            index,
            attempt: 0,
            version: 0,
            generation: 0,
        }
    }
}

impl fmt::Display for TaskOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            run,
            index,
            attempt,
            version,
            generation,
        } = self;
        write!(f, "{run}.{index}.{attempt}.{version}")?;
        match generation {
            0 => Ok(()),
            generation => write!(f, ".{generation}"),
        }
    }
}

impl FromStr for TaskOrder {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        fn number<T: FromStr>(part: Option<&str>) -> Result<T, NoPlace> {
            part.and_then(|part| part.parse().ok()).ok_or(NoPlace)
        }
        let mut parts = text.split('.');
        let read = Self {
            run: number(parts.next())?,
            index: number(parts.next())?,
            attempt: number(parts.next())?,
            version: number(parts.next())?,
            generation: parts.next().map_or(Ok(0), |part| number(Some(part)))?,
        };
        match parts.next() {
            None => Ok(read),
            Some(_) => Err(NoPlace),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Tasks {
    by_id: BTreeMap<String, Task>,
    order: BTreeSet<TaskOrder>,
    /// The number of tasks in each block of indexes of a run; no block is empty.
    blocks: BTreeMap<(u64, u32), usize>,
}

impl Deref for Tasks {
    type Target = BTreeMap<String, Task>;

    fn deref(&self) -> &Self::Target {
        &self.by_id
    }
}

impl<'a> IntoIterator for &'a Tasks {
    type Item = (&'a String, &'a Task);
    type IntoIter = btree_map::Iter<'a, String, Task>;

    fn into_iter(self) -> Self::IntoIter {
        self.by_id.iter()
    }
}

impl Tasks {
    pub(super) fn insert(&mut self, id: String, task: Task) {
        let order = TaskOrder::from_name(&task.name);
        if self.order.insert(order) {
            *self.blocks.entry(order.block()).or_default() += 1;
        }
        self.by_id.insert(id, task);
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Task> {
        let task = self.by_id.remove(id)?;
        let order = TaskOrder::from_name(&task.name);
        if self.order.remove(&order)
            && let btree_map::Entry::Occupied(mut block) = self.blocks.entry(order.block())
        {
            *block.get_mut() -= 1;
            if *block.get() == 0 {
                block.remove();
            }
        }
        Some(task)
    }

    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut Task> {
        self.by_id.get_mut(id)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Task> {
        self.by_id.values_mut()
    }

    /// Returns the tasks behind an id.
    pub(super) fn behind_id(&self, id: Option<&str>) -> impl Iterator<Item = (&String, &Task)> {
        let from = id.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_id.range::<str, _>((from, Bound::Unbounded))
    }

    /// Returns the places behind a place, in order.
    pub(super) fn places_behind(
        &self,
        place: Option<TaskOrder>,
    ) -> impl Iterator<Item = TaskOrder> {
        let from = place.map_or(Bound::Unbounded, Bound::Excluded);
        self.order.range((from, Bound::Unbounded)).copied()
    }

    /// Returns the place of the last of the first `most` tasks, or `None` if there are none.
    pub(super) fn last_of(&self, most: usize) -> Option<TaskOrder> {
        let mut left = most.checked_sub(1)?;
        for ((run, block), count) in &self.blocks {
            #[cfg(test)]
            PASSED.set(PASSED.get() + 1);
            if left >= *count {
                left -= count;
                continue;
            }
            #[cfg(test)]
            PASSED.set(PASSED.get() + left);
            let from = TaskOrder::before(*run, block * BLOCK);
            return self.order.range(from..).nth(left).copied();
        }
        self.order.last().copied()
    }

    /// The task of a job at a place, with its id.
    pub(super) fn at(&self, job: &str, place: TaskOrder) -> Option<(&String, &Task)> {
        self.by_id.get_key_value(&place.id_in(job))
    }

    /// Returns the tasks of an index of a run.
    pub(super) fn of_index(&self, job: &str, run: u64, index: u32) -> impl Iterator<Item = &Task> {
        let from = TaskOrder::before(run, index);
        let places = self.order.range(from..);
        let places = places.take_while(move |place| (place.run, place.index) == (run, index));
        places.filter_map(move |place| Some(self.at(job, *place)?.1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::Phase;
    use super::super::records::TaskRecord;
    use super::*;

    fn task(run: u64, index: u32, attempt: u32) -> Task {
        let name = TaskName {
            job: "a".to_owned(),
            version: 7,
            run,
            index,
            attempt,
            generation: u64::from(attempt),
        };
        Task::new(name, TaskRecord::default(), Phase::Launched)
    }

    fn insert(tasks: &mut Tasks, task: Task) {
        tasks.insert(task.name.to_string(), task);
    }

    #[test]
    fn places_stay_ordered_after_any_change() {
        let mut tasks = Tasks::default();
        let mut expected = BTreeSet::new();
        for step in 0..600_u32 {
            let (run, index, attempt) = (u64::from(step % 3), step * 37 % 5_000, step % 2);
            insert(&mut tasks, task(run, index, attempt));
            expected.insert((run, index, attempt));
            if step % 5 == 0 {
                let gone = *expected.iter().nth(expected.len() / 2).expect("one");
                expected.remove(&gone);
                let id = task(gone.0, gone.1, gone.2).name.to_string();
                assert!(tasks.remove(&id).is_some());
                assert!(tasks.remove(&id).is_none());
            }
        }
        let expected: Vec<_> = expected.into_iter().collect();
        let key = |place: TaskOrder| (place.run, place.index, place.attempt);
        let places: Vec<_> = tasks.places_behind(None).map(key).collect();
        assert_eq!((&places, tasks.len()), (&expected, expected.len()));
        for most in 0..expected.len() + 3 {
            let last = tasks.last_of(most);
            let behind: Vec<_> = tasks.places_behind(last).map(key).collect();
            assert_eq!(behind, expected[most.min(expected.len())..]);
        }
        for place in tasks.places_behind(None) {
            let name = tasks.at("a", place).expect("a task").1.name.clone();
            assert_eq!(TaskOrder::from_name(&name), place);
            assert_eq!(place.to_string().parse(), Ok(place));
            let same = |task: &Task| (task.name.run, task.name.index) == (place.run, place.index);
            let of_index: Vec<_> = tasks.of_index("a", place.run, place.index).collect();
            assert!(of_index.iter().all(|task| same(task)));
            assert_eq!(
                of_index.len(),
                tasks.values().filter(|one| same(one)).count()
            );
        }
        for text in [
            "",
            "1.2.3",
            "1.2.3.4.5.6",
            "1.2.3.x",
            "1.2.3.4.x",
            "1.-2.3.4",
        ] {
            assert_eq!(text.parse::<TaskOrder>(), Err(NoPlace), "{text}");
        }
    }

    #[test]
    fn far_page_skips_earlier_tasks_cheaply() {
        let mut tasks = Tasks::default();
        for index in 0..50_000 {
            insert(&mut tasks, task(0, index, 1));
        }
        PASSED.set(0);
        let last = tasks.last_of(49_900).expect("a task");
        assert_eq!(last.index, 49_899);
        assert!(PASSED.get() <= 50 + BLOCK as usize, "{}", PASSED.get());
        assert_eq!(tasks.places_behind(Some(last)).count(), 100);
    }
}
