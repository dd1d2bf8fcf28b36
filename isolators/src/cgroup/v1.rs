//! cgroup v1: making groups, with the processors and memory nodes that new groups of a cpuset lack.

use std::fs;
use std::path::Path;

use super::knob::{control_text, write_file};
use super::{Controller, KnobError};

/// Makes a group and its missing parents. An existing group is fine.
pub(super) fn create_with_parents(dir: &Path) -> Result<(), KnobError> {
    let above = dir.ancestors().skip(1);
    let missing: Vec<_> = above.take_while(|above| !above.exists()).collect();
    fs::create_dir_all(dir).map_err(|source| KnobError::Create {
        path: dir.to_owned(),
        source,
    })?;
    missing.into_iter().chain([dir]).try_for_each(super::show)
}

/// Gives a new group of a cpuset hierarchy, and the new groups above it, the processors and memory nodes of the nearest group
/// that has any: the kernel leaves them empty, and refuses tasks in such a group. Does nothing for other hierarchies; an
/// unreadable file does not count as another hierarchy.
pub(super) fn fill_cpuset(dir: &Path) -> Result<(), KnobError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let mut empty = Vec::new();
        let mut found = None;
        for dir in dir.ancestors() {
            let read = control_text(dir, file).map_err(|source| KnobError::Read {
                path: dir.join(file),
                source,
            });
            match read? {
                None => break,
                Some(text) if text.trim().is_empty() => empty.push(dir),
                Some(text) => {
                    found = Some(text.trim().to_owned());
                    break;
                }
            }
        }
        let Some(value) = found else { continue };
        for dir in empty.into_iter().rev() {
            write_file(&dir.join(file), &value, Controller::Cpuset)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_cannot_be_made_keeps_path_and_errno() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        fs::write(dir.path().join("file"), "").expect("written");
        let error = create_with_parents(&dir.path().join("file/below"));
        let Err(KnobError::Create { source, .. }) = error else {
            panic!("{error:?}")
        };
        assert_eq!(source.raw_os_error(), Some(libc::ENOTDIR));
    }

    /// Regression: an EIO of this read left the group of a check without processors, and the agent reported its task as
    /// unhealthy.
    #[test]
    fn a_group_whose_processors_cannot_be_read_is_not_taken_for_one_without() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let group = dir.path().join("outer/inner");
        fs::create_dir_all(&group).expect("made");
        for file in ["cpuset.cpus", "cpuset.mems"] {
            fs::write(group.join(file), "\n").expect("written");
        }
        let outer = dir.path().join("outer");
        fs::write(outer.join("cpuset.mems"), "0\n").expect("written");
        // Reading a process's memory at 0 fails with EIO.
        let pid = std::process::id();
        std::os::unix::fs::symlink(format!("/proc/{pid}/mem"), outer.join("cpuset.cpus"))
            .expect("linked");
        let filled = fill_cpuset(&group);
        assert!(
            matches!(&filled, Err(KnobError::Read { path, .. }) if *path == outer.join("cpuset.cpus")),
            "{filled:?}"
        );
        fs::remove_file(outer.join("cpuset.cpus")).expect("removed");
        fs::write(outer.join("cpuset.cpus"), "0-1\n").expect("written");
        fill_cpuset(&group).expect("filled");
        let filled = |file| fs::read_to_string(group.join(file)).expect("there");
        assert_eq!(filled("cpuset.cpus").trim(), "0-1");
        assert_eq!(filled("cpuset.mems").trim(), "0");
    }
}
