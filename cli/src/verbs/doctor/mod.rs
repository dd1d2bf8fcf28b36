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
/// That of the daemons that a machine may have beside an agent.
const CONFIGS_OF_OTHERS: [(&str, &str); 2] = [
    ("master", "/etc/meseta/master.toml"),
    ("scheduler", "/etc/meseta/scheduler.toml"),
];

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
    let mut files = files(options, &agent);
    if !options.client {
        for (daemon, config) in CONFIGS_OF_OTHERS {
            match files_of_daemon(daemon, Path::new(config)) {
                Ok(of_daemon) => files.extend(of_daemon),
                Err(error) => findings.push(Finding::warning(
                    format!("certificates of meseta-{daemon} are not looked at: {error:#}"),
                    format!("correct {config}, or remove it from a machine without this daemon"),
                )),
            }
        }
    }
    findings.extend(certificates::check(files.into_iter(), now_since_1970()));
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

/// The files of certificates of the agent, and of who asks.
fn files(options: &Options, agent: &meseta_agent::Flags) -> Vec<(PathBuf, Kind)> {
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
    all.filter_map(|(path, kind)| Some((path?.to_owned(), kind)))
        .collect()
}

/// The files of certificates that a master or a scheduler of this configuration serves, shows to etcd or believes.
fn files_of_daemon(daemon: &str, config: &Path) -> anyhow::Result<Vec<(PathBuf, Kind)>> {
    if !config.exists() {
        return Ok(Vec::new());
    }
    let line = ["meseta", daemon, "--config"].map(OsString::from);
    let line = line.into_iter().chain([config.into()]).collect();
    let (own, authorities, etcd) = match flags::parse(line)?.verb {
        flags::Verb::Master(flags) => {
            let access = flags.access;
            (access.ssl_cert_file, access.ssl_ca_file, flags.etcd)
        }
        flags::Verb::Scheduler(flags) => {
            let access = flags.access;
            (access.ssl_cert_file, access.ssl_ca_file, flags.etcd)
        }
        _ => bail!("{daemon} is no daemon with such a configuration"),
    };
    let all = [
        (own, Kind::Shown),
        (authorities, Kind::Authorities),
        (etcd.etcd_cert_file, Kind::Shown),
        (etcd.etcd_ca_file, Kind::Authorities),
    ];
    let given = all.into_iter();
    Ok(given
        .filter_map(|(path, kind)| Some((path?, kind)))
        .collect())
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
            let address = address.trim();
            let asked = masters::ask(address, trusted).await;
            findings.extend(masters::evaluate(address, &asked.answer, own));
            let end = asked.certificate_end;
            findings.extend(end.map(|end| certificates::of_master(address, end, now_since_1970())));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The certificate that is shown to etcd ended unseen, and with it all masters.
    #[test]
    fn certificates_of_masters_and_schedulers_are_looked_at() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("daemon.toml");
        for (daemon, registry) in [
            ("master", "registry = \"etcd\""),
            ("scheduler", "store = \"etcd\""),
        ] {
            let text = format!(
                "{registry}\nssl_cert_file = \"/c\"\nssl_key_file = \"/k\"\nssl_ca_file = \"/a\"\n\
                 etcd_cert_file = \"/ec\"\netcd_key_file = \"/ek\"\netcd_ca_file = \"/ea\"\n"
            );
            let master = (daemon == "scheduler").then_some("master = \"m:5050\"\n");
            std::fs::write(&path, text + master.unwrap_or_default()).expect("written");
            let found = files_of_daemon(daemon, &path).expect("understood");
            let expected = [
                ("/c", Kind::Shown),
                ("/a", Kind::Authorities),
                ("/ec", Kind::Shown),
                ("/ea", Kind::Authorities),
            ];
            assert_eq!(found, expected.map(|(path, kind)| (path.into(), kind)));
        }
        std::fs::write(&path, "nosuch = 1\n").expect("written");
        let error = files_of_daemon("master", &path).expect_err("refused");
        assert!(error.to_string().contains("nosuch"), "{error:#}");
        // A package installs these on every machine.
        let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd");
        for (daemon, config) in CONFIGS_OF_OTHERS {
            let name = Path::new(config).file_name().expect("a name");
            let found = files_of_daemon(daemon, &packaged.join(name)).expect("understood");
            assert_eq!(found, [], "{daemon}");
        }
        let none = files_of_daemon("master", &dir.path().join("none"));
        assert!(none.expect("nothing to look at").is_empty());
    }
}
