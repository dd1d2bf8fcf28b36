//! `--granted_capabilities`: the users and roles that may have capabilities with effects outside the container.
//!
//! The agent reads the flag once, at the start. A grant allows a task to request a capability; no task gets a
//! capability without requesting it. Invariant: the grants are within the bounding capabilities of all containers.

use meseta_isolators::CapabilitySet;
use meseta_proto::{Invalid, invalid};
use meseta_resources::Role;
use serde::Deserialize;

/// The end of a pattern that matches every role below.
const BELOW: &str = "/%";

/// The grants, in the order given.
#[derive(Clone, Debug, Default)]
pub(crate) struct CapabilityGrants(Vec<Grant>);

#[derive(Clone, Debug)]
struct Grant {
    users: Vec<String>,
    roles: Vec<String>,
    capabilities: CapabilitySet,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    grants: Vec<GivenGrant>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenGrant {
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    roles: Vec<String>,
    capabilities: Vec<String>,
}

impl CapabilityGrants {
    /// Reads the flag's value. `bounding` is the largest set that any container may have.
    pub(crate) fn parse(text: &str, bounding: CapabilitySet) -> Result<Self, Invalid> {
        let given: Given = serde_json::from_str(text).map_err(Invalid::from_error)?;
        let grants = given.grants.into_iter().enumerate();
        let grants = grants.map(|(index, grant)| {
            Grant::new(grant, bounding).map_err(|why| invalid!("grant {}: {why}", index + 1))
        });
        grants.collect::<Result<_, _>>().map(Self)
    }

    /// The capabilities that a container of this user, with resources allocated to this role, may request.
    pub(crate) fn granted_to(&self, user: &str, role: Option<&Role>) -> CapabilitySet {
        let granted = self.0.iter().filter(|grant| grant.covers(user, role));
        granted.fold(CapabilitySet::EMPTY, |all, grant| {
            all.union(grant.capabilities)
        })
    }
}

impl Grant {
    fn new(given: GivenGrant, bounding: CapabilitySet) -> Result<Self, Invalid> {
        if given.users.is_empty() && given.roles.is_empty() {
            return Err("give 'users', 'roles' or both".into());
        }
        if given.users.iter().any(String::is_empty) {
            return Err("a user has no name".into());
        }
        for role in &given.roles {
            let name = role.strip_suffix(BELOW).unwrap_or(role);
            Role::new(name).map_err(|error| format!("role {role:?}: {error}"))?;
        }
        let names = given.capabilities.iter().map(String::as_str);
        let capabilities = CapabilitySet::from_names(names).map_err(Invalid::from_error)?;
        if capabilities.is_empty() {
            return Err("'capabilities' names none".into());
        }
        let more = capabilities.without(bounding);
        if !more.is_empty() {
            return Err(format!(
                "{more} is not among the bounding capabilities {bounding}: add it to \
                 --bounding_capabilities"
            )
            .into());
        }
        Ok(Self {
            users: given.users,
            roles: given.roles,
            capabilities,
        })
    }

    /// Whether the grant covers this user and role. An unset user or role in the grant matches everyone.
    fn covers(&self, user: &str, role: Option<&Role>) -> bool {
        let is_user = self.users.is_empty() || self.users.iter().any(|one| one == user);
        let is_role = |pattern: &String| {
            role.is_some_and(|role| match pattern.strip_suffix(BELOW) {
                Some(above) => {
                    let rest = role.as_str().strip_prefix(above);
                    rest.is_some_and(|rest| rest.starts_with('/'))
                }
                None => role.as_str() == pattern,
            })
        };
        is_user && (self.roles.is_empty() || self.roles.iter().any(is_role))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> CapabilitySet {
        CapabilitySet::from_names(names.iter().copied()).expect("known")
    }

    #[test]
    fn grant_covers_only_its_users_roles() {
        let text = r#"{"grants": [
            {"users": ["www"], "capabilities": ["SETUID"]},
            {"roles": ["ads", "ops/%"], "capabilities": ["CAP_KILL"]},
            {"users": ["www"], "roles": ["ads"], "capabilities": ["CHOWN"]}
        ]}"#;
        let grants = CapabilityGrants::parse(text, CapabilitySet::standard()).expect("sound");
        let of = |user, role: &str| {
            let role = Role::new(role).expect("valid");
            grants.granted_to(user, Some(&role))
        };
        assert_eq!(of("www", "dev"), set(&["SETUID"]));
        assert_eq!(of("www", "ads"), set(&["SETUID", "KILL", "CHOWN"]));
        assert_eq!(of("nobody", "ads"), set(&["KILL"]));
        assert_eq!(of("nobody", "ops/night"), set(&["KILL"]));
        for (user, role) in [("nobody", "ops"), ("nobody", "opsx"), ("ww", "dev")] {
            assert_eq!(of(user, role), CapabilitySet::EMPTY, "{user} {role}");
        }
        assert_eq!(grants.granted_to("www", None), set(&["SETUID"]));
        let none = CapabilityGrants::default();
        assert_eq!(none.granted_to("www", None), CapabilitySet::EMPTY);
    }

    #[test]
    fn invalid_grants_are_refused() {
        for (text, complaint) in [
            ("{", "EOF"),
            (r#"{"grant": []}"#, "unknown field"),
            (
                r#"{"grants": [{"capabilities": ["KILL"]}]}"#,
                "'users', 'roles' or both",
            ),
            (
                r#"{"grants": [{"users": ["a"], "capabilities": []}]}"#,
                "names none",
            ),
            (
                r#"{"grants": [{"users": ["a"], "capabilities": ["FLY"]}]}"#,
                "grant 1: unknown capability \"FLY\"",
            ),
            (
                r#"{"grants": [{"roles": ["/"], "capabilities": ["KILL"]}]}"#,
                "role \"/\"",
            ),
            (
                r#"{"grants": [{"users": [""], "capabilities": ["KILL"]}]}"#,
                "no name",
            ),
            (
                r#"{"grants": [{"users": ["a"], "capabilities": ["SYS_ADMIN"]}]}"#,
                "add it to --bounding_capabilities",
            ),
        ] {
            let parsed = CapabilityGrants::parse(text, CapabilitySet::standard());
            let error = parsed.expect_err(complaint);
            assert!(error.to_string().contains(complaint), "{text}: {error}");
        }
    }
}
