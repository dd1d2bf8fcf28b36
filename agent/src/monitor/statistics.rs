//! A sample of a container in Mesos's fields and units.

use meseta_isolators::{DiskUsage, IoUsage, Limit};
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::resource::disk_info::Persistence;

use super::Sample;

/// The last sample of a container as a message. As in Mesos, the limits come from the requested limits, so that they
/// survive restarts.
pub(crate) fn resource_statistics(sample: &Sample, enable_cfs: bool) -> pb::ResourceStatistics {
    let (usage, demand) = (&sample.usage, &sample.container.demand);
    let cpus = millis(demand.cpus_millis);
    let cpus_limit = match demand.cpus_limit {
        Some(Limit::At(limit)) => Some(millis(limit)),
        Some(Limit::Unlimited) => machine_cpus(),
        None => enable_cfs.then_some(cpus),
    };
    let mem_limit = match demand.mem_limit {
        Some(Limit::At(limit)) => Some(limit),
        Some(Limit::Unlimited) => machine_memory(),
        None => demand.mem_bytes,
    };
    let small = |count: Option<u64>| count.and_then(|count| u32::try_from(count).ok());
    pb::ResourceStatistics {
        timestamp: usage.timestamp.as_secs_f64(),
        processes: small(usage.pids.processes),
        threads: small(usage.pids.threads),
        cpus_user_time_secs: usage.cpu.user_secs,
        cpus_system_time_secs: usage.cpu.system_secs,
        cpus_limit,
        cpus_soft_limit: Some(cpus),
        cpus_nr_periods: small(usage.cpu.nr_periods),
        cpus_nr_throttled: small(usage.cpu.nr_throttled),
        cpus_throttled_time_secs: usage.cpu.throttled_secs,
        mem_total_bytes: usage.memory.total_bytes,
        mem_total_memsw_bytes: usage.memory.total_memsw_bytes,
        mem_kmem_usage_bytes: usage.memory.kernel_bytes,
        mem_kmem_tcp_usage_bytes: usage.memory.kernel_tcp_bytes,
        mem_low_pressure_counter: usage.memory.low_pressure,
        mem_medium_pressure_counter: usage.memory.medium_pressure,
        mem_critical_pressure_counter: usage.memory.critical_pressure,
        mem_limit_bytes: mem_limit,
        mem_soft_limit_bytes: demand.mem_bytes,
        mem_file_bytes: usage.memory.cache_bytes,
        mem_anon_bytes: usage.memory.rss_bytes,
        mem_cache_bytes: usage.memory.cache_bytes,
        mem_rss_bytes: usage.memory.rss_bytes,
        mem_mapped_file_bytes: usage.memory.mapped_file_bytes,
        mem_swap_bytes: usage.memory.swap_bytes,
        mem_unevictable_bytes: usage.memory.unevictable_bytes,
        blkio_statistics: block_devices(&usage.io),
        ..disks(sample.disks.as_deref().unwrap_or_default())
    }
}

/// The disk usage of the container: the sum, and each persistent volume's share.
fn disks(measured: &[DiskUsage]) -> pb::ResourceStatistics {
    let volumes = measured.iter().skip(1).map(|disk| pb::DiskStatistics {
        limit_bytes: disk.quota_bytes,
        used_bytes: Some(disk.used_bytes),
        persistence: disk.path.file_name().map(|id| Persistence {
            id: id.to_string_lossy().into_owned(),
            principal: None,
        }),
        ..pb::DiskStatistics::default()
    });
    let sandbox = measured.first();
    pb::ResourceStatistics {
        disk_used_bytes: sandbox.map(|disk| disk.used_bytes),
        disk_limit_bytes: sandbox.and_then(|disk| disk.quota_bytes),
        disk_statistics: volumes.collect(),
        ..pb::ResourceStatistics::default()
    }
}

/// The sums over all devices, as in Mesos: an entry without a device.
fn block_devices(io: &IoUsage) -> Option<pb::cgroup_info::blkio::Statistics> {
    use pb::cgroup_info::blkio::{Operation, Statistics, Value, throttling};
    let values = |read: Option<u64>, write: Option<u64>| {
        let (Some(read), Some(write)) = (read, write) else {
            return Vec::new();
        };
        let value = |op: Operation, value| Value {
            op: Some(op.into()),
            value: Some(value),
        };
        vec![
            value(Operation::Read, read),
            value(Operation::Write, write),
            value(Operation::Total, read.saturating_add(write)),
        ]
    };
    let sums = throttling::Statistics {
        device: None,
        io_serviced: values(io.reads, io.writes),
        io_service_bytes: values(io.read_bytes, io.write_bytes),
    };
    let any = !sums.io_serviced.is_empty() || !sums.io_service_bytes.is_empty();
    any.then(|| Statistics {
        throttling: vec![sums],
        ..Statistics::default()
    })
}

#[expect(
    clippy::cast_precision_loss,
    reason = "thousandths of CPUs stay far below 2^52"
)]
fn millis(thousandths: u64) -> f64 {
    thousandths as f64 / 1000.0
}

fn machine_cpus() -> Option<f64> {
    let count = std::thread::available_parallelism().ok()?;
    u32::try_from(count.get()).ok().map(f64::from)
}

fn machine_memory() -> Option<u64> {
    use procfs::Current as _;
    procfs::Meminfo::current().ok().map(|info| info.mem_total)
}

#[cfg(test)]
mod tests {
    use meseta_proto::mesos::v1::cgroup_info::blkio::Operation;

    use super::*;

    #[test]
    fn disks_and_devices_are_told() {
        let used = |path: &str, used_bytes, quota_bytes| DiskUsage {
            path: path.into(),
            used_bytes,
            entries: 1,
            truncated: false,
            quota_bytes,
        };
        let measured = [
            used("/w/box", 5, Some(9)),
            used("/w/volumes/roles/dev/data", 3, Some(4)),
        ];
        let told = disks(&measured);
        assert_eq!(
            (told.disk_used_bytes, told.disk_limit_bytes),
            (Some(5), Some(9))
        );
        let volume = &told.disk_statistics[0];
        assert_eq!((volume.used_bytes, volume.limit_bytes), (Some(3), Some(4)));
        let id = volume
            .persistence
            .as_ref()
            .map(|persistence| persistence.id.as_str());
        assert_eq!(id, Some("data"));
        assert_eq!(disks(&[]).disk_used_bytes, None);

        assert_eq!(block_devices(&IoUsage::default()), None);
        let io = IoUsage {
            read_bytes: Some(1),
            write_bytes: Some(2),
            ..IoUsage::default()
        };
        let told = block_devices(&io).expect("figures").throttling.remove(0);
        let bytes: Vec<_> = told
            .io_service_bytes
            .iter()
            .map(|value| (value.op(), value.value()))
            .collect();
        let expected = [
            (Operation::Read, 1),
            (Operation::Write, 2),
            (Operation::Total, 3),
        ];
        assert_eq!(bytes, expected);
        assert!(told.io_serviced.is_empty() && told.device.is_none());
    }
}
