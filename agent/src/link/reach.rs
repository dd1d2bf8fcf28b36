//! Checks whether others can reach the advertised address of the agent, judged by the route to the master.
//!
//! Invariant: the warning appears once for each run of the agent, and delays no connection.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use meseta_daemon::advertised::is_of_this_machine;
use tracing::warn;

/// The advertised address of the agent, compared with each master that the agent connects to.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    advertised: IpAddr,
    is_warned: Arc<AtomicBool>,
}

impl Reach {
    pub(crate) fn new(advertised: IpAddr) -> Self {
        Self {
            advertised,
            is_warned: Arc::default(),
        }
    }

    /// Warns once if the master is on another machine and the advertised address is loopback.
    pub(super) fn check(&self, master: &str) {
        if !self.advertised.is_loopback() || self.is_warned.load(Ordering::Relaxed) {
            return;
        }
        let (this, master) = (self.clone(), master.to_owned());
        tokio::spawn(async move {
            let Ok(found) = tokio::net::lookup_host(&master).await else {
                return;
            };
            let masters: Vec<IpAddr> = found.map(|address| address.ip()).collect();
            if is_out_of_reach(this.advertised, &masters, &is_of_this_machine)
                && !this.is_warned.swap(true, Ordering::Relaxed)
            {
                warn!(
                    advertised = %this.advertised,
                    master,
                    "the agent advertises loopback to a master on another machine: clients there cannot reach its tasks, logs \
                     and pages; set --ip or --advertise_ip to an address of this machine"
                );
            }
        });
    }
}

/// Whether an advertised address is unreachable for clients near the master, which has one of these addresses.
pub(crate) fn is_out_of_reach(
    advertised: IpAddr,
    masters: &[IpAddr],
    is_here: &impl Fn(IpAddr) -> bool,
) -> bool {
    let is_elsewhere = !masters.is_empty() && !masters.iter().any(|ip| is_here(*ip));
    advertised.to_canonical().is_loopback() && is_elsewhere
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_unreachable_from_elsewhere() {
        let ip = |text: &str| -> IpAddr { text.parse().expect("an address") };
        let here = ["127.0.0.1", "::1", "10.0.0.7"].map(ip);
        let is_here = |ip: IpAddr| here.contains(&ip);
        for (advertised, masters, expected) in [
            ("127.0.0.1", vec!["10.0.0.1"], true),
            ("::1", vec!["fd00::1", "10.0.0.1"], true),
            ("::ffff:127.0.0.1", vec!["10.0.0.1"], true),
            ("127.0.0.1", vec!["127.0.0.1"], false),
            ("127.0.0.1", vec!["10.0.0.7"], false),
            ("::1", vec!["fd00::1", "::1"], false),
            ("10.0.0.7", vec!["10.0.0.1"], false),
            // An unknown name proves nothing.
            ("127.0.0.1", vec![], false),
        ] {
            let masters: Vec<_> = masters.into_iter().map(ip).collect();
            let found = is_out_of_reach(ip(advertised), &masters, &is_here);
            assert_eq!(found, expected, "{advertised} {masters:?}");
        }
    }
}
