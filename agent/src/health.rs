//! Whether the agent is healthy, for the process around it: a service manager's status and watchdog.

use std::sync::Arc;

use crate::context::Context;
use crate::core::State;

/// Queries the health of the running agent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Health {
    pub(crate) context: Arc<Context>,
    pub(crate) master: String,
}

impl Health {
    /// A one-line status message; `None` when the core does not answer within a few seconds.
    pub async fn status(&self) -> Option<String> {
        let snapshot = self.context.snapshot().await.ok()?;
        let tasks = snapshot.executors().filter(|one| one.is_live()).count();
        let registration = match (&snapshot.state, &snapshot.agent_id) {
            (State::Running, Some(id)) => format!("Registered with {} as {id}", self.master),
            (State::Running, None) => format!("Registered with {}", self.master),
            (State::Terminating, _) => "Ending".to_owned(),
            (_, Some(id)) => format!("Not registered; {id} is looking for {}", self.master),
            (_, None) => format!("Not registered; looking for {}", self.master),
        };
        Some(format!("{registration}; containers: {tasks}"))
    }
}
