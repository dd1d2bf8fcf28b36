//! Roles: the paths of teams, `eng/web/prod` below `eng/web` below `eng`.
//!
//! A [`Role`] is valid by construction. `*` is the role without an owner: offers and subscriptions may use it, reservations
//! may not.

use std::str::FromStr;
use std::sync::{Arc, LazyLock};

static STAR: LazyLock<Role> = LazyLock::new(|| Role("*".into()));

/// The longest component, which may be the name of a role's folder.
const COMPONENT_BYTES_MAX: usize = 255;

/// A valid role. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Role(Arc<str>);

/// Errors of parsing a role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    #[error("Role names cannot be the empty string")]
    Empty,
    #[error("Role '{}' cannot start with a slash", .0.escape_debug())]
    LeadingSlash(String),
    #[error("Role '{}' cannot end with a slash", .0.escape_debug())]
    TrailingSlash(String),
    #[error("Role '{}' cannot contain two adjacent slashes", .0.escape_debug())]
    AdjacentSlashes(String),
    #[error("Role '{}' cannot include '{component}' as a component", .role.escape_debug())]
    ReservedComponent {
        role: String,
        component: &'static str,
    },
    #[error("Role component '{}' is invalid because it starts with a dash", .0.escape_debug())]
    LeadingDash(String),
    #[error(
        "Role component {component:?} is invalid because it contains backspace or whitespace \
         (at byte {offset})"
    )]
    InvalidCharacter { component: String, offset: usize },
    #[error(
        "Role component {component:?} is invalid because it contains a control character \
         (at byte {offset})"
    )]
    ControlCharacter { component: String, offset: usize },
    #[error(
        "Role component '{}...' is invalid because it has {length} bytes, more than \
         {COMPONENT_BYTES_MAX}",
        .begin.escape_debug()
    )]
    TooLong { begin: String, length: usize },
}

impl Role {
    /// # Errors
    /// When the text breaks a rule of roles; the error says which.
    pub fn new(role: &str) -> Result<Self, RoleError> {
        if role == "*" {
            return Ok(Self::star());
        }
        validate(role)?;
        Ok(Self(role.into()))
    }

    /// `*`, the default role.
    #[must_use]
    pub fn star() -> Self {
        STAR.clone()
    }

    #[must_use]
    pub fn is_star(&self) -> bool {
        &*self.0 == "*"
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The role one level up; `None` for a top-level role.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        self.0.rfind('/').map(|slash| Self(self.0[..slash].into()))
    }

    /// All ancestors of the role, nearest first.
    pub fn ancestors(&self) -> impl Iterator<Item = Self> {
        std::iter::successors(self.parent(), Self::parent)
    }

    /// The components, top first.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// Whether this role is at any depth below `ancestor`. A role is not below itself.
    #[must_use]
    pub fn is_strict_subrole_of(&self, ancestor: &Self) -> bool {
        self.0
            .strip_prefix(&*ancestor.0)
            .is_some_and(|rest| rest.starts_with('/'))
    }

    /// Whether this role equals `ancestor` or is below it.
    #[must_use]
    pub fn is_in_subtree_of(&self, ancestor: &Self) -> bool {
        self == ancestor || self.is_strict_subrole_of(ancestor)
    }
}

fn validate(role: &str) -> Result<(), RoleError> {
    if role.is_empty() {
        return Err(RoleError::Empty);
    }
    if role.starts_with('/') {
        return Err(RoleError::LeadingSlash(role.into()));
    }
    if role.ends_with('/') {
        return Err(RoleError::TrailingSlash(role.into()));
    }
    if role.contains("//") {
        return Err(RoleError::AdjacentSlashes(role.into()));
    }
    for component in role.split('/') {
        if let Some(reserved) = [".", "..", "*"].into_iter().find(|name| *name == component) {
            return Err(RoleError::ReservedComponent {
                role: role.into(),
                component: reserved,
            });
        }
        if component.starts_with('-') {
            return Err(RoleError::LeadingDash(component.into()));
        }
        if component.len() > COMPONENT_BYTES_MAX {
            const SHOWN_CHARS: usize = 32;
            return Err(RoleError::TooLong {
                begin: component.chars().take(SHOWN_CHARS).collect(),
                length: component.len(),
            });
        }
        // A control character would end a folder's name or control the terminal that shows a log.
        let invalid = |(_, char): &(usize, char)| *char == ' ' || char.is_control();
        if let Some((offset, char)) = component.char_indices().find(invalid) {
            let component = component.to_owned();
            // As in Mesos: tab, line feed, vertical tab, form feed, carriage return, space, delete.
            return Err(match char {
                '\u{9}'..='\u{d}' | ' ' | '\u{7f}' => {
                    RoleError::InvalidCharacter { component, offset }
                }
                _ => RoleError::ControlCharacter { component, offset },
            });
        }
    }
    Ok(())
}

impl FromStr for Role {
    type Err = RoleError;
    fn from_str(role: &str) -> Result<Self, RoleError> {
        Self::new(role)
    }
}

impl Default for Role {
    fn default() -> Self {
        Self::star()
    }
}

crate::display::text!(Role, compared);
