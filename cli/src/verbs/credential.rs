//! `meseta credential`: prints a line for a file of credentials, with the hash of a secret.

use std::io::BufRead as _;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::{Args, ValueHint};
use meseta_access::SecretHash;
use meseta_access::credentials::{is_principal, may_begin_line};

use crate::terminal;

/// The longest secret, in bytes.
const SECRET_BYTES_MAX: usize = 4_096;

/// The owner and the source of the secret.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The principal.
    #[arg(long, value_name = "NAME")]
    principal: String,
    /// File that holds the secret. Default: one line of standard input.
    #[arg(long, alias = "secret_file", value_name = "FILE", value_hint = ValueHint::FilePath)]
    secret_file: Option<PathBuf>,
    /// Print a whole file in Mesos's JSON instead of one line.
    #[arg(long)]
    json: bool,
}

/// Prints the line of the credential.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(
        is_principal(&options.principal),
        "--principal={:?}: a principal is up to 255 bytes without colons, spaces and control \
         characters",
        options.principal
    );
    ensure!(
        options.json || may_begin_line(&options.principal),
        "--principal={:?}: a line that begins like this is a comment or JSON; give another \
        principal, or --json for a whole file",
        options.principal
    );
    let text = match &options.secret_file {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("failed to read {}", path.display()))?,
        None => {
            let mut line = String::new();
            let input = std::io::stdin().lock();
            std::io::Read::take(input, 2 * SECRET_BYTES_MAX as u64)
                .read_line(&mut line)
                .context("failed to read the secret from standard input")?;
            line
        }
    };
    let secret = text.trim_end_matches(['\r', '\n']);
    ensure!(!secret.is_empty(), "the secret is empty");
    ensure!(
        secret.len() <= SECRET_BYTES_MAX,
        "the secret is longer than {SECRET_BYTES_MAX} bytes"
    );
    let salt = uuid::Uuid::new_v4().into_bytes();
    let hash = SecretHash::from_secret(secret.as_bytes(), salt)?;
    let text = if options.json {
        let pair = serde_json::json!({
            "principal": options.principal, "secret": hash.to_string(),
        });
        serde_json::json!({ "credentials": [pair] }).to_string()
    } else {
        format!("{} {hash}", options.principal)
    };
    terminal::say(&text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the daemon treated the line as a comment, or the whole file as damaged.
    #[test]
    fn unreadable_credential_line_is_not_made() {
        let dir = tempfile::tempdir().expect("a folder");
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "x").expect("written");
        let run = |principal: &str, json| {
            run(&Options {
                principal: principal.to_owned(),
                secret_file: Some(secret.clone()),
                json,
            })
        };
        for principal in ["#x", "{x"] {
            let error = run(principal, false).expect_err("refused").to_string();
            assert!(error.contains("or --json for a whole file"), "{error}");
            run(principal, true).expect("made");
        }
    }
}
