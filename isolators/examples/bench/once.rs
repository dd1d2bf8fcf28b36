//! A single launch of `/bin/true`, from the call until nothing is left.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use meseta_isolators::{Containers, DestroyOptions};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::bench::{AnyError, spec};

/// Launches a container; returns the times until exec, from then to the supervisor's end, and from then until all is removed.
pub(crate) fn launch(
    containers: &Containers,
    folder: &Path,
    number: u64,
) -> Result<[Duration; 3], AnyError> {
    let spec = spec(number, folder, "/bin/true", &[])?;
    let began = Instant::now();
    let launched = containers.launch(&spec)?;
    let executed = Instant::now();
    if let Some(pidfd) = containers.watch(&launched.supervisor)? {
        let mut ended = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        poll(&mut ended, PollTimeout::NONE)?;
    }
    let ended = Instant::now();
    let supervisor = Some(&launched.supervisor);
    containers.destroy(&spec.name, supervisor, DestroyOptions::default())?;
    containers.forget(&spec.name)?;
    Ok([executed - began, ended - executed, ended.elapsed()])
}
