//! Decides whether an agent may keep its identity after a change of its configuration: `--reconfiguration_policy`.
//!
//! Pure: compares the recorded agent with the configured agent. Invariant: an unreadable part of the record never
//! counts as empty.

use std::fmt::{self, Display};
use std::path::Path;

use clap::ValueEnum as _;
use meseta_proto::convert;
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{Attribute, AttributeValue, Attributes, Resources};

use super::ConfigurationError;
use super::flags::Flags;
use crate::checkpoint::AgentImage;

/// The permitted changes between two starts: a value of `--reconfiguration_policy`.
// The flag's help says what each value means.
#[derive(Copy, Clone, Debug, Eq, PartialEq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum ReconfigurationPolicy {
    // None of the compared values may change.
    Equal,
    // Resources and attributes may grow, and a domain may be named; the address is not compared.
    Additive,
}

impl fmt::Display for ReconfigurationPolicy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        out.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// The reason why an agent may not keep its identity.
#[derive(Debug, Eq, PartialEq)]
enum Refusal {
    Unreadable {
        what: &'static str,
        why: String,
    },
    Differs {
        what: &'static str,
        before: String,
        now: String,
    },
}

/// Checks whether the agent may keep its identity.
pub(crate) fn check_compatible(
    flags: &Flags,
    before: Option<&AgentImage>,
    now: &pb::AgentInfo,
) -> Result<(), ConfigurationError> {
    let Some(before) = before.and_then(|image| image.record.as_ref()) else {
        return Ok(());
    };
    compare(flags.reconfiguration_policy, &before.info, now)
        .map_err(|refusal| explain(refusal, flags))
}

fn explain(refusal: Refusal, flags: &Flags) -> ConfigurationError {
    let latest = flags.work_dir.join(Path::new("meta/slaves/latest"));
    let latest = latest.display().to_string();
    match refusal {
        Refusal::Unreadable { what, why } => {
            ConfigurationError::UnreadableRecord { what, why, latest }
        }
        Refusal::Differs { what, before, now } => ConfigurationError::Incompatible {
            what,
            before,
            now,
            policy: flags.reconfiguration_policy,
            latest,
        },
    }
}

fn compare(
    policy: ReconfigurationPolicy,
    before: &pb::AgentInfo,
    now: &pb::AgentInfo,
) -> Result<(), Refusal> {
    let resources = |info: &pb::AgentInfo| {
        convert::resources(&info.resources).map_err(|error| unreadable("resources", error))
    };
    let attributes = |info: &pb::AgentInfo| {
        convert::attributes(&info.attributes).map_err(|error| unreadable("attributes", error))
    };
    let (old, new): (Resources, Resources) = (resources(before)?, resources(now)?);
    let allowed = match policy {
        ReconfigurationPolicy::Equal => old == new,
        ReconfigurationPolicy::Additive => new.contains(&old),
    };
    require(allowed, "resources", old, new)?;
    let (old, new) = (attributes(before)?, attributes(now)?);
    let allowed = match policy {
        ReconfigurationPolicy::Equal => old == new,
        ReconfigurationPolicy::Additive => old.iter().all(|attribute| is_kept(attribute, &new)),
    };
    require(allowed, "attributes", old, new)?;
    let is_named = policy == ReconfigurationPolicy::Additive && before.domain.is_none();
    let (old, new) = (&before.domain, &now.domain);
    require(old == new || is_named, "domain", text_of(old), text_of(new))?;
    if policy == ReconfigurationPolicy::Additive {
        return Ok(());
    }
    let (old, new) = (&before.hostname, &now.hostname);
    require(old == new, "hostname", old, new)?;
    require(before.port == now.port, "port", before.port(), now.port())
}

fn unreadable(what: &'static str, error: impl Display) -> Refusal {
    Refusal::Unreadable {
        what,
        why: error.to_string(),
    }
}

fn require(
    allowed: bool,
    what: &'static str,
    before: impl Display,
    now: impl Display,
) -> Result<(), Refusal> {
    if allowed {
        return Ok(());
    }
    Err(Refusal::Differs {
        what,
        before: before.to_string(),
        now: now.to_string(),
    })
}

/// Whether an attribute is kept: with the same text, a number at least as large, or ranges that include the old ones.
fn is_kept(old: &Attribute, new: &Attributes) -> bool {
    new.get(old.name()).any(|new| match (old.value(), new) {
        (AttributeValue::Scalar(old), AttributeValue::Scalar(new)) => new >= old,
        (AttributeValue::Ranges(old), AttributeValue::Ranges(new)) => new.contains(old),
        (AttributeValue::Text(old), AttributeValue::Text(new)) => new == old,
        _ => false,
    })
}

fn text_of(domain: &Option<pb::DomainInfo>) -> String {
    let fault_domain = domain
        .as_ref()
        .and_then(|domain| domain.fault_domain.as_ref());
    fault_domain.map_or_else(
        || "none".to_owned(),
        |domain| format!("{}/{}", domain.region.name, domain.zone.name),
    )
}

#[cfg(test)]
mod tests {
    use meseta_proto::convert::Format;
    use meseta_resources::Role;

    use super::*;

    fn agent(resources: &str, attributes: &str) -> pb::AgentInfo {
        let resources = Resources::parse(resources, &Role::star()).expect("resources");
        let attributes: Attributes = attributes.parse().expect("attributes");
        pb::AgentInfo {
            hostname: "node".to_owned(),
            port: Some(5051),
            resources: convert::to_resources(&resources, Format::PostRefinement).expect("written"),
            attributes: convert::to_attributes(&attributes),
            ..pb::AgentInfo::default()
        }
    }

    fn in_domain(name: &str) -> pb::AgentInfo {
        let text = format!(
            r#"{{"fault_domain": {{"region": {{"name": "{name}"}}, "zone": {{"name": "z"}}}}}}"#
        );
        pb::AgentInfo {
            domain: Some(convert::parse_domain(&text).expect("a domain")),
            ..agent("cpus:1", "")
        }
    }

    /// The refused parts under each policy, if any.
    fn refused(before: &pb::AgentInfo, now: &pb::AgentInfo) -> [Option<&'static str>; 2] {
        [
            ReconfigurationPolicy::Equal,
            ReconfigurationPolicy::Additive,
        ]
        .map(|policy| match compare(policy, before, now) {
            Ok(()) => None,
            Err(Refusal::Differs { what, .. } | Refusal::Unreadable { what, .. }) => Some(what),
        })
    }

    #[test]
    fn resources_may_grow_and_never_shrink() {
        const BEFORE: &str = "cpus:4;mem:1024;ports:[1-5];bugs:{a,b};disk(r):10";
        const NEITHER: [Option<&str>; 2] = [Some("resources"); 2];
        const ADDITIVE: [Option<&str>; 2] = [Some("resources"), None];
        for (now, expected) in [
            (BEFORE, [None; 2]),
            (
                "disk(r):10;bugs:{b,a};ports:[1-3,4-5];mem:1024;cpus:4",
                [None; 2],
            ),
            (
                "cpus:5;mem:1024;ports:[1-5];bugs:{a,b};disk(r):10",
                ADDITIVE,
            ),
            (
                "cpus:4;mem:1024;ports:[1-9];bugs:{a,b};disk(r):10",
                ADDITIVE,
            ),
            (
                "cpus:4;mem:1024;ports:[1-5];bugs:{a,b,c};disk(r):10",
                ADDITIVE,
            ),
            (
                "cpus:4;mem:1024;ports:[1-5];bugs:{a,b};disk(r):10;gpu:1",
                ADDITIVE,
            ),
            (
                "cpus:3.9;mem:1024;ports:[1-5];bugs:{a,b};disk(r):10",
                NEITHER,
            ),
            ("cpus:8;mem:1023;ports:[1-5];bugs:{a,b};disk(r):10", NEITHER),
            ("cpus:4;mem:1024;ports:[2-9];bugs:{a,b};disk(r):10", NEITHER),
            ("cpus:4;mem:1024;ports:[1-5];bugs:{a,c};disk(r):10", NEITHER),
            ("cpus:4;mem:1024;ports:[1-5];bugs:{a,b}", NEITHER),
            // The same amount for another role is another resource.
            ("cpus:4;mem:1024;ports:[1-5];bugs:{a,b};disk:10", NEITHER),
        ] {
            let found = refused(&agent(BEFORE, ""), &agent(now, ""));
            assert_eq!(found, expected, "{now}");
        }
    }

    #[test]
    fn attributes_are_kept_or_grow() {
        const BEFORE: &str = "rack:r1;level:10;ids:[1-5]";
        const NEITHER: [Option<&str>; 2] = [Some("attributes"); 2];
        const ADDITIVE: [Option<&str>; 2] = [Some("attributes"), None];
        for (now, expected) in [
            (BEFORE, [None; 2]),
            ("ids:[1-5];level:10;rack:r1", [None; 2]),
            ("rack:r1;level:10;ids:[1-5];more:x", ADDITIVE),
            ("rack:r1;level:11;ids:[1-5]", ADDITIVE),
            ("rack:r1;level:10;ids:[1-9]", ADDITIVE),
            ("rack:r2;rack:r1;level:10;ids:[1-5]", ADDITIVE),
            ("rack:r2;level:10;ids:[1-5]", NEITHER),
            ("rack:r1;level:9;ids:[1-5]", NEITHER),
            ("rack:r1;level:10;ids:[1-4]", NEITHER),
            ("rack:r1;level:x;ids:[1-5]", NEITHER),
            ("rack:r1;level:10", NEITHER),
        ] {
            let found = refused(&agent("cpus:1", BEFORE), &agent("cpus:1", now));
            assert_eq!(found, expected, "{now}");
        }
        // Names may repeat: the same number of other values is a change.
        let twice = refused(&agent("cpus:1", "a:x;a:x"), &agent("cpus:1", "a:x;a:y"));
        assert_eq!(twice, ADDITIVE);
    }

    #[test]
    fn domain_can_be_added_not_changed() {
        let none = agent("cpus:1", "");
        assert_eq!(refused(&in_domain("a"), &in_domain("a")), [None; 2]);
        assert_eq!(refused(&none, &in_domain("a")), [Some("domain"), None]);
        assert_eq!(refused(&in_domain("a"), &none), [Some("domain"); 2]);
        assert_eq!(
            refused(&in_domain("a"), &in_domain("b")),
            [Some("domain"); 2]
        );
    }

    #[test]
    fn equality_policy_compares_the_address() {
        let before = agent("cpus:1", "");
        let renamed = pb::AgentInfo {
            hostname: "other".to_owned(),
            ..before.clone()
        };
        assert_eq!(refused(&before, &renamed), [Some("hostname"), None]);
        let moved = pb::AgentInfo {
            port: Some(5052),
            ..before.clone()
        };
        assert_eq!(refused(&before, &moved), [Some("port"), None]);
    }

    #[test]
    fn unreadable_record_allows_no_change() {
        let now = agent("cpus:1", "rack:r1");
        let mut before = now.clone();
        before.resources[0].scalar = None;
        assert_eq!(refused(&before, &now), [Some("resources"); 2]);
        let mut before = now.clone();
        before.attributes[0].text = None;
        assert_eq!(refused(&before, &now), [Some("attributes"); 2]);
    }
}
