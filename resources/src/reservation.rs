//! Reservations: an entry of the stack by which a resource belongs to a role.

use std::fmt;
use std::sync::Arc;

use crate::{Labels, Role};

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ReservationKind {
    /// A reservation in the agent's own `--resources`: only at the bottom of the stack.
    Static,
    /// A reservation that is made and removed at run time.
    Dynamic,
}

impl fmt::Display for ReservationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Static => "STATIC",
            Self::Dynamic => "DYNAMIC",
        })
    }
}

/// The role, principal and labels of a reservation. Two reservations are the same only if all of them are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Reservation {
    pub kind: ReservationKind,
    pub role: Role,
    pub principal: Option<Arc<str>>,
    pub labels: Labels,
}

impl Reservation {
    #[must_use]
    pub fn fixed(role: Role) -> Self {
        Self {
            kind: ReservationKind::Static,
            role,
            principal: None,
            labels: Labels::default(),
        }
    }

    #[must_use]
    pub fn dynamic(role: Role, principal: Option<&str>) -> Self {
        Self {
            kind: ReservationKind::Dynamic,
            role,
            principal: principal.map(Into::into),
            labels: Labels::default(),
        }
    }
}

impl fmt::Display for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.kind, self.role)?;
        if let Some(principal) = &self.principal {
            write!(f, ",{principal}")?;
        }
        if !self.labels.is_empty() {
            write!(f, ",{}", self.labels)?;
        }
        Ok(())
    }
}

/// Errors of an impossible stack of reservations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReservationError {
    #[error("Invalid reservation: role \"*\" cannot be reserved")]
    Star,
    #[error(
        "Invalid refined reservation: A refined reservation cannot be STATIC; only the bottom of \
         the stack can"
    )]
    StaticRefinement,
    #[error(
        "Invalid refined reservation: role '{role}' is not a refinement of '{below}'; it must be \
         below it, as in '{below}/{role}'"
    )]
    NotRefined { role: Role, below: Role },
    #[error("{0} is not reserved, so no reservation can be taken from it")]
    NotReserved(String),
    #[error("{0} is not dynamically reserved")]
    NotDynamic(String),
}

/// Whether `top` may be pushed on a stack whose last entry is `below`.
pub(crate) fn check_push(
    below: Option<&Reservation>,
    top: &Reservation,
) -> Result<(), ReservationError> {
    if top.role.is_star() {
        return Err(ReservationError::Star);
    }
    let Some(below) = below else { return Ok(()) };
    if top.kind == ReservationKind::Static {
        return Err(ReservationError::StaticRefinement);
    }
    if !top.role.is_strict_subrole_of(&below.role) {
        return Err(ReservationError::NotRefined {
            role: top.role.clone(),
            below: below.role.clone(),
        });
    }
    Ok(())
}

pub(crate) fn check_stack(stack: &[Reservation]) -> Result<(), ReservationError> {
    let mut below = None;
    for top in stack {
        check_push(below, top)?;
        below = Some(top);
    }
    Ok(())
}
