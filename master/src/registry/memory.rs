//! A registry in memory: for tests and temporary clusters.

use crate::core::{Lsn, Mutation, Recovered};

use super::{OnPersisted, Registry};

/// A registry that reports every mutation as durable at once.
pub struct InMemory {
    on_persisted: OnPersisted,
}

impl std::fmt::Debug for InMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InMemory")
    }
}

impl InMemory {
    /// Opens an empty registry in its first epoch.
    #[must_use]
    pub fn open(on_persisted: OnPersisted) -> (Recovered, Self) {
        let recovered = Recovered {
            epoch: 1,
            cluster_id: uuid::Uuid::new_v4().to_string(),
            is_forgotten: true,
            ..Recovered::default()
        };
        (recovered, Self { on_persisted })
    }
}

impl Registry for InMemory {
    fn persist(&mut self, lsn: Lsn, _mutation: Mutation) {
        (self.on_persisted)(lsn);
    }

    fn close(self: Box<Self>) {}
}
