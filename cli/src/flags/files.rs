//! Files in the values of daemons' flags: the flags that take a path, and those for which `file:///path` means the file's
//! text.
//!
//! Invariant: only the declaration of a flag decides. A flag whose value is parsed as a path takes a path, so that the
//! contents of its file are neither on a command line nor in `/flags`.

use std::any::TypeId;
use std::ffi::OsStr;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, ValueHint};

use super::refusal::Refusal;

/// The prefix of a path.
const SCHEME: &str = "file://";

/// The meaning of `file:///path` for a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileValue {
    /// The flag takes a path, namely this file's.
    Path,
    /// The daemon itself reads the file, at each change.
    Followed,
    /// The text of the file is the value.
    Text,
}

fn file_value(arg: &Arg) -> FileValue {
    if is_path(arg) {
        FileValue::Path
    } else if arg.get_value_hint() == ValueHint::AnyPath {
        FileValue::Followed
    } else {
        FileValue::Text
    }
}

fn is_path(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<PathBuf>()
}

/// Whether a daemon has a flag of this name that takes a path.
pub(crate) fn is_path_of_daemon(flag: &str) -> bool {
    let command = super::command();
    let daemons = super::DAEMONS.into_iter();
    let mut daemons = daemons.filter_map(|name| super::find(&command, name));
    daemons.any(|daemon| {
        let named = daemon
            .get_arguments()
            .find(|arg| arg.get_long() == Some(flag));
        named.is_some_and(is_path)
    })
}

/// Returns the replacement of `--flag=file:///path`, if any.
pub(super) fn replaced(arg: &str, daemon: &Command) -> Result<Option<String>, Refusal> {
    let Some((flag, path, value)) = parts(arg, daemon) else {
        return Ok(None);
    };
    let value = match value {
        FileValue::Followed => return Ok(None),
        FileValue::Path => path.display().to_string(),
        FileValue::Text => {
            let text = std::fs::read_to_string(&path).map_err(|source| Refusal::ValueFile {
                flag: flag.to_owned(),
                path,
                source,
            })?;
            text.trim_end().to_owned()
        }
    };
    Ok(Some(format!("--{flag}={value}")))
}

/// Whether the value given here is the text of a file.
pub(super) fn is_text_of_file(arg: &OsStr, daemon: &Command) -> bool {
    let parts = arg.to_str().and_then(|arg| parts(arg, daemon));
    parts.is_some_and(|(_, _, value)| value == FileValue::Text)
}

/// Splits `--flag=file:///path` of an existing flag into its name, the path, and the meaning of the path.
fn parts<'a>(arg: &'a str, daemon: &Command) -> Option<(&'a str, PathBuf, FileValue)> {
    let (flag, value) = arg.strip_prefix("--")?.split_once('=')?;
    let path = value.strip_prefix(SCHEME)?;
    let is_named = |arg: &&Arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(flag) || aliases.contains(&flag)
    };
    let named = daemon.get_arguments().find(is_named)?;
    Some((flag, PathBuf::from(path), file_value(named)))
}

/// Returns the flags whose value is the text of a file, if it names one.
pub(super) fn texts(daemon: &Command) -> Vec<String> {
    let texts = daemon.get_arguments();
    let texts = texts.filter(|arg| file_value(arg) == FileValue::Text);
    texts
        .filter_map(|arg| arg.get_long().map(str::to_owned))
        .collect()
}

/// Whether the daemon itself reads configuration from files that it does not reread; `texts` are the flags of [`texts`].
pub(super) fn are_read_later(matches: &ArgMatches, texts: &[String]) -> bool {
    let raw = |flag: &str| matches.try_get_raw(flag).ok().flatten();
    // The folder contains such files.
    let has_folder = raw("modules_dir").is_some();
    let mut values = texts.iter().filter_map(|flag| raw(flag)).flatten();
    has_folder || values.any(|value| value.to_string_lossy().starts_with(SCHEME))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `look` for each flag of the daemons.
    fn each(mut look: impl FnMut(&str, &Arg)) {
        let command = super::super::command();
        for name in super::super::DAEMONS {
            let daemon = super::super::find(&command, name).expect("declared");
            let flags = daemon.get_arguments();
            for arg in flags.filter(|arg| arg.get_long().is_some()) {
                look(arg.get_long().unwrap_or_default(), arg);
            }
        }
    }

    /// A flag declared as text would put its file's text, perhaps a secret, on the command line and in `/flags`.
    #[test]
    fn every_path_flag_is_declared_so() {
        let mut paths = 0;
        each(|flag, arg| {
            let says = |name: &&str| ["FILE", "DIR", "PATH"].contains(name);
            let names = arg.get_value_names().unwrap_or_default();
            let says_so = names.iter().any(|name| says(&name.as_str()))
                || ["_file", "_dir"].iter().any(|end| flag.ends_with(end))
                || arg.get_value_hint() == ValueHint::FilePath;
            if says_so {
                paths += 1;
                assert_eq!(file_value(arg), FileValue::Path, "--{flag}");
                assert!(is_path_of_daemon(flag), "--{flag}");
            }
            if file_value(arg) == FileValue::Followed {
                assert_eq!(flag, "acls", "a daemon reads this file itself");
            }
        });
        assert!(paths > 25, "{paths} flags are looked at");
        assert!(!is_path_of_daemon("resources") && !is_path_of_daemon("nosuch"));
    }

    #[test]
    fn file_value_follows_the_flag_kind() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "cpus:3\n").expect("written");
        let path = file.path().display();
        let command = super::super::command();
        let agent = super::super::find(&command, "agent").expect("declared");
        let replaced = |flag: &str| {
            let arg = format!("--{flag}=file://{path}");
            assert_eq!(
                is_text_of_file(arg.as_ref(), agent),
                ["resources", "allowed_capabilities"].contains(&flag)
            );
            replaced(&arg, agent).expect("read")
        };
        for (flag, expected) in [
            ("resources", Some("cpus:3".to_owned())),
            // Aliases of a flag with text, and of a flag with a path.
            ("allowed_capabilities", Some("cpus:3".to_owned())),
            ("credentials", Some(path.to_string())),
            ("work_dir", Some(path.to_string())),
            ("acls", None),
            ("nosuch", None),
        ] {
            let expected = expected.map(|value| format!("--{flag}={value}"));
            assert_eq!(replaced(flag), expected, "{flag}");
        }
    }
}
