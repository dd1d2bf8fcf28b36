//! Room that groups share: bytes, places or turns, for which callers wait.
//!
//! Entered through [`FairRoom::take`]. What is decided is in [`Table`], which is told the time. Invariants: of those
//! who wait the next is one whose group has and awaits the least; a group that has some never keeps another out for
//! ever; what is held and stands still goes when another needs it, if the rules say so; who waits is bounded.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Whose something is: a principal, a user of this machine, a network.
pub type Group = Arc<str>;

/// How often those who wait look for what has stood still meanwhile, all of them together.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// What has to move of what is held, or it stands still.
const PROGRESS_PARTS: usize = 16;
/// So many times as long as one may stand still, what has more than half of the room may keep others waiting, however
/// much of it moves.
const LARGE_STAYS: u32 = 2;

/// How room is divided.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// What there is. What is larger is let in alone.
    pub units_max: usize,
    /// Whether a group leaves the others as much as it has itself, but for the first that it takes.
    pub leaves_half: bool,
    /// What has made no progress for so long goes when others wait.
    pub still: Option<Duration>,
    /// Of those with the same rank, whether the last that came goes first: those who wait long already must not keep
    /// out who comes for the first time.
    pub newest_first: bool,
    /// Of one group, how many wait.
    pub waiting_of_group_max: usize,
    /// How many wait: above it the last in the order are sent away.
    pub waiting_max: usize,
}

/// Too many wait: to be asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Too many wait for room; try again")]
pub struct Crowded;

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub struct FairRoom(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Share {
    units: usize,
    holders: usize,
    waiting: usize,
}

#[derive(Debug)]
struct Holder {
    group: Group,
    units: usize,
    since: Instant,
    /// When it last made progress; none of what does not have to.
    moved: Option<Instant>,
    /// What has moved since.
    fresh: usize,
    given_up: CancellationToken,
}

#[derive(Debug)]
struct Waiter {
    group: Group,
    units: usize,
    granted: oneshot::Sender<CancellationToken>,
}

/// The order of those who wait: what its group had and awaited, and the order of coming.
type Turn = (usize, u64);

#[derive(Debug)]
struct Table {
    rules: Rules,
    used: usize,
    shares: BTreeMap<Group, Share>,
    holders: BTreeMap<u64, Holder>,
    waiters: BTreeMap<Turn, Waiter>,
    next: u64,
    looked: Option<Instant>,
}

impl Table {
    fn units_of(&self, group: &Group) -> usize {
        self.shares.get(group).map_or(0, |share| share.units)
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

    fn wait(&mut self, rank: usize, waiter: Waiter) -> Turn {
        let share = self.shares.entry(waiter.group.clone()).or_default();
        let rank = rank
            .saturating_add(share.holders)
            .saturating_add(share.waiting);
        share.waiting += 1;
        self.next += 1;
        let order = match self.rules.newest_first {
            true => u64::MAX - self.next,
            false => self.next,
        };
        let turn = (rank, order);
        self.waiters.insert(turn, waiter);
        turn
    }

    /// Takes one that waits out of the order.
    fn leave(&mut self, turn: Turn) -> Option<Waiter> {
        let waiter = self.waiters.remove(&turn)?;
        self.count_down(&waiter.group, |share| {
            share.waiting = share.waiting.saturating_sub(1);
        });
        Some(waiter)
    }

    fn count_down(&mut self, group: &Group, change: impl FnOnce(&mut Share)) {
        if let Some(share) = self.shares.get_mut(group) {
            change(share);
            if share.units == 0 && share.holders == 0 && share.waiting == 0 {
                self.shares.remove(group);
            }
        }
    }

    /// Gives what has become free to those who wait, in their order.
    fn admit(&mut self, now: Instant) {
        let mut after = Bound::Unbounded;
        while let Some((turn, waiter)) = self.waiters.range((after, Bound::Unbounded)).next() {
            let (turn, group, units) = (*turn, waiter.group.clone(), waiter.units);
            if waiter.granted.is_closed() {
                self.leave(turn);
            } else if self.fits(&group, units) {
                self.grant(turn, now);
            } else if self.give_up_stillest(&group, now) {
                // Perhaps it fits now.
                continue;
            } else if self.units_of(&group) == 0 {
                // Nobody overtakes it, or what is large would never find room.
                return;
            }
            after = Bound::Excluded(turn);
        }
    }

    fn grant(&mut self, turn: Turn, now: Instant) {
        let Some(waiter) = self.leave(turn) else {
            return;
        };
        let given_up = CancellationToken::new();
        if waiter.granted.send(given_up.clone()).is_err() {
            return;
        }
        self.used += waiter.units;
        let share = self.shares.entry(waiter.group.clone()).or_default();
        share.units += waiter.units;
        share.holders += 1;
        let (_, id) = turn;
        let holder = Holder {
            group: waiter.group,
            units: waiter.units,
            since: now,
            moved: Some(now),
            fresh: 0,
            given_up,
        };
        self.holders.insert(id, holder);
    }

    fn release(&mut self, id: u64) -> Option<Holder> {
        let holder = self.holders.remove(&id)?;
        self.used -= holder.units;
        self.count_down(&holder.group, |share| {
            share.units -= holder.units;
            share.holders -= 1;
        });
        Some(holder)
    }

    /// Whether others may have the room of a holder: it has stood still, or has most of the room and is slow.
    fn has_stayed(&self, holder: &Holder, allowed: Duration, now: Instant) -> bool {
        let Some(moved) = holder.moved else {
            return false;
        };
        let is_large = holder.units > self.rules.units_max / 2;
        now.saturating_duration_since(moved) >= allowed
            || is_large && now.saturating_duration_since(holder.since) >= allowed * LARGE_STAYS
    }

    /// Takes its room from the one that has stood still the longest in the group that has most, unless the group that
    /// needs it has more.
    fn give_up_stillest(&mut self, group: &Group, now: Instant) -> bool {
        let Some(allowed) = self.rules.still else {
            return false;
        };
        let own = self.units_of(group);
        let still = self.holders.iter().filter(|(_, holder)| {
            let has = self.units_of(&holder.group);
            (has > own || holder.group == *group) && self.has_stayed(holder, allowed, now)
        });
        let victim = still.max_by_key(|(id, holder)| {
            let has = self.units_of(&holder.group);
            (has, std::cmp::Reverse((holder.moved, **id)))
        });
        let victim = victim.map(|(id, _)| *id);
        let Some(holder) = victim.and_then(|id| self.release(id)) else {
            return false;
        };
        holder.given_up.cancel();
        true
    }

    /// Looks for what has stood still, for all who wait.
    fn look(&mut self, now: Instant) {
        let is_due = |last| now.saturating_duration_since(last) >= LOOK_INTERVAL;
        if self.looked.is_none_or(is_due) {
            self.looked = Some(now);
            self.admit(now);
        }
    }
}

impl FairRoom {
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self(Arc::new(Mutex::new(Table {
            rules,
            used: 0,
            shares: BTreeMap::new(),
            holders: BTreeMap::new(),
            waiters: BTreeMap::new(),
            next: 0,
            looked: None,
        })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is held.
    #[must_use]
    pub fn used(&self) -> usize {
        self.table().used
    }

    /// What there is.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.table().rules.units_max
    }

    /// Waits for room.
    ///
    /// # Errors
    /// When too many wait already.
    pub async fn take(&self, group: Group, units: usize) -> Result<Hold, Crowded> {
        self.take_after(group, units, 0).await
    }

    /// The same, behind all who wait with a lower rank.
    ///
    /// # Errors
    /// When too many wait already.
    pub async fn take_after(
        &self,
        group: Group,
        units: usize,
        rank: usize,
    ) -> Result<Hold, Crowded> {
        let (granted, waiting) = oneshot::channel();
        let (turn, still) = {
            let now = Instant::now();
            let mut table = self.table();
            let waiter = Waiter {
                group: group.clone(),
                units,
                granted,
            };
            let turn = table.wait(rank, waiter);
            table.admit(now);
            let of_group = table.shares.get(&group).map_or(0, |share| share.waiting);
            if of_group > table.rules.waiting_of_group_max {
                table.leave(turn);
            } else if table.waiters.len() > table.rules.waiting_max
                && let Some((last, _)) = table.waiters.last_key_value()
            {
                let last = *last;
                table.leave(last);
            }
            (turn, table.rules.still)
        };
        let mut waits = Waits {
            room: self.clone(),
            turn,
            granted: waiting,
            is_over: false,
        };
        loop {
            tokio::select! {
                biased;
                granted = &mut waits.granted => {
                    waits.is_over = true;
                    let given_up = granted.map_err(|_| Crowded)?;
                    let room = self.clone();
                    return Ok(Hold { room, id: turn.1, given_up });
                }
                () = tokio::time::sleep(LOOK_INTERVAL), if still.is_some() => {
                    self.table().look(Instant::now());
                }
            }
        }
    }
}

/// One that waits. If it stops, it leaves its turn, or gives back what it was granted just now.
struct Waits {
    room: FairRoom,
    turn: Turn,
    granted: oneshot::Receiver<CancellationToken>,
    is_over: bool,
}

impl Drop for Waits {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut table = self.room.table();
        if table.leave(self.turn).is_none() {
            table.release(self.turn.1);
        }
        table.admit(Instant::now());
    }
}

/// Room that is taken, until this is dropped or it was given to others.
#[derive(Debug)]
pub struct Hold {
    room: FairRoom,
    id: u64,
    given_up: CancellationToken,
}

impl Hold {
    /// Its reader has taken something, or its sender has sent something.
    pub fn moved(&self) {
        if let Some(holder) = self.room.table().holders.get_mut(&self.id) {
            holder.moved = Some(Instant::now());
        }
    }

    /// It has to make no progress before it has moved: what it is for is being made.
    pub fn rest(&self) {
        if let Some(holder) = self.room.table().holders.get_mut(&self.id) {
            holder.moved = None;
        }
    }

    /// So much of what it is for has moved; a sixteenth of it is progress.
    pub fn progressed(&self, units: usize) {
        if let Some(holder) = self.room.table().holders.get_mut(&self.id) {
            holder.fresh = holder.fresh.saturating_add(units);
            if holder.fresh.saturating_mul(PROGRESS_PARTS) >= holder.units {
                holder.fresh = 0;
                holder.moved = Some(Instant::now());
            }
        }
    }

    /// It turns out to be for so much.
    pub fn resize(&self, units: usize) {
        let mut table = self.room.table();
        let Some(holder) = table.holders.get_mut(&self.id) else {
            return;
        };
        let before = std::mem::replace(&mut holder.units, units);
        let group = holder.group.clone();
        table.used = (table.used - before).saturating_add(units);
        if let Some(share) = table.shares.get_mut(&group) {
            share.units = (share.units - before).saturating_add(units);
        }
        if units < before {
            table.admit(Instant::now());
        }
    }

    /// Cancelled once others have the room: what it was for is to be ended.
    #[must_use]
    pub fn given_up(&self) -> &CancellationToken {
        &self.given_up
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut table = self.room.table();
        if table.release(self.id).is_some() {
            table.admit(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests;
