//! The memory of unacknowledged operations on all agents: in total, and by framework.
//!
//! `operation_usage` limits the operations of one agent. Invariant: no framework uses more than it leaves to the
//! other frameworks, and all frameworks leave operators a quarter. Operations that agents report and this master did
//! not apply count up to a quarter, so that no report prevents new operations.

use std::collections::BTreeMap;

use meseta_proto::{Invalid, invalid};
use meseta_resources::FrameworkId;

use super::operation::{OperationRecord, memory_of_operation};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::core) struct OperationMemory {
    all: usize,
    of_frameworks: usize,
    adopted: usize,
    by_framework: BTreeMap<FrameworkId, usize>,
}

impl OperationMemory {
    pub(in crate::core) fn add(&mut self, record: &OperationRecord) {
        self.all += record.memory;
        if record.is_adopted {
            self.adopted += record.memory;
        }
        if let Some(id) = record.framework_id.as_ref().filter(|_| record.memory > 0) {
            self.of_frameworks += record.memory;
            *self.by_framework.entry(id.clone()).or_default() += record.memory;
        }
    }

    pub(in crate::core) fn remove(&mut self, record: &OperationRecord) {
        self.all = self.all.saturating_sub(record.memory);
        if record.is_adopted {
            self.adopted = self.adopted.saturating_sub(record.memory);
        }
        let Some(id) = &record.framework_id else {
            return;
        };
        self.of_frameworks = self.of_frameworks.saturating_sub(record.memory);
        if let Some(own) = self.by_framework.get_mut(id) {
            *own = own.saturating_sub(record.memory);
            if *own == 0 {
                self.by_framework.remove(id);
            }
        }
    }

    /// The memory left for operations that agents report, in bytes.
    pub(in crate::core) fn left_for_adopted(&self, max: usize) -> usize {
        (max / 4).saturating_sub(self.adopted)
    }

    /// Checks that a framework, or an operator, may have another operation of this encoded size.
    pub(in crate::core) fn check(
        &self,
        framework: Option<&FrameworkId>,
        encoded_bytes: usize,
        max: usize,
    ) -> Result<(), Invalid> {
        let bytes = memory_of_operation(encoded_bytes);
        let left = (max / 4 * 3).checked_sub(self.of_frameworks + bytes);
        let has_room = self.all + bytes <= max && (framework.is_none() || left.is_some());
        if !has_room {
            return Err(invalid!(
                "The operations on all agents whose end is not acknowledged take {} bytes, {} of them those of \
                 frameworks; the limit is {max}, a part of the master's --memory_budget",
                self.all,
                self.of_frameworks
            ));
        }
        let left = left.unwrap_or_default();
        let own = framework.and_then(|id| self.by_framework.get(id).copied());
        let own = own.unwrap_or_default();
        if own > 0 && own + bytes > left {
            return Err(invalid!(
                "The framework's operations on all agents whose end it has not acknowledged take {own} bytes, and \
                 {left} are left for those of all other frameworks; the limit is a part of the master's \
                 --memory_budget"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use meseta_proto::mesos::v1::offer::Operation;
    use meseta_resources::AgentId;

    use super::*;

    #[test]
    fn unacknowledged_operations_leave_memory_for_others() {
        let agent = AgentId::new("agent").expect("a valid id");
        let framework = |name: &str| FrameworkId::new(name).expect("a valid id");
        let record = |id: Option<FrameworkId>| {
            OperationRecord::new([7; 16], id, agent.clone(), Operation::default())
        };
        let max = 64 * memory_of_operation(0);
        let mut memory = OperationMemory::default();
        let mut taken = Vec::new();
        for name in ["a", "b", "c"] {
            let id = framework(name);
            let before = memory.of_frameworks;
            while memory.check(Some(&id), 0, max).is_ok() {
                memory.add(&record(Some(id.clone())));
            }
            taken.push((memory.of_frameworks - before) / memory_of_operation(0));
        }
        assert_eq!(taken, [24, 12, 6], "of 48, each half of what is left");
        let mut of_operators = 0;
        while memory.check(None, 0, max).is_ok() {
            memory.add(&record(None));
            of_operators += 1;
        }
        assert_eq!(of_operators, 64 - 42);
        for (name, many) in ["a", "b", "c"].into_iter().zip(taken) {
            for _ in 0..many {
                memory.remove(&record(Some(framework(name))));
            }
        }
        for _ in 0..of_operators {
            memory.remove(&record(None));
        }
        assert_eq!(memory, OperationMemory::default());
    }
}
