//! Identifiers of agents, frameworks, tasks and the rest.
//!
//! They become directory names verbatim, so each is valid by construction: not empty, at most
//! [`ID_BYTES_MAX`], not `.` or `..`, no control characters, slashes or backslashes.

use std::str::FromStr;
use std::sync::Arc;

/// The longest file name of Linux.
pub const ID_BYTES_MAX: usize = 255;
/// The limit leaves room for the suffixes of names derived from a container id.
pub const CONTAINER_ID_BYTES_MAX: usize = 242;

/// Errors of parsing an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("{what} must not be empty")]
    Empty { what: &'static str },
    #[error("{what} must not be greater than {max} characters: it has {length}")]
    TooLong {
        what: &'static str,
        length: usize,
        max: usize,
    },
    #[error("{what} '{id}' is disallowed: it would name a directory")]
    Disallowed { what: &'static str, id: String },
    #[error("{what} {id:?} contains invalid characters: {character:?} at byte {offset}")]
    InvalidCharacter {
        what: &'static str,
        id: String,
        character: char,
        offset: usize,
    },
}

fn validate(what: &'static str, id: &str, max: usize, banned: &[char]) -> Result<(), IdError> {
    if id.is_empty() {
        return Err(IdError::Empty { what });
    }
    if id.len() > max {
        return Err(IdError::TooLong {
            what,
            length: id.len(),
            max,
        });
    }
    if id == "." || id == ".." {
        return Err(IdError::Disallowed {
            what,
            id: id.into(),
        });
    }
    // Nearly all ids have only these characters, and very many ids are read when agents reregister.
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    if id.bytes().all(is_plain) && !id.contains(banned) {
        return Ok(());
    }
    let invalid =
        |c: &(usize, char)| c.1.is_control() || matches!(c.1, '/' | '\\') || banned.contains(&c.1);
    match id.char_indices().find(invalid) {
        Some((offset, character)) => Err(IdError::InvalidCharacter {
            what,
            id: id.into(),
            character,
            offset,
        }),
        None => Ok(()),
    }
}

/// The rules of identifiers, for others that become directory names.
pub(crate) fn check_directory_name(what: &'static str, name: &str) -> Result<(), IdError> {
    validate(what, name, ID_BYTES_MAX, &[])
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// # Errors
            /// When the text breaks a rule of identifiers; the error says which.
            pub fn new(id: &str) -> Result<Self, IdError> {
                validate($what, id, ID_BYTES_MAX, &[])?;
                Ok(Self(id.into()))
            }
        }

        id!(@text $name);
    };
    (@text $name:ident) => {
        impl $name {
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(id: &str) -> Result<Self, IdError> {
                Self::new(id)
            }
        }

        crate::display::text!($name);
    };
}

id!(
    /// The id of a node of the cluster.
    AgentId, "Agent ID"
);
id!(FrameworkId, "Framework ID");
id!(
    /// The framework chooses the id, unique within the framework.
    TaskId, "Task ID"
);
id!(
    /// The framework chooses the id, unique within the framework on an agent.
    ExecutorId, "Executor ID"
);
id!(
    /// An offer of one agent's resources to one framework.
    OfferId, "Offer ID"
);
id!(
    /// The framework chooses the id to receive an operation's outcome.
    OperationId, "Operation ID"
);
id!(
    /// A provider of resources on an agent besides the agent itself.
    ResourceProviderId, "Resource provider ID"
);

/// The separator between a container and its nested container, in ids and in the names of cgroups and files.
pub const NESTING: char = '+';

/// The id of a container, possibly nested: the components from the outermost one, with [`NESTING`] between.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(Arc<str>);

id!(@text ContainerId);

impl ContainerId {
    const WHAT: &'static str = "Container ID";

    /// Parses the whole id of a container.
    ///
    /// # Errors
    /// When the text breaks a rule of container ids; the error names the rule.
    pub fn new(value: &str) -> Result<Self, IdError> {
        validate(Self::WHAT, value, CONTAINER_ID_BYTES_MAX, &['.', ' '])?;
        Ok(Self(value.into()))
    }

    /// The id of a container from its outer container, if any, and its own name there.
    ///
    /// # Errors
    /// When the name, or the whole id, breaks a rule of container ids; the error names the rule.
    pub fn named(parent: Option<&Self>, value: &str) -> Result<Self, IdError> {
        validate(
            Self::WHAT,
            value,
            CONTAINER_ID_BYTES_MAX,
            &['.', ' ', NESTING],
        )?;
        match parent {
            Some(parent) => Self::new(&format!("{parent}{NESTING}{value}")),
            None => Self::new(value),
        }
    }

    /// The id of a container nested in this one.
    ///
    /// # Errors
    /// See [`ContainerId::named`].
    pub fn child(&self, value: &str) -> Result<Self, IdError> {
        Self::named(Some(self), value)
    }

    #[must_use]
    pub fn value(&self) -> &str {
        self.0.rsplit(NESTING).next().unwrap_or(&self.0)
    }

    /// All components, outermost first.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split(NESTING)
    }

    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        self.0.rfind(NESTING).map(|dot| Self(self.0[..dot].into()))
    }

    #[must_use]
    pub fn root(&self) -> Self {
        self.0
            .find(NESTING)
            .map_or_else(|| self.clone(), |dot| Self(self.0[..dot].into()))
    }
}
