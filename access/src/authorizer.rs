//! Authorization by Mesos's rules: the first ACL entry that matches decides.

use std::sync::Arc;

use crate::acl::{Acl, Acls, Entity};
use crate::action::{Action, Objects};

/// The rules of one daemon. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Authorizer {
    rules: Option<Arc<Rules>>,
    version: u64,
}

#[derive(Debug)]
struct Rules {
    acls: Acls,
    permissive: bool,
}

impl Default for Authorizer {
    fn default() -> Self {
        Self::everything()
    }
}

/// The action that was denied, with its principal and object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forbidden {
    action: Action,
    principal: Option<String>,
    object: Option<String>,
}

impl Forbidden {
    /// A copy of this refusal without the object, for a caller that may not know of the object.
    #[must_use]
    pub fn without_object(self) -> Self {
        Self {
            object: None,
            ..self
        }
    }
}

impl std::fmt::Display for Forbidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let action = self.action.key();
        f.write_str("403 Forbidden. ")?;
        match &self.principal {
            Some(principal) => write!(f, "Principal '{}'", principal.escape_debug())?,
            None => f.write_str("A caller without a principal")?,
        }
        write!(f, " is not authorized for '{action}'")?;
        match &self.object {
            Some(object) => {
                let kind = self.action.object_key();
                write!(f, " with {kind} '{}'", object.escape_debug())
            }
            None => Ok(()),
        }
    }
}

impl Authorizer {
    /// An authorizer that allows everything to every principal.
    #[must_use]
    pub const fn everything() -> Self {
        Self {
            rules: None,
            version: 0,
        }
    }

    /// An authorizer with `acls`; `permissive` decides where they have neither a matching entry nor a default.
    #[must_use]
    pub fn new(acls: Acls, permissive: bool) -> Self {
        let permissive = acls.permissive.unwrap_or(permissive);
        Self {
            rules: Some(Arc::new(Rules { acls, permissive })),
            version: 0,
        }
    }

    /// A copy of these rules with a version number that distinguishes them from earlier rules of the daemon.
    #[must_use]
    pub fn of_version(self, version: u64) -> Self {
        Self { version, ..self }
    }

    /// Whether the rules forbid nothing at all.
    #[must_use]
    pub const fn allows_everything(&self) -> bool {
        self.rules.is_none()
    }

    /// The decision on an action. `principal` is `None` for an unauthenticated client; `object` is `None` for all objects.
    #[must_use]
    pub fn allows(&self, principal: Option<&str>, action: Action, object: Option<&str>) -> bool {
        let Some(rules) = &self.rules else {
            return true;
        };
        let object = match action.objects() {
            Objects::Whole => None,
            Objects::Exact | Objects::Roles | Objects::Paths => object,
        };
        let is_of_roles = action.objects() == Objects::Roles;
        for acl in rules.acls.for_action(action) {
            if let Some(decision) = evaluate(acl, principal, object, is_of_roles) {
                return decision;
            }
        }
        rules.permissive
    }

    /// Checks like [`Self::allows`], but returns the denied action as an error.
    pub fn check(
        &self,
        principal: Option<&str>,
        action: Action,
        object: Option<&str>,
    ) -> Result<(), Forbidden> {
        if self.allows(principal, action, object) {
            return Ok(());
        }
        Err(Forbidden {
            action,
            principal: principal.map(str::to_owned),
            object: object.map(str::to_owned),
        })
    }

    /// Whether the action is allowed on every object, regardless of its name. May return false where only several entries
    /// together cover all objects.
    #[must_use]
    pub fn allows_all(&self, principal: Option<&str>, action: Action) -> bool {
        let Some(rules) = &self.rules else {
            return true;
        };
        if action.objects() == Objects::Whole {
            return self.allows(principal, action, None);
        }
        let entries = rules.acls.for_action(action).iter();
        for acl in entries.filter(|acl| matches(principal, &acl.principals)) {
            match (allowed(principal, &acl.principals), &acl.objects) {
                (false, _) | (true, Entity::None) => return false,
                (true, Entity::Any) => return true,
                // Later entries decide on the other objects.
                (true, Entity::Some(_)) => {}
            }
        }
        rules.permissive
    }

    /// The objects on which a principal may act: those that the rules name, at most `named_max`, and the decision for all others.
    #[must_use]
    pub fn extent(&self, principal: Option<&str>, action: Action, named_max: usize) -> Extent {
        let entries = self
            .rules
            .iter()
            .flat_map(|rules| rules.acls.for_action(action))
            .filter(|acl| allowed(principal, &acl.principals));
        let values = entries.flat_map(|acl| match &acl.objects {
            Entity::Some(values) => values.as_slice(),
            Entity::Any | Entity::None => &[],
        });
        let mut named = Vec::new();
        // `a/%` is checked literally: no entry names a role of that name, and all entries of `a/%` match it below `a`.
        for value in values {
            if named.len() < named_max
                && !named.contains(value)
                && self.allows(principal, action, Some(value))
            {
                named.push(value.clone());
            }
        }
        Extent {
            unnamed: self.allows(principal, action, None),
            named,
        }
    }

    /// The rules from the view of one caller.
    #[must_use]
    pub fn approver(&self, principal: Option<String>) -> Approver {
        Approver {
            authorizer: self.clone(),
            principal,
        }
    }
}

/// The objects on which one principal may act in one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The decision on objects that no entry names.
    pub unnamed: bool,
    /// The objects, as entries name them, on which the action is allowed; `a/%` means all roles below `a`.
    pub named: Vec<String>,
}

/// The rights of one caller. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Approver {
    authorizer: Authorizer,
    principal: Option<String>,
}

impl Approver {
    /// A copy of these rules, for a principal on whose behalf this caller acts.
    #[must_use]
    pub fn on_behalf_of(&self, principal: Option<String>) -> Self {
        self.authorizer.approver(principal)
    }

    #[must_use]
    pub fn principal(&self) -> Option<&str> {
        self.principal.as_deref()
    }

    /// Whether the rules forbid nothing at all.
    #[must_use]
    pub const fn allows_everything(&self) -> bool {
        self.authorizer.allows_everything()
    }

    /// The version of the rules, which changes with them.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.authorizer.version
    }

    #[must_use]
    pub fn allows(&self, action: Action, object: Option<&str>) -> bool {
        self.authorizer
            .allows(self.principal.as_deref(), action, object)
    }

    /// Whether the action is allowed on every object; see [`Authorizer::allows_all`].
    #[must_use]
    pub fn allows_all(&self, action: Action) -> bool {
        self.authorizer
            .allows_all(self.principal.as_deref(), action)
    }

    /// The objects on which the action is allowed; see [`Authorizer::extent`].
    #[must_use]
    pub fn extent(&self, action: Action, named_max: usize) -> Extent {
        self.authorizer
            .extent(self.principal.as_deref(), action, named_max)
    }

    pub fn check(&self, action: Action, object: Option<&str>) -> Result<(), Forbidden> {
        self.authorizer
            .check(self.principal.as_deref(), action, object)
    }
}

/// The decision of an entry, if it matches.
fn evaluate(
    acl: &Acl,
    principal: Option<&str>,
    object: Option<&str>,
    is_of_roles: bool,
) -> Option<bool> {
    if let Some(subtree) = acl.objects.subtree().filter(|_| is_of_roles) {
        let is_below = object.is_some_and(|role| role.starts_with(subtree));
        return (is_below && matches(principal, &acl.principals))
            .then(|| allowed(principal, &acl.principals));
    }
    (matches(principal, &acl.principals) && matches(object, &acl.objects))
        .then(|| allowed(principal, &acl.principals) && allowed(object, &acl.objects))
}

fn matches(requested: Option<&str>, entity: &Entity) -> bool {
    match (requested, entity) {
        (_, Entity::Any | Entity::None) => true,
        (Some(requested), Entity::Some(values)) => values.iter().any(|value| value == requested),
        (None, Entity::Some(_)) => false,
    }
}

fn allowed(requested: Option<&str>, entity: &Entity) -> bool {
    match entity {
        Entity::Any => true,
        Entity::None => false,
        Entity::Some(_) => matches(requested, entity),
    }
}

#[cfg(test)]
mod tests;
