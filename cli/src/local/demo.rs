//! The demonstration of `meseta local --demo`: two teams with shares, a service, and a batch job on resources that the
//! service does not use.
//!
//! [`commands`] are printed before they run, so that a reader can type similar ones. Invariant: the demonstration consists
//! of flags and verbs alone; the daemons know nothing of it.

use std::process::Stdio;

use anyhow::{Context as _, bail};
use tokio::process::{Child, Command};

use crate::terminal;

/// The number of agents of a demonstration, unless specified.
pub(super) const AGENTS: u16 = 3;
/// The default resources of each agent: the same on every machine, so that the shares below fit.
pub(super) const RESOURCES: &str = "cpus:2;mem:1024;disk:1024";

/// Returns the flags of an agent that oversubscribes unused resources. The estimator trusts a task after seconds, where a
/// real fleet waits for minutes.
pub(super) fn oversubscription() -> Vec<String> {
    let parameters = [
        ("min_age", "10secs"),
        ("min_samples", "5"),
        ("fold", "5secs"),
        ("rate_window", "3secs"),
        ("growth", "0.5"),
        ("growth_interval", "2secs"),
        ("reopen_after", "10secs"),
        ("crowd", "false"),
    ];
    let parameters = parameters.map(|(key, value)| serde_json::json!({"key": key, "value": value}));
    let modules = serde_json::json!({
        "libraries": {"modules": {"name": "slack", "parameters": parameters}}
    });
    vec![
        "--resource_estimator=slack".to_owned(),
        "--qos_controller=pressure".to_owned(),
        "--oversubscribed_resources_interval=2secs".to_owned(),
        format!("--modules={modules}"),
    ]
}

/// Returns the verbs of the demonstration with their arguments, in their order.
pub(super) fn commands() -> Vec<Vec<&'static str>> {
    vec![
        vec!["weights", "set", "shop=2", "science=1"],
        vec!["quota", "set", "shop", "--guarantee=cpus:2;mem:512"],
        vec![
            "quota",
            "set",
            "science",
            "--guarantee=",
            "--limit=cpus:2;mem:1024",
        ],
        vec![
            "execute",
            "--detach",
            "--role=shop",
            "--name=website",
            "--resources=cpus:1.5;mem:64",
            "--command=while sleep 2; do echo a request was answered; done",
        ],
        vec![
            "execute",
            "--detach",
            "--role=science",
            "--name=simulation",
            "--resources=cpus:0.5;mem:64",
            "--revocable",
            "--command=step=0; while [ $step -lt 100 ]; do step=$((step+1)); i=0; while [ $i -lt 1000000 ]; \
             do i=$((i+1)); done; echo step $step of 100; done",
        ],
    ]
}

/// Prints and runs the commands. The last one waits until resources are oversubscribed: it is still running when this
/// returns its process.
pub(super) async fn run(
    masters: &str,
    (me, master_flag): (&str, &str),
) -> anyhow::Result<Option<Child>> {
    let program = std::env::current_exe().context("failed to find this program's own file")?;
    let mut commands = commands();
    let last = commands.pop();
    let command = |arguments: &[&str]| {
        terminal::note!("  {me} {}{master_flag}", typed(arguments));
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .arg(format!("--master={masters}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        command
    };
    for arguments in &commands {
        let output = command(arguments).stderr(Stdio::piped()).output().await;
        let output =
            output.with_context(|| format!("failed to run `{me} {}`", typed(arguments)))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("`{me} {}` failed: {}", typed(arguments), said.trim());
        }
    }
    let started = last.map(|arguments| {
        let started = command(&arguments).stderr(Stdio::null()).spawn();
        started.with_context(|| format!("failed to run `{me} {}`", typed(&arguments)))
    });
    started.transpose()
}

/// Returns the words as a user would type them behind the program's name.
fn typed(arguments: &[&str]) -> String {
    let word = |word: &&str| match word.split_once('=') {
        Some((flag, value)) if flag.starts_with("--") && !is_plain(value) => {
            format!("{flag}='{value}'")
        }
        _ => (*word).to_owned(),
    };
    let words: Vec<String> = arguments.iter().map(word).collect();
    words.join(" ")
}

fn is_plain(value: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-_./:,".contains(c);
    value.chars().all(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This command line parses each of them.
    #[test]
    fn its_commands_can_be_typed() {
        for arguments in commands() {
            let words = std::iter::once("meseta").chain(arguments.iter().copied());
            let words = words.map(std::ffi::OsString::from).collect();
            assert!(crate::flags::parse(words).is_ok(), "{arguments:?}");
        }
        let quota = typed(&["quota", "set", "shop", "--guarantee=cpus:2;mem:512"]);
        assert_eq!(quota, "quota set shop --guarantee='cpus:2;mem:512'");
    }
}
