//! The life of volumes: the results of operations, the volumes in offers, and their release.
//!
//! Invariant: a volume is destroyed only at the request of a client, which its record shows before DESTROY leaves.

use std::collections::BTreeSet;
use std::time::Duration;

use meseta_proto::mesos::v1::{OperationId, OperationState, OperationStatus};
use meseta_resources::Resources;

use super::input::{Accept, Effect, NamedOperation};
use super::job::Phase;
use super::offer_pool::Pool;
use super::outbox::Deferred;
use super::records::Key;
use super::state::State;
use super::updates::LAUNCH_GRACE;
use super::volume::{
    Outcome, Presence, Release, Step, Volume, VolumeId, VolumeRecord, operation_id,
    parse_operation_id,
};
use super::volume_operations::{named_by, release};
use crate::placement::{Offer, volume_in};

/// The pause between two queries about the operations of a volume: of a volume that may not exist, and of others that block
/// some work and whose agent may have been marked gone.
const ASK_SOON: Duration = Duration::from_secs(5);
const ASK_LATER: Duration = Duration::from_secs(60);
/// Volumes that one query names.
const ASKED_MAX: usize = 1_000;
/// The longest pause before a failed release is retried.
const RETRY_MAX: Duration = Duration::from_secs(300);

impl State {
    /// Gives up the volumes of these indexes: their data is destroyed where and when they are offered.
    pub(super) fn release_volumes_of(&mut self, name: &str, indexes: &BTreeSet<u32>) {
        for index in indexes {
            let volume = self
                .jobs
                .get_mut(name)
                .and_then(|job| job.volumes.remove(index));
            let Some(mut volume) = volume else {
                continue;
            };
            volume.record.release = Some(Release::ByWord);
            let text = format!(
                "the volume of instance {index} on {} is to be destroyed",
                volume.record.hostname
            );
            self.let_go(volume);
            self.event(name, None, text);
        }
    }

    fn let_go(&mut self, volume: Volume) {
        let key = Key::Volume(volume.id.clone());
        self.outbox.write(key.put(&volume.record));
        self.released.insert(volume);
    }

    /// Answers the offers with resources to release, with DESTROY and UNRESERVE alone: as many operations as one ACCEPT
    /// carries, the others with the next offer.
    pub(super) fn release_offered(&mut self, pool: &mut Pool) {
        let mut used = BTreeSet::new();
        for index in 0..pool.open().len() {
            let offer = pool.open()[index].clone();
            let mut operations = Vec::new();
            for (id, held) in &offer.held {
                let further = self.release_operations(id, held);
                let named = named_by(&further);
                if pool.takes_operations(index, named) {
                    pool.charge_operations(index, named);
                    operations.extend(further);
                }
            }
            if operations.is_empty() {
                continue;
            }
            used.insert(index);
            self.offers.remove(&offer.id);
            // The ACCEPT waits until the decision to release the volume is durable.
            let accept = Effect::Accept(Accept {
                offer,
                operations,
                tasks: Vec::new(),
            });
            self.outbox.defer(Deferred::Effect(accept));
        }
        pool.close(&used);
    }

    fn release_operations(&self, id: &str, held: &Resources) -> Vec<NamedOperation> {
        let at = self.clock.at();
        let by_word = match self.released.get(id) {
            Some(releasing) if at < releasing.retry => return Vec::new(),
            Some(releasing) => releasing.record.release == Some(Release::ByWord),
            // The rest of a released volume, without any data.
            None if volume_in(held, id).is_none() && self.is_forgotten(id) => false,
            None => return Vec::new(),
        };
        let number = u64::try_from(at.as_millis()).unwrap_or_default();
        release(id, held, by_word, number)
    }

    /// Whether a volume belongs to this scheduler but has no record.
    fn is_forgotten(&self, id: &str) -> bool {
        let Some(own) = self.own_volume(id) else {
            return false;
        };
        let job = self.jobs.get(&own.task.job);
        let volume = job.and_then(|job| job.volumes.get(&own.task.index));
        volume.is_none_or(|volume| volume.id != id)
    }

    /// Records the volumes in an offer that had no report yet.
    pub(super) fn observe_volumes(&mut self, offer: &Offer) {
        for (id, held) in &offer.held {
            let is_there = volume_in(held, id).is_some();
            self.change_volume(id, |record| match is_there {
                true => record.seen(),
                false => record.reservation_seen(),
            });
        }
    }

    /// Notes that a task runs on its volume: both exist.
    pub(super) fn volume_runs(&mut self, id: &str) {
        self.change_volume(id, VolumeRecord::seen);
    }

    /// Handles the status of an operation; the acknowledgement follows once the consequences are durable.
    pub(super) fn operation_update(&mut self, status: OperationStatus) {
        self.take_operation_update(&status);
        if status.uuid.is_some() && status.agent_id.is_some() && status.operation_id.is_some() {
            let acknowledge = Effect::AcknowledgeOperation(Box::new(status));
            self.outbox.defer(Deferred::Effect(acknowledge));
        }
    }

    /// Handles the failure of an operation whose whole ACCEPT the master has refused.
    pub(super) fn operation_refused(&mut self, id: String, why: &str) {
        self.take_operation_update(&OperationStatus {
            operation_id: Some(OperationId { value: id }),
            state: OperationState::OperationError.into(),
            message: Some(why.to_owned()),
            ..OperationStatus::default()
        });
    }

    fn take_operation_update(&mut self, status: &OperationStatus) {
        let at = self.clock.at();
        let Some(id) = status.operation_id.as_ref().map(|id| id.value.clone()) else {
            return;
        };
        let state = OperationState::try_from(status.state).ok();
        let (Some((id, step)), Some(outcome)) =
            (parse_operation_id(&id), state.and_then(Outcome::from_state))
        else {
            return;
        };
        let Some(volume) = self.volume_mut(id) else {
            return;
        };
        let is_young = at < volume.record.since.saturating_add(LAUNCH_GRACE);
        if outcome == Outcome::Unknown && is_young {
            return;
        }
        if outcome == Outcome::NotDone {
            volume.retry = at.saturating_add(volume.pause);
            volume.pause = (volume.pause * 2).min(RETRY_MAX);
            let text = format!(
                "failed to {} volume {id} on {}: {}",
                step.text(),
                volume.record.hostname,
                status.message.as_deref().unwrap_or("no reason was given")
            );
            let job = volume.record.job.clone();
            self.event(&job, None, text);
        }
        self.change_volume(id, |record| record.learn(step, outcome));
    }

    fn volume_mut(&mut self, id: &str) -> Option<&mut Volume> {
        if self.released.contains_key(id) {
            return self.released.get_mut(id);
        }
        let task = id.parse::<VolumeId>().ok()?.task;
        let volume = self.jobs.get_mut(&task.job)?.volumes.get_mut(&task.index)?;
        (volume.id == id).then_some(volume)
    }

    /// Changes the record of a volume, and handles the consequences.
    fn change_volume(&mut self, id: &str, change: impl FnOnce(&mut VolumeRecord)) {
        let Some(volume) = self.volume_mut(id) else {
            return;
        };
        let before = volume.record.clone();
        change(&mut volume.record);
        if volume.record == before {
            return;
        }
        let record = volume.record.clone();
        let is_kept = record.release.is_none();
        self.jobs.mark_dirty(&record.job);
        if record.is_gone() {
            self.drop_volume(id, &record);
            self.outbox.write(Key::Volume(id.to_owned()).delete());
            let (index, host) = (record.index, &record.hostname);
            let text = match record.release {
                Some(_) => format!("the volume of instance {index} on {host} is released"),
                None => format!("the volume of instance {index} is not on {host}"),
            };
            self.event(&record.job, None, text);
        } else if is_kept && record.volume == Presence::Absent {
            // The volume was not created, but its reservation exists.
            if let Some(mut volume) = self.drop_volume(id, &record) {
                volume.record.release = Some(Release::NotMade);
                self.let_go(volume);
            }
        } else {
            self.outbox.write(Key::Volume(id.to_owned()).put(&record));
        }
    }

    fn drop_volume(&mut self, id: &str, record: &VolumeRecord) -> Option<Volume> {
        if let Some(volume) = self.released.remove(id) {
            return Some(volume);
        }
        let job = self.jobs.get_mut(&record.job)?;
        job.volumes.remove(&record.index)
    }

    /// Repeats all queries on a new stream: earlier queries may have been lost.
    pub(super) fn ask_for_volumes_anew(&mut self) {
        let kept = self
            .jobs
            .values_mut()
            .flat_map(|job| job.volumes.values_mut());
        for volume in kept.chain(self.released.values_mut()) {
            volume.ask = Duration::ZERO;
        }
    }

    /// Queries the operations of volumes that may not exist, or that block some work.
    pub(super) fn ask_for_volumes(&mut self) {
        if !self.connection.is_open() {
            return;
        }
        let at = self.clock.at();
        let with_volumes = self.jobs.values_mut();
        let kept = with_volumes
            .filter(|job| !job.volumes.is_empty())
            .flat_map(|job| {
                let wanted: BTreeSet<u32> = job.wanted.iter().map(|one| one.index).collect();
                // The master does not know operations of an ACCEPT that still waits for the store; a query would report
                // them as unknown.
                let tasks = job.tasks.values();
                let intended = tasks.filter(|task| task.phase == Phase::Intended);
                let intended: BTreeSet<u32> = intended.map(|task| task.name.index).collect();
                let volumes = job.volumes.iter_mut();
                volumes.filter_map(move |(index, volume)| {
                    let waits = wanted.contains(index) || volume.record.is_unsettled();
                    (waits && !intended.contains(index)).then_some(volume)
                })
            });
        let due = kept.chain(self.released.values_mut());
        let due = due.filter(|volume| volume.ask <= at).take(ASKED_MAX);
        let mut asked = Vec::new();
        for volume in due {
            let is_unsettled = volume.record.is_unsettled();
            volume.ask = at.saturating_add(if is_unsettled { ASK_SOON } else { ASK_LATER });
            if at < volume.record.since.saturating_add(LAUNCH_GRACE) {
                continue;
            }
            for step in [Step::Reserve, Step::Create] {
                let id = operation_id(&volume.id, step, None);
                asked.push((id, volume.record.agent_id.clone()));
            }
        }
        if !asked.is_empty() {
            self.outbox.send(Effect::ReconcileOperations(asked));
        }
    }
}
