//! The versions of a job in the store: small ones in the record of the job, large ones under their own keys.
//!
//! Invariant: a change of a job writes no large unchanged specification, so the cost of a change does not grow with the
//! job's files and its history.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::changes::same_but_size;
use super::commands::{VERSIONS_MAX, kept_versions};
use super::input::Record;
use super::job::Job;
use super::records::{JobRecord, Key, Size, VersionRecord};
use crate::spec::JobSpec;

/// Bytes of a specification that is written inside the job's record, as earlier releases did with all.
const INLINE_BYTES_MAX: usize = 4 * 1024;
/// Bytes of the specifications of all jobs, with their versions; a role gets at most half of the rest that other roles
/// leave. Each start reads the stored data again, and by default an etcd has 2 GiB for all its users.
pub(super) const SPEC_BYTES_MAX: usize = 512 << 20;

/// The last written form of a version.
#[derive(Clone, Debug)]
pub(super) struct Written {
    spec: Arc<JobSpec>,
    bytes: usize,
    /// The contents of the version's own record, if it has one.
    apart: Option<Arc<JobSpec>>,
}

impl Written {
    /// Returns the bytes that this version charges to the job's role: its record and its compiled patterns.
    fn charged(&self) -> usize {
        self.bytes + self.spec.pattern_bytes()
    }
}

impl Job {
    /// Adds a version that was stored under its own key.
    pub(super) fn restore_version(&mut self, number: u64, mut version: VersionRecord) {
        let apart = Arc::clone(&version.spec);
        if let Some(size) = self.record.sizes.remove(&number) {
            version.spec = Arc::new(size.applied(&apart));
        }
        let written = Written {
            bytes: apart.stored_bytes(),
            spec: Arc::clone(&version.spec),
            apart: Some(apart),
        };
        self.written.insert(number, written);
        self.record.versions.insert(number, version);
    }

    /// Measures the versions that were stored in the job's own record.
    pub(super) fn restore_inline(&mut self) {
        for (number, version) in &self.record.versions {
            let written = Written {
                bytes: version.spec.stored_bytes(),
                spec: Arc::clone(&version.spec),
                apart: None,
            };
            self.written.insert(*number, written);
        }
    }

    /// Returns the records that make the job's present state durable.
    pub(super) fn records(&mut self) -> Vec<Record> {
        let before = std::mem::take(&mut self.written);
        let (mut records, mut inline) = (Vec::new(), BTreeMap::new());
        let mut sizes = BTreeMap::new();
        for (number, version) in &self.record.versions {
            let present = before.get(number);
            let written = written(present, &version.spec);
            let was_apart = present.is_some_and(|present| present.apart.is_some());
            let key = self.version_key(*number);
            match &written.apart {
                None => {
                    inline.insert(*number, version.clone());
                    records.extend(was_apart.then(|| key.delete()));
                }
                Some(apart) => {
                    let size = Size::from_spec(&version.spec);
                    if Size::from_spec(apart) != size {
                        sizes.insert(*number, size);
                    }
                    let said = present.and_then(|present| present.apart.as_ref());
                    let is_said = said.is_some_and(|said| Arc::ptr_eq(said, apart));
                    records.extend((!is_said).then(|| key.put(version)));
                }
            }
            self.written.insert(*number, written);
        }
        for (number, gone) in before {
            if gone.apart.is_some() && !self.written.contains_key(&number) {
                records.push(self.version_key(number).delete());
            }
        }
        let record = JobRecord {
            versions: inline,
            sizes,
            ..self.record.clone()
        };
        records.push(self.key().put(&record));
        records
    }

    /// Returns the records that delete the job.
    pub(super) fn deletions(&self) -> Vec<Record> {
        let apart = self.written.iter().filter(|(_, one)| one.apart.is_some());
        let apart = apart.map(|(number, _)| self.version_key(*number).delete());
        apart.chain([self.key().delete()]).collect()
    }

    fn version_key(&self, number: u64) -> Key {
        Key::Version {
            job: self.name.clone(),
            number,
        }
    }

    /// Returns the stored bytes of the job's specifications.
    pub(super) fn spec_bytes(&self) -> usize {
        self.written.values().map(Written::charged).sum()
    }

    /// Returns the bytes of the versions that a new one removes.
    pub(super) fn bytes_to_go(&self) -> usize {
        let kept = kept_versions(self, VERSIONS_MAX - 1);
        let written = self.written.iter();
        let gone = written.filter(|(number, _)| !kept.contains(number));
        gone.map(|(_, one)| one.charged()).sum()
    }
}

/// Returns the written form of a specification, given the written form of its version.
fn written(present: Option<&Written>, spec: &Arc<JobSpec>) -> Written {
    if let Some(same) = present.filter(|one| Arc::ptr_eq(&one.spec, spec))
        && (same.bytes <= INLINE_BYTES_MAX || same.apart.is_some())
    {
        return same.clone();
    }
    let bytes = spec.stored_bytes();
    let apart = (bytes > INLINE_BYTES_MAX).then(|| {
        let said = present.and_then(|present| present.apart.as_ref());
        let said = said.filter(|said| same_but_size(said, spec));
        Arc::clone(said.unwrap_or(spec))
    });
    Written {
        spec: Arc::clone(spec),
        bytes,
        apart,
    }
}
