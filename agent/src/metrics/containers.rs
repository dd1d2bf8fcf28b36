//! The series of containers, written as text directly from the last samples.
//!
//! A thousand containers have tens of thousands of series. Their labels are escaped only once per container, and no
//! message is built per series, so that a scrape is fast and needs little memory.

use meseta_access::Approver;
use meseta_isolators::Limit;

use super::text::{labels, write_head, write_value};
use super::{number, role_label};
use crate::context::Context;
use crate::core::Snapshot;
use crate::monitor::Sample;

/// A series of every container.
struct Series {
    family: &'static str,
    /// Labels in addition to the container's own, as text.
    extra: &'static str,
    value: fn(&Sample) -> Option<f64>,
}

const fn series(family: &'static str, value: fn(&Sample) -> Option<f64>) -> Series {
    labelled(family, "", value)
}

const fn labelled(
    family: &'static str,
    extra: &'static str,
    value: fn(&Sample) -> Option<f64>,
) -> Series {
    Series {
        family,
        extra,
        value,
    }
}

fn count(value: Option<u64>) -> Option<f64> {
    value.map(number)
}

const PRESSURE: &str = "meseta_agent_container_pressure_seconds_total";
const MEMORY: &str = "meseta_agent_container_memory_bytes";
const MEMORY_PRESSURE: &str = "meseta_agent_container_memory_pressure_events_total";
const IO_BYTES: &str = "meseta_agent_container_io_bytes_total";
const IO_OPERATIONS: &str = "meseta_agent_container_io_operations_total";

/// All series; those of one family are adjacent.
const SERIES: &[Series] = &[
    series("meseta_agent_container_cpu_user_seconds_total", |s| {
        s.usage.cpu.user_secs
    }),
    series("meseta_agent_container_cpu_system_seconds_total", |s| {
        s.usage.cpu.system_secs
    }),
    series("meseta_agent_container_cpus_used", |s| s.cpus_used),
    series("meseta_agent_container_cpus_requested", |s| {
        Some(number(s.container.demand.cpus_millis) / 1000.0)
    }),
    series("meseta_agent_container_cpus_limit", |s| {
        s.usage.cpu.limit_cpus
    }),
    series("meseta_agent_container_cpu_periods_total", |s| {
        count(s.usage.cpu.nr_periods)
    }),
    series("meseta_agent_container_cpu_throttled_periods_total", |s| {
        count(s.usage.cpu.nr_throttled)
    }),
    series("meseta_agent_container_cpu_throttled_seconds_total", |s| {
        s.usage.cpu.throttled_secs
    }),
    labelled(MEMORY, ",kind=\"total\"", |s| {
        count(s.usage.memory.total_bytes)
    }),
    labelled(MEMORY, ",kind=\"anonymous\"", |s| {
        count(s.usage.memory.rss_bytes)
    }),
    labelled(MEMORY, ",kind=\"cache\"", |s| {
        count(s.usage.memory.cache_bytes)
    }),
    labelled(MEMORY, ",kind=\"mapped_file\"", |s| {
        count(s.usage.memory.mapped_file_bytes)
    }),
    labelled(MEMORY, ",kind=\"swap\"", |s| {
        count(s.usage.memory.swap_bytes)
    }),
    labelled(MEMORY, ",kind=\"unevictable\"", |s| {
        count(s.usage.memory.unevictable_bytes)
    }),
    labelled(MEMORY, ",kind=\"kernel\"", |s| {
        count(s.usage.memory.kernel_bytes)
    }),
    labelled(MEMORY, ",kind=\"socket\"", |s| {
        count(s.usage.memory.kernel_tcp_bytes)
    }),
    series("meseta_agent_container_memory_max_bytes", |s| {
        count(s.usage.memory.max_usage_bytes)
    }),
    series("meseta_agent_container_memory_requested_bytes", |s| {
        count(s.container.demand.mem_bytes)
    }),
    series("meseta_agent_container_memory_limit_bytes", |s| {
        let asked = match s.container.demand.mem_limit {
            Some(Limit::At(bytes)) => Some(bytes),
            Some(Limit::Unlimited) | None => None,
        };
        count(s.usage.memory.limit_bytes.or(asked))
    }),
    series("meseta_agent_container_oom_kills_total", |s| {
        count(s.usage.memory.oom_kills)
    }),
    labelled(MEMORY_PRESSURE, ",level=\"low\"", |s| {
        count(s.usage.memory.low_pressure)
    }),
    labelled(MEMORY_PRESSURE, ",level=\"medium\"", |s| {
        count(s.usage.memory.medium_pressure)
    }),
    labelled(MEMORY_PRESSURE, ",level=\"critical\"", |s| {
        count(s.usage.memory.critical_pressure)
    }),
    labelled(IO_BYTES, ",direction=\"read\"", |s| {
        count(s.usage.io.read_bytes)
    }),
    labelled(IO_BYTES, ",direction=\"write\"", |s| {
        count(s.usage.io.write_bytes)
    }),
    labelled(IO_OPERATIONS, ",direction=\"read\"", |s| {
        count(s.usage.io.reads)
    }),
    labelled(IO_OPERATIONS, ",direction=\"write\"", |s| {
        count(s.usage.io.writes)
    }),
    series("meseta_agent_container_processes", |s| {
        count(s.usage.pids.processes)
    }),
    series("meseta_agent_container_threads", |s| {
        count(s.usage.pids.threads)
    }),
    series("meseta_agent_container_threads_limit", |s| {
        count(s.usage.pids.limit)
    }),
    series("meseta_agent_container_forks_refused_total", |s| {
        count(s.usage.pids.refused)
    }),
    labelled(PRESSURE, ",resource=\"cpu\",share=\"some\"", |s| {
        s.usage.pressure.cpu_some_secs
    }),
    labelled(PRESSURE, ",resource=\"cpu\",share=\"full\"", |s| {
        s.usage.pressure.cpu_full_secs
    }),
    labelled(PRESSURE, ",resource=\"memory\",share=\"some\"", |s| {
        s.usage.pressure.memory_some_secs
    }),
    labelled(PRESSURE, ",resource=\"memory\",share=\"full\"", |s| {
        s.usage.pressure.memory_full_secs
    }),
    labelled(PRESSURE, ",resource=\"io\",share=\"some\"", |s| {
        s.usage.pressure.io_some_secs
    }),
    labelled(PRESSURE, ",resource=\"io\",share=\"full\"", |s| {
        s.usage.pressure.io_full_secs
    }),
];

/// Appends the families of all live containers that have a sample.
pub(super) fn write(out: &mut String, context: &Context, snapshot: &Snapshot, approver: &Approver) {
    let samples = context.samples.last();
    let live = snapshot.executors().filter(|executor| executor.is_live());
    let sampled: Vec<(String, &Sample)> = live
        .filter_map(|executor| {
            let sample = samples.get(&executor.key.container)?;
            let role = role_label(executor.role.as_ref(), approver);
            let labels = labels(&[
                ("container_id", executor.key.container.as_str()),
                ("framework_id", executor.key.framework.as_str()),
                ("executor_id", executor.key.executor.as_str()),
                ("role", role),
            ]);
            Some((labels, sample))
        })
        .collect();
    write_families(out, &sampled);
}

fn write_families(out: &mut String, sampled: &[(String, &Sample)]) {
    let mut begun = "";
    for series in SERIES {
        for (labels, sample) in sampled {
            let Some(value) = (series.value)(sample) else {
                continue;
            };
            if begun != series.family {
                begun = series.family;
                write_head(out, series.family);
            }
            for part in [series.family, "{", labels.as_str(), series.extra, "} "] {
                out.push_str(part);
            }
            write_value(out, value);
            out.push('\n');
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use meseta_isolators::{BootId, ContainerUsage, Demand, MemoryUsage, ProcessIdentity};
    use meseta_resources::{AgentId, ContainerId, ExecutorId, FrameworkId};

    use super::super::families;
    use super::*;
    use crate::checkpoint::RunKey;
    use crate::containerizer::LiveContainer;
    use crate::containerizer::inspection_limits::InspectionLimits;

    /// A sample of a container with half a CPU and ten bytes of memory.
    pub(crate) fn sample() -> Sample {
        Sample {
            container: Arc::new(LiveContainer {
                run: Arc::new(RunKey {
                    agent: AgentId::new("S0").expect("an id"),
                    framework: FrameworkId::new("F").expect("an id"),
                    executor: ExecutorId::new("e").expect("an id"),
                    container: ContainerId::new("c").expect("an id"),
                }),
                container: ContainerId::new("c").expect("an id"),
                supervisor: ProcessIdentity {
                    pid: 1,
                    start_ticks: 1,
                    boot_id: BootId::from_text("b"),
                },
                demand: Demand {
                    cpus_millis: 500,
                    ..Demand::default()
                },
                own_limits: true,
                inspection_limits: InspectionLimits::default(),
                volumes: None,
                change_lock: Arc::default(),
            }),
            disks: None,
            usage: ContainerUsage {
                memory: MemoryUsage {
                    total_bytes: Some(10),
                    swap_bytes: Some(0),
                    ..MemoryUsage::default()
                },
                ..ContainerUsage::default()
            },
            cpus_used: None,
        }
    }

    #[test]
    fn values_are_escaped_unknown_omitted() {
        let sample = sample();
        let mut out = String::new();
        let labels = labels(&[("id", "a\"b\\c\nd"), ("role", "")]);
        write_families(&mut out, &[(labels, &sample)]);
        let series: Vec<_> = out.lines().filter(|line| !line.starts_with('#')).collect();
        let labels = "id=\"a\\\"b\\\\c\\nd\",role=\"\"";
        assert_eq!(
            series,
            [
                format!("meseta_agent_container_cpus_requested{{{labels}}} 0.5"),
                format!("meseta_agent_container_memory_bytes{{{labels},kind=\"total\"}} 10"),
                format!("meseta_agent_container_memory_bytes{{{labels},kind=\"swap\"}} 0"),
            ]
        );
        let heads: Vec<_> = out
            .lines()
            .filter(|line| line.starts_with("# TYPE"))
            .collect();
        assert_eq!(heads.len(), 2, "each family is introduced once: {out}");
    }

    #[test]
    fn every_series_has_its_family() {
        let mut seen: Vec<&str> = Vec::new();
        for series in SERIES {
            assert!(families().any(|(name, _)| name == series.family));
            if seen.last() != Some(&series.family) {
                assert!(
                    !seen.contains(&series.family),
                    "{} is scattered",
                    series.family
                );
                seen.push(series.family);
            }
        }
    }
}
