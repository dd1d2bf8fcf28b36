//! Flags of Mesos that Meseta does not have, each with its replacement, for users who type them.
//!
//! `docs/departures.md` has the same flags with the reasons; a test compares both.

use clap::error::{ContextKind, ContextValue, ErrorKind};

const NO_MODULES_OF_CODE: &str =
    "no code is loaded: use --acls=FILE, --credentials=FILE and certificates";
const NO_CRAM_MD5: &str = "CRAM-MD5 is not supported: use --credentials=FILE on the master, \
    --credential=FILE on the agent, or certificates";
const NO_LOOKUP: &str = "the daemon does not look addresses up: give --hostname=NAME, --ip=ADDRESS and \
    --advertise_ip=ADDRESS";
const LOG: &str = "the log goes to standard error; set MESETA_LOG=debug (or info, warn) in the environment to filter it";
const NO_ZOOKEEPER: &str = "ZooKeeper is not supported: masters elect their leader with \
    --registry=etcd and --etcd_endpoints=URLS; \
                            agents take all masters, as in --master=a:5050,b:5050";
const NO_PORT_MAPPING: &str =
    "the isolator network/port_mapping is missing: use --isolation=network/ports";
const NO_CNI: &str = "container networks are missing: tasks use the network of the host, with --isolation=network/ports";
const NO_IMAGES: &str =
    "container images and Docker are missing: tasks run from the file system of the host";
const NO_CSI: &str =
    "storage plug-ins are missing: use --resources with disks of type PATH or MOUNT";
const NO_XFS: &str =
    "XFS quotas are missing: use --isolation=disk/du with --enforce_container_disk_quota";
const NO_CACHE: &str = "the fetcher has no cache: each task fetches its URIs again";
const NO_HADOOP: &str =
    "Hadoop and relative URIs are missing: use http://, https:// or file:// URIs";
const OWN_EXECUTOR: &str =
    "leave it out: the agent runs command tasks itself and brings its own launcher";
const LOCAL_EXECUTORS: &str =
    "leave it out: executors connect over loopback, and the agent knows them by their container";

/// The flags of the master and the agent, with their replacements.
const ABSENT: &[(&[&str], &str)] = &[
    (
        &[
            "authenticate",
            "authenticate_frameworks",
            "authenticatee",
            "authenticators",
            "authentication_backoff_factor",
            "authentication_timeout_max",
            "authentication_timeout_min",
            "authentication_v0_timeout",
        ],
        NO_CRAM_MD5,
    ),
    (
        &[
            "authorizer",
            "authorizers",
            "hooks",
            "http_authenticators",
            "http_framework_authenticators",
            "secret_resolver",
            "disk_profile_adaptor",
        ],
        NO_MODULES_OF_CODE,
    ),
    (
        &[
            "hostname_lookup",
            "ip_discovery_command",
            "ip6",
            "ip6_discovery_command",
        ],
        NO_LOOKUP,
    ),
    (
        &[
            "initialize_driver_logging",
            "log_dir",
            "logbufsecs",
            "logging_level",
            "quiet",
            "external_log_file",
        ],
        LOG,
    ),
    (
        &[
            "master_detector",
            "zk_session_timeout",
            "zk",
            "quorum",
            "log_auto_initialize",
            "master_contender",
        ],
        NO_ZOOKEEPER,
    ),
    (
        &["memory_profiling"],
        "the profiler is missing: use perf or heaptrack",
    ),
    (
        &["registry_fetch_timeout", "registry_store_timeout"],
        "leave it out; with --registry=etcd, --etcd_lease_ttl=DURATION bounds the calls of the registry",
    ),
    (
        &["registry_strict"],
        "leave it out: the registry is always strict",
    ),
    (
        &["modules", "modules_dir"],
        "the master has no modules: use --acls=FILE and --credentials=FILE; only the agent has --modules",
    ),
    (
        &["max_executors_per_agent", "max_executors_per_slave"],
        NO_PORT_MAPPING,
    ),
    (
        &[
            "offer_constraints_re2_max_mem",
            "offer_constraints_re2_max_program_size",
        ],
        "leave it out: these limits are fixed",
    ),
    (
        &["publish_per_framework_metrics"],
        "leave it out: these metrics are always published",
    ),
    (
        &["agent_features"],
        "leave it out: all features of the agent are on",
    ),
    (
        &[
            "agent_subsystems",
            "slave_subsystems",
            "systemd_runtime_directory",
        ],
        "leave it out: systemd places the agent's own processes, as its unit says",
    ),
    (
        &[
            "appc_simple_discovery_uri_prefix",
            "appc_store_dir",
            "containerizers",
            "docker",
            "docker_config",
            "docker_ignore_runtime",
            "docker_kill_orphans",
            "docker_mesos_image",
            "docker_registry",
            "docker_remove_delay",
            "docker_socket",
            "docker_stop_timeout",
            "docker_store_dir",
            "docker_volume_checkpoint_dir",
            "docker_volume_chown",
            "image_gc_config",
            "image_providers",
            "image_provisioner_backend",
            "sandbox_directory",
            "default_container_info",
        ],
        NO_IMAGES,
    ),
    (
        &["csi_plugin_config_dir", "resource_provider_config_dir"],
        NO_CSI,
    ),
    (
        &[
            "network_cni_config_dir",
            "network_cni_metrics",
            "network_cni_plugins_dir",
            "network_cni_root_dir_persist",
            "default_container_dns",
        ],
        NO_CNI,
    ),
    (
        &[
            "ephemeral_ports_per_container",
            "eth0_name",
            "lo_name",
            "egress_burst",
            "egress_ceil_limit",
            "egress_flow_classifier_parent",
            "egress_rate_limit_per_container",
            "egress_rate_per_cpu",
            "egress_unique_flow_per_container",
            "ingress_burst",
            "ingress_ceil_limit",
            "ingress_isolate_existing_containers",
            "ingress_rate_limit_per_container",
            "ingress_rate_per_cpu",
            "maximum_egress_rate_limit",
            "maximum_ingress_rate_limit",
            "minimum_egress_rate_limit",
            "minimum_ingress_rate_limit",
            "network_enable_rate_statistics",
            "network_enable_snmp_statistics",
            "network_enable_socket_statistics_details",
            "network_enable_socket_statistics_summary",
            "network_link_speed",
            "network_rate_statistics_interval",
            "network_rate_statistics_window",
            "cgroups_net_cls_primary_handle",
            "cgroups_net_cls_secondary_handles",
        ],
        NO_PORT_MAPPING,
    ),
    (
        &["domain_socket_location", "http_executor_domain_sockets"],
        LOCAL_EXECUTORS,
    ),
    (
        &[
            "executor_reregistration_retry_interval",
            "http_command_executor",
            "launcher",
            "launcher_dir",
        ],
        OWN_EXECUTOR,
    ),
    (&["fetcher_cache_dir", "fetcher_cache_size"], NO_CACHE),
    (&["frameworks_home", "hadoop_home"], NO_HADOOP),
    (
        &["gc_non_executor_container_sandboxes"],
        "leave it out: sandboxes of nested containers go with that of their executor, after --gc_delay",
    ),
    (
        &["host_path_volume_force_creation"],
        "make the folder first: the path of a volume has to exist on the host",
    ),
    (
        &["http_heartbeat_interval"],
        "leave it out: heartbeats are sent every 15 seconds",
    ),
    (
        &["nvidia_gpu_devices"],
        "name gpus in --resources, and give the devices with --allowed_devices",
    ),
    (
        &["perf_duration", "perf_events", "perf_interval"],
        "count with perf itself: containers have perf groups with --isolation=cgroups/perf_event",
    ),
    (
        &["volume_gid_range"],
        "leave it out: volumes belong to the user of their task",
    ),
    (
        &[
            "xfs_kill_containers",
            "xfs_project_range",
            "xfs_quota_headroom",
        ],
        NO_XFS,
    ),
];

/// Returns the replacement for this flag of Mesos.
pub(super) fn replacement(flag: &str) -> Option<&'static str> {
    let flag = flag.trim_start_matches('-');
    let name = flag.split('=').next().unwrap_or_default();
    let name = name.strip_prefix("no-").unwrap_or(name).replace('-', "_");
    ABSENT
        .iter()
        .find(|(flags, _)| flags.contains(&name.as_str()))
        .map(|(_, instead)| *instead)
}

/// Returns the replacement for the unknown flag that this refusal names, if it names one.
pub(super) fn replacement_of(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let instead = replacement(shown)?;
    let flag = shown.split('=').next().unwrap_or_default();
    Some(format!(
        "{flag} is a flag of Mesos that Meseta does not have: {instead}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mesos_flag_matches_every_spelling() {
        for spelling in [
            "--zk",
            "zk",
            "--zk=zk://a/b",
            "--no-quiet",
            "--log-dir=/x",
            "log_dir",
        ] {
            assert!(replacement(spelling).is_some(), "{spelling}");
        }
        assert_eq!(replacement("--work_dir"), None);
        assert_eq!(replacement("--nosuch"), None);
    }
}
