//! File that records the limitation that ended a container, beside its exit record.
//!
//! The kernel's counters are removed with the groups, and the agent's own findings are lost with the agent. The file is
//! written before the first signal and before the removal of the groups, so that a restarted agent reports the same
//! limitation. It need not survive a power cut, which also ends the container. Blocking.

use std::fs;
use std::io;

use meseta_isolators::{ContainerName, Containers, again, is_shortage};
use tracing::warn;

use crate::checkpoint::{Limitation, decode_limitation, encode_limitation};

/// The file's name in the container's runtime folder.
const FILE: &str = "limitation";

/// Saves the limitation. After a failure only this agent process knows it.
pub(super) fn keep(containers: &Containers, name: &ContainerName, limitation: &Limitation) {
    let folder = containers.runtime_dir(name);
    let new = folder.join(format!("{FILE}.new"));
    let kept = encode_limitation(limitation)
        .and_then(|bytes| fs::write(&new, bytes))
        .and_then(|()| fs::rename(&new, folder.join(FILE)));
    if let Err(error) = kept {
        warn!(container_id = %name, %error, "failed to store the reason for the end of a \
            container");
    }
}

/// Reads the saved limitation. Fails only if the agent is out of resources.
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
