//! Returns of agents that come in parts, put together.
//!
//! The first part says whose it is, and is refused if that agent may not come; the return itself comes last
//! and takes with it what was gathered. Invariant: what is gathered has a limit in bytes, for one connection
//! and for all together, and nothing of it outlives its connection.

use std::collections::BTreeMap;

use meseta_proto::meseta::v1 as meseta;
use meseta_proto::mesos::v1;
use meseta_resources::AgentId;
use prost::Message;

use super::MasterCore;
use super::agent_profile::profile;
use super::io::ConnectionId;

/// Bytes that one agent may tell before its return.
const RETURN_BYTES_MAX: usize = 128 * 1024 * 1024;
/// Bytes of all returns that are incomplete. Agents that find no room try again.
const RETURNS_BYTES_MAX: usize = 192 * 1024 * 1024;

/// What has been told so far.
#[derive(Debug, Default)]
pub(super) struct Returns {
    gathered: BTreeMap<ConnectionId, Gathered>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Gathered {
    parts: Vec<meseta::ReregisterPart>,
    bytes: usize,
}

impl Returns {
    fn add(
        &mut self,
        connection: ConnectionId,
        part: meseta::ReregisterPart,
    ) -> Result<(), (String, bool)> {
        let bytes = part.encoded_len();
        let own = self.gathered.get(&connection);
        let own = own.map_or(0, |gathered| gathered.bytes);
        if own.saturating_add(bytes) > RETURN_BYTES_MAX {
            let text = format!("the agent holds more than {RETURN_BYTES_MAX} bytes of tasks");
            return Err((text, false));
        }
        if self.bytes.saturating_add(bytes) > RETURNS_BYTES_MAX {
            let text = "the master is busy putting the returns of others together".to_owned();
            return Err((text, false));
        }
        self.bytes += bytes;
        let gathered = self.gathered.entry(connection).or_default();
        gathered.bytes += bytes;
        gathered.parts.push(part);
        Ok(())
    }

    fn take(&mut self, connection: ConnectionId) -> Vec<meseta::ReregisterPart> {
        let gathered = self.gathered.remove(&connection).unwrap_or_default();
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
        let register = part.register.take();
        if !self.returns.gathered.contains_key(&connection) {
            let Some(register) = register else {
                let text = "the first part of a return must say whose it is".to_owned();
                return Err((text, true));
            };
            let id = register.agent_info.id.as_ref();
            let id = AgentId::new(id.map_or("", |id| id.value.as_str()));
            let id = id.map_err(|error| (error.to_string(), true))?;
            let profile = profile(id.clone(), register).map_err(|reason| (reason, true))?;
            self.check_agent_is_authorized(connection, &profile, Some(&id))?;
        }
        self.returns.add(connection, part)
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

    #[test]
    fn what_is_gathered_has_a_limit_for_one_and_for_all() {
        let mut returns = Returns::default();
        let connections = [ConnectionId(1), ConnectionId(2)];
        let mut filled = [0, 0];
        for (connection, filled) in connections.into_iter().zip(&mut filled) {
            while returns.add(connection, part(8 << 20)).is_ok() {
                *filled += 1;
            }
        }
        assert_eq!(filled, [15, 8], "one by its own limit, one by that of all");
        let (_, permanent) = returns.add(ConnectionId(2), part(8 << 20)).unwrap_err();
        assert!(!permanent, "it may try again");
        assert_eq!(returns.take(ConnectionId(1)).len(), 15);
        assert!(returns.add(ConnectionId(2), part(8 << 20)).is_ok());
        assert_eq!(returns.take(ConnectionId(2)).len(), 9);
        assert_eq!(returns.bytes, 0);
    }
}
