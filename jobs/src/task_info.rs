//! The message that launches one task of a job.
//!
//! Entered through [`task_info`]. Pure: the same job, instance and placement give the same message.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_proto::convert::{self, Format};
use meseta_proto::mesos::v1 as mesos;

use crate::placement::{Offer, Placement};
use crate::spec::template::{Values, filled};
use crate::spec::{CheckAddress, Command, HealthCheck, JobSpec, Kind, Probe, Uri};

/// The labels of each task, beside the labels of its job, for readers of the cluster's tasks.
pub const JOB_LABEL: &str = "meseta.job";
pub const VERSION_LABEL: &str = "meseta.version";
pub const INDEX_LABEL: &str = "meseta.index";
pub const ATTEMPT_LABEL: &str = "meseta.attempt";

/// The identity of a task within its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The task's id, unique in the framework.
    pub task_id: String,
    /// The version of the job's file, from 1.
    pub version: u64,
    /// The index from 0 to `count` - 1, and beyond during an update.
    pub index: u32,
    /// The number of earlier runs of this index.
    pub attempt: u32,
}

/// Returns the message that launches the instance at its placement.
#[must_use]
pub fn task_info(
    spec: &JobSpec,
    instance: &Instance,
    offer: &Offer,
    placement: &Placement,
) -> mesos::TaskInfo {
    let timeout = match &spec.kind {
        Kind::Service(_) => None,
        Kind::Batch(batch) => batch.timeout,
        Kind::Cron(cron) => cron.batch.timeout,
    };
    mesos::TaskInfo {
        name: spec.name.clone(),
        task_id: mesos::TaskId {
            value: instance.task_id.clone(),
        },
        agent_id: mesos::AgentId {
            value: offer.agent_id.clone(),
        },
        // Only the format from before reservation refinement could fail.
        resources: convert::to_resources(&placement.resources, Format::PostRefinement)
            .unwrap_or_default(),
        command: Some(command(spec, instance, offer, placement)),
        health_check: spec
            .task
            .check
            .as_ref()
            .map(|check| Box::new(health_check(check, &placement.ports))),
        kill_policy: Some(mesos::KillPolicy {
            grace_period: Some(duration(spec.task.kill_grace)),
        }),
        labels: Some(labels(spec, instance)),
        discovery: Some(discovery(spec, instance, &placement.ports)),
        max_completion_time: timeout.map(duration),
        limits: spec
            .task
            .limits
            .iter()
            .map(|(name, limit)| (name.clone(), mesos::value::Scalar { value: *limit }))
            .collect(),
        ..mesos::TaskInfo::default()
    }
}

fn command(
    spec: &JobSpec,
    instance: &Instance,
    offer: &Offer,
    placement: &Placement,
) -> mesos::CommandInfo {
    let (shell, value, arguments) = match &spec.task.command {
        Command::Shell(line) => (true, line.clone(), Vec::new()),
        Command::Argv(argv) => (
            false,
            argv.first().cloned().unwrap_or_default(),
            argv.clone(),
        ),
    };
    mesos::CommandInfo {
        shell: Some(shell),
        value: Some(value),
        arguments,
        user: spec.task.user.clone(),
        uris: spec.task.uris.iter().map(uri).collect(),
        environment: Some(environment(spec, instance, offer, placement)),
    }
}

fn uri(uri: &Uri) -> mesos::command_info::Uri {
    mesos::command_info::Uri {
        value: uri.uri.clone(),
        executable: Some(uri.executable),
        extract: Some(uri.extract),
        cache: Some(uri.cache),
        output_file: uri.output_file.clone(),
    }
}

/// Returns the environment: the variables of every task, overridden by those of the job.
fn environment(
    spec: &JobSpec,
    instance: &Instance,
    offer: &Offer,
    placement: &Placement,
) -> mesos::Environment {
    let values = Values {
        index: instance.index,
        attempt: instance.attempt,
        hostname: &offer.hostname,
        ports: &placement.ports,
    };
    let mut variables = BTreeMap::from([
        ("MESETA_JOB".to_owned(), spec.name.clone()),
        ("MESETA_ROLE".to_owned(), spec.role.clone()),
        ("MESETA_TASK_ID".to_owned(), instance.task_id.clone()),
        ("MESETA_INDEX".to_owned(), instance.index.to_string()),
        ("MESETA_ATTEMPT".to_owned(), instance.attempt.to_string()),
        ("MESETA_COUNT".to_owned(), spec.count.to_string()),
    ]);
    for (name, number) in &placement.ports {
        variables.insert(port_variable(name), number.to_string());
    }
    for (name, value) in &spec.task.env {
        variables.insert(name.clone(), filled(value, &values));
    }
    let variables = variables.into_iter().map(|(name, value)| {
        let value = Some(value);
        mesos::environment::Variable {
            name,
            value,
            ..mesos::environment::Variable::default()
        }
    });
    mesos::Environment {
        variables: variables.collect(),
    }
}

/// Returns a variable's name, such as `PORT_ADMIN_UI` for the port `admin-ui`.
#[must_use]
pub fn port_variable(port: &str) -> String {
    format!("PORT_{}", port.to_ascii_uppercase().replace('-', "_"))
}

fn health_check(check: &HealthCheck, ports: &BTreeMap<String, u16>) -> mesos::HealthCheck {
    use mesos::health_check::{HttpCheckInfo, TcpCheckInfo, Type};
    use mesos::network_info::Protocol;
    let number = |port: &String| ports.get(port).copied().map_or(0, u32::from);
    let protocol = |address: CheckAddress| -> i32 {
        match address {
            CheckAddress::V4 => Protocol::IPv4.into(),
            CheckAddress::V6 => Protocol::IPv6.into(),
        }
    };
    let mut message = mesos::HealthCheck {
        delay_seconds: Some(check.delay.as_secs_f64()),
        interval_seconds: Some(check.interval.as_secs_f64()),
        timeout_seconds: Some(check.timeout.as_secs_f64()),
        consecutive_failures: Some(check.failures),
        grace_period_seconds: Some(check.grace.as_secs_f64()),
        ..mesos::HealthCheck::default()
    };
    let kind = match &check.probe {
        Probe::Command(line) => {
            message.command = Some(mesos::CommandInfo {
                shell: Some(true),
                value: Some(line.clone()),
                ..mesos::CommandInfo::default()
            });
            Type::Command
        }
        Probe::Http {
            port,
            path,
            address,
        } => {
            message.http = Some(HttpCheckInfo {
                protocol: address.map(protocol),
                port: number(port),
                path: Some(path.clone()),
                ..HttpCheckInfo::default()
            });
            Type::Http
        }
        Probe::Tcp { port, address } => {
            message.tcp = Some(TcpCheckInfo {
                protocol: address.map(protocol),
                port: number(port),
            });
            Type::Tcp
        }
    };
    message.r#type = Some(kind.into());
    message
}

fn labels(spec: &JobSpec, instance: &Instance) -> mesos::Labels {
    let mut labels = spec.labels.clone();
    labels.extend([
        (JOB_LABEL.to_owned(), spec.name.clone()),
        (VERSION_LABEL.to_owned(), instance.version.to_string()),
        (INDEX_LABEL.to_owned(), instance.index.to_string()),
        (ATTEMPT_LABEL.to_owned(), instance.attempt.to_string()),
    ]);
    let labels = labels.into_iter().map(|(key, value)| mesos::Label {
        key,
        value: Some(value),
    });
    mesos::Labels {
        labels: labels.collect(),
    }
}

/// Returns the ports and labels that service discovery finds in the state of the cluster.
fn discovery(
    spec: &JobSpec,
    instance: &Instance,
    ports: &BTreeMap<String, u16>,
) -> mesos::DiscoveryInfo {
    let ports = ports.iter().map(|(name, number)| mesos::Port {
        number: u32::from(*number),
        name: Some(name.clone()),
        protocol: Some("tcp".to_owned()),
        ..mesos::Port::default()
    });
    mesos::DiscoveryInfo {
        visibility: mesos::discovery_info::Visibility::Cluster.into(),
        name: Some(spec.name.clone()),
        version: Some(instance.version.to_string()),
        ports: Some(mesos::Ports {
            ports: ports.collect(),
        }),
        ..mesos::DiscoveryInfo::default()
    }
}

fn duration(duration: Duration) -> mesos::DurationInfo {
    mesos::DurationInfo {
        nanoseconds: i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use meseta_resources::{Resources, Role};

    use super::*;
    use crate::file::from_toml;
    use crate::placement::place;

    fn built(text: &str) -> mesos::TaskInfo {
        let spec = from_toml(text).expect(text);
        let resources = "cpus:2;mem:512;ports:[31000-31001]";
        let offer = Offer {
            agent_id: "s1".to_owned(),
            hostname: "n1".to_owned(),
            resources: Resources::parse(resources, &Role::star()).expect("resources"),
            ..Offer::default()
        };
        let placements = place(&spec, &[], std::slice::from_ref(&offer), 1);
        let instance = Instance {
            task_id: "web.3.1".to_owned(),
            version: 7,
            index: 3,
            attempt: 1,
        };
        task_info(&spec, &instance, &offer, &placements[0])
    }

    fn variable<'a>(task: &'a mesos::TaskInfo, name: &str) -> Option<&'a str> {
        let environment = task.command.as_ref()?.environment.as_ref()?;
        let found = environment.variables.iter().find(|one| one.name == name);
        found?.value.as_deref()
    }

    #[test]
    fn check_names_its_address() {
        use mesos::network_info::Protocol;
        for (written, expected) in [
            ("", None),
            (", address = \"127.0.0.1\"", Some(Protocol::IPv4)),
            (", address = \"::1\"", Some(Protocol::IPv6)),
        ] {
            for kind in ["http", "tcp"] {
                let task = built(&format!(
                    "name = \"web\"\nports = [\"a\"]\n[task]\ncommand = \"x\"\n[check]\n{kind} = {{ port = \"a\"{written} }}\n",
                ));
                let check = task.health_check.expect("a check");
                let http = check.http.and_then(|http| http.protocol);
                let tcp = check.tcp.and_then(|tcp| tcp.protocol);
                assert_eq!(http.or(tcp), expected.map(Into::into), "{kind} {written}");
            }
        }
    }

    #[test]
    fn service_has_its_ports_and_check() {
        let task = built(
            "name = \"web\"\nports = [\"http\", \"admin-ui\"]\n[task]\ncommand = \"exec ./web\"\nkill_grace = \"3secs\"\n\
             env = { URL = \"http://${hostname}:${port.http}/${index}\", MESETA_COUNT = \"9\" }\n\
             [limits]\ncpus = \"unlimited\"\n[check]\nhttp = { port = \"http\", path = \"/up\" }\n",
        );
        assert_eq!(variable(&task, "URL"), Some("http://n1:31000/3"));
        assert_eq!(variable(&task, "PORT_ADMIN_UI"), Some("31001"));
        assert_eq!(variable(&task, "MESETA_COUNT"), Some("9"));
        let check = task.health_check.as_ref().expect("a check");
        let http = check.http.as_ref().expect("http");
        assert_eq!((http.port, http.path.as_deref()), (31000, Some("/up")));
        assert_eq!(task.limits["cpus"].value, f64::INFINITY);
        let grace = task
            .kill_policy
            .as_ref()
            .and_then(|policy| policy.grace_period.as_ref());
        assert_eq!(grace.map(|grace| grace.nanoseconds), Some(3_000_000_000));
        let discovery = task.discovery.as_ref().expect("discovery");
        let ports = &discovery.ports.as_ref().expect("ports").ports;
        let named: Vec<_> = ports
            .iter()
            .map(|port| (port.name.as_deref(), port.number))
            .collect();
        assert_eq!(named, [(Some("admin-ui"), 31001), (Some("http"), 31000)]);
        let labels = &task.labels.as_ref().expect("labels").labels;
        assert!(
            labels
                .iter()
                .any(|one| one.key == VERSION_LABEL && one.value.as_deref() == Some("7"))
        );
        assert_eq!(task.max_completion_time, None);
    }

    #[test]
    fn batch_program_has_its_time_limit() {
        let task = built(
            "name = \"sum\"\nkind = \"batch\"\n[task]\nargv = [\"/bin/sum\", \"-r\"]\n[batch]\ntimeout = \"1mins\"\n",
        );
        let command = task.command.as_ref().expect("a command");
        assert_eq!(
            (command.shell, command.value.as_deref()),
            (Some(false), Some("/bin/sum"))
        );
        assert_eq!(command.arguments, ["/bin/sum", "-r"]);
        assert_eq!(
            task.max_completion_time.map(|time| time.nanoseconds),
            Some(60_000_000_000)
        );
        assert_eq!(task.health_check, None);
    }
}
