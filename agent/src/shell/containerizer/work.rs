//! What blocks: one launch, and reading what the supervisor and the kernel recorded of an end.

use meseta_isolators::{ContainerName, Containers, Demand, ExitCause, Launched, TaskIsolation};
use meseta_proto::mesos::v1::task_status::Reason;

use super::super::inspection::megabytes;
use super::super::spec::{Prepared, container_spec};
use super::super::wishes::task_isolation;
use super::super::writer::chain;
use super::Inner;
use crate::core::{Ending, Exit, LaunchPlan, Limitation};

pub(super) fn launch_now(
    inner: &Inner,
    plan: &LaunchPlan,
    prepared: Option<Prepared>,
) -> Result<Launched, String> {
    let variable = |name: &str| own_variable(plan, name);
    let logs = inner.options.logs.with(variable)?;
    let wishes = task_isolation(&inner.options.rights, plan)?;
    let Prepared { spec, mounts } = match prepared {
        Some(prepared) => prepared,
        None => container_spec(&inner.options, plan)?,
    };
    let wishes = TaskIsolation {
        stdout_log: logs.stdout,
        stderr_log: logs.stderr,
        mounts,
        ..wishes
    };
    inner
        .containers
        .launch_with(&spec, &wishes)
        .map_err(|error| chain(&error))
}

/// A variable that the task brings along.
fn own_variable(plan: &LaunchPlan, name: &str) -> Option<String> {
    let variables = &plan.command()?.environment.as_ref()?.variables;
    let found = variables.iter().find(|variable| variable.name == name);
    found.and_then(|variable| variable.value.clone())
}

/// What the supervisor and the kernel recorded of a container whose supervisor has ended.
pub(super) fn ending_of(containers: &Containers, name: &ContainerName, demand: &Demand) -> Ending {
    let exit = match containers.exit_record(name) {
        Ok(Some(record)) => match record.cause {
            ExitCause::Exited(code) => Exit::Code(code),
            ExitCause::Signaled(number) => Exit::Signal(number),
            ExitCause::LaunchFailed { step, errno } => {
                let cause = std::io::Error::from_raw_os_error(errno);
                Exit::LaunchFailed(format!("{step:?}: {cause}"))
            }
        },
        Ok(None) => Exit::Unknown("its supervisor left no exit record".to_owned()),
        Err(error) => Exit::Unknown(chain(&error)),
    };
    let limitation = containers.limitation(name, demand).map(memory_limitation);
    Ending { exit, limitation }
}

pub(super) fn memory_limitation(limitation: meseta_isolators::Limitation) -> Limitation {
    let meseta_isolators::Limitation::Memory {
        limit_bytes,
        max_usage_bytes,
        message,
        ..
    } = limitation;
    // The most that was ever used, or else the limit.
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
