//! Evaluates the flags: resources, attributes, isolation, variables. Each is checked, with an error that names the
//! flag.
//!
//! ```text
//! flags.rs            all flags; includes isolation_flags.rs, log_flags.rs and ../access_flags.rs
//! isolation.rs        the evaluation of the isolation flags
//! reconfiguration.rs  the permitted changes between two starts
//! weakness.rs         isolation weaker than requested
//! error.rs            errors for refused flags
//! ```

mod error;
pub(crate) mod flags;
pub(crate) mod isolation;
mod isolation_flags;
pub(crate) mod log_flags;
mod reconfiguration;
mod weakness;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meseta_proto::convert;
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{
    Attributes, DiskSourceKind, Resources, Role, validate_command_line_resources,
};

use crate::budgets::Budgets;
use crate::checkpoint::{AgentImage, ResourcesRecord};
use crate::detect::{Machine, complete, keep_detected};
pub use error::ConfigurationError;
use flags::{Flags, text_of};
use isolation::IsolationSettings;
pub use isolation_flags::IsolationFlags;
use log_flags::Logs;
pub use log_flags::{ContainerLogger, LogFlags};
pub use reconfiguration::ReconfigurationPolicy;
pub(crate) use reconfiguration::check_compatible;
pub use weakness::weak_isolation;

/// Kinds of resources that an agent may have. The master keeps each name, and iterates over all kinds when it
/// allocates.
const RESOURCE_NAMES_MAX: usize = 1_024;

/// Common wrong names of Mesos's resources, each with the correct name.
const MISNAMED: [(&str, &str); 8] = [
    ("cpu", "cpus"),
    ("core", "cpus"),
    ("cores", "cpus"),
    ("memory", "mem"),
    ("ram", "mem"),
    ("disks", "disk"),
    ("gpu", "gpus"),
    ("port", "ports"),
];

#[derive(Debug)]
pub(crate) struct Configuration {
    /// The resources from the flag.
    resources: Resources,
    /// The names in the flag, including those with a zero amount.
    named: Vec<String>,
    /// The role of all other resources.
    default_role: Role,
    /// The attributes sent to the master.
    pub(crate) attributes: Vec<pb::Attribute>,
    /// The agent's region and zone.
    pub(crate) domain: Option<pb::DomainInfo>,
    /// The settings of the isolation.
    pub(crate) isolation: IsolationSettings,
    /// The log files of tasks.
    pub(crate) logs: Logs,
    /// Variables for all tasks.
    pub(crate) task_variables: BTreeMap<String, String>,
    /// The limits of queues and history.
    pub(crate) budgets: Budgets,
}

impl Configuration {
    /// The roots of the disks of type MOUNT; a relative root is below the work directory.
    pub(crate) fn mount_disks(&self, work_dir: &Path) -> Arc<[PathBuf]> {
        let disks = self.resources.iter();
        let sources = disks.filter_map(|disk| disk.disk()?.source.as_ref());
        let mounts = sources.filter(|source| source.kind == DiskSourceKind::Mount);
        let roots = mounts.filter_map(|source| source.root.as_deref());
        roots.map(|root| work_dir.join(root)).collect()
    }

    /// The resources from the flag, completed by the machine's own. Fails if there are more kinds than the limit,
    /// unless the agent had as many before.
    pub(crate) fn resources_of_machine(
        &self,
        machine: Machine,
        before: Option<&AgentImage>,
    ) -> Result<Resources, ConfigurationError> {
        let (named, role) = (&self.named, &self.default_role);
        let detected = complete(self.resources.clone(), named, machine, role);
        let record = before.and_then(|image| image.record.as_ref());
        let before = record.map(|record| convert::resources(&record.info.resources));
        match before {
            Some(Ok(before)) => {
                self.check_kinds(kinds(&before))?;
                Ok(keep_detected(detected, named, &before, role))
            }
            _ => {
                self.check_kinds(0)?;
                Ok(detected)
            }
        }
    }

    /// Fails if there are more kinds of resources than the limit, and more than before.
    pub(crate) fn check_kinds(&self, before: usize) -> Result<(), ConfigurationError> {
        let given = kinds(&self.resources);
        match given > RESOURCE_NAMES_MAX.max(before) {
            true => Err(ConfigurationError::Resources(format!(
                "it names {given} kinds of resources, and an agent may have at most \
                 {RESOURCE_NAMES_MAX}"
            ))),
            false => Ok(()),
        }
    }

    /// Resources with a probably misspelled name, for a warning each. Any name is valid, but no framework requests such
    /// a resource, and nothing enforces it.
    pub(crate) fn misnamed(&self) -> impl Iterator<Item = String> {
        let meant = |named: &String| MISNAMED.iter().find(|(slip, _)| slip == named);
        self.named.iter().filter_map(meant).map(|(slip, meant)| {
            format!("--resources: `{slip}` is a custom resource; did you mean `{meant}`?")
        })
    }
}

pub(crate) fn read(flags: &Flags) -> Result<Configuration, ConfigurationError> {
    if !(0.0..=1.0).contains(&flags.gc_disk_headroom) {
        return Err(ConfigurationError::Headroom(flags.gc_disk_headroom));
    }
    for (flag, duration) in [
        ("monitor_interval", flags.monitor_interval),
        ("disk_watch_interval", flags.disk_watch_interval),
        ("fetcher_stall_timeout", flags.fetcher_stall_timeout),
        (
            "registration_backoff_factor",
            flags.registration_backoff_factor,
        ),
    ] {
        if duration.is_zero() {
            return Err(ConfigurationError::Zero(flag));
        }
    }
    if let Some(hostname) = &flags.hostname {
        let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        if hostname.is_empty() || hostname.len() > 255 || !hostname.chars().all(valid) {
            return Err(ConfigurationError::Hostname(hostname.clone()));
        }
    }
    let default_role = Role::new(&flags.default_role)
        .map_err(|error| ConfigurationError::DefaultRole(error.to_string()))?;
    let (resources, named) = read_resources(flags, &default_role)?;
    Ok(Configuration {
        isolation: isolation::read(flags, &resources)?,
        logs: log_flags::read(&flags.logs)?,
        resources,
        named,
        default_role,
        attributes: read_attributes(flags)?,
        domain: read_domain(flags)?,
        task_variables: read_variables(flags)?,
        budgets: Budgets::read(flags.memory_budget)
            .map_err(|why| error::refused("memory_budget", why))?,
    })
}

fn read_resources(
    flags: &Flags,
    role: &Role,
) -> Result<(Resources, Vec<String>), ConfigurationError> {
    let Some(value) = &flags.resources else {
        return Ok((Resources::default(), Vec::new()));
    };
    let text = text_of("resources", value)?;
    let text = text.trim();
    let resources = convert::parse_resources(text, role)
        .map_err(|error| ConfigurationError::Resources(error.to_string()))?;
    let named = if text.starts_with('[') {
        json_names(text)
    } else {
        text_names(text)
    };
    validate_command_line_resources(&resources)
        .map_err(|error| ConfigurationError::Resources(error.to_string()))?;
    Ok((resources, named))
}

fn kinds(resources: &Resources) -> usize {
    resources.names().len()
}

fn text_names(text: &str) -> Vec<String> {
    let parts = text.split(';');
    parts
        .map(|part| {
            let end = part.find(['(', ':']).unwrap_or(part.len());
            part.get(..end).unwrap_or_default().trim().to_owned()
        })
        .collect()
}

fn json_names(text: &str) -> Vec<String> {
    let messages = meseta_proto::json::many_from_slice::<pb::Resource>(text.as_bytes());
    let names = messages.into_iter().flatten().map(|message| message.name);
    names.collect()
}

fn read_attributes(flags: &Flags) -> Result<Vec<pb::Attribute>, ConfigurationError> {
    let Some(value) = &flags.attributes else {
        return Ok(Vec::new());
    };
    let text = text_of("attributes", value)?;
    let attributes: Attributes =
        text.trim()
            .parse()
            .map_err(|error: meseta_resources::ParseError| {
                ConfigurationError::Attributes(error.to_string())
            })?;
    Ok(convert::to_attributes(&attributes))
}

fn read_domain(flags: &Flags) -> Result<Option<pb::DomainInfo>, ConfigurationError> {
    let Some(value) = &flags.domain else {
        return Ok(None);
    };
    let text = text_of("domain", value)?;
    let domain = convert::parse_domain(&text)
        .map_err(|error| ConfigurationError::Domain(error.to_string()))?;
    Ok(Some(domain))
}

fn read_variables(flags: &Flags) -> Result<BTreeMap<String, String>, ConfigurationError> {
    let Some(value) = &flags.executor_environment_variables else {
        return Ok(BTreeMap::new());
    };
    let text = text_of("executor_environment_variables", value)?;
    serde_json::from_str(&text).map_err(|error| ConfigurationError::Variables(error.to_string()))
}

/// Checks that the configured amounts still cover the reservations and volumes. Reservations for other roles are
/// handled separately: misfits are set aside, see `core/operations.rs`.
pub(crate) fn check_holdings(
    work_dir: &Path,
    resources: &Resources,
    record: Option<&ResourcesRecord>,
) -> Result<(), ConfigurationError> {
    let Some(record) = record else { return Ok(()) };
    let checkpointed = convert::resources(&record.resources).unwrap_or_default();
    let Err(error) = resources.with_checkpointed(&checkpointed) else {
        return Ok(());
    };
    if resources.quantities().contains(&checkpointed.quantities()) {
        return Ok(());
    }
    Err(ConfigurationError::Checkpointed {
        given: resources.to_string(),
        checkpointed: checkpointed.to_string(),
        missing: error.requested.to_string(),
        path: work_dir.join("meta/resources").display().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    /// Regression: only the length of the flag bounded their number.
    #[test]
    fn resource_kinds_are_bounded() {
        let read_with = |kinds: usize| {
            let named = |number| format!("kind{number}:1");
            let all: Vec<_> = (0..kinds).map(named).collect();
            let given = format!("--resources={};kind0:1", all.join(";"));
            let line = Line::try_parse_from(["agent", "--master=127.0.0.1:5050", &given]);
            read(&line.expect("flags").flags).expect("sound")
        };
        let most = read_with(RESOURCE_NAMES_MAX);
        most.check_kinds(0).expect("as many as there may be");
        let more = read_with(RESOURCE_NAMES_MAX + 1);
        let folder = tempfile::tempdir().expect("a folder");
        let started = more.resources_of_machine(Machine::read(folder.path()), None);
        let refused = started.expect_err("too many");
        // An agent that already has so many kinds can be restarted and upgraded.
        more.check_kinds(RESOURCE_NAMES_MAX + 1)
            .expect("no more than before");
        assert!(more.check_kinds(RESOURCE_NAMES_MAX).is_err());
        assert_eq!(
            refused.to_string(),
            "--resources is invalid: it names 1025 kinds of resources, and an agent may have at most 1024"
        );
    }

    #[test]
    fn default_role_applies_to_unreserved_resources() {
        let folder = tempfile::tempdir().expect("a folder");
        let ads = Role::new("ads").expect("a role");
        for given in [&[][..], &["--resources=cpus:4;disk(*):10"]] {
            let usual = ["agent", "--master=127.0.0.1:5050", "--default_role=ads"];
            let line = Line::try_parse_from(usual.iter().chain(given)).expect("flags");
            let configuration = read(&line.flags).expect("sound");
            let machine = Machine::read(folder.path());
            let all = configuration.resources_of_machine(machine, None);
            let all = all.expect("few kinds");
            for resource in all.iter() {
                let is_ads = resource.reservation_role() == Some(&ads);
                let is_named = resource.name().as_str() == "disk" && !given.is_empty();
                assert_eq!(is_ads, !is_named, "{resource}");
            }
            assert!(all.iter().count() >= 4, "{all}");
        }
    }
}
