//! Which connections a daemon has at a time, and which one goes when there are too many.
//!
//! Entered through [`Admission::admit`]. Connections whose other side has not been authenticated are strangers, by
//! address. Invariants: a flood of strangers keeps nobody out, since a new connection takes the place of the one
//! that has been idle there the longest; a connection that is being answered, or whose other side is known, goes
//! for no other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// For so long a new connection has time to say something, before it goes ahead of others that have.
const SILENCE_ALLOWED: Duration = Duration::from_secs(1);

/// An address, or all that one customer of a network has: 64 bits of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::transport) struct Network(IpAddr);

impl Network {
    pub(in crate::transport) fn of(address: IpAddr) -> Self {
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

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Entry {
    id: u64,
    network: Network,
    since: Instant,
    /// Requests that are being answered.
    busy: AtomicUsize,
    has_spoken: AtomicBool,
    /// Whether it is among the strangers.
    is_stranger: AtomicBool,
    /// Whether it is among the connections that are counted.
    is_counted: AtomicBool,
    closed: CancellationToken,
}

impl Entry {
    fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0
    }

    fn is_silent(&self, now: Instant) -> bool {
        self.is_idle()
            && !self.has_spoken.load(Ordering::Relaxed)
            && now.saturating_duration_since(self.since) >= SILENCE_ALLOWED
    }

    pub(super) fn close(&self) {
        self.closed.cancel();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// When it is to be closed.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }
}

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) connections_max: usize,
    /// Strangers of one network; loopback has no such limit.
    pub(super) strangers_max: usize,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// Strangers or not.
    connections: usize,
    /// In the order of their coming.
    strangers: HashMap<Network, BTreeMap<u64, Arc<Entry>>>,
    /// The same networks by how many there are.
    sizes: BTreeSet<(usize, Network)>,
}

impl Table {
    fn insert(&mut self, entry: Arc<Entry>) {
        let network = entry.network;
        let all = self.strangers.entry(network).or_default();
        self.sizes.remove(&(all.len(), network));
        all.insert(entry.id, entry);
        self.sizes.insert((all.len(), network));
    }

    fn remove(&mut self, network: Network, id: u64) -> Option<Arc<Entry>> {
        let all = self.strangers.get_mut(&network)?;
        let before = all.len();
        let removed = all.remove(&id);
        let after = all.len();
        self.sizes.remove(&(before, network));
        if after == 0 {
            self.strangers.remove(&network);
        } else {
            self.sizes.insert((after, network));
        }
        removed
    }

    /// The stranger of a network that goes first: the oldest that has said nothing in its time, or else the
    /// oldest that is not being answered.
    fn victim(&self, network: Network, now: Instant) -> Option<u64> {
        let all = self.strangers.get(&network)?;
        let silent = all.values().find(|one| one.is_silent(now));
        let victim = silent.or_else(|| all.values().find(|one| one.is_idle()))?;
        Some(victim.id)
    }

    fn evict(&mut self, network: Network, now: Instant) -> bool {
        let victim = self.victim(network, now);
        let Some(entry) = victim.and_then(|id| self.remove(network, id)) else {
            return false;
        };
        self.discount(&entry);
        entry.close();
        true
    }

    /// Where there are the most.
    fn evict_any(&mut self, now: Instant) -> bool {
        let mut largest = self.sizes.iter().rev().map(|(_, network)| *network);
        let network = largest.find(|network| self.victim(*network, now).is_some());
        network.is_some_and(|network| self.evict(network, now))
    }

    fn discount(&mut self, entry: &Entry) {
        if entry.is_counted.swap(false, Ordering::Relaxed) {
            self.connections = self.connections.saturating_sub(1);
        }
    }
}

/// See the module. Cheap to clone.
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

    /// Takes a connection, in the place of an idle one where there are too many; none if all are in use.
    pub(super) fn admit(&self, address: IpAddr, now: Instant) -> Option<Place> {
        let network = Network::of(address);
        let mut table = self.table();
        let of_network = table.strangers.get(&network).map_or(0, BTreeMap::len);
        let is_crowded = !network.is_loopback() && of_network >= self.limits.strangers_max;
        if is_crowded && !table.evict(network, now) {
            return None;
        }
        if table.connections >= self.limits.connections_max && !table.evict_any(now) {
            return None;
        }
        table.next += 1;
        table.connections += 1;
        let entry = Arc::new(Entry {
            id: table.next,
            network,
            since: now,
            busy: AtomicUsize::new(0),
            has_spoken: AtomicBool::new(false),
            is_stranger: AtomicBool::new(true),
            is_counted: AtomicBool::new(true),
            closed: CancellationToken::new(),
        });
        table.insert(entry.clone());
        Some(Place {
            entry,
            admission: Some(self.clone()),
        })
    }

    /// Ends one idle connection, if there is one: descriptors have run out.
    pub(super) fn make_room(&self, now: Instant) -> bool {
        self.table().evict_any(now)
    }
}

/// The place of a connection among the others, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) entry: Arc<Entry>,
    admission: Option<Admission>,
}

impl Place {
    /// One that counts for nothing.
    pub(super) fn alone(address: IpAddr, now: Instant) -> Self {
        let limits = Limits {
            connections_max: 1,
            strangers_max: 1,
        };
        let place = Admission::new(limits).admit(address, now);
        place.expect("the first one is admitted")
    }

    /// The other side is known: no flood of its network reaches it any more.
    pub(super) fn introduced(&self) {
        if self.entry.is_stranger.swap(false, Ordering::Relaxed)
            && let Some(admission) = &self.admission
        {
            let mut table = admission.table();
            table.remove(self.entry.network, self.entry.id);
        }
    }

    /// A request is being answered until this is dropped.
    pub(super) fn begin(&self) -> InUse {
        self.entry.has_spoken.store(true, Ordering::Relaxed);
        self.entry.busy.fetch_add(1, Ordering::Relaxed);
        InUse(self.entry.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(admission) = &self.admission else {
            return;
        };
        let mut table = admission.table();
        table.remove(self.entry.network, self.entry.id);
        table.discount(&self.entry);
    }
}

/// A request of a connection that is being answered.
#[derive(Debug)]
pub(super) struct InUse(Arc<Entry>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(connections_max: usize, strangers_max: usize) -> Admission {
        Admission::new(Limits {
            connections_max,
            strangers_max,
        })
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn is_closed(place: &Place) -> bool {
        place.entry.closed.is_cancelled()
    }

    const SOON: Duration = Duration::from_millis(1);

    #[test]
    fn a_new_connection_takes_the_place_of_the_oldest_that_is_idle() {
        let admission = admission(100, 3);
        let start = Instant::now();
        let here = ip("10.0.0.1");
        let [first, second, third] =
            [0, 1, 2].map(|at| admission.admit(here, start + at * SOON).unwrap());
        let answering = first.begin();
        let there = admission.admit(ip("10.0.0.2"), start).unwrap();
        let fourth = admission.admit(here, start + 3 * SOON).unwrap();
        assert!(is_closed(&second), "the oldest that is not being answered");
        assert!(
            ![&first, &third, &fourth, &there]
                .map(is_closed)
                .contains(&true)
        );
        drop(answering);
        // What has said nothing in its time goes before what was answered.
        let later = start + SILENCE_ALLOWED + 2 * SOON;
        let fifth = admission.admit(here, later).unwrap();
        assert!(is_closed(&third) && !is_closed(&first) && !is_closed(&fourth));
        let in_use = [&first, &fourth, &fifth].map(Place::begin);
        assert!(admission.admit(here, later).is_none(), "all are in use");
        drop(in_use);
        assert!(admission.admit(here, later).is_some());
    }

    #[test]
    fn who_is_known_goes_for_nobody_and_counts_among_no_strangers() {
        let admission = admission(4, 2);
        let now = Instant::now();
        let here = ip("10.0.0.1");
        let known = admission.admit(here, now).unwrap();
        known.introduced();
        known.introduced();
        let mut silent: Vec<_> = (0..50)
            .map(|_| admission.admit(here, now).unwrap())
            .collect();
        let open = silent.iter().filter(|one| !is_closed(one)).count();
        assert_eq!(open, 2);
        let elsewhere = admission.admit(ip("10.0.0.2"), now).unwrap();
        let more = admission.admit(ip("10.0.0.3"), now).unwrap();
        assert!(!is_closed(&known) && !is_closed(&more) && !is_closed(&elsewhere));
        let open = silent.iter().filter(|one| !is_closed(one)).count();
        assert_eq!(open, 1, "one of those of whom there were the most");
        silent.clear();
        drop((known, elsewhere, more));
        let table = admission.table();
        assert_eq!(table.connections, 0);
        assert!(table.strangers.is_empty() && table.sizes.is_empty());
    }

    #[test]
    fn when_all_are_in_use_or_known_no_more_are_taken() {
        let admission = admission(2, 1);
        let now = Instant::now();
        let loopback = ip("127.0.0.1");
        let known = admission.admit(loopback, now).unwrap();
        known.introduced();
        let asking = admission.admit(loopback, now).unwrap();
        let answering = asking.begin();
        assert!(admission.admit(loopback, now).is_none());
        assert!(!admission.make_room(now));
        drop(answering);
        assert!(admission.make_room(now));
        assert!(is_closed(&asking) && !is_closed(&known));
        // One that is closed for another reason is counted until it is gone.
        let third = admission.admit(loopback, now).unwrap();
        third.entry.close();
        drop((third, asking));
        assert_eq!(admission.table().connections, 1);
    }

    #[test]
    fn networks_are_addresses_or_64_bits_of_them() {
        for (one, other, is_same) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("2001:db8::1", "2001:db8::ffff:1:2:3", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            ("::1", "::2", false),
        ] {
            let is_one = Network::of(ip(one)) == Network::of(ip(other));
            assert_eq!(is_one, is_same, "{one} {other}");
        }
        assert!(Network::of(ip("::ffff:127.0.0.1")).is_loopback());
        assert!(Network::of(ip("::1")).is_loopback());
    }
}
