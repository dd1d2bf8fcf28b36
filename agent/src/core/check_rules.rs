//! Which checks can be carried out here, of those that make sense ([`meseta_proto::task_parts`]).

use meseta_proto::mesos::v1 as pb;
use meseta_proto::task_parts::{InvalidPart, check_check, check_health};

/// Why a check of a task cannot be carried out, in words that its framework is shown.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidCheck {
    #[error(transparent)]
    Senseless(#[from] InvalidPart),
    #[error("a check cannot connect to port {0}")]
    Port(u32),
}

/// Refuses checks that cannot be carried out, in Mesos's words.
pub(super) fn validate(info: &pb::TaskInfo) -> Result<(), InvalidCheck> {
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
fn any_environment(_: Option<&pb::CommandInfo>) -> Result<(), InvalidPart> {
    Ok(())
}

fn validate_command(command: Option<&pb::CommandInfo>, what: &str) -> Result<(), InvalidCheck> {
    match command.filter(|command| command.value().is_empty()) {
        Some(command) => Err(InvalidPart::no_command(command, what).into()),
        None => Ok(()),
    }
}

fn validate_port(port: Option<u32>) -> Result<(), InvalidCheck> {
    match port.filter(|port| !matches!(u16::try_from(*port), Ok(1..))) {
        Some(port) => Err(InvalidCheck::Port(port)),
        None => Ok(()),
    }
}
