//! The offers of one role in one step, and the load that the ACCEPT of each may carry.
//!
//! Invariant: no ACCEPT exceeds the limits of a master. If a master refuses one nevertheless, for example for lack of
//! memory, the ACCEPTs become smaller for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_proto::convert::{self, Format};
use prost::Message as _;

use super::input::Launch;
use super::job::Job;
use crate::placement::{self, Offer};
use crate::spec::JobSpec;

/// Tasks of one job that are placed in one step, so that a step stays short.
pub(super) const PLACED_MAX: usize = 20_000;
/// Tasks that one ACCEPT launches, and the bytes of their messages. A master accepts 10,000 tasks and a body of 32 MiB.
const ACCEPT_TASKS_MAX: usize = 10_000;
const ACCEPT_BYTES_MAX: usize = 16 << 20;
/// Resources that the operations of one ACCEPT name. A master accepts 1,024 of them, and as many operations, each of which
/// names at least one.
const ACCEPT_RESOURCES_MAX: usize = 1_000;
/// The tag and the length of a task in its ACCEPT.
pub(super) const FRAMING_BYTES: usize = 8;

/// The maximum number of halvings of the limits: then an ACCEPT carries one task.
const HALVINGS_MAX: u32 = 14;
/// The time after a halving in which refused ACCEPTs count no further: they were sent before it, as large as the first.
const UNDER_WAY: Duration = Duration::from_secs(5);
/// The time without a refusal after which the limits double again.
const RECOVERY: Duration = Duration::from_secs(60);

/// The job of each role with which the next step continues.
#[derive(Debug, Default)]
pub(super) struct Turns(BTreeMap<String, String>);

impl Turns {
    /// Removes and returns the job with which the step continues.
    pub(super) fn take(&mut self, role: &str) -> Option<String> {
        self.0.remove(role)
    }

    pub(super) fn set(&mut self, role: &str, job: String) {
        self.0.insert(role.to_owned(), job);
    }

    #[cfg(test)]
    pub(super) fn get(&self, role: &str) -> Option<&String> {
        self.0.get(role)
    }
}

/// The limits of one ACCEPT at present.
#[derive(Clone, Copy, Debug)]
pub(super) struct AcceptLimit {
    tasks: usize,
    bytes: usize,
    /// Resources that the operations of an ACCEPT name.
    resources: usize,
}

/// The limits of an ACCEPT, which the scheduler halves when the master refuses one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AcceptLimits {
    halvings: u32,
    halved: Duration,
    refused: Duration,
}

impl AcceptLimits {
    /// Records a refused ACCEPT with this number of tasks. An ACCEPT with one task cannot become smaller.
    pub(super) fn refused(&mut self, at: Duration, tasks: usize) {
        if tasks == 1 {
            return;
        }
        let halvings = self.halvings(at);
        let is_known = halvings > 0 && at < self.halved.saturating_add(UNDER_WAY);
        if !is_known {
            self.halvings = (halvings + 1).min(HALVINGS_MAX);
            self.halved = at;
        }
        self.refused = at;
    }

    pub(super) fn at(self, at: Duration) -> AcceptLimit {
        let halvings = self.halvings(at);
        let halved = |most: usize| (most >> halvings).max(1);
        AcceptLimit {
            tasks: halved(ACCEPT_TASKS_MAX),
            bytes: halved(ACCEPT_BYTES_MAX),
            resources: halved(ACCEPT_RESOURCES_MAX),
        }
    }

    fn halvings(self, at: Duration) -> u32 {
        let passed = at.saturating_sub(self.refused).as_secs() / RECOVERY.as_secs();
        let recovered = u32::try_from(passed).unwrap_or(u32::MAX);
        self.halvings.saturating_sub(recovered)
    }
}

/// The work of one step, in jobs times offers: some tenths of a second. The next step continues where this one ends.
pub(super) const STEP_WORK_MAX: usize = 200_000;
/// The number of comparisons of tasks' places that cost as much as an offer.
const LAYOUT_WORK: usize = 16;

/// The remaining work of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work(usize);

impl Work {
    pub(super) fn new(most: usize) -> Self {
        Self(most)
    }

    pub(super) fn is_spent(self) -> bool {
        self.0 == 0
    }

    /// Sets half of the remaining work aside.
    pub(super) fn set_half_aside(&mut self) -> Self {
        let aside = self.0 / 2;
        self.0 -= aside;
        Self(aside)
    }

    pub(super) fn take_back(&mut self, aside: Self) {
        self.0 = self.0.saturating_add(aside.0);
    }

    pub(super) fn spend(&mut self, work: usize) {
        self.0 = self.0.saturating_sub(work);
    }

    /// Returns how many tasks of a job may be placed in this number of offers. If the place of each task depends on the
    /// others, the layout compares them all.
    pub(super) fn tasks_max(self, spec: &JobSpec, offers: usize) -> usize {
        match spec.is_laid_out() {
            true => (self.0.saturating_mul(LAYOUT_WORK) / offers.max(1)).clamp(1, PLACED_MAX),
            false => PLACED_MAX,
        }
    }

    /// Spends the work of placing `tasks` new tasks of a job in `offers` offers; the job already has `present`
    /// tasks.
    pub(super) fn placed(&mut self, spec: &JobSpec, tasks: usize, present: usize, offers: usize) {
        let by_layout = tasks.saturating_mul(offers) / LAYOUT_WORK;
        let by_layout = if spec.is_laid_out() { by_layout } else { 0 };
        let by_constraints = offers.saturating_mul(spec.constraints.len());
        self.spend(offers + present + by_layout + by_constraints);
    }
}

/// The offers of one role that this step can use. A placement reduces its offer.
pub(super) struct Pool {
    /// The open offers, followed by those that were used, or that a gang keeps from other jobs.
    pub(super) offers: Vec<Offer>,
    pub(super) launches: Vec<Vec<Launch>>,
    charged: Vec<Charged>,
    /// The number of open offers.
    open: usize,
    limit: AcceptLimit,
    pub(super) work: Work,
    /// A job waits for other agents although it fits, so the declined offers come again soon.
    pub(super) is_held_out: bool,
}

/// The charges of the placements in one offer.
#[derive(Clone, Copy, Debug)]
struct Charged {
    /// The bytes of the tasks' messages.
    bytes: usize,
    /// The maximum bytes of a task's resources: a task has at most as many pieces as the offer.
    resource_bytes: usize,
    /// Resources that the operations of the ACCEPT name.
    resources: usize,
}

impl Pool {
    pub(super) fn new(offers: Vec<Offer>, limit: AcceptLimit, work: Work) -> Self {
        let charged = offers.iter().map(|offer| Charged {
            bytes: 0,
            resource_bytes: resource_bytes(offer),
            resources: 0,
        });
        Self {
            launches: offers.iter().map(|_| Vec::new()).collect(),
            charged: charged.collect(),
            open: offers.len(),
            offers,
            limit,
            work,
            is_held_out: false,
        }
    }

    /// Returns the role of the pool's offers.
    pub(super) fn role(&self) -> &str {
        let first = self.offers.first();
        first.map(|offer| &*offer.role).unwrap_or_default()
    }

    /// Returns the offers that may be used.
    pub(super) fn open(&self) -> &[Offer] {
        &self.offers[..self.open]
    }

    /// Returns how many more tasks of this size the ACCEPT of an offer can carry; other tasks go to other offers. The
    /// result is at least 1 for an empty ACCEPT: the master refuses a task that is too large with a reason.
    pub(super) fn room(&self, index: usize, bytes: usize) -> usize {
        let (charged, launches) = (&self.charged[index], self.launches[index].len());
        let bytes = bytes + charged.resource_bytes;
        let left = self.limit.bytes.saturating_sub(charged.bytes) / bytes.max(1);
        let least = usize::from(launches == 0);
        left.max(least)
            .min(self.limit.tasks.saturating_sub(launches))
    }

    /// Whether the ACCEPT of an offer can carry operations that name this many more resources; an empty ACCEPT always can.
    pub(super) fn takes_operations(&self, index: usize, resources: usize) -> bool {
        let present = self.charged[index].resources;
        present == 0 || present + resources <= self.limit.resources
    }

    /// Charges a task of this size to the ACCEPT of an offer.
    pub(super) fn charge(&mut self, index: usize, bytes: usize) {
        let charged = &mut self.charged[index];
        charged.bytes += bytes + charged.resource_bytes;
    }

    /// Notes the resources that operations in the ACCEPT of an offer name.
    pub(super) fn charge_operations(&mut self, index: usize, resources: usize) {
        self.charged[index].resources += resources;
    }

    /// Returns how many tasks of a job to look at: not more than the offers could hold, apart from resources held for
    /// instances. During an update, or where runs overlap, the tasks have several versions, of which one may fit where
    /// another does not.
    pub(super) fn limit(&mut self, job: &Job) -> usize {
        self.work.spend(self.open);
        let target = job.record.target;
        let has_one_version =
            job.record.rollout.is_none() && job.active_runs().all(|(_, run)| run.version == target);
        let spec = job
            .spec()
            .filter(|spec| spec.volume.is_none() && has_one_version);
        let room = spec.map(|spec| placement::room(spec, self.open()));
        let most = job.spec().map(|spec| self.work.tasks_max(spec, self.open));
        room.unwrap_or(PLACED_MAX).min(most.unwrap_or(PLACED_MAX))
    }

    /// Keeps open offers from other jobs, and returns their new range.
    pub(super) fn close(&mut self, indexes: &BTreeSet<usize>) -> std::ops::Range<usize> {
        let until = self.open;
        // The loop goes backwards, so that no swap moves a later index.
        for index in indexes.iter().rev().filter(|index| **index < until) {
            self.open -= 1;
            self.offers.swap(*index, self.open);
            self.launches.swap(*index, self.open);
            self.charged.swap(*index, self.open);
        }
        self.open..until
    }
}

fn resource_bytes(offer: &Offer) -> usize {
    let resources = convert::to_resources(&offer.resources, Format::PostRefinement);
    let resources = resources.unwrap_or_default();
    let bytes = resources
        .iter()
        .map(|one| one.encoded_len() + FRAMING_BYTES);
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use meseta_resources::{Resource, ResourceName, Scalar, Value};

    use super::super::launch::{name_of, task_bytes};
    use super::*;
    use crate::core::job::Wanted;
    use crate::file;
    use crate::task_info::{Instance, task_info};

    /// Returns how many tasks each of `agents` large agents gets in one ACCEPT.
    fn sent(environment: &str, agents: usize) -> Vec<usize> {
        let text = format!(
            r#"{{ "name": "many", "count": 20000, "task": {{ "command": "true", "env": {{ "A": "{environment}" }} }},
                 "resources": {{ "cpus": 0.001, "mem": "1MB" }} }}"#
        );
        let spec = file::from_text(&text).expect("a job");
        let amount = |name, units| Resource::plain(name, Value::Scalar(Scalar::from_units(units)));
        let resources = [
            amount(ResourceName::cpus(), 1_000),
            amount(ResourceName::mem(), 1 << 20),
        ];
        let offer = Offer {
            role: "*".to_owned(),
            resources: resources.into_iter().collect(),
            ..Offer::default()
        };
        let wanted = Wanted {
            run: 0,
            index: 0,
            version: 1,
        };
        let limit = AcceptLimits::default().at(Duration::ZERO);
        let pool = Pool::new(vec![offer; agents], limit, Work::new(STEP_WORK_MAX));
        let bytes = task_bytes(&spec.name, &spec, &wanted);
        let room = |index: usize| pool.room(index, bytes);
        let placements = placement::place_within(&spec, &[], pool.open(), PLACED_MAX, &room);
        let mut sent = vec![0; agents];
        let mut sizes = vec![0; agents];
        for (index, placement) in (0..).zip(&placements) {
            let instance = Instance {
                task_id: name_of(&spec.name, &Wanted { index, ..wanted }, (7, 0)).to_string(),
                version: 1,
                index,
                attempt: 7,
            };
            let at = placement.offer;
            let info = task_info(&spec, &instance, &pool.offers[at], placement);
            sizes[at] += info.encoded_len() + FRAMING_BYTES;
            sent[at] += 1;
        }
        assert!(
            sizes.iter().all(|size| *size <= ACCEPT_BYTES_MAX),
            "{sizes:?}"
        );
        sent
    }

    #[test]
    fn accept_stays_within_master_limit() {
        assert_eq!(sent("x", 1), [ACCEPT_TASKS_MAX]);
        let long = sent(&"x".repeat(50_000), 1);
        assert!((300..336).contains(&long[0]), "{long:?} tasks of 50 kB");
    }

    #[test]
    fn accepts_refused_together_halve_limits_once() {
        let mut limits = AcceptLimits::default();
        let at = |seconds: u64| Duration::from_secs(1_000 + seconds);
        limits.refused(at(0), 1);
        assert_eq!(limits.at(at(0)).tasks, ACCEPT_TASKS_MAX);
        for _ in 0..100 {
            limits.refused(at(0), 1_000);
            limits.refused(at(1), 1_000);
        }
        assert_eq!(limits.at(at(1)).tasks, ACCEPT_TASKS_MAX / 2);
        // ACCEPTs of half the size are refused as well.
        for seconds in 2..10 {
            limits.refused(at(seconds), 500);
        }
        assert_eq!(limits.at(at(9)).tasks, ACCEPT_TASKS_MAX / 4);
        // A task that no master accepts does not prevent a recovery of the limits.
        for seconds in 10..200 {
            limits.refused(at(seconds), 1);
        }
        assert_eq!(limits.at(at(200)).tasks, ACCEPT_TASKS_MAX);
    }

    #[test]
    fn tasks_beyond_accept_move_to_others() {
        assert_eq!(sent("x", 3), [ACCEPT_TASKS_MAX, ACCEPT_TASKS_MAX, 0]);
    }
}
