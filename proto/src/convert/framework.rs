//! The declaration of a framework: its roles and its capabilities.

use meseta_resources::{Role, RoleError};

use crate::mesos::v1::FrameworkInfo;
use crate::mesos::v1::framework_info::capability::Type;

/// The capabilities that a framework declared; unknown ones are dropped.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct FrameworkCapabilities {
    pub revocable_resources: bool,
    pub task_killing_state: bool,
    pub gpu_resources: bool,
    pub shared_resources: bool,
    pub partition_aware: bool,
    pub multi_role: bool,
    pub reservation_refinement: bool,
    pub region_aware: bool,
}

impl FrameworkCapabilities {
    #[must_use]
    pub fn from_framework(framework: &FrameworkInfo) -> Self {
        let mut out = Self::default();
        for capability in &framework.capabilities {
            match capability.r#type() {
                Type::Unknown => {}
                Type::RevocableResources => out.revocable_resources = true,
                Type::TaskKillingState => out.task_killing_state = true,
                Type::GpuResources => out.gpu_resources = true,
                Type::SharedResources => out.shared_resources = true,
                Type::PartitionAware => out.partition_aware = true,
                Type::MultiRole => out.multi_role = true,
                Type::ReservationRefinement => out.reservation_refinement = true,
                Type::RegionAware => out.region_aware = true,
            }
        }
        out
    }
}

#[must_use]
pub fn has_capability(framework: &FrameworkInfo, kind: Type) -> bool {
    framework
        .capabilities
        .iter()
        .any(|capability| capability.r#type == Some(kind.into()))
}

/// Reasons to refuse a framework's roles.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameworkRolesError {
    #[error("'FrameworkInfo.role' must not be set when the framework is MULTI_ROLE capable")]
    RoleOfMultiRole,
    #[error("'FrameworkInfo.roles' must not be set when the framework is not MULTI_ROLE capable")]
    RolesWithoutMultiRole,
    #[error("'FrameworkInfo.roles' contains duplicate items: {{ {0} }}")]
    Duplicate(Role),
    #[error("'FrameworkInfo.roles' contains invalid role: {0}")]
    InvalidAmongRoles(RoleError),
    #[error("'FrameworkInfo.role' is not a valid role: {0}")]
    InvalidRole(RoleError),
}

/// The roles of a framework, in its own order: `roles` if it is capable of several, else `role`, which is `*` by default.
pub fn framework_roles(framework: &FrameworkInfo) -> Result<Vec<Role>, FrameworkRolesError> {
    if !has_capability(framework, Type::MultiRole) {
        if !framework.roles.is_empty() {
            return Err(FrameworkRolesError::RolesWithoutMultiRole);
        }
        let role = Role::new(framework.role.as_deref().unwrap_or("*"));
        return role
            .map(|role| vec![role])
            .map_err(FrameworkRolesError::InvalidRole);
    }
    if framework.role.is_some() {
        return Err(FrameworkRolesError::RoleOfMultiRole);
    }
    let roles: Vec<Role> = framework
        .roles
        .iter()
        .map(|role| Role::new(role))
        .collect::<Result<_, _>>()
        .map_err(FrameworkRolesError::InvalidAmongRoles)?;
    let mut seen = std::collections::BTreeSet::new();
    match roles.iter().find(|role| !seen.insert(*role)) {
        Some(twice) => Err(FrameworkRolesError::Duplicate(twice.clone())),
        None => Ok(roles),
    }
}
