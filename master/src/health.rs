//! The health of the master for the surrounding process: a service manager's status and watchdog.

use std::time::Duration;

use crate::handle::{Handle, Query};

/// The time for an answer of the core, which answers at once on a healthy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks the health of the running master. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Health {
    pub(crate) handle: Handle,
}

impl Health {
    /// A line for people; `None` if the core does not answer within a few seconds.
    pub async fn status(&self) -> Option<String> {
        let role = self.handle.standing.now();
        match role.status("master", "registry") {
            None => self.leading().await,
            waiting => waiting,
        }
    }

    async fn leading(&self) -> Option<String> {
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, self.handle.query(Query::Snapshot));
        let snapshot = asked.await.ok()?.ok()?;
        let connected = snapshot.agents.iter().filter(|agent| agent.connected);
        Some(format!(
            "Leading; agents: {} of {}, frameworks: {}",
            connected.count(),
            snapshot.agents.len() + snapshot.recovered_agents.len(),
            snapshot.frameworks.len()
        ))
    }
}
