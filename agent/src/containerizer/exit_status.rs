//! Reads the exit status of a container from the supervisor's record and the kernel.

use std::io;

use meseta_daemon::error_chain::chain;
use meseta_isolators::{
    ContainerName, Containers, Demand, ExitCause, StatusError, is_device_failure, is_shortage,
    note_repeated,
};
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::ContainerId;
use tracing::warn;

use super::inspection::megabytes;
use super::supervision::{AGAIN_MAX, AGAIN_MIN};
use super::{Containerizer, blocking, limitation_file};
use crate::checkpoint::Limitation;
use crate::core::{Ending, Exit};

/// Reads the exit record and the kernel's counters of a container whose supervisor has ended; `known` is an earlier
/// limitation. Fails only if the agent lacks resources, so that the caller can retry.
fn ending_of(
    containers: &Containers,
    name: &ContainerName,
    demand: &Demand,
    known: Option<Limitation>,
) -> io::Result<Ending> {
    let record = match containers.exit_record(name) {
        Err(StatusError::Read { source, .. }) if is_shortage(&source) => return Err(source),
        record => record,
    };
    let kill_requested = record.as_ref().ok().copied().flatten();
    let kill_requested = kill_requested.map(|record| record.kill_requested);
    let exit = match record {
        Ok(Some(record)) => match record.cause {
            ExitCause::Exited(code) => Exit::Code(code),
            ExitCause::Signaled(number) => Exit::Signal(number),
            ExitCause::LaunchFailed { step, errno } => {
                let cause = std::io::Error::from_raw_os_error(errno);
                Exit::LaunchFailed(format!("{step:?}: {cause}"))
            }
        },
        Ok(None) if containers.was_never_begun(name) => Exit::NeverBegun,
        Ok(None) => Exit::Unknown("its supervisor left no exit record".to_owned()),
        Err(error) => Exit::Unknown(chain(&error)),
    };
    let known = match known {
        Some(known) => Some(known),
        None => kept_limitation(name, &exit, |of| limitation_file::kept(containers, of))?,
    };
    let limitation = match known {
        Some(known) => Some(known),
        None => {
            let met = match containers.limitation(name, demand) {
                // The read was retried enough: an end does not wait for a device that fails permanently.
                Err(error) if is_device_failure(&error) => {
                    warn!(container_id = %name, %error, "failed to read whether a container ran \
                        out of memory");
                    None
                }
                met => met?.map(memory_limitation),
            };
            // The cgroups, and the counters in them, are about to be removed.
            met.inspect(|met| limitation_file::keep(containers, name, met))
        }
    };
    Ok(Ending {
        exit,
        limitation,
        kill_requested,
    })
}

/// Returns the saved limitation of the container. If the container is nested and failed, the end of its outermost
/// container ended it too, so that its limitation counts.
fn kept_limitation(
    name: &ContainerName,
    exit: &Exit,
    kept: impl Fn(&ContainerName) -> io::Result<Option<Limitation>>,
) -> io::Result<Option<Limitation>> {
    match kept(name)? {
        Some(known) => Ok(Some(known)),
        None if name.nesting().is_some() && *exit != Exit::Code(0) => kept(&name.outermost()),
        None => Ok(None),
    }
}

impl Containerizer {
    /// Reads the ending of a container, and waits for the necessary resources.
    pub(super) async fn read_ending(
        &self,
        container: &ContainerId,
        name: &ContainerName,
        demand: Demand,
        known: Option<Limitation>,
    ) -> Ending {
        let mut pause = AGAIN_MIN;
        loop {
            let (inner, name, known) = (self.inner.clone(), name.clone(), known.clone());
            let permit = self.inner.destroy_permits.acquire().await;
            let read = blocking(move || ending_of(&inner.containers, &name, &demand, known)).await;
            drop(permit);
            match read {
                Ok(Ok(ending)) => return ending,
                Ok(Err(error)) => {
                    note_repeated();
                    warn!(container_id = %container, %error, "failed to read the exit status of \
                        a container; retrying");
                }
                Err(panic) => {
                    return Ending {
                        exit: Exit::Unknown(panic.to_string()),
                        limitation: None,
                        kill_requested: None,
                    };
                }
            }
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2).min(AGAIN_MAX);
        }
    }
}

pub(super) fn memory_limitation(limitation: meseta_isolators::Limitation) -> Limitation {
    let meseta_isolators::Limitation::Memory {
        limit_bytes,
        max_usage_bytes,
        message,
        ..
    } = limitation;
    // The highest usage, or else the limit.
    let bytes = max_usage_bytes.or(limit_bytes);
    Limitation {
        reason: Reason::ContainerLimitationMemory,
        message,
        resources: bytes
            .map(|bytes| megabytes("mem", bytes))
            .into_iter()
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_reports_limitation_of_its_group() {
        let name = |name: &str| ContainerName::new(name).unwrap();
        let limitation = |message: &str| Limitation {
            reason: Reason::ContainerLimitationMemory,
            message: message.to_owned(),
            resources: Vec::new(),
        };
        let kept = |of: &ContainerName| {
            let known = ["group", "group+limited"].contains(&of.as_str());
            Ok(known.then(|| limitation(of.as_str())))
        };
        let (killed, well) = (Exit::Signal(9), Exit::Code(0));
        for (container, exit, told) in [
            ("group+task", &killed, Some("group")),
            ("group+task+session", &killed, Some("group")),
            ("group+limited", &killed, Some("group+limited")),
            ("group+task", &well, None),
            ("group", &killed, Some("group")),
            ("other+task", &killed, None),
            ("other", &killed, None),
        ] {
            let known = kept_limitation(&name(container), exit, kept).unwrap();
            assert_eq!(
                known.map(|known| known.message).as_deref(),
                told,
                "{container}"
            );
        }
    }
}
