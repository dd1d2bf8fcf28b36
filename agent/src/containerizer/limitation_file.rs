//! File that records the limitation that ended a container, beside its exit record.
//!
//! The kernel's counters go with the groups, and what the agent found out by itself goes with the agent. Kept
//! before the first signal and before the groups are removed, so that a later life of the agent tells the
//! same; it needs to outlive no power cut, which ends the container too. Blocking.

use std::fs;
use std::io;

use meseta_isolators::{ContainerName, Containers, again, is_shortage};
use tracing::warn;

use crate::checkpoint::{Limitation, decode_limitation, encode_limitation};

/// Its name in the container's runtime folder.
const FILE: &str = "limitation";

/// Keeps it. Where that fails, this life of the agent still knows.
pub(super) fn keep(containers: &Containers, name: &ContainerName, limitation: &Limitation) {
    let folder = containers.runtime_dir(name);
    let new = folder.join(format!("{FILE}.new"));
    let kept = encode_limitation(limitation)
        .and_then(|bytes| fs::write(&new, bytes))
        .and_then(|()| fs::rename(&new, folder.join(FILE)));
    if let Err(error) = kept {
        warn!(container_id = %name, %error, "why a container ends is not kept for a later start");
    }
}

/// What was kept; an error is want of ours.
pub(crate) fn kept(
    containers: &Containers,
    name: &ContainerName,
) -> io::Result<Option<Limitation>> {
    let file = containers.runtime_dir(name).join(FILE);
    match again(|| fs::read(&file)) {
        Ok(bytes) => Ok(decode_limitation(&bytes)),
        Err(error) if is_shortage(&error) => Err(error),
        Err(_) => Ok(None),
    }
}
