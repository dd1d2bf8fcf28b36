//! A walk over the active roles, in the order of the sorter.
//!
//! Invariant: the order does not change during a walk.

use crate::roles::{RoleKey, RoleTree};
use crate::sorter::{NodeKey, Sorter};

/// Walks the active roles in order.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// The nodes whose children are being walked, with the positions.
    stack: Vec<(NodeKey, usize)>,
    /// The order of a random sorter, which replaces the stack.
    shuffled: Option<std::vec::IntoIter<RoleKey>>,
}

impl Walk {
    pub(crate) fn start(&mut self, sorter: &Sorter) {
        self.stack.clear();
        self.stack.push((sorter.root(), 0));
        self.shuffled = None;
    }

    /// Walks these roles instead.
    pub(crate) fn shuffle(&mut self, roles: Vec<RoleKey>) {
        self.shuffled = Some(roles.into_iter());
    }

    #[inline]
    pub(crate) fn next(&mut self, sorter: &Sorter, roles: &RoleTree) -> Option<RoleKey> {
        self.next_where(sorter, roles, |_| false)
    }

    /// The next role, without the descendants of skipped nodes.
    #[inline]
    pub(crate) fn next_where(
        &mut self,
        sorter: &Sorter,
        roles: &RoleTree,
        mut is_passed_over: impl FnMut(NodeKey) -> bool,
    ) -> Option<RoleKey> {
        if let Some(shuffled) = &mut self.shuffled {
            return shuffled.find(|role| !is_passed_over(roles[*role].own));
        }
        while let Some((node, position)) = self.stack.last_mut() {
            let mut left = sorter
                .order(*node)
                .get(*position..)
                .unwrap_or_default()
                .iter();
            let child = left.find(|child| {
                *position += 1;
                !is_passed_over(**child)
            });
            let Some(child) = child.copied() else {
                self.stack.pop();
                continue;
            };
            let role = sorter.tag(child);
            if roles[role].own == child {
                return Some(role);
            }
            self.stack.push((child, 0));
        }
        None
    }
}
