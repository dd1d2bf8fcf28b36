//! The first port to try for the next task of each agent, so that every port has its turn before a port is used again.
//!
//! Not durable: after a start the ports continue behind those of the existing tasks.

use std::collections::BTreeMap;

/// Agents whose next port is remembered. The lowest ports of other agents are used again sooner.
const AGENTS_MAX: usize = 20_000;

#[derive(Debug, Default)]
pub(super) struct NextPorts(BTreeMap<String, u16>);

impl NextPorts {
    /// Notes the ports that a task has.
    pub(super) fn used(&mut self, agent_id: &str, ports: &BTreeMap<String, u16>) {
        let from = self.for_agent(agent_id);
        // The last port in turn: the lowest port follows the highest.
        let last = ports.values().max_by_key(|port| port.wrapping_sub(from));
        let Some(last) = last else {
            return;
        };
        if self.0.len() >= AGENTS_MAX && !self.0.contains_key(agent_id) {
            self.0.pop_first();
        }
        self.0.insert(agent_id.to_owned(), last.wrapping_add(1));
    }

    pub(super) fn for_agent(&self, agent_id: &str) -> u16 {
        self.0.get(agent_id).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_continue_and_wrap_around() {
        let ports = |numbers: &[u16]| -> BTreeMap<String, u16> {
            let named = numbers.iter().map(|number| (format!("p{number}"), *number));
            named.collect()
        };
        let mut next = NextPorts::default();
        assert_eq!(next.for_agent("a"), 0);
        next.used("a", &ports(&[31_000, 31_001]));
        assert_eq!((next.for_agent("a"), next.for_agent("b")), (31_002, 0));
        next.used("a", &ports(&[31_999, 31_000]));
        assert_eq!(next.for_agent("a"), 31_001);
        next.used("a", &ports(&[]));
        assert_eq!(next.for_agent("a"), 31_001);
        next.used("a", &ports(&[u16::MAX]));
        assert_eq!(next.for_agent("a"), 0);
    }

    #[test]
    fn remembered_agents_are_bounded() {
        let mut next = NextPorts::default();
        let ports = BTreeMap::from([("p".to_owned(), 1)]);
        for number in 0..AGENTS_MAX + 10 {
            next.used(&number.to_string(), &ports);
        }
        assert_eq!(next.0.len(), AGENTS_MAX);
    }
}
