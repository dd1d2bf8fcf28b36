//! The rules for resources that an operator gives to an agent, in whatever format.

use crate::{Resource, ResourceError, ResourceName, Resources, ValueKind};

/// Why resources cannot be given on the command line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandLineError {
    #[error("Persistent volumes cannot be specified at the command line: {0}")]
    PersistentVolume(Resource),
    #[error(
        "Revocable resources cannot be specified at the command line; do not include a 'revocable' \
         key in the resources JSON: {0}"
    )]
    Revocable(Resource),
    #[error(
        "Dynamic reservations cannot be specified at the command line; do not include a \
         reservation with DYNAMIC type in the resources JSON: {0}"
    )]
    DynamicReservation(Resource),
    #[error(transparent)]
    TypeConflict(#[from] TypeConflict),
    #[error(transparent)]
    Gpus(#[from] ResourceError),
}

/// One name, two types of value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "Resources with the same name ('{name}') but different types are not allowed: {first} and \
     {second}"
)]
pub struct TypeConflict {
    pub name: ResourceName,
    pub first: ValueKind,
    pub second: ValueKind,
}

impl TypeConflict {
    /// Notes the type of one more resource.
    pub(crate) fn check(
        seen: &mut Vec<(ResourceName, ValueKind)>,
        resource: &Resource,
    ) -> Result<(), Self> {
        let (name, second) = (resource.name(), resource.kind());
        match seen.iter().find(|(known, _)| known == name) {
            Some((_, first)) if *first != second => Err(Self {
                name: name.clone(),
                first: *first,
                second,
            }),
            Some(_) => Ok(()),
            None => {
                seen.push((name.clone(), second));
                Ok(())
            }
        }
    }
}

/// # Errors
/// When there are volumes, revocable resources, dynamic reservations, fractions of gpus, or one name
/// with two types.
pub fn validate_command_line_resources(resources: &Resources) -> Result<(), CommandLineError> {
    let mut seen = Vec::new();
    for resource in resources {
        if resource.is_persistent_volume() {
            return Err(CommandLineError::PersistentVolume(resource.clone()));
        }
        if resource.is_revocable() {
            return Err(CommandLineError::Revocable(resource.clone()));
        }
        if resource.is_dynamically_reserved() {
            return Err(CommandLineError::DynamicReservation(resource.clone()));
        }
        resource.check_gpus()?;
        TypeConflict::check(&mut seen, resource)?;
    }
    Ok(())
}
