//! The list of the agent's metrics: name and help of every family.
//!
//! A test compares `docs/metrics.md` with a scrape. Names of counters, and no others, end in `_total`.

/// All families except those of oversubscription, one a line: the name, and its help after the first blank. The series
/// of containers have the labels `container_id`, `framework_id`, `executor_id` and `role`.
pub(super) const FAMILIES: &str = "\
meseta_agent_build_info Always 1, with the version and the commit as labels.
meseta_agent_registered Whether the agent is registered with a master.
meseta_agent_disk_writable 1 if the agent can write checkpoints and the disk has room; with 0, the agent takes no tasks.
meseta_agent_disk_silent_seconds Seconds without an answer from the disk of the work directory; 0 while the disk answers. After 30 seconds, the agent takes no tasks and informs the master.
meseta_agent_master_epoch Epoch of the master that the agent obeys; it grows with each leader.
meseta_agent_uptime_seconds Time since the agent was started.
meseta_agent_recovery_duration_seconds Duration of the recovery after the start.
meseta_agent_recovery_errors_total Checkpoints that could not be read.
meseta_agent_frameworks Frameworks with work on this agent.
meseta_agent_live_tasks Tasks on this agent that have not ended, by state (`task_running`).
meseta_agent_task_ends_total Tasks that ended, by their last state (`task_failed`).
meseta_agent_tasks Deprecated: meseta_agent_live_tasks. Tasks on this agent, by state.
meseta_agent_tasks_ended_total Deprecated: meseta_agent_task_ends_total. Tasks that ended, by their last state.
meseta_agent_status_updates_total Status updates, accepted or rejected.
meseta_agent_container_launch_errors_total Containers that could not be launched.
meseta_agent_container_destroy_errors_total Failed attempts to destroy a container.
meseta_agent_limits_lost_total Times that the agent found the cgroup of a container removed: its limits are no longer enforced.
meseta_agent_limits_restored_total Times that the limits of a container differed from the requested limits, and the agent set them again.
meseta_agent_supervisors_stopped_total Times that the agent found the supervisor of a container stopped (SIGSTOP): until it continues, the agent does not notice the end of the task.
meseta_agent_processes_moved_total Times that the agent found a process of a container outside the container's cgroups: its limits and counters do not include the process.
meseta_agent_looks_repeated_total Repeated reads of a container, its record or a checkpoint, after a lack of descriptors or memory or a device error.
meseta_agent_framework_messages_dropped_total Dropped messages between frameworks and executors, by the receiver that did not read them.
meseta_agent_executor_streams_ended_total Streams to executors that the agent ended because the executor did not read.
meseta_agent_resource_amount The agent's resources, by kind: total, or used by live tasks; memory and disk in bytes.
meseta_agent_resources Deprecated: meseta_agent_resource_amount. The agent's resources, by name (MB for mem and disk).
meseta_agent_resources_allocated Deprecated: meseta_agent_resource_amount. Resources of live tasks, without oversubscribed resources.
meseta_agent_container_cpu_user_seconds_total CPU time in user mode.
meseta_agent_container_cpu_system_seconds_total CPU time in the kernel.
meseta_agent_container_cpus_requested CPUs that were requested.
meseta_agent_container_cpus_limit CPU limit, if the container has one.
meseta_agent_container_cpu_periods_total Enforcement periods with work to do.
meseta_agent_container_cpu_throttled_periods_total Periods that were cut short.
meseta_agent_container_cpu_throttled_seconds_total Time spent throttled.
meseta_agent_container_memory_bytes Charged memory, by kind, and in total.
meseta_agent_container_memory_max_bytes Maximum of the charged memory.
meseta_agent_container_memory_requested_bytes Memory that was requested.
meseta_agent_container_memory_limit_bytes Memory limit, if the container has one.
meseta_agent_container_oom_kills_total Processes killed by the OOM killer.
meseta_agent_container_processes Processes in the container.
meseta_agent_container_threads Threads in the container.
meseta_agent_container_threads_limit Limit on threads.
meseta_agent_container_forks_refused_total Forks refused by the limit on threads.
meseta_agent_container_pressure_seconds_total Time stalled for lack of a resource: some tasks, or all.
meseta_agent_container_cpus_used Average CPU usage over the last ten seconds.
meseta_agent_container_memory_pressure_events_total Memory pressure events of the kernel, by level, since the agent watches them (cgroup v1).
meseta_agent_container_io_bytes_total Bytes moved from and to block devices.
meseta_agent_container_io_operations_total Operations on block devices.
meseta_agent_monitor_sweep_seconds Duration of the last sweep over all containers.
meseta_agent_host_cpu_busy_seconds_total Time of all processors not spent idling, since boot.
meseta_agent_host_pressure_seconds_total Time that the machine was stalled for lack of a resource, since boot: some tasks, or all.
meseta_agent_host_pressure_ratio Share of the last ten seconds that the machine was stalled.
meseta_agent_host_cpus Processors online.
meseta_agent_host_load Load average, by minutes.
meseta_agent_host_memory_bytes The machine's memory, by kind.
meseta_agent_tasks_out_of_memory_total Tasks that ended at a memory limit, by the role of their executor; 0 for roles with tasks here. The empty role stands for roles that the reader may not see.
meseta_agent_log_lines_left_out_total Log lines left out because too many had the same cause.
process_cpu_seconds_total CPU time of the agent itself.
process_resident_memory_bytes Resident memory of the agent itself.
process_open_fds Open file descriptors of the agent itself.
process_max_fds Limit on open file descriptors of the agent.
meseta_agent_certificate_end_seconds Expiry of the server certificate, in seconds since the Unix epoch.
process_start_time_seconds Start of the agent since the Unix epoch.";

#[cfg(test)]
mod tests {
    use super::super::families;
    use super::super::text::write_head;

    /// Also those for which this machine's kernel has no values.
    #[test]
    fn every_family_is_in_the_reference() {
        let page = include_str!("../../../docs/metrics.md");
        let page = page.split("## `meseta agent`").nth(1).unwrap_or_default();
        for (name, help) in families() {
            let start = format!("| `{name}` | ");
            let row = page.lines().find_map(|line| line.strip_prefix(&start));
            let row = row.unwrap_or_else(|| panic!("not in docs/metrics.md: {name}"));
            let (kind, meaning) = row.split_once(" | ").expect("a type");
            assert_eq!(meaning, format!("{help} |"), "{name}");
            let mut head = String::new();
            write_head(&mut head, name);
            let line = format!("# TYPE {name} {kind}\n");
            assert!(head.ends_with(&line), "{line} is not {head}");
        }
    }

    #[test]
    fn only_counters_end_in_total() {
        let page = include_str!("../../../docs/metrics.md");
        let page = page.split("## `meseta agent`").nth(1).unwrap_or_default();
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let mut kinds = rows.filter_map(|row| row.split_once("` | "));
        assert!(families().count() <= kinds.clone().count());
        assert!(kinds.all(|(name, row)| name.ends_with("_total") == row.starts_with("counter |")));
    }

    #[test]
    fn dashboard_uses_existing_metrics() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/grafana/nodes.json");
        let text = std::fs::read_to_string(path).expect("the dashboard");
        let _: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let mut shown = 0;
        for (at, _) in text.match_indices("meseta_agent_") {
            let rest = text.get(at..).unwrap_or_default();
            let name = rest.split(|c: char| !is_name(c)).next().unwrap_or_default();
            assert!(families().any(|(known, _)| known == name), "{name}");
            shown += 1;
        }
        assert!(shown > 20, "{shown}");
    }

    /// Regression: the series of a container end with it, and a memory kill ends most containers, so that panels showed
    /// none.
    #[test]
    fn memory_panels_count_ended_containers() {
        let text = include_str!("../../../docs/grafana/nodes.json");
        let page: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let panels = page["panels"].as_array().expect("panels");
        let mut found = 0;
        for panel in panels.iter().map(serde_json::Value::to_string) {
            if panel.contains("meseta_agent_container_oom_kills_total") {
                found += 1;
                let of_tasks = panel.contains("meseta_agent_tasks_out_of_memory_total");
                assert!(of_tasks, "{panel}");
            }
        }
        assert!(found > 0);
    }
}
