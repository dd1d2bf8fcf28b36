//! Which checks can be carried out here, of those that make sense ([`meseta_proto::task_parts`]).

use meseta_proto::mesos::v1 as pb;
use meseta_proto::task_parts::{check_check, check_health, no_command};
use meseta_proto::{Invalid, invalid};

/// Refuses checks that cannot be carried out, in Mesos's words.
pub(super) fn validate(info: &pb::TaskInfo) -> Result<(), Invalid> {
    if let Some(check) = &info.health_check {
        use pb::health_check::Type;
        check_health(check, any_environment)?;
        match check.r#type() {
            Type::Command => validate_command(check.command.as_ref(), "Command health check")?,
            Type::Http => validate_port(check.http.as_ref().map(|http| http.port))?,
            Type::Tcp => validate_port(check.tcp.as_ref().map(|tcp| tcp.port))?,
            Type::Unknown => {}
        }
    }
    if let Some(check) = &info.check {
        use pb::check_info::Type;
        check_check(check, any_environment)?;
        match check.r#type() {
            Type::Command => {
                let command = check.command.as_ref().map(|check| &check.command);
                validate_command(command, "Command check")?;
            }
            Type::Http => validate_port(check.http.as_ref().map(|http| http.port))?,
            Type::Tcp => validate_port(check.tcp.as_ref().map(|tcp| tcp.port))?,
            Type::Unknown => {}
        }
    }
    Ok(())
}

/// Variables are the master's to judge: an agent runs what an older master let pass.
fn any_environment(_: Option<&pb::CommandInfo>) -> Result<(), Invalid> {
    Ok(())
}

fn validate_command(command: Option<&pb::CommandInfo>, what: &str) -> Result<(), Invalid> {
    match command.filter(|command| command.value().is_empty()) {
        Some(command) => Err(no_command(command, what)),
        None => Ok(()),
    }
}

fn validate_port(port: Option<u32>) -> Result<(), Invalid> {
    match port.filter(|port| !matches!(u16::try_from(*port), Ok(1..))) {
        Some(port) => Err(invalid!("a check cannot connect to port {port}")),
        None => Ok(()),
    }
}
