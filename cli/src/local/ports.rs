//! Which ports of loopback `meseta local` takes, and free ones to offer instead where those are taken.
//!
//! Entered through [`refuse_taken`], before any daemon is started. Deciding is pure, over a function that says whether a
//! port is free. Invariant: what is offered was free, for all daemons at once.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context as _, bail};

/// How far the ports that are offered are from those that were asked for, and from each other.
const STEP: u16 = 10;
/// Offers that are tried before none is made.
const OFFERS_MAX: u16 = 100;

/// The ports of all daemons, by what was asked for; 0 stands for any free one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ports {
    /// The first master's; the others take those below it.
    pub(super) master: u16,
    pub(super) masters: u16,
    /// The first agent's; the others take those above it.
    pub(super) agent: u16,
    pub(super) agents: u16,
}

impl Ports {
    /// The port of one of the masters, the first being 0.
    pub(super) fn of_master(&self, index: u16) -> anyhow::Result<u16> {
        if self.master == 0 {
            return Ok(0);
        }
        let port = self.master.checked_sub(index).filter(|port| *port > 0);
        port.context("--port leaves no room below it")
    }

    /// The port of one of the agents, the first being 0.
    pub(super) fn of_agent(&self, index: u16) -> anyhow::Result<u16> {
        if self.agent == 0 {
            return Ok(0);
        }
        let port = self.agent.checked_add(index);
        port.context("--agent_port leaves no room above it")
    }

    /// All that are asked for by number.
    fn fixed(&self) -> anyhow::Result<Vec<u16>> {
        let masters = (0..self.masters).map(|index| self.of_master(index));
        let agents = (0..self.agents).map(|index| self.of_agent(index));
        let all: anyhow::Result<Vec<u16>> = masters.chain(agents).collect();
        Ok(all?.into_iter().filter(|port| *port != 0).collect())
    }

    /// The same number of ports elsewhere, all of them free.
    fn elsewhere(&self, is_free: &impl Fn(u16) -> bool) -> Option<Self> {
        let moved = |port: u16, by: u16| match port {
            0 => Some(0),
            port => port.checked_add(by),
        };
        (1..=OFFERS_MAX).find_map(|step| {
            let by = step.checked_mul(STEP)?;
            let other = Self {
                master: moved(self.master, by)?,
                agent: moved(self.agent, by)?,
                ..*self
            };
            let ports = other.fixed().ok()?;
            ports.iter().all(|port| is_free(*port)).then_some(other)
        })
    }
}

/// Ends with the ports that are taken and with others that are free.
pub(super) fn refuse_taken(ports: Ports) -> anyhow::Result<()> {
    check(ports, &is_free)
}

fn check(ports: Ports, is_free: &impl Fn(u16) -> bool) -> anyhow::Result<()> {
    let taken = ports.fixed()?.into_iter().filter(|port| !is_free(*port));
    let taken: Vec<String> = taken.map(|port| format!("127.0.0.1:{port}")).collect();
    if taken.is_empty() {
        return Ok(());
    }
    let verb = if taken.len() == 1 { "is" } else { "are" };
    let taken = taken.join(" and ");
    let free = match ports.elsewhere(is_free) {
        Some(free) => format!(
            "these are free: --port={} --agent_port={}",
            free.master, free.agent
        ),
        None => "--port=0 --agent_port=0 picks free ones".to_owned(),
    };
    bail!("{taken} {verb} in use, perhaps by another `meseta local`; {free}")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Ports = Ports {
        master: 5050,
        masters: 1,
        agent: 5051,
        agents: 3,
    };

    fn said(ports: Ports, taken: &[u16]) -> Option<String> {
        let outcome = check(ports, &|port| !taken.contains(&port));
        outcome.err().map(|error| error.to_string())
    }

    #[test]
    fn free_ports_are_offered_for_those_that_are_taken() {
        assert_eq!(said(USUAL, &[5049, 5054]), None);
        // 5060 to 5063 are not free either.
        let text = said(USUAL, &[5050, 5051, 5062]).expect("refused");
        assert!(
            text.starts_with("127.0.0.1:5050 and 127.0.0.1:5051 are in use"),
            "{text}"
        );
        assert!(text.ends_with("--port=5070 --agent_port=5071"), "{text}");
    }

    #[test]
    fn ports_of_any_number_stay_so() {
        let any_master = Ports { master: 0, ..USUAL };
        assert_eq!(said(any_master, &[5050]), None);
        let text = said(any_master, &[5053]).expect("refused");
        assert!(text.ends_with("--port=0 --agent_port=5061"), "{text}");
    }

    #[test]
    fn where_there_is_no_room_any_port_is_offered() {
        let high = Ports {
            agent: 65_530,
            ..USUAL
        };
        let text = said(high, &[65_530]).expect("refused");
        assert!(
            text.ends_with("--port=0 --agent_port=0 picks free ones"),
            "{text}"
        );
        let beyond = Ports {
            agent: 65_534,
            ..USUAL
        };
        assert!(check(beyond, &|_| true).is_err(), "65536 is no port");
        let below = Ports {
            master: 2,
            masters: 3,
            ..USUAL
        };
        assert!(check(below, &|_| true).is_err(), "0 is no port");
    }
}
