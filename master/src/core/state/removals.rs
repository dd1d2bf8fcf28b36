//! Ids of removed frameworks, which are never assigned again.
//!
//! The number of stored removals is limited. Above the limit, the oldest removal of the owner with most is forgotten,
//! so that one owner's many frameworks do not displace another's. Frameworks ended by operators count apart from
//! those ended by their owner, so the owner cannot displace the former. A local user is one owner, whatever
//! principals it claims. Invariant: each id is in one group, and the groups are exactly those of `by_size`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use meseta_resources::FrameworkId;

use super::ownership::Identity;
use super::persisted::RemovedRecord;

/// The number of stored removals. An agent that is absent while so many frameworks are removed brings its own
/// framework back.
pub(in crate::core) const REMOVED_MAX: usize = 10_000;

/// The removals that share one part of the limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) struct RemovalGroup {
    /// The owner of the frameworks, or an unknown identity.
    pub(in crate::core) owner: Identity,
    /// Whether operators who are not the owner ended the frameworks.
    pub(in crate::core) by_operator: bool,
}

impl RemovalGroup {
    pub(in crate::core) fn from_record(record: &RemovedRecord) -> Self {
        // A principal beside a user is unproven: otherwise one user could get a share for each name that it claims.
        let principal = record.principal.as_ref();
        let principal = principal.filter(|_| record.user.is_none());
        Self {
            owner: Identity {
                principal: principal.cloned(),
                user: record.user,
            },
            by_operator: record.by_operator,
        }
    }
}

/// The size of a group, the reversed number of its oldest removal, and the group. The greatest entry loses its oldest
/// removal.
type Size = (usize, Reverse<u64>, Arc<RemovalGroup>);

#[derive(Debug, Default)]
pub(in crate::core) struct Removals {
    ids: BTreeSet<FrameworkId>,
    /// The removals of each group, oldest first, with their numbers.
    groups: BTreeMap<Arc<RemovalGroup>, VecDeque<(u64, FrameworkId)>>,
    by_size: BTreeSet<Size>,
    /// The number of the next removal.
    next: u64,
}

impl Removals {
    pub(in crate::core) fn contains(&self, id: &FrameworkId) -> bool {
        self.ids.contains(id)
    }

    pub(in crate::core) fn ids(&self) -> impl Iterator<Item = &FrameworkId> {
        self.ids.iter()
    }

    /// Records a new removal as the newest. Returns the removal that is forgotten for it.
    pub(in crate::core) fn insert(
        &mut self,
        id: FrameworkId,
        group: RemovalGroup,
    ) -> Option<FrameworkId> {
        if !self.ids.insert(id.clone()) {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.change(&Arc::new(group), |members| members.push_back((number, id)));
        if self.ids.len() <= REMOVED_MAX {
            return None;
        }
        let (.., largest) = self.by_size.last().cloned()?;
        let (_, forgotten) = self.change(&largest, VecDeque::pop_front)?;
        self.ids.remove(&forgotten);
        Some(forgotten)
    }

    fn change<T>(
        &mut self,
        group: &Arc<RemovalGroup>,
        change: impl FnOnce(&mut VecDeque<(u64, FrameworkId)>) -> T,
    ) -> T {
        let known = self.groups.remove_entry(group);
        let (group, mut members) = known.unwrap_or_else(|| (group.clone(), VecDeque::new()));
        let size = |members: &VecDeque<(u64, FrameworkId)>| {
            let (oldest, _) = members.front()?;
            Some((members.len(), Reverse(*oldest), group.clone()))
        };
        if let Some(before) = size(&members) {
            self.by_size.remove(&before);
        }
        let changed = change(&mut members);
        if let Some(after) = size(&members) {
            self.by_size.insert(after);
            self.groups.insert(group, members);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(principal: &str, by_operator: bool) -> RemovalGroup {
        RemovalGroup {
            owner: Identity {
                principal: Some(principal.to_owned()),
                user: None,
            },
            by_operator,
        }
    }

    fn id(name: &str, number: usize) -> FrameworkId {
        FrameworkId::new(&format!("{name}-{number}")).expect("an id")
    }

    #[test]
    fn forgets_oldest_removal_of_largest_owner() {
        let mut removals = Removals::default();
        let (ended, own) = (group("mallory", true), group("mallory", false));
        removals.insert(id("ended", 0), ended);
        removals.insert(id("ada", 0), group("ada", false));
        for number in 0..3 * REMOVED_MAX {
            let forgotten = removals.insert(id("own", number), own.clone());
            let expected = number.checked_sub(REMOVED_MAX - 2);
            assert_eq!(forgotten, expected.map(|oldest| id("own", oldest)));
        }
        assert!(removals.contains(&id("ended", 0)) && removals.contains(&id("ada", 0)));
        assert_eq!(removals.ids().count(), REMOVED_MAX);
        assert_eq!(removals.insert(id("ada", 0), own), None, "it is known");
        assert!(removals.contains(&id("own", 2 * REMOVED_MAX + 2)));
    }

    #[test]
    fn local_user_has_one_removal_share() {
        let record = |user: u32, principal: String| RemovedRecord {
            user: Some(user),
            principal: Some(principal),
            ..RemovedRecord::default()
        };
        let mut removals = Removals::default();
        for number in 0..3 {
            let group = RemovalGroup::from_record(&record(1_000, "ada".to_owned()));
            removals.insert(id("ada", number), group);
        }
        for number in 0..REMOVED_MAX {
            let group = RemovalGroup::from_record(&record(1_001, format!("claimed {number}")));
            let forgotten = removals.insert(id("f", number), group);
            let expected = number.checked_sub(REMOVED_MAX - 3);
            assert_eq!(forgotten, expected.map(|oldest| id("f", oldest)));
        }
        let named = RemovedRecord {
            principal: Some("ada".to_owned()),
            ..RemovedRecord::default()
        };
        assert_eq!(RemovalGroup::from_record(&named), group("ada", false));
    }

    #[test]
    fn equal_owners_lose_oldest_removal() {
        let mut removals = Removals::default();
        for number in 0..=REMOVED_MAX {
            // The names have the reverse order.
            let owner = group(&format!("{:05}", REMOVED_MAX - number), false);
            let forgotten = removals.insert(id("f", number), owner);
            assert_eq!(forgotten, (number == REMOVED_MAX).then(|| id("f", 0)));
        }
        assert_eq!(removals.groups.len(), REMOVED_MAX);
        assert_eq!(removals.by_size.len(), REMOVED_MAX);
    }
}
