//! Whether the parts of a task or executor make sense in themselves: its command, its container, its
//! checks.
//!
//! The rules and words are those of Mesos. Invariant: nothing here depends on the cluster.

use meseta_proto::mesos::v1::{self, CommandInfo, ContainerInfo, container_info, volume};
use meseta_resources::IdError;

use crate::core::invalid::{Invalid, invalid};

/// A variable has its value, in the one place where its type says.
pub(super) fn check_environment(command: Option<&CommandInfo>) -> Result<(), Invalid> {
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
                    "Environment variable of type 'UNKNOWN' is not allowed"
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
                check_secret(secret).map_err(Invalid::within(format_args!(
                    "Environment variable '{name}' specifies an invalid secret"
                )))?;
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

/// A secret is itself or a name, as its type says.
fn check_secret(secret: &v1::Secret) -> Result<(), Invalid> {
    use v1::secret::Type;
    let kind = secret.r#type.and_then(|kind| Type::try_from(kind).ok());
    match (kind, &secret.reference, &secret.value) {
        (Some(Type::Reference), None, _) => Err(invalid!(
            "Secret of type REFERENCE must have the 'reference' field set"
        )),
        (Some(Type::Reference), Some(reference), Some(_)) => Err(invalid!(
            "Secret '{}' of type REFERENCE must not have the 'value' field set",
            reference.name.escape_debug()
        )),
        (Some(Type::Value), _, None) => Err(invalid!(
            "Secret of type VALUE must have the 'value' field set"
        )),
        (Some(Type::Value), Some(_), Some(_)) => Err(invalid!(
            "Secret of type VALUE must not have the 'reference' field set"
        )),
        (Some(Type::Reference | Type::Value | Type::Unknown) | None, _, _) => Ok(()),
    }
}

/// One command of a check: something to run, and variables that make sense.
fn check_command(command: &CommandInfo, what: &str) -> Result<(), Invalid> {
    if command.value.is_none() {
        let missing = if command.shell.unwrap_or(true) {
            "'shell command'"
        } else {
            "'executable path'"
        };
        return Err(invalid!("{what} must contain {missing}"));
    }
    Ok(())
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

pub(super) fn check_health(check: &v1::HealthCheck) -> Result<(), Invalid> {
    use v1::health_check::Type;
    match check.r#type.and_then(|kind| Type::try_from(kind).ok()) {
        None => return Err(invalid!("HealthCheck must specify 'type'")),
        Some(Type::Command) => {
            let missing = "Expecting 'command' to be set for COMMAND health check";
            let command = check.command.as_ref().ok_or(missing)?;
            check_command(command, "Command health check")?;
            check_environment(Some(command))
                .map_err(Invalid::within("Health check's `CommandInfo` is invalid"))?;
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
            return Err(invalid!("Expecting 'tcp' to be set for TCP health check"));
        }
        Some(Type::Unknown) => return Err(invalid!("'UNKNOWN' is not a valid health check type")),
        Some(Type::Tcp) => {}
    }
    check_seconds(&[
        ("delay_seconds", check.delay_seconds),
        ("grace_period_seconds", check.grace_period_seconds),
        ("interval_seconds", check.interval_seconds),
        ("timeout_seconds", check.timeout_seconds),
    ])
}

pub(super) fn check_check(check: &v1::CheckInfo) -> Result<(), Invalid> {
    use v1::check_info::Type;
    match check.r#type.and_then(|kind| Type::try_from(kind).ok()) {
        None => return Err(invalid!("CheckInfo must specify 'type'")),
        Some(Type::Command) => {
            let missing = "Expecting 'command' to be set for COMMAND check";
            let command = &check.command.as_ref().ok_or(missing)?.command;
            check_command(command, "Command check")?;
            check_environment(Some(command))
                .map_err(Invalid::within("Check's `CommandInfo` is invalid"))?;
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

pub(super) fn check_container(container: &ContainerInfo) -> Result<(), Invalid> {
    for volume in &container.volumes {
        check_volume(volume).map_err(Invalid::within("Invalid volume"))?;
    }
    if container.r#type == i32::from(container_info::Type::Docker) {
        let missing = "DockerInfo 'docker' is not set for DOCKER typed ContainerInfo";
        let docker = container.docker.as_ref().ok_or(missing)?;
        if docker.parameters.iter().any(|one| one.key == "name") {
            return Err(invalid!("Parameter in DockerInfo must not be 'name'"));
        }
    }
    Ok(())
}

fn check_volume(volume: &v1::Volume) -> Result<(), Invalid> {
    use volume::source::Type;
    let given = [
        volume.host_path.is_some(),
        volume.image.is_some(),
        volume.source.is_some(),
    ];
    if given.into_iter().filter(|given| *given).count() != 1 {
        return Err(invalid!(
            "Only one of them should be set: 'host_path', 'image' and 'source'"
        ));
    }
    let Some(source) = &volume.source else {
        return Ok(());
    };
    let missing = match source.r#type.and_then(|kind| Type::try_from(kind).ok()) {
        Some(Type::DockerVolume) if source.docker_volume.is_none() => {
            "'source.docker_volume' is not set for DOCKER_VOLUME volume"
        }
        Some(Type::HostPath) if source.host_path.is_none() => {
            "'source.host_path' is not set for HOST_PATH volume"
        }
        Some(Type::SandboxPath) if source.sandbox_path.is_none() => {
            "'source.sandbox_path' is not set for SANDBOX_PATH volume"
        }
        Some(Type::Secret) if source.secret.is_none() => {
            "'source.secret' is not set for SECRET volume"
        }
        Some(Type::CsiVolume) => match &source.csi_volume {
            None => "'source.csi_volume' is not set for CSI volume",
            Some(csi) if csi.static_provisioning.is_none() => {
                "'source.csi_volume.static_provisioning' is not set for CSI volume"
            }
            Some(_) => return Ok(()),
        },
        Some(Type::Unknown) | None => "'source.type' is unknown",
        Some(Type::DockerVolume | Type::HostPath | Type::SandboxPath | Type::Secret) => {
            return Ok(());
        }
    };
    Err(missing.into())
}

/// Whether a container keeps its tasks in its own control groups, as it does unless it says
/// otherwise.
pub(in crate::core) fn shares_groups(container: Option<&v1::ContainerInfo>) -> bool {
    container
        .and_then(|container| container.linux_info.as_ref())
        .and_then(|linux| linux.share_cgroups)
        .unwrap_or(true)
}

/// Mesos's words for an id that cannot be one.
pub(super) fn id_text(error: &IdError) -> String {
    match error {
        IdError::Empty { .. } => "ID must not be empty".to_owned(),
        IdError::TooLong { max, .. } => format!("ID must not be greater than {max} characters"),
        IdError::Disallowed { id, .. } => format!("'{id}' is disallowed"),
        IdError::InvalidCharacter { id, .. } => {
            format!("'{}' contains invalid characters", id.escape_debug())
        }
    }
}
