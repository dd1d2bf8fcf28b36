//! Errors of calls: a failed call leaves the allocator unchanged.

use meseta_resources::{AgentId, FrameworkId, Resource, ResourceName, Role, Scalar};

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("agent {0} is not known to the allocator")]
    UnknownAgent(AgentId),
    #[error("agent {0} is already known to the allocator")]
    DuplicateAgent(AgentId),
    #[error("framework {0} is not known to the allocator")]
    UnknownFramework(FrameworkId),
    #[error("framework {0} is already known to the allocator")]
    DuplicateFramework(FrameworkId),
    #[error("framework {framework} is not subscribed to role '{role}'")]
    NotSubscribed { framework: FrameworkId, role: Role },
    #[error("{0} names no role that it is allocated to")]
    NoAllocationRole(Resource),
    #[error("{0} is allocated, but the request needs an agent's total resources")]
    UnexpectedAllocation(Resource),
    #[error("framework {framework} holds no {requested} on agent {agent}")]
    NotAllocated {
        framework: FrameworkId,
        agent: AgentId,
        requested: Resource,
    },
    #[error("{requested} is not available on agent {agent}")]
    NotAvailable { agent: AgentId, requested: Resource },
    #[error("the weight of role '{role}' must be a finite number above 0, not {weight}")]
    Weight { role: Role, weight: f64 },
    #[error("role '{role}' has {depth} levels, more than the {max} that are supported")]
    RoleTooDeep {
        role: Role,
        depth: usize,
        max: usize,
    },
    #[error("quota is for scalars only, and '{0}' is not one")]
    QuotaNotScalar(ResourceName),
    #[error("quota for '{0}' must be unreserved, not revocable and not a particular disk")]
    QuotaNotPlain(ResourceName),
    #[error("quota names '{0}' more than once")]
    QuotaRepeats(ResourceName),
    #[error(
        "quota of role '{role}': the limit of {limit} {name} is below the guarantee of {guarantee}"
    )]
    LimitBelowGuarantee {
        role: Role,
        name: ResourceName,
        limit: Scalar,
        guarantee: Scalar,
    },
    #[error("the limit of {limit} {name} for role '{role}' is negative")]
    NegativeLimit {
        role: Role,
        name: ResourceName,
        limit: Scalar,
    },
    #[error(
        "{sum} {name} would be guaranteed to roles below '{role}', which is guaranteed {guarantee}: \
         guarantee '{role}' at least {sum} {name}, before those below it and for as long as they have theirs"
    )]
    QuotaBelowChildren {
        role: Role,
        name: ResourceName,
        guarantee: Scalar,
        sum: Scalar,
    },
    #[error("no maintenance is planned for agent {0}")]
    NoMaintenance(AgentId),
    #[error("the constraints of role '{role}' hold {what}")]
    Constraint { role: Role, what: &'static str },
}
