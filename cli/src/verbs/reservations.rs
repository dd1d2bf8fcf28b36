//! `meseta reserve` and `unreserve`: resources of one agent kept for a role.

use anyhow::{Context as _, bail};
use clap::Args;
use meseta_proto::convert;
use meseta_proto::mesos::v1;
use meseta_proto::mesos::v1::master::call;
use meseta_resources::{Reservation, Resource, Resources, Role};

use super::operations::{self, Operation, WaitFlag};
use super::reserved::Holder;
use super::{MasterFlag, agent_id};

#[derive(Debug, Args)]
pub(crate) struct ReserveOptions {
    /// The agent's id, or its host name if no other agent has it (see `meseta agents`).
    agent: String,
    /// The role that may use it; `eng/backend` with --from=eng refines what is reserved to `eng` already.
    #[arg(long)]
    role: String,
    /// What to reserve, e.g. `cpus:8;mem:4096`.
    #[arg(long)]
    resources: String,
    /// The role that it is reserved to now, if it is.
    #[arg(long, value_name = "ROLE")]
    from: Option<String>,
    #[command(flatten)]
    reserver: ReserverFlag,
    #[command(flatten)]
    wait: WaitFlag,
    #[command(flatten)]
    master: MasterFlag,
}

#[derive(Debug, Args)]
pub(crate) struct UnreserveOptions {
    /// The agent's id, or its host name if no other agent has it (see `meseta agents`).
    agent: String,
    /// The role that it is reserved to; what was refined from another role goes back to that one.
    #[arg(long)]
    role: String,
    /// What to give back, e.g. `cpus:8;mem:4096`: a part is enough.
    #[arg(long)]
    resources: String,
    #[command(flatten)]
    reserver: ReserverFlag,
    #[command(flatten)]
    wait: WaitFlag,
    #[command(flatten)]
    master: MasterFlag,
}

#[derive(Debug, Args)]
pub(super) struct ReserverFlag {
    /// Who made the reservation that is there, if several did. Default: who asks, or the only one.
    #[arg(long, value_name = "NAME")]
    reserver: Option<String>,
}

impl ReserverFlag {
    /// What is asked for, as it lies reserved to `role`.
    pub(super) fn reserved(
        &self,
        requested: &Resource,
        role: &Role,
        holder: &Holder,
        master: &MasterFlag,
    ) -> anyhow::Result<Resource> {
        let asker = master.principal();
        let reserver = self.reserver.as_deref();
        let stack = holder.reservations(requested, role, reserver, asker)?;
        // Not there, or not for our eyes: the master has the last word.
        let stack =
            stack.unwrap_or_else(|| vec![Reservation::dynamic(role.clone(), reserver.or(asker))]);
        let push = |resource: Resource, one| resource.push_reservation(one);
        Ok(stack.into_iter().try_fold(requested.clone(), push)?)
    }
}

pub(super) fn role_of(text: &str) -> anyhow::Result<Role> {
    Role::new(text).with_context(|| format!("--role={text}"))
}

fn requested(text: &str) -> anyhow::Result<Resources> {
    let parsed = convert::parse_resources(text, &Role::star())
        .with_context(|| format!("--resources={text}"))?;
    if parsed.is_empty() {
        bail!("--resources names nothing; give for example 'cpus:8;mem:4096'");
    }
    Ok(parsed)
}

pub(super) fn message(resource: &Resource) -> anyhow::Result<v1::Resource> {
    Ok(convert::to_resource(
        resource,
        convert::Format::PostRefinement,
    )?)
}

pub(crate) fn reserve(options: &ReserveOptions) -> anyhow::Result<()> {
    let master = &options.master;
    let role = role_of(&options.role)?;
    let from = options.from.as_deref().map(Role::new).transpose();
    let from = from.context("--from")?;
    let requested = requested(&options.resources)?;
    let holder = Holder::find(&master.master, &options.agent)?;
    let top = Reservation::dynamic(role.clone(), master.principal());
    let resources = requested.iter().map(|one| {
        let below = match &from {
            Some(from) => options.reserver.reserved(one, from, &holder, master)?,
            None => one.clone(),
        };
        message(&below.push_reservation(top.clone())?)
    });
    let call = call::ReserveResources {
        agent_id: agent_id(&holder.id),
        source: Vec::new(),
        resources: resources.collect::<anyhow::Result<_>>()?,
    };
    let done = format!(
        "reserved for role '{role}' on agent {}: {requested}",
        holder.id
    );
    let helps = || {
        Some(match &from {
            Some(from) => format!(
                "to role '{from}' is reserved on the agent: {}; what a task uses cannot be refined \
                 (`meseta tasks`)",
                holder.describe(from)
            ),
            None => "the agent has not that much that is neither reserved nor in use; what it has stands \
                     before 'does not contain'. See `meseta agents`, `meseta tasks`; --from=ROLE takes from \
                     what is reserved to a role above"
                .to_owned(),
        })
    };
    operations::carry_out(
        &master.master,
        Operation::Reserve(call),
        &options.wait,
        &done,
        helps,
    )
}

pub(crate) fn unreserve(options: &UnreserveOptions) -> anyhow::Result<()> {
    let master = &options.master;
    let role = role_of(&options.role)?;
    let requested = requested(&options.resources)?;
    let holder = Holder::find(&master.master, &options.agent)?;
    let resources = requested.iter().map(|one| {
        let reserved = options.reserver.reserved(one, &role, &holder, master)?;
        message(&reserved)
    });
    let call = call::UnreserveResources {
        agent_id: agent_id(&holder.id),
        resources: resources.collect::<anyhow::Result<_>>()?,
    };
    let done = format!(
        "given back by role '{role}' on agent {}: {requested}",
        holder.id
    );
    let helps = || {
        Some(format!(
            "to role '{role}' is reserved on the agent: {}; what a task uses (`meseta tasks`) or a volume \
             lies on (`meseta volumes`) cannot be unreserved before those are gone",
            holder.describe(&role)
        ))
    };
    operations::carry_out(
        &master.master,
        Operation::Unreserve(call),
        &options.wait,
        &done,
        helps,
    )
}
