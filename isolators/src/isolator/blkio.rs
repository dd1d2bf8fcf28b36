//! cgroups/blkio: the I/O of the container on block devices. No limits.
//!
//! v1 counts in `blkio.throttle.io_{service_bytes,serviced}`, but only on devices that are throttled in some group (seen on
//! 6.18), else in the files of the bfq scheduler. Without any counter the figure is absent. v2 always counts, in `io.stat`.
//! The sums over all devices agree. v1 counts each group alone, and its files `*_recursive` forget the counts of removed
//! groups, so we add up those of nested containers ourselves.

use super::{Isolator, UsageSource};
use crate::cgroup::{Controller, GroupDir, Version};
use crate::usage::{ContainerUsage, IoUsage};

#[derive(Debug)]
pub(super) struct Blkio;

impl Isolator for Blkio {
    fn name(&self) -> &'static str {
        "cgroups/blkio"
    }

    fn controllers(&self) -> &'static [Controller] {
        &[Controller::Blkio, Controller::Freezer]
    }

    fn usage(&self, source: &UsageSource<'_>, usage: &mut ContainerUsage) {
        let Some(group) = source.groups.get(Controller::Blkio).filter(|_| source.all) else {
            return;
        };
        usage.io = match group.version {
            Version::V1 => io_v1(source, group),
            Version::V2 => {
                let keys = ["rbytes", "wbytes", "rios", "wios"];
                let sums = source.read(group, "io.stat", |text| {
                    Some(keys.map(|key| sum_v2(text, key)))
                });
                let [read_bytes, write_bytes, reads, writes] = sums.unwrap_or([None; 4]);
                IoUsage {
                    read_bytes,
                    write_bytes,
                    reads,
                    writes,
                }
            }
        };
    }

    fn local_usage(&self, source: &UsageSource<'_>, usage: &mut ContainerUsage) {
        let group = source.groups.get(Controller::Blkio);
        if let Some(group) = group.filter(|group| group.version == Version::V1) {
            usage.io = io_v1(source, group);
        }
    }
}

fn io_v1(source: &UsageSource<'_>, group: &GroupDir) -> IoUsage {
    let sums = |text: &str| match (sum_v1(text, "Read"), sum_v1(text, "Write")) {
        (None, _) => None,
        both => Some(both),
    };
    let counted = |throttle, bfq| {
        let counted = source.read(group, throttle, sums);
        let counted = counted.or_else(|| source.read(group, bfq, sums));
        counted.unwrap_or((None, None))
    };
    let bytes = counted(
        "blkio.throttle.io_service_bytes",
        "blkio.bfq.io_service_bytes",
    );
    let operations = counted("blkio.throttle.io_serviced", "blkio.bfq.io_serviced");
    IoUsage {
        read_bytes: bytes.0,
        write_bytes: bytes.1,
        reads: operations.0,
        writes: operations.1,
    }
}

/// Sums lines of `254:0 Read 4096`, and ignores the total. `None` without any line: nothing counts.
fn sum_v1(text: &str, direction: &str) -> Option<u64> {
    let mut sum = None::<u64>;
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (_device, name, count) = (words.next(), words.next(), words.next());
        if name == Some(direction) {
            sum = Some(sum.unwrap_or(0).checked_add(count?.parse().ok()?)?);
        }
    }
    sum
}

/// Sums lines of `254:0 rbytes=4096 wbytes=0 rios=1 ...`; the file is empty before the first I/O.
fn sum_v2(text: &str, key: &str) -> Option<u64> {
    let is_device = |line: &str| {
        let (major, minor) = line.split(' ').next()?.split_once(':')?;
        Some(major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok())
    };
    if !text.lines().all(|line| is_device(line) == Some(true)) {
        return None;
    }
    let mut sum = 0_u64;
    for word in text.split_ascii_whitespace() {
        if let Some((name, count)) = word.split_once('=')
            && name == key
        {
            sum = sum.checked_add(count.parse().ok()?)?;
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_give_the_same_figures() {
        let v1 = "254:0 Read 4096\n254:0 Write 10\n254:0 Total 4106\n7:0 Read 1\nTotal 4107\n";
        let v2 = "254:0 rbytes=4096 wbytes=10 rios=2 wios=1\n7:0 rbytes=1 wbytes=0 rios=1 wios=0\n";
        assert_eq!(sum_v1(v1, "Read"), Some(4097));
        assert_eq!(sum_v1(v1, "Write"), Some(10));
        assert_eq!(sum_v2(v2, "rbytes"), Some(4097));
        assert_eq!(sum_v2(v2, "wios"), Some(1));
        assert_eq!(sum_v2("", "rios"), Some(0));
        assert_eq!(sum_v2("254:0 \n", "rios"), Some(0));
        assert_eq!(sum_v2("potatoes\n", "rios"), None);
        assert_eq!(sum_v1("254:0 Read many", "Read"), None);
        assert_eq!(sum_v1("Total 0\n", "Read"), None);
    }
}
