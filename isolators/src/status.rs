//! The exit status that a supervisor leaves behind, and its reading by an agent.
//!
//! The supervisor writes it once per container (tmp, fsync, rename, fsync of the folder) as one line with a checksum:
//! `meseta-exit 1 <cause> <value> <step> <killed> <unix ms> <crc32>`. Invariant: a record that is missing, torn or of an
//! unknown version is an error or `None`, never success.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::launch_step::LaunchStep;
use crate::shortage::again;

/// File name inside `<runtime dir>/containers/<name>/`.
pub(crate) const STATUS_FILE: &str = "status";

/// File name of the supervisor's identity, beside the exit record.
pub(crate) const SUPERVISOR_FILE: &str = "supervisor";

const MAGIC: &str = "meseta-exit";
const VERSION: &str = "1";

/// The end of the container's main process.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum ExitCause {
    Exited(i32),
    Signaled(i32),
    /// The process never ran: this step failed with this errno.
    LaunchFailed {
        /// The failed step of the launch.
        step: LaunchStep,
        /// The cause of the failure.
        errno: i32,
    },
}

/// The record that the supervisor wrote.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct ExitRecord {
    pub cause: ExitCause,
    /// Whether a kill request had arrived before the end.
    pub kill_requested: bool,
    /// The time of the end, since the Unix epoch.
    pub at: Duration,
}

impl ExitRecord {
    /// Whether the task succeeded: exit code 0.
    pub fn success(&self) -> bool {
        self.cause == ExitCause::Exited(0)
    }

    /// The stored form of the record: a line.
    pub(crate) fn to_line(self) -> String {
        let (cause, value, step) = match self.cause {
            ExitCause::Exited(code) => ("exited", code, 0),
            ExitCause::Signaled(signal) => ("signaled", signal, 0),
            ExitCause::LaunchFailed { step, errno } => ("failed", errno, step.code()),
        };
        let killed = u8::from(self.kill_requested);
        let millis = self.at.as_millis();
        let body = format!("{MAGIC} {VERSION} {cause} {value} {step} {killed} {millis}");
        let sum = crc32fast::hash(body.as_bytes());
        format!("{body} {sum:08x}\n")
    }

    /// Parses the output of [`ExitRecord::to_line`].
    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let (body, sum) = line.strip_suffix('\n')?.rsplit_once(' ')?;
        if sum.len() != 8 || u32::from_str_radix(sum, 16).ok()? != crc32fast::hash(body.as_bytes())
        {
            return None;
        }
        let words: Vec<&str> = body.split(' ').collect();
        let [MAGIC, VERSION, cause, value, step, killed, millis] = words[..] else {
            return None;
        };
        let value = value.parse().ok()?;
        let cause = match cause {
            "exited" => ExitCause::Exited(value),
            "signaled" => ExitCause::Signaled(value),
            "failed" => {
                let step = LaunchStep::from_code(step.parse().ok()?)?;
                ExitCause::LaunchFailed { step, errno: value }
            }
            _ => return None,
        };
        let kill_requested = killed == "1";
        Some(Self {
            cause,
            kill_requested,
            at: Duration::from_millis(millis.parse().ok()?),
        })
    }
}

/// Reads the record in a container's runtime folder; `None` if there is no record. Repeats a read on a failing device.
pub(crate) fn read_record(dir: &Path) -> Result<Option<ExitRecord>, StatusError> {
    let path = dir.join(STATUS_FILE);
    let bytes = match again(|| fs::read(&path)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(StatusError::Read { path, source }),
    };
    let text = String::from_utf8_lossy(&bytes);
    match ExitRecord::from_line(&text) {
        Some(record) => Ok(Some(record)),
        None => Err(StatusError::Damaged {
            path,
            text: text.chars().take(100).collect(),
        }),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    #[error("failed to read the exit status {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The file holds other data, or a record of an unknown version.
    #[error("the exit status {path} is damaged or of an unknown version: {text:?}")]
    Damaged {
        path: PathBuf,
        /// The contents of the record, cut short.
        text: String,
    },
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn records() -> Vec<ExitRecord> {
        let causes = [
            ExitCause::Exited(0),
            ExitCause::Exited(255),
            ExitCause::Signaled(9),
            ExitCause::LaunchFailed {
                step: LaunchStep::WorkingDir,
                errno: 2,
            },
        ];
        let record = |cause| ExitRecord {
            cause,
            kill_requested: true,
            at: Duration::from_millis(1_790_000_000_123),
        };
        causes.into_iter().map(record).collect()
    }

    #[test]
    fn records_go_through_a_line() {
        for record in records() {
            assert_eq!(ExitRecord::from_line(&record.to_line()), Some(record));
        }
        // Supervisors of another build read and write the same format.
        let line = records()[0].to_line();
        assert_eq!(line, "meseta-exit 1 exited 0 0 1 1790000000123 90f454d1\n");
    }

    #[test]
    fn no_single_damage_goes_unseen() {
        for record in records() {
            let line = record.to_line();
            for at in 0..line.len() {
                let mut bytes = line.clone().into_bytes();
                bytes[at] ^= 1;
                let spoilt = String::from_utf8_lossy(&bytes).into_owned();
                // The letter case of the sum itself does not matter, so only that change may be accepted.
                assert_eq!(ExitRecord::from_line(&spoilt), None, "{spoilt:?}");
                assert_eq!(ExitRecord::from_line(&line[..at]), None, "cut at {at}");
            }
        }
    }

    #[test]
    fn missing_record_none_damaged_error() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        assert!(matches!(read_record(dir.path()), Ok(None)));
        let line = records()[0].to_line();
        fs::write(dir.path().join(STATUS_FILE), &line).expect("written");
        assert!(matches!(read_record(dir.path()), Ok(Some(record)) if record.success()));
        fs::write(dir.path().join(STATUS_FILE), &line[..10]).expect("written");
        assert!(matches!(
            read_record(dir.path()),
            Err(StatusError::Damaged { .. })
        ));
        let newer = line.replace("meseta-exit 1", "meseta-exit 2");
        fs::write(dir.path().join(STATUS_FILE), newer).expect("written");
        assert!(matches!(
            read_record(dir.path()),
            Err(StatusError::Damaged { .. })
        ));
    }

    #[test]
    fn read_retries_after_io_error() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (path, whole) = (dir.path().join(STATUS_FILE), dir.path().join("whole"));
        let record = records()[0];
        let read_while_it_is_mended = || {
            fs::write(&whole, record.to_line()).expect("written");
            // Reading the file fails with EIO.
            let _ = fs::remove_file(&path);
            std::os::unix::fs::symlink("/proc/self/mem", &path).expect("linked");
            let (before, over) = (crate::shortage::repeated(), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while crate::shortage::repeated() == before && !over.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                    fs::rename(&whole, &path).expect("in its place");
                });
                let read = read_record(dir.path());
                over.store(true, Ordering::Relaxed);
                read
            })
        };
        // The read repeats for half a second, in which the other thread may not run.
        let read = (0..20).find_map(|_| read_while_it_is_mended().ok());
        assert_eq!(read.expect("read at last"), Some(record));
    }
}
