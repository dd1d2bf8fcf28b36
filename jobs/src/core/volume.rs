//! A volume of an instance: its id, its durable record, and the results of its operations.
//!
//! Invariant: a report about a step that was reported before changes nothing, so repeated and late statuses do no harm.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use meseta_proto::mesos::v1::OperationState;
use serde::{Deserialize, Serialize};

use super::task_name::{NotOurs, TaskName};

/// The id of a volume, as the agent keeps it: of the task that it was made for, and of that task's scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VolumeId {
    pub(super) task: TaskName,
    /// The store's [`Meta::owner`](super::records::Meta::owner): another scheduler may have a job of the same name in the
    /// same role.
    pub(super) owner: String,
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.task, self.owner)
    }
}

impl FromStr for VolumeId {
    type Err = NotOurs;

    fn from_str(text: &str) -> Result<Self, NotOurs> {
        let (task, owner) = text.rsplit_once('.').ok_or(NotOurs)?;
        let (task, owner) = (task.parse()?, owner.to_owned());
        Ok(Self { task, owner })
    }
}

/// An operation's step on a volume or on its reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Reserve,
    Create,
    Destroy,
    Unreserve,
    /// Reserves more, for an instance that needs more than before.
    Enlarge,
    /// Releases resources that an instance no longer needs.
    Reduce,
}

impl Step {
    const ALL: [(Self, &'static str); 6] = [
        (Self::Reserve, "reserve"),
        (Self::Create, "create"),
        (Self::Destroy, "destroy"),
        (Self::Unreserve, "unreserve"),
        (Self::Enlarge, "enlarge"),
        (Self::Reduce, "reduce"),
    ];

    pub(super) fn text(self) -> &'static str {
        let mut all = Self::ALL.iter();
        let found = all.find(|(step, _)| *step == self);
        found.map(|(_, text)| *text).unwrap_or_default()
    }
}

/// Returns the id of an operation: `VOLUME:STEP`, followed by a number for repeated steps.
pub(super) fn operation_id(volume: &str, step: Step, number: Option<u128>) -> String {
    let step = step.text();
    match number {
        Some(number) => format!("{volume}:{step}:{number}"),
        None => format!("{volume}:{step}"),
    }
}

/// Returns the volume and the step of an operation that this scheduler has named.
pub(super) fn parse_operation_id(id: &str) -> Option<(&str, Step)> {
    let mut parts = id.split(':');
    let (volume, text) = (parts.next()?, parts.next()?);
    let mut all = Step::ALL.iter();
    let (step, _) = all.find(|(_, known)| *known == text)?;
    Some((volume, *step))
}

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    NotDone,
    /// The operation is unknown: it did not arrive, unless it is under way.
    Unknown,
    /// The agent will not come back, by an operator's decision.
    Gone,
}

impl Outcome {
    /// Returns the outcome of a state; `None` if the operation has not ended or its state is unavailable.
    pub(super) fn from_state(state: OperationState) -> Option<Self> {
        match state {
            OperationState::OperationFinished => Some(Self::Done),
            OperationState::OperationFailed
            | OperationState::OperationError
            | OperationState::OperationDropped => Some(Self::NotDone),
            OperationState::OperationUnknown => Some(Self::Unknown),
            OperationState::OperationGoneByOperator => Some(Self::Gone),
            OperationState::OperationUnsupported
            | OperationState::OperationPending
            | OperationState::OperationUnreachable
            | OperationState::OperationRecovering => None,
        }
    }
}

/// The known presence of a resource on its agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Presence {
    /// The operation was requested, and no report has come yet.
    #[default]
    Unknown,
    Present,
    Absent,
}

impl Presence {
    /// Settles an unknown presence.
    fn settle(&mut self, as_this: Self) {
        if *self == Self::Unknown {
            *self = as_this;
        }
    }
}

/// The reason why a volume is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Release {
    /// A client requested the release: the data is destroyed.
    ByWord,
    /// The volume could not be created; its reservation is given back.
    NotMade,
}

/// The durable state of a volume, from before its creation until nothing of it is left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct VolumeRecord {
    pub(super) job: String,
    pub(super) index: u32,
    pub(super) role: String,
    pub(super) agent_id: String,
    pub(super) hostname: String,
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) size_mb: f64,
    /// The path of the volume in the sandbox.
    pub(super) path: String,
    /// The time when the volume was requested.
    pub(super) since: Duration,
    /// The reservation for the instance with its label; absent if the agent's `--resources` reserve the disk.
    pub(super) reservation: Presence,
    pub(super) volume: Presence,
    pub(super) release: Option<Release>,
}

impl VolumeRecord {
    /// Applies the outcome of an operation.
    pub(super) fn learn(&mut self, step: Step, outcome: Outcome) {
        match (step, outcome) {
            (_, Outcome::Gone) => {
                self.reservation = Presence::Absent;
                self.volume = Presence::Absent;
            }
            (Step::Reserve, Outcome::Done) => self.reservation.settle(Presence::Present),
            (Step::Reserve, _) => self.reservation.settle(Presence::Absent),
            (Step::Create, Outcome::Done) => self.seen(),
            (Step::Create, _) => self.volume.settle(Presence::Absent),
            (Step::Destroy, Outcome::Done) => self.volume = Presence::Absent,
            (Step::Unreserve, Outcome::Done) => self.reservation = Presence::Absent,
            (Step::Destroy | Step::Unreserve | Step::Enlarge | Step::Reduce, _) => {}
        }
    }

    /// Records that an offer shows the volume, and with it the reservation.
    pub(super) fn seen(&mut self) {
        self.reservation.settle(Presence::Present);
        self.volume.settle(Presence::Present);
    }

    pub(super) fn reservation_seen(&mut self) {
        self.reservation.settle(Presence::Present);
    }

    pub(super) fn is_unsettled(&self) -> bool {
        self.reservation == Presence::Unknown || self.volume == Presence::Unknown
    }

    /// Whether nothing of the volume is left.
    pub(super) fn is_gone(&self) -> bool {
        self.reservation == Presence::Absent && self.volume == Presence::Absent
    }

    /// Limits a time from a fast clock to the present time.
    pub(super) fn not_after(&mut self, at: Duration) {
        self.since = self.since.min(at);
    }
}

/// A volume in the core's memory.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) id: String,
    pub(super) record: VolumeRecord,
    /// The reason why the instance did not fit beside its volume in the last offer.
    pub(super) obstacle: Option<String>,
    /// The next time to query the master about the operations.
    pub(super) ask: Duration,
    /// The next time to try the release, and the pause after that.
    pub(super) retry: Duration,
    pub(super) pause: Duration,
}

impl Volume {
    pub(super) fn new(id: String, record: VolumeRecord) -> Self {
        Self {
            id,
            record,
            obstacle: None,
            ask: Duration::ZERO,
            retry: Duration::ZERO,
            pause: Duration::from_secs(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(reservation: Presence, volume: Presence) -> VolumeRecord {
        VolumeRecord {
            job: "db".to_owned(),
            index: 0,
            role: "r".to_owned(),
            agent_id: "a".to_owned(),
            hostname: "h".to_owned(),
            attributes: BTreeMap::new(),
            size_mb: 1.0,
            path: "data".to_owned(),
            since: Duration::ZERO,
            reservation,
            volume,
            release: None,
        }
    }

    #[test]
    fn known_facts_are_never_unlearned() {
        use Presence::{Absent, Present, Unknown};
        for (before, step, outcome, after) in [
            (
                (Unknown, Unknown),
                Step::Reserve,
                Outcome::Done,
                (Present, Unknown),
            ),
            (
                (Unknown, Unknown),
                Step::Create,
                Outcome::Done,
                (Present, Present),
            ),
            (
                (Present, Unknown),
                Step::Create,
                Outcome::NotDone,
                (Present, Absent),
            ),
            (
                (Unknown, Unknown),
                Step::Reserve,
                Outcome::Unknown,
                (Absent, Unknown),
            ),
            // The operation's end was acknowledged, so that the master has forgotten it.
            (
                (Present, Present),
                Step::Create,
                Outcome::Unknown,
                (Present, Present),
            ),
            (
                (Present, Present),
                Step::Reserve,
                Outcome::NotDone,
                (Present, Present),
            ),
            (
                (Present, Present),
                Step::Destroy,
                Outcome::Done,
                (Present, Absent),
            ),
            (
                (Present, Present),
                Step::Destroy,
                Outcome::NotDone,
                (Present, Present),
            ),
            (
                (Present, Absent),
                Step::Unreserve,
                Outcome::Done,
                (Absent, Absent),
            ),
            (
                (Present, Present),
                Step::Reduce,
                Outcome::Done,
                (Present, Present),
            ),
            (
                (Present, Present),
                Step::Reserve,
                Outcome::Gone,
                (Absent, Absent),
            ),
            // A disk that is reserved by the agent itself.
            (
                (Absent, Unknown),
                Step::Create,
                Outcome::Done,
                (Absent, Present),
            ),
        ] {
            let mut record = record(before.0, before.1);
            record.learn(step, outcome);
            let told = (record.reservation, record.volume);
            assert_eq!(told, after, "{before:?} {step:?} {outcome:?}");
        }
    }

    #[test]
    fn volume_and_operation_ids_round_trip() {
        let task: TaskName = "db.1.3.0.2.7".parse().unwrap();
        let id = VolumeId {
            task,
            owner: "0a1b2c3d".to_owned(),
        };
        let text = id.to_string();
        assert_eq!(text, "db.1.3.0.2.7.0a1b2c3d");
        assert_eq!(text.parse(), Ok(id));
        for (step, _) in Step::ALL {
            let told = operation_id(&text, step, None);
            assert_eq!(parse_operation_id(&told), Some((text.as_str(), step)));
            let told = operation_id(&text, step, Some(12));
            assert_eq!(parse_operation_id(&told), Some((text.as_str(), step)));
        }
        assert_eq!(parse_operation_id("something else"), None);
        assert_eq!(parse_operation_id("a:melt"), None);
    }
}
