//! The state that the agent needs after a crash, and its storage on disk.
//!
//! The core decides which records to write ([`Write`]); [`Store`] makes them durable in batches, on one thread;
//! [`read`] reads them back and changes nothing. The first write repairs the damage that [`read`] found. A reserve on
//! the disk ([`disk_room`]) allows tasks to end while the disk is full. Invariants: a record is replaced as a whole or
//! not at all; a log loses only records that were never confirmed as written; damage costs the run that it belongs to,
//! never the start. A shortage of descriptors, memory or disk space is not damage: the agent waits until it ends.

mod auxiliary;
mod compaction;
#[cfg(test)]
mod damage_tests;
pub(crate) mod disk_room;
mod durable;
mod executor_key;
mod frame;
mod holdings;
mod janitor;
mod layout;
mod limitation;
mod makings;
pub(crate) mod pending_writes;
mod read;
#[cfg(test)]
mod recorded;
mod records;
mod removals;
mod repair;
mod sandbox_ages;
mod store;
#[cfg(test)]
mod tests;
mod volume_places;
pub(crate) mod writer;

pub use auxiliary::{AuxiliaryError, read_learned_profile, write_learned_profile};
pub use disk_room::DiskCondition;
pub use durable::StoreError;
pub use executor_key::KeyError;
pub(crate) use executor_key::open as open_executor_key;
pub use frame::FrameError;
pub use holdings::{Holdings, ResourcesRecord, volume_path};
pub(crate) use holdings::{check_place, make_again};
pub use layout::{Layout, RunKey, TaskKey, inside};
pub use limitation::Limitation;
pub(crate) use limitation::{decode_limitation, encode_limitation};
#[cfg(test)]
pub(crate) use makings::tests::{go_on, silent_disk};
pub use pending_writes::Lsn;
pub use read::{
    AgentImage, Damage, ExecutorImage, FrameworkImage, Image, ReadError, RunImage, TaskImage, read,
};
pub use records::{
    AgentRecord, ExecutorRecord, FrameworkRecord, KillCause, KillRequested, LogEntry, LogRecord,
    Started, TaskRecord,
};
pub use repair::Repair;
pub(crate) use sandbox_ages::SandboxAges;
pub use store::{Commit, Store, Write};
pub(crate) use volume_places::{NotReady, VolumePlaces};
