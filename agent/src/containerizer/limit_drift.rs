//! Compares the limits in force with the requested limits, and sets them again.
//!
//! Limits are a function of the demand, regardless of other writers to the groups. All are compared when the agent
//! starts, and every [`PERIOD`]. Limits whose group is missing are reported, and the others are still enforced. A
//! nested container that shares its parent's groups has no limits of its own. Blocking. Invariants: a container that is
//! being changed or has ended is skipped; a memory limit that waits for freed memory does not count as a difference.

use std::sync::atomic::Ordering;
use std::time::Duration;

use meseta_daemon::error_chain::chain;
use meseta_isolators::{ContainerError, ContainerName, Demand, Drift, DriftKind, Shrink};
use meseta_resources::ContainerId;
use tracing::{debug, info, warn};

use super::state::Applied;
use super::{Containerizer, LiveContainer};

/// The interval between comparisons of a running container's limits.
pub(super) const PERIOD: Duration = Duration::from_secs(30);

/// Compares the limits of a running container, unless a change of them is in progress.
pub(super) fn compare(containerizer: &Containerizer, live: &LiveContainer) {
    let Ok(mut applied) = live.change_lock.try_lock() else {
        return;
    };
    // Otherwise other limits were requested and are about to be set.
    if containerizer.demand_of(&live.container) == Some(applied.demand) {
        compare_with(containerizer, live, &mut applied, false);
    }
}

/// Compares the limits of a recovered container with its checkpoint.
pub(super) fn restore(containerizer: &Containerizer, live: &LiveContainer) {
    if let Ok(mut applied) = live.change_lock.try_lock() {
        compare_with(containerizer, live, &mut applied, true);
    }
}

fn compare_with(
    containerizer: &Containerizer,
    live: &LiveContainer,
    applied: &mut Applied,
    is_first: bool,
) {
    let container = &live.container;
    let Ok(name) = ContainerName::new(container.as_str()) else {
        return;
    };
    let demand = &applied.demand;
    match containerizer.containers().verify(&name, demand) {
        Ok(drifts) => {
            // Checked after the comparison: the groups of an ended container are removed one after the other.
            let has_ended = || matches!(live.supervisor.open(), Ok(None));
            let Some(missing) = missing_of(&drifts, has_ended) else {
                debug!(container_id = %container, "the container ended during the comparison of \
                    its limits");
                return;
            };
            if let Err(error) = set(containerizer, &name, demand, &drifts, &missing) {
                let found = text_of(&drifts);
                warn!(container_id = %container, found, error = %chain(&error), "limits differ from the requested limits, and the agent cannot set them");
            }
            note_missing(containerizer, container, &applied.missing_limits, &missing);
            applied.missing_limits = missing;
        }
        // The agent lacks descriptors or memory. This concerns all containers and is logged elsewhere.
        Err(error @ ContainerError::Limits { .. }) if !is_first => {
            debug!(container_id = %container, error = %chain(&error), "failed to read limits; \
                comparing them the next time");
        }
        Err(error) => {
            warn!(container_id = %container, error = %chain(&error), "failed to compare limits");
        }
    }
}

/// Updates the limits of a container that runs, but for those whose group somebody removed; returns the files of these. A
/// group may have been removed since the last comparison.
pub(super) fn update(
    containerizer: &Containerizer,
    live: &LiveContainer,
    known: Vec<&'static str>,
) -> Result<Vec<&'static str>, ContainerError> {
    let (containers, demand) = (containerizer.containers(), &live.demand);
    let Ok(name) = ContainerName::new(live.container.as_str()) else {
        return Ok(known);
    };
    let Err(error) = containers.update_without(&name, demand, &known) else {
        return Ok(known);
    };
    let drifts = containers.verify(&name, demand)?;
    let has_ended = || matches!(live.supervisor.open(), Ok(None));
    let Some(missing) = missing_of(&drifts, has_ended).filter(|missing| *missing != known) else {
        return Err(error);
    };
    containers.update_without(&name, demand, &missing)?;
    note_missing(containerizer, &live.container, &known, &missing);
    Ok(missing)
}

/// Sets limits again. A higher memory limit may be an earlier one that could not be lowered because of the usage: this
/// function lowers it if it fits by now, and does not count it.
fn set(
    containerizer: &Containerizer,
    name: &ContainerName,
    demand: &Demand,
    drifts: &[Drift],
    missing: &[&'static str],
) -> Result<(), ContainerError> {
    let containers = containerizer.containers();
    if drifts.iter().any(|drift| drift.kind == DriftKind::Differs) {
        containers.update_without(name, demand, missing)?;
        let found = text_of(drifts);
        warn!(container_id = %name, found, "limits differed from the requested limits; set them again");
        let restored = &containerizer.inner.limits_restored;
        restored.fetch_add(1, Ordering::Relaxed);
    }
    if drifts.iter().any(|drift| drift.kind == DriftKind::Higher)
        && let Shrink::Done { limit_bytes } = containers.shrink_memory(name, demand)?
    {
        info!(container_id = %name, limit_bytes, "lowered a memory limit to the requested value");
    }
    Ok(())
}

/// The missing files: somebody removed their group, or the container began under other isolators. `None` if they are
/// missing because the container has ended.
fn missing_of(drifts: &[Drift], has_ended: impl Fn() -> bool) -> Option<Vec<&'static str>> {
    let missing = drifts
        .iter()
        .filter(|drift| drift.kind == DriftKind::Missing);
    let missing: Vec<_> = missing.map(|drift| drift.file).collect();
    (missing.is_empty() || !has_ended()).then_some(missing)
}

/// Logs further missing files once.
fn note_missing(
    containerizer: &Containerizer,
    container: &ContainerId,
    known: &[&'static str],
    missing: &[&'static str],
) {
    if missing.iter().all(|file| known.contains(file)) {
        return;
    }
    warn!(
        container_id = %container, files = ?missing,
        "limits of a container are not enforced: their group or its controller was removed, or \
         the container is older than the use of the isolator"
    );
    let lost = &containerizer.inner.limits_lost;
    lost.fetch_add(1, Ordering::Relaxed);
}

fn text_of(drifts: &[Drift]) -> String {
    let found = drifts.iter().map(|drift| {
        let found = drift.found.as_deref().unwrap_or("nothing");
        format!("{} is {found} instead of {}", drift.file, drift.requested)
    });
    found.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use meseta_isolators::Controller;

    use super::*;

    /// Regression: a container whose groups were just being removed counted as one with lost limits.
    #[test]
    fn ended_container_has_no_limit_drift() {
        let drift = |file, kind| Drift {
            controller: Controller::Cpu,
            file,
            requested: "1".to_owned(),
            found: None,
            kind,
        };
        let differs = drift("cpu.shares", DriftKind::Differs);
        let some = [differs.clone(), drift("pids.max", DriftKind::Missing)];
        assert_eq!(missing_of(&some, || false), Some(vec!["pids.max"]));
        assert_eq!(missing_of(&some, || true), None);
        assert_eq!(missing_of(&[differs], || true), Some(Vec::new()));
    }
}
