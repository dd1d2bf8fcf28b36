//! The versions of a job in the store: small ones in the record of the job, large ones under their own keys.
//!
//! Invariant: a change of a job writes no large unchanged specification, so the cost of a change does not grow with the
//! job's files and its history.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::changes::same_but_size;
use super::input::Record;
use super::records::{JobRecord, Key, Size, VersionRecord};
use crate::spec::JobSpec;

/// Bytes of a specification that is written inside the job's record, as earlier releases did with all.
const INLINE_BYTES_MAX: usize = 4 * 1024;
/// Bytes of the specifications of all jobs, with their versions; a role gets at most half of the rest that other roles
/// leave. Each start reads the stored data again, and by default an etcd has 2 GiB for all its users.
pub(super) const SPEC_BYTES_MAX: usize = 512 << 20;

/// The last written form of a version.
#[derive(Clone, Debug)]
struct Written {
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

/// The parts of each version of a job that are written.
#[derive(Debug, Default)]
pub(super) struct WrittenVersions(BTreeMap<u64, Written>);

impl WrittenVersions {
    /// Adds a version that was stored under its own key, and returns it with its present size.
    pub(super) fn restore(
        &mut self,
        number: u64,
        mut version: VersionRecord,
        size: Option<Size>,
    ) -> VersionRecord {
        let apart = Arc::clone(&version.spec);
        if let Some(size) = size {
            version.spec = Arc::new(size.applied(&apart));
        }
        let written = Written {
            bytes: apart.stored_bytes(),
            spec: Arc::clone(&version.spec),
            apart: Some(apart),
        };
        self.0.insert(number, written);
        version
    }

    /// Measures the versions that were stored in the job's own record.
    pub(super) fn restore_inline(&mut self, versions: &BTreeMap<u64, VersionRecord>) {
        for (number, version) in versions {
            let written = Written {
                bytes: version.spec.stored_bytes(),
                spec: Arc::clone(&version.spec),
                apart: None,
            };
            self.0.insert(*number, written);
        }
    }

    /// Returns the records that make the present state of a job durable.
    pub(super) fn records(&mut self, job: &str, present: &JobRecord) -> Vec<Record> {
        let before = std::mem::take(&mut self.0);
        let (mut records, mut inline) = (Vec::new(), BTreeMap::new());
        let mut sizes = BTreeMap::new();
        for (number, version) in &present.versions {
            let last = before.get(number);
            let written = written(last, &version.spec);
            let was_apart = last.is_some_and(|last| last.apart.is_some());
            let key = version_key(job, *number);
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
                    let said = last.and_then(|last| last.apart.as_ref());
                    let is_said = said.is_some_and(|said| Arc::ptr_eq(said, apart));
                    records.extend((!is_said).then(|| key.put(version)));
                }
            }
            self.0.insert(*number, written);
        }
        for (number, gone) in before {
            if gone.apart.is_some() && !self.0.contains_key(&number) {
                records.push(version_key(job, number).delete());
            }
        }
        let record = JobRecord {
            versions: inline,
            sizes,
            ..present.clone()
        };
        records.push(Key::Job(job.to_owned()).put(&record));
        records
    }

    /// Returns the records that delete a job.
    pub(super) fn deletions(&self, job: &str) -> Vec<Record> {
        let apart = self.0.iter().filter(|(_, one)| one.apart.is_some());
        let apart = apart.map(|(number, _)| version_key(job, *number).delete());
        apart.chain([Key::Job(job.to_owned()).delete()]).collect()
    }

    /// Returns the stored bytes of the specifications.
    pub(super) fn bytes(&self) -> usize {
        self.0.values().map(Written::charged).sum()
    }

    /// Returns the stored bytes of the versions that are not among these.
    pub(super) fn bytes_without(&self, kept: &BTreeSet<u64>) -> usize {
        let gone = self.0.iter().filter(|(number, _)| !kept.contains(number));
        gone.map(|(_, one)| one.charged()).sum()
    }
}

fn version_key(job: &str, number: u64) -> Key {
    Key::Version {
        job: job.to_owned(),
        number,
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
