//! Operations on reservations and volumes, as values.
//!
//! A parsed request of a framework or an operator ([`Operation`]), and its effect on an agent's resources
//! ([`Operation::conversions`]). Master and agent both apply an operation through this, so that their books agree.
//! Permissions are not checked here.

use crate::{
    Conversion, ConversionError, Disk, NotContained, ReservationKind, Resource, Resources, Role,
    Scalar,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// RESERVE: produces `resources`, from `source` or, without it, from the same resources with the last reservation popped.
    Reserve {
        source: Vec<Resource>,
        resources: Vec<Resource>,
    },
    /// UNRESERVE: pops the last reservation of each resource.
    Unreserve(Vec<Resource>),
    Create(Vec<Resource>),
    Destroy(Vec<Resource>),
    Grow {
        volume: Resource,
        addition: Resource,
    },
    Shrink {
        volume: Resource,
        subtract: Scalar,
    },
}

impl Operation {
    /// The name in messages and logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Reserve { .. } => "RESERVE",
            Self::Unreserve(_) => "UNRESERVE",
            Self::Create(_) => "CREATE",
            Self::Destroy(_) => "DESTROY",
            Self::Grow { .. } => "GROW_VOLUME",
            Self::Shrink { .. } => "SHRINK_VOLUME",
        }
    }

    /// The steps of the operation.
    ///
    /// # Errors
    /// When the operation is impossible on any resources.
    pub fn conversions(&self) -> Result<Vec<Conversion>, ConversionError> {
        let all = |resources: &[Resource]| resources.iter().cloned().collect::<Resources>();
        match self {
            Self::Reserve { source, resources } if source.is_empty() => {
                Ok(vec![Conversion::reserve(&all(resources))?])
            }
            Self::Reserve { source, resources } => {
                Ok(vec![Conversion::rereserve(&all(source), &all(resources))?])
            }
            Self::Unreserve(resources) => resources
                .iter()
                .map(|resource| Conversion::unreserve(&resource.clone().into()))
                .collect(),
            Self::Create(volumes) => volumes.iter().map(Conversion::create).collect(),
            Self::Destroy(volumes) => volumes.iter().map(Conversion::destroy).collect(),
            Self::Grow { volume, addition } => Ok(vec![Conversion::grow(volume, addition)?]),
            Self::Shrink { volume, subtract } => Ok(vec![Conversion::shrink(volume, *subtract)?]),
        }
    }

    /// Applies all steps to `resources`.
    ///
    /// # Errors
    /// When a step is impossible; nothing is changed then.
    pub fn apply(&self, resources: &Resources) -> Result<Resources, ConversionError> {
        let conversions = self.conversions()?;
        apply_all(&conversions, resources)
    }

    /// A copy of the operation with `change` applied to each named resource.
    #[must_use]
    pub fn map(&self, change: impl Fn(&Resource) -> Resource) -> Self {
        let all = |resources: &[Resource]| resources.iter().map(&change).collect();
        match self {
            Self::Reserve { source, resources } => Self::Reserve {
                source: all(source),
                resources: all(resources),
            },
            Self::Unreserve(resources) => Self::Unreserve(all(resources)),
            Self::Create(volumes) => Self::Create(all(volumes)),
            Self::Destroy(volumes) => Self::Destroy(all(volumes)),
            Self::Grow { volume, addition } => Self::Grow {
                volume: change(volume),
                addition: change(addition),
            },
            Self::Shrink { volume, subtract } => Self::Shrink {
                volume: change(volume),
                subtract: *subtract,
            },
        }
    }

    /// A copy of the operation on unallocated resources.
    #[must_use]
    pub fn unallocate(&self) -> Self {
        self.map(|resource| resource.clone().with_allocation(None))
    }

    /// A copy of the operation with `role` as the allocation of every unallocated resource.
    #[must_use]
    pub fn allocate(&self, role: &Role) -> Self {
        self.map(|resource| match resource.allocation_role() {
            Some(_) => resource.clone(),
            None => resource.clone().with_allocation(Some(role.clone())),
        })
    }

    /// Volumes that the operation creates.
    #[must_use]
    pub fn created(&self) -> &[Resource] {
        match self {
            Self::Create(volumes) => volumes,
            _ => &[],
        }
    }

    /// Volumes that the operation destroys.
    #[must_use]
    pub fn destroyed(&self) -> &[Resource] {
        match self {
            Self::Destroy(volumes) => volumes,
            _ => &[],
        }
    }
}

/// Applies all of `conversions` to `resources`, in order.
///
/// # Errors
/// When a conversion is impossible; nothing is changed then.
pub fn apply_all(
    conversions: &[Conversion],
    resources: &Resources,
) -> Result<Resources, ConversionError> {
    let mut result = resources.clone();
    for conversion in conversions {
        conversion.apply_to(&mut result)?;
    }
    Ok(result)
}

impl Resource {
    /// Whether the agent must checkpoint this because it was made at run time: a dynamic reservation or a persistent volume.
    #[must_use]
    pub fn needs_checkpoint(&self) -> bool {
        self.is_dynamically_reserved() || self.is_persistent_volume()
    }

    /// The part of an agent's own configuration behind this resource: without volume and without dynamic reservations.
    #[must_use]
    pub fn configured(&self) -> Self {
        let mut plain = self.clone();
        while plain
            .reservation()
            .is_some_and(|top| top.kind == ReservationKind::Dynamic)
        {
            match plain.pop_reservation() {
                Ok(popped) => plain = popped,
                Err(_) => break,
            }
        }
        let Some(disk) = plain.disk() else {
            return plain;
        };
        let bare = disk.source.clone().map(|source| Disk {
            source: Some(source),
            ..Disk::default()
        });
        plain.with_disk(bare, false)
    }
}

impl Resources {
    /// The resources that the agent must checkpoint, see [`Resource::needs_checkpoint`].
    #[must_use]
    pub fn to_checkpoint(&self) -> Self {
        self.filtered(Resource::needs_checkpoint)
    }

    /// The total of an agent whose configuration gives `self` and whose checkpoint holds `checkpointed`.
    ///
    /// # Errors
    /// When the configuration lacks the resources behind the checkpointed ones.
    pub fn with_checkpointed(&self, checkpointed: &Self) -> Result<Self, NotContained> {
        let mut total = self.clone();
        for resource in checkpointed {
            total.try_sub_assign(&resource.configured().with_allocation(None).into())?;
        }
        Ok(total + checkpointed)
    }

    /// The total of an agent whose configuration gives `self` and whose checkpoint holds `checkpointed`, without checkpointed
    /// resources that the configuration lacks; and those.
    #[must_use]
    pub fn with_fitting(&self, checkpointed: &Self) -> (Self, Self) {
        let (mut plain, mut fitting, mut others) = (self.clone(), Self::new(), Self::new());
        for resource in checkpointed {
            let configured = resource.configured().with_allocation(None);
            if plain.contains_resource(&configured) {
                plain -= &configured;
                fitting += resource;
            } else {
                others += resource;
            }
        }
        (plain + &fitting, others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Persistence, Reservation, ResourceParts, Volume, VolumeMode};

    fn role(name: &str) -> Role {
        Role::new(name).unwrap()
    }

    fn all(text: &str) -> Resources {
        Resources::parse(text, &Role::star()).unwrap()
    }

    fn volume_of(disk: &Resource, id: &str) -> Resource {
        Resource::new(ResourceParts {
            name: disk.name().clone(),
            value: disk.value().clone(),
            allocation_role: None,
            reservations: disk.reservations().to_vec(),
            disk: Some(Disk {
                persistence: Some(Persistence {
                    id: id.into(),
                    principal: None,
                }),
                volume: Some(Volume {
                    container_path: "data".to_owned(),
                    host_path: None,
                    mode: VolumeMode::ReadWrite,
                }),
                source: None,
            }),
            revocable: false,
            shared: false,
            provider_id: None,
        })
        .unwrap()
    }

    #[test]
    fn checkpointed_resources_fit_the_configuration() {
        let configured = all("cpus:8;disk:100;cpus(a):2;disk(a):50");
        let dynamic = |of: &str, to: &str| {
            all(of)
                .push_reservation(&Reservation::dynamic(role(to), Some("p")))
                .unwrap()
        };
        let refined = dynamic("cpus(a):1", "a/b");
        let volume = volume_of(all("disk(a):20").iter().next().unwrap(), "v");
        let on_dynamic = volume_of(dynamic("disk:30", "x").iter().next().unwrap(), "w");
        let volumes: Resources = [volume, on_dynamic].into_iter().collect();
        let checkpointed = dynamic("cpus:3", "x") + &refined + &volumes;
        let total = configured.with_checkpointed(&checkpointed).unwrap();
        assert_eq!(total.to_checkpoint(), checkpointed);
        assert_eq!(total.quantities(), configured.quantities());
        assert_eq!(total.unreserved(), all("cpus:5;disk:70"));
        assert_eq!(
            configured.with_fitting(&checkpointed),
            (total, Resources::new())
        );
        let smaller = all("cpus:2;disk:100;cpus(a):2;disk(a):50");
        let (rest, others) = smaller.with_fitting(&checkpointed);
        assert_eq!(others, dynamic("cpus:3", "x"), "the others are there");
        assert_eq!(rest.to_checkpoint() + &others, checkpointed);
        assert_eq!(rest.quantities(), smaller.quantities());
        let error = smaller.with_checkpointed(&checkpointed).unwrap_err();
        assert_eq!(error.requested.to_string(), "cpus:3");
    }

    #[test]
    fn operation_is_applied_atomically() {
        let total = all("cpus:4;disk:100");
        let p = |text: &str| {
            all(text)
                .push_reservation(&Reservation::dynamic(role("r"), None))
                .unwrap()
        };
        let reserve = Operation::Reserve {
            source: Vec::new(),
            resources: p("cpus:1;disk:10").iter().cloned().collect(),
        };
        let reserved = reserve.apply(&total).unwrap();
        let disk = p("disk:10").iter().next().unwrap().clone();
        let twice = Operation::Create(vec![volume_of(&disk, "v"), volume_of(&disk, "w")]);
        assert!(twice.apply(&reserved).is_err());
        let create = Operation::Create(vec![volume_of(&disk, "v")]);
        let with_volume = create.apply(&reserved).unwrap();
        let destroy = Operation::Destroy(create.created().to_vec());
        let unreserve = Operation::Unreserve(p("cpus:1;disk:10").iter().cloned().collect());
        assert!(
            unreserve.apply(&with_volume).is_err(),
            "the volume is on it"
        );
        let back = destroy.apply(&with_volume).unwrap();
        assert_eq!(unreserve.apply(&back).unwrap(), total);
    }

    #[test]
    fn allocate_sets_only_missing_roles() {
        let resource = all("cpus:1").iter().next().unwrap().clone();
        let other = resource.clone().with_allocation(Some(role("b")));
        let operation = Operation::Unreserve(vec![resource, other]).allocate(&role("a"));
        let Operation::Unreserve(resources) = &operation else {
            panic!("another operation");
        };
        let roles: Vec<_> = resources
            .iter()
            .map(|resource| resource.allocation_role().map(ToString::to_string))
            .collect();
        assert_eq!(roles, [Some("a".to_owned()), Some("b".to_owned())]);
        let none = operation.unallocate();
        let Operation::Unreserve(resources) = none else {
            panic!("another operation");
        };
        assert!(resources.iter().all(|one| one.allocation_role().is_none()));
    }
}
