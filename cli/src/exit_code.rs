//! The exit code of this process after an error: 2 for an invalid configuration of a daemon, which a human must correct;
//! else 1.
//!
//! Units of systemd restart a daemon for ever unless it exits with 2 ([`WRONG`]). Invariant: a fault that may pass by
//! itself never gives 2, such as an address that is not there yet, a name that is not known yet, a file system that is not
//! mounted yet, or a certificate that is being replaced. The command line, the environment and the file of `--config` are
//! configuration; further files are not. With values from such files no error gives 2: the files may be half written, and
//! an empty file is valid.

use std::io;
use std::process::ExitCode;

use meseta_agent::{ConfigurationError, ModulesError, OversubscriptionError};
use meseta_daemon::authentication::SettingsError;
use meseta_daemon::flag_error::FlagError;

use crate::flags;

/// The conventional exit code of a usage error. `RestartPreventExitStatus=` of the units names it.
pub(crate) const WRONG: u8 = 2;

/// Flags that take no path, but concern files or devices nevertheless: their errors may come from these.
const ABOUT_FILES: [&str; 3] = [
    "allowed_devices",
    "allowed_host_paths",
    "seccomp_profile_name",
];

/// Flags that take a path, and whose only own error is that they need another flag: errors of their files concern
/// `etcd_ca_file`.
const NEED_ANOTHER: [&str; 2] = ["etcd_cert_file", "etcd_key_file"];

/// Returns the exit code for a failed verb; `further_files` says whether values came from files.
pub(crate) fn after(error: &anyhow::Error, further_files: bool) -> ExitCode {
    if !further_files && is_wrong_configuration(error) {
        return ExitCode::from(WRONG);
    }
    ExitCode::FAILURE
}

fn is_wrong_configuration(error: &anyhow::Error) -> bool {
    if let Some(error) = error.downcast_ref::<meseta_master::RunError>() {
        return is_of_master(error);
    }
    if let Some(error) = error.downcast_ref::<meseta_agent::RunError>() {
        return is_of_agent(error);
    }
    let of_scheduler = error.downcast_ref::<meseta_jobs::RunError>();
    of_scheduler.is_some_and(is_of_scheduler)
}

fn is_of_master(error: &meseta_master::RunError) -> bool {
    use meseta_master::RunError;
    match error {
        RunError::Etcd(_) | RunError::UnknownRegistry(_) => true,
        RunError::Flag(error) => is_of_flag(error),
        RunError::Authentication(error) => is_of_authentication(error),
        _ => false,
    }
}

fn is_of_agent(error: &meseta_agent::RunError) -> bool {
    use meseta_agent::RunError;
    match error {
        RunError::Configuration(error) => is_of_agents_flags(error),
        RunError::Oversubscription(OversubscriptionError::Modules(ModulesError::Unreadable {
            ..
        })) => false,
        RunError::Oversubscription(_) | RunError::Master(_) => true,
        RunError::Authentication(error) => is_of_authentication(error),
        _ => false,
    }
}

fn is_of_scheduler(error: &meseta_jobs::RunError) -> bool {
    use meseta_jobs::RunError;
    match error {
        RunError::Master(_) | RunError::Etcd(_) => true,
        RunError::Flag(error) => is_of_flag(error),
        RunError::Authentication(error) => is_of_authentication(error),
        // The user's name may come from a directory service that does not respond yet.
        _ => false,
    }
}

fn is_of_agents_flags(error: &ConfigurationError) -> bool {
    match error {
        // The agent detects its resources and name, and may detect more once everything is mounted and known.
        ConfigurationError::Incompatible { what, .. } => !["resources", "hostname"].contains(what),
        ConfigurationError::Checkpointed { .. }
        | ConfigurationError::UnreadableRecord { .. }
        | ConfigurationError::File { .. } => false,
        ConfigurationError::IsolationFlag { flag, .. } => !is_about_files(flag),
        _ => true,
    }
}

fn is_of_flag(error: &FlagError) -> bool {
    !is_about_files(error.flag)
}

/// Whether an error of this flag may come from a file.
fn is_about_files(flag: &str) -> bool {
    let takes_path = flags::is_path_of_daemon(flag) && !NEED_ANOTHER.contains(&flag);
    takes_path || ABOUT_FILES.contains(&flag)
}

fn is_of_authentication(error: &SettingsError) -> bool {
    !matches!(
        error,
        SettingsError::Credentials { .. }
            | SettingsError::File { .. }
            | SettingsError::Acls(_)
            | SettingsError::Tls(_)
    )
}

/// Whether a configuration file that could not be read for this reason will stay unreadable.
pub(crate) fn is_lasting(source: &io::Error) -> bool {
    use io::ErrorKind;
    matches!(
        source.kind(),
        ErrorKind::PermissionDenied | ErrorKind::IsADirectory | ErrorKind::InvalidData
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use meseta_daemon::tls::{FileError, TlsError};

    use super::*;

    fn missing() -> FileError {
        FileError::Read {
            path: PathBuf::from("/x"),
            source: io::ErrorKind::NotFound.into(),
        }
    }

    fn incompatible(what: &'static str) -> meseta_agent::RunError {
        let error = ConfigurationError::Incompatible {
            what,
            before: "a".to_owned(),
            now: "b".to_owned(),
            policy: meseta_agent::ReconfigurationPolicy::Additive,
            latest: "/x".to_owned(),
        };
        error.into()
    }

    /// Regression: each of these was retried every second for ever.
    #[test]
    fn invalid_configuration_is_not_retried() {
        let flag = |flag| FlagError::new(flag, "x", "why");
        let wrong: [anyhow::Error; 11] = [
            meseta_master::RunError::UnknownRegistry("x".to_owned()).into(),
            meseta_master::RunError::from(flag("weights")).into(),
            meseta_master::RunError::from(SettingsError::HalfAPair).into(),
            meseta_agent::RunError::from(SettingsError::NoAcls("x".to_owned())).into(),
            meseta_agent::RunError::from(ConfigurationError::Resources("x".to_owned())).into(),
            meseta_agent::RunError::from(ConfigurationError::Zero("x")).into(),
            incompatible("attributes").into(),
            meseta_agent::RunError::from(meseta_agent::MasterAddressError::Malformed(
                "x".to_owned(),
            ))
            .into(),
            meseta_jobs::RunError::Master("x".to_owned()).into(),
            meseta_jobs::RunError::from(flag("store")).into(),
            meseta_jobs::RunError::from(SettingsError::AuthoritiesAlone).into(),
        ];
        for error in wrong {
            assert_eq!(after(&error, false), ExitCode::from(2), "{error:#}");
            // Regression: an empty file of attributes took a node down permanently.
            assert_eq!(after(&error, true), ExitCode::FAILURE, "{error:#}");
        }
    }

    /// Regression: a manual list had only the flags that its author remembered.
    #[test]
    fn path_flag_error_is_retried() {
        for (flag, may_pass) in [
            ("whitelist", true),
            ("etcd_password_file", true),
            ("etcd_ca_file", true),
            ("seccomp_config_dir", true),
            ("external_log_file", true),
            ("seccomp_profile_name", true),
            ("allowed_devices", true),
            ("etcd_cert_file", false),
            ("etcd_key_file", false),
            ("weights", false),
            ("memory_budget", false),
        ] {
            let error = meseta_master::RunError::from(FlagError::new(flag, "x", "why"));
            let code = after(&error.into(), false);
            let expected = if may_pass { 1 } else { 2 };
            assert_eq!(code, ExitCode::from(expected), "{flag}");
        }
        for flag in ABOUT_FILES {
            assert!(
                !flags::is_path_of_daemon(flag),
                "{flag} is known by its declaration"
            );
        }
        for flag in NEED_ANOTHER {
            assert!(flags::is_path_of_daemon(flag), "{flag}");
        }
    }

    #[test]
    fn transient_failure_is_retried() {
        let listen = || meseta_master::RunError::Listen {
            address: ([10, 0, 0, 1], 5050).into(),
            source: io::ErrorKind::AddrNotAvailable.into(),
        };
        let tls = SettingsError::Tls(TlsError::File(missing()));
        let file = SettingsError::File {
            flag: "credentials",
            cause: missing(),
        };
        let value = ConfigurationError::File {
            flag: "resources",
            path: "/x".to_owned(),
            why: "x".to_owned(),
        };
        let flag = |flag| FlagError::new(flag, "x", "why");
        let passing: [anyhow::Error; 9] = [
            anyhow::anyhow!("of a verb"),
            listen().into(),
            meseta_master::RunError::from(tls).into(),
            meseta_master::RunError::from(flag("etcd_ca_file")).into(),
            meseta_agent::RunError::from(file).into(),
            meseta_agent::RunError::from(value).into(),
            incompatible("resources").into(),
            incompatible("hostname").into(),
            meseta_jobs::RunError::User.into(),
        ];
        for error in passing {
            assert_eq!(after(&error, false), ExitCode::FAILURE, "{error:#}");
        }
    }
}
