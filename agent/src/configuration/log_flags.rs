//! The flags for the log files of tasks, and their evaluation.

use meseta_isolators::LogFile;
use meseta_proto::Invalid;
use meseta_resources::ByteSize;

use super::error::{ConfigurationError, refused};

/// The smallest permitted file: a page, as in Mesos.
const FILE_BYTES_MIN: u64 = 4096;
/// The most older files of one stream.
const FILES_MAX: u32 = 1000;

/// Storage of task output; part of [`crate::Flags`].
#[derive(Clone, Debug, clap::Args)]
#[command(rename_all = "snake_case")]
pub struct LogFlags {
    /// Storage of task output: `logrotate` (files of bounded size, with older files beside them) or `sandbox`
    /// (files without a size limit).
    #[arg(long, value_enum, default_value_t = ContainerLogger::Logrotate, value_name = "NAME")]
    pub container_logger: ContainerLogger,

    /// Size at which the agent renames a task's stdout file and starts a new file.
    #[arg(long, default_value = "10MB", value_name = "SIZE")]
    pub max_stdout_size: ByteSize,

    /// Number of older stdout files to keep, in the syntax of logrotate.
    #[arg(long, default_value = "rotate 9", value_name = "OPTIONS")]
    pub logrotate_stdout_options: String,

    /// Size at which the agent renames a task's stderr file and starts a new file.
    #[arg(long, default_value = "10MB", value_name = "SIZE")]
    pub max_stderr_size: ByteSize,

    /// Number of older stderr files to keep, in the syntax of logrotate.
    #[arg(long, default_value = "rotate 9", value_name = "OPTIONS")]
    pub logrotate_stderr_options: String,
}

/// The logger of tasks' output: a value of `--container_logger`.
// The flag's help says what each value means.
#[derive(Copy, Clone, Debug, Eq, PartialEq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum ContainerLogger {
    Logrotate,
    Sandbox,
    // The name of Mesos's module.
    #[value(name = "org_apache_mesos_LogrotateContainerLogger")]
    MesosLogrotate,
}

/// Bounds of both streams; `None` where files may grow without a limit.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Logs {
    /// The log of the standard output stream.
    pub(crate) stdout: Option<LogFile>,
    /// The log of the standard error stream.
    pub(crate) stderr: Option<LogFile>,
}

/// Parses and checks the flags.
pub(crate) fn read(flags: &LogFlags) -> Result<Logs, ConfigurationError> {
    match flags.container_logger {
        ContainerLogger::Sandbox => return Ok(Logs::default()),
        ContainerLogger::Logrotate | ContainerLogger::MesosLogrotate => {}
    }
    let file = |size_flag, size: ByteSize, options_flag, options: &str| {
        Ok(LogFile {
            bytes: file_bytes(size).map_err(|why| refused(size_flag, why))?,
            files: files(options).map_err(|why| refused(options_flag, why))?,
        })
    };
    Ok(Logs {
        stdout: Some(file(
            "max_stdout_size",
            flags.max_stdout_size,
            "logrotate_stdout_options",
            &flags.logrotate_stdout_options,
        )?),
        stderr: Some(file(
            "max_stderr_size",
            flags.max_stderr_size,
            "logrotate_stderr_options",
            &flags.logrotate_stderr_options,
        )?),
    })
}

impl Logs {
    /// The limits after applying variables from a task's own environment: `CONTAINER_LOGGER_MAX_STDOUT_SIZE` and the
    /// like.
    pub(crate) fn with(self, variable: impl Fn(&str) -> Option<String>) -> Result<Self, Invalid> {
        let change = |log: Option<LogFile>, stream: &str| {
            let Some(mut log) = log else {
                return Ok(None);
            };
            let size = format!("CONTAINER_LOGGER_MAX_{stream}_SIZE");
            if let Some(text) = variable(&size) {
                let size_read = text.parse().map_err(|error| format!("{size}: {error}"))?;
                log.bytes = file_bytes(size_read).map_err(|why| format!("{size}: {why}"))?;
            }
            let options = format!("CONTAINER_LOGGER_LOGROTATE_{stream}_OPTIONS");
            if let Some(text) = variable(&options) {
                log.files = files(&text).map_err(|why| format!("{options}: {why}"))?;
            }
            Ok::<_, Invalid>(Some(log))
        };
        Ok(Self {
            stdout: change(self.stdout, "STDOUT")?,
            stderr: change(self.stderr, "STDERR")?,
        })
    }
}

fn file_bytes(size: ByteSize) -> Result<u64, Invalid> {
    let bytes = size.as_bytes();
    if bytes < FILE_BYTES_MIN {
        return Err(format!("{size} is too small: at least {FILE_BYTES_MIN}B").into());
    }
    Ok(bytes)
}

/// Parses logrotate options, one a line: `rotate N`. Options that match the agent's fixed behaviour are accepted.
fn files(options: &str) -> Result<u32, Invalid> {
    let mut files = 0;
    for option in options.split(['\n', ';']).map(str::trim) {
        match option.split_once(char::is_whitespace) {
            Some(("rotate", count)) => {
                let count = count.trim().parse().ok();
                files = count.filter(|count| *count <= FILES_MAX).ok_or_else(|| {
                    format!("{option:?}: at most {FILES_MAX} older files can be kept")
                })?;
            }
            None if ["", "nocompress", "missingok", "nomail", "nodateext"].contains(&option) => {}
            _ => {
                return Err(format!(
                    "{option:?} is not supported: give \"rotate N\", the number of older files"
                )
                .into());
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_logrotate_are_read() {
        assert_eq!(files("rotate 9"), Ok(9));
        assert_eq!(files("nocompress\n rotate 3\n"), Ok(3));
        assert_eq!(files(""), Ok(0));
        for bad in ["compress", "rotate many", "rotate 1000000", "rotate -1"] {
            assert!(files(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn task_can_set_its_log_limits() {
        let usual = LogFile {
            bytes: 10 << 20,
            files: 9,
        };
        let logs = Logs {
            stdout: Some(usual),
            stderr: Some(usual),
        };
        let asked = |name: &str| match name {
            "CONTAINER_LOGGER_MAX_STDOUT_SIZE" => Some("1MB".to_owned()),
            "CONTAINER_LOGGER_LOGROTATE_STDOUT_OPTIONS" => Some("rotate 2".to_owned()),
            _ => None,
        };
        let changed = logs.with(asked).expect("sound");
        assert_eq!(
            changed.stdout,
            Some(LogFile {
                bytes: 1 << 20,
                files: 2
            })
        );
        assert_eq!(changed.stderr, Some(usual));
        let small = |name: &str| (name.ends_with("STDERR_SIZE")).then(|| "1B".to_owned());
        assert!(
            logs.with(small)
                .is_err_and(|why| why.to_string().contains("too small"))
        );
        assert_eq!(Logs::default().with(small), Ok(Logs::default()));
    }
}
