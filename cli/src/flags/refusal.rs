//! The errors of flags, and the exit codes of the process after them.

use std::path::PathBuf;
use std::process::ExitCode;

use super::absent;
use crate::exit_code;
use crate::terminal;

/// The reason why a command line, environment or configuration file is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// clap's own message, or a request for help or the version.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// clap's own message about a value that is not on the command line, or about a command with values from files.
    #[error("{error}{}", note(.place.as_deref()))]
    Value {
        error: clap::Error,
        /// The place of the value, if it is outside the command line.
        place: Option<String>,
        /// Whether values were read from files, which may change a moment later.
        is_from_file: bool,
    },
    /// clap's own message about a flag of Mesos, with its replacement.
    #[error("{error}{}", note(Some(.instead)))]
    AbsentFlag { error: clap::Error, instead: String },
    #[error("failed to read {path}, the value of --{flag}")]
    ValueFile {
        flag: String,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to read the configuration file {path}")]
    ConfigUnreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is not TOML")]
    ConfigSyntax {
        path: PathBuf,
        #[source]
        source: Box<toml::de::Error>,
    },
    #[error(
        "{path}: a configuration file cannot set `config`: give it on the command line, or as \
         MESETA_CONFIG in the environment"
    )]
    ConfigItself { path: PathBuf },
    #[error("{path}: `{key}` is not a flag of `meseta {daemon}`{hint}")]
    ConfigKey {
        path: PathBuf,
        key: String,
        daemon: String,
        hint: String,
    },
    #[error(
        "{path}: `{key}` must be a string, a number or a boolean, or a list of these; {found} given"
    )]
    ConfigValue {
        path: PathBuf,
        key: String,
        found: &'static str,
    },
}

impl Refusal {
    /// Converts clap's error about a daemon's flags: `place` is the place of the value, and `is_from_file` says whether
    /// values came from files.
    pub(super) fn of_daemon(error: clap::Error, place: Option<String>, is_from_file: bool) -> Self {
        use clap::error::ErrorKind;
        match error.kind() {
            ErrorKind::InvalidValue | ErrorKind::ValueValidation
                if is_from_file || place.is_some() =>
            {
                Self::Value {
                    error,
                    place,
                    is_from_file,
                }
            }
            _ => match absent::replacement_of(&error) {
                Some(instead) => Self::AbsentFlag { error, instead },
                None => Self::CommandLine(error),
            },
        }
    }

    /// Prints the reason with its causes, and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        if let Self::CommandLine(error) = self {
            // Help and version go to standard output with code 0, errors to standard error.
            let code = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
            let printed = error.print();
            if error.use_stderr() {
                return code;
            }
            terminal::keep(printed);
            return terminal::finish(code);
        }
        let code = if self.may_pass() {
            ExitCode::FAILURE
        } else {
            ExitCode::from(exit_code::WRONG)
        };
        match &self {
            Self::Value { error, place, .. } => {
                let _ = error.print();
                if let Some(place) = place {
                    terminal::note_line(place);
                }
            }
            Self::AbsentFlag { error, instead } => {
                let _ = error.print();
                terminal::note_line(instead);
            }
            _ => terminal::note!("meseta: {:#}", anyhow::Error::from(self)),
        }
        code
    }

    /// Whether the same input may be valid a moment later: a file system may not be mounted yet.
    fn may_pass(&self) -> bool {
        match self {
            Self::ValueFile { .. } => true,
            Self::Value { is_from_file, .. } => *is_from_file,
            Self::ConfigUnreadable { source, .. } => !exit_code::is_lasting(source),
            Self::CommandLine(_)
            | Self::AbsentFlag { .. }
            | Self::ConfigSyntax { .. }
            | Self::ConfigItself { .. }
            | Self::ConfigKey { .. }
            | Self::ConfigValue { .. } => false,
        }
    }
}

/// Returns the text after clap's own lines.
fn note(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!("{text}\n"))
}
