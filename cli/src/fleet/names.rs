//! The members of a fleet, as the command line names them: machines and principals.

use std::fmt;
use std::net::IpAddr;

use meseta_access::credentials::{is_principal, may_begin_line};
use meseta_resources::Role;
use serde::{Deserialize, Serialize};

/// The principal that may do everything.
pub(super) const ADMIN: &str = "admin";
/// The principal of joining agents.
pub(super) const NODE: &str = "node";
/// The principal that may read metrics.
pub(super) const PROMETHEUS: &str = "prometheus";
/// The principal of the job scheduler, in a fleet that has one.
pub(super) const JOBS: &str = "jobs";
/// The principals that every fleet has.
pub(super) const BUILT_IN: [&str; 3] = [ADMIN, NODE, PROMETHEUS];

/// The longest host name, and the longest part of a host name between dots, in bytes.
const HOST_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// A machine, with the names of its certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Machine {
    pub(super) name: String,
    /// The addresses, never empty; daemons listen on the first.
    pub(super) addresses: Vec<IpAddr>,
}

impl Machine {
    /// Returns the address that its daemons listen on.
    pub(super) fn address(&self) -> IpAddr {
        let nowhere = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
        self.addresses.first().copied().unwrap_or(nowhere)
    }
}

impl fmt::Display for Machine {
    /// Writes the form that [`machine`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.addresses.iter().map(ToString::to_string).collect();
        write!(f, "{}={}", self.name, addresses.join(","))
    }
}

/// A framework's principal and its permissions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Principal {
    pub(super) name: String,
    pub(super) roles: Vec<String>,
    pub(super) users: Vec<String>,
}

/// Parses `NAME=ADDRESS[,ADDRESS]`.
pub(super) fn machine(text: &str) -> Result<Machine, String> {
    let Some((name, addresses)) = text.split_once('=') else {
        return Err(format!(
            "the address is missing: give NAME=ADDRESS, for example {text}=10.0.0.7"
        ));
    };
    if name.parse::<IpAddr>().is_ok() {
        return Err(format!(
            "{name} is an address: the name comes first, as in node1.example={name}"
        ));
    }
    if !is_host_name(name) {
        return Err(format!(
            "{name:?} is not a host name: use letters, digits and hyphens, in parts between dots"
        ));
    }
    let addresses = addresses.split(',').map(|one| {
        let address: IpAddr = one.parse().map_err(|_| {
            format!("{one:?} is not an IP address; give NAME=ADDRESS, for example {name}=10.0.0.7")
        })?;
        if address.is_unspecified() || address.is_multicast() {
            return Err(format!(
                "{address} is not the address of one machine: give the address at which other \
                machines reach {name}"
            ));
        }
        Ok(address)
    });
    Ok(Machine {
        name: name.to_ascii_lowercase(),
        addresses: addresses.collect::<Result<_, _>>()?,
    })
}

fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= LABEL_BYTES_MAX
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    name.len() <= HOST_BYTES_MAX && name.split('.').all(is_label)
}

/// Parses the name of a user of machines.
pub(super) fn user(text: &str) -> Result<String, String> {
    if is_user(text) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{text:?} is not a user name: use a name without spaces"
    ))
}

fn is_user(text: &str) -> bool {
    !text.is_empty() && !text.contains(char::is_whitespace)
}

/// Parses `NAME:role=ROLE:user=USER`, with at least one role and one user.
pub(super) fn principal(text: &str) -> Result<Principal, String> {
    let mut parts = text.split(':');
    let name = parts.next().unwrap_or_default();
    // The name also becomes that of a folder.
    let is_file = !name.contains('/') && !name.starts_with('.');
    if !is_principal(name) || !is_file || !may_begin_line(name) {
        return Err(format!(
            "{name:?} is not a principal: use up to 255 bytes without colons, slashes and spaces, and do not begin with . # or {{"
        ));
    }
    if BUILT_IN.contains(&name) {
        return Err(format!("{name} always exists: leave it out"));
    }
    let mut principal = Principal {
        name: name.to_owned(),
        roles: Vec::new(),
        users: Vec::new(),
    };
    for part in parts {
        match part.split_once('=') {
            Some(("role", role)) => {
                Role::new(role).map_err(|error| format!("role={role}: {error}"))?;
                principal.roles.push(role.to_owned());
            }
            Some(("user", user)) if is_user(user) => {
                principal.users.push(user.to_owned());
            }
            _ => {
                return Err(format!(
                    "{part:?} is neither role=ROLE nor user=USER, for example {name}:role={name}:user=www-data"
                ));
            }
        }
    }
    if principal.roles.is_empty() || principal.users.is_empty() {
        return Err(format!(
            "a framework needs a role and a user for its tasks, for example {name}:role={name}:user=www-data"
        ));
    }
    Ok(principal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_has_name_and_addresses() {
        let machine = machine("Node1.example=10.0.0.7,fd00::7").expect("a machine");
        assert_eq!(machine.name, "node1.example");
        assert_eq!(machine.address().to_string(), "10.0.0.7");
        assert_eq!(machine.addresses.len(), 2);
        assert_eq!(machine.to_string(), "node1.example=10.0.0.7,fd00::7");
    }

    #[test]
    fn invalid_machine_names_the_remedy() {
        for (text, word) in [
            ("node1", "node1=10.0.0.7"),
            ("10.0.0.7", "the address is missing"),
            ("10.0.0.7=node1", "the name comes first"),
            ("node1=node2", "not an IP address"),
            ("node1=", "not an IP address"),
            ("node1=0.0.0.0", "not the address of one machine"),
            ("../x=10.0.0.7", "not a host name"),
            ("-a=10.0.0.7", "not a host name"),
            ("a..b=10.0.0.7", "not a host name"),
            ("=10.0.0.7", "not a host name"),
        ] {
            let error = machine(text).expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn a_principal_has_roles_and_users() {
        let ads = principal("ads:role=ads:role=web:user=www-data").expect("a principal");
        assert_eq!(ads.roles, ["ads", "web"]);
        assert_eq!(ads.users, ["www-data"]);
        for (text, word) in [
            ("ads", "needs a role and a user"),
            ("ads:role=ads", "needs a role and a user"),
            ("ads:roles=ads", "neither role=ROLE"),
            ("ads:role=a b:user=x", "role=a b"),
            ("ads:role=ads:user=", "neither role=ROLE"),
            ("admin:role=a:user=b", "always exists"),
            ("..:role=a:user=b", "not a principal"),
            ("a/b:role=a:user=b", "not a principal"),
            ("#a:role=a:user=b", "not a principal"),
            ("{a:role=a:user=b", "not a principal"),
        ] {
            let error = principal(text).expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
