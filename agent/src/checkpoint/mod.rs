//! What the agent must still know after a crash, and how it is kept on disk.
//!
//! The core decides what to write ([`Write`]); [`Store`] makes it durable in batches, on one thread;
//! [`read`] brings it back and changes nothing; what it finds damaged is put right by the first write. A
//! reserve on the disk ([`disk_room`]) is left for what ends while the disk is full.
//! Invariants: a record is replaced whole or not at all; a log loses at most what was never acknowledged as
//! written; damage costs the run that it belongs to, never the boot; want of descriptors, memory or room is
//! no damage and is waited for.

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
