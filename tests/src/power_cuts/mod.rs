//! Power cuts: the file system of an agent loses all unsynced data, and all its processes end at once.
//!
//! The work directory is a file system of its own on a loop device, the runtime directory one in memory. A cut shuts the
//! first down by the ioctl that ext4 and XFS have for it: unsynced data is lost, and no further data reaches the device.
//! Each process of the node is stopped right before, so that none reports the result of a sync that is under way, and
//! killed right after. Both file systems are unmounted and mounted again (the journal is replayed, the runtime directory is
//! empty), and the machine has another boot id. [`load`] keeps a framework busy and remembers its updates; after each start
//! and at the end [`facts`] compares them with agent, master and disk.

pub mod facts;
pub mod load;
pub mod memory;
pub mod node;
pub mod run;
