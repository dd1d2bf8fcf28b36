//! The `meseta doctor` verb: the obstacles that keep this machine from being a node, and the faults on the way to the
//! masters.
//!
//! The machine is checked as by `meseta agent --check` ([`meseta_agent::check_machine`]), the masters by [`masters`],
//! certificates by [`certificates`], and whether masters accept the agent and the user by [`rights`]. Invariant: nothing is
//! changed, and each finding other than fine names a remedy.

mod certificates;
mod masters;
mod rights;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{anyhow, bail};
use clap::{Args, ValueHint};
use meseta_agent::{Finding, Severity};
use serde_json::json;

use super::identity::IdentityFlags;
use super::server;
use crate::flags;
use crate::terminal;

use certificates::Kind;
use rights::Asker;

/// The configuration that a package installs.
const CONFIG: &str = "/etc/meseta/agent.toml";
/// The configuration files of the other daemons that a machine may have beside an agent.
const CONFIGS_OF_OTHERS: [(&str, &str); 2] = [
    ("master", "/etc/meseta/master.toml"),
    ("scheduler", "/etc/meseta/scheduler.toml"),
];

/// Flags of `meseta doctor`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The masters, as for every verb, or file:///path, as for agents. Default: the masters in the agent's
    /// configuration.
    #[arg(long, env = "MESETA_MASTER", value_parser = parse_masters)]
    master: Option<String>,
    #[command(flatten)]
    identity: IdentityFlags,
    /// The agent's configuration. Default: /etc/meseta/agent.toml, if the file exists.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Check only the connection to the masters: this machine runs no agent.
    #[arg(long)]
    client: bool,
    /// Print JSON instead of lines.
    #[arg(long)]
    json: bool,
    /// Flags of the agent after `--`, e.g. `-- --work_dir=/data/meseta`.
    #[arg(last = true, value_name = "AGENT FLAGS")]
    agent: Vec<OsString>,
}

/// Examines the cluster, and ends with 1 if a problem needs action.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let agent = agent_flags(options)?;
    let mut findings = Vec::new();
    if !options.client {
        findings.extend(meseta_agent::check_machine(&agent));
    }
    let files = files(options, &agent);
    if !options.client {
        for (daemon, config) in CONFIGS_OF_OTHERS {
            findings.extend(check_daemon(daemon, Path::new(config), &files));
        }
    }
    findings.extend(certificates::check(files.into_iter(), now_since_1970()));
    findings.extend(check_masters(options, &agent)?);
    print(&findings, options.json)?;
    let is_well = findings.iter().all(|one| one.severity < Severity::Problem);
    Ok(if is_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns the certificate files of the agent, and of the user.
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

/// Checks the certificates of a master or a scheduler with this configuration, without those that are `known` already.
fn check_daemon(daemon: &str, config: &Path, known: &[(PathBuf, Kind)]) -> Vec<Finding> {
    let files = match files_of_daemon(daemon, config) {
        Ok(files) => files,
        Err(error) => {
            // clap's explanation has several lines.
            let text = format!("{error:#}");
            let text = text.lines().next().unwrap_or_default();
            return vec![Finding::warning(
                format!("certificates of meseta-{daemon} not checked: {text}"),
                mend_of_config(&error, config),
            )];
        }
    };
    let unknown = files.into_iter().filter(|file| !known.contains(file));
    let found = certificates::check(unknown, now_since_1970());
    found
        .map(|one| match one.severity {
            Severity::Problem => Finding {
                mend: format!("{}; {}", one.mend, removal_of(config)),
                ..one
            },
            _ => one,
        })
        .collect()
}

/// Returns the remedy for an invalid configuration.
fn mend_of_config(error: &anyhow::Error, config: &Path) -> String {
    let is_denied = error.chain().any(|cause| {
        let cause = cause.downcast_ref::<std::io::Error>();
        cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::PermissionDenied)
    });
    match is_denied {
        true => "run this as root".to_owned(),
        false => format!("correct it; {}", removal_of(config)),
    }
}

fn removal_of(config: &Path) -> String {
    let config = config.display();
    format!("on a machine without this daemon remove {config}")
}

/// Returns the certificate files that a master or a scheduler with this configuration serves, presents to etcd or trusts.
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
        _ => bail!("{daemon} is not a daemon with such a configuration"),
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

/// Parses a value of `--master`. The environment contains the agent's own value, which may name a file.
fn parse_masters(text: &str) -> Result<String, String> {
    match text.starts_with("file:///") {
        true => Ok(text.to_owned()),
        false => super::masters::parse(text),
    }
}

/// Returns the flags that an agent on this machine would start with.
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
    let parsed = flags::parse(line).map_err(|refusal| match refusal {
        // clap's own text contains its cause.
        flags::Refusal::CommandLine(error) => anyhow!(error.to_string().trim_end().to_owned()),
        other => other.into(),
    });
    match parsed?.verb {
        flags::Verb::Agent(flags) => Ok(*flags),
        _ => bail!("the flags behind `--` are not those of an agent"),
    }
}

/// Queries each of the masters. A master from a file or a name service is left to the agent.
fn check_masters(options: &Options, agent: &meseta_agent::Flags) -> anyhow::Result<Vec<Finding>> {
    let masters = &agent.master;
    if let Err(why) = super::masters::parse(masters) {
        return Ok(vec![Finding::warning(
            format!("--master={masters} not checked: {why}"),
            "give --master=HOST:PORT to check it",
        )]);
    }
    let trusted = agent.access.ssl_ca_file.as_deref();
    // The check of the machine reports unreadable files.
    let identity = agent.access.identity().ok();
    let identity = identity.as_ref().filter(|_| !options.client);
    let client = Asker::Client(trusted);
    let client = Some(client).filter(|_| options.client || options.identity.is_given());
    let askers: Vec<Asker<'_>> = identity
        .map(Asker::Agent)
        .into_iter()
        .chain(client)
        .collect();
    let own = flags::build().version;
    let asking = async {
        let mut findings = Vec::new();
        let mut answers = Vec::new();
        for address in masters.split(',') {
            let address = address.trim();
            let asked = masters::ask(address, trusted).await;
            findings.extend(masters::evaluate(address, &asked.answer, own));
            let end = asked.certificate_end;
            findings.extend(end.map(|end| certificates::of_master(address, end, now_since_1970())));
            for asker in askers.iter().filter(|_| asked.answer.is_of_meseta()) {
                let answer = rights::ask(address, asker).await;
                findings.extend(rights::evaluate(address, asker, &answer));
                answers.push(answer);
            }
        }
        findings.extend(rights::evaluate_leader(masters, &answers));
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
        return terminal::print_json(&all.collect());
    }
    for one in findings {
        // A finding has its remedy on a separate line.
        terminal::say_lines(&one.to_string());
    }
    let count = |severity| {
        findings
            .iter()
            .filter(|one| one.severity == severity)
            .count()
    };
    terminal::say("");
    terminal::say(&format!(
        "{} findings: {} problems, {} warnings",
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

/// Returns the time by this machine's clock.
fn now() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::Refusal;

    /// Regression: the certificate for etcd expired unnoticed, and all masters stopped with it.
    #[test]
    fn master_and_scheduler_certificates_are_checked() {
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
        // A package installs these files on every machine.
        let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd");
        for (daemon, config) in CONFIGS_OF_OTHERS {
            let name = Path::new(config).file_name().expect("a name");
            let found = files_of_daemon(daemon, &packaged.join(name)).expect("understood");
            assert_eq!(found, [], "{daemon}");
        }
        let none = files_of_daemon("master", &dir.path().join("none"));
        assert!(check_daemon("master", &dir.path().join("none"), &[]).is_empty());
        assert!(none.expect("nothing to look at").is_empty());
    }

    /// Regression: values that an agent accepted in the same environment were refused.
    #[test]
    fn masters_may_come_from_a_file() {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            options: Options,
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "a:5050,b:5050\n").expect("written");
        let flag = format!("--master=file://{}", file.path().display());
        let options = Cli::try_parse_from(["doctor", &flag]).expect("taken");
        let agent = agent_flags(&options.options).expect("read");
        assert_eq!(agent.master, "a:5050,b:5050");
        assert!(parse_masters("file:x").is_err() && parse_masters("zk://a/b").is_err());
        let line = ["doctor", "--", "--ip=nowhere"];
        let odd = Cli::try_parse_from(line).expect("taken").options;
        let error = agent_flags(&odd).expect_err("refused");
        let told = format!("{error:#}");
        assert_eq!(told.matches("invalid IP address").count(), 1, "{told}");
    }

    fn denied() -> std::io::Error {
        std::io::ErrorKind::PermissionDenied.into()
    }

    /// Regression: an ordinary user was asked to correct, or to remove, a sound file.
    #[test]
    fn unreadable_file_suggests_running_as_root() {
        let config = Path::new("/etc/meseta/master.toml");
        let flag = "rate_limits".to_owned();
        let path = PathBuf::from("/etc/meseta/master/limits.json");
        let source = denied();
        let error = Refusal::ValueFile { flag, path, source };
        assert_eq!(mend_of_config(&error.into(), config), "run this as root");
        let path = config.to_owned();
        let source = denied();
        let error = Refusal::ConfigUnreadable { path, source };
        assert_eq!(mend_of_config(&error.into(), config), "run this as root");
        let mend = mend_of_config(&anyhow::anyhow!("nonsense"), config);
        assert!(mend.contains("correct it") && mend.contains("remove /etc/meseta/master.toml"));
    }

    #[test]
    fn configuration_fault_is_one_line_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let config = dir.path().join("master.toml");
        std::fs::write(&config, "ip = \"m.example\"\n").expect("written");
        let found = check_daemon("master", &config, &[]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].what.matches("invalid value").count(), 1);
        assert!(!found[0].what.contains('\n'), "{}", found[0].what);
    }

    /// The certificate may belong to a daemon that has moved to another machine.
    #[test]
    fn expired_foreign_certificate_names_its_configuration() {
        let dir = tempfile::tempdir().expect("a folder");
        let (config, shown) = (dir.path().join("master.toml"), dir.path().join("c.pem"));
        let (pem, key) = certificates::tests::ending(2022);
        std::fs::write(&shown, pem).expect("written");
        std::fs::write(dir.path().join("k.pem"), key).expect("written");
        let dir = dir.path().display();
        let text = format!("ssl_cert_file = \"{dir}/c.pem\"\nssl_key_file = \"{dir}/k.pem\"\n");
        std::fs::write(&config, text).expect("written");
        let found = check_daemon("master", &config, &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].severity, Severity::Problem);
        assert!(found[0].mend.contains("remove") && found[0].mend.contains("master.toml"));
        let known = [(shown, Kind::Shown)];
        assert!(check_daemon("master", &config, &known).is_empty());
    }
}
