//! Reregistrations received in part, and their limits.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_proto::meseta::v1 as meseta;
use meseta_resources::AgentId;
use meseta_resources::time::Moment;

use super::agent_info_usage::Origin;
use super::rejection::Rejection;
use crate::core::ids::ConnectionId;

/// The time within which at least one more part of this size must arrive. Agents send parts of megabytes, one after
/// another.
const STALL_MAX: Duration = Duration::from_secs(30);
const PROGRESS_BYTES: usize = 64 * 1024;
/// The grace period, after which a reregistration must have had at least this rate on average: some kilobytes per
/// second on the wire, as through a modem.
const GRACE: Duration = Duration::from_secs(30);
const FLOOR_BYTES_PER_SEC: usize = 32 * 1024;
/// The limit of the whole reregistration.
const REREGISTRATION_TIME_MAX: Duration = Duration::from_secs(600);
/// A reregistration slower than this for the grace period makes room for others that need it.
const PACE_BYTES_PER_SEC: usize = 256 * 1024;
const PACE_GRACE: Duration = Duration::from_secs(2);

/// The time that this many bytes take at a rate.
fn time_for(bytes: usize, bytes_per_sec: usize) -> Duration {
    let (bytes, rate) = (bytes as u64, bytes_per_sec as u64);
    Duration::from_millis(bytes.saturating_mul(1_000) / rate)
}

/// The reregistrations received in part.
#[derive(Debug)]
pub(in crate::core) struct PartialReregistrations {
    pending: BTreeMap<ConnectionId, PartialReregistration>,
    by_origin: BTreeMap<Origin, usize>,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct PartialReregistration {
    agent: AgentId,
    origin: Origin,
    parts: Vec<meseta::ReregisterPart>,
    bytes: usize,
    begun: Moment,
    progress: Moment,
    /// The time until which the reregistration is fast enough even without further parts.
    in_pace_until: Moment,
}

impl PartialReregistration {
    /// The time at which the reregistration is dropped if nothing more arrives.
    fn deadline(&self) -> Moment {
        let earned = time_for(self.bytes, FLOOR_BYTES_PER_SEC);
        let by_rate = self.begun + GRACE + earned.min(REREGISTRATION_TIME_MAX);
        (self.progress + STALL_MAX)
            .min(by_rate)
            .min(self.begun + REREGISTRATION_TIME_MAX)
    }

    fn add(&mut self, part: meseta::ReregisterPart, bytes: usize, now: Moment) {
        self.bytes += bytes;
        if bytes >= PROGRESS_BYTES {
            self.progress = now;
        }
        let earned = time_for(bytes, PACE_BYTES_PER_SEC).min(PACE_GRACE);
        self.in_pace_until = (self.in_pace_until.max(now) + earned).min(now + PACE_GRACE);
        self.parts.push(part);
    }
}

impl PartialReregistrations {
    pub(in crate::core) fn new(bytes_max: usize) -> Self {
        Self {
            pending: BTreeMap::new(),
            by_origin: BTreeMap::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// The limit in bytes for the agents of one host or address: as much remains for others.
    fn own_max(&self) -> usize {
        self.bytes_max / 2
    }

    fn of_origin(&self, origin: &Origin) -> usize {
        self.by_origin.get(origin).map_or(0, |bytes| *bytes)
    }

    /// The slow reregistration that makes room for another: one of the origin with the largest total, which is not
    /// smaller than the other's.
    pub(in crate::core) fn slowest(
        &self,
        other: ConnectionId,
        now: Moment,
    ) -> Option<ConnectionId> {
        let newcomer = &self.pending.get(&other)?.origin;
        let has = self.of_origin(newcomer);
        let all = self.pending.iter().filter(|(id, one)| {
            **id != other
                && one.in_pace_until <= now
                && (one.origin == *newcomer || self.of_origin(&one.origin) >= has)
        });
        let slowest = all.min_by_key(|(_, one)| {
            let of_origin = std::cmp::Reverse(self.of_origin(&one.origin));
            (of_origin, one.in_pace_until)
        });
        slowest.map(|(connection, _)| *connection)
    }

    pub(in crate::core) fn fits(&self, bytes: usize) -> bool {
        self.bytes.saturating_add(bytes) <= self.bytes_max
    }

    /// Whether a reregistration has begun on this connection.
    pub(crate) fn contains(&self, connection: ConnectionId) -> bool {
        self.pending.contains_key(&connection)
    }

    /// The time at which the reregistration on this connection is dropped if nothing more arrives.
    pub(crate) fn deadline(&self, connection: ConnectionId) -> Option<Moment> {
        let pending = self.pending.get(&connection);
        pending.map(PartialReregistration::deadline)
    }

    /// The pending reregistration of an agent.
    pub(in crate::core) fn of_agent(&self, agent: &AgentId) -> Option<(ConnectionId, &Origin)> {
        let mut all = self.pending.iter();
        let (connection, one) = all.find(|(_, one)| one.agent == *agent)?;
        Some((*connection, &one.origin))
    }

    pub(in crate::core) fn begin(
        &mut self,
        connection: ConnectionId,
        agent: AgentId,
        origin: Origin,
        now: Moment,
    ) {
        let pending = PartialReregistration {
            agent,
            origin,
            parts: Vec::new(),
            bytes: 0,
            begun: now,
            progress: now,
            in_pace_until: now + PACE_GRACE,
        };
        self.pending.insert(connection, pending);
    }

    pub(in crate::core) fn add(
        &mut self,
        connection: ConnectionId,
        part: meseta::ReregisterPart,
        bytes: usize,
        now: Moment,
    ) -> Result<(), Rejection> {
        let (own_max, fits) = (self.own_max(), self.fits(bytes));
        let Some(pending) = self.pending.get_mut(&connection) else {
            return Ok(());
        };
        let own = self.by_origin.entry(pending.origin.clone()).or_default();
        if own.saturating_add(bytes) > own_max {
            let text = format!(
                "the agent's return would take more than {own_max} bytes of memory, with those of other \
                 agents of its host or address that are on their way: raise the master's --memory_budget"
            );
            return Err(Rejection::for_now(text));
        }
        if !fits {
            let text = "the master is assembling the reregistrations of other agents".to_owned();
            return Err(Rejection::for_now(text));
        }
        *own += bytes;
        self.bytes += bytes;
        pending.add(part, bytes, now);
        Ok(())
    }

    #[cfg(test)]
    pub(in crate::core) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(in crate::core) fn take(
        &mut self,
        connection: ConnectionId,
    ) -> Vec<meseta::ReregisterPart> {
        let Some(pending) = self.pending.remove(&connection) else {
            return Vec::new();
        };
        self.bytes -= pending.bytes;
        let left = self.of_origin(&pending.origin) - pending.bytes;
        if left == 0 {
            self.by_origin.remove(&pending.origin);
        } else {
            self.by_origin.insert(pending.origin, left);
        }
        pending.parts
    }
}

#[cfg(test)]
mod tests {
    use meseta_proto::mesos::v1;

    use super::*;

    fn part(bytes: usize) -> meseta::ReregisterPart {
        let task = v1::Task {
            name: "x".repeat(bytes),
            ..v1::Task::default()
        };
        meseta::ReregisterPart {
            tasks: vec![prost::Message::encode_to_vec(&task)],
            ..meseta::ReregisterPart::default()
        }
    }

    fn partial_reregistrations_of(
        hosts: &[&str],
        bytes_max: usize,
        now: Moment,
    ) -> PartialReregistrations {
        let mut partial_reregistrations = PartialReregistrations::new(bytes_max);
        for (number, host) in (1..).zip(hosts) {
            let agent = AgentId::new(&format!("a-{number}")).unwrap();
            let origin = Origin::Host((*host).into());
            partial_reregistrations.begin(ConnectionId(number), agent, origin, now);
        }
        partial_reregistrations
    }

    fn add(
        partial_reregistrations: &mut PartialReregistrations,
        connection: u64,
        at: Moment,
    ) -> Result<(), Rejection> {
        partial_reregistrations.add(ConnectionId(connection), part(8), 1 << 20, at)
    }

    #[test]
    fn partial_reregistrations_are_limited_per_host() {
        let now = Moment::from_nanos(1);
        let mut partial_reregistrations =
            partial_reregistrations_of(&["false", "false", "b", "c"], 16 << 20, now);
        add(&mut partial_reregistrations, 2, now).unwrap();
        let filled = [1, 2, 3, 4].map(|connection| {
            let mut count = 0;
            while add(&mut partial_reregistrations, connection, now).is_ok() {
                count += 1;
            }
            count
        });
        assert_eq!(
            filled,
            [7, 0, 8, 0],
            "by the host's limit, then by that of all"
        );
        let permanent = add(&mut partial_reregistrations, 2, now)
            .unwrap_err()
            .is_permanent;
        assert!(!permanent, "it may try again");
        assert_eq!(partial_reregistrations.take(ConnectionId(1)).len(), 7);
        assert!(add(&mut partial_reregistrations, 4, now).is_ok());
        for (connection, parts) in [(2, 1), (3, 8), (4, 1)] {
            assert_eq!(
                partial_reregistrations.take(ConnectionId(connection)).len(),
                parts
            );
        }
        assert!(partial_reregistrations.bytes == 0 && partial_reregistrations.by_origin.is_empty());
    }

    #[test]
    fn evicts_largest_slow_partial_reregistration() {
        let start = Moment::from_nanos(1);
        let mut partial_reregistrations =
            partial_reregistrations_of(&["false", "false", "slow", "new"], 32 << 20, start);
        for connection in [1, 1, 2, 2, 3] {
            add(&mut partial_reregistrations, connection, start).unwrap();
        }
        let new = ConnectionId(4);
        assert_eq!(
            partial_reregistrations.slowest(new, start),
            None,
            "none is slow yet"
        );
        // The rate: 100 KB each 1.2 s.
        let mut now = start;
        for _ in 0..10 {
            now += Duration::from_millis(1_200);
            for connection in [1, 2] {
                let part = part(8);
                let drop =
                    partial_reregistrations.add(ConnectionId(connection), part, 100_000, now);
                drop.unwrap();
            }
        }
        now += Duration::from_millis(800);
        assert_eq!(
            partial_reregistrations.slowest(new, now),
            Some(ConnectionId(1))
        );
        partial_reregistrations.take(ConnectionId(1));
        partial_reregistrations.take(ConnectionId(2));
        assert_eq!(
            partial_reregistrations.slowest(new, now),
            Some(ConnectionId(3))
        );
        // A small origin never makes room for a larger one, and no sender that makes progress does.
        add(&mut partial_reregistrations, 4, now).unwrap();
        add(&mut partial_reregistrations, 4, now).unwrap();
        assert_eq!(partial_reregistrations.slowest(new, now), None);
        add(&mut partial_reregistrations, 3, now).unwrap();
        let small = ConnectionId(3);
        let later = now + Duration::from_secs(1);
        assert_eq!(partial_reregistrations.slowest(small, later), None);
        assert_eq!(
            partial_reregistrations.slowest(small, now + PACE_GRACE),
            Some(new)
        );
    }

    #[test]
    fn slow_partial_reregistration_reaches_deadline() {
        let start = Moment::from_nanos(1);
        let deadline = |parts: usize, bytes: usize| {
            let mut partial_reregistrations = partial_reregistrations_of(&["a"], 64 << 20, start);
            let mut now = start;
            for _ in 0..parts {
                now += Duration::from_secs(10);
                let added = partial_reregistrations.add(ConnectionId(1), part(8), bytes, now);
                added.unwrap();
            }
            let one = &partial_reregistrations.pending[&ConnectionId(1)];
            one.deadline().saturating_since(start).as_secs()
        };
        assert_eq!(deadline(0, 0), 30);
        assert_eq!(
            deadline(5, 100 * 1024),
            30 + 15,
            "10 KiB a second are too few"
        );
        assert_eq!(deadline(5, 400 * 1024), 50 + 30, "40 are enough");
        assert_eq!(deadline(59, 400 * 1024), 600);
    }
}
