//! Returns of agents that come in parts, put together.
//!
//! The first part says whose it is, and is refused if that agent may not come; the return itself comes last
//! and takes with it what was gathered. Invariant: what is gathered has a limit in bytes as they are in memory, for
//! one connection and for all together; nothing of it outlives its connection, and none that stands still keeps
//! another agent out.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_proto::meseta::v1 as meseta;
use meseta_proto::mesos::v1;
use meseta_proto::schema;
use meseta_resources::AgentId;
use meseta_resources::time::Moment;

use super::MasterCore;
use super::agent_profile::profile;
use super::io::ConnectionId;
use super::timers::Timer;

/// What an agent hears whose id this master is still to give.
pub(super) const NOT_GIVEN: &str =
    "the agent's id is one that this master has not given to anybody yet";

/// For how long a return may go on without one part of this size. Agents send parts of megabytes, one after
/// another.
const STILL_MAX: Duration = Duration::from_secs(30);
const PROGRESS_BYTES: usize = 64 * 1024;
/// For how long it may go on altogether.
const RETURN_TIME_MAX: Duration = Duration::from_secs(600);
/// After so long without progress it makes room for others.
const STILL: Duration = Duration::from_secs(2);

/// What has been told so far.
#[derive(Debug)]
pub(super) struct Returns {
    gathered: BTreeMap<ConnectionId, Gathered>,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Gathered {
    parts: Vec<meseta::ReregisterPart>,
    bytes: usize,
    begun: Moment,
    progress: Moment,
}

impl Gathered {
    fn new(now: Moment) -> Self {
        Self {
            parts: Vec::new(),
            bytes: 0,
            begun: now,
            progress: now,
        }
    }

    /// When it is given up if nothing comes.
    fn deadline(&self) -> Moment {
        (self.progress + STILL_MAX).min(self.begun + RETURN_TIME_MAX)
    }
}

impl Returns {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            gathered: BTreeMap::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Bytes that one agent may tell before its return: others find room beside it.
    fn own_max(&self) -> usize {
        self.bytes_max / 4 * 3
    }

    /// The return that has made no progress for the longest time, if that is long enough to make room.
    fn stillest(&self, now: Moment) -> Option<ConnectionId> {
        let all = self.gathered.iter();
        let still = all.filter(|(_, one)| now.saturating_since(one.progress) >= STILL);
        let stillest = still.min_by_key(|(_, one)| one.progress);
        stillest.map(|(connection, _)| *connection)
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.bytes.saturating_add(bytes) <= self.bytes_max
    }

    fn add(
        &mut self,
        connection: ConnectionId,
        part: meseta::ReregisterPart,
        bytes: usize,
        now: Moment,
    ) -> Result<(), (String, bool)> {
        let own = self.gathered.get(&connection);
        let own = own.map_or(0, |gathered| gathered.bytes);
        let own_max = self.own_max();
        if own.saturating_add(bytes) > own_max {
            let text = format!(
                "the agent's return would take more than {own_max} bytes of memory: raise the \
                 master's --memory_budget"
            );
            return Err((text, false));
        }
        if !self.has_room(bytes) {
            let text = "the master is busy putting the returns of others together".to_owned();
            return Err((text, false));
        }
        self.bytes += bytes;
        let gathered = self.gathered.entry(connection);
        let gathered = gathered.or_insert_with(|| Gathered::new(now));
        gathered.bytes += bytes;
        if bytes >= PROGRESS_BYTES {
            gathered.progress = now;
        }
        gathered.parts.push(part);
        Ok(())
    }

    /// What is gathered.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn take(&mut self, connection: ConnectionId) -> Vec<meseta::ReregisterPart> {
        let Some(gathered) = self.gathered.remove(&connection) else {
            return Vec::new();
        };
        self.bytes -= gathered.bytes;
        gathered.parts
    }
}

impl MasterCore {
    /// Keeps a part of a return.
    pub(super) fn gather(
        &mut self,
        connection: ConnectionId,
        mut part: meseta::ReregisterPart,
    ) -> Result<(), (String, bool)> {
        let bytes = schema::bytes_of(&part);
        let now = self.timers.clock();
        let register = part.register.take();
        let is_new = !self.returns.gathered.contains_key(&connection);
        if is_new {
            let Some(register) = register else {
                let text = "the first part of a return must say whose it is".to_owned();
                return Err((text, true));
            };
            let id = register.agent_info.id.as_ref();
            let id = AgentId::new(id.map_or("", |id| id.value.as_str()));
            let id = id.map_err(|error| (error.to_string(), true))?;
            if self.is_future_agent(&id) {
                return Err((NOT_GIVEN.to_owned(), true));
            }
            let profile = profile(id.clone(), register).map_err(|reason| (reason, true))?;
            self.check_agent_is_authorized(connection, &profile, Some(&id))?;
        }
        while !self.returns.has_room(bytes)
            && let Some(still) = self.returns.stillest(now)
            && still != connection
        {
            let text = "the return stood still, and others need its room".to_owned();
            self.give_up_return(still, text);
        }
        self.returns.add(connection, part, bytes, now)?;
        if is_new {
            self.set_return_timer(connection);
        }
        Ok(())
    }

    fn set_return_timer(&mut self, connection: ConnectionId) {
        if let Some(gathered) = self.returns.gathered.get(&connection) {
            let at = self.timers.real(gathered.deadline());
            self.timers.set(at, Timer::Return { connection });
        }
    }

    /// Gives a return up that has not been completed in its time.
    pub(super) fn check_return(&mut self, connection: ConnectionId) {
        let Some(gathered) = self.returns.gathered.get(&connection) else {
            return;
        };
        if gathered.deadline() > self.timers.clock() {
            self.set_return_timer(connection);
            return;
        }
        let text = "the return was not completed in its time".to_owned();
        self.give_up_return(connection, text);
    }

    /// The agent may come again.
    fn give_up_return(&mut self, connection: ConnectionId, text: String) {
        self.forget_return(connection);
        self.refuse_agent(connection, text, false);
    }

    /// A return with all that was told before it.
    pub(super) fn gathered(
        &mut self,
        connection: ConnectionId,
        mut report: meseta::Reregister,
    ) -> meseta::Reregister {
        let parts = self.returns.take(connection);
        if parts.is_empty() {
            return report;
        }
        let last = std::mem::take(&mut report.tasks);
        let (executors, frameworks) = (
            std::mem::take(&mut report.executors),
            std::mem::take(&mut report.frameworks),
        );
        let operations = std::mem::take(&mut report.operations);
        for part in parts {
            report.tasks.extend(part.tasks);
            report.executors.extend(part.executors);
            report.frameworks.extend(part.frameworks);
            report.operations.extend(part.operations);
        }
        report.tasks.extend(last);
        report.executors.extend(executors);
        report.frameworks.extend(frameworks);
        report.operations.extend(operations);
        report
    }

    /// Forgets what a connection has told.
    pub(super) fn forget_return(&mut self, connection: ConnectionId) {
        self.returns.take(connection);
    }
}

/// What an agent would say that comes back under this id with nothing.
pub(super) fn empty_handed(mut register: meseta::Register, id: &AgentId) -> meseta::Reregister {
    register.agent_info.id = Some(v1::AgentId {
        value: id.to_string(),
    });
    meseta::Reregister {
        register,
        ..meseta::Reregister::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(bytes: usize) -> meseta::ReregisterPart {
        let task = v1::Task {
            name: "x".repeat(bytes),
            ..v1::Task::default()
        };
        meseta::ReregisterPart {
            tasks: vec![task],
            ..meseta::ReregisterPart::default()
        }
    }

    fn add(returns: &mut Returns, connection: u64, at: Moment) -> Result<(), (String, bool)> {
        returns.add(ConnectionId(connection), part(8), 1 << 20, at)
    }

    #[test]
    fn what_is_gathered_has_a_limit_for_one_and_for_all() {
        let now = Moment::from_nanos(1);
        let mut returns = Returns::new(16 << 20);
        let mut filled = [0, 0];
        for (connection, filled) in [1, 2].into_iter().zip(&mut filled) {
            while add(&mut returns, connection, now).is_ok() {
                *filled += 1;
            }
        }
        assert_eq!(filled, [12, 4], "one by its own limit, one by that of all");
        let (_, permanent) = add(&mut returns, 2, now).unwrap_err();
        assert!(!permanent, "it may try again");
        assert_eq!(returns.take(ConnectionId(1)).len(), 12);
        assert!(add(&mut returns, 2, now).is_ok());
        assert_eq!(returns.take(ConnectionId(2)).len(), 5);
        assert_eq!(returns.bytes, 0);
    }

    #[test]
    fn the_stillest_is_the_one_without_progress_for_the_longest_time() {
        let start = Moment::from_nanos(1);
        let mut returns = Returns::new(16 << 20);
        for connection in 1..=3 {
            add(&mut returns, connection, start).unwrap();
        }
        assert_eq!(returns.stillest(start), None, "none stands still yet");
        let later = start + STILL;
        add(&mut returns, 1, later).unwrap();
        assert_eq!(returns.stillest(later), Some(ConnectionId(2)));
        // Some bytes are no progress.
        let tiny = returns.add(ConnectionId(2), part(8), 100, later);
        assert!(tiny.is_ok());
        assert_eq!(returns.stillest(later), Some(ConnectionId(2)));
    }
}
