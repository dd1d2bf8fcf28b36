//! Converts a launch plan to a container specification: user, sandbox, environment, command, limits.
//!
//! Makes the sandbox in the process, since the paths come from it; everything else is a function of the plan. Blocking.
//!
//! ```text
//! sandbox.rs      the sandbox directory of a task
//! volumes/        the mounts in the container
//! environment.rs  the variables of a task
//! isolation.rs    namespaces, capabilities, seccomp, shared memory
//! rlimits.rs      resource limits of its processes
//! user_switching.rs  the user of its processes
//! ```

pub(crate) mod environment;
pub(crate) mod isolation;
mod rlimits;
pub(crate) mod sandbox;
pub(crate) mod user_switching;
pub(crate) mod volumes;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use meseta_isolators::{
    Command, ContainerName, ContainerSpec, Credentials, Destination, Inside, TaskIsolation,
};
use meseta_proto::Invalid;
use meseta_resources::ContainerId;

use crate::checkpoint::{Layout, VolumePlaces, inside};
use crate::configuration::isolation::TaskRights;
use crate::configuration::log_flags::Logs;
use crate::core::{LaunchPlan, Subject};
use crate::failure::Failure;
use environment::{AgentEnvironment, task_environment};
use rlimits::{rlimits_of, with_usual_limits};
use sandbox::NestedSandbox;
use user_switching::UserSwitching;

/// The settings common to all containers of an agent.
#[derive(Debug)]
pub(crate) struct LaunchSettings {
    /// The layout of the work directory.
    pub(crate) layout: Layout,
    /// The variables common to all tasks.
    pub(crate) environment: AgentEnvironment,
    pub(crate) user_switching: UserSwitching,
    /// The isolation that tasks may request.
    pub(crate) rights: TaskRights,
    /// The log files of tasks.
    pub(crate) logs: Logs,
    /// The roots of the disks of type MOUNT, each of which may be a volume.
    pub(crate) mount_disks: Arc<[PathBuf]>,
    /// The places of volumes. A place with data to be removed is not given to another volume.
    pub(crate) places: VolumePlaces,
}

/// Makes the specification of a plan, with its volumes mounted, or fails with the reason.
pub(crate) fn container_spec(
    settings: &LaunchSettings,
    plan: &LaunchPlan,
) -> Result<ContainerSpec, Failure> {
    let layout = &settings.layout;
    let credentials = credentials(settings, plan)?;
    let is_nested = matches!(plan.subject, Subject::Nested(_));
    let nested = is_nested.then(|| NestedSandbox::from_layout(layout, plan));
    let sandbox = sandbox::create(layout, plan, credentials.as_ref())?;
    let context = volumes::VolumeContext::new(settings, &plan.run, &plan.container);
    let spec = volumes::make_ready(settings, &plan.volumes)
        .and_then(|()| volumes::make_ready(settings, &plan.parent_volumes))
        .and_then(|()| volumes::of_plan(layout, plan))
        .and_then(|volumes| volumes::provide(&context, &volumes, credentials.as_ref()))
        .map_err(Failure::from)
        .and_then(|mounts| {
            let mut spec = spec_in(
                settings,
                plan,
                credentials,
                sandbox,
                &inside(&plan.container),
            )?;
            spec.isolation.mounts = mounts;
            Ok(spec)
        });
    if let (Err(_), Some(nested)) = (&spec, nested) {
        // Nobody waits for it, and its id may be used again.
        nested.undo();
    }
    spec
}

/// Adds the isolation that the task requests.
pub(crate) fn isolated(spec: ContainerSpec, isolation: TaskIsolation) -> ContainerSpec {
    ContainerSpec {
        isolation: TaskIsolation {
            mounts: spec.isolation.mounts,
            ..isolation
        },
        ..spec
    }
}

/// The specification of a command in the container of a running task, in its sandbox. If log files may grow without a
/// limit, its output goes to the task's files.
pub(crate) fn spec_inside(
    settings: &LaunchSettings,
    plan: &LaunchPlan,
    task: &ContainerId,
    inside_of: Inside,
) -> Result<ContainerSpec, Failure> {
    let credentials = credentials(settings, plan)?;
    let sandbox = settings.layout.sandbox_of(&plan.run, task);
    let mut spec = spec_in(settings, plan, credentials, sandbox, &inside(task))?;
    spec.stdout.clone_from(&spec.stderr);
    spec.inside = Some(inside_of);
    Ok(spec)
}

/// The bounded log file of a check: beside the task's own, one for each kind of check.
pub(crate) fn check_output(
    settings: &LaunchSettings,
    plan: &LaunchPlan,
    task: &ContainerId,
) -> Destination {
    let name = plan.container.value();
    let kind = name.rsplit_once('-').map_or(name, |(kind, _)| kind);
    Destination::File {
        beneath: settings.layout.sandbox(&plan.run),
        path: inside(task).join(format!("{kind}.log")),
    }
}

/// The log files of a container.
pub(crate) fn logs_of(settings: &LaunchSettings, plan: &LaunchPlan) -> Result<Logs, Invalid> {
    let own_variable = |name: &str| {
        let variables = &plan.command()?.environment.as_ref()?.variables;
        let found = variables.iter().find(|variable| variable.name == name);
        found.and_then(|variable| variable.value.clone())
    };
    settings.logs.with(own_variable)
}

fn credentials(
    settings: &LaunchSettings,
    plan: &LaunchPlan,
) -> Result<Option<Credentials>, Failure> {
    settings.user_switching.credentials(&plan.user)
}

fn spec_in(
    settings: &LaunchSettings,
    plan: &LaunchPlan,
    credentials: Option<Credentials>,
    sandbox: PathBuf,
    inner: &Path,
) -> Result<ContainerSpec, Failure> {
    let name = ContainerName::new(plan.container.as_str())?;
    let env = task_environment(&settings.environment, plan, &sandbox)?;
    // The run's own folder is the last part of the path that no task can move.
    let output = |stream: &str| Destination::File {
        beneath: settings.layout.sandbox(&plan.run),
        path: inner.join(stream),
    };
    Ok(ContainerSpec {
        name,
        command: command_of(plan),
        env,
        credentials,
        stdout: output("stdout"),
        stderr: output("stderr"),
        hostname: hostname_of(plan),
        rlimits: with_usual_limits(rlimits_of(plan)?),
        demand: plan.demand,
        working_dir: sandbox,
        isolation: TaskIsolation::default(),
        inside: None,
    })
}

/// The command of a group's outer container: it only waits.
const PAUSE: &str = "exec sleep infinity";

fn command_of(plan: &LaunchPlan) -> Command {
    let Some(command) = plan.command().cloned() else {
        return Command::Shell(PAUSE.to_owned());
    };
    let value = command.value.unwrap_or_default();
    if command.shell.unwrap_or(true) {
        Command::Shell(value)
    } else {
        let mut args: Vec<_> = command.arguments.into_iter().map(Into::into).collect();
        if args.is_empty() {
            args.push(value.clone().into());
        }
        Command::Argv {
            program: value.into(),
            args,
        }
    }
}

fn hostname_of(plan: &LaunchPlan) -> Option<String> {
    plan.container_info()?.hostname.clone()
}
