//! A cache of the cluster as each caller may see it.
//!
//! Entered through [`ViewCache::view`]. The cache builds only the parts that a query reads, builds each view once per
//! caller and state, and reuses the unchanged parts of the caller's last view. Invariant: a view shows exactly the
//! given snapshot, by the rules under which the caller was authenticated.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use meseta_access::Approver;
use meseta_daemon::background;
use tokio::time::Instant;

use crate::closed::Closed;
use crate::core::Snapshot;
use crate::view_filter::{self, FilterCost, PreviousView};

/// The number of callers with a cached view: people and programs that poll.
const VIEWERS_MAX: usize = 16;
/// The time for which an unused view stays; it holds the state from which it was made.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// The part of the cluster that a query reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ViewScope {
    /// Quotas, weights, maintenance, and the master itself.
    Policies,
    Cluster,
}

#[derive(Debug, Default)]
pub(crate) struct ViewCache {
    /// The viewers, the most recent last.
    viewers: Mutex<VecDeque<Viewer>>,
    cost: Arc<Mutex<FilterCost>>,
}

#[derive(Debug)]
struct Viewer {
    principal: Option<String>,
    /// The version of the rules.
    version: u64,
    asked: Instant,
    /// The last view, locked during its construction: others with the same query wait and share it.
    last: Arc<tokio::sync::Mutex<Option<PreviousView>>>,
}

impl ViewCache {
    /// A snapshot without the objects that a caller may not see; the snapshot itself if nothing is hidden.
    pub(crate) async fn view(
        &self,
        snapshot: Arc<Snapshot>,
        approver: &Approver,
        view_scope: ViewScope,
    ) -> Result<Arc<Snapshot>, Closed> {
        if approver.allows_everything() {
            return Ok(snapshot);
        }
        if view_scope == ViewScope::Policies {
            return Ok(Arc::new(view_filter::policies(&snapshot, approver)));
        }
        let mut last = self.viewer(approver).lock_owned().await;
        if let Some(last) = &*last
            && Arc::ptr_eq(&last.source, &snapshot)
        {
            return Ok(last.view.clone());
        }
        let (approver, sum) = (approver.clone(), self.cost.clone());
        let making = background::spawn(move || {
            let mut cost = FilterCost::default();
            let seen = view_filter::cluster(&snapshot, &approver, last.as_ref(), &mut cost);
            let seen = Arc::new(seen);
            *last = Some(PreviousView {
                source: snapshot,
                view: seen.clone(),
            });
            let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
            sum.entries += cost.entries;
            sum.records += cost.records;
            seen
        });
        making.await.map_err(|_| Closed)
    }

    /// The total cost of all views.
    #[cfg(test)]
    pub(crate) fn cost(&self) -> FilterCost {
        *self.cost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn viewer(&self, approver: &Approver) -> Arc<tokio::sync::Mutex<Option<PreviousView>>> {
        let now = Instant::now();
        let mut viewers = self.viewers.lock().unwrap_or_else(PoisonError::into_inner);
        viewers.retain(|viewer| now.duration_since(viewer.asked) < IDLE_MAX);
        let is_known = |viewer: &Viewer| {
            viewer.principal.as_deref() == approver.principal()
                && viewer.version == approver.version()
        };
        let known = viewers.iter().position(is_known);
        let mut viewer = known
            .and_then(|at| viewers.remove(at))
            .unwrap_or_else(|| Viewer {
                principal: approver.principal().map(str::to_owned),
                version: approver.version(),
                asked: now,
                last: Arc::default(),
            });
        viewer.asked = now;
        let last = viewer.last.clone();
        if viewers.len() >= VIEWERS_MAX {
            viewers.pop_front();
        }
        viewers.push_back(viewer);
        last
    }
}
