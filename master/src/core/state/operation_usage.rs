//! The unacknowledged operations of one agent: in total, and by framework.
//!
//! Invariant: no framework uses more than a quarter of the limits, and all frameworks together leave operators a
//! quarter of the number and half of the bytes.

use std::collections::BTreeMap;

use meseta_resources::{AgentId, FrameworkId};

use super::operation::{OPERATION_BYTES_PER_AGENT_MAX, OPERATIONS_PER_AGENT_MAX, OperationRecord};

/// The number of operations, and their size in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    count: usize,
    bytes: usize,
}

impl Tally {
    /// Whether another operation of this size exceeds the limit. A single operation that is too long fails another
    /// check.
    const fn is_full(self, bytes: usize, max: Self) -> bool {
        self.count >= max.count || self.bytes > 0 && self.bytes + bytes > max.bytes
    }
}

/// The limit of all operations together.
const ALL: Tally = Tally {
    count: OPERATIONS_PER_AGENT_MAX,
    bytes: OPERATION_BYTES_PER_AGENT_MAX,
};
/// The limit of all frameworks together.
const OF_FRAMEWORKS: Tally = Tally {
    count: ALL.count / 4 * 3,
    bytes: ALL.bytes / 2,
};
/// The limit of one framework.
const OF_FRAMEWORK: Tally = Tally {
    count: ALL.count / 4,
    bytes: ALL.bytes / 4,
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::core) struct OperationUsage {
    all: Tally,
    by_framework: BTreeMap<FrameworkId, Tally>,
}

impl OperationUsage {
    pub(in crate::core) fn add(&mut self, record: &OperationRecord) {
        let bytes = record.bytes();
        let own = record.framework_id.as_ref();
        let own = own.map(|id| self.by_framework.entry(id.clone()).or_default());
        for tally in own.into_iter().chain([&mut self.all]) {
            tally.count += 1;
            tally.bytes += bytes;
        }
    }

    pub(in crate::core) fn remove(&mut self, record: &OperationRecord) {
        let bytes = record.bytes();
        let id = record.framework_id.as_ref();
        let own = id.and_then(|id| self.by_framework.get_mut(id));
        for tally in own.into_iter().chain([&mut self.all]) {
            tally.count = tally.count.saturating_sub(1);
            tally.bytes = tally.bytes.saturating_sub(bytes);
        }
        if let Some(id) = id
            && self.by_framework.get(id).is_some_and(|own| own.count == 0)
        {
            self.by_framework.remove(id);
        }
    }

    /// The reason to refuse a framework, or an operator, another operation of this size on the agent.
    pub(in crate::core) fn refusal(
        &self,
        agent: &AgentId,
        framework: Option<&FrameworkId>,
        bytes: usize,
    ) -> Option<String> {
        let own = framework.and_then(|id| self.by_framework.get(id).copied());
        let is_full = match framework {
            Some(_) => {
                self.all.is_full(bytes, OF_FRAMEWORKS)
                    || own.unwrap_or_default().is_full(bytes, OF_FRAMEWORK)
            }
            None => self.all.is_full(bytes, ALL),
        };
        let most = self.by_framework.iter().max_by_key(|(_, own)| own.count);
        let most = most.map_or_else(String::new, |(id, own)| {
            format!(", {} of them of framework {id}", own.count)
        });
        let Tally { count, bytes } = self.all;
        is_full.then(|| {
            format!(
                "Agent {agent} has {count} operations of {bytes} bytes whose end is not acknowledged{most}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use meseta_proto::mesos::v1::offer::Operation;

    use super::*;

    #[test]
    fn unacknowledged_operations_leave_slots_for_others() {
        let agent = AgentId::new("agent").expect("a valid id");
        let [a, b] = ["a", "b"].map(|id| FrameworkId::new(id).expect("a valid id"));
        let record = |id: Option<&FrameworkId>| {
            OperationRecord::new([7; 16], id.cloned(), agent.clone(), Operation::default())
        };
        let mut usage = OperationUsage::default();
        let mut taken = 0;
        while usage.refusal(&agent, Some(&a), 100).is_none() {
            usage.add(&record(Some(&a)));
            taken += 1;
        }
        assert_eq!(taken, OPERATIONS_PER_AGENT_MAX / 4);
        assert_eq!(usage.refusal(&agent, Some(&b), 100), None);
        assert_eq!(usage.refusal(&agent, None, 100), None);
        for number in 0..2 {
            let other = FrameworkId::new(&format!("f{number}")).expect("a valid id");
            for _ in 0..taken {
                usage.add(&record(Some(&other)));
            }
        }
        let refusal = usage.refusal(&agent, Some(&b), 100);
        assert!(refusal.is_some_and(|text| text.contains("5000 of them of framework")));
        assert_eq!(usage.refusal(&agent, None, 100), None);
        let kept = usage.clone();
        usage.add(&record(None));
        usage.remove(&record(None));
        assert_eq!(usage, kept);
    }
}
