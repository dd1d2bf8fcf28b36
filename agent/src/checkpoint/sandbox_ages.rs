//! `meta/sandbox_ages`: the time that old sandboxes have waited for garbage collection.
//!
//! An age never comes from the times of a file, since the wall clock sets these. An age grows from the last writing
//! while the machine runs, with or without a running agent. The time between the last writing and a reboot is unknown
//! and does not count. Loss of the record costs disk space: an unlisted sandbox waits for its whole time once more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_isolators::BootId;
use prost::Message as _;

use super::auxiliary::{read_whole, replace};
use super::{AuxiliaryError, FrameError, Layout, StoreError};

/// The record on the disk.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SandboxAgesRecord {
    /// The boot in which the record was written.
    #[prost(string, tag = "1")]
    pub(super) boot_id: String,
    /// The time of the writing, in nanoseconds since that boot.
    #[prost(uint64, tag = "2")]
    pub(super) uptime_ns: u64,
    /// Nanoseconds that each sandbox had waited then, by its path below the folder of all sandboxes.
    #[prost(btree_map = "string, uint64", tag = "3")]
    pub(super) waited_ns: BTreeMap<String, u64>,
}

/// Ages of sandboxes at one time.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct SandboxAges(pub(crate) BTreeMap<PathBuf, Duration>);

impl SandboxAges {
    /// Replaces the record with these ages at `uptime`, durably. Blocks.
    pub(crate) fn write(
        &self,
        layout: &Layout,
        boot: &BootId,
        uptime: Duration,
    ) -> Result<(), StoreError> {
        let sandboxes = layout.sandboxes();
        let known = self.0.iter().filter_map(|(path, age)| {
            let path = path.strip_prefix(&sandboxes).ok()?.to_str()?;
            Some((path.to_owned(), nanoseconds(*age)))
        });
        let record = SandboxAgesRecord {
            boot_id: boot.as_str().to_owned(),
            uptime_ns: nanoseconds(uptime),
            waited_ns: known.collect(),
        };
        replace(&layout.sandbox_ages(), &record.encode_to_vec())
    }

    /// Returns the ages at `uptime`; empty without a record. Blocks.
    pub(crate) fn read(
        layout: &Layout,
        boot: &BootId,
        uptime: Duration,
    ) -> Result<Self, AuxiliaryError> {
        let path = layout.sandbox_ages();
        let Some(body) = read_whole(&path)? else {
            return Ok(Self::default());
        };
        let Ok(record) = SandboxAgesRecord::decode(body.as_slice()) else {
            let source = FrameError::Checksum;
            return Err(AuxiliaryError::Damaged { path, source });
        };
        Ok(Self::of_record(record, &layout.sandboxes(), boot, uptime))
    }

    fn of_record(
        record: SandboxAgesRecord,
        sandboxes: &Path,
        boot: &BootId,
        uptime: Duration,
    ) -> Self {
        let written = Duration::from_nanos(record.uptime_ns);
        let elapsed = match BootId::from_text(&record.boot_id) == *boot {
            true => uptime.saturating_sub(written),
            false => Duration::ZERO,
        };
        let ages = record.waited_ns.into_iter().map(|(path, waited)| {
            let age = Duration::from_nanos(waited).saturating_add(elapsed);
            (sandboxes.join(path), age)
        });
        Self(ages.collect())
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_pause_over_a_reboot() {
        const HOUR: Duration = Duration::from_secs(3600);
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(dir.path());
        let boot = BootId::from_text("a");
        let read = |boot: &BootId, uptime| SandboxAges::read(&layout, boot, uptime);
        let none = read(&boot, HOUR).expect("no record is none");
        assert_eq!(none, SandboxAges::default());
        let sandbox = layout
            .sandboxes()
            .join("S0/frameworks/F/executors/e/runs/r");
        let ages = |age| SandboxAges(BTreeMap::from([(sandbox.clone(), age)]));
        ages(2 * HOUR)
            .write(&layout, &boot, 10 * HOUR)
            .expect("written");
        assert_eq!(read(&boot, 15 * HOUR).expect("read"), ages(7 * HOUR));
        let rebooted = BootId::from_text("b");
        assert_eq!(read(&rebooted, 15 * HOUR).expect("read"), ages(2 * HOUR));
        // No clock of this boot can have reached that value.
        assert_eq!(read(&boot, HOUR).expect("read"), ages(2 * HOUR));
        std::fs::write(layout.sandbox_ages(), "no record").expect("written");
        let damaged = read(&boot, HOUR);
        assert!(matches!(damaged, Err(AuxiliaryError::Damaged { .. })));
    }
}
