//! The valid checks that this agent can carry out; see [`meseta_proto::task_parts`] for their validity.

use meseta_proto::mesos::v1 as pb;
use meseta_proto::task_parts::{check_check, check_health, no_command};
use meseta_proto::{Invalid, invalid};

/// Refuses checks that cannot be carried out, with Mesos's errors.
pub(super) fn validate(info: &pb::TaskInfo) -> Result<(), Invalid> {
    if let Some(check) = &info.health_check {
        use pb::health_check::Type;
        check_health(check, any_environment)?;
        match check.r#type() {
            Type::Command => validate_command(check.command.as_ref(), "Command health check")?,
            Type::Http => {
                let http = check.http.as_ref();
                validate_http(http.map(|http| (http.port, http.path.as_deref())))?;
            }
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
            Type::Http => {
                let http = check.http.as_ref();
                validate_http(http.map(|http| (http.port, http.path.as_deref())))?;
            }
            Type::Tcp => validate_port(check.tcp.as_ref().map(|tcp| tcp.port))?,
            Type::Unknown => {}
        }
    }
    Ok(())
}

/// Accepts all variables. The master validates them: an agent runs tasks that an older master accepted.
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

fn validate_http(asked_for: Option<(u32, Option<&str>)>) -> Result<(), Invalid> {
    let (port, path) = asked_for.unzip();
    validate_port(port)?;
    validate_path(path.flatten())
}

/// Refuses an invalid URL path, since its check could only fail.
fn validate_path(path: Option<&str>) -> Result<(), Invalid> {
    const PATH_CHARACTERS_SHOWN: usize = 255;
    let path = path.unwrap_or_default();
    let url = format!("http://127.0.0.1:{}{path}", u16::MAX);
    http::Uri::try_from(url).map(drop).map_err(|error| {
        let shown: String = path.chars().take(PATH_CHARACTERS_SHOWN).collect();
        invalid!(
            "a check cannot ask for the path '{}': {error}; write as %XX what a URL does not take",
            shown.escape_debug()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task with a check and a health check over HTTP.
    fn asked_for(path: Option<&str>, port: u32) -> pb::TaskInfo {
        let path = path.map(str::to_owned);
        pb::TaskInfo {
            health_check: Some(Box::new(pb::HealthCheck {
                r#type: Some(pb::health_check::Type::Http.into()),
                http: Some(pb::health_check::HttpCheckInfo {
                    port,
                    path: path.clone(),
                    ..pb::health_check::HttpCheckInfo::default()
                }),
                ..pb::HealthCheck::default()
            })),
            check: Some(Box::new(pb::CheckInfo {
                r#type: Some(pb::check_info::Type::Http.into()),
                http: Some(pb::check_info::Http { port, path }),
                ..pb::CheckInfo::default()
            })),
            ..pb::TaskInfo::default()
        }
    }

    #[test]
    fn check_with_unusable_path_is_refused() {
        for path in [
            None,
            Some("/"),
            Some("/a%20b?c=d&e=[f]"),
            Some("/gr\u{fc}n"),
        ] {
            assert!(validate(&asked_for(path, 80)).is_ok(), "{path:?}");
        }
        let long = format!("/{}", "a".repeat(70_000));
        for (path, reason) in [
            ("/a b", "'/a b': invalid uri character"),
            ("/a\n", "'/a\\n': invalid uri character"),
            ("/\u{7f}", "'/\\u{7f}': invalid uri character"),
            (&long, "aaa': uri too long"),
        ] {
            let both = asked_for(Some(path), 80);
            let (mut health_only, mut check_only) = (both.clone(), both);
            health_only.check = None;
            check_only.health_check = None;
            for task in [health_only, check_only] {
                let error = validate(&task).unwrap_err().to_string();
                assert!(error.contains(reason) && error.len() < 400, "{error}");
            }
        }
        let error = validate(&asked_for(None, 70_000)).unwrap_err();
        assert!(error.to_string().contains("port 70000"), "{error}");
    }
}
