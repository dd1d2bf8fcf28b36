//! The admission of connections: their maximum number, and the connection to evict when there are too many.
//!
//! Entered through [`Admission::admit`]. Unauthenticated connections share the limit by tenant: the local user that opened
//! them, or else the address; those of one user by cgroup. Invariants: a flood of unauthenticated connections excludes no
//! other tenant, since a new connection evicts one of the tenant with the most: the longest idle one, or, for a tenant with
//! less than half as many, one with a request in progress; at an address at its limit, one whose request has been in
//! progress for long. An authenticated connection is never evicted for another client, except if its principal has more
//! than half of the limit: then a new connection evicts one of the principal's own, an idle one if there is any. A request
//! is in progress once its body is complete or its response has begun.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::owner::SocketOwner;

/// The time that a silent new connection has before it becomes the first to be evicted.
const SILENCE_ALLOWED: Duration = Duration::from_secs(1);
/// The time for which an answered connection is safe from eviction at an address with too many connections. Without an end
/// of that time, clients that take no answers would exclude all others of their address.
const ANSWER_ALLOWED: Duration = Duration::from_secs(5);

/// An address, or the range of one customer of a network: 64 bits of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Network(IpAddr);

impl Network {
    pub(crate) fn from_address(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                let prefix = address.to_bits() & (u128::MAX << 64);
                Self(Ipv6Addr::from_bits(prefix).into())
            }
            other => Self(other),
        }
    }

    fn is_loopback(self) -> bool {
        self.0.is_loopback()
    }
}

/// The owner of a share of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Tenant {
    Network(Network),
    /// A user of this machine.
    User(u32),
}

/// The source of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source {
    tenant: Tenant,
    /// The cgroup in which a local user opened the connection.
    group: Option<u64>,
}

impl Source {
    fn from_address(address: IpAddr, owner: Option<SocketOwner>) -> Self {
        match owner {
            Some(owner) => Self {
                tenant: Tenant::User(owner.uid),
                group: owner.cgroup,
            },
            None => Self {
                tenant: Tenant::Network(Network::from_address(address)),
                group: None,
            },
        }
    }

    /// Whether connections of this source have a separate limit.
    fn is_limited(self) -> bool {
        matches!(self.tenant, Tenant::Network(network) if !network.is_loopback())
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Debug)]
pub(super) struct Entry {
    id: u64,
    source: Source,
    since: Instant,
    /// Requests that are being answered.
    busy: AtomicUsize,
    /// The begin of the earliest request in progress, while there is one.
    busy_since: Mutex<Instant>,
    has_sent_request: AtomicBool,
    /// Whether the connection is unauthenticated.
    is_unauthenticated: AtomicBool,
    /// The principal of the connection, once it is known and counted.
    principal: OnceLock<Arc<str>>,
    /// Whether the connection carries a stream that is meant to last; see [`Entry::set_long_lived`].
    long_lived: AtomicBool,
    /// Whether the connection is among the counted connections.
    is_counted: AtomicBool,
    closed: CancellationToken,
}

impl Entry {
    fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0
    }

    fn is_silent(&self, now: Instant) -> bool {
        self.is_idle()
            && !self.has_sent_request.load(Ordering::Relaxed)
            && now.saturating_duration_since(self.since) >= SILENCE_ALLOWED
    }

    /// Records another request in progress.
    fn start(&self) {
        let mut since = self
            .busy_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.busy.fetch_add(1, Ordering::Relaxed) == 0 {
            *since = Instant::now();
        }
    }

    fn is_answered_for_long(&self, now: Instant) -> bool {
        let since = self
            .busy_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        !self.is_idle() && now.saturating_duration_since(*since) >= ANSWER_ALLOWED
    }

    /// Marks the connection as a long-lived stream, such as that of a registered agent: while its address has not too many
    /// of these, a long request is no reason to evict it.
    pub(super) fn set_long_lived(&self) {
        self.long_lived.store(true, Ordering::Relaxed);
    }

    fn is_long_lived(&self) -> bool {
        self.long_lived.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        self.closed.cancel();
    }

    /// Whether the connection no longer counts.
    pub(super) fn is_over(&self) -> bool {
        !self.is_counted.load(Ordering::Relaxed)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Waits until the connection has to close.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }
}

/// The limits of the connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) connections_max: usize,
    /// The limit of unauthenticated connections of one network; loopback and local users have no such limit.
    pub(super) unauthenticated_max: usize,
}

/// The unauthenticated connections of one tenant, in the order of arrival.
#[derive(Debug, Default)]
struct UnauthenticatedConnections {
    groups: BTreeMap<Option<u64>, BTreeMap<u64, Arc<Entry>>>,
    count: usize,
}

impl UnauthenticatedConnections {
    fn of_group(&self, group: Option<u64>) -> usize {
        self.groups.get(&group).map_or(0, BTreeMap::len)
    }

    /// Returns the groups that may lose an idle connection, largest first: the newcomer's group, and every larger group at
    /// least half the size of the largest.
    fn eviction_candidates(
        &self,
        newcomer: Option<Option<u64>>,
    ) -> Vec<&BTreeMap<u64, Arc<Entry>>> {
        let most = self.groups.values().map(BTreeMap::len).max();
        let most = most.unwrap_or_default();
        let own = newcomer.map(|group| (group, self.of_group(group)));
        let groups = self.groups.iter().filter(|(group, all)| {
            let is_large = is_half_of(all.len(), most);
            own.is_none_or(|(_, of_own)| all.len() > of_own) && is_large
                || own.is_some_and(|(own, _)| own == **group)
        });
        let mut groups: Vec<_> = groups.map(|(_, all)| all).collect();
        groups.sort_by_key(|all| std::cmp::Reverse(all.len()));
        groups
    }

    /// Returns the first idle connection to evict: the oldest that stayed silent too long, or else the oldest.
    fn idle(&self, newcomer: Option<Option<u64>>, now: Instant) -> Option<Arc<Entry>> {
        self.eviction_candidates(newcomer)
            .into_iter()
            .find_map(|all| {
                let silent = all.values().find(|one| one.is_silent(now));
                let idle = silent.or_else(|| all.values().find(|one| one.is_idle()));
                idle.cloned()
            })
    }

    /// Returns the oldest connection whose request has been in progress for long. Among long-lived streams it returns only
    /// the newest, and only if they are more than half of the limit.
    fn answered_for_long(&self, unauthenticated_max: usize, now: Instant) -> Option<Arc<Entry>> {
        let all = self.groups.values().flat_map(BTreeMap::values);
        let answered = all.filter(|one| one.is_answered_for_long(now));
        let (long_lived, others): (Vec<_>, Vec<_>) = answered.partition(|one| one.is_long_lived());
        let too_many = long_lived.len() > unauthenticated_max / 2;
        let oldest = others.into_iter().min_by_key(|one| one.id);
        let newest = long_lived.into_iter().max_by_key(|one| one.id);
        oldest.or(newest.filter(|_| too_many)).cloned()
    }

    /// Returns the oldest connection of the largest group, unless the newcomer's own group is nearly as large.
    fn oldest(&self, newcomer: Option<Option<u64>>) -> Option<Arc<Entry>> {
        let largest = self.groups.values().max_by_key(|all| all.len())?;
        let own = newcomer.map(|group| self.of_group(group));
        let may_lose = own.is_none_or(|own| is_far_more(largest.len(), own));
        let oldest = largest.values().next().filter(|_| may_lose);
        oldest.cloned()
    }
}

fn is_half_of(count: usize, most: usize) -> bool {
    count.saturating_mul(2) >= most
}

/// Whether a tenant has more than twice as many as another will have with one more; against a tenant with none, whether it
/// has two.
fn is_far_more(count: usize, other: usize) -> bool {
    (other == 0 && count >= 2) || count > other.saturating_add(1).saturating_mul(2)
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// All connections, authenticated or not.
    connections: usize,
    unauthenticated: HashMap<Tenant, UnauthenticatedConnections>,
    /// The tenants ordered by their number of connections.
    sizes: BTreeSet<(usize, Tenant)>,
    /// Authenticated connections by principal, in the order of arrival.
    authenticated: HashMap<Arc<str>, BTreeMap<u64, Arc<Entry>>>,
}

impl Table {
    fn count(&self, tenant: Tenant) -> usize {
        self.unauthenticated.get(&tenant).map_or(0, |all| all.count)
    }

    fn insert(&mut self, entry: Arc<Entry>) {
        let Source { tenant, group } = entry.source;
        let all = self.unauthenticated.entry(tenant).or_default();
        self.sizes.remove(&(all.count, tenant));
        all.count += 1;
        self.sizes.insert((all.count, tenant));
        all.groups.entry(group).or_default().insert(entry.id, entry);
    }

    fn insert_authenticated(&mut self, name: Arc<str>, entry: Arc<Entry>) {
        let of_principal = self.authenticated.entry(name).or_default();
        of_principal.insert(entry.id, entry);
    }

    fn remove_authenticated(&mut self, entry: &Entry) {
        let Some(name) = entry.principal.get() else {
            return;
        };
        if let Some(of_principal) = self.authenticated.get_mut(name) {
            of_principal.remove(&entry.id);
            if of_principal.is_empty() {
                self.authenticated.remove(name);
            }
        }
    }

    fn remove(&mut self, entry: &Entry) {
        self.remove_authenticated(entry);
        let Source { tenant, group } = entry.source;
        let Some(all) = self.unauthenticated.get_mut(&tenant) else {
            return;
        };
        let Some(of_group) = all.groups.get_mut(&group) else {
            return;
        };
        if of_group.remove(&entry.id).is_none() {
            return;
        }
        if of_group.is_empty() {
            all.groups.remove(&group);
        }
        self.sizes.remove(&(all.count, tenant));
        all.count -= 1;
        if all.count == 0 {
            self.unauthenticated.remove(&tenant);
        } else {
            self.sizes.insert((all.count, tenant));
        }
    }

    fn end(&mut self, victim: Option<Arc<Entry>>) -> bool {
        let Some(entry) = victim else {
            return false;
        };
        self.remove(&entry);
        self.discount(&entry);
        entry.close();
        true
    }

    /// Evicts an idle connection of the newcomer's own tenant.
    fn evict_own(&mut self, source: Source, now: Instant) -> bool {
        let all = self.unauthenticated.get(&source.tenant);
        let victim = all.and_then(|all| all.idle(Some(source.group), now));
        self.end(victim)
    }

    /// Evicts a connection of the newcomer's own tenant whose request has been in progress for long.
    fn evict_answered(&mut self, source: Source, unauthenticated_max: usize, now: Instant) -> bool {
        let all = self.unauthenticated.get(&source.tenant);
        let victim = all.and_then(|all| all.answered_for_long(unauthenticated_max, now));
        self.end(victim)
    }

    /// Evicts an idle connection of the tenant with the most.
    fn evict_any(&mut self, now: Instant) -> bool {
        let mut largest = self.sizes.iter().rev();
        let victim =
            largest.find_map(|(_, tenant)| self.unauthenticated.get(tenant)?.idle(None, now));
        self.end(victim)
    }

    /// Evicts a connection of the principal that has more than half of the limit: the oldest idle one that is not
    /// long-lived, or else, if permitted, the newest one in use.
    fn evict_authenticated(&mut self, connections_max: usize, may_be_in_use: bool) -> bool {
        let all = self.authenticated.values();
        let most = all.max_by_key(|of_principal| of_principal.len());
        let too_many = most.filter(|of_principal| of_principal.len() > connections_max / 2);
        let victim = too_many.and_then(|of_principal| {
            let mut all = of_principal.values();
            let idle = all.find(|entry| entry.is_idle() && !entry.is_long_lived());
            let newest = || of_principal.values().next_back();
            idle.or_else(|| newest().filter(|_| may_be_in_use))
        });
        let victim = victim.cloned();
        self.end(victim)
    }

    /// Evicts a connection of a tenant or group with more than the newcomer's, or of its own.
    fn evict_for(&mut self, source: Source, now: Instant) -> bool {
        let own = self.count(source.tenant);
        let most = self.sizes.last().map_or(0, |(count, _)| *count);
        let group_in = |tenant: Tenant| (tenant == source.tenant).then_some(source.group);
        let of = |tenant: &Tenant| {
            self.unauthenticated
                .get(tenant)
                .zip(Some(group_in(*tenant)))
        };
        let may_lose = |(count, tenant): &&(usize, Tenant)| {
            is_half_of(*count, most) && (*count > own || *tenant == source.tenant)
        };
        let mut largest = self.sizes.iter().rev().filter(may_lose);
        let idle = largest.find_map(|(_, tenant)| {
            let (all, newcomer) = of(tenant)?;
            all.idle(newcomer, now)
        });
        let victim = idle.or_else(|| {
            let (count, tenant) = self.sizes.last()?;
            let is_more = *tenant == source.tenant || is_far_more(*count, own);
            let (all, newcomer) = of(tenant).filter(|_| is_more)?;
            all.oldest(newcomer)
        });
        self.end(victim) || self.evict_own(source, now)
    }

    fn discount(&mut self, entry: &Entry) {
        if entry.is_counted.swap(false, Ordering::Relaxed) {
            self.connections = self.connections.saturating_sub(1);
        }
    }
}

/// The admission of connections, see the module. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Admission {
    table: Arc<Mutex<Table>>,
    limits: Limits,
}

impl Admission {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            table: Arc::default(),
            limits,
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection, evicting another one at a limit; returns `None` if no other may be evicted.
    pub(super) fn admit(
        &self,
        address: IpAddr,
        owner: Option<SocketOwner>,
        now: Instant,
    ) -> Option<ConnectionSlot> {
        let source = Source::from_address(address, owner);
        let mut table = self.table();
        let unauthenticated_max = self.limits.unauthenticated_max;
        let is_crowded = source.is_limited() && table.count(source.tenant) >= unauthenticated_max;
        if is_crowded
            && !table.evict_own(source, now)
            && !table.evict_answered(source, unauthenticated_max, now)
        {
            return None;
        }
        let connections_max = self.limits.connections_max;
        if table.connections >= connections_max
            && !table.evict_for(source, now)
            && !table.evict_authenticated(connections_max, true)
        {
            return None;
        }
        table.next += 1;
        table.connections += 1;
        let entry = Arc::new(Entry {
            id: table.next,
            source,
            since: now,
            busy: AtomicUsize::new(0),
            busy_since: Mutex::new(now),
            has_sent_request: AtomicBool::new(false),
            is_unauthenticated: AtomicBool::new(true),
            principal: OnceLock::new(),
            long_lived: AtomicBool::new(false),
            is_counted: AtomicBool::new(true),
            closed: CancellationToken::new(),
        });
        table.insert(entry.clone());
        Some(ConnectionSlot {
            entry,
            admission: Some(self.clone()),
        })
    }

    /// Evicts one idle connection, if there is one: descriptors have run out.
    pub(super) fn evict_idle(&self, now: Instant) -> bool {
        let mut table = self.table();
        let connections = table.connections;
        table.evict_any(now) || table.evict_authenticated(connections, false)
    }
}

/// The slot of an admitted connection, released on drop.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    pub(super) entry: Arc<Entry>,
    admission: Option<Admission>,
}

impl ConnectionSlot {
    /// Returns a slot that counts for nothing.
    pub(super) fn alone(address: IpAddr, now: Instant) -> Self {
        let limits = Limits {
            connections_max: 1,
            unauthenticated_max: 1,
        };
        let slot = Admission::new(limits).admit(address, None, now);
        slot.expect("the first one is admitted")
    }

    /// Marks the connection as authenticated by a principal: it is evicted for another only if that principal has more than
    /// half of all connections.
    pub(super) fn set_principal(&self, name: &str) {
        if self.is_unauthenticated()
            && let Some(admission) = &self.admission
        {
            let mut table = admission.table();
            table.remove(&self.entry);
            self.entry
                .is_unauthenticated
                .store(false, Ordering::Relaxed);
            let name = self.entry.principal.get_or_init(|| name.into());
            if self.entry.is_counted.load(Ordering::Relaxed) {
                table.insert_authenticated(name.clone(), self.entry.clone());
            }
        }
    }

    /// Marks the connection as authenticated; another limit bounds such connections, and admission never evicts it for
    /// others.
    pub(super) fn set_authenticated(&self) {
        if self.entry.is_unauthenticated.swap(false, Ordering::Relaxed)
            && let Some(admission) = &self.admission
        {
            admission.table().remove(&self.entry);
        }
    }

    pub(super) fn is_unauthenticated(&self) -> bool {
        self.entry.is_unauthenticated.load(Ordering::Relaxed)
    }

    /// Notes that a request has begun to arrive. From [`InUse::start`] on, the request is being answered until this is
    /// dropped.
    pub(super) fn begin(&self) -> InUse {
        self.entry.has_sent_request.store(true, Ordering::Relaxed);
        InUse {
            entry: self.entry.clone(),
            is_answered: AtomicBool::new(false),
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let Some(admission) = &self.admission else {
            return;
        };
        let mut table = admission.table();
        table.remove(&self.entry);
        table.discount(&self.entry);
    }
}

/// A request of a connection.
#[derive(Debug)]
pub(super) struct InUse {
    entry: Arc<Entry>,
    is_answered: AtomicBool,
}

impl InUse {
    /// Marks the request as in progress, as it is complete or its answer has begun: it keeps its connection.
    pub(super) fn start(&self) {
        if !self.is_answered.swap(true, Ordering::Relaxed) {
            self.entry.start();
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if *self.is_answered.get_mut() {
            self.entry.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(connections_max: usize, unauthenticated_max: usize) -> Admission {
        Admission::new(Limits {
            connections_max,
            unauthenticated_max,
        })
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn is_closed(slot: &ConnectionSlot) -> bool {
        slot.entry.closed.is_cancelled()
    }

    fn are_open<const N: usize>(slots: [&ConnectionSlot; N]) -> bool {
        !slots.map(is_closed).contains(&true)
    }

    const SOON: Duration = Duration::from_millis(1);

    /// Marks a complete request as being answered.
    fn answer(slot: &ConnectionSlot) -> InUse {
        let in_use = slot.begin();
        in_use.start();
        in_use
    }

    fn user(uid: u32, cgroup: u64) -> Option<SocketOwner> {
        Some(SocketOwner {
            uid,
            inode: 1,
            cgroup: Some(cgroup),
        })
    }

    #[test]
    fn incomplete_request_loses_its_connection() {
        let admission = admission(3, 1);
        let loopback = ip("127.0.0.1");
        let now = Instant::now();
        let all = [0; 3].map(|_| admission.admit(loopback, None, now).unwrap());
        let asking = [&all[0], &all[1], &all[2]].map(ConnectionSlot::begin);
        all[1].set_authenticated();
        asking[0].start();
        let more = admission.admit(loopback, None, now).unwrap();
        assert!(is_closed(&all[2]), "its request is not whole");
        asking[0].start();
        let in_use = answer(&more);
        let one_more = admission.admit(loopback, None, now);
        assert!(one_more.is_none(), "answered or known");
        drop(asking);
        assert!(admission.admit(loopback, None, now).is_some());
        assert!(is_closed(&all[0]) && !is_closed(&more) && !is_closed(&all[1]));
        drop(in_use);
    }

    #[test]
    fn greedy_task_excludes_only_itself() {
        // The address is the node's own, which has no limit of its own users, or loopback.
        for address in ["10.0.0.7", "127.0.0.1"] {
            let admission = admission(600, 512);
            let (here, now) = (ip(address), Instant::now());
            let flood = |group| admission.admit(here, user(65_534, group), now);
            let taken: Vec<_> = (0..599).map(|_| flood(1).unwrap()).collect();
            let mut answered: Vec<_> = taken.iter().map(answer).collect();
            let operator = admission.admit(here, user(0, 9), now).unwrap();
            assert!(flood(1).is_none(), "nobody goes for more of it");
            assert!(!is_closed(&operator), "idle, but its user has fewer");
            // An executor of the same user in another container, and another user.
            let executor = flood(2).unwrap();
            let other = admission.admit(here, user(1000, 3), now).unwrap();
            assert!(is_closed(&taken[0]) && is_closed(&taken[1]));
            // A connection with an incomplete request is evicted before an answered one.
            answered.truncate(300);
            let unfinished = taken[300].begin();
            assert!(admission.admit(here, user(1001, 4), now).is_some());
            assert!(is_closed(&taken[300]) && !is_closed(&taken[2]));
            assert!(are_open([&operator, &executor, &other]));
            drop(unfinished);
        }
    }

    #[test]
    fn new_connection_evicts_oldest_idle() {
        let admission = admission(100, 3);
        let start = Instant::now();
        let here = ip("10.0.0.1");
        let [first, second, third] =
            [0, 1, 2].map(|at| admission.admit(here, None, start + at * SOON).unwrap());
        let answering = answer(&first);
        let there = admission.admit(ip("10.0.0.2"), None, start).unwrap();
        let fourth = admission.admit(here, None, start + 3 * SOON).unwrap();
        assert!(is_closed(&second), "the oldest that is not being answered");
        assert!(are_open([&first, &third, &fourth, &there]));
        drop(answering);
        // A connection that stayed silent too long is evicted before one that was answered.
        let later = start + SILENCE_ALLOWED + 2 * SOON;
        let fifth = admission.admit(here, None, later).unwrap();
        assert!(is_closed(&third) && !is_closed(&first) && !is_closed(&fourth));
        let in_use = [&first, &fourth, &fifth].map(answer);
        assert!(
            admission.admit(here, None, later).is_none(),
            "all are in use"
        );
        drop(in_use);
        assert!(admission.admit(here, None, later).is_some());
    }

    #[test]
    fn long_stream_is_not_evicted() {
        let admission = admission(100, 4);
        let start = Instant::now();
        let here = ip("10.0.0.1");
        let all = [0; 4].map(|_| admission.admit(here, None, start).unwrap());
        let in_use = all.each_ref().map(answer);
        let later = Instant::now() + ANSWER_ALLOWED;
        all[0].entry.set_long_lived();
        let one = admission.admit(here, None, later).unwrap();
        assert!(is_closed(&all[1]) && !is_closed(&all[0]));
        all[2].entry.set_long_lived();
        let mut others = vec![answer(&one)];
        let two = admission.admit(here, None, later).unwrap();
        assert!(is_closed(&all[3]) && !is_closed(&all[2]));
        others.push(answer(&two));
        let none = admission.admit(here, None, later);
        assert!(none.is_none(), "the others have been answered only now");
        // They are more than half of the limit: the newest makes room.
        two.entry.set_long_lived();
        let much_later = Instant::now() + 2 * ANSWER_ALLOWED;
        let three = admission.admit(here, None, much_later).unwrap();
        assert!(is_closed(&one) && !is_closed(&two));
        others.push(answer(&three));
        three.entry.set_long_lived();
        let four = admission.admit(here, None, much_later);
        assert!(four.is_some() && is_closed(&three));
        assert!(are_open([&all[0], &all[2], &two]));
        drop((in_use, others));
    }

    #[test]
    fn stalled_reader_excludes_no_address_neighbour() {
        let admission = admission(100, 3);
        let start = Instant::now();
        let here = ip("10.0.0.1");
        let all = [0; 3].map(|_| admission.admit(here, None, start).unwrap());
        let in_use = all.each_ref().map(answer);
        let too_soon = admission.admit(here, None, start);
        assert!(too_soon.is_none(), "none has been answered for long");
        all[0].set_authenticated();
        let fourth = admission.admit(here, None, start).unwrap();
        let later = Instant::now() + ANSWER_ALLOWED;
        let short = answer(&fourth);
        let fifth = admission.admit(here, None, later).unwrap();
        assert!(is_closed(&all[1]), "the oldest that is not known");
        assert!(
            ![&all[0], &all[2], &fourth, &fifth]
                .map(is_closed)
                .contains(&true)
        );
        drop((in_use, short));
    }

    #[test]
    fn newcomer_takes_one_of_two_answered() {
        let admission = admission(2, 100);
        let now = Instant::now();
        let here = ip("127.0.0.1");
        let flood = [0; 2].map(|_| admission.admit(here, user(1000, 1), now).unwrap());
        let in_use = flood.each_ref().map(answer);
        assert!(admission.admit(here, user(1000, 1), now).is_none());
        let other = admission.admit(here, user(1000, 2), now).unwrap();
        assert!(is_closed(&flood[0]) && !is_closed(&flood[1]));
        let in_use_too = answer(&other);
        let third = admission.admit(here, user(1000, 3), now);
        assert!(third.is_none(), "nobody has two");
        drop((in_use, in_use_too));
    }

    #[test]
    fn authenticated_connection_is_exempt_from_eviction() {
        let admission = admission(4, 2);
        let now = Instant::now();
        let here = ip("10.0.0.1");
        let known = admission.admit(here, None, now).unwrap();
        known.set_authenticated();
        known.set_authenticated();
        let mut silent: Vec<_> = (0..50)
            .map(|_| admission.admit(here, None, now).unwrap())
            .collect();
        let open = silent.iter().filter(|one| !is_closed(one)).count();
        assert_eq!(open, 2);
        let elsewhere = admission.admit(ip("10.0.0.2"), None, now).unwrap();
        let more = admission.admit(ip("10.0.0.3"), None, now).unwrap();
        assert!(!is_closed(&known) && !is_closed(&more) && !is_closed(&elsewhere));
        let open = silent.iter().filter(|one| !is_closed(one)).count();
        assert_eq!(open, 1, "one of those of whom there were the most");
        silent.clear();
        drop((known, elsewhere, more));
        let table = admission.table();
        assert_eq!(table.connections, 0);
        assert!(table.unauthenticated.is_empty() && table.sizes.is_empty());
    }

    #[test]
    fn greedy_principal_excludes_only_itself() {
        let admission = admission(8, 100);
        let now = Instant::now();
        let here = ip("10.0.0.1");
        let named = |name: &str| {
            let slot = admission.admit(here, None, now).unwrap();
            slot.set_principal(name);
            slot
        };
        let other = named("other");
        let first = named("greedy");
        let in_use = answer(&first);
        let lasting = named("greedy");
        lasting.entry.set_long_lived();
        let greedy = [0; 5].map(|_| named("greedy"));
        let newcomer = admission.admit(ip("10.0.0.2"), None, now).unwrap();
        assert!(is_closed(&greedy[0]), "the oldest that is idle");
        newcomer.set_principal("another");
        let more = named("greedy");
        assert!(is_closed(&greedy[1]) && !is_closed(&more));
        let open = [&other, &first, &lasting, &newcomer, &greedy[2]];
        assert!(!open.map(is_closed).contains(&true));
        drop((in_use, greedy, more, first, lasting));
        drop((other, newcomer));
        let table = admission.table();
        assert_eq!(table.connections, 0);
        assert!(table.authenticated.is_empty());
    }

    #[test]
    fn evicts_newest_when_principal_is_full() {
        let admission = admission(4, 100);
        let now = Instant::now();
        let all = [0; 4].map(|_| {
            let slot = admission.admit(ip("10.0.0.1"), None, now).unwrap();
            slot.set_principal("agents");
            slot.entry.set_long_lived();
            slot
        });
        assert!(
            !admission.evict_idle(now),
            "descriptors alone cost none in use"
        );
        assert!(admission.admit(ip("10.0.0.2"), None, now).is_some());
        assert_eq!(all.each_ref().map(is_closed), [false, false, false, true]);
    }

    #[test]
    fn busy_or_authenticated_connections_stop_admission() {
        let admission = admission(2, 1);
        let now = Instant::now();
        let loopback = ip("127.0.0.1");
        let known = admission.admit(loopback, None, now).unwrap();
        known.set_authenticated();
        let asking = admission.admit(loopback, None, now).unwrap();
        let answering = answer(&asking);
        assert!(admission.admit(loopback, None, now).is_none());
        assert!(!admission.evict_idle(now));
        drop(answering);
        assert!(admission.evict_idle(now));
        assert!(is_closed(&asking) && !is_closed(&known));
        // A connection closed for another reason counts until it is gone.
        let third = admission.admit(loopback, None, now).unwrap();
        third.entry.close();
        drop((third, asking));
        assert_eq!(admission.table().connections, 1);
    }

    #[test]
    fn networks_are_addresses_or_64_bits() {
        for (one, other, is_same) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("2001:db8::1", "2001:db8::ffff:1:2:3", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            ("::1", "::2", false),
        ] {
            let is_one = Network::from_address(ip(one)) == Network::from_address(ip(other));
            assert_eq!(is_one, is_same, "{one} {other}");
        }
        assert!(Network::from_address(ip("::ffff:127.0.0.1")).is_loopback());
        assert!(Network::from_address(ip("::1")).is_loopback());
    }
}
