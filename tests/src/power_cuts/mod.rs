//! Power cuts: the file system of an agent loses what was not synced, and all its processes end at once.
//!
//! The work directory is a file system of its own on a loop device, the runtime directory one in memory. A cut shuts the
//! first down by the ioctl that ext4 and XFS have for it: what was not synced is lost, and nothing more reaches the
//! device. Each process of the node is stopped right before, so that none says what comes of a sync that is under way,
//! and killed right after. Both file systems are unmounted and mounted again (the journal is replayed, the runtime
//! directory is empty), and the machine has another boot id. [`load`] keeps a framework busy and remembers what it was
//! told; after each start and at the end [`facts`] compares that with agent, master and disk.

pub mod facts;
pub mod load;
pub mod memory;
pub mod node;
pub mod run;
