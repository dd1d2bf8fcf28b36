//! Health checks and checks of launched tasks: by command, HTTP and TCP, early and frequent.

use meseta_proto::mesos::v1 as pb;

use crate::behaviour::shell;

pub(crate) fn health_check(rng: &mut fastrand::Rng) -> pb::HealthCheck {
    use pb::health_check::Type;
    let mut check = pb::HealthCheck {
        delay_seconds: Some(0.0),
        interval_seconds: Some(2.0),
        timeout_seconds: Some(5.0),
        consecutive_failures: Some(rng.u32(1..4)),
        grace_period_seconds: Some(f64::from(rng.u32(..6))),
        ..pb::HealthCheck::default()
    };
    let kind = match rng.u32(..3) {
        0 => {
            check.command = Some(shell("check"));
            Type::Command
        }
        1 => {
            check.http = Some(pb::health_check::HttpCheckInfo {
                port: 80,
                ..Default::default()
            });
            Type::Http
        }
        _ => {
            check.tcp = Some(pb::health_check::TcpCheckInfo {
                port: 80,
                ..Default::default()
            });
            Type::Tcp
        }
    };
    check.r#type = Some(kind.into());
    check
}

pub(crate) fn check(rng: &mut fastrand::Rng) -> pb::CheckInfo {
    use pb::check_info::Type;
    let mut check = pb::CheckInfo {
        delay_seconds: Some(0.0),
        interval_seconds: Some(2.0),
        timeout_seconds: Some(5.0),
        ..pb::CheckInfo::default()
    };
    let kind = match rng.u32(..3) {
        0 => {
            let command = shell("check");
            check.command = Some(pb::check_info::Command { command });
            Type::Command
        }
        1 => {
            check.http = Some(pb::check_info::Http {
                port: 80,
                path: None,
            });
            Type::Http
        }
        _ => {
            check.tcp = Some(pb::check_info::Tcp { port: 80 });
            Type::Tcp
        }
    };
    check.r#type = Some(kind.into());
    check
}
