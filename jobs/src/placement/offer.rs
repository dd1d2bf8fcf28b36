//! The parts of an offer that placement uses.

use std::collections::BTreeMap;

use meseta_proto::convert;
use meseta_proto::mesos::v1 as mesos;
use meseta_resources::{AttributeValue, NotContained, Resources};

use super::{Placement, held};

/// The reason why an offer cannot be used; the framework declines it.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    #[error("offer {id} has invalid resources")]
    Resources {
        id: String,
        #[source]
        source: convert::ResourcesError,
    },
    #[error("offer {id} has invalid attributes")]
    Attributes {
        id: String,
        #[source]
        source: convert::AttributeError,
    },
}

/// An offer of one agent in one role.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Offer {
    pub id: String,
    pub agent_id: String,
    pub hostname: String,
    /// The role of the offer; empty when the master names none.
    pub role: String,
    /// The agent's attributes as text, the first of each name, with `@region` and `@zone`.
    pub attributes: BTreeMap<String, String>,
    /// Whether the agent is in another region than the master.
    pub is_remote: bool,
    /// The first port for the next task.
    pub ports_from: u16,
    /// The resources offered to any task, without allocations to roles.
    pub resources: Resources,
    /// The resources offered and held for one instance of a job, by the id of its volume.
    pub held: BTreeMap<String, Resources>,
}

impl Offer {
    /// Converts an offer of the API.
    ///
    /// # Errors
    ///
    /// When resources or attributes are invalid.
    pub fn from_message(message: &mesos::Offer) -> Result<Self, OfferError> {
        let id = &message.id.value;
        let resources = convert::resources(&message.resources).map_err(|source| {
            let id = id.clone();
            OfferError::Resources { id, source }
        })?;
        let given = convert::attributes(&message.attributes).map_err(|source| {
            let id = id.clone();
            OfferError::Attributes { id, source }
        })?;
        let mut attributes = BTreeMap::new();
        for attribute in given.iter() {
            attributes
                .entry(attribute.name().to_owned())
                .or_insert_with(|| value_text(attribute.value()));
        }
        let fault_domain = message
            .domain
            .as_ref()
            .and_then(|domain| domain.fault_domain.as_ref());
        if let Some(domain) = fault_domain {
            attributes.insert("@region".to_owned(), domain.region.name.clone());
            attributes.insert("@zone".to_owned(), domain.zone.name.clone());
        }
        let allocation = message.allocation_info.as_ref();
        Ok(Self {
            id: id.clone(),
            agent_id: message.agent_id.value.clone(),
            hostname: message.hostname.clone(),
            role: allocation
                .and_then(|info| info.role.clone())
                .unwrap_or_default(),
            attributes,
            ..Self::default()
        }
        .with_resources(resources.unallocate()))
    }

    /// Returns the same offer with these resources, which have no allocation.
    #[must_use]
    pub fn with_resources(self, resources: Resources) -> Self {
        let (resources, held) = held::divide(resources);
        Self {
            resources,
            held,
            ..self
        }
    }

    /// Takes a placement off the offer; for an instance that returns to its volume, takes all held resources.
    ///
    /// # Errors
    ///
    /// The offer does not have the resources; it stays unchanged.
    pub fn take(&mut self, placement: &Placement) -> Result<(), NotContained> {
        let taken = match placement.new_volume.is_empty() {
            true => self.resources.try_sub_assign(&placement.resources),
            false => {
                let taken = &placement.resources + &placement.new_volume;
                self.resources.try_sub_assign(&taken)
            }
        };
        if let (Ok(()), Some(returned)) = (&taken, &placement.returned) {
            self.held.remove(&returned.id);
        }
        taken
    }
}

fn value_text(value: &AttributeValue) -> String {
    match value {
        AttributeValue::Scalar(scalar) => scalar.to_string(),
        AttributeValue::Ranges(ranges) => ranges.to_string(),
        AttributeValue::Text(text) => text.clone(),
    }
}
