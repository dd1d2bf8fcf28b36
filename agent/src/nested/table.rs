//! Table of nested containers: running ones, and ended ones until WAIT and REMOVE.
//!
//! A framework may have up to half of the free entries, up to a limit of its own. Invariant: a new entry never replaces
//! a running container. Of the ended ones it replaces only the oldest of its own framework, or those of executors that
//! are gone.

use std::collections::BTreeMap;

use meseta_resources::{ContainerId, FrameworkId};

use super::NestedError;
use crate::checkpoint::RunKey;

/// The most entries of all frameworks together.
const ENTRIES_MAX: usize = 4096;
const OF_FRAMEWORK_MAX: usize = 1024;
/// The divisor for the free entries that a framework may take.
const FRAMEWORK_PART: usize = 2;

/// The table of this module; `N` is the state of a container.
#[derive(Debug)]
pub(super) struct NestedTable<N> {
    entries: BTreeMap<ContainerId, Entry<N>>,
    counts: BTreeMap<FrameworkId, usize>,
    /// The number of launches, which gives the order of the entries.
    launches: u64,
}

#[derive(Debug)]
struct Entry<N> {
    framework: FrameworkId,
    /// The id of the executor's own container.
    outermost: ContainerId,
    order: u64,
    /// The state of the container; `None` while it is launched.
    one: Option<N>,
}

impl<N> Default for NestedTable<N> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            counts: BTreeMap::new(),
            launches: 0,
        }
    }
}

impl<N> NestedTable<N> {
    pub(super) fn get(&self, id: &ContainerId) -> Option<&N> {
        self.entries.get(id)?.one.as_ref()
    }

    /// The launched containers with their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ContainerId, &N)> {
        let entries = self.entries.iter();
        entries.filter_map(|(id, entry)| Some((id, entry.one.as_ref()?)))
    }

    /// Reserves an id. `is_there` tells whether an executor's or a task's own container has the id.
    pub(super) fn reserve(
        &mut self,
        id: &ContainerId,
        run: &RunKey,
        has_ended: impl Fn(&N) -> bool,
        is_there: impl Fn(&ContainerId) -> bool,
    ) -> Result<(), NestedError> {
        if self.entries.contains_key(id) || is_there(id) {
            return Err(NestedError::Exists);
        }
        if !self.has_capacity(&run.framework) {
            self.forget_abandoned(&has_ended, is_there);
        }
        if !self.has_capacity(&run.framework) && !self.forget_oldest(&run.framework, has_ended) {
            let text = "too many nested containers run: wait until some nested containers of \
                this framework end";
            return Err(NestedError::Failed(text.to_owned()));
        }
        self.launches += 1;
        let entry = Entry {
            framework: run.framework.clone(),
            outermost: run.container.clone(),
            order: self.launches,
            one: None,
        };
        self.entries.insert(id.clone(), entry);
        *self.counts.entry(run.framework.clone()).or_default() += 1;
        Ok(())
    }

    /// Adds the launched container of a reserved id.
    pub(super) fn keep(&mut self, id: &ContainerId, one: N) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.one = Some(one);
        }
    }

    pub(super) fn remove(&mut self, id: &ContainerId) {
        let Some(entry) = self.entries.remove(id) else {
            return;
        };
        if let Some(count) = self.counts.get_mut(&entry.framework) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&entry.framework);
            }
        }
    }

    fn has_capacity(&self, framework: &FrameworkId) -> bool {
        let own = self.counts.get(framework).copied().unwrap_or_default();
        let free = ENTRIES_MAX.saturating_sub(self.entries.len());
        own < OF_FRAMEWORK_MAX.min(free.div_ceil(FRAMEWORK_PART))
    }

    /// Forgets the ended container of a framework that was launched first.
    fn forget_oldest(&mut self, framework: &FrameworkId, has_ended: impl Fn(&N) -> bool) -> bool {
        let own = self.entries.iter().filter(|(_, entry)| {
            entry.framework == *framework && entry.one.as_ref().is_some_and(&has_ended)
        });
        let oldest = own.min_by_key(|(_, entry)| entry.order);
        let Some(oldest) = oldest.map(|(id, _)| id.clone()) else {
            return false;
        };
        self.remove(&oldest);
        true
    }

    /// Forgets all containers that ended with their executors, since nobody may wait for them.
    fn forget_abandoned(
        &mut self,
        has_ended: impl Fn(&N) -> bool,
        is_there: impl Fn(&ContainerId) -> bool,
    ) {
        let entries = self.entries.iter();
        let abandoned = entries.filter(|(_, entry)| {
            entry.one.as_ref().is_some_and(&has_ended) && !is_there(&entry.outermost)
        });
        let abandoned: Vec<_> = abandoned.map(|(id, _)| id.clone()).collect();
        for id in abandoned {
            self.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use meseta_resources::{AgentId, ExecutorId};

    use super::*;

    /// A table that only stores whether a container has ended.
    type TestTable = NestedTable<bool>;

    fn run(framework: &str) -> RunKey {
        RunKey {
            agent: AgentId::new("agent").expect("valid"),
            framework: FrameworkId::new(framework).expect("valid"),
            executor: ExecutorId::new("executor").expect("valid"),
            container: id(framework),
        }
    }

    fn id(text: &str) -> ContainerId {
        ContainerId::new(text).expect("valid")
    }

    fn reserve(all: &mut TestTable, framework: &str, name: &str) -> bool {
        let there = ["a", "b", "c", "other", "a+task"];
        let is_there = |container: &ContainerId| there.contains(&container.as_str());
        all.reserve(&id(name), &run(framework), |ended| *ended, is_there)
            .is_ok()
    }

    /// Fills the table with as many containers as a framework may have.
    fn fill(all: &mut TestTable, framework: &str, ended: Option<bool>) -> usize {
        for number in 0.. {
            let name = format!("{framework}-{number}");
            if !all.has_capacity(&run(framework).framework) {
                return number;
            }
            assert!(reserve(all, framework, &name));
            if let Some(ended) = ended {
                all.keep(&id(&name), ended);
            }
        }
        unreachable!("there is a bound")
    }

    #[test]
    fn unfinished_launches_leave_others_room() {
        let mut all = TestTable::default();
        for framework in ["a", "b", "c"] {
            assert!(fill(&mut all, framework, None) >= 600);
            assert!(!reserve(&mut all, framework, "one-more"));
        }
        assert!(reserve(&mut all, "other", "first"));
        assert!(!reserve(&mut all, "other", "first"), "it is there");
        all.remove(&id("c-7"));
        all.remove(&id("c-8"));
        assert!(reserve(&mut all, "c", "one-more"));
    }

    /// A launch with the id of a task's own container would fail, and the undo would affect that container.
    #[test]
    fn id_of_task_container_is_taken() {
        let mut all = TestTable::default();
        assert!(!reserve(&mut all, "a", "a+task"));
        assert!(reserve(&mut all, "a", "a+other"));
    }

    #[test]
    fn oldest_own_ended_entry_is_evicted() {
        let mut all = TestTable::default();
        // By name the last of them is the oldest.
        assert!(reserve(&mut all, "a", "z"));
        all.keep(&id("z"), true);
        let (before, others) = (
            fill(&mut all, "a", Some(true)),
            fill(&mut all, "b", Some(true)),
        );
        assert!(before > 1000 && others > 1000);
        assert!(reserve(&mut all, "a", "new"));
        assert!(all.get(&id("z")).is_none() && all.get(&id("a-0")).is_some());
        assert_eq!(all.counts[&run("b").framework], others);
        // Running containers stay.
        let mut all = TestTable::default();
        fill(&mut all, "a", Some(false));
        assert!(!reserve(&mut all, "a", "new"));
    }

    #[test]
    fn entries_of_ended_executor_make_room() {
        let mut all = TestTable::default();
        let kept = fill(&mut all, "gone", Some(true));
        assert!(kept > 1000);
        assert!(reserve(&mut all, "gone", "new"));
        assert_eq!(all.entries.len(), 1);
    }
}
