//! The `meseta reserve`, `unreserve` and `reservations` verbs: resources of an agent kept for a role.

use anyhow::{Context as _, bail};
use clap::Args;
use meseta_proto::convert;
use meseta_proto::mesos::v1;
use meseta_proto::mesos::v1::master::call;
use meseta_resources::{Label, Labels, Reservation, ReservationKind, Resource, Resources, Role};
use serde_json::{Value, json};

use super::operations::{self, Operation, WaitFlag};
use super::reserved::{self, Holder, Reserver};
use super::{ListOptions, MasterFlag, agent_id, items, list_all, server, text};

#[derive(Debug, Args)]
pub(crate) struct ReserveOptions {
    /// The agent's id, or its host name if the name is unique (see `meseta agents`).
    agent: String,
    /// The role of the reservation. To refine a reservation of `eng`, use --role=eng/backend --from=eng.
    #[arg(long)]
    role: String,
    /// The resources, e.g. `cpus:8;mem:4096`.
    #[arg(long)]
    resources: String,
    /// The role that has the resources reserved now.
    #[arg(long, value_name = "ROLE")]
    from: Option<String>,
    /// A label of the reservation; may be repeated. Reservations with different labels stay separate.
    #[arg(long, value_name = "KEY[=VALUE]", value_parser = parse_label)]
    label: Vec<Label>,
    /// With --from: a label of the present reservation; may be repeated.
    #[arg(long = "from_label", value_name = "KEY[=VALUE]", value_parser = parse_label, requires = "from")]
    from_label: Vec<Label>,
    #[command(flatten)]
    reserver: ReserverFlag,
    #[command(flatten)]
    wait: WaitFlag,
    #[command(flatten)]
    master: MasterFlag,
}

#[derive(Debug, Args)]
pub(crate) struct UnreserveOptions {
    /// The agent's id, or its host name if the name is unique (see `meseta agents`).
    agent: String,
    /// The role of the reservation. To refine a reservation of `eng`, use --role=eng/backend --from=eng.
    #[arg(long)]
    role: String,
    /// The resources, e.g. `cpus:8;mem:4096`.
    #[arg(long)]
    resources: String,
    #[command(flatten)]
    labels: LabelFlag,
    #[command(flatten)]
    reserver: ReserverFlag,
    #[command(flatten)]
    wait: WaitFlag,
    #[command(flatten)]
    master: MasterFlag,
}

#[derive(Debug, Args)]
pub(super) struct ReserverFlag {
    /// The principal that made the reservation. Default: your principal, or the only one.
    #[arg(long, value_name = "NAME")]
    reserver: Option<String>,
}

/// The labels of a reservation that exists.
#[derive(Debug, Args)]
pub(super) struct LabelFlag {
    /// A label of the reservation; may be repeated. Reservations with different labels stay separate.
    #[arg(long, value_name = "KEY[=VALUE]", value_parser = parse_label)]
    pub(super) label: Vec<Label>,
}

/// Parses `KEY=VALUE`, or `KEY` for a label without a value.
fn parse_label(text: &str) -> Result<Label, String> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(value.to_owned())),
        None => (text, None),
    };
    if key.is_empty() {
        return Err("the key of a label is empty; write KEY=VALUE or KEY".to_owned());
    }
    Ok(Label {
        key: key.to_owned(),
        value,
    })
}

impl ReserverFlag {
    /// Returns the requested resource, as reserved to `role`.
    pub(super) fn reserved(
        &self,
        requested: &Resource,
        role: &Role,
        labels: &[Label],
        holder: &Holder,
        master: &MasterFlag,
    ) -> anyhow::Result<Resource> {
        let requested_by = Reserver {
            name: self.reserver.as_deref(),
            asker: master.principal(),
            labels: (!labels.is_empty()).then(|| Labels::new(labels.to_vec())),
        };
        let stack = holder.reservations(requested, role, &requested_by)?;
        // The reservation is missing or hidden from this caller: the master decides.
        let stack = stack.unwrap_or_else(|| {
            let name = requested_by.name.or(requested_by.asker);
            let mut made = Reservation::dynamic(role.clone(), name);
            made.labels = requested_by.labels.clone().unwrap_or_default();
            vec![made]
        });
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
        bail!("--resources is empty; give for example 'cpus:8;mem:4096'");
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
    let mut top = Reservation::dynamic(role.clone(), master.principal());
    top.labels = Labels::new(options.label.clone());
    let resources = requested.iter().map(|one| {
        let below = match &from {
            Some(from) => {
                let labels = &options.from_label;
                options
                    .reserver
                    .reserved(one, from, labels, &holder, master)?
            }
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
                "role '{from}' has reserved on the agent: {}; resources that a task uses cannot \
                 be refined (`meseta tasks`)",
                holder.describe(from)
            ),
            None => "the agent has too few unreserved, unused resources; their amount precedes \
                'does not contain'. See `meseta agents`, `meseta tasks`; --from=ROLE takes from \
                the reservation of a parent role"
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
        let labels = &options.labels.label;
        let reserved = options
            .reserver
            .reserved(one, &role, labels, &holder, master)?;
        message(&reserved)
    });
    let call = call::UnreserveResources {
        agent_id: agent_id(&holder.id),
        resources: resources.collect::<anyhow::Result<_>>()?,
    };
    let done = format!(
        "unreserved by role '{role}' on agent {}: {requested}",
        holder.id
    );
    let helps = || {
        Some(format!(
            "role '{role}' has reserved on the agent: {}; first end the tasks (`meseta tasks`) \
             and destroy the volumes (`meseta volumes`) that use the resources",
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

/// A reservation of an agent: all resources with the same stack of reservations.
struct Listed {
    agent: String,
    hostname: String,
    stack: Vec<Reservation>,
    resources: Vec<String>,
}

/// Prints all reservations, including those of volumes.
pub(crate) fn list(options: &ListOptions) -> anyhow::Result<()> {
    options.watch.run(|| list_once(options))
}

fn list_once(options: &ListOptions) -> anyhow::Result<()> {
    let body = server::get_json(&options.master.master, "/slaves")?;
    let mut listed = Vec::new();
    for agent in items(&body, "slaves") {
        listed.extend(listed_on(agent)?);
    }
    let all: Vec<Value> = listed.iter().map(Listed::view).collect();
    let headings = [
        "AGENT",
        "HOST",
        "ROLE",
        "RESOURCES",
        "KIND",
        "PRINCIPAL",
        "LABELS",
    ];
    let or_none = |text: String| {
        if text.is_empty() {
            "-".to_owned()
        } else {
            text
        }
    };
    list_all(options.json, &headings, &all, |one| {
        let resources = items(one, "resources").iter();
        let resources: Vec<&str> = resources.filter_map(Value::as_str).collect();
        let labels = items(one, "labels").iter();
        let labels: Vec<String> = labels.map(shown_label).collect();
        vec![
            text(one, "agent_id"),
            text(one, "hostname"),
            text(one, "role"),
            resources.join(";"),
            text(one, "kind"),
            or_none(text(one, "principal")),
            or_none(labels.join(",")),
        ]
    })
}

/// Returns a label in the form of `--label`.
fn shown_label(label: &Value) -> String {
    match label.get("value").and_then(Value::as_str) {
        Some(value) => format!("{}={value}", text(label, "key")),
        None => text(label, "key"),
    }
}

fn listed_on(agent: &Value) -> anyhow::Result<Vec<Listed>> {
    let mut listed: Vec<Listed> = Vec::new();
    for resource in reserved::reserved(agent)? {
        let persistence = resource.disk().and_then(|disk| disk.persistence.as_ref());
        let volume = persistence.map_or_else(String::new, |one| format!("(volume {})", one.id));
        let amount = format!("{}:{}{volume}", resource.name(), resource.value());
        let known = listed
            .iter_mut()
            .find(|one| one.stack == resource.reservations());
        match known {
            Some(known) => known.resources.push(amount),
            None => listed.push(Listed {
                agent: text(agent, "id"),
                hostname: text(agent, "hostname"),
                stack: resource.reservations().to_vec(),
                resources: vec![amount],
            }),
        }
    }
    Ok(listed)
}

impl Listed {
    fn view(&self) -> Value {
        let top = self.stack.last();
        let kind = match top.map(|top| top.kind) {
            Some(ReservationKind::Static) => "static",
            Some(ReservationKind::Dynamic) | None => "dynamic",
        };
        let labels = top.into_iter().flat_map(|top| &top.labels);
        let label = |label: &Label| match &label.value {
            Some(value) => json!({"key": label.key, "value": value}),
            None => json!({"key": label.key}),
        };
        json!({
            "agent_id": self.agent,
            "hostname": self.hostname,
            "role": top.map(|top| top.role.to_string()).unwrap_or_default(),
            "resources": self.resources,
            "kind": kind,
            "principal": top.and_then(|top| top.principal.as_deref()).unwrap_or_default(),
            "labels": labels.map(label).collect::<Value>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_parse_with_or_without_value() {
        let read = |text: &str| parse_label(text).map(|label| (label.key, label.value));
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(read("a=b=c"), Ok(("a".to_owned(), some("b=c"))));
        assert_eq!(read("a="), Ok(("a".to_owned(), some(""))));
        assert_eq!(read("a"), Ok(("a".to_owned(), None)));
        assert!(read("=b").is_err() && read("").is_err());
    }

    #[test]
    fn reservations_are_listed_apart_by_labels() {
        let cpus = |amount: f64, labels: Value| {
            json!({"name": "cpus", "type": "SCALAR", "scalar": {"value": amount}, "role": "eng",
                   "reservations": [{"type": "DYNAMIC", "role": "eng", "principal": "ops", "labels": labels}]})
        };
        let labels = json!({"labels": [{"key": "team", "value": "a"}]});
        let mut plain = cpus(1.0, Value::Null);
        plain["reservations"][0]
            .as_object_mut()
            .expect("a map")
            .remove("labels");
        let agent = json!({"id": "S0", "hostname": "n", "reserved_resources_full": {
            "eng": [plain, cpus(2.0, labels)]}});
        let listed = listed_on(&agent).expect("understood");
        let views: Vec<Value> = listed.iter().map(Listed::view).collect();
        assert_eq!(views.len(), 2);
        assert_eq!(views[0]["labels"], json!([]));
        assert_eq!(views[1]["resources"], json!(["cpus:2"]));
        assert_eq!(shown_label(&views[1]["labels"][0]), "team=a");
    }
}
