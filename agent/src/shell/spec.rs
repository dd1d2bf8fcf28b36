//! From a launch plan to what the kernel side is told: user, sandbox, environment, command, limits.
//!
//! Makes the sandbox on the way, because that is where the paths come from; everything else is a
//! function of the plan. Blocking.

use std::path::{Path, PathBuf};

use meseta_isolators::{
    Command, ContainerName, ContainerSpec, Credentials, Destination, MountStep, Rlimit,
};
use meseta_resources::ContainerId;

use super::containerizer::Options;
use super::descriptors;
use super::environment::task_environment;
use super::sandbox::{self, NestedSandbox};
use super::volumes;
use super::writer::chain;
use crate::checkpoint::{inside, nested_names};
use crate::core::{LaunchPlan, Subject};
use crate::log_flags::Logs;

/// What is launched, and what it is to see in its sandbox.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) spec: ContainerSpec,
    pub(super) mounts: Vec<MountStep>,
}

/// What is launched for a plan, or why nothing can be.
pub(super) fn container_spec(options: &Options, plan: &LaunchPlan) -> Result<Prepared, String> {
    let credentials = credentials(options, plan)?;
    let sandbox = sandbox::create(&options.layout, plan, credentials.as_ref())
        .map_err(|error| chain(&error))?;
    let prepared = prepare(options, plan, credentials, sandbox);
    if prepared.is_err() && matches!(plan.subject, Subject::Nested(_)) {
        // Nobody waits for it, and its id may be used again.
        NestedSandbox::of(&options.layout, plan).undo();
    }
    prepared
}

fn prepare(
    options: &Options,
    plan: &LaunchPlan,
    credentials: Option<Credentials>,
    sandbox: PathBuf,
) -> Result<Prepared, String> {
    let (layout, rights) = (&options.layout, &options.rights);
    let context = volumes::VolumeContext::new(layout, &plan.run, plan.container(), rights);
    let mounts = volumes::of_plan(layout, plan)
        .and_then(|volumes| volumes::provide(&context, &volumes, credentials.as_ref()))
        .map_err(|error| chain(&error))?;
    let inner = inside(plan.container());
    let spec = spec_in(options, plan, credentials, sandbox, &inner)?;
    Ok(Prepared { spec, mounts })
}

/// What is launched beside a task that runs, in its sandbox; where files may grow, what it prints is in the
/// task's.
pub(super) fn spec_inside(
    options: &Options,
    plan: &LaunchPlan,
    task: &ContainerId,
) -> Result<ContainerSpec, String> {
    let credentials = credentials(options, plan)?;
    let sandbox = options.layout.sandbox_of(&plan.run, task);
    let mut spec = spec_in(options, plan, credentials, sandbox, &inside(task))?;
    spec.stdout.clone_from(&spec.stderr);
    Ok(spec)
}

/// Where a check's output goes that is kept to a size: a file beside the task's own, one for each kind of check.
pub(super) fn check_output(
    options: &Options,
    plan: &LaunchPlan,
    task: &ContainerId,
) -> Destination {
    let name = nested_names(plan.container()).last().unwrap_or_default();
    let kind = name.rsplit_once('-').map_or(name, |(kind, _)| kind);
    Destination::File {
        beneath: options.layout.sandbox(&plan.run),
        path: inside(task).join(format!("{kind}.log")),
    }
}

/// What is kept of a container's output.
pub(super) fn logs_of(options: &Options, plan: &LaunchPlan) -> Result<Logs, String> {
    let own_variable = |name: &str| {
        let variables = &plan.command()?.environment.as_ref()?.variables;
        let found = variables.iter().find(|variable| variable.name == name);
        found.and_then(|variable| variable.value.clone())
    };
    options.logs.with(own_variable)
}

fn credentials(options: &Options, plan: &LaunchPlan) -> Result<Option<Credentials>, String> {
    let wanted = options.switch_user.then(|| Credentials::lookup(&plan.user));
    wanted.transpose().map_err(|error| chain(&error))
}

fn spec_in(
    options: &Options,
    plan: &LaunchPlan,
    credentials: Option<Credentials>,
    sandbox: PathBuf,
    inner: &Path,
) -> Result<ContainerSpec, String> {
    let name = ContainerName::new(plan.container().as_str()).map_err(|error| chain(&error))?;
    let env =
        task_environment(&options.environment, plan, &sandbox).map_err(|error| chain(&error))?;
    // The run's own folder is the last on the way that no task can move.
    let output = |stream: &str| Destination::File {
        beneath: options.layout.sandbox(&plan.run),
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
        rlimits: descriptors::with_usual_limits(rlimits_of(plan)?),
        demand: plan.demand,
        working_dir: sandbox,
    })
}

/// What keeps the place of a group of tasks: nothing, for as long as it takes.
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

fn rlimits_of(plan: &LaunchPlan) -> Result<Vec<Rlimit>, String> {
    use meseta_proto::mesos::v1::r_limit_info::r_limit::Type;
    let container = plan.container_info();
    let Some(info) = container.and_then(|container| container.rlimit_info.as_ref()) else {
        return Ok(Vec::new());
    };
    let mut rlimits = Vec::with_capacity(info.rlimits.len());
    for rlimit in &info.rlimits {
        let kind = rlimit.r#type.and_then(|kind| Type::try_from(kind).ok());
        let resource = kind.and_then(rlimit_number);
        let Some(resource) = resource else {
            return Err("a resource limit of an unknown type was asked for".to_owned());
        };
        let (soft, hard) = match (rlimit.soft, rlimit.hard) {
            (Some(soft), Some(hard)) => (soft, hard),
            (None, None) => (u64::MAX, u64::MAX),
            _ => return Err("a resource limit needs both its soft and its hard value".to_owned()),
        };
        rlimits.push(Rlimit {
            resource,
            soft,
            hard,
        });
    }
    Ok(rlimits)
}

/// The kernel's numbers, the same on all architectures that we build for.
fn rlimit_number(kind: meseta_proto::mesos::v1::r_limit_info::r_limit::Type) -> Option<u32> {
    use meseta_proto::mesos::v1::r_limit_info::r_limit::Type;
    Some(match kind {
        Type::Unknown => return None,
        Type::RlmtCpu => 0,
        Type::RlmtFsize => 1,
        Type::RlmtData => 2,
        Type::RlmtStack => 3,
        Type::RlmtCore => 4,
        Type::RlmtRss => 5,
        Type::RlmtNproc => 6,
        Type::RlmtNofile => 7,
        Type::RlmtMemlock => 8,
        Type::RlmtAs => 9,
        Type::RlmtLocks => 10,
        Type::RlmtSigpending => 11,
        Type::RlmtMsgqueue => 12,
        Type::RlmtNice => 13,
        Type::RlmtRtprio => 14,
        Type::RlmtRttime => 15,
    })
}
