//! The place of a refused value of a daemon's flag: clap's message names the flag as if the user had typed it.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Returns the place of the value that `error` concerns, if it is not on the command line. `typed` is that line, and
/// `merged` includes the flags of the configuration file.
pub(super) fn place(
    error: &clap::Error,
    daemon: &str,
    typed: &[OsString],
    merged: &[OsString],
) -> Option<String> {
    let flag = refused_flag(error)?;
    let command = super::command();
    let mut flags = super::find(&command, daemon)?.get_arguments();
    let named = flags.find(|arg| arg.get_long() == Some(flag))?;
    let mut aliases = named.get_all_aliases().unwrap_or_default().into_iter();
    if super::said(typed, flag) || aliases.any(|alias| super::said(typed, alias)) {
        return None;
    }
    if super::said(merged, flag) {
        let path = super::config_path(typed)?;
        return Some(format!(
            "the value is that of `{flag}` in {}",
            path.display()
        ));
    }
    let name = super::env_name(flag);
    super::environment(&name).map(|_| format!("the value is that of {name} in the environment"))
}

/// Returns the long name of the flag whose value was refused.
fn refused_flag(error: &clap::Error) -> Option<&str> {
    if !matches!(
        error.kind(),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation
    ) {
        return None;
    }
    // clap shows the flag in the form `--flag[=<VALUE>]`.
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let shown = shown.strip_prefix("--")?;
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    shown.split(|letter| !is_of_name(letter)).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_is_named_without_its_value() {
        let command = clap::Command::new("x").arg(
            clap::Arg::new("a_flag")
                .long("a_flag")
                .value_name("BOOL")
                .num_args(0..=1)
                .require_equals(true)
                .value_parser(clap::value_parser!(bool)),
        );
        let refused = |line: [&str; 2]| {
            let error = command.clone().try_get_matches_from(line);
            error.expect_err("refused")
        };
        assert_eq!(refused_flag(&refused(["x", "--a_flag=1"])), Some("a_flag"));
        assert_eq!(refused_flag(&refused(["x", "--nosuch=1"])), None);
    }
}
