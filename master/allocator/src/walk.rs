//! A walk over the active roles, in the order of the sorter.
//!
//! Invariant: the order stands still while a walk goes on.

use crate::roles::{RoleKey, RoleTree};
use crate::sorter::{NodeKey, Sorter};

/// Walks the active roles in order.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// Nodes whose children are being walked, and how far.
    stack: Vec<(NodeKey, usize)>,
    /// Instead of the stack, for the random sorter.
    shuffled: Option<std::vec::IntoIter<RoleKey>>,
}

impl Walk {
    pub(crate) fn start(&mut self, sorter: &Sorter) {
        self.stack.clear();
        self.stack.push((sorter.root(), 0));
        self.shuffled = None;
    }

    /// Goes through these instead.
    pub(crate) fn shuffle(&mut self, roles: Vec<RoleKey>) {
        self.shuffled = Some(roles.into_iter());
    }

    #[inline]
    pub(crate) fn next(&mut self, sorter: &Sorter, roles: &RoleTree) -> Option<RoleKey> {
        self.next_where(sorter, roles, |_| false)
    }

    /// The next role, without those below nodes that are passed over.
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
