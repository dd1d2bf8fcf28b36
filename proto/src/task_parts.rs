//! Validation of a command's environment and of a task's checks, independent of their context.
//!
//! The rules and words are those of Mesos, for both daemons. Invariant: nothing here depends on a cluster or a machine.

use crate::mesos::v1::{self, CommandInfo};
use crate::{Invalid, invalid};

/// The error that the command of a check has nothing to run; `what` names the check.
pub fn no_command(command: &CommandInfo, what: &str) -> Invalid {
    let missing = if command.shell.unwrap_or(true) {
        "'shell command'"
    } else {
        "'executable path'"
    };
    invalid!("{what} must contain {missing}")
}

/// Checks that each variable has its value in the one place that its type requires.
pub fn check_environment(command: Option<&CommandInfo>) -> Result<(), Invalid> {
    use v1::environment::variable::Type;
    let variables = command
        .and_then(|command| command.environment.as_ref())
        .map_or(&[][..], |environment| environment.variables.as_slice());
    for variable in variables {
        let kind = variable
            .r#type
            .and_then(|kind| Type::try_from(kind).ok())
            .unwrap_or(Type::Value);
        let name = variable.name.escape_debug();
        match (kind, &variable.value, &variable.secret) {
            (Type::Unknown, _, _) => {
                return Err(invalid!(
                    "Environment variable of type 'UNKNOWN' is not allowed",
                ));
            }
            (Type::Value, None, _) => {
                return Err(invalid!(
                    "Environment variable '{name}' of type 'VALUE' must have a value set"
                ));
            }
            (Type::Value, _, Some(_)) => {
                return Err(invalid!(
                    "Environment variable '{name}' of type 'VALUE' must not have a secret set"
                ));
            }
            (Type::Secret, _, None) => {
                return Err(invalid!(
                    "Environment variable '{name}' of type 'SECRET' must have a secret set"
                ));
            }
            (Type::Secret, Some(_), _) => {
                return Err(invalid!(
                    "Environment variable '{name}' of type 'SECRET' must not have a value set"
                ));
            }
            (Type::Secret, None, Some(secret)) => {
                check_secret(secret).map_err(|text| {
                    invalid!("Environment variable '{name}' specifies an invalid secret: {text}")
                })?;
                let data = secret.value.as_ref().map(|value| value.data.as_slice());
                if data.unwrap_or_default().contains(&0) {
                    return Err(invalid!(
                        "Environment variable '{name}' specifies a secret containing null bytes, \
                         which is not allowed in the environment"
                    ));
                }
            }
            (Type::Value, Some(_), None) => {}
        }
    }
    Ok(())
}

/// Checks that a secret has a value or a name, as its type requires.
fn check_secret(secret: &v1::Secret) -> Result<(), Invalid> {
    use v1::secret::Type;
    let kind = secret.r#type.and_then(|kind| Type::try_from(kind).ok());
    match (kind, &secret.reference, &secret.value) {
        (Some(Type::Reference), None, _) => Err(invalid!(
            "Secret of type REFERENCE must have the 'reference' field set",
        )),
        (Some(Type::Reference), Some(reference), Some(_)) => Err(invalid!(
            "Secret '{}' of type REFERENCE must not have the 'value' field set",
            reference.name.escape_debug()
        )),
        (Some(Type::Value), _, None) => Err(invalid!(
            "Secret of type VALUE must have the 'value' field set",
        )),
        (Some(Type::Value), Some(_), Some(_)) => Err(invalid!(
            "Secret of type VALUE must not have the 'reference' field set",
        )),
        (Some(Type::Reference | Type::Value | Type::Unknown) | None, _, _) => Ok(()),
    }
}

/// Checks that a command of a check contains something to run.
fn check_command(command: &CommandInfo, what: &str) -> Result<(), Invalid> {
    match &command.value {
        Some(_) => Ok(()),
        None => Err(no_command(command, what)),
    }
}

fn check_path(path: Option<&str>, what: &str) -> Result<(), Invalid> {
    match path {
        Some(path) if !path.starts_with('/') => Err(invalid!(
            "The path '{}' of {what} must start with '/'",
            path.escape_debug()
        )),
        Some(_) | None => Ok(()),
    }
}

fn check_seconds(values: &[(&str, Option<f64>)]) -> Result<(), Invalid> {
    for (name, value) in values {
        if value.is_some_and(|value| value < 0.0 || value.is_nan()) {
            return Err(invalid!("Expecting '{name}' to be non-negative"));
        }
    }
    Ok(())
}

/// Checks that a health check has the parts that its type needs, and no negative time; `environment` validates the variables
/// of its command, as [`check_environment`] does.
pub fn check_health(
    check: &v1::HealthCheck,
    environment: impl Fn(Option<&CommandInfo>) -> Result<(), Invalid>,
) -> Result<(), Invalid> {
    use v1::health_check::Type;
    match check.r#type.and_then(|kind| Type::try_from(kind).ok()) {
        None => return Err(invalid!("HealthCheck must specify 'type'")),
        Some(Type::Command) => {
            let missing = "Expecting 'command' to be set for COMMAND health check";
            let command = check.command.as_ref().ok_or(missing)?;
            check_command(command, "Command health check")?;
            environment(Some(command))
                .map_err(|text| invalid!("Health check's `CommandInfo` is invalid: {text}"))?;
        }
        Some(Type::Http) => {
            let missing = "Expecting 'http' to be set for HTTP health check";
            let http = check.http.as_ref().ok_or(missing)?;
            if let Some(scheme) = http.scheme.as_deref()
                && scheme != "http"
                && scheme != "https"
            {
                return Err(invalid!(
                    "Unsupported HTTP health check scheme: '{}'",
                    scheme.escape_debug()
                ));
            }
            check_path(http.path.as_deref(), "HTTP health check")?;
        }
        Some(Type::Tcp) if check.tcp.is_none() => {
            return Err(invalid!("Expecting 'tcp' to be set for TCP health check",));
        }
        Some(Type::Unknown) => {
            return Err(invalid!("'UNKNOWN' is not a valid health check type",));
        }
        Some(Type::Tcp) => {}
    }
    check_seconds(&[
        ("delay_seconds", check.delay_seconds),
        ("grace_period_seconds", check.grace_period_seconds),
        ("interval_seconds", check.interval_seconds),
        ("timeout_seconds", check.timeout_seconds),
    ])
}

/// Validates a check whose outcome is only reported.
pub fn check_check(
    check: &v1::CheckInfo,
    environment: impl Fn(Option<&CommandInfo>) -> Result<(), Invalid>,
) -> Result<(), Invalid> {
    use v1::check_info::Type;
    match check.r#type.and_then(|kind| Type::try_from(kind).ok()) {
        None => return Err(invalid!("CheckInfo must specify 'type'")),
        Some(Type::Command) => {
            let missing = "Expecting 'command' to be set for COMMAND check";
            let command = &check.command.as_ref().ok_or(missing)?.command;
            check_command(command, "Command check")?;
            environment(Some(command))
                .map_err(|text| invalid!("Check's `CommandInfo` is invalid: {text}"))?;
        }
        Some(Type::Http) => {
            let missing = "Expecting 'http' to be set for HTTP check";
            let http = check.http.as_ref().ok_or(missing)?;
            check_path(http.path.as_deref(), "HTTP check")?;
        }
        Some(Type::Tcp) if check.tcp.is_none() => {
            return Err(invalid!("Expecting 'tcp' to be set for TCP check"));
        }
        Some(Type::Unknown) => return Err(invalid!("'UNKNOWN' is not a valid check type")),
        Some(Type::Tcp) => {}
    }
    check_seconds(&[
        ("delay_seconds", check.delay_seconds),
        ("interval_seconds", check.interval_seconds),
        ("timeout_seconds", check.timeout_seconds),
    ])
}
