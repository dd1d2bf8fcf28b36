//! Writing and reading of single control files.
//!
//! A plan is a list of [`KnobWrite`]s: controller, file and value. The path comes from the container's groups when the write
//! is carried out. Reading is forgiving in one way only: a missing file is `None`.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::Controller;
use crate::shortage::{again, is_device_failure, is_shortage};

/// A single write of a plan.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KnobWrite {
    /// The controller whose group holds the file.
    pub controller: Controller,
    pub file: &'static str,
    pub value: String,
    /// Whether the write is skipped if the kernel does not have this file.
    pub optional: bool,
}

impl KnobWrite {
    /// A write that must succeed.
    pub fn new(controller: Controller, file: &'static str, value: impl ToString) -> Self {
        Self {
            controller,
            file,
            value: value.to_string(),
            optional: false,
        }
    }

    /// A write that is skipped where the file does not exist.
    pub fn optional(controller: Controller, file: &'static str, value: impl ToString) -> Self {
        Self {
            optional: true,
            ..Self::new(controller, file, value)
        }
    }
}

/// Errors of making a group or writing to it.
#[derive(Debug, thiserror::Error)]
pub enum KnobError {
    #[error("failed to create the cgroup {path}")]
    Create {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to write {value:?} to {path}")]
    Write {
        path: PathBuf,
        value: String,
        #[source]
        source: io::Error,
    },
    /// The agent is short of resources, or a device fails: the state of the group is unknown.
    #[error("failed to read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} does not exist: controller {} is not enabled here", controller.name())]
    NotEnabled {
        path: PathBuf,
        controller: Controller,
    },
    #[error("no cgroup of controller {} for {file}", controller.name())]
    NoGroup {
        controller: Controller,
        file: &'static str,
    },
}

/// Carries out a planned write.
pub(super) fn write(dir: &Path, write: &KnobWrite) -> Result<(), KnobError> {
    write_file(&dir.join(write.file), &write.value, write.controller)
}

/// Writes to a file, which the kernel must have.
pub(super) fn write_file(
    path: &Path,
    value: &str,
    controller: Controller,
) -> Result<(), KnobError> {
    let opened = fs::OpenOptions::new().write(true).open(path);
    match opened.and_then(|mut file| file.write_all(value.as_bytes())) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(KnobError::NotEnabled {
            path: path.to_owned(),
            controller,
        }),
        Err(source) => Err(KnobError::Write {
            path: path.to_owned(),
            value: value.to_owned(),
            source,
        }),
    }
}

/// The text of a control file; `None` if the file is missing or unreadable.
pub(crate) fn read_text(dir: &Path, file: &str) -> Option<String> {
    fs::read_to_string(dir.join(file)).ok()
}

/// The text of a control file; `None` if the file is missing. Repeats a read on a failing device. An error means that the
/// agent is short of resources or that the device failed each time: the state of the group is unknown.
pub(crate) fn control_text(dir: &Path, file: &str) -> io::Result<Option<String>> {
    fact_of(again(|| fs::read_to_string(dir.join(file))))
}

fn fact_of(read: io::Result<String>) -> io::Result<Option<String>> {
    match read {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_shortage(&error) || is_device_failure(&error) => Err(error),
        // The file is missing, or its group is being removed.
        Err(_) => Ok(None),
    }
}

/// The number in a control file; `None` for `max` and for everything that is not a number.
pub(crate) fn number(dir: &Path, file: &str) -> Option<u64> {
    read_text(dir, file)?.trim().parse().ok()
}

/// The value of a key in a file of `key value` lines.
pub(crate) fn flat_value(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        if name == key {
            value.trim().parse().ok()
        } else {
            None
        }
    })
}

/// Reads several keys of a flat file in one pass.
pub(crate) fn flat_values<const N: usize>(text: &str, keys: [&str; N]) -> [Option<u64>; N] {
    let mut values = [None; N];
    for line in text.lines() {
        let Some((name, value)) = line.split_once(' ') else {
            continue;
        };
        if let Some(at) = keys.iter().position(|key| *key == name)
            && let Some(slot) = values.get_mut(at)
        {
            *slot = value.trim_ascii().parse().ok();
        }
    }
    values
}

/// The processes in a group itself, without its children. A removed group has none.
pub(crate) fn list_pids(dir: &Path) -> io::Result<Vec<i32>> {
    match fs::read_to_string(dir.join("cgroup.procs")) {
        // 0 stands for a process of a pid namespace that we cannot see. It must never be used in a kill, where it means our own
        // process group.
        Ok(text) => {
            let pids = text
                .lines()
                .filter_map(|line| line.trim().parse::<i32>().ok());
            Ok(pids.filter(|pid| *pid > 0).collect())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_files_match_whole_keys() {
        let text = "oom 3\noom_kill 1\noom_group_kill 0\nbad x\n";
        assert_eq!(flat_value(text, "oom"), Some(3));
        assert_eq!(flat_value(text, "oom_kill"), Some(1));
        assert_eq!(flat_value(text, "oom_k"), None);
        assert_eq!(flat_value(text, "bad"), None);
        assert_eq!(
            flat_values(text, ["oom_kill", "bad", "oom", "none"]),
            [Some(1), None, Some(3), None]
        );
    }

    #[test]
    fn missing_knob_and_group_read_empty() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(number(dir.path(), "pids.current"), None);
        fs::write(dir.path().join("pids.max"), "max\n").expect("written");
        assert_eq!(number(dir.path(), "pids.max"), None);
        assert_eq!(
            list_pids(&dir.path().join("gone")).expect("no error"),
            [0; 0]
        );
    }

    #[test]
    fn only_missing_file_reads_as_none() {
        let read = |errno| fact_of(Err(io::Error::from_raw_os_error(errno)));
        for errno in [libc::ENOENT, libc::ENODEV] {
            assert_eq!(read(errno).expect("a fact"), None);
        }
        for errno in [libc::EMFILE, libc::ENOMEM, libc::EINTR, libc::EIO] {
            let error = read(errno).expect_err("nothing is known");
            assert_eq!(error.raw_os_error(), Some(errno));
        }
        let text = fact_of(Ok("max\n".to_owned()));
        assert_eq!(text.expect("a fact").as_deref(), Some("max\n"));
    }

    #[test]
    fn pid_list_skips_zero_and_negative() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        fs::write(dir.path().join("cgroup.procs"), "0\n17\n-1\n\n").expect("written");
        assert_eq!(list_pids(dir.path()).expect("read"), [17]);
    }
}
