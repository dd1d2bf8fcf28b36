//! cgroup v2: making groups below a delegated folder, enabling controllers, strict writes.
//!
//! Ours, because under delegation only our own subtree may be touched and a failed enable must be an
//! error. Invariant: `cgroup.subtree_control` above the handed root is written only when the root
//! lacks a controller that we need, and then only to add it.

use std::path::{Path, PathBuf};

use super::knob::{read_text, write_file};
use super::{Controller, KnobError};

/// Makes `mount/relative` and ensures that groups made inside it have these controllers.
pub(super) fn create_instance(
    mount: &Path,
    relative: &Path,
    requested: &[Controller],
) -> Result<(), KnobError> {
    let mut folders: Vec<PathBuf> = vec![mount.to_owned()];
    for part in relative.components() {
        let next = folders
            .last()
            .map_or_else(PathBuf::new, |parent| parent.join(part));
        super::create(&next)?;
        folders.push(next);
    }
    let missing_in = |dir: &Path| -> Vec<Controller> {
        requested
            .iter()
            .copied()
            .filter(|one| !lists(dir, "cgroup.controllers", *one))
            .collect()
    };
    // The writes begin at the deepest folder that has all controllers: the folders above stay unchanged.
    let ready = folders
        .iter()
        .rposition(|dir| missing_in(dir).is_empty())
        .unwrap_or(0);
    for dir in folders.iter().skip(ready) {
        enable(dir, requested)?;
    }
    Ok(())
}

fn lists(dir: &Path, file: &str, controller: Controller) -> bool {
    let text = read_text(dir, file).unwrap_or_default();
    text.split_ascii_whitespace()
        .any(|name| name == controller.v2_name())
}

/// Enables controllers for the children of a group.
pub(super) fn enable(dir: &Path, requested: &[Controller]) -> Result<(), KnobError> {
    for controller in requested {
        if lists(dir, "cgroup.subtree_control", *controller) {
            continue;
        }
        if !lists(dir, "cgroup.controllers", *controller) {
            let path = dir.join("cgroup.controllers");
            return Err(KnobError::NotEnabled {
                path,
                controller: *controller,
            });
        }
        let value = format!("+{}", controller.v2_name());
        write_file(&dir.join("cgroup.subtree_control"), &value, *controller)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Makes a folder with control files, as the kernel would make them.
    fn group(dir: &Path, controllers: &str, enabled: &str) {
        fs::create_dir_all(dir).expect("made");
        fs::write(dir.join("cgroup.controllers"), controllers).expect("written");
        fs::write(dir.join("cgroup.subtree_control"), enabled).expect("written");
    }

    fn enabled(dir: &Path) -> String {
        fs::read_to_string(dir.join("cgroup.subtree_control")).expect("read")
    }

    const WANTED: [Controller; 2] = [Controller::Cpu, Controller::Memory];

    #[test]
    fn v2_touches_nothing_above_delegated_root() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mount = dir.path();
        group(mount, "cpu memory pids", "");
        group(&mount.join("slice"), "cpu memory", "");
        group(&mount.join("slice/agent"), "", "");
        // The fixture's kernel does not hand controllers down, so the deepest folder fails; the test checks only where the writes
        // began.
        let error = create_instance(mount, Path::new("slice/agent"), &WANTED);
        assert!(
            matches!(error, Err(KnobError::NotEnabled { .. })),
            "{error:?}"
        );
        assert_eq!(enabled(mount), "");
        assert_eq!(enabled(&mount.join("slice")), "+memory");
    }

    #[test]
    fn enabled_controllers_are_not_written_again() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mount = dir.path();
        group(mount, "cpu memory", "cpu memory");
        group(&mount.join("m"), "cpu memory", "memory cpu");
        group(&mount.join("m/i"), "cpu memory", "");
        create_instance(mount, Path::new("m/i"), &WANTED).expect("made");
        assert_eq!(enabled(mount), "cpu memory");
        assert_eq!(enabled(&mount.join("m")), "memory cpu");
        assert_eq!(enabled(&mount.join("m/i")), "+memory");
    }

    #[test]
    fn v2_error_names_missing_controller() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        group(dir.path(), "hugetlb", "");
        let error = create_instance(dir.path(), Path::new("m"), &[Controller::Pids]);
        let Err(error) = error else {
            panic!("enabled what is not there")
        };
        assert!(
            error.to_string().contains("controller pids is not enabled"),
            "{error}"
        );
    }
}
