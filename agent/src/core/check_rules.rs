//! Which checks can be carried out, and what is said of those that cannot, in Mesos's words.

use meseta_proto::mesos::v1 as pb;

/// Refuses checks that cannot be carried out, in Mesos's words.
pub(super) fn validate(info: &pb::TaskInfo) -> Result<(), String> {
    if let Some(check) = &info.health_check {
        validate_health(check)?;
    }
    if let Some(check) = &info.check {
        validate_check(check)?;
    }
    Ok(())
}

fn validate_health(check: &pb::HealthCheck) -> Result<(), String> {
    use pb::health_check::Type;
    if check.r#type.is_none() {
        return Err("HealthCheck must specify 'type'".to_owned());
    }
    match check.r#type() {
        Type::Command => {
            let command = check.command.as_ref();
            let command =
                command.ok_or("Expecting 'command' to be set for COMMAND health check")?;
            validate_command(command, "Command health check")?;
        }
        Type::Http => {
            let http = check.http.as_ref();
            let http = http.ok_or("Expecting 'http' to be set for HTTP health check")?;
            let scheme = http.scheme.as_deref().unwrap_or("http");
            if !matches!(scheme, "http" | "https") {
                return Err(format!("Unsupported HTTP health check scheme: '{scheme}'"));
            }
            validate_path(http.path.as_deref(), "HTTP health check")?;
            validate_port(http.port)?;
        }
        Type::Tcp => {
            let tcp = check.tcp.as_ref();
            let tcp = tcp.ok_or("Expecting 'tcp' to be set for TCP health check")?;
            validate_port(tcp.port)?;
        }
        Type::Unknown => {
            return Err("'UNKNOWN' is not a valid health check type".to_owned());
        }
    }
    validate_seconds(&[
        ("delay_seconds", check.delay_seconds()),
        ("grace_period_seconds", check.grace_period_seconds()),
        ("interval_seconds", check.interval_seconds()),
        ("timeout_seconds", check.timeout_seconds()),
    ])
}

fn validate_check(check: &pb::CheckInfo) -> Result<(), String> {
    use pb::check_info::Type;
    if check.r#type.is_none() {
        return Err("CheckInfo must specify 'type'".to_owned());
    }
    match check.r#type() {
        Type::Command => {
            let command = check.command.as_ref();
            let command = command.ok_or("Expecting 'command' to be set for COMMAND check")?;
            validate_command(&command.command, "Command check")?;
        }
        Type::Http => {
            let http = check.http.as_ref();
            let http = http.ok_or("Expecting 'http' to be set for HTTP check")?;
            validate_path(http.path.as_deref(), "HTTP check")?;
            validate_port(http.port)?;
        }
        Type::Tcp => {
            let tcp = check.tcp.as_ref();
            let tcp = tcp.ok_or("Expecting 'tcp' to be set for TCP check")?;
            validate_port(tcp.port)?;
        }
        Type::Unknown => return Err("'UNKNOWN' is not a valid check type".to_owned()),
    }
    validate_seconds(&[
        ("delay_seconds", check.delay_seconds()),
        ("interval_seconds", check.interval_seconds()),
        ("timeout_seconds", check.timeout_seconds()),
    ])
}

fn validate_command(command: &pb::CommandInfo, what: &str) -> Result<(), String> {
    if command.value.as_deref().unwrap_or_default().is_empty() {
        let kind = if command.shell.unwrap_or(true) {
            "shell command"
        } else {
            "executable path"
        };
        return Err(format!("{what} must contain '{kind}'"));
    }
    Ok(())
}

fn validate_path(path: Option<&str>, what: &str) -> Result<(), String> {
    match path {
        Some(path) if !path.starts_with('/') => {
            Err(format!("The path '{path}' of {what} must start with '/'"))
        }
        _ => Ok(()),
    }
}

fn validate_port(port: u32) -> Result<(), String> {
    match u16::try_from(port) {
        Ok(1..) => Ok(()),
        _ => Err(format!("a check cannot connect to port {port}")),
    }
}

fn validate_seconds(given: &[(&str, f64)]) -> Result<(), String> {
    let negative = given
        .iter()
        .find(|(_, value)| value.is_nan() || *value < 0.0);
    match negative {
        Some((name, _)) => Err(format!("Expecting '{name}' to be non-negative")),
        None => Ok(()),
    }
}
