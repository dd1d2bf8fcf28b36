//! cgroups/blkio: what the container moved to and from block devices. No limits.
//!
//! v1 counts in `blkio.throttle.io_{service_bytes,serviced}`, but only on devices that are throttled in
//! some group (seen on 6.18), else in the files of the bfq scheduler; where it counts nowhere there is no
//! figure. v2 always counts, in `io.stat`. The sums over all devices are the same figures.

use super::{Isolator, Sight};
use crate::cgroup::{Controller, Version, read_text};
use crate::usage::{ContainerUsage, IoUsage};

pub(super) const CONTROLLERS: [Controller; 2] = [Controller::Blkio, Controller::Freezer];

#[derive(Debug)]
pub(super) struct Blkio;

impl Isolator for Blkio {
    fn name(&self) -> &'static str {
        "cgroups/blkio"
    }

    fn controllers(&self) -> &'static [Controller] {
        &CONTROLLERS
    }

    fn usage(&self, sight: &Sight<'_>, usage: &mut ContainerUsage) {
        let Some(group) = sight.groups.of(Controller::Blkio) else {
            return;
        };
        let read = |file: &str| read_text(&group.dir, file);
        usage.io = match group.version {
            Version::V1 => {
                let counted = |kind: &str| {
                    let files = ["blkio.throttle.", "blkio.bfq."].map(|who| format!("{who}{kind}"));
                    let texts = files.iter().filter_map(|file| read(file));
                    texts
                        .into_iter()
                        .find(|text| sum_v1(text, "Read").is_some())
                };
                let bytes = counted("io_service_bytes");
                let operations = counted("io_serviced");
                IoUsage {
                    read_bytes: bytes.as_deref().and_then(|text| sum_v1(text, "Read")),
                    write_bytes: bytes.as_deref().and_then(|text| sum_v1(text, "Write")),
                    reads: operations.as_deref().and_then(|text| sum_v1(text, "Read")),
                    writes: operations.as_deref().and_then(|text| sum_v1(text, "Write")),
                }
            }
            Version::V2 => {
                let text = read("io.stat");
                let sum = |key| text.as_deref().and_then(|text| sum_v2(text, key));
                IoUsage {
                    read_bytes: sum("rbytes"),
                    write_bytes: sum("wbytes"),
                    reads: sum("rios"),
                    writes: sum("wios"),
                }
            }
        };
    }
}

/// Lines of `254:0 Read 4096`, and a total that is none of ours. No line means that nobody counts.
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

/// Lines of `254:0 rbytes=4096 wbytes=0 rios=1 ...`.
fn sum_v2(text: &str, key: &str) -> Option<u64> {
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
        assert_eq!(sum_v1("254:0 Read many", "Read"), None);
        assert_eq!(sum_v1("Total 0\n", "Read"), None);
    }
}
