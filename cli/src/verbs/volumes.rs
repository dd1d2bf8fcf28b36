//! `meseta volumes`: disks of an agent that outlive the tasks of a role.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use meseta_proto::convert;
use meseta_proto::mesos::v1::Volume;
use meseta_proto::mesos::v1::master::call;
use meseta_proto::mesos::v1::resource::{DiskInfo, disk_info};
use meseta_proto::mesos::v1::volume::Mode;
use meseta_resources::Role;
use serde_json::{Value, json};

use super::operations::{self, Operation, WaitFlag};
use super::reservations::{LabelFlag, ReserverFlag, message, role_of};
use super::reserved::Holder;
use super::{MasterFlag, agent_id, items, list_all, server, text};

/// Without an action: a table of all persistent volumes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    master: MasterFlag,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a volume on disk that is reserved for a role.
    Create(Create),
    /// Destroy a volume and its contents.
    Destroy(Destroy),
}

#[derive(Debug, Args)]
struct Create {
    /// The agent's id, or its host name if the name is unique (see `meseta agents`).
    agent: String,
    /// The volume's id, unique among the role's on the agent.
    #[arg(long)]
    id: String,
    /// The role that the disk is reserved to.
    #[arg(long)]
    role: String,
    /// The volume's size in MB.
    #[arg(long)]
    disk: f64,
    /// The mount point in the task, relative to the sandbox.
    #[arg(long = "container_path")]
    container_path: String,
    #[command(flatten)]
    labels: LabelFlag,
    #[command(flatten)]
    reserver: ReserverFlag,
    #[command(flatten)]
    wait: WaitFlag,
}

#[derive(Debug, Args)]
struct Destroy {
    /// The agent's id, or its host name if the name is unique (see `meseta agents`).
    agent: String,
    /// The volume's id.
    #[arg(long)]
    id: String,
    /// The role that it belongs to, if several have one of this id.
    #[arg(long)]
    role: Option<String>,
    #[command(flatten)]
    wait: WaitFlag,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    match &options.action {
        None => list(options),
        Some(Action::Create(flags)) => create(flags, &options.master),
        Some(Action::Destroy(flags)) => destroy(flags, &options.master),
    }
}

fn create(flags: &Create, master: &MasterFlag) -> anyhow::Result<()> {
    let role = role_of(&flags.role)?;
    let disk = convert::parse_resources(&format!("disk:{}", flags.disk), &Role::star())
        .with_context(|| format!("--disk={}", flags.disk))?;
    let disk = disk.iter().next().context("--disk must be above 0")?;
    let holder = Holder::find(&master.master, &flags.agent)?;
    let reserved = flags
        .reserver
        .reserved(disk, &role, &flags.labels.label, &holder, master)?;
    let mut volume = message(&reserved)?;
    volume.disk = Some(Box::new(DiskInfo {
        persistence: Some(disk_info::Persistence {
            id: flags.id.clone(),
            principal: master.principal().map(str::to_owned),
        }),
        volume: Some(Volume {
            container_path: flags.container_path.clone(),
            mode: Mode::Rw.into(),
            ..Volume::default()
        }),
        ..DiskInfo::default()
    }));
    let call = call::CreateVolumes {
        agent_id: agent_id(&holder.id),
        volumes: vec![volume],
    };
    let done = format!("volume '{}' made on agent {}", flags.id, holder.id);
    let helps = || {
        Some(format!(
            "a volume needs unused disk that is reserved to its role; role '{role}' has reserved \
             on the agent: {}. `meseta reserve` reserves more",
            holder.describe(&role)
        ))
    };
    operations::carry_out(
        &master.master,
        Operation::Create(call),
        &flags.wait,
        &done,
        helps,
    )
}

fn destroy(flags: &Destroy, master: &MasterFlag) -> anyhow::Result<()> {
    let role = flags.role.as_deref().map(role_of).transpose()?;
    let holder = Holder::find(&master.master, &flags.agent)?;
    let volume = holder.volume(&flags.id, role.as_ref())?;
    let call = call::DestroyVolumes {
        agent_id: agent_id(&holder.id),
        volumes: vec![message(volume)?],
    };
    let done = format!("volume '{}' destroyed on agent {}", flags.id, holder.id);
    let helps = || Some("a running task may use it: `meseta tasks` lists the tasks".to_owned());
    operations::carry_out(
        &master.master,
        Operation::Destroy(call),
        &flags.wait,
        &done,
        helps,
    )
}

fn list(options: &Options) -> anyhow::Result<()> {
    let body = server::get_json(&options.master.master, "/slaves")?;
    let mut found = Vec::new();
    for agent in items(&body, "slaves") {
        let reserved = agent.get("reserved_resources_full");
        let roles = reserved.and_then(Value::as_object).into_iter().flatten();
        for (role, resources) in roles {
            let resources = resources.as_array().into_iter().flatten();
            let volumes = resources.filter(|r| r.pointer("/disk/persistence").is_some());
            found.extend(volumes.map(
                |volume| json!({"slave_id": text(agent, "id"), "role": role, "resource": volume}),
            ));
        }
    }
    let row = |volume: &Value| {
        let at = |path: &str| match volume.pointer(path) {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => "-".to_owned(),
        };
        vec![
            at("/resource/disk/persistence/id"),
            at("/role"),
            at("/resource/scalar/value"),
            at("/resource/disk/volume/container_path"),
            at("/slave_id"),
        ]
    };
    let headings = ["ID", "ROLE", "MB", "CONTAINER PATH", "AGENT"];
    list_all(options.json, &headings, &found, row)
}
