//! The `meseta tls` verb: the certificates, credentials, ACLs and configuration of a small fleet, in one folder.
//!
//! - [`names`]: the members of the fleet; [`authority`]: signatures; [`acls`]: permissions.
//! - [`layout`]: the files; [`file_names`]: their names; [`folder`]: reading and writing them.
//!
//! Invariant: an existing file is only overwritten by `renew`, and by `add` for the files that it extends; secrets and keys
//! are in files that only their owner reads, and on no command line and in no output.

mod acls;
mod authority;
mod file_names;
mod folder;
mod layout;
mod names;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand, ValueHint};
use meseta_access::SecretHash;
use meseta_daemon::tls::DaemonKind;

use authority::{Authority, Validity};
use folder::Folder;
use layout::{Fleet, Shared};
use names::{Machine, Principal};

use crate::terminal;

const SECONDS_PER_DAY: u64 = 24 * 60 * 60;
/// The longest validity, in days.
const DAYS_MAX: u64 = 36_500;

/// The action on the directory.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a directory with a certificate authority, and with the certificates, credentials and configuration of
    /// a master and its agents.
    Init(InitOptions),
    /// Add agents or frameworks to such a directory.
    Add(AddOptions),
    /// Renew the certificates of machines and principals of such a directory.
    Renew(RenewOptions),
}

#[derive(Debug, Args)]
struct InitOptions {
    /// The folder to make.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// The master's host name and its addresses; the master listens on the first address.
    #[arg(long, value_name = "NAME=ADDRESS[,ADDRESS]", value_parser = names::machine)]
    master: Machine,
    /// An agent's host name and its addresses; may be repeated.
    #[arg(long = "agent", value_name = "NAME=ADDRESS[,ADDRESS]", value_parser = names::machine)]
    agents: Vec<Machine>,
    #[command(flatten)]
    added: Added,
    /// Validity of the authority in days.
    #[arg(long = "authority-days", alias = "authority_days", value_name = "DAYS", default_value_t = 3650,
          value_parser = clap::value_parser!(u64).range(1..=DAYS_MAX))]
    authority_days: u64,
}

#[derive(Debug, Args)]
struct AddOptions {
    /// The folder that `meseta tls init` made.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// An agent's host name and its addresses; may be repeated.
    #[arg(long = "agent", value_name = "NAME=ADDRESS[,ADDRESS]", value_parser = names::machine)]
    agents: Vec<Machine>,
    #[command(flatten)]
    added: Added,
}

/// Flags of both `init` and `add`.
#[derive(Debug, Args)]
struct Added {
    /// A framework's principal, its roles and the users of its tasks; may be repeated. The command always creates
    /// `admin`, `node` and `prometheus`.
    #[arg(long = "principal", value_name = "NAME:role=ROLE:user=USER", value_parser = names::principal)]
    principals: Vec<Principal>,
    /// Host name and addresses of the machine with the job scheduler, which may be the machine of the master or of
    /// an agent.
    #[arg(long, value_name = "NAME=ADDRESS[,ADDRESS]", value_parser = names::machine)]
    scheduler: Option<Machine>,
    /// With --scheduler: an additional user for tasks of jobs; may be repeated. The first is the user of jobs that
    /// name no user. Give this user to no principal: tasks of one user can read and stop each other.
    #[arg(long = "job-user", alias = "job_user", value_name = "USER", default_value = "meseta",
          requires = "scheduler", value_parser = names::user)]
    job_users: Vec<String>,
    /// Validity of the certificates in days.
    #[arg(long, value_name = "DAYS", default_value_t = 365,
          value_parser = clap::value_parser!(u64).range(1..=DAYS_MAX))]
    days: u64,
}

#[derive(Debug, Args)]
struct RenewOptions {
    /// The folder that `meseta tls init` made.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// The machine's name; may be repeated. Default: every machine and principal, unless --principal is given.
    #[arg(long = "machine", value_name = "NAME")]
    machines: Vec<String>,
    /// The principal's name; may be repeated.
    #[arg(long = "principal", value_name = "NAME")]
    principals: Vec<String>,
    /// How long the new certificates are valid.
    #[arg(long, value_name = "DAYS", default_value_t = 365,
          value_parser = clap::value_parser!(u64).range(1..=DAYS_MAX))]
    days: u64,
}

/// Makes the files, and prints the next steps.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("the clock is before 1970")?;
    let said = match &options.action {
        Action::Init(options) => init(options, now)?,
        Action::Add(options) => add(options, now)?,
        Action::Renew(options) => renew(options, now)?,
    };
    terminal::say_lines(said.trim_end());
    Ok(())
}

fn days(count: u64) -> Duration {
    Duration::from_secs(count * SECONDS_PER_DAY)
}

/// Returns a secret of 244 random bits from the operating system, in hexadecimal digits.
fn fresh_secret() -> String {
    let halves = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
    halves.map(|half| half.simple().to_string()).concat()
}

/// Returns the principal's secret, and its line in the file of credentials.
fn credential(principal: &str) -> anyhow::Result<(String, String)> {
    let secret = fresh_secret();
    let hash = SecretHash::from_secret(secret.as_bytes(), uuid::Uuid::new_v4().into_bytes())?;
    Ok((secret, format!("{principal} {hash}\n")))
}

fn init(options: &InitOptions, now: Duration) -> anyhow::Result<String> {
    let fleet = Fleet {
        format: layout::FORMAT,
        authority: format!(
            "Meseta fleet {}",
            &uuid::Uuid::new_v4().simple().to_string()[..8]
        ),
        authority_ends: (now + days(options.authority_days)).as_secs(),
        master: options.master.clone(),
        agents: Vec::new(),
        scheduler: options.added.scheduler.clone(),
        job_user: None,
        principals: Vec::new(),
    };
    let until = Validity::new(now, days(options.authority_days));
    let (authority, key) = Authority::create(&fleet.authority, until)?;
    let folder = Folder::create(&options.dir)?;
    let mut files = vec![
        layout::file(file_names::AUTHORITY_KEY, key),
        layout::file(file_names::AUTHORITY, authority.pem().to_owned()),
    ];
    let mut shared = Shared {
        authority: authority.pem().to_owned(),
        credentials: String::new(),
        acls: acls::pretty(&acls::basic())?,
        node_secret: String::new(),
    };
    let validity = Validity::new(now, days(options.added.days)).within(fleet.authority_end());
    for principal in names::BUILT_IN {
        let (secret, line) = credential(principal)?;
        shared.credentials += &line;
        if principal == names::NODE {
            shared.node_secret.clone_from(&secret);
        }
        let own = if principal == names::NODE {
            None
        } else {
            Some(authority.sign_principal(principal, validity)?)
        };
        let place = folder.final_path();
        let own = own.as_ref();
        files.extend(layout::principal(
            &fleet, principal, &secret, own, &shared, place,
        ));
    }
    let pair = authority.sign(&fleet.master, DaemonKind::Master, validity)?;
    let grown = Grown {
        authority: &authority,
        validity,
        agents: &options.agents,
        principals: &options.added.principals,
        scheduler: options.added.scheduler.as_ref(),
        job_users: &options.added.job_users,
        place: folder.final_path(),
    };
    let mut fleet = fleet;
    files.extend(grown.apply(&mut fleet, &mut shared)?);
    files.extend(layout::master(&fleet, &pair, &shared));
    files.extend(layout::agents(&fleet, &shared));
    files.extend(layout::scheduler_shared(&fleet, &shared));
    files.extend(layout::sources(&fleet, &shared)?);
    folder.write(&files)?;
    folder.keep()?;
    let dir = options.dir.display().to_string();
    Ok(layout::after_init(&fleet, &dir, validity))
}

/// The members that join a fleet.
struct Grown<'a> {
    authority: &'a Authority,
    validity: Validity,
    agents: &'a [Machine],
    principals: &'a [Principal],
    scheduler: Option<&'a Machine>,
    job_users: &'a [String],
    /// The present or future path of the folder.
    place: &'a Path,
}

impl Grown<'_> {
    /// Adds the new machines and principals to the fleet, and returns their own files.
    fn apply(&self, fleet: &mut Fleet, shared: &mut Shared) -> anyhow::Result<Vec<layout::File>> {
        self.check_addresses(fleet)?;
        self.check_names(fleet)?;
        let mut files = Vec::new();
        for agent in self.agents {
            ensure!(
                fleet.agents.iter().all(|known| known.name != agent.name),
                "agent {} exists already; `meseta tls renew --machine={}` gives it a new \
                certificate",
                agent.name,
                agent.name
            );
            let pair = self
                .authority
                .sign(agent, DaemonKind::Agent, self.validity)?;
            fleet.agents.push(agent.clone());
            files.extend(layout::agent(fleet, agent, &pair, &shared.node_secret));
        }
        let mut rules = acls::parse(&shared.acls)?;
        for principal in self.principals {
            ensure!(
                fleet
                    .principals
                    .iter()
                    .all(|known| known.name != principal.name),
                "principal {} exists already; its rules are in {}",
                principal.name,
                file_names::ACLS
            );
            let (secret, line) = credential(&principal.name)?;
            shared.credentials += &line;
            acls::allow(&mut rules, principal)?;
            fleet.principals.push(principal.clone());
            let name = &principal.name;
            let own = self.authority.sign_principal(name, self.validity)?;
            let own = Some(&own);
            files.extend(layout::principal(
                fleet, name, &secret, own, shared, self.place,
            ));
        }
        if let Some(machine) = self.scheduler {
            let (secret, line) = credential(names::JOBS)?;
            shared.credentials += &line;
            acls::allow_jobs(&mut rules, self.job_users)?;
            fleet.scheduler = Some(machine.clone());
            let pair = self
                .authority
                .sign(machine, DaemonKind::Scheduler, self.validity)?;
            let user = self.job_users.first().map_or("", String::as_str);
            fleet.job_user = Some(user.to_owned());
            files.extend(layout::scheduler(fleet, machine, &pair, &secret, user));
        }
        if let Some(job_user) = &fleet.job_user {
            // A new scheduler gets the permissions for earlier principals too.
            let principals = match self.scheduler {
                Some(_) => &fleet.principals,
                None => self.principals,
            };
            for principal in principals {
                acls::allow_jobs_of(&mut rules, principal, job_user)?;
            }
        }
        if !self.principals.is_empty() || self.scheduler.is_some() {
            shared.acls = acls::pretty(&rules)?;
        }
        Ok(files)
    }

    /// Refuses a machine with addresses that differ from another line's: its certificates would cover only some of its
    /// addresses. Also refuses an agent at another machine's address, since the files of one would replace those of the
    /// other. Addresses where neither listens may be common to several, as 127.0.0.1 is.
    fn check_addresses(&self, fleet: &Fleet) -> anyhow::Result<()> {
        let agent = |one| (file_names::AGENT, one);
        let scheduler = |one| (file_names::SCHEDULER, one);
        let given = self.agents.iter().map(agent);
        let given: Vec<_> = given.chain(self.scheduler.map(scheduler)).collect();
        // `init` has added the given scheduler to the fleet.
        let known_scheduler = fleet.scheduler.as_ref();
        let known_scheduler = known_scheduler.filter(|_| self.scheduler.is_none());
        let known: Vec<_> = std::iter::once((file_names::MASTER, &fleet.master))
            .chain(fleet.agents.iter().map(agent))
            .chain(known_scheduler.map(scheduler))
            .collect();
        for (at, (daemon, machine)) in given.iter().enumerate() {
            let shared = |other: &Machine| -> Vec<_> {
                let own = machine.addresses.iter();
                own.filter(|address| other.addresses.contains(address))
                    .copied()
                    .collect()
            };
            let conflict = |other: &Machine| {
                let first = [machine.address(), other.address()];
                shared(other)
                    .into_iter()
                    .find(|address| first.contains(address))
            };
            // The files of another daemon on the machine go to another folder, whatever its name there.
            let mut same = known.iter().chain(&given[..at]);
            let same = same.find_map(|(other_daemon, other)| {
                let is_another = other_daemon == daemon && other.name != machine.name;
                Some((other, conflict(other).filter(|_| is_another)?))
            });
            if let Some((other, address)) = same {
                bail!(
                    "{address} is already an address of {daemon} {other}: give {} another address",
                    machine.name
                );
            }
            // Another check reports an existing agent of this name.
            let known = known.iter().filter(|(other, _)| other != daemon);
            let mut others = known.chain(&given[..at]);
            let other =
                others.find(|(_, other)| other.name == machine.name && shared(other).is_empty());
            if let Some((daemon_of_other, other)) = other {
                bail!(
                    "{daemon_of_other} {other} and {daemon} {machine} have the same name and no \
                    common address: give both an address of that machine, or rename one of them"
                );
            }
        }
        Ok(())
    }

    /// Refuses a machine with the name of a principal: a client with a certificate and no secret is the principal of that
    /// name.
    fn check_names(&self, fleet: &Fleet) -> anyhow::Result<()> {
        let scheduler = self.scheduler.or(fleet.scheduler.as_ref());
        let given = || {
            let given = fleet.principals.iter().chain(self.principals);
            given.map(|principal| principal.name.as_str())
        };
        ensure!(
            scheduler.is_none() || given().all(|name| name != names::JOBS),
            "{} is the principal of the scheduler of jobs: choose another name for the framework",
            names::JOBS
        );
        let machines = std::iter::once(&fleet.master)
            .chain(&fleet.agents)
            .chain(self.agents)
            .chain(scheduler);
        for machine in machines {
            let jobs = scheduler.map(|_| names::JOBS);
            let mut principals = names::BUILT_IN.into_iter().chain(jobs).chain(given());
            ensure!(
                !principals.any(|name| name.eq_ignore_ascii_case(&machine.name)),
                "{} cannot be both a machine and a principal: the holder of the machine's key \
                 could act as the principal; choose another name for one of them",
                machine.name
            );
        }
        Ok(())
    }
}

/// Reads the authority of a folder, for signing.
fn authority_of(folder: &Folder, fleet: &Fleet, now: Duration) -> anyhow::Result<Authority> {
    ensure!(
        fleet.authority_ends > now.as_secs(),
        "the authority of {} has expired: make a new folder with `meseta tls init`",
        folder.final_path().display()
    );
    let key = folder.read(file_names::AUTHORITY_KEY).context(
        "signing needs the authority's key: if you keep the key elsewhere, put it back while \
        this command runs",
    )?;
    let pem = folder.read(file_names::AUTHORITY)?;
    Authority::load(&fleet.authority, &pem, &key).with_context(|| {
        format!(
            "failed to load {} and {} of {}",
            file_names::AUTHORITY,
            file_names::AUTHORITY_KEY,
            folder.final_path().display()
        )
    })
}

fn add(options: &AddOptions, now: Duration) -> anyhow::Result<String> {
    let scheduler = options.added.scheduler.as_ref();
    if options.agents.is_empty() && options.added.principals.is_empty() && scheduler.is_none() {
        bail!(
            "nothing to add: give --agent=NAME=ADDRESS, --scheduler=NAME=ADDRESS or --principal=NAME:role=ROLE:user=USER"
        );
    }
    let folder = Folder::open(&options.dir)?;
    let mut fleet = folder.fleet()?;
    if let (Some(known), Some(_)) = (&fleet.scheduler, scheduler) {
        bail!(
            "a scheduler of jobs exists already, on {}; several schedulers share etcd: set them \
            up by hand",
            known.name
        );
    }
    let authority = authority_of(&folder, &fleet, now)?;
    let mut shared = Shared {
        authority: authority.pem().to_owned(),
        credentials: folder.read(file_names::CREDENTIALS)?,
        acls: folder.read(file_names::ACLS)?,
        node_secret: folder
            .read(file_names::secret(names::NODE))
            .context("agents are given this secret")?
            .trim_end()
            .to_owned(),
    };
    let validity = Validity::new(now, days(options.added.days)).within(fleet.authority_end());
    let grown = Grown {
        authority: &authority,
        validity,
        agents: &options.agents,
        principals: &options.added.principals,
        scheduler: options.added.scheduler.as_ref(),
        job_users: &options.added.job_users,
        place: folder.final_path(),
    };
    let mut files = grown.apply(&mut fleet, &mut shared)?;
    for one in &files {
        ensure!(
            !folder.final_path().join(&one.path).exists(),
            "{} exists already: move it away first",
            folder.final_path().join(&one.path).display()
        );
    }
    files.extend(layout::master_shared(&fleet, &shared));
    files.extend(layout::agents(&fleet, &shared));
    files.extend(layout::scheduler_shared(&fleet, &shared));
    files.extend(layout::sources(&fleet, &shared)?);
    folder.write(&files)?;
    let dir = options.dir.display().to_string();
    let added = layout::Additions {
        agents: &options.agents,
        principals: &options.added.principals,
        scheduler,
    };
    Ok(layout::after_add(&fleet, &dir, &added))
}

fn renew(options: &RenewOptions, now: Duration) -> anyhow::Result<String> {
    let folder = Folder::open(&options.dir)?;
    let fleet = folder.fleet()?;
    let dir = options.dir.display().to_string();
    let machines: Vec<_> = fleet.machines().map(|one| one.name.as_str()).collect();
    all_known("machine", &options.machines, &machines, &dir)?;
    let principals: Vec<_> = fleet.certified_principals().collect();
    all_known("principal", &options.principals, &principals, &dir)?;
    let is_every = options.machines.is_empty() && options.principals.is_empty();
    let authority = authority_of(&folder, &fleet, now)?;
    let validity = Validity::new(now, days(options.days)).within(fleet.authority_end());
    let is_meant = |machine: &&Machine| is_every || options.machines.contains(&machine.name);
    let mut files = Vec::new();
    if is_meant(&&fleet.master) {
        let pair = authority.sign(&fleet.master, DaemonKind::Master, validity)?;
        files.extend(layout::pair(&fleet.master, file_names::MASTER, &pair));
    }
    for agent in fleet.agents.iter().filter(is_meant) {
        let pair = authority.sign(agent, DaemonKind::Agent, validity)?;
        files.extend(layout::pair(agent, file_names::AGENT, &pair));
    }
    if let Some(machine) = fleet.scheduler.as_ref().filter(is_meant) {
        let pair = authority.sign(machine, DaemonKind::Scheduler, validity)?;
        files.extend(layout::pair(machine, file_names::SCHEDULER, &pair));
    }
    let is_meant_too = |name: &&str| is_every || options.principals.iter().any(|one| one == name);
    let renewed: Vec<_> = principals.into_iter().filter(is_meant_too).collect();
    for name in &renewed {
        let pair = authority.sign_principal(name, validity)?;
        files.extend(layout::principal_pair(name, &pair));
    }
    folder.write(&files)?;
    Ok(layout::after_renew(
        &fleet, &dir, is_meant, &renewed, validity,
    ))
}

/// Refuses a name that the folder does not contain.
fn all_known(what: &str, names: &[String], known: &[&str], dir: &str) -> anyhow::Result<()> {
    let unknown = names.iter().find(|name| !known.contains(&name.as_str()));
    unknown.map_or(Ok(()), |name| {
        bail!(
            "{what} {name} does not exist in {dir}; known are: {}",
            known.join(", ")
        )
    })
}

#[cfg(test)]
mod tests;
