//! The roles of masters or schedulers, of which one leads.

use crate::daemon::Daemon;
use crate::http;
use crate::masters::FAILOVER_LIMIT;
use crate::wait::eventually;

/// Returns the role of a daemon; empty if it does not answer.
pub fn role(daemon: &Daemon) -> String {
    said(daemon, "role").unwrap_or_default()
}

/// Returns the leader's address as a daemon reports it.
fn leader(daemon: &Daemon) -> Option<String> {
    said(daemon, "leader")
}

fn said(daemon: &Daemon, what: &str) -> Option<String> {
    let answer = http::try_get(&format!("{}/leader", daemon.url)).ok()?;
    answer.json()[what].as_str().map(str::to_owned)
}

/// Returns the index of the leader among the selected daemons, once there is one.
pub fn leading(all: &[Daemon], is_looked_at: impl Fn(usize) -> bool) -> usize {
    eventually("one leads", FAILOVER_LIMIT, || {
        let mut candidates = (0..all.len()).filter(|index| is_looked_at(*index));
        candidates.find(|index| role(&all[*index]) == "leading")
    })
}

/// Waits until one leads and all know it: a follower learns of a leader somewhat later than the leader itself.
pub fn until_all_know(all: &[Daemon]) {
    eventually("one leads and all know it", FAILOVER_LIMIT, || {
        let leads = all.iter().find(|daemon| role(daemon) == "leading")?;
        let knows = |daemon| leader(daemon).as_deref() == Some(leads.address());
        all.iter().all(knows).then_some(())
    });
}
