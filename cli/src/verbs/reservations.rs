//! `meseta reserve`, `unreserve` and `volumes`: resources of one agent kept for a role.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use meseta_proto::convert;
use meseta_proto::mesos::v1::master::{Call, call};
use meseta_proto::mesos::v1::resource::reservation_info::Type as Kind;
use meseta_proto::mesos::v1::resource::{DiskInfo, ReservationInfo, disk_info};
use meseta_proto::mesos::v1::volume::Mode;
use meseta_proto::mesos::v1::{AgentId, Resource, Volume};
use meseta_resources::Role;
use serde_json::Value;

use super::{MasterFlag, items, server, table, text};

#[derive(Debug, Args)]
pub(crate) struct ReserveOptions {
    /// The agent's id (see `meseta agents`).
    agent: String,
    /// The role that may use it; `eng/backend` refines what is reserved to `eng` already.
    #[arg(long)]
    role: String,
    /// What to reserve, e.g. `cpus:8;mem:4096`.
    #[arg(long)]
    resources: String,
    /// The role that it is reserved to now, if it is.
    #[arg(long)]
    from: Option<String>,
    #[command(flatten)]
    master: MasterFlag,
}

impl ReserveOptions {
    fn resources(&self) -> anyhow::Result<Vec<Resource>> {
        let reservation = |role: &str| ReservationInfo {
            r#type: Some(Kind::Dynamic.into()),
            role: Some(role.to_owned()),
            principal: self.master.principal().map(str::to_owned),
            ..ReservationInfo::default()
        };
        let parsed = convert::parse_resources(&self.resources, &Role::star())
            .with_context(|| format!("--resources={}", self.resources))?;
        let mut messages = convert::to_resources(&parsed, convert::Format::PostRefinement)?;
        for message in &mut messages {
            let stack = self.from.iter().chain([&self.role]);
            message.reservations = stack.map(|role| reservation(role)).collect();
        }
        Ok(messages)
    }

    fn agent_id(&self) -> AgentId {
        AgentId {
            value: self.agent.clone(),
        }
    }
}

pub(crate) fn reserve(options: &ReserveOptions) -> anyhow::Result<ExitCode> {
    let call = Call {
        r#type: Some(call::Type::ReserveResources.into()),
        reserve_resources: Some(call::ReserveResources {
            agent_id: options.agent_id(),
            source: Vec::new(),
            resources: options.resources()?,
        }),
        ..Call::default()
    };
    server::operate(&options.master.master, &call)?;
    table::say("accepted; `meseta roles` shows it once the agent has it");
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn unreserve(options: &ReserveOptions) -> anyhow::Result<ExitCode> {
    let call = Call {
        r#type: Some(call::Type::UnreserveResources.into()),
        unreserve_resources: Some(call::UnreserveResources {
            agent_id: options.agent_id(),
            resources: options.resources()?,
        }),
        ..Call::default()
    };
    server::operate(&options.master.master, &call)?;
    table::say("accepted; `meseta roles` shows it once the agent has it");
    Ok(ExitCode::SUCCESS)
}

/// Without an action: a table of all persistent volumes.
#[derive(Debug, Args)]
pub(crate) struct VolumeOptions {
    #[command(subcommand)]
    action: Option<VolumeAction>,
    #[command(flatten)]
    master: MasterFlag,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum VolumeAction {
    /// Make a volume of disk that is reserved to a role.
    Create(VolumeFlags),
    /// Destroy a volume and what is in it.
    Destroy(VolumeFlags),
}

#[derive(Debug, Args)]
struct VolumeFlags {
    /// The agent's id.
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
    /// Where tasks see it, relative to their sandbox.
    #[arg(long = "container_path")]
    container_path: String,
    /// The reserver and creator. Default: who asks.
    #[arg(long, env = "MESETA_PRINCIPAL")]
    principal: Option<String>,
}

impl VolumeFlags {
    fn volume(&self) -> anyhow::Result<Resource> {
        let disk = convert::parse_resources(&format!("disk:{}", self.disk), &Role::star())
            .with_context(|| format!("--disk={}", self.disk))?;
        let mut messages = convert::to_resources(&disk, convert::Format::PostRefinement)?;
        let mut volume = messages.pop().context("--disk must be above 0")?;
        volume.reservations = vec![ReservationInfo {
            r#type: Some(Kind::Dynamic.into()),
            role: Some(self.role.clone()),
            principal: self.principal.clone(),
            ..ReservationInfo::default()
        }];
        volume.disk = Some(Box::new(DiskInfo {
            persistence: Some(disk_info::Persistence {
                id: self.id.clone(),
                principal: self.principal.clone(),
            }),
            volume: Some(Volume {
                container_path: self.container_path.clone(),
                mode: Mode::Rw.into(),
                ..Volume::default()
            }),
            ..DiskInfo::default()
        }));
        Ok(volume)
    }
}

pub(crate) fn volumes(options: &VolumeOptions) -> anyhow::Result<ExitCode> {
    let master = &options.master.master;
    let agent_id = |flags: &VolumeFlags| AgentId {
        value: flags.agent.clone(),
    };
    let call = match &options.action {
        None => {
            list(options)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(VolumeAction::Create(flags)) => Call {
            r#type: Some(call::Type::CreateVolumes.into()),
            create_volumes: Some(call::CreateVolumes {
                agent_id: agent_id(flags),
                volumes: vec![flags.volume()?],
            }),
            ..Call::default()
        },
        Some(VolumeAction::Destroy(flags)) => Call {
            r#type: Some(call::Type::DestroyVolumes.into()),
            destroy_volumes: Some(call::DestroyVolumes {
                agent_id: agent_id(flags),
                volumes: vec![flags.volume()?],
            }),
            ..Call::default()
        },
    };
    server::operate(master, &call)?;
    table::say("accepted; `meseta volumes` shows it once the agent has it");
    Ok(ExitCode::SUCCESS)
}

fn list(options: &VolumeOptions) -> anyhow::Result<()> {
    let body = server::get_json(&options.master.master, "/slaves")?;
    let mut found = Vec::new();
    for agent in items(&body, "slaves") {
        let reserved = agent.get("reserved_resources_full");
        let roles = reserved.and_then(Value::as_object).into_iter().flatten();
        for (role, resources) in roles {
            let resources = resources.as_array().into_iter().flatten();
            let volumes = resources.filter(|r| r.pointer("/disk/persistence").is_some());
            found.extend(volumes.map(|volume| (text(agent, "id"), role.clone(), volume.clone())));
        }
    }
    if options.json {
        let volumes = found.into_iter().map(|(agent, role, volume)| {
            serde_json::json!({"slave_id": agent, "role": role, "resource": volume})
        });
        return table::print_json(&Value::Array(volumes.collect()));
    }
    let row = |(agent, role, volume): (String, String, Value)| {
        let at = |path: &str| match volume.pointer(path) {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => "-".to_owned(),
        };
        vec![
            at("/disk/persistence/id"),
            role,
            at("/scalar/value"),
            at("/disk/volume/container_path"),
            agent,
        ]
    };
    let headings = ["ID", "ROLE", "MB", "CONTAINER PATH", "AGENT"];
    table::print(&headings, found.into_iter().map(row).collect());
    Ok(())
}
