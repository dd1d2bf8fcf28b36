//! cgroup v1: making groups, with the processors and memory nodes that new groups of a cpuset lack.

use std::fs;
use std::path::Path;

use super::knob::{read_text, write_file};
use super::{Controller, KnobError};

/// Makes a group and its missing parents. A group that exists already is no error.
pub(super) fn create_with_parents(dir: &Path) -> Result<(), KnobError> {
    let above = dir.ancestors().skip(1);
    let missing: Vec<_> = above.take_while(|above| !above.exists()).collect();
    fs::create_dir_all(dir).map_err(|source| KnobError::Create {
        path: dir.to_owned(),
        source,
    })?;
    missing.into_iter().chain([dir]).try_for_each(super::show)
}

/// Gives a new group of a cpuset hierarchy, and those above it that we have just made, the processors
/// and memory nodes of the nearest group that has any: the kernel leaves them empty, and refuses tasks
/// in such a group. Nothing to do for other hierarchies.
pub(super) fn fill_cpuset(dir: &Path) -> Result<(), KnobError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let mut empty = Vec::new();
        let mut found = None;
        for dir in dir.ancestors() {
            match read_text(dir, file) {
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
}
