//! Weighted dominant-resource fairness over a tree: orders siblings so that the one furthest below its share comes
//! first.
//!
//! Callers enter through [`Sorter::settle`] and [`Sorter::order`]; only the accounting feeds it. The sorter knows
//! nothing of agents, offers or clocks. Invariant: a node's share is a function of its allocation, its weight and the
//! totals alone; siblings are ordered by (share, number of allocations, name), so two sorters fed the same calls
//! agree to the last unit. Inner nodes are roles; `.` below a role stands for its own frameworks, which compete with
//! its sub-roles; leaves are frameworks.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::profile::{ProfileKey, UNKNOWN};
use crate::slab::{Key, KeyMap, Slab, at, key_of};

/// A node of the tree.
pub type NodeKey = Key;

/// A kind of resource: an interned name.
pub type Kind = Key;

/// With fewer nodes, comparing names is cheaper than numbering the nodes.
const RANKED_MIN: usize = 32;

/// With at least this many touched nodes, more than one in `RESORT_PART` of all, a new sort of all siblings is
/// cheaper than moving each.
const RESORT_MIN: usize = 32;
const RESORT_PART: usize = 4;

/// The number of stale entries in the list of touched nodes, on top of twice the number of nodes, that triggers a
/// cleanup.
const REMOVED_LISTED_MAX: usize = 64;

#[derive(Clone, Debug)]
pub struct Sorter {
    nodes: Slab<Node>,
    /// The sort keys of the last placement: a separate vector, since comparing is most of the work.
    keys: Vec<SortKey>,
    /// The common profile of the frameworks below each node, set by the owner. A separate vector, since walks read it
    /// for most nodes.
    profiles: Vec<ProfileKey>,
    /// Whether a name was added since the last numbering.
    ranks_stale: bool,
    /// The divisors of allocations: the totals, or infinity for kinds that do not count.
    scales: Vec<f64>,
    /// The totals of the cluster, by kind.
    totals: Vec<i64>,
    excluded: Vec<bool>,
    /// Nodes that may be out of place, and some removed nodes whose keys may be in use again. Each node is marked, so
    /// that it is listed once.
    touched: Vec<NodeKey>,
    /// Whether every share may be wrong, because a total or a weight has changed.
    stale: bool,
    root: NodeKey,
}

/// The share, the number of allocations, and the rank of the name. The share is not negative, so its bits sort like
/// the number.
#[derive(Copy, Clone, Debug, Default)]
struct SortKey {
    share: u64,
    count: u64,
    rank: u32,
}

impl SortKey {
    #[inline]
    const fn is_before(&self, that: &Self) -> bool {
        if self.share != that.share {
            self.share < that.share
        } else if self.count != that.count {
            self.count < that.count
        } else {
            self.rank < that.rank
        }
    }
}

/// The sums of weights of active children, valid until the next change.
#[derive(Debug, Default)]
pub(crate) struct SiblingSums(KeyMap<NodeKey, f64>);

#[derive(Clone, Debug)]
struct Node {
    parent: NodeKey,
    name: Arc<str>,
    /// The key of the represented object, chosen by the owner.
    tag: Key,
    weight: f64,
    /// The number of allocations.
    count: u64,
    /// The allocated amounts, by kind.
    allocated: Vec<i64>,
    /// Active children, in order.
    order: Vec<NodeKey>,
    active: bool,
    touched: bool,
    /// The last known position in the order; a hint that may be outdated.
    last_position: u32,
}

impl Default for Sorter {
    fn default() -> Self {
        Self::new()
    }
}

impl Sorter {
    #[must_use]
    pub fn new() -> Self {
        let mut nodes = Slab::default();
        let root = nodes.insert(Node::new(0, "".into(), Key::MAX));
        Self {
            nodes,
            keys: vec![SortKey::default()],
            profiles: vec![UNKNOWN],
            ranks_stale: true,
            scales: Vec::new(),
            totals: Vec::new(),
            excluded: Vec::new(),
            touched: Vec::new(),
            stale: false,
            root,
        }
    }

    #[must_use]
    pub const fn root(&self) -> NodeKey {
        self.root
    }

    /// Adds a new, inactive node. [`Sorter::tag`] returns the tag.
    pub fn add(&mut self, parent: NodeKey, name: Arc<str>, tag: Key) -> NodeKey {
        let key = self.nodes.insert(Node::new(parent, name, tag));
        self.ranks_stale = true;
        if self.keys.len() <= at(key) {
            self.keys.resize(at(key) + 1, SortKey::default());
            self.profiles.resize(at(key) + 1, UNKNOWN);
        }
        self.keys[at(key)] = SortKey::default();
        self.profiles[at(key)] = UNKNOWN;
        key
    }

    #[inline]
    pub(crate) fn profile(&self, node: NodeKey) -> ProfileKey {
        self.profiles[at(node)]
    }

    pub(crate) fn set_profile(&mut self, node: NodeKey, profile: ProfileKey) {
        self.profiles[at(node)] = profile;
    }

    /// Removes a node without children.
    pub fn remove(&mut self, node: NodeKey) {
        self.deactivate(node);
        self.nodes.remove(node);
        // Touched nodes stay in the list until it is long.
        if self.touched.len() > REMOVED_LISTED_MAX + 2 * at(self.nodes.bound()) {
            let nodes = &mut self.nodes;
            self.touched
                .retain(|node| nodes.contains(*node) && std::mem::take(&mut nodes[*node].touched));
            for node in &self.touched {
                nodes[*node].touched = true;
            }
        }
    }

    /// Activates a node and its ancestors.
    pub fn activate(&mut self, node: NodeKey) {
        let mut child = node;
        while child != self.root && !self.nodes[child].active {
            let entry = &mut self.nodes[child];
            entry.active = true;
            let parent = entry.parent;
            self.set_key(child);
            self.insert_ordered(parent, child);
            child = parent;
        }
    }

    /// Deactivates a node, and its ancestors without another active child.
    pub fn deactivate(&mut self, node: NodeKey) {
        let mut child = node;
        while child != self.root && self.nodes[child].active && self.nodes[child].order.is_empty() {
            let parent = self.nodes[child].parent;
            let position = self.position(parent, child);
            self.nodes[parent].order.remove(position);
            self.nodes[child].active = false;
            child = parent;
        }
    }

    pub fn set_weight(&mut self, node: NodeKey, weight: f64) {
        self.nodes[node].weight = weight;
        self.touch(node);
    }

    /// Excludes a kind from all shares, or includes it again.
    pub fn set_excluded(&mut self, kind: Kind, excluded: bool) {
        if self.excluded.len() <= at(kind) {
            self.excluded.resize(at(kind) + 1, false);
        }
        self.excluded[at(kind)] = excluded;
        self.rescale(kind);
    }

    pub fn add_total(&mut self, kind: Kind, amount: i64) {
        if amount == 0 {
            return;
        }
        if self.totals.len() <= at(kind) {
            self.totals.resize(at(kind) + 1, 0);
        }
        self.totals[at(kind)] = self.totals[at(kind)].saturating_add(amount);
        self.rescale(kind);
    }

    #[must_use]
    pub fn total(&self, kind: Kind) -> i64 {
        self.totals.get(at(kind)).copied().unwrap_or(0)
    }

    /// Adds to the allocation of one node, not of its ancestors.
    #[inline]
    pub fn add_allocated(&mut self, node: NodeKey, kind: Kind, amount: i64) {
        let entry = &mut self.nodes[node];
        if entry.allocated.len() <= at(kind) {
            entry.allocated.resize(at(kind) + 1, 0);
        }
        entry.allocated[at(kind)] = entry.allocated[at(kind)].saturating_add(amount);
        self.touch(node);
    }

    /// Like [`Sorter::add_allocated`] for several kinds, with `allocations` more allocations: among equal shares,
    /// fewer allocations come first.
    #[inline]
    pub fn add_all(&mut self, node: NodeKey, changes: &[(Kind, i64)], allocations: u64) {
        let entry = &mut self.nodes[node];
        entry.count += allocations;
        for (kind, amount) in changes {
            match entry.allocated.get_mut(at(*kind)) {
                Some(allocated) => *allocated = allocated.saturating_add(*amount),
                None => entry.first_of_kind(*kind, *amount),
            }
        }
        if !entry.touched {
            entry.touched = true;
            self.touched.push(node);
        }
    }

    #[must_use]
    pub fn allocated(&self, node: NodeKey, kind: Kind) -> i64 {
        self.nodes[node]
            .allocated
            .get(at(kind))
            .copied()
            .unwrap_or(0)
    }

    /// The allocations of the node, by kind.
    pub fn allocations(&self, node: NodeKey) -> impl Iterator<Item = (Kind, i64)> {
        (0..)
            .zip(self.nodes[node].allocated.iter().copied())
            .filter(|entry| entry.1 != 0)
    }

    #[must_use]
    pub fn count(&self, node: NodeKey) -> u64 {
        self.nodes[node].count
    }

    #[inline]
    #[must_use]
    pub fn tag(&self, node: NodeKey) -> Key {
        self.nodes[node].tag
    }

    #[inline]
    #[must_use]
    pub fn parent(&self, node: NodeKey) -> NodeKey {
        self.nodes[node].parent
    }

    #[must_use]
    pub fn is_active(&self, node: NodeKey) -> bool {
        self.nodes[node].active
    }

    /// The share, computed from the allocation, the totals and the weight alone.
    #[must_use]
    pub fn share_of(&self, node: NodeKey) -> f64 {
        let node = &self.nodes[node];
        let parts = node.allocated.iter().zip(&self.scales);
        let share = parts.fold(0.0_f64, |share, (allocated, scale)| {
            share.max(*allocated as f64 / scale)
        });
        share / node.weight
    }

    fn rescale(&mut self, kind: Kind) {
        self.stale = true;
        if self.scales.len() <= at(kind) {
            self.scales.resize(at(kind) + 1, f64::INFINITY);
        }
        let total = self.total(kind);
        let counts = total > 0 && !self.excluded.get(at(kind)).copied().unwrap_or(false);
        self.scales[at(kind)] = if counts { total as f64 } else { f64::INFINITY };
    }

    /// The active children of a node, in the order of the last [`Sorter::settle`].
    #[inline]
    #[must_use]
    pub fn order(&self, node: NodeKey) -> &[NodeKey] {
        &self.nodes[node].order
    }

    /// Stores a node's position in its parent's order, to find the node faster.
    #[inline]
    pub(crate) fn note_position(&mut self, node: NodeKey, position: usize) {
        self.nodes[node].last_position = key_of(position);
    }

    /// Whether every node is in its position.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !self.stale && self.touched.is_empty()
    }

    /// Moves every node to its position: only changed nodes move, unless a total changed.
    #[inline]
    pub fn settle(&mut self) {
        if self.ranks_stale && at(self.nodes.bound()) > RANKED_MIN {
            self.rank_names();
        }
        let many = self.touched.len() > RESORT_MIN
            && self.touched.len() > at(self.nodes.bound()) / RESORT_PART;
        if self.stale || many {
            self.settle_all();
        }
        while let Some(node) = self.touched.pop() {
            if !self.nodes.contains(node) {
                continue;
            }
            let entry = &mut self.nodes[node];
            entry.touched = false;
            // An only child is in its position whatever its key; `position` handles the arrival of another child.
            let (active, parent) = (entry.active, entry.parent);
            if active && self.nodes[parent].order.len() > 1 {
                self.settle_one(node);
            }
        }
    }

    fn settle_one(&mut self, node: NodeKey) {
        let entry = &self.nodes[node];
        let (parent, count) = (entry.parent, entry.count);
        let old = self.keys[at(node)];
        let share = self.share_of(node).to_bits();
        let new = SortKey {
            share,
            count,
            ..old
        };
        if (old.share, old.count) == (share, count) {
            return;
        }
        let from = self.position(parent, node);
        self.keys[at(node)] = new;
        // The siblings are sorted on both sides of the old position: search only the side of the move.
        let forward = old.is_before(&new);
        let order = &self.nodes[parent].order;
        let to = if forward {
            from + self.count_before(&order[from + 1..], node)
        } else {
            self.count_before(&order[..from], node)
        };
        let order = &mut self.nodes[parent].order;
        // A hand-written move: rotating costs several times as much.
        if forward {
            order.copy_within(from + 1..=to, from);
        } else {
            order.copy_within(to..from, to + 1);
        }
        order[to] = node;
    }

    /// Numbers all names in their order, so that equal shares need no comparison of texts.
    fn rank_names(&mut self) {
        self.ranks_stale = false;
        let mut nodes: Vec<NodeKey> = self.nodes.iter().map(|(node, _)| node).collect();
        nodes.sort_unstable_by(|a, b| self.nodes[*a].name.cmp(&self.nodes[*b].name));
        for (rank, node) in (0..).zip(nodes) {
            self.keys[at(node)].rank = rank;
        }
    }

    fn settle_all(&mut self) {
        self.stale = false;
        for node in 0..self.nodes.bound() {
            if self.nodes.contains(node) && self.nodes[node].active {
                self.set_key(node);
            }
        }
        while let Some(node) = self.touched.pop() {
            if self.nodes.contains(node) {
                self.nodes[node].touched = false;
            }
        }
        for node in 0..self.nodes.bound() {
            if self.nodes.contains(node) && self.nodes[node].order.len() > 1 {
                let mut order = std::mem::take(&mut self.nodes[node].order);
                if !order.is_sorted_by(|a, b| self.compare(*a, *b).is_lt()) {
                    order.sort_by(|a, b| self.compare(*a, *b));
                }
                self.nodes[node].order = order;
            }
        }
    }

    #[inline]
    fn touch(&mut self, node: NodeKey) {
        let entry = &mut self.nodes[node];
        if !entry.touched {
            entry.touched = true;
            self.touched.push(node);
        }
    }

    fn insert_ordered(&mut self, parent: NodeKey, child: NodeKey) {
        if let [only] = self.nodes[parent].order[..] {
            self.set_key(only);
        }
        let position = self.count_before(&self.nodes[parent].order, child);
        self.nodes[parent].order.insert(position, child);
    }

    fn position(&self, parent: NodeKey, child: NodeKey) -> usize {
        let order = &self.nodes[parent].order;
        let last_position = at(self.nodes[child].last_position);
        if order.get(last_position) == Some(&child) {
            return last_position;
        }
        self.count_before(order, child)
    }

    /// Sets the node's sort key from its current share and count.
    fn set_key(&mut self, node: NodeKey) {
        let share = self.share_of(node).to_bits();
        let key = &mut self.keys[at(node)];
        (key.share, key.count) = (share, self.nodes[node].count);
    }

    /// The number of these sorted siblings that stand before the node.
    #[inline]
    fn count_before(&self, siblings: &[NodeKey], node: NodeKey) -> usize {
        if self.ranks_stale {
            return siblings.partition_point(|other| self.compare(*other, node).is_lt());
        }
        let key = self.keys[at(node)];
        siblings.partition_point(|other| self.keys[at(*other)].is_before(&key))
    }

    /// Compares two nodes by the keys of their last placement.
    #[inline]
    fn compare(&self, a: NodeKey, b: NodeKey) -> Ordering {
        let (left, right) = (&self.keys[at(a)], &self.keys[at(b)]);
        let order = (left.share, left.count).cmp(&(right.share, right.count));
        order.then_with(|| {
            if self.ranks_stale {
                self.nodes[a].name.cmp(&self.nodes[b].name)
            } else {
                left.rank.cmp(&right.rank)
            }
        })
    }

    /// Compares two nodes in the order of a walk of the whole tree.
    pub(crate) fn compare_in_walk(&self, a: NodeKey, b: NodeKey) -> Ordering {
        if self.nodes[a].parent == self.nodes[b].parent {
            return self.compare(a, b);
        }
        let (left, right) = (self.path(a), self.path(b));
        let fork = left.iter().zip(&right).find(|(a, b)| a != b);
        fork.map_or(left.len().cmp(&right.len()), |(a, b)| self.compare(*a, *b))
    }

    /// The path from below the root down to the node.
    fn path(&self, node: NodeKey) -> Vec<NodeKey> {
        let mut path = vec![node];
        let mut next = node;
        while self.nodes[next].parent != self.root {
            next = self.nodes[next].parent;
            path.push(next);
        }
        path.reverse();
        path
    }

    /// The product, along the path, of a node's part of the weight of its active siblings: the chance in a random
    /// order. Reuses known sums.
    pub(crate) fn relative_weight(&self, node: NodeKey, sums: &mut SiblingSums) -> f64 {
        let mut relative = 1.0;
        let mut next = node;
        while next != self.root {
            let entry = &self.nodes[next];
            let sum = sums.0.entry(entry.parent).or_insert_with(|| {
                let siblings = self.nodes[entry.parent].order.iter();
                siblings.map(|sibling| self.nodes[*sibling].weight).sum()
            });
            relative *= entry.weight / *sum;
            next = entry.parent;
        }
        relative
    }
}

impl Node {
    const fn new(parent: NodeKey, name: Arc<str>, tag: Key) -> Self {
        Self {
            parent,
            name,
            tag,
            weight: 1.0,
            count: 0,
            allocated: Vec::new(),
            order: Vec::new(),
            active: false,
            touched: false,
            last_position: 0,
        }
    }

    #[cold]
    fn first_of_kind(&mut self, kind: Kind, amount: i64) {
        self.allocated.resize(at(kind) + 1, 0);
        self.allocated[at(kind)] = amount;
    }
}
