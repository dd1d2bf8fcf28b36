//! The list of the agent's metrics: name and help of every family.
//!
//! A test compares `docs/metrics.md` with a scrape. Names of counters, and no others, end in `_total`.

/// All families except those of oversubscription, one a line: the name, and its help after the first blank. The series
/// of containers have the labels `container_id`, `framework_id`, `executor_id` and `role`.
pub(super) const FAMILIES: &str = "\
meseta_agent_build_info Always 1, with the version and the commit as labels.
meseta_agent_registered Whether the agent is registered with a master.
meseta_agent_disk_writable Whether checkpoints can be written and the disk has room; while not, no task is taken.
meseta_agent_disk_silent_seconds How long the disk of the work directory has not answered; 0 while it answers. From 30 seconds on no task is taken, and the master is told.
meseta_agent_master_epoch Epoch of the master whose frames are obeyed; it grows with each leader.
meseta_agent_uptime_seconds Time since the agent was started.
meseta_agent_recovery_duration_seconds How long recovery took after the start.
meseta_agent_recovery_errors_total Checkpoints that could not be read.
meseta_agent_frameworks Frameworks with work on this agent.
meseta_agent_live_tasks Tasks on this agent that have not ended, by state (`task_running`).
meseta_agent_task_ends_total Tasks that ended, by their last state (`task_failed`).
meseta_agent_tasks Deprecated: meseta_agent_live_tasks. Tasks on this agent, by state.
meseta_agent_tasks_ended_total Deprecated: meseta_agent_task_ends_total. Tasks that ended, by their last state.
meseta_agent_status_updates_total Status updates, by whether they were accepted.
meseta_agent_container_launch_errors_total Containers that could not be launched.
meseta_agent_container_destroy_errors_total Failed attempts to destroy a container.
meseta_agent_limits_lost_total Times that limits of a container were found to be gone with their group: nothing enforces them any more.
meseta_agent_limits_restored_total Times that limits of a container were not what was asked for, and were set again.
meseta_agent_supervisors_stopped_total Times that the supervisor of a container was found stopped (SIGSTOP): the end of its task is not noticed until it is continued.
meseta_agent_processes_moved_total Times that a process of a container was found moved out of its groups: their limits and figures do not hold for it.
meseta_agent_looks_repeated_total Looks at a container, its record or a checkpoint that failed for want of descriptors or memory or because a device failed, and were made again.
meseta_agent_framework_messages_dropped_total Messages between frameworks and executors that were dropped because they were not read, by receiver.
meseta_agent_executor_streams_ended_total Streams to executors that were ended because they were not read.
meseta_agent_resource_amount The agent's resources, by kind: total, or used by live tasks; memory and disk in bytes.
meseta_agent_resources Deprecated: meseta_agent_resource_amount. The agent's resources, by name (MB for mem and disk).
meseta_agent_resources_allocated Deprecated: meseta_agent_resource_amount. What live tasks hold of them, without what is oversubscribed.
meseta_agent_container_cpu_user_seconds_total CPU time in user mode.
meseta_agent_container_cpu_system_seconds_total CPU time in the kernel.
meseta_agent_container_cpus_requested CPUs that were requested.
meseta_agent_container_cpus_limit CPUs that may be used, where that is limited.
meseta_agent_container_cpu_periods_total Enforcement periods with work to do.
meseta_agent_container_cpu_throttled_periods_total Periods that were cut short.
meseta_agent_container_cpu_throttled_seconds_total Time spent throttled.
meseta_agent_container_memory_bytes Memory charged, by kind; total is all of it.
meseta_agent_container_memory_max_bytes The most memory that was ever charged.
meseta_agent_container_memory_requested_bytes Memory that was requested.
meseta_agent_container_memory_limit_bytes Memory that may be used, if limited.
meseta_agent_container_oom_kills_total Processes killed for want of memory.
meseta_agent_container_processes Processes in the container.
meseta_agent_container_threads Threads in the container.
meseta_agent_container_threads_limit Threads that may be in the container.
meseta_agent_container_forks_refused_total Forks refused by the limit on threads.
meseta_agent_container_pressure_seconds_total Time stalled for want of a resource: some tasks, or all.
meseta_agent_container_cpus_used CPUs used on average over the last ten seconds.
meseta_agent_container_memory_pressure_events_total Times the kernel told of memory pressure of a level, since the agent watches (cgroup v1).
meseta_agent_container_io_bytes_total Bytes moved from and to block devices.
meseta_agent_container_io_operations_total Operations on block devices.
meseta_agent_monitor_sweep_seconds How long the last sweep over all containers took.
meseta_agent_host_cpu_busy_seconds_total Time of all processors not spent idling, since boot.
meseta_agent_host_pressure_seconds_total Time the machine was stalled for want of a resource, since boot: some tasks, or all.
meseta_agent_host_pressure_ratio Share of the last ten seconds that the machine was stalled.
meseta_agent_host_cpus Processors online.
meseta_agent_host_load Load average, by minutes.
meseta_agent_host_memory_bytes The machine's memory, by kind.
meseta_agent_tasks_out_of_memory_total Tasks that ended at a limit of memory, by the role of their executor; 0 of roles at work here. An empty role stands for those that the reader may not see.
meseta_agent_log_lines_left_out_total Lines that are missing in the log because too many of one cause came at once.
process_cpu_seconds_total CPU time of the agent itself.
process_resident_memory_bytes Resident memory of the agent itself.
process_open_fds Open file descriptors of the agent itself.
process_max_fds File descriptors that the agent may have open.
meseta_agent_certificate_end_seconds When the certificate that is served ends, in seconds since the Unix epoch.
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
    fn counters_and_nothing_else_end_in_total() {
        let page = include_str!("../../../docs/metrics.md");
        let page = page.split("## `meseta agent`").nth(1).unwrap_or_default();
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let mut kinds = rows.filter_map(|row| row.split_once("` | "));
        assert!(families().count() <= kinds.clone().count());
        assert!(kinds.all(|(name, row)| name.ends_with("_total") == row.starts_with("counter |")));
    }

    #[test]
    fn the_dashboard_shows_what_there_is() {
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
    fn panels_on_memory_that_ran_out_know_of_containers_that_are_gone() {
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
