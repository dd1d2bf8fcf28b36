//! The environment of a task or an executor: Mesos's variables, and none of the agent's own.
//!
//! Pure. Later entries win: the operator's variables, then `MESOS_*`, then the task's own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::environment::variable::Type as VariableType;
use meseta_resources::format_duration;

use crate::core::{LaunchPlan, Subject};
use crate::executor_tokens::ExecutorTokens;

/// The `PATH` of a task that sets none.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The variable with an executor's token; it overrides any other value.
const TOKEN: &str = "MESOS_EXECUTOR_AUTHENTICATION_TOKEN";

/// The values common to all tasks.
#[derive(Clone, Debug)]
pub(crate) struct AgentEnvironment {
    /// `ip:port` of the agent's API.
    pub(crate) endpoint: String,
    /// The address without the port.
    pub(crate) ip: String,
    /// The value of `--executor_environment_variables`.
    pub(crate) operator: BTreeMap<String, String>,
    /// The value of `--executor_shutdown_grace_period`.
    pub(crate) shutdown_grace: Duration,
    /// The value of `--recovery_timeout`.
    pub(crate) recovery_timeout: Duration,
    /// The value of `--executor_reregistration_timeout`.
    pub(crate) reregistration_timeout: Duration,
    /// The tokens of executors; `None` without executor authentication.
    pub(crate) tokens: Option<ExecutorTokens>,
}

/// The reason why a task's environment cannot be made.
#[derive(Debug, thiserror::Error, Eq, PartialEq)]
pub(crate) enum EnvironmentError {
    /// A variable whose value is a secret.
    #[error("environment variable '{0}' is a secret, which this agent cannot resolve")]
    Secret(String),
    /// A name or value that no environment can hold.
    #[error("environment variable {0:?} cannot be set: its name or value has a NUL or '='")]
    Impossible(String),
}

/// All variables of a task, by name.
pub(crate) fn task_environment(
    agent: &AgentEnvironment,
    plan: &LaunchPlan,
    sandbox: &Path,
) -> Result<Vec<(OsString, OsString)>, EnvironmentError> {
    let mut variables: BTreeMap<String, OsString> = BTreeMap::new();
    let mut set = |name: &str, value: &str| {
        variables.insert(name.to_owned(), OsString::from(value));
    };
    set("PATH", PATH_DEFAULT);
    set("LIBPROCESS_IP", &agent.ip);
    for (name, value) in &agent.operator {
        set(name, value);
    }
    set("LIBPROCESS_PORT", "0");
    set("MESOS_FRAMEWORK_ID", plan.run.framework.as_str());
    set("MESOS_EXECUTOR_ID", plan.run.executor.as_str());
    set("MESOS_SLAVE_ID", plan.run.agent.as_str());
    set("MESOS_SLAVE_PID", &format!("slave(1)@{}", agent.endpoint));
    set("MESOS_AGENT_ENDPOINT", &agent.endpoint);
    // Everything is checkpointed, whatever the framework requested: executors wait for the restart of the agent.
    set("MESOS_CHECKPOINT", "1");
    set("MESOS_HTTP_COMMAND_EXECUTOR", "0");
    let own_grace = plan
        .executor()
        .and_then(|executor| executor.shutdown_grace_period.as_ref())
        .and_then(|grace| u64::try_from(grace.nanoseconds).ok())
        .map(Duration::from_nanos);
    let grace = format_duration(own_grace.unwrap_or(agent.shutdown_grace));
    set("MESOS_EXECUTOR_SHUTDOWN_GRACE_PERIOD", &grace);
    let recovery = format_duration(agent.recovery_timeout);
    set("MESOS_RECOVERY_TIMEOUT", &recovery);
    let backoff = format_duration(agent.reregistration_timeout);
    set("MESOS_SUBSCRIPTION_BACKOFF_MAX", &backoff);
    if let Some(role) = plan.role.as_ref().filter(|_| plan.executor().is_none()) {
        set("MESOS_ALLOCATION_ROLE", role.as_str());
    }
    for name in ["MESOS_DIRECTORY", "MESOS_SANDBOX"] {
        variables.insert(name.to_owned(), sandbox.as_os_str().to_owned());
    }
    if matches!(plan.subject, Subject::Nested(_)) {
        let address = OsString::from(&agent.ip);
        variables.insert("MESOS_CONTAINER_IP".to_owned(), address);
    }
    let own = plan
        .command()
        .and_then(|command| command.environment.as_ref());
    for variable in own.iter().flat_map(|environment| &environment.variables) {
        let (name, value) = own_variable(variable)?;
        variables.insert(name, value);
    }
    if let (Some(tokens), Subject::Executor(_)) = (&agent.tokens, &plan.subject) {
        let token = OsString::from(tokens.for_run(&plan.run));
        variables.insert(TOKEN.to_owned(), token);
    }
    Ok(variables
        .into_iter()
        .map(|(name, value)| (OsString::from(name), value))
        .collect())
}

fn own_variable(
    variable: &pb::environment::Variable,
) -> Result<(String, OsString), EnvironmentError> {
    let name = &variable.name;
    if variable.r#type == Some(VariableType::Secret.into()) || variable.secret.is_some() {
        return Err(EnvironmentError::Secret(name.clone()));
    }
    let value = variable.value.as_deref().unwrap_or_default();
    if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
        return Err(EnvironmentError::Impossible(name.clone()));
    }
    Ok((name.clone(), OsString::from(value)))
}
