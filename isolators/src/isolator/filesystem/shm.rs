//! filesystem/shm: a private `/dev/shm` with a size limit, so that containers share no memory by name.

use crate::isolator::{ContainerSpec, Isolator};
use crate::launcher::{LaunchIsolation, MountAction, MountStep};

/// The minimum: less than a page holds nothing, and 0 would mean half of the machine's memory.
const SIZE_MIN_BYTES: u64 = 4096;

#[derive(Debug)]
pub(crate) struct Shm {
    bytes: u64,
}

impl Shm {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { bytes }
    }

    fn mount(&self, requested: Option<u64>, launch: &mut LaunchIsolation) {
        let bytes = requested.unwrap_or(self.bytes).max(SIZE_MIN_BYTES);
        launch.mounts.push(MountStep {
            path: "/dev/shm".into(),
            action: MountAction::Tmpfs { bytes },
        });
    }
}

impl Isolator for Shm {
    fn name(&self) -> &'static str {
        "filesystem/shm"
    }

    fn launch(&self, spec: &ContainerSpec, launch: &mut LaunchIsolation) -> Result<(), String> {
        if !spec.isolation.share_ipc_namespace {
            self.mount(spec.isolation.shm_bytes, launch);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shm_size_is_bounded() {
        for (requested, expected) in [(None, 9000), (Some(5000), 5000), (Some(0), SIZE_MIN_BYTES)] {
            let mut launch = LaunchIsolation::default();
            Shm::new(9000).mount(requested, &mut launch);
            let expected = MountAction::Tmpfs { bytes: expected };
            assert_eq!(launch.mounts[0].action, expected);
        }
    }
}
