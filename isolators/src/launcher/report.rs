//! The reports of a new container to the agent on its way to exec.
//!
//! Each launch has a socket pair of its own. The agent's end has SO_PASSCRED, so the kernel stamps every report with the
//! sender's pid in the agent's numbering, in any namespace. The other end goes to the launcher, the supervisor and the task,
//! each of which closes it after its last report; exec closes the last one. So `Running` followed by end of file means that
//! the task has been executed.

use crate::launcher::LaunchStep;

/// Bytes of a report: kind, step, detail, errno, supervisor pid, supervisor start.
pub(super) const REPORT_BYTES: usize = 32;

const KIND_RUNNING: u8 = 1;
const KIND_FAILED: u8 = 2;

/// A message of a new process.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) struct Report {
    pub(super) outcome: Outcome,
    /// The supervisor's pid in the launcher's numbering, 0 without a supervisor.
    pub(super) supervisor_pid: i32,
    /// The start time of the supervisor, in clock ticks.
    pub(super) supervisor_start: u64,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    /// The task sends this just before exec.
    Running,
    /// A step failed. `index` is the position of its target among several.
    Failed {
        step: LaunchStep,
        errno: i32,
        index: u16,
    },
}

impl Report {
    /// Safe to call in a signal handler (async-signal-safe).
    pub(super) fn encode(self) -> [u8; REPORT_BYTES] {
        let mut bytes = [0; REPORT_BYTES];
        match self.outcome {
            Outcome::Running => bytes[0] = KIND_RUNNING,
            Outcome::Failed { step, errno, index } => {
                bytes[0] = KIND_FAILED;
                bytes[1] = step.code();
                bytes[2..4].copy_from_slice(&index.to_le_bytes());
                bytes[4..8].copy_from_slice(&errno.to_le_bytes());
            }
        }
        bytes[8..12].copy_from_slice(&self.supervisor_pid.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.supervisor_start.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REPORT_BYTES] = bytes.try_into().ok()?;
        let outcome = match bytes[0] {
            KIND_RUNNING => Outcome::Running,
            KIND_FAILED => Outcome::Failed {
                step: LaunchStep::from_code(bytes[1])?,
                index: u16::from_le_bytes([bytes[2], bytes[3]]),
                errno: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            },
            _ => return None,
        };
        let (_, start) = bytes.split_at(16);
        let (start, _) = start.split_first_chunk()?;
        Some(Self {
            outcome,
            supervisor_pid: i32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
            supervisor_start: u64::from_le_bytes(*start),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_go_through_bytes() {
        let failed = Outcome::Failed {
            step: LaunchStep::Exec,
            errno: 2,
            index: 515,
        };
        for outcome in [Outcome::Running, failed] {
            let report = Report {
                outcome,
                supervisor_pid: 70_000,
                supervisor_start: u64::MAX - 1,
            };
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
        assert_eq!(Report::decode(&[0; REPORT_BYTES]), None);
        assert_eq!(Report::decode(&[1; 3]), None);
    }
}
