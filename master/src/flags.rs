//! The master's flags: names, values and defaults of Mesos, unless stated otherwise.
//!
//! Each flag is declared once in this file; help, reference and `/flags` derive from the declaration.
//! [`Flags::options`] parses the values and reports invalid ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use meseta_access::rate_limits::RateLimits;
use meseta_allocator::SorterKind;
use meseta_daemon::advertised::{parse_advertised_ip, parse_ip, usual_loopback};
use meseta_daemon::flag_error::FlagError;
use meseta_etcd::EtcdFlags;
use meseta_proto::convert;
use meseta_proto::mesos::v1::DomainInfo;
use meseta_resources::{
    ByteSize, ByteSizeError, ResourceName, ResourceQuantities, Role, Scalar, parse_duration,
};

use crate::access_flags::AccessFlags;
use crate::budgets::MEMORY_BUDGET_MIN;
use crate::core::{AllocatorConfig, QuotaSemantics};
use crate::whitelist::Whitelist;

/// Flags of `meseta master`.
#[derive(Args, Clone, Debug)]
#[command(rename_all = "snake_case")]
pub struct Flags {
    /// Address to listen on. An address other than loopback needs --credentials and TLS, or --insecure. On a
    /// machine without 127.0.0.1, the default is ::1.
    #[arg(long, default_value_t = usual_loopback(), value_parser = parse_ip, value_name = "ADDRESS")]
    pub ip: IpAddr,

    /// Port to listen on, for HTTP and gRPC; 0 takes a free port.
    #[arg(long, default_value_t = 5050, value_name = "PORT")]
    pub port: u16,

    /// Address that the master tells clients, if it differs from the listening address. With --ip=0.0.0.0 or
    /// --ip=::, the default is the address from which this machine reaches other machines.
    #[arg(long, value_parser = parse_advertised_ip, value_name = "ADDRESS")]
    pub advertise_ip: Option<IpAddr>,

    /// Port that the master tells clients, if it differs from the listening port.
    #[arg(long, value_name = "PORT")]
    pub advertise_port: Option<u16>,

    /// Host name that the master tells clients. Default: the advertised address.
    #[arg(long, value_name = "NAME")]
    pub hostname: Option<String>,

    /// Name of the cluster, for display.
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,

    /// Region and zone of this master as JSON, `{"fault_domain":{"region":{"name":"eu"},"zone":{"name":"rack1"}}}`.
    /// Only frameworks with REGION_AWARE get offers from agents of other regions.
    #[arg(long, value_name = "JSON")]
    pub domain: Option<String>,

    /// Refuse agents that report no fault domain.
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub require_agent_domain: bool,

    /// File of host names, one per line: the master offers only agents on these hosts. The master rereads the file
    /// every five seconds.
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub whitelist: Option<PathBuf>,

    /// Maximum number of event streams of the operator API. A further stream closes the oldest stream.
    #[arg(long, default_value_t = 1000, value_name = "COUNT")]
    pub max_operator_event_stream_subscribers: usize,

    /// Directory of the registry and of the file with the master's address.
    #[arg(long, default_value = "/var/lib/meseta/master", value_name = "DIR")]
    pub work_dir: PathBuf,

    /// Storage of the registry: `embedded` (a file in the work directory), `in_memory` (lost at the end of the
    /// process), or `etcd`.
    #[arg(long, default_value = "embedded", value_name = "KIND")]
    pub registry: String,

    /// Etcd, which keeps the registry of several masters and elects one of them.
    #[command(flatten)]
    pub etcd: EtcdFlags,

    /// Listen on an address other than loopback without authentication, and allow the same actions as on loopback.
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub insecure: bool,

    /// Authentication, authorization and TLS.
    #[command(flatten)]
    pub access: AccessFlags,

    /// Time between batch allocations. The filter of a refused offer lasts at least this long.
    #[arg(long, default_value = "1secs", value_name = "DURATION")]
    pub allocation_interval: String,

    /// Time that an agent has to answer a ping.
    #[arg(
        long,
        alias = "slave_ping_timeout",
        default_value = "15secs",
        value_name = "DURATION"
    )]
    pub agent_ping_timeout: String,

    /// Number of unanswered pings after which an agent is unreachable.
    #[arg(
        long,
        alias = "max_slave_ping_timeouts",
        default_value_t = 5,
        value_name = "COUNT"
    )]
    pub max_agent_ping_timeouts: u32,

    /// Maximum rate of agents that become unreachable, as `COUNT/DURATION`; `none` sets no limit.
    #[arg(
        long,
        alias = "slave_removal_rate_limit",
        default_value = "1/20secs",
        value_name = "RATE"
    )]
    pub agent_removal_rate_limit: String,

    /// Part of all agents that may become unreachable at once, by silence or after a restart of the master. If more
    /// agents are silent (and at least ten), the master may be cut off itself and marks none of them unreachable.
    /// The master resumes after the number of silent agents has fallen for the time of all pings plus 30 seconds.
    #[arg(
        long,
        alias = "recovery_slave_removal_limit",
        default_value = "50%",
        value_name = "PERCENT"
    )]
    pub recovery_agent_removal_limit: String,

    /// Time that the agents in the registry have to reregister after a restart of the master.
    #[arg(
        long,
        alias = "slave_reregister_timeout",
        default_value = "10mins",
        value_name = "DURATION"
    )]
    pub agent_reregister_timeout: String,

    /// Time after which the master rescinds an unused offer. Default: never.
    #[arg(long, value_name = "DURATION")]
    pub offer_timeout: Option<String>,

    /// Minimum resources of an offer: alternatives separated by `|`, each with amounts by name separated by `;`.
    #[arg(long, default_value = "cpus:0.01|mem:32", value_name = "QUANTITIES")]
    pub min_allocatable_resources: String,

    /// Resources that do not count towards a role's share, separated by commas.
    #[arg(long, value_name = "NAMES")]
    pub fair_sharing_excluded_resource_names: Option<String>,

    /// Offer agents with GPUs only to frameworks with the GPU_RESOURCES capability.
    #[arg(long, default_value_t = true, value_name = "BOOL", action = clap::ArgAction::Set)]
    pub filter_gpu_resources: bool,

    /// The only permitted roles, separated by commas; `*` is always permitted.
    #[arg(long, value_name = "ROLES")]
    pub roles: Option<String>,

    /// Weights of roles, as `role=weight,...`. The master ignores this flag once the registry has weights.
    #[arg(long, value_name = "WEIGHTS")]
    pub weights: Option<String>,

    /// Meaning of a quota that /quota or SET_QUOTA sets. `seed`: the guarantee also limits everything that is
    /// neither reserved nor revocable. `head`: as in Mesos 1.12.
    #[arg(long, default_value = "seed", value_name = "SEMANTICS")]
    pub quota_semantics: String,

    /// Name of the allocator; `hierarchical` is the only one.
    #[arg(long, default_value = "hierarchical", value_name = "NAME")]
    pub allocator: String,

    /// Order of the roles: `drf`, by dominant share, or `random`, by weight.
    #[arg(long, default_value = "drf", value_name = "SORTER")]
    pub role_sorter: String,

    /// Order of the frameworks within a role: `drf` or `random`.
    #[arg(long, default_value = "drf", value_name = "SORTER")]
    pub framework_sorter: String,

    /// Part of the agents known before a restart that must be back before the master makes offers, if a quota
    /// exists.
    #[arg(long, default_value_t = 0.8, value_name = "FRACTION")]
    pub allocator_agent_recovery_factor: f64,

    /// Maximum time without offers after a restart, if a quota exists.
    #[arg(long, default_value = "10mins", value_name = "DURATION")]
    pub allocator_recovery_timeout: String,

    /// File that receives the master's log. Operators can read the file over HTTP as `/master/log`.
    #[arg(long, value_name = "FILE")]
    pub external_log_file: Option<PathBuf>,

    /// Directory of a web page to serve at `/` in place of Meseta's page; the page of Mesos works.
    #[arg(long, value_name = "DIR")]
    pub webui_dir: Option<PathBuf>,

    /// Number of ended frameworks to remember.
    #[arg(long, default_value_t = 50, value_name = "COUNT")]
    pub max_completed_frameworks: usize,

    /// Number of ended tasks to remember for each framework.
    #[arg(long, default_value_t = 1000, value_name = "COUNT")]
    pub max_completed_tasks_per_framework: usize,

    /// Number of tasks on lost agents to remember for each framework.
    #[arg(long, default_value_t = 1000, value_name = "COUNT")]
    pub max_unreachable_tasks_per_framework: usize,

    /// Memory for queues and history: unread events and frames, requests in progress, ended tasks. The master
    /// disconnects peers that exceed their part, or asks them to retry.
    #[arg(long, default_value = "4GB", value_name = "BYTES")]
    pub memory_budget: String,

    /// Time between clean-ups of the lists of lost agents.
    #[arg(long, default_value = "15mins", value_name = "DURATION")]
    pub registry_gc_interval: String,

    /// Maximum amount by which agents may raise the registry's epoch in the life of this master, after a restore
    /// from an older copy. The master refuses agents that report a higher epoch, and names the required value.
    #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
    pub registry_epoch_rise_max: u64,

    /// Time for which the registry remembers a lost agent.
    #[arg(long, default_value = "2weeks", value_name = "DURATION")]
    pub registry_max_agent_age: String,

    /// Number of lost agents that the registry remembers.
    #[arg(long, default_value_t = 102_400, value_name = "COUNT")]
    pub registry_max_agent_count: usize,

    /// Let frameworks run tasks as root.
    #[arg(long, default_value_t = true, value_name = "BOOL", action = clap::ArgAction::Set)]
    pub root_submissions: bool,
}

/// The parsed values of flags with a syntax of their own.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) rate_limits: Option<RateLimits>,
    pub(crate) allocation_interval: Duration,
    pub(crate) agent_ping_timeout: Duration,
    pub(crate) agent_reregister_timeout: Duration,
    pub(crate) agent_removal_interval: Duration,
    pub(crate) agent_removal_percent: u32,
    pub(crate) offer_timeout: Option<Duration>,
    pub(crate) registry_gc_interval: Duration,
    pub(crate) registry_max_agent_age: Duration,
    pub(crate) memory_budget: usize,
    pub(crate) domain: Option<DomainInfo>,
    pub(crate) whitelist: Option<Whitelist>,
    pub(crate) roles: Option<BTreeSet<Role>>,
    pub(crate) weights: BTreeMap<Role, f64>,
    pub(crate) quota_semantics: QuotaSemantics,
    pub(crate) allocator: AllocatorConfig,
}

impl Options {
    /// Whether the flag gives weights that the registry overrides.
    pub(crate) fn ignores_weights(&self, registered: Option<&[(String, f64)]>) -> bool {
        !self.weights.is_empty() && registered.is_some()
    }

    /// The roles of the list without a weight, neither here nor in the registry.
    pub(crate) fn roles_without_weight<'a>(
        &'a self,
        registered: Option<&'a [(String, f64)]>,
    ) -> impl Iterator<Item = &'a Role> {
        let is_set = move |role: &Role| match registered {
            None => self.weights.contains_key(role),
            Some(all) => all.iter().any(|(known, _)| known == role.as_str()),
        };
        let listed = self.roles.iter().flatten();
        listed.filter(move |role| !role.is_star() && !is_set(role))
    }
}

/// The longest interval of any periodic action, so that deadlines stay representable.
const INTERVAL_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

impl Flags {
    /// Checks every flag and parses those with a syntax of their own.
    pub(crate) fn options(&self) -> Result<Options, FlagError> {
        if !(1..=1_000).contains(&self.max_agent_ping_timeouts) {
            let value = self.max_agent_ping_timeouts.to_string();
            let reason = "must be from 1 to 1000";
            return Err(FlagError::new("max_agent_ping_timeouts", &value, reason));
        }
        if self.max_operator_event_stream_subscribers == 0 {
            let reason = "must be at least 1";
            return Err(FlagError::new(
                "max_operator_event_stream_subscribers",
                "0",
                reason,
            ));
        }
        self.check_allocator()?;
        let rate_limits = self.access.limits()?;
        let second = Duration::from_secs(1);
        let minute = Duration::from_secs(60);
        Ok(Options {
            rate_limits,
            allocation_interval: interval(
                "allocation_interval",
                &self.allocation_interval,
                Duration::from_millis(1),
                INTERVAL_MAX,
            )?,
            agent_ping_timeout: interval(
                "agent_ping_timeout",
                &self.agent_ping_timeout,
                second,
                15 * minute,
            )?,
            agent_reregister_timeout: interval(
                "agent_reregister_timeout",
                &self.agent_reregister_timeout,
                second,
                INTERVAL_MAX,
            )?,
            agent_removal_interval: removal_interval(&self.agent_removal_rate_limit)?,
            agent_removal_percent: removal_percent(&self.recovery_agent_removal_limit)?,
            offer_timeout: self
                .offer_timeout
                .as_deref()
                .map(|text| interval("offer_timeout", text, Duration::from_nanos(1), INTERVAL_MAX))
                .transpose()?,
            registry_gc_interval: interval(
                "registry_gc_interval",
                &self.registry_gc_interval,
                second,
                INTERVAL_MAX,
            )?,
            registry_max_agent_age: interval(
                "registry_max_agent_age",
                &self.registry_max_agent_age,
                second,
                INTERVAL_MAX,
            )?,
            memory_budget: self.memory_budget()?,
            domain: self.domain.as_deref().map(domain).transpose()?,
            whitelist: self.whitelist.as_deref().map(whitelist).transpose()?,
            roles: self.roles.as_deref().map(roles).transpose()?,
            weights: self
                .weights
                .as_deref()
                .map(weights)
                .transpose()?
                .unwrap_or_default(),
            quota_semantics: self.quota_semantics()?,
            allocator: AllocatorConfig {
                min_allocatable: min_allocatable(&self.min_allocatable_resources)?,
                fair_sharing_excluded: excluded(
                    self.fair_sharing_excluded_resource_names.as_deref(),
                )?,
                filter_gpu_resources: self.filter_gpu_resources,
                role_sorter: sorter("role_sorter", &self.role_sorter)?,
                framework_sorter: sorter("framework_sorter", &self.framework_sorter)?,
                recovery_percent: self.recovery_percent()?,
                recovery_timeout: interval(
                    "allocator_recovery_timeout",
                    &self.allocator_recovery_timeout,
                    Duration::ZERO,
                    INTERVAL_MAX,
                )?,
                seed: 0,
            },
        })
    }

    fn memory_budget(&self) -> Result<usize, FlagError> {
        let error = |reason: String| FlagError::new("memory_budget", &self.memory_budget, reason);
        let size: ByteSize = self
            .memory_budget
            .parse()
            .map_err(|reason: ByteSizeError| error(reason.to_string()))?;
        let least = ByteSize::from_bytes(MEMORY_BUDGET_MIN);
        if size < least {
            return Err(error(format!("must be at least {least}")));
        }
        usize::try_from(size.as_bytes()).map_err(|reason| error(reason.to_string()))
    }

    fn quota_semantics(&self) -> Result<QuotaSemantics, FlagError> {
        match self.quota_semantics.as_str() {
            "seed" => Ok(QuotaSemantics::Seed),
            "head" => Ok(QuotaSemantics::Head),
            other => Err(FlagError::new(
                "quota_semantics",
                other,
                "must be seed or head",
            )),
        }
    }

    fn recovery_percent(&self) -> Result<u32, FlagError> {
        let factor = self.allocator_agent_recovery_factor;
        let percent = (0_u32..=100).find(|percent| f64::from(*percent) >= factor * 100.0 - 1e-9);
        percent.filter(|_| factor >= 0.0).ok_or_else(|| {
            FlagError::new(
                "allocator_agent_recovery_factor",
                &factor.to_string(),
                "must be from 0 to 1",
            )
        })
    }

    /// Refuses any other allocator.
    fn check_allocator(&self) -> Result<(), FlagError> {
        // The names of Mesos for this kind of allocator.
        const NAMES: [&str; 3] = ["hierarchical", "HierarchicalDRF", "mesos.HierarchicalDRF"];
        if NAMES.contains(&self.allocator.as_str()) {
            return Ok(());
        }
        Err(FlagError::new(
            "allocator",
            &self.allocator,
            "is unknown: give 'hierarchical'; allocators cannot be loaded as modules",
        ))
    }
}

fn domain(text: &str) -> Result<DomainInfo, FlagError> {
    convert::parse_domain(text).map_err(|reason| FlagError::new("domain", text, reason))
}

fn whitelist(path: &Path) -> Result<Whitelist, FlagError> {
    Whitelist::read(path)
        .map_err(|reason| FlagError::new("whitelist", &path.display().to_string(), reason))
}

fn sorter(flag: &'static str, name: &str) -> Result<SorterKind, FlagError> {
    match name {
        "drf" => Ok(SorterKind::Drf),
        "random" => Ok(SorterKind::Random),
        other => Err(FlagError::new(flag, other, "must be drf or random")),
    }
}

fn interval(
    flag: &'static str,
    text: &str,
    min: Duration,
    max: Duration,
) -> Result<Duration, FlagError> {
    let duration = parse_duration(text).map_err(|error| FlagError::new(flag, text, error))?;
    if duration < min || duration > max {
        let reason = format!(
            "must be from {} to {}",
            meseta_resources::format_duration(min),
            meseta_resources::format_duration(max)
        );
        return Err(FlagError::new(flag, text, reason));
    }
    Ok(duration)
}

/// Parses a percentage of all agents.
fn removal_percent(text: &str) -> Result<u32, FlagError> {
    let percent = text.trim().strip_suffix('%');
    let percent = percent.and_then(|percent| percent.trim().parse().ok());
    percent.filter(|percent| *percent <= 100).ok_or_else(|| {
        let reason = "is not a percentage such as 50%".to_owned();
        FlagError::new("recovery_agent_removal_limit", text, reason)
    })
}

/// The interval between two removals at the given rate.
fn removal_interval(text: &str) -> Result<Duration, FlagError> {
    let error = |reason: String| FlagError::new("agent_removal_rate_limit", text, reason);
    if text == "none" {
        return Ok(Duration::ZERO);
    }
    let (count, duration) = text
        .split_once('/')
        .ok_or_else(|| error("is not of the form COUNT/DURATION, nor `none`".to_owned()))?;
    let count: u32 = count
        .trim()
        .parse()
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| error("COUNT must be a whole number above 0".to_owned()))?;
    let duration = parse_duration(duration.trim()).map_err(|reason| error(reason.to_string()))?;
    let interval = duration.min(INTERVAL_MAX) / count;
    if interval.is_zero() {
        // `none` is the explicit form of no interval.
        let reason = "is too fast: no time is left between two agents; give `none` for no limit";
        return Err(error(reason.to_owned()));
    }
    Ok(interval)
}

fn roles(text: &str) -> Result<BTreeSet<Role>, FlagError> {
    let mut roles = BTreeSet::from([Role::star()]);
    for name in text
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
    {
        roles.insert(Role::new(name).map_err(|error| FlagError::new("roles", text, error))?);
    }
    Ok(roles)
}

fn weights(text: &str) -> Result<BTreeMap<Role, f64>, FlagError> {
    let mut weights = BTreeMap::new();
    for pair in text
        .split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
    {
        let error = |reason: String| FlagError::new("weights", text, reason);
        let (role, weight) = pair
            .split_once('=')
            .ok_or_else(|| error(format!("{pair:?} is not of the form role=weight")))?;
        let role = Role::new(role).map_err(|reason| error(reason.to_string()))?;
        let weight: f64 = weight
            .parse()
            .ok()
            .filter(|weight: &f64| weight.is_finite() && *weight > 0.0)
            .ok_or_else(|| error(format!("the weight of '{role}' must be a number above 0")))?;
        if weights.insert(role.clone(), weight).is_some() {
            return Err(error(format!("role '{role}' has two weights")));
        }
    }
    Ok(weights)
}

fn min_allocatable(text: &str) -> Result<Vec<ResourceQuantities>, FlagError> {
    let error = |reason: String| FlagError::new("min_allocatable_resources", text, reason);
    let mut alternatives = Vec::new();
    for alternative in text
        .split('|')
        .filter(|alternative| !alternative.trim().is_empty())
    {
        let mut quantities = ResourceQuantities::new();
        for pair in alternative
            .split(';')
            .map(str::trim)
            .filter(|pair| !pair.is_empty())
        {
            let (name, amount) = pair
                .split_once(':')
                .ok_or_else(|| error(format!("{pair:?} is not of the form name:amount")))?;
            let name =
                ResourceName::new(name.trim()).map_err(|reason| error(reason.to_string()))?;
            let amount: f64 = amount
                .trim()
                .parse()
                .map_err(|_| error(format!("the amount of {name} is not a number")))?;
            let amount =
                Scalar::quantity_from_f64(amount).map_err(|reason| error(reason.to_string()))?;
            quantities.increase(&name, amount);
        }
        alternatives.push(quantities);
    }
    Ok(alternatives)
}

fn excluded(text: Option<&str>) -> Result<BTreeSet<ResourceName>, FlagError> {
    let text = text.unwrap_or_default();
    text.split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(|name| {
            ResourceName::new(name).map_err(|error| {
                FlagError::new("fair_sharing_excluded_resource_names", text, error)
            })
        })
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug)]
    struct Command {
        #[command(flatten)]
        flags: Flags,
    }

    /// The flags of a master with these arguments.
    pub(crate) fn flags(arguments: &[&str]) -> Flags {
        let all = ["master"].iter().chain(arguments);
        Command::try_parse_from(all).unwrap().flags
    }

    #[test]
    fn the_defaults_are_those_of_mesos() {
        let options = flags(&[]).options().unwrap();
        assert_eq!(options.allocation_interval, Duration::from_secs(1));
        assert_eq!(options.agent_ping_timeout, Duration::from_secs(15));
        assert_eq!(options.agent_reregister_timeout, Duration::from_secs(600));
        assert_eq!(options.offer_timeout, None);
        assert_eq!(options.roles, None);
        let min: Vec<_> = options
            .allocator
            .min_allocatable
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(min, ["cpus:0.01", "mem:32"]);
    }

    #[test]
    fn values_with_a_syntax_are_read() {
        let options = flags(&[
            "--weights=a=2,b/c=0.5",
            "--roles=a, b/c",
            "--offer_timeout=2mins",
            "--agent_removal_rate_limit=2/1mins",
            "--min_allocatable_resources=cpus:1;mem:64|gpus:1",
            "--fair_sharing_excluded_resource_names=gpus",
            "--ip=0.0.0.0",
            "--insecure",
        ])
        .options()
        .unwrap();
        let weights: Vec<_> = options
            .weights
            .iter()
            .map(|(role, weight)| (role.as_str(), *weight))
            .collect();
        assert_eq!(weights, [("a", 2.0), ("b/c", 0.5)]);
        let roles: Vec<_> = options.roles.iter().flatten().map(Role::as_str).collect();
        assert_eq!(roles, ["*", "a", "b/c"]);
        assert_eq!(options.offer_timeout, Some(Duration::from_secs(120)));
        assert_eq!(options.agent_removal_interval, Duration::from_secs(30));
        let default = flags(&[]).options().unwrap();
        assert_eq!(default.agent_removal_interval, Duration::from_secs(20));
        assert_eq!(default.agent_removal_percent, 50);
        let unlimited = flags(&["--agent_removal_rate_limit=none"]);
        assert!(
            unlimited
                .options()
                .unwrap()
                .agent_removal_interval
                .is_zero()
        );
        assert_eq!(options.allocator.min_allocatable.len(), 2);
    }

    /// Such a rate was accepted, and meant no limit.
    #[test]
    fn removal_rate_without_duration_is_refused() {
        for rate in ["1/0secs", "1000000000/1ns"] {
            let given = flags(&[&format!("--agent_removal_rate_limit={rate}")]);
            let error = given.options().expect_err(rate).to_string();
            assert!(error.contains("`none`"), "{error}");
        }
    }

    #[test]
    fn roles_without_a_weight_are_named() {
        let options = flags(&["--roles=a,b,c", "--weights=a=2"])
            .options()
            .unwrap();
        let names = |registered: Option<&[(String, f64)]>| -> Vec<String> {
            let roles = options.roles_without_weight(registered);
            roles.map(ToString::to_string).collect()
        };
        assert_eq!(names(None), ["b", "c"]);
        let registered = [("b".to_owned(), 1.0)];
        assert_eq!(
            names(Some(&registered)),
            ["a", "c"],
            "--weights is ignored then"
        );
        assert!(options.ignores_weights(Some(&registered)) && !options.ignores_weights(None));
    }

    #[test]
    fn invalid_values_name_their_flag() {
        for argument in [
            "--allocation_interval=fast",
            "--allocation_interval=0secs",
            "--agent_ping_timeout=1hrs",
            "--max_agent_ping_timeouts=0",
            "--weights=a",
            "--weights=a=0",
            "--weights=a=NaN",
            "--weights=a=1,a=2",
            "--weights=/a=1",
            "--roles=a//b",
            "--min_allocatable_resources=cpus",
            "--min_allocatable_resources=cpus:-1",
            "--min_allocatable_resources=cpus:inf",
            "--offer_timeout=0secs",
            "--agent_removal_rate_limit=1",
            "--agent_removal_rate_limit=0/1mins",
            "--agent_removal_rate_limit=1/x",
            "--recovery_agent_removal_limit=101%",
            "--recovery_agent_removal_limit=half",
            "--rate_limits={}x",
            "--domain=eu",
            "--whitelist=/no/such/file",
            "--max_operator_event_stream_subscribers=0",
        ] {
            let (flag, _) = argument["--".len()..].split_once('=').unwrap();
            let error = flags(&[argument]).options().unwrap_err();
            assert_eq!(error.flag, flag, "{argument}");
            assert!(
                error.to_string().starts_with(&format!("--{flag}=")),
                "{error}"
            );
        }
    }

    #[test]
    fn master_on_ipv6_advertises_its_address() {
        for (arguments, listens, ip, number, address) in [
            (
                &[][..],
                "10.0.0.1:5050",
                "10.0.0.1",
                0x0100_000a,
                "10.0.0.1:5050",
            ),
            (&[], "[::1]:5050", "::1", 0, "[::1]:5050"),
            (&[], "[fd00::7]:5051", "fd00::7", 0, "[fd00::7]:5051"),
            (
                &[],
                "[::ffff:10.0.0.1]:5050",
                "10.0.0.1",
                0x0100_000a,
                "10.0.0.1:5050",
            ),
            (
                &["--advertise_ip=fd00::9"],
                "0.0.0.0:5050",
                "fd00::9",
                0,
                "[fd00::9]:5050",
            ),
            (
                &["--advertise_ip=fd00::9", "--advertise_port=80"],
                "[::]:5050",
                "fd00::9",
                0,
                "[fd00::9]:80",
            ),
        ] {
            let identity = crate::run::identity(&flags(arguments), listens.parse().unwrap());
            assert_eq!(identity.pid(), format!("master@{address}"), "{listens}");
            assert_eq!(identity.address(), address);
            let told = identity.to_wire();
            assert_eq!(told.ip, number);
            assert_eq!(told.address.unwrap().ip.as_deref(), Some(ip));
            assert_eq!(told.hostname.as_deref(), Some(ip));
        }
        let named = flags(&["--hostname=m1"]);
        let identity = crate::run::identity(&named, "[::1]:5050".parse().unwrap());
        assert_eq!(identity.address(), "m1:5050");
    }

    #[test]
    fn every_flag_reaches_the_core() {
        let core = |arguments: &[&str]| {
            let flags = flags(arguments);
            let identity = crate::run::identity(&flags, "127.0.0.1:5050".parse().unwrap());
            let config = crate::run::config(&flags, flags.options().unwrap(), identity);
            format!("{config:?}")
        };
        let defaults = core(&[]);
        let whitelist = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(whitelist.path(), "listed\n").unwrap();
        let whitelist = format!("whitelist={}", whitelist.path().display());
        // Without a second text, the core's name equals the flag's.
        for (flag, told) in [
            ("allocation_interval=3secs", ""),
            ("agent_ping_timeout=3secs", ""),
            ("max_agent_ping_timeouts=3", ""),
            ("agent_reregister_timeout=3secs", ""),
            (
                "agent_removal_rate_limit=1/3secs",
                "agent_removal_interval: 3s,",
            ),
            (
                "recovery_agent_removal_limit=3%",
                "agent_removal_percent: 3,",
            ),
            ("offer_timeout=3secs", "offer_timeout: Some(3s),"),
            ("max_completed_frameworks=3", ""),
            ("max_completed_tasks_per_framework=3", ""),
            ("max_unreachable_tasks_per_framework=3", ""),
            ("registry_max_agent_age=3secs", ""),
            ("registry_max_agent_count=3", ""),
            ("registry_gc_interval=3secs", ""),
            ("registry_epoch_rise_max=3", "registry_epoch_rise_max: 3,"),
            ("memory_budget=2GB", "history_per_framework: 33554432,"),
            ("root_submissions=false", ""),
            ("require_agent_domain=true", ""),
            (&whitelist, "\"listed\""),
            ("roles=dev", "\"dev\""),
            ("weights=dev=7.5", "7.5"),
            ("quota_semantics=head", "quota_semantics: Head,"),
            ("filter_gpu_resources=false", ""),
            ("role_sorter=random", "role_sorter: Random,"),
            ("framework_sorter=random", "framework_sorter: Random,"),
            (
                "allocator_agent_recovery_factor=0.3",
                "recovery_percent: 30,",
            ),
            ("allocator_recovery_timeout=3secs", "recovery_timeout: 3s,"),
            ("fair_sharing_excluded_resource_names=gpus", "\"gpus\""),
            (
                "min_allocatable_resources=disk:3",
                "min_allocatable: [disk:3]",
            ),
        ] {
            let same = format!("{},", flag.replace("secs", "s").replace('=', ": "));
            let told = if told.is_empty() { &same } else { told };
            let config = core(&[&format!("--{flag}")]);
            assert!(config.contains(told), "{flag}: {config}");
            assert!(!defaults.contains(told), "{flag}: {defaults}");
        }
        assert!(core(&["--require_agent_domain"]).contains("require_agent_domain: true"));
    }
}
