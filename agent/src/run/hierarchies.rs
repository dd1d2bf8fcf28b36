//! The cgroup trees of the agent, and the location of its containers in them.

use std::path::{Path, PathBuf};

use meseta_daemon::error_chain::chain;
use meseta_isolators::Host;

use super::RunError;
use crate::configuration::flags::Flags;

/// The location of containers in each tree: a scope of systemd if one is available.
pub(super) fn cgroups_root(host: &mut Host, flags: &Flags) -> Result<PathBuf, RunError> {
    if !flags.systemd_enable_support {
        return Ok(flags.cgroups_root.clone());
    }
    let scope = meseta_isolators::task_scope(host, &flags.cgroups_root);
    let scope = scope.map_err(|error| RunError::Containers(chain(&error)))?;
    Ok(scope.unwrap_or_else(|| flags.cgroups_root.clone()))
}

/// Keeps only the cgroup trees that are mounted at or below `--cgroups_hierarchy`.
pub(crate) fn narrow(host: &mut Host, hierarchy: &Path) -> Result<(), RunError> {
    use meseta_isolators::Mode;
    let had_any = host.mode != Mode::None;
    host.v1.retain(|tree| tree.mount.starts_with(hierarchy));
    host.unified
        .take_if(|tree| !tree.mount.starts_with(hierarchy));
    host.mode = match (host.v1.is_empty(), host.unified.is_some()) {
        (true, false) => Mode::None,
        (false, false) => Mode::Legacy,
        (false, true) => Mode::Hybrid,
        (true, true) => Mode::Unified,
    };
    if had_any && host.mode == Mode::None {
        return Err(RunError::Containers(format!(
            "no cgroup tree is mounted below {} (--cgroups_hierarchy)",
            hierarchy.display()
        )));
    }
    Ok(())
}
