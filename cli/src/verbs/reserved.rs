//! The reservations of an agent and their owners, from the master, so that users need not type known facts.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use meseta_proto::convert;
use meseta_proto::mesos::v1;
use meseta_resources::{Labels, Reservation, ReservationKind, Resource, Role};
use serde_json::Value;

use super::{agents, items, server, text};
use crate::terminal;

/// The principal and the labels of the reservation that the operator means.
#[derive(Debug, Default)]
pub(super) struct Reserver<'a> {
    /// The principal that the operator specified.
    pub(super) name: Option<&'a str>,
    /// The principal that sends the request.
    pub(super) asker: Option<&'a str>,
    /// The labels that the operator specified: exactly these.
    pub(super) labels: Option<Labels>,
}

/// An agent, as `/slaves` shows it.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) id: String,
    reserved: Vec<Resource>,
}

impl Holder {
    /// Finds the agent with this id, or with this host name if no other agent has it.
    pub(super) fn find(master: &str, requested: &str) -> anyhow::Result<Self> {
        Self::among(&server::get_json(master, "/slaves")?, requested)
    }

    fn among(listed: &Value, requested: &str) -> anyhow::Result<Self> {
        if let Some(absence) = agents::absence(listed, requested) {
            bail!(
                "agent {requested} is {absence}: its reservations change only while it is registered"
            );
        }
        let here = items(listed, "slaves");
        let id = agents::find(here.iter(), requested)?.with_context(|| {
            format!("agent {requested:?} does not exist; `meseta agents` lists the agents")
        })?;
        let agent = here.iter().find(|agent| text(agent, "id") == id);
        let reserved = agent.map(reserved).transpose()?.unwrap_or_default();
        Ok(Self { id, reserved })
    }

    /// Returns the resources reserved to the role that are no volumes.
    fn reserved_for<'a>(&'a self, role: &'a Role) -> impl Iterator<Item = &'a Resource> {
        self.reserved
            .iter()
            .filter(move |one| !one.is_persistent_volume() && one.is_reserved_to(role))
    }

    /// Returns the reservations for `requested` with `role`: those of the named principal, else those of the user if there
    /// are any, else the only ones. Labels distinguish reservations of the same principal: the named labels, else a
    /// reservation without labels if there is one. Returns `None` if there are no reservations.
    pub(super) fn reservations(
        &self,
        requested: &Resource,
        role: &Role,
        reserver: &Reserver<'_>,
    ) -> anyhow::Result<Option<Vec<Reservation>>> {
        let all = self
            .reserved_for(role)
            .filter(|one| one.name() == requested.name());
        let mut stacks: Vec<&[Reservation]> = Vec::new();
        for stack in all.map(Resource::reservations) {
            if !stacks.contains(&stack) {
                stacks.push(stack);
            }
        }
        let has_labels = |stack: &&[Reservation], labels: &Labels| {
            stack.last().is_some_and(|top| top.labels == *labels)
        };
        if let Some(labels) = &reserver.labels {
            stacks.retain(|stack| has_labels(stack, labels));
        }
        let by = |stack: &&[Reservation], name: &str| {
            let top = stack.last().and_then(|top| top.principal.as_deref());
            top == Some(name)
        };
        // A user without a principal owns the dynamic reservations without a principal.
        let is_own = |stack: &&[Reservation]| {
            let made = stack
                .last()
                .filter(|top| top.kind == ReservationKind::Dynamic);
            made.is_some_and(|top| top.principal.as_deref() == reserver.asker)
        };
        if let Some(name) = reserver.name {
            stacks.retain(|stack| by(stack, name));
        } else if stacks.iter().any(is_own) {
            stacks.retain(is_own);
        }
        let unlabelled = Labels::default();
        let is_one_principals = stacks.windows(2).all(|two| match two {
            [one, other] => {
                let principal =
                    |stack: &[Reservation]| stack.last().map(|top| top.principal.clone());
                principal(one) == principal(other)
            }
            _ => true,
        });
        if is_one_principals && stacks.iter().any(|stack| has_labels(stack, &unlabelled)) {
            stacks.retain(|stack| has_labels(stack, &unlabelled));
        }
        match stacks.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.to_vec())),
            _ => bail!(
                "{} of role '{role}' is reserved more than once on agent {}, {}: choose one with \
                 --reserver=NAME, --label=KEY=VALUE or both",
                requested.name(),
                self.id,
                self.describe(role)
            ),
        }
    }

    /// Returns the role's volume of this id, or that of any role if none is given.
    pub(super) fn volume(&self, id: &str, role: Option<&Role>) -> anyhow::Result<&Resource> {
        let is_meant = |one: &&Resource| {
            let persistence = one.disk().and_then(|disk| disk.persistence.as_ref());
            persistence.is_some_and(|found| found.id.as_ref() == id)
                && role.is_none_or(|role| one.is_reserved_to(role))
        };
        let mut found = self.reserved.iter().filter(is_meant);
        match (found.next(), found.next()) {
            (Some(volume), None) => Ok(volume),
            (Some(_), Some(_)) => {
                bail!(
                    "several roles have a volume {id:?} on agent {}: give --role",
                    self.id
                )
            }
            (None, _) => bail!(
                "volume {id:?} does not exist on agent {}; `meseta volumes` lists the volumes",
                self.id
            ),
        }
    }

    /// Returns the role's reservations on the agent, in words.
    pub(super) fn describe(&self, role: &Role) -> String {
        let parts = self.reserved_for(role).map(|one| {
            let reserver = one
                .reservation()
                .and_then(|top| top.principal.clone())
                .unwrap_or_else(|| Arc::from("an unnamed principal"));
            let labels = one.reservation().map(|top| &top.labels);
            let labels = labels.filter(|labels| !labels.is_empty());
            let labels = labels.map_or_else(String::new, |labels| format!(" with labels {labels}"));
            let reserved = format!("{}:{} by {reserver}{labels}", one.name(), one.value());
            terminal::one_line(&reserved).into_owned()
        });
        let parts: Vec<String> = parts.collect();
        if parts.is_empty() {
            "nothing that can be unreserved".to_owned()
        } else {
            parts.join(", ")
        }
    }
}

/// Returns every reserved resource of an agent, each in the format with the whole stack.
pub(super) fn reserved(agent: &Value) -> anyhow::Result<Vec<Resource>> {
    let full = agent.get("reserved_resources_full");
    let roles = full.and_then(Value::as_object).into_iter().flatten();
    let all = roles.flat_map(|(_, resources)| resources.as_array().into_iter().flatten());
    let mut reserved = Vec::new();
    for resource in all {
        let mut message: v1::Resource = serde_json::from_value(resource.clone())
            .context("the master sent an invalid reservation")?;
        if !message.reservations.is_empty() {
            message.role = None;
            message.reservation = None;
        }
        reserved.push(convert::resource(&message)?);
    }
    Ok(reserved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn holder() -> Holder {
        let cpus = |amount: f64, principal: &str, role: &str| {
            json!({"name": "cpus", "type": "SCALAR", "scalar": {"value": amount}, "role": role,
                   "reservation": {"principal": principal},
                   "reservations": [{"type": "DYNAMIC", "role": role, "principal": principal}]})
        };
        let volume = json!({"name": "disk", "type": "SCALAR", "scalar": {"value": 64.0},
            "reservations": [{"type": "DYNAMIC", "role": "eng", "principal": "ops"}],
            "disk": {"persistence": {"id": "v1"}, "volume": {"mode": "RW", "container_path": "data"}}});
        let agent = json!({"id": "S0", "reserved_resources_full": {
            "eng": [cpus(1.0, "ann", "eng"), cpus(2.0, "ops", "eng"), volume],
            "ads": [cpus(0.5, "ops", "ads")]}});
        Holder {
            id: "S0".to_owned(),
            reserved: reserved(&agent).expect("understood"),
        }
    }

    fn principal(found: anyhow::Result<Option<Vec<Reservation>>>) -> Option<String> {
        let stack = found.expect("one")?;
        stack
            .last()
            .and_then(|top| Some(top.principal.as_ref()?.to_string()))
    }

    /// Regression: `volumes destroy m1-S1` destroyed the volume of m1-S10 while m1-S1 was away.
    #[test]
    fn absent_agent_never_matches_another() {
        let agent = |id: &str, hostname: &str| json!({"id": id, "hostname": hostname});
        let listed = json!({
            "slaves": [agent("m1-S10", "m1-S2")],
            "unreachable_slaves": [agent("m1-S1", "a")],
            "gone_slaves": [agent("m1-S2", "")],
        });
        let found = |query| Holder::among(&listed, query).map(|holder| holder.id);
        assert_eq!(found("S10").expect("here"), "m1-S10");
        for (query, expected) in [
            ("m1-S1", "agent m1-S1 is unreachable"),
            ("m1-S2", "agent m1-S2 is gone"),
            ("S1", "agent \"S1\" does not exist"),
        ] {
            let said = found(query).expect_err(query).to_string();
            assert!(said.starts_with(expected), "{said}");
        }
    }

    /// The cluster has no authentication, and the role also has a static reservation.
    #[test]
    fn nameless_user_owns_nameless_reservations() {
        let cpus = |kind: &str| {
            json!({"name": "cpus", "type": "SCALAR", "scalar": {"value": 1.0},
                   "reservations": [{"type": kind, "role": "eng"}]})
        };
        let agent = json!({"reserved_resources_full": {"eng": [cpus("STATIC"), cpus("DYNAMIC")]}});
        let holder = Holder {
            id: "S0".to_owned(),
            reserved: reserved(&agent).expect("understood"),
        };
        let role = Role::new("eng").expect("a role");
        let requested = Resource::cpus(meseta_resources::Scalar::from_units(1));
        let found = holder.reservations(&requested, &role, &Reserver::default());
        let stack = found.expect("one is meant").expect("one");
        assert_eq!(stack[0].kind, ReservationKind::Dynamic);
        assert!(
            holder
                .reservations(
                    &requested,
                    &role,
                    &Reserver {
                        asker: Some("ann"),
                        ..Reserver::default()
                    }
                )
                .is_err()
        );
    }

    #[test]
    fn requested_reservation_is_found() {
        let holder = holder();
        let (eng, ads) = (
            Role::new("eng").expect("a role"),
            Role::new("ads").expect("a role"),
        );
        let requested = Resource::cpus(meseta_resources::Scalar::from_units(1));
        let find = |role, name, asker| {
            let labels = None;
            let reserver = Reserver {
                name,
                asker,
                labels,
            };
            holder.reservations(&requested, role, &reserver)
        };
        assert_eq!(principal(find(&ads, None, None)).as_deref(), Some("ops"));
        assert_eq!(
            principal(find(&ads, None, Some("ann"))).as_deref(),
            Some("ops")
        );
        assert_eq!(
            principal(find(&eng, None, Some("ann"))).as_deref(),
            Some("ann")
        );
        assert_eq!(
            principal(find(&eng, Some("ops"), Some("ann"))).as_deref(),
            Some("ops")
        );
        assert_eq!(principal(find(&eng, Some("bob"), None)), None);
        let unsure = find(&eng, None, None).expect_err("two").to_string();
        assert!(unsure.contains("cpus:1 by ann, cpus:2 by ops"), "{unsure}");
        assert!(holder.volume("v1", None).is_ok() && holder.volume("v1", Some(&eng)).is_ok());
        assert!(holder.volume("v1", Some(&ads)).is_err());
    }

    /// Regression: `unreserve` chose the labelled or the plain reservation by chance, and failed for ever.
    #[test]
    fn plain_and_labelled_reservations_stay_apart() {
        let cpus = |label: Option<&str>| {
            let mut reservation = json!({"type": "DYNAMIC", "role": "eng", "principal": "ops"});
            if let Some(value) = label {
                reservation["labels"] = json!({"labels": [{"key": "team", "value": value}]});
            }
            json!({"name": "cpus", "type": "SCALAR", "scalar": {"value": 1.0}, "reservations": [reservation]})
        };
        let holder = |all: &[Option<&str>]| Holder {
            id: "S0".to_owned(),
            reserved: reserved(&json!({"reserved_resources_full": {
                "eng": all.iter().map(|one| cpus(*one)).collect::<Value>()}}))
            .expect("understood"),
        };
        let role = Role::new("eng").expect("a role");
        let requested = Resource::cpus(meseta_resources::Scalar::from_units(1));
        let label = |value: &str| {
            Labels::new(vec![meseta_resources::Label {
                key: "team".to_owned(),
                value: Some(value.to_owned()),
            }])
        };
        let find = |all: &[Option<&str>], labels: Option<Labels>| {
            let reserver = Reserver {
                asker: Some("ops"),
                labels,
                ..Reserver::default()
            };
            let found = holder(all).reservations(&requested, &role, &reserver)?;
            let top = found.and_then(|stack| stack.last().cloned());
            anyhow::Ok(top.map(|top| top.labels))
        };
        let both = [None, Some("a")];
        assert_eq!(find(&both, None).expect("one"), Some(Labels::default()));
        assert_eq!(
            find(&both, Some(label("a"))).expect("one"),
            Some(label("a"))
        );
        assert_eq!(find(&both, Some(label("b"))).expect("none"), None);
        assert_eq!(find(&[Some("a")], None).expect("one"), Some(label("a")));
        let unsure = find(&[Some("a"), Some("b")], None).expect_err("two");
        assert!(unsure.to_string().contains("--label"), "{unsure}");
    }
}
