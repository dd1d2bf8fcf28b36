//! The source of a flag's value: command line first, then environment, then configuration file.
//!
//! The daemons declare their flags once, with clap; here they get the environment names (`MESETA_<FLAG>`), the Mesos
//! spellings (`--no-flag`, `--flag=file:///path`) and the TOML file of `--config`. [`refusal`] has the errors, and
//! [`origin`] the place of a refused value. Invariant: an unknown flag or key is an error that suggests the nearest name;
//! values come from no other place.

mod absent;
mod completions;
mod files;
mod groups;
mod man;
mod origin;
mod refusal;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::builder::Resettable;
use clap::{Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use meseta_daemon::build_info::BuildInfo;

use crate::estimate;
use crate::fleet;
use crate::local;
use crate::registry;
use crate::terminal;
use crate::verbs;

pub(crate) use files::is_path_of_daemon;
pub(crate) use refusal::Refusal;

/// A cluster core for bare-metal fleets: agents, a master, fair shares.
#[derive(Debug, Parser)]
#[command(
    name = "meseta",
    version = version(),
    long_version = long_version(),
    propagate_version = true,
    subcommand_required = true
)]
#[command(after_help = "Start with `meseta local`, then `meseta execute --command='echo hello'`.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// Returns our own version, and that of the Mesos interface, as in `/version`.
fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let (own, interface) = (env!("CARGO_PKG_VERSION"), meseta_proto::INTERFACE_VERSION);
        format!("{own} (with the interface of Mesos {interface})")
    });
    &TEXT
}

/// Returns the version with the commit and its date, as far as the build knew them.
fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let build = build();
        let mut text = version().to_owned();
        text += &format!("\ncommit: {}", build.commit.unwrap_or("unknown"));
        text += &format!("\ndate:   {}", build.date());
        text
    });
    &TEXT
}

/// Returns the build information of this program, as recorded by `cli/build.rs`.
pub(crate) fn build() -> BuildInfo {
    BuildInfo {
        version: env!("CARGO_PKG_VERSION"),
        commit: option_env!("MESETA_BUILD_COMMIT"),
        time: option_env!("MESETA_BUILD_TIME").and_then(|text| text.parse().ok()),
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run the master daemon.
    Master(Box<meseta_master::Flags>),
    /// Run the agent, the node daemon.
    Agent(Box<meseta_agent::Flags>),
    /// Run the job scheduler: services, batch jobs and cron jobs.
    Scheduler(Box<meseta_jobs::Flags>),
    /// Run a master and agents on this machine, on loopback, with an embedded store.
    Local(local::Options),
    /// Run the installed etcd for `meseta local`.
    #[command(hide = true)]
    Etcd(local::etcd::Options),
    /// Run one command as a task and show its output.
    Execute(Box<verbs::execute::Options>),
    /// List the agents.
    Agents(verbs::ListOptions),
    /// List the tasks.
    Tasks(verbs::tasks::Options),
    /// Show all details of one task, and its last output.
    Task(verbs::task::Options),
    /// List the frameworks.
    Frameworks(verbs::ListOptions),
    /// List the outstanding offers.
    Offers(verbs::ListOptions),
    /// Show the allocation and usage of each executor, and the resources that could be oversubscribed.
    Top(verbs::top::Options),
    /// Compare resource estimators on recorded usage.
    Estimate(estimate::Options),
    /// List the roles, their weights and their usage.
    Roles(verbs::ListOptions),
    /// Show or set the guarantees and limits of roles.
    Quota(verbs::quota::Options),
    /// Show or set the weights of roles.
    Weights(verbs::roles::WeightOptions),
    /// Reserve an agent's resources for a role.
    Reserve(verbs::reservations::ReserveOptions),
    /// Remove a reservation.
    Unreserve(verbs::reservations::UnreserveOptions),
    /// List the reservations on agents, with role and principal.
    Reservations(verbs::ListOptions),
    /// List, create and destroy persistent volumes.
    Volumes(verbs::volumes::Options),
    /// End an agent's tasks and send it no new ones.
    Drain(verbs::nodes::DrainOptions),
    /// Send an agent no new tasks; its tasks continue.
    Deactivate(verbs::nodes::AgentOptions),
    /// Send an agent tasks again.
    Reactivate(verbs::nodes::AgentOptions),
    /// Mark an agent as gone: it will never come back.
    MarkGone(verbs::nodes::AgentOptions),
    /// Show or change the maintenance schedule; take machines down and bring them up.
    Maintenance(verbs::nodes::MaintenanceOptions),
    /// Explain why a framework or role gets no offer.
    Explain(verbs::explain::Options),
    /// Submit a job file to the scheduler, and follow the job until it is healthy or has ended.
    Run(verbs::job::RunOptions),
    /// Show the changes that a job file would make, where its tasks would fit, and the obstacles.
    Plan(verbs::job::PlanOptions),
    /// List the scheduler's jobs.
    Jobs(verbs::job::ListOptions),
    /// Show or change one of the scheduler's jobs.
    Job(verbs::job::JobOptions),
    /// Show the output of a task.
    Logs(verbs::logs::Options),
    /// Run a command in the container of a task, and show the output.
    Exec(verbs::exec::Options),
    /// End a task that `execute` started.
    Kill(verbs::kill::Options),
    /// Print ids or roles, for completions.
    #[command(hide = true)]
    Names(verbs::names::Options),
    /// End a framework and all its tasks.
    Teardown(verbs::teardown::Options),
    /// Create a line for a credentials file: a principal and the hash of its secret.
    Credential(verbs::credential::Options),
    /// Find problems of this machine or of its connection to the masters, and suggest remedies.
    Doctor(verbs::doctor::Options),
    /// Create certificates, credentials, ACLs and configuration for a small fleet.
    Tls(fleet::Options),
    /// Check, export, import or migrate the registry of masters that are not running.
    Registry(Box<registry::Options>),
    /// Pull, list and remove the images in the store of this machine.
    Images(verbs::images::Options),
    /// Print the shell completions of this command line, e.g. `source <(meseta completions bash)`.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of this command line to a directory.
    #[command(hide = true)]
    Man {
        /// The directory, which the command creates.
        dir: PathBuf,
    },
}

// The configuration file, a flag of both daemons; a doc comment here would become their help.
#[derive(Debug, Args)]
struct ConfigFlag {
    /// TOML file with flags as keys, e.g. `port = 5051`. Flags and environment override the file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Prints the completion script of a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> ExitCode {
    terminal::say_lines(completions::script(shell).trim_end());
    ExitCode::SUCCESS
}

/// Writes the manual pages, for packages.
pub(crate) fn man(dir: &Path) -> anyhow::Result<ExitCode> {
    man::write(dir)?;
    Ok(ExitCode::SUCCESS)
}

/// A parsed command line.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) verb: Verb,
    /// Each flag of a daemon with its effective value, for `/flags`.
    pub(crate) view: BTreeMap<String, String>,
    /// Whether values of a daemon come from files beside that of `--config` too, which are read once.
    pub(crate) further_files: bool,
}

/// Parses a whole command line, which begins with the program's name.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Parsed, Refusal> {
    let command = command();
    let Some(daemon) = args
        .get(1)
        .and_then(|a| a.to_str())
        .and_then(|name| find(&command, name))
    else {
        let matches = command.try_get_matches_from(args)?;
        verbs::identity::install(&matches);
        return Ok(Parsed {
            verb: Cli::from_arg_matches(&matches)?.verb,
            view: BTreeMap::new(),
            further_files: false,
        });
    };
    let plain = |arg: OsString| {
        let known = arg.to_str().and_then(|text| with_underscores(text, daemon));
        known.map_or(arg, OsString::from)
    };
    let typed: Vec<OsString> = args.into_iter().map(plain).collect();
    let merged = with_config(typed.clone(), daemon)?;
    let from_file = merged.iter().any(|arg| files::is_text_of_file(arg, daemon));
    let args = merged
        .iter()
        .map(|arg| rewrite(arg.clone(), daemon))
        .collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = flag_names(daemon);
    let name = daemon.get_name().to_owned();
    let texts = files::texts(daemon);
    let matches = command.try_get_matches_from(args);
    let matches = matches.map_err(|error| {
        let place = origin::place(&error, &name, &typed, &merged);
        Refusal::of_daemon(error, place, from_file)
    })?;
    let of_daemon = matches.subcommand_matches(&name);
    let further_files = from_file || of_daemon.is_some_and(|m| files::are_read_later(m, &texts));
    let view = of_daemon.map(|m| view(m, &names)).unwrap_or_default();
    Ok(Parsed {
        verb: Cli::from_arg_matches(&matches)?.verb,
        view,
        further_files,
    })
}

/// The verbs whose flags also come from the environment and from the file of `--config`.
const DAEMONS: [&str; 3] = ["master", "agent", "scheduler"];

/// Returns the command, with environment names and `--config` added to each daemon's flags.
fn command() -> Command {
    let mut command = groups::grouped(Cli::command());
    // Only two of its verbs call a master, and check the value then: the environment may have the value for an agent.
    command = command.mut_subcommand("job", |job| {
        job.mut_arg("master", |arg| {
            arg.value_parser(clap::value_parser!(String))
        })
    });
    for daemon in DAEMONS {
        command = command.mut_subcommand(daemon, |sub| {
            let sub = ConfigFlag::augment_args(sub)
                .next_line_help(true)
                .after_help(
                    "Each flag is also a key of the file that --config names, and MESETA_<FLAG> in the environment.",
                );
            sub.mut_args(|arg| match arg.get_long() {
                Some(long) => {
                    let name = env_name(long);
                    let heading = heading(long);
                    arg.env(name)
                        .hide_env_values(true)
                        .hide_env(true)
                        .help_heading(heading)
                }
                None => arg,
            })
        });
    }
    without_empty_variables(command)
}

/// Returns the heading of a daemon's flag in `--help`, by the prefix of its name.
fn heading(flag: &str) -> &'static str {
    const HEADINGS: &[(&str, &[&str])] = &[
        (
            "Authentication",
            &[
                "acls",
                "authenticate_",
                "credential",
                "firewall",
                "http_credentials",
                "insecure",
                "rate_limits",
                "ssl_",
                "require_",
            ],
        ),
        (
            "Isolation of containers",
            &[
                "cgroups_",
                "isolation",
                "isolat",
                "seccomp",
                "bounding_",
                "effective_",
                "namespaces",
                "network_",
                "disallow_sharing",
                "enforce_",
                "xfs_",
                "systemd_",
                "oom_",
                "allowed_",
                "launcher",
                "switch_user",
                "hard_",
                "host_path",
                "perf_",
            ],
        ),
        (
            "Resources and oversubscription",
            &[
                "resource",
                "attributes",
                "default_role",
                "qos",
                "oversubscri",
                "estimator",
                "reserved_",
                "revocable",
                "roles",
                "weights",
                "allocation_",
                "allocator",
                "min_allocatable",
                "fair_sharing",
                "filter_",
                "offer_",
                "quota",
                "domain",
                "whitelist",
            ],
        ),
        (
            "Sandboxes and output",
            &[
                "gc_",
                "sandbox",
                "max_std",
                "logrotate_",
                "container_logger",
                "fetch",
                "disk_watch",
                "container_disk",
            ],
        ),
    ];
    let is_of = |begins: &&[&str]| begins.iter().any(|begin| flag.starts_with(begin));
    HEADINGS
        .iter()
        .find(|(_, begins)| is_of(begins))
        .map_or("General", |(heading, _)| heading)
}

fn env_name(flag: &str) -> String {
    format!("MESETA_{}", flag.to_uppercase())
}

fn find<'a>(command: &'a Command, name: &str) -> Option<&'a Command> {
    DAEMONS
        .contains(&name)
        .then(|| command.get_subcommands().find(|sub| sub.get_name() == name))
        .flatten()
}

fn flag_names(daemon: &Command) -> Vec<String> {
    daemon
        .get_arguments()
        .filter_map(|a| a.get_long().map(str::to_owned))
        .collect()
}

/// Rewrites `--no-flag` to `--flag=false`, and `--flag=file:///path` as [`files`] decides.
fn rewrite(arg: OsString, daemon: &Command) -> Result<OsString, Refusal> {
    let Some(text) = arg.to_str() else {
        return Ok(arg);
    };
    if let Some(flag) = text.strip_prefix("--no-") {
        let known = daemon.get_arguments().any(|a| a.get_long() == Some(flag));
        return Ok(if known {
            format!("--{flag}=false").into()
        } else {
            arg
        });
    }
    let replaced = files::replaced(text, daemon)?;
    Ok(replaced.map_or(arg, OsString::from))
}

/// Returns `--work-dir=x` as `--work_dir=x`, if only the latter is a flag.
fn with_underscores(text: &str, daemon: &Command) -> Option<String> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    let (dashes, flag) = match name.strip_prefix("--no-") {
        Some(flag) => ("--no-", flag),
        None => ("--", name.strip_prefix("--")?),
    };
    let is_known = |flag: &str| daemon.get_arguments().any(|a| a.get_long() == Some(flag));
    let meant = flag.replace('-', "_");
    if is_known(flag) || !is_known(&meant) {
        return None;
    }
    Some(match text.contains('=') {
        true => format!("{dashes}{meant}={value}"),
        false => format!("{dashes}{meant}"),
    })
}

/// Appends the flags of the configuration file behind the subcommand, unless they are set already.
fn with_config(args: Vec<OsString>, daemon: &Command) -> Result<Vec<OsString>, Refusal> {
    let Some(path) = config_path(&args) else {
        return Ok(args);
    };
    let text = std::fs::read_to_string(&path).map_err(|source| Refusal::ConfigUnreadable {
        path: path.clone(),
        source,
    })?;
    let table: toml::Table = toml::from_str(&text).map_err(|source| Refusal::ConfigSyntax {
        path: path.clone(),
        source: Box::new(source),
    })?;
    let names = flag_names(daemon);
    let mut extra = Vec::new();
    for (key, value) in &table {
        if key == "config" {
            return Err(Refusal::ConfigItself { path });
        }
        if !names.contains(key) {
            return Err(Refusal::ConfigKey {
                path,
                key: key.clone(),
                daemon: daemon.get_name().to_owned(),
                hint: hint(key, &names),
            });
        }
        if said(&args, key) || environment(&env_name(key)).is_some() {
            continue;
        }
        for value in scalars(value, key, &path)? {
            extra.push(OsString::from(format!("--{key}={value}")));
        }
    }
    let mut merged = args;
    merged.splice(2..2, extra);
    Ok(merged)
}

/// Returns the file named by `--config=FILE`, `--config FILE` or the environment.
fn config_path(args: &[OsString]) -> Option<PathBuf> {
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.to_str() {
            Some("--config") => return rest.next().map(PathBuf::from),
            Some(text) => {
                if let Some(path) = text.strip_prefix("--config=") {
                    return Some(PathBuf::from(path));
                }
            }
            None => {}
        }
    }
    environment(&env_name("config")).map(PathBuf::from)
}

/// Returns a variable of the environment; an empty variable counts as unset.
pub(crate) fn environment(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns the command without the empty variables: an empty value is not a flag's value.
fn without_empty_variables(command: Command) -> Command {
    command
        .mut_args(|arg| {
            let name = arg.get_env().map(std::ffi::OsStr::to_owned);
            let is_empty = |name| std::env::var_os(name).is_some_and(|value| value.is_empty());
            match name.is_some_and(is_empty) {
                true => arg.env(Resettable::Reset),
                false => arg,
            }
        })
        .mut_subcommands(without_empty_variables)
}

/// Returns the hint for an unknown key of the file.
fn hint(key: &str, names: &[String]) -> String {
    if let Some(instead) = absent::replacement(key) {
        return format!("; Mesos has it: {instead}");
    }
    near(key, names)
        .map(|name| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}

fn said(args: &[OsString], flag: &str) -> bool {
    args.iter().filter_map(|a| a.to_str()).any(|text| {
        let text = text
            .strip_prefix("--no-")
            .or_else(|| text.strip_prefix("--"));
        text.is_some_and(|t| t.split('=').next() == Some(flag))
    })
}

fn scalars(value: &toml::Value, key: &str, path: &Path) -> Result<Vec<String>, Refusal> {
    let refuse = |found| Refusal::ConfigValue {
        path: path.to_owned(),
        key: key.to_owned(),
        found,
    };
    match value {
        toml::Value::String(text) => Ok(vec![text.clone()]),
        toml::Value::Integer(number) => Ok(vec![number.to_string()]),
        toml::Value::Float(number) => Ok(vec![number.to_string()]),
        toml::Value::Boolean(flag) => Ok(vec![flag.to_string()]),
        toml::Value::Array(items) => {
            let nested = items.iter().map(|item| match item {
                toml::Value::Array(_) => Err(refuse("a list within a list")),
                item => scalars(item, key, path),
            });
            Ok(nested.collect::<Result<Vec<_>, _>>()?.concat())
        }
        toml::Value::Datetime(_) => Err(refuse("a date")),
        toml::Value::Table(_) => Err(refuse("a table")),
    }
}

/// Returns the known name that is nearest to `given`, if any is near.
fn near<'a>(given: &str, known: &'a [String]) -> Option<&'a str> {
    known
        .iter()
        .map(|name| (strsim::jaro_winkler(given, name), name.as_str()))
        .filter(|(score, _)| *score > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// Returns every flag that has a value, as text; leaves out flags without a value or default.
fn view(matches: &clap::ArgMatches, names: &[String]) -> BTreeMap<String, String> {
    let mut view = BTreeMap::new();
    for name in names {
        let Ok(Some(raw)) = matches.try_get_raw(name) else {
            continue;
        };
        let values: Vec<_> = raw.map(|v| v.to_string_lossy().into_owned()).collect();
        view.insert(name.clone(), values.join(","));
    }
    view
}

#[cfg(test)]
mod mesos;

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &[&str]) -> Vec<OsString> {
        line.iter().map(OsString::from).collect()
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("written");
        file
    }

    /// Returns the `/flags` view of an agent started with these flags.
    fn agent(flags: &[&str]) -> BTreeMap<String, String> {
        let line = ["meseta", "agent", "--master=h:1", "--work_dir=/x"];
        let parsed = parse(args(&[&line[..], flags].concat()));
        parsed.expect("understood").view
    }

    /// Returns why an agent is not started with this flag, causes included.
    fn refusal(flag: &str) -> String {
        let refusal = parse(args(&["meseta", "agent", flag])).expect_err("refused");
        format!("{:#}", anyhow::Error::from(refusal))
    }

    fn config(text: &str) -> (tempfile::NamedTempFile, String) {
        let file = file(text);
        let flag = format!("--config={}", file.path().display());
        (file, flag)
    }

    #[test]
    fn the_command_is_well_formed() {
        command().debug_assert();
    }

    /// Compares `docs/flags.md` with the declarations; `MESETA_BLESS` rewrites the page.
    #[test]
    fn reference_page_matches_the_declaration() {
        let page = reference();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/flags.md");
        if std::env::var_os("MESETA_BLESS").is_some() {
            std::fs::write(path, &page).expect("written");
        }
        let there = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            there == page,
            "docs/flags.md is stale: run `MESETA_BLESS=1 cargo test -p meseta`"
        );
    }

    fn reference() -> String {
        let mut page = String::from(
            "# Flags\n\nThis page lists every flag of the daemons. Set a flag in one of three ways:\n\n\
             - on the command line: `--name=value`, and for booleans also `--no-name`\n\
             - in the environment: `MESETA_<NAME>`\n\
             - as a key of the TOML file of `--config`\n\n\
             The command line overrides the environment, and the environment overrides the file.\n\n\
             A value `file:///path` stands for the text of that file. For `acls` and for flags that take a file or a \
             folder,\nthe value is the path itself. The daemons show the text of these files nowhere.\n\n\
             Durations have one of the units `ns us ms secs mins hrs days weeks`, and sizes one of `B KB MB GB TB`.\n\n\
             The declarations in the code generate this page (`MESETA_BLESS=1 cargo test -p meseta`). \
             [Departures](departures.md)\nlists the defaults that differ from the defaults of Mesos, with reasons.\n",
        );
        let command = command();
        for daemon in DAEMONS {
            let sub = find(&command, daemon).expect("declared");
            page +=
                &format!("\n## `meseta {daemon}`\n\n| flag | default | meaning |\n|---|---|---|\n");
            let mut rows: Vec<String> = sub
                .get_arguments()
                .filter(|a| !a.is_hide_set())
                .filter_map(row)
                .collect();
            rows.sort();
            page += &rows.concat();
        }
        page
    }

    fn row(arg: &clap::Arg) -> Option<String> {
        let long = arg.get_long()?;
        let defaults: Vec<_> = arg
            .get_default_values()
            .iter()
            .map(|v| v.to_string_lossy())
            .collect();
        let default = if defaults.is_empty() {
            "–".to_owned()
        } else {
            format!("`{}`", defaults.join(","))
        };
        let help = arg.get_long_help().or(arg.get_help())?.to_string();
        let help = help
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .replace('|', "\\|");
        Some(format!(
            "| `{long}` | {} | {help} |\n",
            default.replace('|', "\\|")
        ))
    }

    /// Regression: clap named the flag in its command-line form, although it was in a file.
    #[test]
    fn refused_value_names_its_origin() {
        let (file, flag) = config("authenticate_http_readonly = 1\n");
        let told = |flags: &[&str]| {
            let line = ["meseta", "agent", "--master=h:1", "--work_dir=/x"];
            let refusal = parse(args(&[&line[..], flags].concat())).expect_err("refused");
            refusal.to_string()
        };
        let place = format!("`authenticate_http_readonly` in {}", file.path().display());
        assert!(told(&[&flag]).contains(&place), "{}", told(&[&flag]));
        let typed = told(&["--authenticate-http-readonly=1"]);
        assert!(typed.contains("invalid value '1'"), "{typed}");
        assert!(!typed.contains("the value is"), "{typed}");
    }

    /// Regression: the verb was refused if MESETA_MASTER was a file, as agents accept it, though the verb calls no master.
    #[test]
    fn job_verbs_ignore_the_master_setting() {
        let told = |line: &str| parse(args(&line.split(' ').collect::<Vec<_>>()));
        assert!(told("meseta job status web --master=file:///masters").is_ok());
        assert!(told("meseta agents --master=file:///masters").is_err());
    }

    #[test]
    fn a_file_does_not_name_itself() {
        let (_file, flag) = config("config = \"x\"\n");
        let told = refusal(&flag);
        assert!(told.contains("on the command line"), "{told}");
    }

    #[test]
    fn version_names_build_and_interface() {
        for line in [
            &["meseta", "--version"][..],
            &["meseta", "agent", "--version"],
        ] {
            let text = parse(args(line)).expect_err("the version").to_string();
            let interface = format!(
                "(with the interface of Mesos {})",
                meseta_proto::INTERFACE_VERSION
            );
            assert!(
                text.contains(env!("CARGO_PKG_VERSION")) && text.contains(&interface),
                "{text}"
            );
            for line in ["\ncommit: ", "\ndate:   "] {
                assert!(text.contains(line), "{text}");
            }
        }
    }

    #[test]
    fn invalid_input_names_place_or_suggestion() {
        for (flag, part) in [
            ("--resorces=cpus:1", "--resources"),
            ("--no-such-flag=1", "--no-such-flag"),
            ("--resources=file:///nowhere/at/all", "/nowhere/at/all"),
        ] {
            let said = refusal(flag);
            assert!(said.contains(part), "{said}");
        }
        for (text, part) in [
            ("hostnam = \"node1\"\n", "did you mean `hostname`?"),
            ("port = = 1\n", "line 1"),
            ("[port]\nx = 1\n", "a table given"),
        ] {
            let (_file, flag) = config(text);
            let said = refusal(&flag);
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn command_line_overrides_the_file() {
        let (_file, flag) = config("port = 6051\nhostname = \"node1\"\n");
        let view = agent(&[&flag, "--port=7051"]);
        assert_eq!((&*view["port"], &*view["hostname"]), ("7051", "node1"));
    }

    /// The text of a secret file never replaces the flag's value, and is never shown.
    #[test]
    fn files_of_secrets_stay_files() {
        for (daemon, flag) in [
            ("master", "credentials"),
            ("master", "ssl_key_file"),
            ("agent", "credential"),
            ("agent", "http_credentials"),
            ("agent", "credentials"),
            ("agent", "jwt_secret_key"),
        ] {
            let file = file("CANARY");
            let path = file.path().display().to_string();
            let value = format!("--{flag}=file://{path}");
            let parsed = parse(args(&["meseta", daemon, "--work_dir=/x", &value]));
            let shown = match parsed {
                Ok(parsed) => format!("{:?}", parsed.view),
                // The agent's command line lacks a master.
                Err(refusal) => refusal.to_string(),
            };
            assert!(!shown.contains("CANARY"), "{shown}");
            assert!(daemon == "agent" || shown.contains(&path), "{shown}");
        }
        let acls = file("{\"permissive\": true}");
        let value = format!("--acls=file://{}", acls.path().display());
        let parsed = parse(args(&["meseta", "master", &value])).expect("understood");
        let text = parsed.view.get("acls").map(String::as_str);
        let path = format!("file://{}", acls.path().display());
        assert_eq!(text, Some(&*path), "the daemon reads it, again and again");
    }

    #[test]
    fn value_may_come_from_a_file() {
        let file = file("cpus:3;mem:100\n");
        let view = agent(&[&format!("--resources=file://{}", file.path().display())]);
        assert_eq!(view["resources"], "cpus:3;mem:100");
    }

    #[test]
    fn hyphens_and_boolean_negation_are_accepted() {
        assert_eq!(agent(&["--runtime-dir=/y"])["runtime_dir"], "/y");
        for flag in ["--no-switch_user", "--no-switch-user"] {
            assert_eq!(agent(&[flag])["switch_user"], "false", "{flag}");
        }
    }

    /// Regression: the help had one word on each line.
    #[test]
    fn help_is_read_at_80_columns() {
        for daemon in ["master", "agent"] {
            let mut sub = find(&command(), daemon)
                .expect("declared")
                .clone()
                .term_width(80);
            let text = sub.render_long_help().to_string();
            let flags = sub
                .get_arguments()
                .filter(|arg| arg.get_long().is_some())
                .count();
            let lines: Vec<&str> = text
                .lines()
                .filter(|line| !line.trim().is_empty())
                .collect();
            assert!(
                lines.iter().all(|line| line.chars().count() <= 110),
                "{text}"
            );
            assert!(
                lines.len() < flags * 8,
                "{} lines for {flags} flags",
                lines.len()
            );
            let words: usize = lines
                .iter()
                .map(|line| line.split_whitespace().count())
                .sum();
            assert!(
                words > 4 * lines.len(),
                "{words} words on {} lines",
                lines.len()
            );
            for heading in [
                "Authentication:",
                "Resources and oversubscription:",
                "General:",
            ] {
                assert!(text.contains(heading), "{heading}");
            }
        }
    }
}
