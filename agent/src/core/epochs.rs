//! Decides which masters the agent obeys: never a lower epoch of the same cluster than it has obeyed, also after a
//! restart.
//!
//! Entered through [`Epochs::decide`] for every frame and [`Epochs::keep`] after the registration. A master without a
//! cluster id is an older version. For such a master, and for another cluster, only recently heard epochs count.
//! Invariant: the kept epoch of a cluster never falls.

use std::time::Duration;

use meseta_proto::meseta::v1::ObeyedEpoch;
use meseta_resources::Moment;

/// The silence after which the master of the highest epoch no longer counts. After this time a master with a lower
/// epoch, of another cluster or without a cluster id, is accepted as the result of a lost registry. Before, it may be a
/// superseded master, but such a master ends with its lease, long before this time.
const EPOCH_MEMORY: Duration = Duration::from_secs(75);

/// Ids are UUIDs. A longer id is invalid, and not written to the disk.
const ID_BYTES_MAX: usize = 256;

/// A master, as described by the current frame and the earlier frames of the connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MasterEpoch<'a> {
    /// Absent if the master names none.
    pub(super) cluster_id: Option<&'a str>,
    pub(super) epoch: u64,
    /// The start of the master; absent before the agent is registered with that master.
    pub(super) master_id: Option<&'a str>,
}

/// The decision about a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Decision {
    Obey {
        /// Whether the kept epoch has changed. It must be durable before the frame takes effect.
        has_changed: bool,
        /// Whether the agent has obeyed a higher epoch, which expired after a long silence.
        is_lower: bool,
    },
    /// The frame comes from a superseded master, or from a master with an outdated registry.
    Drop {
        /// Whether the agent has obeyed a higher epoch of this cluster, so that waiting does not help.
        for_ever: bool,
        /// Whether this master was not refused just before.
        is_news: bool,
    },
}

/// The epochs that the agent has obeyed.
#[derive(Clone, Debug, Default)]
pub(super) struct Epochs {
    /// The highest epoch of the cluster of the last registration; durable, or about to be.
    kept: Option<ObeyedEpoch>,
    /// The epoch of the last obeyed frame, of any cluster.
    heard: u64,
    heard_at: Moment,
    /// Cluster and epoch of the last frame that was dropped, if no frame was obeyed since.
    refused: Option<(Option<String>, u64)>,
}

impl Epochs {
    /// The known epochs after a restart.
    pub(super) fn recovered(kept: Option<ObeyedEpoch>) -> Self {
        Self {
            kept,
            ..Self::default()
        }
    }

    /// The epoch to make durable and send to masters.
    pub(super) fn kept(&self) -> Option<&ObeyedEpoch> {
        self.kept.as_ref()
    }

    /// The epoch of the last obeyed frame; 0 before the first.
    pub(super) fn heard(&self) -> u64 {
        self.heard
    }

    /// Decides whether a frame is obeyed.
    pub(super) fn decide(&mut self, now: Moment, master: MasterEpoch<'_>) -> Decision {
        let known = self
            .kept
            .as_mut()
            .filter(|kept| master.cluster_id == Some(kept.cluster_id.as_str()));
        let for_ever = known.as_ref().is_some_and(|kept| master.epoch < kept.epoch);
        let is_lower = master.epoch < self.heard;
        let is_remembered = now.saturating_since(self.heard_at) <= EPOCH_MEMORY;
        if for_ever || (is_lower && is_remembered) {
            return Decision::Drop {
                for_ever,
                is_news: self.note_refusal(master),
            };
        }
        let higher = known.filter(|kept| kept.epoch < master.epoch);
        let has_changed = higher.is_some();
        if let Some(kept) = higher {
            kept.epoch = master.epoch;
            kept.master_id = valid(master.master_id);
        }
        self.heard = master.epoch;
        self.heard_at = now;
        self.refused = None;
        Decision::Obey {
            has_changed,
            is_lower,
        }
    }

    /// Whether a master is above all obeyed epochs of its cluster, and not below the epoch obeyed last.
    pub(super) fn is_raised_by(&self, master: MasterEpoch<'_>) -> bool {
        let kept = self.kept.as_ref();
        let same = kept.filter(|kept| master.cluster_id == Some(kept.cluster_id.as_str()));
        master.epoch >= self.heard && same.is_none_or(|kept| master.epoch > kept.epoch)
    }

    /// Notes a refusal. Returns whether this master was not refused just before.
    fn note_refusal(&mut self, master: MasterEpoch<'_>) -> bool {
        let cluster_id = valid(master.cluster_id);
        let refused = Some((cluster_id, master.epoch));
        let is_news = self.refused != refused;
        self.refused = refused;
        is_news
    }

    /// Notes the registration with an obeyed master: from now on its cluster counts. Returns whether the kept epoch has
    /// changed.
    pub(super) fn keep(&mut self, master: MasterEpoch<'_>) -> bool {
        let Some(cluster_id) = valid(master.cluster_id) else {
            return false;
        };
        let kept = Some(ObeyedEpoch {
            cluster_id,
            epoch: master.epoch,
            master_id: valid(master.master_id),
        });
        let has_changed = self.kept != kept;
        self.kept = kept;
        has_changed
    }

    /// Extends the memory by the time that the process stood still, since it could not hear anybody.
    pub(super) fn paused(&mut self, now: Moment, lasted: Duration) {
        self.heard_at = (self.heard_at + lasted).min(now);
    }
}

/// Returns a valid id, or `None`.
fn valid(id: Option<&str>) -> Option<String> {
    id.filter(|id| !id.is_empty() && id.len() <= ID_BYTES_MAX)
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LATE: Duration = Duration::from_secs(76);

    fn master(cluster_id: &str, epoch: u64) -> MasterEpoch<'_> {
        MasterEpoch {
            cluster_id: Some(cluster_id).filter(|id| !id.is_empty()),
            epoch,
            master_id: Some("m"),
        }
    }

    fn at(seconds: u64) -> Moment {
        Moment::ORIGIN + Duration::from_secs(seconds)
    }

    /// An agent that is registered with a master of the cluster `a`.
    fn obeying(epoch: u64) -> Epochs {
        let mut epochs = Epochs::default();
        epochs.decide(at(1), master("a", epoch));
        assert!(epochs.keep(master("a", epoch)));
        epochs
    }

    fn is_obeyed(decision: Decision) -> bool {
        !matches!(decision, Decision::Drop { .. })
    }

    #[test]
    fn lower_epoch_is_never_obeyed() {
        let mut epochs = obeying(7);
        let lower = master("a", 6);
        let refused = |is_news| Decision::Drop {
            for_ever: true,
            is_news,
        };
        assert_eq!(epochs.decide(at(2), lower), refused(true));
        assert_eq!(epochs.decide(at(1_000_000), lower), refused(false));
        assert_eq!(epochs.decide(at(1_000_000), master("a", 5)), refused(true));
        let mut restarted = Epochs::recovered(epochs.kept().cloned());
        assert_eq!(restarted.decide(at(1), lower), refused(true));
        assert!(is_obeyed(restarted.decide(at(2), master("a", 7))));
        assert_eq!(restarted.decide(at(3), lower), refused(true));
    }

    #[test]
    fn a_higher_epoch_is_kept_once() {
        let mut epochs = obeying(7);
        let decision = |has_changed| Decision::Obey {
            has_changed,
            is_lower: false,
        };
        let next = MasterEpoch {
            master_id: None,
            ..master("a", 8)
        };
        assert_eq!(epochs.decide(at(2), next), decision(true));
        assert_eq!(epochs.decide(at(3), next), decision(false));
        let kept = epochs.kept().expect("it is kept");
        assert_eq!((kept.epoch, &kept.master_id), (8, &None));
        assert!(epochs.keep(master("a", 8)));
        assert!(!epochs.keep(master("a", 8)));
        // The same master has raised its epoch.
        assert_eq!(epochs.decide(at(4), master("a", 9)), decision(true));
        let kept = epochs.kept().expect("it is kept");
        assert_eq!((kept.epoch, kept.master_id.as_deref()), (9, Some("m")));
    }

    #[test]
    fn only_higher_epoch_is_a_rise() {
        let epochs = obeying(7);
        assert!(epochs.is_raised_by(master("a", 8)));
        assert!(!epochs.is_raised_by(master("a", 7)));
        assert!(!epochs.is_raised_by(master("a", 6)));
        assert!(!epochs.is_raised_by(master("b", 6)));
        assert!(epochs.is_raised_by(master("b", 8)));
        assert!(epochs.is_raised_by(master("", 8)));
        let restarted = Epochs::recovered(epochs.kept().cloned());
        assert!(!restarted.is_raised_by(master("a", 7)));
        assert!(restarted.is_raised_by(master("b", 1)));
    }

    #[test]
    fn foreign_epoch_yields_after_silence() {
        for other in ["b", ""] {
            let mut epochs = obeying(7);
            let refused = Decision::Drop {
                for_ever: false,
                is_news: true,
            };
            assert_eq!(epochs.decide(at(2), master(other, 3)), refused);
            let taken = Decision::Obey {
                has_changed: false,
                is_lower: true,
            };
            assert_eq!(epochs.decide(at(1) + LATE, master(other, 3)), taken);
            assert!(is_obeyed(epochs.decide(at(2) + LATE, master(other, 4))));
        }
    }

    #[test]
    fn cluster_counts_until_new_registration() {
        let mut epochs = obeying(7);
        epochs.decide(at(1) + LATE, master("", 3));
        assert!(!epochs.keep(master("", 3)), "an older master names none");
        assert!(!is_obeyed(epochs.decide(at(500), master("a", 6))));
        epochs.decide(at(600), master("b", 9));
        assert!(!is_obeyed(epochs.decide(at(700), master("a", 6))));
        assert!(epochs.keep(master("b", 9)));
        assert!(is_obeyed(epochs.decide(at(700), master("a", 6))));
    }

    #[test]
    fn invalid_cluster_id_is_not_kept() {
        let long = "x".repeat(ID_BYTES_MAX + 1);
        let mut epochs = Epochs::default();
        assert!(!epochs.keep(master(&long, 1)));
        assert!(!epochs.keep(master("", 1)));
        assert_eq!(epochs.kept(), None);
    }

    #[test]
    fn pause_of_agent_is_not_silence() {
        let mut epochs = obeying(7);
        epochs.paused(at(1) + LATE, LATE);
        let lower = master("b", 3);
        assert!(!is_obeyed(epochs.decide(at(2) + LATE, lower)));
    }

    proptest! {
        /// This holds for any messages of masters and any number of restarts of the agent.
        #[test]
        fn epoch_of_a_cluster_never_falls(
            frames in prop::collection::vec(
                (0_u64..200, 0..3_usize, 0_u64..8, any::<bool>(), any::<bool>()), 1..64
            ),
        ) {
            let mut epochs = Epochs::default();
            let mut now = Moment::ORIGIN;
            for (pause, cluster, epoch, is_registration, restarts) in frames {
                now += Duration::from_secs(pause);
                if restarts {
                    epochs = Epochs::recovered(epochs.kept().cloned());
                }
                let of = master(["", "a", "b"][cluster], epoch);
                let before = epochs.kept().cloned();
                let obeyed = is_obeyed(epochs.decide(now, of));
                if obeyed && is_registration {
                    epochs.keep(of);
                }
                let same = before.filter(|kept| of.cluster_id == Some(kept.cluster_id.as_str()));
                if let Some(before) = same {
                    prop_assert!(!obeyed || epoch >= before.epoch);
                    let kept = epochs.kept().expect("what was kept is kept").epoch;
                    let highest = if obeyed { epoch } else { 0 };
                    prop_assert_eq!(kept, before.epoch.max(highest));
                }
            }
        }
    }
}
