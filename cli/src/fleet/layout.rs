//! The files of a fleet and their contents: values to values.
//!
//! ```text
//! fleet.json            the members of the fleet
//! acls.json             the rules, the same for every daemon
//! credentials           principals with hashes of their secrets, the same for every daemon
//! authority/            the authority's certificate, and its key: of no use to any machine
//! principals/NAME/      the files of a person or framework: secret, ca.pem, cert.pem, key.pem, env
//! machines/NAME/        the contents of /etc/meseta on that machine
//! ```
//!
//! Invariant: the authority's key is in no machine's folder, and a principal's secret in no other's, except for that of
//! agents.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::authority::{Pair, Validity};
use super::file_names::{
    self, ACLS, AGENT, AUTHORITY_KEY, CA, CERTIFICATE, CREDENTIAL, CREDENTIALS, ENV, ETC, FLEET,
    KEY, MACHINES, MASTER, PRINCIPALS, SCHEDULER, SECRET, principal_dir,
};
use super::names::{ADMIN, JOBS, Machine, NODE, PROMETHEUS, Principal};

/// The format number of `fleet.json`.
pub(super) const FORMAT: u32 = 1;
const MASTER_PORT: u16 = 5050;
const AGENT_PORT: u16 = 5051;
const SCHEDULER_PORT: u16 = 5070;

/// The members of a fleet.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fleet {
    pub(super) format: u32,
    /// The authority's name, as written in its certificates.
    pub(super) authority: String,
    /// The end of the authority's certificate, in seconds since the Unix epoch.
    pub(super) authority_ends: u64,
    pub(super) master: Machine,
    pub(super) agents: Vec<Machine>,
    /// The machine of the job scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) scheduler: Option<Machine>,
    /// The user of jobs that specify none, which is also the user of the scheduler's framework.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) job_user: Option<String>,
    pub(super) principals: Vec<Principal>,
}

impl Fleet {
    /// Returns every machine once; a machine may have several daemons.
    pub(super) fn machines(&self) -> impl Iterator<Item = &Machine> {
        let agents = self.agents.iter();
        let agents = agents.filter(|agent| agent.name != self.master.name);
        let is_known =
            |machine: &Machine| machine.name == self.master.name || self.is_of_agent(&machine.name);
        let scheduler = self.scheduler.iter().filter(move |one| !is_known(one));
        std::iter::once(&self.master).chain(agents).chain(scheduler)
    }

    fn is_of_agent(&self, name: &str) -> bool {
        self.agents.iter().any(|agent| agent.name == name)
    }

    /// Returns the daemons of a machine.
    fn daemons_of(&self, machine: &Machine) -> impl Iterator<Item = &'static str> {
        let name = &machine.name;
        let scheduler = self.scheduler.as_ref();
        let all = [
            (*name == self.master.name).then_some(MASTER),
            self.is_of_agent(name).then_some(AGENT),
            scheduler
                .is_some_and(|one| one.name == *name)
                .then_some(SCHEDULER),
        ];
        all.into_iter().flatten()
    }

    /// Returns the principals that have a certificate.
    pub(super) fn certified_principals(&self) -> impl Iterator<Item = &str> {
        let added = self.principals.iter().map(|one| one.name.as_str());
        [ADMIN, PROMETHEUS].into_iter().chain(added)
    }

    pub(super) fn authority_end(&self) -> Duration {
        Duration::from_secs(self.authority_ends)
    }

    fn master_address(&self) -> SocketAddr {
        SocketAddr::new(self.master.address(), MASTER_PORT)
    }

    fn scheduler_address(&self) -> Option<SocketAddr> {
        let machine = self.scheduler.as_ref()?;
        Some(SocketAddr::new(machine.address(), SCHEDULER_PORT))
    }
}

/// The data that every daemon shares.
pub(super) struct Shared {
    /// The authority's certificate.
    pub(super) authority: String,
    pub(super) credentials: String,
    pub(super) acls: String,
    /// The secret with which agents join.
    pub(super) node_secret: String,
}

/// A file below the fleet's folder.
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

impl File {
    /// Returns the mode of a file: readable by its owner alone, except for configuration, which contains no secret and is
    /// read by daemons of other users than root.
    pub(super) fn mode(&self) -> u32 {
        if file_names::is_configuration(&self.path) {
            0o644
        } else {
            0o600
        }
    }
}

pub(super) fn file(path: impl Into<PathBuf>, text: String) -> File {
    File {
        path: path.into(),
        text,
    }
}

fn machine_dir(machine: &Machine) -> PathBuf {
    file_names::machine_dir(&machine.name)
}

/// Returns the files that `add` reads again, and that copies are made of.
pub(super) fn sources(fleet: &Fleet, shared: &Shared) -> anyhow::Result<Vec<File>> {
    let text = serde_json::to_string_pretty(fleet)? + "\n";
    Ok(vec![
        file(ACLS, shared.acls.clone()),
        file(CREDENTIALS, shared.credentials.clone()),
        file(FLEET, text),
    ])
}

/// Returns the certificate files of a principal.
pub(super) fn principal_pair(name: &str, pair: &Pair) -> Vec<File> {
    pair_in(&principal_dir(name), pair)
}

/// Returns the files with which a client authenticates as this principal: a certificate, except for [`NODE`], whose
/// machines have their own. `place` is the present or future path of the fleet's folder.
pub(super) fn principal(
    fleet: &Fleet,
    name: &str,
    secret: &str,
    own: Option<&Pair>,
    shared: &Shared,
    place: &Path,
) -> Vec<File> {
    let dir = principal_dir(name);
    let mut files = vec![file(file_names::secret(name), format!("{secret}\n"))];
    let Some(pair) = own else {
        return files;
    };
    files.extend(principal_pair(name, pair));
    files.push(file(dir.join(CA), shared.authority.clone()));
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    let own = place.join(&dir);
    let lines = [
        "# For shells: `. FILE` makes verbs call this master as this principal.".to_owned(),
        format!("export MESETA_MASTER={}", fleet.master_address()),
        format!("export MESETA_CA={}", quoted(&own.join(CA))),
        format!("export MESETA_PRINCIPAL='{}'", name.replace('\'', r"'\''")),
        format!("export MESETA_SECRET_FILE={}", quoted(&own.join(SECRET))),
        format!("export MESETA_CERT={}", quoted(&own.join(CERTIFICATE))),
        format!("export MESETA_KEY={}", quoted(&own.join(KEY))),
    ];
    let scheduler = fleet.scheduler_address();
    let scheduler = scheduler.map(|address| format!("export MESETA_SCHEDULER={address}"));
    let lines: Vec<_> = lines.into_iter().chain(scheduler).collect();
    files.push(file(dir.join(ENV), lines.join("\n") + "\n"));
    files
}

/// Returns the certificate files of a daemon.
pub(super) fn pair(machine: &Machine, daemon: &str, pair: &Pair) -> Vec<File> {
    pair_in(&machine_dir(machine).join(daemon), pair)
}

fn pair_in(dir: &Path, pair: &Pair) -> Vec<File> {
    vec![
        file(dir.join(CERTIFICATE), pair.certificate.clone()),
        file(dir.join(KEY), pair.key.clone()),
    ]
}

/// Returns the files that a daemon shares with all others.
fn shared_files(machine: &Machine, daemon: &str, shared: &Shared) -> Vec<File> {
    let dir = machine_dir(machine).join(daemon);
    vec![
        file(dir.join(CA), shared.authority.clone()),
        file(dir.join(ACLS), shared.acls.clone()),
        file(dir.join(CREDENTIALS), shared.credentials.clone()),
    ]
}

/// Returns the files of the master.
pub(super) fn master(fleet: &Fleet, own: &Pair, shared: &Shared) -> Vec<File> {
    let machine = &fleet.master;
    let mut files = pair(machine, MASTER, own);
    files.extend(master_shared(fleet, shared));
    let text = configuration(
        MASTER,
        machine,
        MASTER_PORT,
        &[
            ("credentials", path_of(MASTER, CREDENTIALS)),
            ("authenticate_agents", "true".to_owned()),
            ("authenticate_http_frameworks", "true".to_owned()),
        ],
    );
    files.push(file(
        machine_dir(machine).join(file_names::configuration(MASTER)),
        text,
    ));
    files
}

pub(super) fn master_shared(fleet: &Fleet, shared: &Shared) -> Vec<File> {
    shared_files(&fleet.master, MASTER, shared)
}

/// Returns the files that every agent shares.
pub(super) fn agents(fleet: &Fleet, shared: &Shared) -> Vec<File> {
    let all = fleet.agents.iter();
    all.flat_map(|agent| shared_files(agent, AGENT, shared))
        .collect()
}

/// Returns the files of one agent alone.
pub(super) fn agent(fleet: &Fleet, machine: &Machine, own: &Pair, node_secret: &str) -> Vec<File> {
    let runtime_dir = ("runtime_dir", quoted("/run/meseta/agent"));
    let secret = format!("{NODE} {node_secret}\n");
    client_of_master(
        fleet,
        machine,
        own,
        (AGENT, AGENT_PORT),
        secret,
        runtime_dir,
    )
}

pub(super) fn scheduler_shared(fleet: &Fleet, shared: &Shared) -> Vec<File> {
    let machine = fleet.scheduler.as_ref();
    machine.map_or_else(Vec::new, |machine| shared_files(machine, SCHEDULER, shared))
}

/// Returns the files of the scheduler of jobs; tasks whose job names no user run as `user`.
pub(super) fn scheduler(
    fleet: &Fleet,
    machine: &Machine,
    own: &Pair,
    secret: &str,
    user: &str,
) -> Vec<File> {
    let user = ("user", quoted(user));
    let secret = format!("{JOBS} {secret}\n");
    client_of_master(
        fleet,
        machine,
        own,
        (SCHEDULER, SCHEDULER_PORT),
        secret,
        user,
    )
}

/// Returns the files of a daemon that finds the master and presents this credential.
fn client_of_master(
    fleet: &Fleet,
    machine: &Machine,
    own: &Pair,
    (daemon, port): (&str, u16),
    credential: String,
    setting: (&'static str, String),
) -> Vec<File> {
    let mut files = pair(machine, daemon, own);
    let dir = machine_dir(machine);
    files.push(file(dir.join(daemon).join(CREDENTIAL), credential));
    let text = configuration(
        daemon,
        machine,
        port,
        &[
            ("master", quoted(&fleet.master_address().to_string())),
            setting,
            ("credential", path_of(daemon, CREDENTIAL)),
            ("http_credentials", path_of(daemon, CREDENTIALS)),
        ],
    );
    files.push(file(dir.join(file_names::configuration(daemon)), text));
    files
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Returns the path of a file on its machine.
fn path_of(daemon: &str, name: &str) -> String {
    quoted(&format!("{ETC}/{daemon}/{name}"))
}

/// Returns a daemon's configuration file. It states the defaults explicitly: the cluster requires authentication on any
/// address.
fn configuration(
    daemon: &str,
    machine: &Machine,
    port: u16,
    own: &[(&'static str, String)],
) -> String {
    let common = [
        ("ip", quoted(&machine.address().to_string())),
        ("port", port.to_string()),
        ("hostname", quoted(&machine.name)),
        ("work_dir", quoted(&format!("/var/lib/meseta/{daemon}"))),
    ];
    let access = [
        ("authenticate_http_readonly", "true".to_owned()),
        ("authenticate_http_readwrite", "true".to_owned()),
        ("acls", quoted(&format!("file://{ETC}/{daemon}/{ACLS}"))),
        ("ssl_ca_file", path_of(daemon, CA)),
        ("ssl_cert_file", path_of(daemon, CERTIFICATE)),
        ("ssl_key_file", path_of(daemon, KEY)),
    ];
    let lines = common.iter().chain(own).chain(&access);
    let lines: String = lines
        .map(|(key, value)| format!("{key} = {value}\n"))
        .collect();
    let name = file_names::configuration(daemon);
    format!("# {ETC}/{name}: flags of `meseta {daemon}`, made by `meseta tls`.\n{lines}")
}

/// Returns the name of a machine for scp(1).
fn host(machine: &Machine) -> String {
    match machine.address() {
        std::net::IpAddr::V6(address) => format!("root@[{address}]"),
        std::net::IpAddr::V4(address) => format!("root@{address}"),
    }
}

/// Returns the command line that copies the whole folder to a new machine.
fn first_copy(dir: &str, machine: &Machine) -> String {
    let (name, host) = (&machine.name, host(machine));
    format!("  scp -rp {dir}/{MACHINES}/{name}/. {host}:{ETC}/\n")
}

/// Returns the command for the first copy of one daemon to a machine that has others.
fn first_copy_of(dir: &str, machine: &Machine, daemon: &str) -> String {
    let (own, host) = (format!("{dir}/{MACHINES}/{}", machine.name), host(machine));
    let configuration = file_names::configuration(daemon);
    format!("  scp -rp {own}/{daemon} {own}/{configuration} {host}:{ETC}/\n")
}

/// Returns the command lines that replace these files of a machine's daemons. Configuration is never among them, because it
/// is edited on the machine.
fn copies<'a>(
    dir: &str,
    machine: &Machine,
    daemons: impl Iterator<Item = &'a str>,
    names: &[&str],
) -> String {
    let line = |daemon| {
        let own = format!("{dir}/{MACHINES}/{}/{daemon}", machine.name);
        let files: String = names.iter().map(|name| format!("{own}/{name} ")).collect();
        format!("  scp -p {files}{}:{ETC}/{daemon}/\n", host(machine))
    };
    daemons.map(line).collect()
}

/// Returns the command lines that give the files of these daemons to their users; an agent's files belong to root.
fn owners(fleet: &Fleet, is_meant: impl Fn(&Machine, &str) -> bool) -> String {
    let master = Some(&fleet.master).map(|machine| (machine, MASTER));
    let scheduler = fleet.scheduler.as_ref().map(|machine| (machine, SCHEDULER));
    let all = [master, scheduler].into_iter().flatten();
    let line = |(machine, daemon): (&Machine, &str)| {
        let address = machine.address();
        format!("  ssh root@{address} chown -R meseta-{daemon}: {ETC}/{daemon}\n")
    };
    all.filter(|(machine, daemon)| is_meant(machine, daemon))
        .map(line)
        .collect()
}

/// Returns the command line that starts a daemon with its own user.
fn first_start(machine: &Machine, daemon: &str) -> String {
    let address = machine.address();
    format!(
        "  ssh root@{address} 'chown -R meseta-{daemon}: {ETC}/{daemon} && systemctl restart meseta-{daemon}'\n"
    )
}

/// Returns the command lines that start agents.
fn agent_starts(agents: &[Machine]) -> String {
    let line = |agent: &Machine| {
        let address = agent.address();
        format!("  ssh root@{address} systemctl restart meseta-agent\n")
    };
    agents.iter().map(line).collect()
}

/// Returns the next steps after `init`.
pub(super) fn after_init(fleet: &Fleet, dir: &str, validity: Validity) -> String {
    let mut text = format!(
        "{dir}: certificates of \"{}\", valid until {}; `meseta tls renew --dir={dir}` makes new ones\n\n\
         Next, where the package of Meseta is installed on these machines:\n\n",
        fleet.authority,
        validity.last_day(),
    );
    for machine in fleet.machines() {
        text += &first_copy(dir, machine);
    }
    text += &first_start(&fleet.master, MASTER);
    text += &agent_starts(&fleet.agents);
    if let Some(machine) = &fleet.scheduler {
        text += &first_start(machine, SCHEDULER);
    }
    text += &format!("  . {dir}/{PRINCIPALS}/{ADMIN}/{ENV}\n  meseta agents\n\n");
    text += &handed_out(dir, &fleet.principals);
    text += &format!(
        "{dir}/{AUTHORITY_KEY} signs certificates that the whole fleet trusts: keep it off these \
        machines.\n"
    );
    text
}

fn handed_out(dir: &str, principals: &[Principal]) -> String {
    let mut text = String::new();
    for principal in principals {
        text += &format!(
            "{dir}/{PRINCIPALS}/{} is for the operator of that framework: it holds the secret, \
            the certificate and the authority.\n",
            principal.name
        );
    }
    text
}

/// The additions of an `add` command.
pub(super) struct Additions<'a> {
    pub(super) agents: &'a [Machine],
    pub(super) principals: &'a [Principal],
    pub(super) scheduler: Option<&'a Machine>,
}

impl Additions<'_> {
    fn has(&self, machine: &Machine, daemon: &str) -> bool {
        match daemon {
            AGENT => self.agents.iter().any(|agent| agent.name == machine.name),
            SCHEDULER => self.scheduler.is_some(),
            _ => false,
        }
    }
}

/// Returns the next steps after `add`.
pub(super) fn after_add(fleet: &Fleet, dir: &str, added: &Additions<'_>) -> String {
    let mut text = String::from("Next:\n\n");
    let has_new_principals = !added.principals.is_empty() || added.scheduler.is_some();
    if has_new_principals {
        for machine in fleet.machines() {
            let daemons = fleet.daemons_of(machine);
            let old = daemons.filter(|daemon| !added.has(machine, daemon));
            text += &copies(dir, machine, old, &[ACLS, CREDENTIALS]);
        }
        text += &owners(fleet, |machine, daemon| !added.has(machine, daemon));
    }
    for machine in fleet.machines() {
        if fleet
            .daemons_of(machine)
            .all(|daemon| added.has(machine, daemon))
        {
            text += &first_copy(dir, machine);
            continue;
        }
        let daemons = fleet.daemons_of(machine);
        for daemon in daemons.filter(|daemon| added.has(machine, daemon)) {
            text += &first_copy_of(dir, machine, daemon);
        }
    }
    text += &agent_starts(added.agents);
    if let Some(machine) = added.scheduler {
        text += &first_start(machine, SCHEDULER);
    }
    text += "\n";
    if has_new_principals {
        text += "Running daemons load new credentials and ACLs within seconds.\n";
    }
    if let Some(address) = fleet
        .scheduler_address()
        .filter(|_| added.scheduler.is_some())
    {
        text += &format!("Verbs find the scheduler of jobs by MESETA_SCHEDULER={address}.\n");
    }
    text += &handed_out(dir, added.principals);
    text
}

/// Returns the next steps after `renew`.
pub(super) fn after_renew(
    fleet: &Fleet,
    dir: &str,
    is_meant: impl Fn(&&Machine) -> bool,
    principals: &[&str],
    validity: Validity,
) -> String {
    let mut text = format!("new certificates, valid until {}. ", validity.last_day());
    let machines = fleet.machines().filter(&is_meant).count();
    if machines > 0 {
        text += "Next:\n\n";
    }
    for machine in fleet.machines().filter(&is_meant) {
        text += &copies(dir, machine, fleet.daemons_of(machine), &[CERTIFICATE, KEY]);
    }
    text += &owners(fleet, |machine, _| is_meant(&machine));
    if machines > 0 {
        text += "\nRunning daemons load the new certificates within seconds.\n";
    }
    for name in principals {
        text += &format!("{dir}/{PRINCIPALS}/{name} has a new certificate of principal {name}.\n");
    }
    text
}
