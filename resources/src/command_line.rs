//! The rules for resources that an operator gives to an agent, in every format.

use crate::name::{CPUS, DISK, GPUS, MEM, PORTS};
use crate::{Resource, ResourceError, ResourceName, Resources, ValueKind};

/// Errors of resources on the command line.
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
    #[error("'{name}' must be {}, not of type {found}", right_kind(name))]
    Kind {
        name: ResourceName,
        found: ValueKind,
    },
    #[error(
        "'{name}' cannot be the name of a resource: give it letters, digits, '-', '/', '.' and '_' \
         only, without {character:?}"
    )]
    Name { name: String, character: char },
    #[error(transparent)]
    TypeConflict(#[from] TypeConflict),
    #[error(transparent)]
    Gpus(#[from] ResourceError),
}

/// The required kind of a well-known resource, with an example.
fn right_kind(name: &ResourceName) -> String {
    match well_known_kind(name) {
        Some(ValueKind::Ranges) => format!("ranges, as in {name}:[31000-32000]"),
        Some(_) | None => format!("a number, as in {name}:4"),
    }
}

/// The type of resources that schedulers and isolators know by name.
fn well_known_kind(name: &ResourceName) -> Option<ValueKind> {
    match name.as_str() {
        CPUS | MEM | DISK | GPUS => Some(ValueKind::Scalar),
        PORTS => Some(ValueKind::Ranges),
        _ => None,
    }
}

/// The list has one name with two types of value.
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
    /// Records the type of a further resource.
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
/// When there are volumes, revocable resources, dynamic reservations, fractions of gpus, one name with two types, a
/// well-known name with a wrong type, or a name with characters that the documents do not allow.
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
        check_name(resource.name())?;
        check_kind(resource)?;
        resource.check_gpus()?;
        TypeConflict::check(&mut seen, resource)?;
    }
    Ok(())
}

fn check_name(name: &ResourceName) -> Result<(), CommandLineError> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-/._".contains(c);
    match name.as_str().chars().find(|c| !is_allowed(*c)) {
        Some(character) => Err(CommandLineError::Name {
            name: name.as_str().escape_debug().to_string(),
            character,
        }),
        None => Ok(()),
    }
}

fn check_kind(resource: &Resource) -> Result<(), CommandLineError> {
    let (name, found) = (resource.name(), resource.kind());
    match well_known_kind(name) {
        Some(right) if right != found => Err(CommandLineError::Kind {
            name: name.clone(),
            found,
        }),
        Some(_) | None => Ok(()),
    }
}
