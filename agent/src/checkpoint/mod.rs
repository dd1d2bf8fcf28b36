//! What the agent must still know after a crash, and how it is kept on disk.
//!
//! The core decides what to write ([`Write`]); [`Store`] makes it durable in batches, on one thread;
//! [`read`] brings it back. Invariants: a record is replaced whole or not at all; a log loses at most
//! what was never acknowledged as written; damage costs the run that it belongs to, never the boot.

mod durable;
mod frame;
mod habits;
mod holdings;
mod janitor;
mod layout;
mod read;
mod records;
mod store;
#[cfg(test)]
mod tests;

pub use durable::StoreError;
pub use frame::FrameError;
pub use habits::{HabitsError, read_habits, write_habits};
pub use holdings::{Holdings, ResourcesRecord, check_place, volume_path};
pub use layout::{Layout, RunKey, TaskKey, inside, nested_id, nested_names, outermost};
pub use read::{
    AgentImage, Damage, ExecutorImage, FrameworkImage, Image, ReadError, RunImage, TaskImage, read,
};
pub use records::{
    AgentRecord, ExecutorRecord, FrameworkRecord, KillCause, KillRequested, LogEntry, LogRecord,
    Started, TaskRecord,
};
pub use store::{Commit, Store, Write};
