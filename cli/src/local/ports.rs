//! The loopback ports of `meseta local`, and free ones to suggest where they are taken.
//!
//! Entered through [`refuse_taken`], before any daemon is started. The decision is pure, over a function that says whether
//! a port is free. Invariant: suggested ports were free, for all daemons at once.

use std::net::TcpListener;

use anyhow::{Context as _, bail};
use meseta_daemon::advertised::{usual_address, usual_loopback};

/// The distance of suggested ports from the requested ones, and from each other.
const STEP: u16 = 10;
/// Sets of ports that are tried before the suggestion is given up.
const OFFERS_MAX: u16 = 100;

/// The requested ports of all daemons; 0 stands for any free port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ports {
    /// The port of the first master; the others take the ports below.
    pub(super) master: u16,
    pub(super) masters: u16,
    /// The port of the first agent; the others take the ports above.
    pub(super) agent: u16,
    pub(super) agents: u16,
    /// The scheduler's port, if requested by number.
    pub(super) scheduler: u16,
}

impl Ports {
    /// Returns the port of a master, where the first has the index 0.
    pub(super) fn of_master(&self, index: u16) -> anyhow::Result<u16> {
        if self.master == 0 {
            return Ok(0);
        }
        let port = self.master.checked_sub(index).filter(|port| *port > 0);
        port.context("--port leaves no room below it")
    }

    /// Returns the port of an agent, where the first has the index 0.
    pub(super) fn of_agent(&self, index: u16) -> anyhow::Result<u16> {
        if self.agent == 0 {
            return Ok(0);
        }
        let port = self.agent.checked_add(index);
        port.context("--agent_port leaves no room above it")
    }

    /// Returns all ports requested by number.
    fn fixed(&self) -> anyhow::Result<Vec<u16>> {
        let masters = (0..self.masters).map(|index| self.of_master(index));
        let agents = (0..self.agents).map(|index| self.of_agent(index));
        let scheduler = std::iter::once(Ok(self.scheduler));
        let all: anyhow::Result<Vec<u16>> = masters.chain(agents).chain(scheduler).collect();
        Ok(all?.into_iter().filter(|port| *port != 0).collect())
    }

    /// Returns the same number of ports elsewhere, all of them free.
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
                scheduler: moved(self.scheduler, by)?,
                ..*self
            };
            let ports = other.fixed().ok()?;
            let is_whole = shared(&ports).is_none() && ports.iter().all(|port| is_free(*port));
            is_whole.then_some(other)
        })
    }

    /// Returns the scheduler's port: the requested one, or else `usual` if it is free and no other daemon's, or else any.
    pub(super) fn of_scheduler(&self, usual: u16) -> anyhow::Result<u16> {
        self.of_scheduler_among(usual, &is_free)
    }

    fn of_scheduler_among(
        &self,
        usual: u16,
        is_free: &impl Fn(u16) -> bool,
    ) -> anyhow::Result<u16> {
        if self.scheduler != 0 {
            return Ok(self.scheduler);
        }
        let is_usual = !self.fixed()?.contains(&usual) && is_free(usual);
        Ok(if is_usual { usual } else { 0 })
    }
}

/// Returns a port that two daemons would share.
fn shared(ports: &[u16]) -> Option<u16> {
    let mut ports = ports.to_vec();
    ports.sort_unstable();
    let twice = ports.windows(2).find(|pair| pair[0] == pair[1])?;
    twice.first().copied()
}

/// Fails if ports are in use, and names them with free replacements.
pub(super) fn refuse_taken(ports: Ports) -> anyhow::Result<()> {
    check(ports, &is_free)
}

fn check(ports: Ports, is_free: &impl Fn(u16) -> bool) -> anyhow::Result<()> {
    let fixed = ports.fixed()?;
    if let Some(port) = shared(&fixed) {
        bail!(
            "two daemons would use port {port}: give --port, --agent_port and --scheduler_port \
             further apart"
        );
    }
    let taken = fixed.into_iter().filter(|port| !is_free(*port));
    let taken: Vec<String> = taken.map(usual_address).collect();
    if taken.is_empty() {
        return Ok(());
    }
    let verb = if taken.len() == 1 { "is" } else { "are" };
    let taken = taken.join(" and ");
    let free = match ports.elsewhere(is_free) {
        Some(free) => {
            let scheduler = match free.scheduler {
                0 => String::new(),
                port => format!(" --scheduler_port={port}"),
            };
            format!(
                "these are free: --port={} --agent_port={}{scheduler}",
                free.master, free.agent
            )
        }
        None => "--port=0 --agent_port=0 picks free ones".to_owned(),
    };
    bail!("{taken} {verb} in use, perhaps by another `meseta local`; {free}")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((usual_loopback(), port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Ports = Ports {
        master: 5050,
        masters: 1,
        agent: 5051,
        agents: 3,
        scheduler: 0,
    };

    fn said(ports: Ports, taken: &[u16]) -> Option<String> {
        let outcome = check(ports, &|port| !taken.contains(&port));
        outcome.err().map(|error| error.to_string())
    }

    #[test]
    fn free_ports_replace_taken_ones() {
        assert_eq!(said(USUAL, &[5049, 5054]), None);
        // The ports 5060 to 5063 are not free either.
        let text = said(USUAL, &[5050, 5051, 5062]).expect("refused");
        assert!(
            text.starts_with("127.0.0.1:5050 and 127.0.0.1:5051 are in use"),
            "{text}"
        );
        assert!(text.ends_with("--port=5070 --agent_port=5071"), "{text}");
    }

    /// Regression: the 20th agent has port 5070, on which the scheduler could then not listen.
    #[test]
    fn scheduler_has_its_own_port() {
        let of_scheduler = |ports: Ports, taken: &[u16]| {
            let port = ports.of_scheduler_among(5070, &|port| !taken.contains(&port));
            port.expect("ports")
        };
        let twenty = Ports {
            agents: 20,
            ..USUAL
        };
        assert_eq!(of_scheduler(USUAL, &[]), 5070);
        assert_eq!(of_scheduler(USUAL, &[5070]), 0);
        assert_eq!(of_scheduler(twenty, &[]), 0);
        let given = Ports {
            scheduler: 5071,
            ..twenty
        };
        assert_eq!(of_scheduler(given, &[5071]), 5071);
        let text = said(given, &[5071]).expect("refused");
        assert!(text.starts_with("127.0.0.1:5071 is in use"), "{text}");
        assert!(
            text.ends_with("--port=5080 --agent_port=5081 --scheduler_port=5101"),
            "{text}"
        );
        let shared = Ports {
            scheduler: 5070,
            ..twenty
        };
        let text = said(shared, &[]).expect("refused");
        assert!(
            text.starts_with("two daemons would use port 5070"),
            "{text}"
        );
    }

    #[test]
    fn ports_of_any_number_stay_so() {
        let any_master = Ports { master: 0, ..USUAL };
        assert_eq!(said(any_master, &[5050]), None);
        let text = said(any_master, &[5053]).expect("refused");
        assert!(text.ends_with("--port=0 --agent_port=5061"), "{text}");
    }

    #[test]
    fn full_range_offers_any_port() {
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
