//! The offers of a framework, and a check that no resource of an agent is offered twice.

use std::time::{Duration, Instant};

use serde_json::Value;

/// The CPUs of each agent.
pub(crate) const AGENT_CPUS: f64 = 16.0;
/// The precision of sums of tenths.
const ROUNDING: f64 = 1e-6;

#[derive(Debug, Default)]
pub(crate) struct Offers {
    held: Vec<(Value, Instant)>,
}

impl Offers {
    /// Adds an offer; fails if its agent does not have the offered CPUs beside all other offers and `used` CPUs.
    pub(crate) fn add(&mut self, offer: Value, used: f64) -> Result<(), String> {
        let agent = offer["agent_id"].clone();
        self.held.push((offer, Instant::now()));
        let of_agent = self.held.iter().filter(|(one, _)| one["agent_id"] == agent);
        let offered: f64 = of_agent.map(|(one, _)| cpus(one)).sum();
        match offered + used <= AGENT_CPUS + ROUNDING {
            true => Ok(()),
            false => Err(format!(
                "agent {agent} has {AGENT_CPUS} cpus, of which {used} are used and {offered} are offered"
            )),
        }
    }

    pub(crate) fn remove(&mut self, id: &str) {
        self.held.retain(|(offer, _)| offer["id"]["value"] != id);
    }

    /// Takes an offer that was held for longer than this.
    pub(crate) fn take_older_than(&mut self, age: Duration) -> Option<Value> {
        let at = self
            .held
            .iter()
            .position(|(_, since)| since.elapsed() > age)?;
        Some(self.held.remove(at).0)
    }
}

fn cpus(offer: &Value) -> f64 {
    let all = offer["resources"].as_array().into_iter().flatten();
    let cpus = all.filter(|resource| resource["name"] == "cpus");
    cpus.filter_map(|resource| resource["scalar"]["value"].as_f64())
        .sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn double_offer_is_detected() {
        let offer = |id: &str, cpus: f64| {
            json!({"id": {"value": id}, "agent_id": {"value": "a"}, "resources": [
                {"name": "cpus", "scalar": {"value": cpus}}, {"name": "mem", "scalar": {"value": 64.0}}]})
        };
        let mut offers = Offers::default();
        assert_eq!(offers.add(offer("1", 10.0), 2.0), Ok(()));
        assert_eq!(offers.add(offer("2", 4.0), 2.0), Ok(()));
        assert!(offers.add(offer("3", 0.1), 2.0).is_err());
        offers.remove("3");
        offers.remove("1");
        assert_eq!(offers.add(offer("4", 10.0), 2.0), Ok(()));
        assert!(offers.take_older_than(Duration::from_secs(9)).is_none());
    }
}
