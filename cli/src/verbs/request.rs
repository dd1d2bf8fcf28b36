//! The request of `meseta execute`: its flags, converted to the messages of a framework, a task and its resources.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use meseta_proto::convert;
use meseta_proto::mesos::v1 as mesos;
use meseta_resources::{Resources, Role};

use super::{MasterFlag, lenient};

/// The failover timeout of the framework when this command's stream ends, and the time that this command tries to come
/// back.
pub(super) const FAILOVER_SECONDS: f64 = 15.0;
/// The prefix of the name of each framework of this command.
pub(super) const FRAMEWORK_PREFIX: &str = "meseta execute: ";
/// The only resource that can be revocable.
const CPUS: &str = "cpus";
/// The resource whose agents are offered only to frameworks that opt in.
const GPUS: &str = "gpus";

/// The failover timeout for a detached task: a week.
const DETACHED_SECONDS: f64 = 604_800.0;

/// Flags of `meseta execute`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(super) master: MasterFlag,
    /// The shell command to run.
    #[arg(
        long,
        required_unless_present = "arguments",
        conflicts_with = "arguments"
    )]
    pub(super) command: Option<String>,
    /// The command and its arguments, instead of --command: `meseta execute -- ls -l /`.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(super) arguments: Vec<String>,
    /// Leave the task running, for a week at most, and print its id: `meseta logs` shows its output, `meseta kill`
    /// ends the task.
    #[arg(long, short, conflicts_with = "timeout")]
    pub(super) detach: bool,
    /// A file or folder of the agent's machine for the task, as `HOST_PATH:CONTAINER_PATH[:ro]`; may be repeated.
    #[arg(long, short, value_name = "VOLUME")]
    pub(super) volume: Vec<String>,
    /// Print only the task's own output and errors.
    #[arg(long, short)]
    pub(super) quiet: bool,
    /// Name of the task, and, with a unique suffix, its id.
    #[arg(long, default_value = "execute")]
    pub(super) name: String,
    /// The resources of the task; `mem` and `disk` in MB, or with a unit, as `mem:1G`.
    #[arg(long, default_value = "cpus:1;mem:128")]
    pub(super) resources: String,
    /// The number of GPUs of the task: the same as `gpus:N` in --resources.
    #[arg(long, value_name = "N")]
    pub(super) gpus: Option<u32>,
    /// Environment: `NAME=value`, may be repeated, or one JSON object of strings.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(super) env: Vec<String>,
    /// The role of the task. The task uses the role's reserved resources first.
    #[arg(long, default_value = "*")]
    pub(super) role: String,
    /// Use revocable CPUs, which other tasks reserve but do not use. The task waits for oversubscribed CPUs, and ends
    /// when they are needed back.
    #[arg(long)]
    pub(super) revocable: bool,
    /// The user of the task. Default: your user.
    #[arg(long)]
    pub(super) user: Option<String>,
    /// Kill the task after this time and exit with 124, e.g. `90secs` or `5m`. The time starts with this command
    /// and includes the wait for an offer.
    #[arg(long, value_parser = lenient::duration)]
    pub(super) timeout: Option<Duration>,
}

/// The validated request of the command.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) name: String,
    command: mesos::CommandInfo,
    volumes: Vec<mesos::Volume>,
    pub(super) resources: Resources,
    pub(super) role: Role,
    user: String,
    pub(super) detach: bool,
    /// Whether the CPUs must be revocable.
    revocable: bool,
}

impl Request {
    pub(super) fn new(options: &Options) -> anyhow::Result<Self> {
        let role = Role::new(&options.role).context("--role")?;
        let mut resources = lenient::some_resources("--resources", &options.resources)?;
        if let Some(gpus) = options.gpus {
            if !resources.named(GPUS).is_empty() {
                bail!("--gpus={gpus}: --resources names gpus as well; give them once");
            }
            let text = format!("{GPUS}:{gpus}");
            resources += &convert::parse_resources(&text, &Role::star()).context("--gpus")?;
        }
        let user = match &options.user {
            Some(user) => user.clone(),
            None => meseta_daemon::user::name().context(
                "the current user has no name on this machine: give --user=NAME to run the task \
                 as that user",
            )?,
        };
        let command = mesos::CommandInfo {
            value: Some(match &options.command {
                Some(command) => command.clone(),
                None => quoted(&options.arguments),
            }),
            shell: Some(true),
            environment: environment(&options.env)?,
            ..mesos::CommandInfo::default()
        };
        Ok(Self {
            name: options.name.clone(),
            command,
            volumes: options
                .volume
                .iter()
                .map(|text| volume(text))
                .collect::<Result<_, _>>()?,
            resources,
            role,
            user,
            detach: options.detach,
            revocable: options.revocable,
        })
    }

    pub(super) fn framework(&self) -> mesos::FrameworkInfo {
        use mesos::framework_info::capability::Type;
        let mut capabilities = vec![
            Type::MultiRole,
            Type::ReservationRefinement,
            Type::PartitionAware,
        ];
        capabilities.extend(self.revocable.then_some(Type::RevocableResources));
        let has_gpus = !self.resources.named(GPUS).is_empty();
        capabilities.extend(has_gpus.then_some(Type::GpuResources));
        let capabilities = capabilities.into_iter();
        let capability = |kind: Type| mesos::framework_info::Capability {
            r#type: Some(kind.into()),
        };
        mesos::FrameworkInfo {
            user: self.user.clone(),
            name: format!("{FRAMEWORK_PREFIX}{}", self.name),
            roles: vec![self.role.to_string()],
            capabilities: capabilities.map(capability).collect(),
            checkpoint: Some(true),
            failover_timeout: Some(match self.detach {
                true => DETACHED_SECONDS,
                false => FAILOVER_SECONDS,
            }),
            ..mesos::FrameworkInfo::default()
        }
    }

    /// Returns the part of an offer for the task, if the offer contains it.
    pub(super) fn cover(&self, offered: &Resources) -> Option<Resources> {
        if !self.revocable {
            return offered.cover(&self.resources);
        }
        let cpus = self.resources.named(CPUS);
        let others = self.resources.iter().filter(|one| one.name() != CPUS);
        let others = others.cloned().collect();
        let revocable = offered.revocable().with_revocable(false).cover(&cpus)?;
        Some(revocable.with_revocable(true) + offered.cover(&others)?)
    }

    /// Returns the task on these resources of an offer.
    pub(super) fn task(
        &self,
        id: mesos::TaskId,
        agent_id: mesos::AgentId,
        resources: &Resources,
    ) -> anyhow::Result<mesos::TaskInfo> {
        Ok(mesos::TaskInfo {
            name: self.name.clone(),
            task_id: id,
            agent_id,
            resources: convert::to_resources(resources, convert::Format::PostRefinement)?,
            command: Some(self.command.clone()),
            container: (!self.volumes.is_empty()).then(|| {
                Box::new(mesos::ContainerInfo {
                    r#type: mesos::container_info::Type::Mesos.into(),
                    volumes: self.volumes.clone(),
                    ..mesos::ContainerInfo::default()
                })
            }),
            ..mesos::TaskInfo::default()
        })
    }
}

/// Returns the shell line that runs these words unchanged.
pub(super) fn quoted(words: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    let word = |word: &String| {
        if !word.is_empty() && word.chars().all(is_plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    let words: Vec<String> = words.iter().map(word).collect();
    format!("exec {}", words.join(" "))
}

/// Parses `HOST_PATH:CONTAINER_PATH`, writable unless `:ro` follows.
fn volume(text: &str) -> anyhow::Result<mesos::Volume> {
    let (paths, mode) = match text.strip_suffix(":ro") {
        Some(paths) => (paths, mesos::volume::Mode::Ro),
        None => (
            text.strip_suffix(":rw").unwrap_or(text),
            mesos::volume::Mode::Rw,
        ),
    };
    let paths = paths.split_once(':');
    let usable = paths.filter(|(host, inside)| host.starts_with('/') && !inside.is_empty());
    let Some((host, inside)) = usable else {
        bail!(
            "--volume={text}: write /path/of/the/agent:path/in/the/container, and append `:ro` \
             to forbid writing"
        );
    };
    Ok(mesos::Volume {
        mode: mode.into(),
        host_path: Some(host.to_owned()),
        container_path: inside.to_owned(),
        ..mesos::Volume::default()
    })
}

/// Parses `NAME=value` pairs, or one JSON object.
fn environment(given: &[String]) -> anyhow::Result<Option<mesos::Environment>> {
    let mut variables = Vec::new();
    for text in given {
        if text.trim_start().starts_with('{') {
            let object: std::collections::BTreeMap<String, String> =
                serde_json::from_str(text).context("--env is not a JSON object of strings")?;
            variables.extend(object);
        } else {
            let (name, value) = text.split_once('=').with_context(|| {
                format!("--env={text:?} has no `=`; give NAME=value or a JSON object")
            })?;
            variables.push((name.to_owned(), value.to_owned()));
        }
    }
    let variables: Vec<_> = variables
        .into_iter()
        .map(|(name, value)| mesos::environment::Variable {
            name,
            value: Some(value),
            ..mesos::environment::Variable::default()
        })
        .collect();
    Ok((!variables.is_empty()).then_some(mesos::Environment { variables }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_run_as_they_are() {
        let words = ["echo", "a b", "it's", "$HOME", ""].map(str::to_owned);
        assert_eq!(quoted(&words), r"exec echo 'a b' 'it'\''s' '$HOME' ''");
    }

    #[test]
    fn a_volume_names_both_paths() {
        let read = |text: &str| {
            let volume = volume(text).expect(text);
            (
                volume.host_path.clone().expect("a path"),
                volume.container_path.clone(),
                volume.mode(),
            )
        };
        let expected = |mode| ("/data".to_owned(), "in".to_owned(), mode);
        assert_eq!(read("/data:in"), expected(mesos::volume::Mode::Rw));
        assert_eq!(read("/data:in:rw"), expected(mesos::volume::Mode::Rw));
        assert_eq!(read("/data:in:ro"), expected(mesos::volume::Mode::Ro));
        for wrong in ["", "/data", "data:in", "/data:", ":ro"] {
            assert!(volume(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn environment_is_pairs_or_an_object() {
        let given = [
            "A=1".to_owned(),
            "B=x=y".to_owned(),
            r#"{"C": "3"}"#.to_owned(),
        ];
        let environment = environment(&given).expect("valid").expect("some");
        let pairs: Vec<_> = environment
            .variables
            .iter()
            .map(|v| format!("{}={}", v.name, v.value.as_deref().unwrap_or_default()))
            .collect();
        assert_eq!(pairs, ["A=1", "B=x=y", "C=3"]);
    }

    #[test]
    fn the_tasks_command_has_the_environment() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: Options,
        }
        let line = ["execute", "--command=env", "--env=A=1", "--env=B=2"];
        let Line { options } = clap::Parser::try_parse_from(line).expect("flags");
        let request = Request::new(&options).expect("valid");
        let (id, agent) = (mesos::TaskId::default(), mesos::AgentId::default());
        let task = request.task(id, agent, &Resources::default());
        let command = task.expect("a task").command.expect("a command");
        let environment = command.environment.as_ref().expect("an environment");
        let pairs = environment.variables.iter().map(|v| (&*v.name, v.value()));
        assert!(pairs.eq([("A", "1"), ("B", "2")]));
        assert_eq!(command.value(), "env");
    }

    #[test]
    fn gpu_request_accepts_gpu_agents() {
        use mesos::framework_info::capability::Type;
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: Options,
        }
        let read = |flags: &[&str]| {
            let line = ["execute", "--command=true", "--user=u"]
                .iter()
                .chain(flags);
            let Line { options } = clap::Parser::try_parse_from(line).expect("flags");
            Request::new(&options)
        };
        let opts_in = |flags: &[&str]| {
            let framework = read(flags).expect("valid").framework();
            let mut all = framework.capabilities.iter();
            all.any(|one| one.r#type() == Type::GpuResources)
        };
        assert!(opts_in(&["--gpus=1"]));
        assert!(opts_in(&["--resources=cpus:1;gpus:1"]));
        assert!(!opts_in(&[]) && !opts_in(&["--gpus=0"]));
        assert!(read(&["--gpus=1", "--resources=gpus:1"]).is_err());
        let resources = read(&["--gpus=2"]).expect("valid").resources;
        assert_eq!(resources.named("gpus").to_string(), "gpus:2");
    }

    #[test]
    fn revocable_cpus_come_only_from_oversubscription() {
        let line = [
            "execute",
            "--command=true",
            "--revocable",
            "--resources=cpus:1;mem:64",
        ];
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: Options,
        }
        let Line { options } = clap::Parser::try_parse_from(line).expect("flags");
        let request = Request::new(&options).expect("valid");
        let parse = |text| Resources::parse(text, &Role::star()).expect("resources");
        let revocable = parse("cpus:1.5").with_revocable(true);
        let offered = parse("cpus:4;mem:512") + revocable;
        let expected = parse("cpus:1").with_revocable(true) + parse("mem:64");
        assert_eq!(request.cover(&offered), Some(expected));
        assert_eq!(
            request.cover(&parse("cpus:4;mem:512")),
            None,
            "nothing is oversubscribed"
        );
        let capabilities = request.framework().capabilities;
        let kinds: Vec<_> = capabilities.iter().map(|one| one.r#type()).collect();
        assert!(kinds.contains(&mesos::framework_info::capability::Type::RevocableResources));
    }

    #[test]
    fn pair_without_value_is_refused() {
        assert!(environment(&["A".to_owned()]).is_err());
        assert!(environment(&["{\"A\": 1}".to_owned()]).is_err());
    }
}
