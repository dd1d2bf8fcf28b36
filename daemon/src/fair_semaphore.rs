//! A fair semaphore: groups of callers share a capacity of bytes, slots or permits, and wait for it.
//!
//! Entered through [`FairSemaphore::take`]. [`Table`] decides, with time as a parameter. Invariants: the next waiter
//! belongs to the group with the fewest permits and waiters; no group starves another; a stalled permit is revoked when
//! others wait, if the rules say so; the number of waiters is bounded.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The owner of a share: a principal, a local user, or a network.
pub type Group = Arc<str>;

/// The pause between two checks for stalled permits, for all waiters together.
const STALL_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The fraction of a permit's units that has to move to count as progress: a sixteenth.
const PROGRESS_PARTS: usize = 16;
/// The number of stall timeouts after which a permit for more than half of the capacity is revoked while others wait,
/// whatever its progress.
const LARGE_STALL_FACTOR: u32 = 2;

/// The rules for the division of the capacity.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The capacity. A larger request is granted only alone.
    pub units_max: usize,
    /// Whether a group must leave others as many units as it has itself, except for its first request.
    pub leaves_half: bool,
    /// The time after which a permit without progress is revoked when others wait.
    pub stall_timeout: Option<Duration>,
    /// Whether the newest waiter of a rank goes first: waiters that wait long already must not keep out newcomers.
    pub newest_first: bool,
    /// The maximum number of waiters of one group.
    pub waiting_of_group_max: usize,
    /// The maximum number of waiters: above it the last in the order are refused.
    pub waiting_max: usize,
}

/// Too many callers wait; the caller should retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Too many requests wait for memory; try again")]
pub struct QueueFull;

/// The semaphore, see the module. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FairSemaphore(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct GroupUsage {
    units: usize,
    holders: usize,
    waiting: usize,
}

#[derive(Debug)]
struct Holder {
    group: Group,
    units: usize,
    since: Instant,
    /// The time of the last progress; `None` if the permit needs no progress.
    last_progress: Option<Instant>,
    /// The units that have moved since.
    units_since_progress: usize,
    revoked: CancellationToken,
}

#[derive(Debug)]
struct Waiter {
    group: Group,
    units: usize,
    granted: oneshot::Sender<CancellationToken>,
}

/// The order of waiters: the permits and waiters of the group, and the order of arrival.
type QueuePosition = (usize, u64);

#[derive(Debug)]
struct Table {
    rules: Rules,
    used: usize,
    groups: BTreeMap<Group, GroupUsage>,
    holders: BTreeMap<u64, Holder>,
    waiters: BTreeMap<QueuePosition, Waiter>,
    next: u64,
    last_stall_check: Option<Instant>,
}

impl Table {
    fn units_of(&self, group: &Group) -> usize {
        self.groups.get(group).map_or(0, |usage| usage.units)
    }

    fn fits(&self, group: &Group, units: usize) -> bool {
        if self.used == 0 {
            return true;
        }
        let free = self.rules.units_max.saturating_sub(self.used);
        let Some(left) = free.checked_sub(units) else {
            return false;
        };
        let own = self.units_of(group);
        own == 0 || !self.rules.leaves_half || own.saturating_add(units) <= left
    }

    fn wait(&mut self, rank: usize, waiter: Waiter) -> QueuePosition {
        let usage = self.groups.entry(waiter.group.clone()).or_default();
        let rank = rank
            .saturating_add(usage.holders)
            .saturating_add(usage.waiting);
        usage.waiting += 1;
        self.next += 1;
        let order = match self.rules.newest_first {
            true => u64::MAX - self.next,
            false => self.next,
        };
        let position = (rank, order);
        self.waiters.insert(position, waiter);
        position
    }

    /// Removes a waiter from the queue.
    fn remove_waiter(&mut self, position: QueuePosition) -> Option<Waiter> {
        let waiter = self.waiters.remove(&position)?;
        self.count_down(&waiter.group, |usage| {
            usage.waiting = usage.waiting.saturating_sub(1);
        });
        Some(waiter)
    }

    fn count_down(&mut self, group: &Group, change: impl FnOnce(&mut GroupUsage)) {
        if let Some(usage) = self.groups.get_mut(group) {
            change(usage);
            if usage.units == 0 && usage.holders == 0 && usage.waiting == 0 {
                self.groups.remove(group);
            }
        }
    }

    /// Grants free units to the waiters, in their order.
    fn admit(&mut self, now: Instant) {
        let mut after = Bound::Unbounded;
        while let Some((position, waiter)) = self.waiters.range((after, Bound::Unbounded)).next() {
            let (position, group, units) = (*position, waiter.group.clone(), waiter.units);
            if waiter.granted.is_closed() {
                self.remove_waiter(position);
            } else if self.fits(&group, units) {
                self.grant(position, now);
            } else if self.revoke_most_stalled(&group, now) {
                // The request may fit now.
                continue;
            } else if self.units_of(&group) == 0 {
                // No waiter overtakes it, or a large request would never find room.
                return;
            }
            after = Bound::Excluded(position);
        }
    }

    fn grant(&mut self, position: QueuePosition, now: Instant) {
        let Some(waiter) = self.remove_waiter(position) else {
            return;
        };
        let revoked = CancellationToken::new();
        if waiter.granted.send(revoked.clone()).is_err() {
            return;
        }
        self.used += waiter.units;
        let usage = self.groups.entry(waiter.group.clone()).or_default();
        usage.units += waiter.units;
        usage.holders += 1;
        let (_, id) = position;
        let holder = Holder {
            group: waiter.group,
            units: waiter.units,
            since: now,
            last_progress: Some(now),
            units_since_progress: 0,
            revoked,
        };
        self.holders.insert(id, holder);
    }

    fn release(&mut self, id: u64) -> Option<Holder> {
        let holder = self.holders.remove(&id)?;
        self.used -= holder.units;
        self.count_down(&holder.group, |usage| {
            usage.units -= holder.units;
            usage.holders -= 1;
        });
        Some(holder)
    }

    /// Whether others may have a holder's units: it has stalled, or it has most of the units and is slow.
    fn is_stalled(&self, holder: &Holder, allowed: Duration, now: Instant) -> bool {
        let Some(last_progress) = holder.last_progress else {
            return false;
        };
        let is_large = holder.units > self.rules.units_max / 2;
        now.saturating_duration_since(last_progress) >= allowed
            || is_large
                && now.saturating_duration_since(holder.since) >= allowed * LARGE_STALL_FACTOR
    }

    /// Revokes the permit that has been stalled longest in the group with the most, unless the group that needs the room
    /// has more.
    fn revoke_most_stalled(&mut self, group: &Group, now: Instant) -> bool {
        let Some(allowed) = self.rules.stall_timeout else {
            return false;
        };
        let own = self.units_of(group);
        let stalled = self.holders.iter().filter(|(_, holder)| {
            let has = self.units_of(&holder.group);
            (has > own || holder.group == *group) && self.is_stalled(holder, allowed, now)
        });
        let victim = stalled.max_by_key(|(id, holder)| {
            let has = self.units_of(&holder.group);
            (has, std::cmp::Reverse((holder.last_progress, **id)))
        });
        let victim = victim.map(|(id, _)| *id);
        let Some(holder) = victim.and_then(|id| self.release(id)) else {
            return false;
        };
        holder.revoked.cancel();
        true
    }

    /// Revokes stalled permits, for all waiters.
    fn revoke_stalled(&mut self, now: Instant) {
        let is_due = |last| now.saturating_duration_since(last) >= STALL_CHECK_INTERVAL;
        if self.last_stall_check.is_none_or(is_due) {
            self.last_stall_check = Some(now);
            self.admit(now);
        }
    }
}

impl FairSemaphore {
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self(Arc::new(Mutex::new(Table {
            rules,
            used: 0,
            groups: BTreeMap::new(),
            holders: BTreeMap::new(),
            waiters: BTreeMap::new(),
            next: 0,
            last_stall_check: None,
        })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[must_use]
    pub fn used(&self) -> usize {
        self.table().used
    }

    #[must_use]
    pub fn limit(&self) -> usize {
        self.table().rules.units_max
    }

    /// Waits for units.
    ///
    /// # Errors
    ///
    /// Too many requests wait already.
    pub async fn take(&self, group: Group, units: usize) -> Result<Permit, QueueFull> {
        self.take_after(group, units, 0).await
    }

    /// Takes a permit, behind all waiters with a lower rank.
    ///
    /// # Errors
    ///
    /// When too many wait already.
    pub async fn take_after(
        &self,
        group: Group,
        units: usize,
        rank: usize,
    ) -> Result<Permit, QueueFull> {
        let (granted, waiting) = oneshot::channel();
        let (position, stall_timeout) = {
            let now = Instant::now();
            let mut table = self.table();
            let waiter = Waiter {
                group: group.clone(),
                units,
                granted,
            };
            let position = table.wait(rank, waiter);
            table.admit(now);
            let of_group = table.groups.get(&group).map_or(0, |usage| usage.waiting);
            if of_group > table.rules.waiting_of_group_max {
                table.remove_waiter(position);
            } else if table.waiters.len() > table.rules.waiting_max
                && let Some((last, _)) = table.waiters.last_key_value()
            {
                let last = *last;
                table.remove_waiter(last);
            }
            (position, table.rules.stall_timeout)
        };
        let mut wait_guard = WaitGuard {
            semaphore: self.clone(),
            position,
            granted: waiting,
            is_over: false,
        };
        loop {
            tokio::select! {
                biased;
                granted = &mut wait_guard.granted => {
                    wait_guard.is_over = true;
                    let revoked = granted.map_err(|_| QueueFull)?;
                    let semaphore = self.clone();
                    return Ok(Permit { semaphore, id: position.1, revoked });
                }
                () = tokio::time::sleep(STALL_CHECK_INTERVAL), if stall_timeout.is_some() => {
                    self.table().revoke_stalled(Instant::now());
                }
            }
        }
    }
}

/// The guard of a waiter. When the waiter stops, it leaves its turn, or gives back a permit granted meanwhile.
struct WaitGuard {
    semaphore: FairSemaphore,
    position: QueuePosition,
    granted: oneshot::Receiver<CancellationToken>,
    is_over: bool,
}

impl Drop for WaitGuard {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut table = self.semaphore.table();
        if table.remove_waiter(self.position).is_none() {
            table.release(self.position.1);
        }
        table.admit(Instant::now());
    }
}

/// Units of the semaphore, held until dropped or revoked.
#[derive(Debug)]
pub struct Permit {
    semaphore: FairSemaphore,
    id: u64,
    revoked: CancellationToken,
}

impl Permit {
    /// Records progress: the reader received something, or the sender sent something.
    pub fn record_progress(&self) {
        if let Some(holder) = self.semaphore.table().holders.get_mut(&self.id) {
            holder.last_progress = Some(Instant::now());
        }
    }

    /// Pauses the check for progress until units move: the contents are still being made.
    pub fn pause_stall_check(&self) {
        if let Some(holder) = self.semaphore.table().holders.get_mut(&self.id) {
            holder.last_progress = None;
        }
    }

    /// Records moved units; a sixteenth of the permit counts as progress.
    pub fn record_units(&self, units: usize) {
        if let Some(holder) = self.semaphore.table().holders.get_mut(&self.id) {
            holder.units_since_progress = holder.units_since_progress.saturating_add(units);
            if holder.units_since_progress.saturating_mul(PROGRESS_PARTS) >= holder.units {
                holder.units_since_progress = 0;
                holder.last_progress = Some(Instant::now());
            }
        }
    }

    /// Changes the size of the permit to the actual number of units.
    pub fn resize(&self, units: usize) {
        let mut table = self.semaphore.table();
        let Some(holder) = table.holders.get_mut(&self.id) else {
            return;
        };
        let before = std::mem::replace(&mut holder.units, units);
        let group = holder.group.clone();
        table.used = (table.used - before).saturating_add(units);
        if let Some(usage) = table.groups.get_mut(&group) {
            usage.units = (usage.units - before).saturating_add(units);
        }
        if units < before {
            table.admit(Instant::now());
        }
    }

    /// Returns the token that is cancelled when the permit is revoked for others: its work must end.
    #[must_use]
    pub fn revoked(&self) -> &CancellationToken {
        &self.revoked
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut table = self.semaphore.table();
        if table.release(self.id).is_some() {
            table.admit(Instant::now());
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
