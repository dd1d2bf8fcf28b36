//! The durable state of the core: jobs, the attempts of each index, and tasks that are not known to have ended.
//!
//! Values are JSON objects with the number of their format; keys begin with the kind of the record. Invariant: a task has a
//! record from before its launch leaves until its end is durable in the record of its index.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::clock::SavedClock;
use super::dealt_times::Dealt;
use super::failure::Failure;
use super::input::Record;
use super::job::KillReason;
use super::volume::VolumeRecord;
use crate::spec::JobSpec;

/// The format of all records that are written.
const FORMAT: u32 = 1;

/// The data of the scheduler as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    pub(super) framework_id: Option<String>,
    /// The id of the framework's cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cluster_id: Option<String>,
    /// Formerly the first version of a new job; kept for earlier releases, which read it.
    pub(super) first_version: u64,
    /// A number that grows with each start of a scheduler on this store, and is part of the ids of its tasks.
    #[serde(default)]
    pub(super) generation: u64,
    /// The owner id that distinguishes the volumes of this scheduler from others; set with the first volume.
    #[serde(default)]
    pub(super) owner: Option<String>,
    /// The time that the scheduler's clock had reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) clock: Option<SavedClock>,
}

impl Meta {
    /// Begins a generation of ids. The upper half is the time, so that it is new even after an older copy of the store was
    /// restored. The lower half is the number that this process has drawn: schedulers on two copies of a store that start in
    /// the same second differ.
    pub(super) fn begin_generation(&mut self, unix: Duration, drawn: u32) {
        let time = u32::try_from(unix.as_secs()).unwrap_or(u32::MAX);
        let last = u32::try_from(self.generation >> 32).unwrap_or(u32::MAX);
        let time = last.saturating_add(1).max(time);
        self.generation = (u64::from(time) << 32) | u64::from(drawn);
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct JobRecord {
    /// The version that the job should run.
    pub(super) target: u64,
    /// The versions; the stored record contains only the small ones: see [`super::versions`].
    pub(super) versions: BTreeMap<u64, VersionRecord>,
    /// The changed sizes of versions with their own record, since that record was written.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) sizes: BTreeMap<u64, Size>,
    /// The last good version: all its instances were healthy together for long enough.
    pub(super) stable: Option<u64>,
    pub(super) rollout: Option<Rollout>,
    /// The reason why the first version of a service, which was never healthy, has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
    /// The update that the service undid by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failed_update: Option<FailedUpdate>,
    /// The last failure of the target version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<Failure>,
    pub(super) stop: Option<Stop>,
    /// Whether the service has launched no task since its submission, or since its start after a stop.
    #[serde(default)]
    pub(super) held: bool,
    /// A task of a service's gang has ended: the others end before all start again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) broken: bool,
    /// The tasks of a service that are to move to other agents.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) moving: BTreeSet<String>,
    /// The attempts of dropped indexes: a new task at such an index counts on from them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) attempts: u32,
    /// The number of the next run.
    pub(super) next_run: u64,
    pub(super) runs: BTreeMap<u64, RunRecord>,
    /// Runs that have ended, the oldest first.
    pub(super) over: Vec<RunSummary>,
    /// The last time of a cron schedule that was dealt with, since the Unix epoch; later times are searched from here.
    pub(super) last_due: Duration,
    /// All times that were dealt with, including those ahead of a clock that was set back.
    #[serde(default, skip_serializing_if = "Dealt::is_empty")]
    pub(super) dealt: Dealt,
    /// Whether names in `after` without a role mean the job's own role. In older records, names were unique in the
    /// scheduler.
    #[serde(default)]
    pub(super) is_named_in_role: bool,
    /// The generation of the store at the job's submission: tasks of earlier generations belong to another job.
    #[serde(default)]
    pub(super) born: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct VersionRecord {
    #[serde(with = "shared")]
    pub(super) spec: Arc<JobSpec>,
    pub(super) at: Duration,
    /// The principal that submitted the version, if the principal has a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) submitter: Option<String>,
}

/// The part of a specification that changes without a new version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Size {
    pub(super) count: u32,
    pub(super) priority: u8,
}

impl Size {
    pub(super) fn from_spec(spec: &JobSpec) -> Self {
        Self {
            count: spec.count,
            priority: spec.priority,
        }
    }

    /// Returns a specification with this size.
    pub(super) fn applied(self, spec: &JobSpec) -> JobSpec {
        JobSpec {
            count: self.count,
            priority: self.priority,
            ..spec.clone()
        }
    }
}

/// Serialization of a specification that its tasks share.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::spec::JobSpec;

    pub(super) fn serialize<S: Serializer>(
        spec: &Arc<JobSpec>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        JobSpec::serialize(spec, serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<JobSpec>, D::Error> {
        JobSpec::deserialize(deserializer).map(Arc::new)
    }
}

/// A service's change from one version to another, in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rollout {
    pub(super) from: u64,
    /// The rollout reverts an update that failed.
    pub(super) reverting: bool,
    pub(super) promoted: bool,
    /// The reason why the rollout does not continue.
    pub(super) halted: Option<String>,
}

/// The version that a service reverted automatically, and why; kept until a client requests another version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FailedUpdate {
    pub(super) version: u64,
    pub(super) why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stop {
    pub(super) purge: bool,
}

/// A run of a batch or cron job that is not over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunRecord {
    pub(super) version: u64,
    pub(super) count: u32,
    pub(super) started: Duration,
    pub(super) cancelled: bool,
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunSummary {
    pub(super) run: u64,
    pub(super) version: u64,
    pub(super) started: Duration,
    pub(super) ended: Duration,
    pub(super) succeeded: u32,
    pub(super) failed: u32,
    pub(super) cancelled: bool,
}

/// The remembered state of one index of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Slot {
    /// The number of the last attempt, 0 before the first.
    pub(super) attempt: u32,
    /// Consecutive failures. Ends of a service with 0 count as well, because it pauses after them too.
    pub(super) failures: u32,
    /// Whether the last of them was an end with 0.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) has_finished: bool,
    /// The earliest start of the next attempt.
    pub(super) not_before: Duration,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    #[default]
    Open,
    Succeeded,
    Failed,
}

/// The durable state of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct TaskRecord {
    pub(super) agent_id: String,
    pub(super) hostname: String,
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) ports: BTreeMap<String, u16>,
    pub(super) launched: Duration,
    pub(super) running: Option<Duration>,
    pub(super) unreachable: Option<Duration>,
    /// The machine's time when the task started to run, or before that when it was launched; for readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) shown_since: Option<Duration>,
    /// The id of the task's volume.
    #[serde(default)]
    pub(super) volume: Option<String>,
    /// The reason for the kill, durable before the first kill leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) killing: Option<KillReason>,
}

impl TaskRecord {
    /// Limits times from a fast clock to the present time.
    pub(super) fn not_after(&mut self, at: Duration) {
        self.launched = self.launched.min(at);
        self.running = self.running.map(|since| since.min(at));
        self.unreachable = self.unreachable.map(|since| since.min(at));
    }
}

/// The kind of a record, with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Meta,
    Job(String),
    /// A version that is not in the record of its job.
    Version {
        job: String,
        number: u64,
    },
    Slot {
        job: String,
        run: u64,
        index: u32,
    },
    Task(String),
    Volume(String),
}

impl Key {
    fn text(&self) -> String {
        match self {
            Self::Meta => META_KEY.to_owned(),
            Self::Job(name) => format!("job/{name}"),
            Self::Version { job, number } => format!("version/{job}/{number}"),
            Self::Slot { job, run, index } => format!("slot/{job}/{run}/{index}"),
            Self::Task(id) => format!("task/{id}"),
            Self::Volume(id) => format!("volume/{id}"),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once('/').unwrap_or((text, ""));
        match kind {
            META_KEY => Some(Self::Meta),
            "job" => Some(Self::Job(rest.to_owned())),
            "task" => Some(Self::Task(rest.to_owned())),
            "volume" => Some(Self::Volume(rest.to_owned())),
            "version" => {
                let (job, number) = rest.split_once('/')?;
                let (job, number) = (job.to_owned(), number.parse().ok()?);
                Some(Self::Version { job, number })
            }
            "slot" => {
                let mut parts = rest.split('/');
                let job = parts.next()?.to_owned();
                let run = parts.next()?.parse().ok()?;
                let index = parts.next()?.parse().ok()?;
                Some(Self::Slot { job, run, index })
            }
            _ => None,
        }
    }

    /// Returns the record that sets this key's value.
    pub(super) fn put<T: Serialize>(&self, value: &T) -> Record {
        let versioned = Versioned {
            format: FORMAT,
            value,
        };
        // All values are plain structs with text keys, which JSON can represent.
        let value = serde_json::to_vec(&versioned).unwrap_or_default();
        Record {
            key: self.text(),
            value: Some(value),
        }
    }

    /// Returns the record that deletes this key.
    pub(super) fn delete(&self) -> Record {
        Record {
            key: self.text(),
            value: None,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    format: u32,
    value: T,
}

/// The reason why the stored data cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("the store has a record {0:?} of a kind that this version does not know")]
    Key(String),
    #[error("the record {key:?} cannot be read")]
    Value {
        key: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("the record {key:?} is in format {format}; this version reads up to {FORMAT}")]
    Format { key: String, format: u32 },
    #[error("the record {key:?} belongs to a job that is not there")]
    Orphan { key: String },
}

/// Returns the error for a record whose job is missing.
pub(super) fn orphan(key: &Key) -> RestoreError {
    RestoreError::Orphan {
        key: key.delete().key,
    }
}

/// All stored records, before they are combined.
#[derive(Debug, Default)]
pub(super) struct Stored {
    pub(super) meta: Meta,
    pub(super) jobs: BTreeMap<String, JobRecord>,
    pub(super) versions: Vec<(String, u64, VersionRecord)>,
    pub(super) slots: Vec<(String, u64, u32, Slot)>,
    pub(super) tasks: BTreeMap<String, TaskRecord>,
    pub(super) volumes: BTreeMap<String, VolumeRecord>,
    /// Whether the store has no records at all.
    pub(super) is_new: bool,
}

impl Stored {
    pub(super) fn read(
        records: impl IntoIterator<Item = (String, Vec<u8>)>,
    ) -> Result<Self, RestoreError> {
        let mut stored = Self {
            is_new: true,
            ..Self::default()
        };
        for (key, value) in records {
            stored.is_new = false;
            match Key::parse(&key) {
                None => return Err(RestoreError::Key(key)),
                Some(Key::Meta) => stored.meta = value_of(&key, &value)?,
                Some(Key::Job(name)) => {
                    stored.jobs.insert(name, value_of(&key, &value)?);
                }
                Some(Key::Version { job, number }) => {
                    let version = value_of(&key, &value)?;
                    stored.versions.push((job, number, version));
                }
                Some(Key::Task(id)) => {
                    stored.tasks.insert(id, value_of(&key, &value)?);
                }
                Some(Key::Volume(id)) => {
                    stored.volumes.insert(id, value_of(&key, &value)?);
                }
                Some(Key::Slot { job, run, index }) => {
                    stored
                        .slots
                        .push((job, run, index, value_of(&key, &value)?));
                }
            }
        }
        Ok(stored)
    }
}

/// The key of the record of the scheduler as a whole.
pub(crate) const META_KEY: &str = "meta";

/// The id of the cluster that the jobs are of, in the value at [`META_KEY`]; `None` where it has none.
pub(crate) fn cluster_in(value: &[u8]) -> Option<String> {
    let meta: Meta = value_of(META_KEY, value).ok()?;
    meta.cluster_id
}

fn value_of<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, RestoreError> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    let wrong = |source| RestoreError::Value {
        key: key.to_owned(),
        source,
    };
    let Format { format } = serde_json::from_slice(value).map_err(wrong)?;
    if format > FORMAT {
        return Err(RestoreError::Format {
            key: key.to_owned(),
            format,
        });
    }
    let versioned: Versioned<T> = serde_json::from_slice(value).map_err(wrong)?;
    Ok(versioned.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_round_trips_and_refuses_newer() {
        let slot = Slot {
            attempt: 3,
            not_before: Duration::from_millis(1_500),
            ..Slot::default()
        };
        let key = Key::Slot {
            job: "a.b".to_owned(),
            run: 1,
            index: 2,
        };
        let Record { key, value } = key.put(&slot);
        let value = value.expect("a value");
        let stored = Stored::read([(key.clone(), value.clone())]).unwrap();
        assert_eq!(stored.slots, [("a.b".to_owned(), 1, 2, slot)]);
        let newer = String::from_utf8(value)
            .unwrap()
            .replace("\"format\":1", "\"format\":2");
        let error = Stored::read([(key, newer.into_bytes())]).unwrap_err();
        assert!(matches!(error, RestoreError::Format { format: 2, .. }));
        let error = Stored::read([("strange/1".to_owned(), Vec::new())]).unwrap_err();
        assert!(matches!(error, RestoreError::Key(_)));
    }
}
