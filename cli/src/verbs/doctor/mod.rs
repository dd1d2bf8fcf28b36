//! `meseta doctor`: what keeps this machine from being a node, and what is wrong with the way to the masters.
//!
//! The machine is judged by what `meseta agent --check` finds ([`meseta_agent::check_machine`]), the masters by
//! [`masters`], certificates by [`certificates`]. Invariant: nothing is changed, and each finding that is not well says what to do.

mod certificates;
mod masters;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::bail;
use clap::{Args, ValueHint};
use meseta_agent::{Finding, Severity};
use serde_json::json;

use super::identity::IdentityFlags;
use super::{server, table};
use crate::flags;

use certificates::Kind;

/// The configuration that a package installs.
const CONFIG: &str = "/etc/meseta/agent.toml";

/// Flags of `meseta doctor`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The masters, as every verb takes them; unset: those of the agent's configuration.
    #[arg(long, env = "MESETA_MASTER", value_parser = super::masters::parse)]
    master: Option<String>,
    #[command(flatten)]
    identity: IdentityFlags,
    /// The agent's configuration; unset: /etc/meseta/agent.toml, if it is there.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Look at the way to the masters alone: this machine is no node.
    #[arg(long)]
    client: bool,
    /// Print JSON instead of lines.
    #[arg(long)]
    json: bool,
    /// Flags of the agent, behind `--`, e.g. `-- --work_dir=/data/meseta`.
    #[arg(last = true, value_name = "AGENT FLAGS")]
    agent: Vec<OsString>,
}

/// Looks, and ends with 1 if something has to be done.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let agent = agent_flags(options)?;
    let mut findings = Vec::new();
    if !options.client {
        findings.extend(meseta_agent::check_machine(&agent));
    }
    findings.extend(certificates::check(
        files(options, &agent),
        now_since_1970(),
    ));
    let trusted = agent.access.ssl_ca_file.as_deref();
    findings.extend(check_masters(&agent.master, trusted)?);
    print(&findings, options.json)?;
    let is_well = findings.iter().all(|one| one.severity < Severity::Problem);
    Ok(if is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The files of certificates that are used here.
fn files<'a>(
    options: &'a Options,
    agent: &'a meseta_agent::Flags,
) -> impl Iterator<Item = (&'a Path, Kind)> {
    let access = &agent.access;
    let of_agent = [
        (access.ssl_cert_file.as_deref(), Kind::Shown),
        (access.ssl_ca_file.as_deref(), Kind::Authorities),
    ];
    let of_agent = of_agent.into_iter().filter(|_| !options.client);
    let own = [
        (options.identity.certificate(), Kind::Shown),
        (options.identity.authorities(), Kind::Authorities),
    ];
    let all = of_agent.chain(own);
    all.filter_map(|(path, kind)| Some((path?, kind)))
}

/// What an agent on this machine would be started with.
fn agent_flags(options: &Options) -> anyhow::Result<meseta_agent::Flags> {
    let mut line: Vec<OsString> = ["meseta", "agent", "--check"].map(OsString::from).into();
    let usual = Some(Path::new(CONFIG)).filter(|path| path.exists());
    if let Some(config) = options.config.as_deref().or(usual) {
        line.push("--config".into());
        line.push(config.into());
    }
    line.extend(
        options
            .master
            .iter()
            .map(|masters| format!("--master={masters}").into()),
    );
    line.extend(options.agent.iter().cloned());
    match flags::parse(line)?.verb {
        flags::Verb::Agent(flags) => Ok(*flags),
        _ => bail!("the flags behind `--` are not those of an agent"),
    }
}

/// Asks each of the masters. One that only a file or a name service knows is left to the agent.
fn check_masters(masters: &str, trusted: Option<&Path>) -> anyhow::Result<Vec<Finding>> {
    if let Err(why) = super::masters::parse(masters) {
        return Ok(vec![Finding::warning(
            format!("--master={masters} is not asked: {why}"),
            "give --master=HOST:PORT to have it looked at",
        )]);
    }
    let own = flags::build().version;
    let asking = async {
        let mut findings = Vec::new();
        for address in masters.split(',') {
            let answer = masters::ask(address.trim(), trusted).await;
            findings.extend(masters::evaluate(address.trim(), &answer, own));
        }
        findings
    };
    Ok(server::runtime()?.block_on(asking))
}

fn print(findings: &[Finding], is_json: bool) -> anyhow::Result<()> {
    if is_json {
        let all = findings.iter().map(|one| {
            let severity = match one.severity {
                Severity::Fine => "fine",
                Severity::Warning => "warning",
                Severity::Problem => "problem",
            };
            json!({"severity": severity, "what": one.what, "mend": one.mend})
        });
        return table::print_json(&all.collect());
    }
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    table::say(&lines.join("\n"));
    let count = |severity| {
        findings
            .iter()
            .filter(|one| one.severity == severity)
            .count()
    };
    table::say(&format!(
        "\n{} findings: {} problems, {} warnings",
        findings.len(),
        count(Severity::Problem),
        count(Severity::Warning)
    ));
    Ok(())
}

fn now_since_1970() -> Duration {
    let now = now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default()
}

/// The time by this machine's clock.
fn now() -> SystemTime {
    SystemTime::now()
}
