//! The registry's epoch that this master leads, and its raises.
//!
//! An agent that has obeyed a higher epoch does not obey this master: the registry was restored from an older copy.
//! The master then raises the epoch above that of the agent. Invariant: the current epoch is durable.

use std::time::Duration;

use meseta_proto::epoch::LedEpoch;
use meseta_proto::meseta::v1::ObeyedEpoch;
use meseta_resources::time::Moment;

use super::persisted::Recovered;
use super::rejection::Rejection;

/// The shortest time between two raises. Each raise makes all agents write to disk, and an agent with invented epochs
/// must not keep them busy.
const EPOCH_RISE_INTERVAL: Duration = Duration::from_secs(10);

/// The epoch of this master, and the epochs requested from the registry.
#[derive(Debug)]
pub(crate) struct Epochs {
    /// The registry's id, by which agents recognise its epochs.
    cluster_id: Option<String>,
    /// Whether the cluster id ends with this master.
    is_forgotten: bool,
    current: u64,
    /// The epoch at the start of this master.
    first: u64,
    /// The highest epoch requested from the registry; 0 without a request.
    requested: u64,
    /// The time from which the master may request the next higher epoch.
    next_rise: Moment,
}

/// A request for a higher epoch.
pub(crate) enum EpochRequest {
    /// The master writes this epoch for the first time.
    New(u64),
    /// An earlier request for this epoch suffices.
    Earlier(u64),
}

impl Epochs {
    pub(crate) fn recovered(recovered: &Recovered) -> Self {
        Self {
            cluster_id: Some(recovered.cluster_id.clone()).filter(|id| !id.is_empty()),
            is_forgotten: recovered.is_forgotten,
            current: recovered.epoch,
            first: recovered.epoch,
            requested: 0,
            next_rise: Moment::ORIGIN,
        }
    }

    pub(crate) const fn current(&self) -> u64 {
        self.current
    }

    pub(crate) const fn cluster_id(&self) -> Option<&String> {
        self.cluster_id.as_ref()
    }

    /// The id of the cluster, if it outlives this master.
    pub(crate) fn lasting_cluster_id(&self) -> Option<&String> {
        self.cluster_id().filter(|_| !self.is_forgotten)
    }

    /// The epoch in the form that a new connection gets.
    pub(crate) fn led(&self) -> LedEpoch {
        LedEpoch {
            cluster_id: self.cluster_id.clone(),
            epoch: self.current,
        }
    }

    /// Finds the epoch that the master `own` needs for an agent to obey it; `None` if the current epoch suffices.
    /// Fails if the rise since the start of this master exceeds `rise_max`: an agent with invented epochs must not
    /// outrun every copy of the registry.
    pub(crate) fn find_needed(
        &self,
        obeyed: Option<&ObeyedEpoch>,
        own: &str,
        rise_max: u64,
    ) -> Result<Option<u64>, Rejection> {
        let same = obeyed.filter(|obeyed| self.cluster_id.as_ref() == Some(&obeyed.cluster_id));
        let Some(obeyed) = same else {
            return Ok(None);
        };
        // If another start has used the same epoch, this master needs a higher one.
        let is_another = obeyed.master_id.as_deref().is_some_and(|id| id != own);
        let is_enough = match is_another {
            true => self.current > obeyed.epoch,
            false => self.current >= obeyed.epoch,
        };
        if is_enough {
            return Ok(None);
        }
        let next = obeyed.epoch.checked_add(1);
        let rise = next.map(|next| next.saturating_sub(self.first));
        match next.filter(|_| rise.is_some_and(|rise| rise <= rise_max)) {
            Some(next) => Ok(Some(next)),
            None => Err(Rejection::for_now(format!(
                "the agent says that it has obeyed epoch {} of this cluster, whose registry was at {} when this master began: \
                 a difference above {rise_max} is not believed; if the registry is the right one and most agents say so, start the \
                 master once with --registry_epoch_rise_max={}",
                obeyed.epoch,
                self.first,
                rise.unwrap_or(u64::MAX)
            ))),
        }
    }

    /// Requests an epoch that is at least `needed`. Fails if the last new request was a moment ago.
    pub(crate) fn request(&mut self, needed: u64, now: Moment) -> Result<EpochRequest, Rejection> {
        if needed <= self.requested {
            return Ok(EpochRequest::Earlier(self.requested));
        }
        if now < self.next_rise {
            return Err(Rejection::for_now(
                "the epoch was made a higher one just now for another agent",
            ));
        }
        self.requested = needed;
        self.next_rise = now + EPOCH_RISE_INTERVAL;
        Ok(EpochRequest::New(needed))
    }

    /// Raises the current epoch to a durable one.
    pub(crate) fn raise(&mut self, durable: u64) {
        self.current = self.current.max(durable);
    }
}
