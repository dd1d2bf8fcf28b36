//! The lists of all jobs for readers, one page at a time, so that the core can decide between two pages.
//!
//! Invariant: the work for a page is bounded, except for a single job of any size.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;

use super::discovery::{Discovered, discovered};
use super::job::Job;
use super::quotas::Quotas;
use super::state::State;
use super::view::{JobView, VolumeView, pending_of, running_of, view_of, volume_state};

/// Tasks, slots and volumes that one page looks at, over all its jobs.
const LOOKED_MAX: usize = 20_000;
/// The cost of a job in such items.
const JOB_WORK: usize = 100;
/// The state of volumes that are to be released.
const RELEASING: &str = "releasing";

/// The numbers for the metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of jobs in each state.
    pub jobs: BTreeMap<&'static str, usize>,
    pub volumes: BTreeMap<&'static str, usize>,
    /// The number of running tasks.
    pub running: usize,
    pub healthy: usize,
    pub pending: usize,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        for (all, of_other) in [
            (&mut self.jobs, &other.jobs),
            (&mut self.volumes, &other.volumes),
        ] {
            for (state, count) in of_other {
                *all.entry(state).or_default() += count;
            }
        }
        self.running += other.running;
        self.healthy += other.healthy;
        self.pending += other.pending;
    }
}

/// The end of a page of volumes: volumes of jobs come first, then those to be released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumePlace {
    OfJob(String, u32),
    Releasing(String),
}

impl VolumePlace {
    fn from_volume(volume: &VolumeView) -> Self {
        match volume.state {
            RELEASING => Self::Releasing(volume.volume_id.clone()),
            _ => Self::OfJob(volume.key.clone(), volume.index),
        }
    }
}

/// The pages of one list of volumes.
#[derive(Debug, Default)]
pub struct VolumeParts {
    /// The ids on earlier pages: a volume that is released meanwhile would come again at the end.
    listed: HashSet<String>,
    /// The start of the next page; `None` before the first page.
    pub behind: Option<VolumePlace>,
    pub is_over: bool,
}

impl VolumeParts {
    /// Takes the volumes read behind the last place, up to `most`. Returns the listed ones that no earlier page had.
    #[must_use]
    pub fn take(
        &mut self,
        mut part: Vec<VolumeView>,
        most: usize,
        is_listed: impl Fn(&VolumeView) -> bool,
    ) -> Vec<VolumeView> {
        self.is_over = part.len() < most;
        self.behind = part.last().map(VolumePlace::from_volume);
        part.retain(|volume| is_listed(volume) && self.listed.insert(volume.volume_id.clone()));
        part
    }
}

/// The end of a page of all jobs' tasks: a job and one of its tasks.
pub type DiscoveredPlace = (String, String);

impl State {
    /// Returns jobs behind a name, without their tasks. The page is empty only if there are no more jobs.
    #[must_use]
    pub fn jobs_behind(&self, name: Option<&str>) -> Vec<JobView> {
        let jobs = self.part_behind(name);
        let unknown = Quotas::default();
        jobs.map(|job| self.view(job, &unknown)).collect()
    }

    /// Returns the tally of the jobs behind a name, and the name for the next page. The first page includes the items that
    /// belong to no job.
    #[must_use]
    pub fn tally_behind(&self, name: Option<&str>) -> (Tally, Option<String>) {
        let (mut tally, mut last) = (Tally::default(), None);
        if name.is_none() && !self.released.is_empty() {
            tally.volumes.insert(RELEASING, self.released.len());
        }
        for job in self.part_behind(name) {
            *tally.jobs.entry(self.state_of(job)).or_default() += 1;
            for volume in job.volumes.values() {
                *tally.volumes.entry(volume_state(job, volume)).or_default() += 1;
            }
            tally.running += running_of(job);
            tally.healthy += job.healthy(self.clock.at());
            tally.pending += pending_of(job);
            last = Some(job.name.clone());
        }
        (tally, last)
    }

    /// Returns the jobs behind a name that one page may look at.
    fn part_behind(&self, name: Option<&str>) -> impl Iterator<Item = &Job> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        let jobs = self.jobs.range::<str, _>((from, Bound::Unbounded));
        let mut left = LOOKED_MAX;
        jobs.map(|(_, job)| job).take_while(move |job| {
            let is_within = left > 0;
            left = left.saturating_sub(work_of(job));
            is_within
        })
    }

    /// The volumes behind a place, up to a number.
    #[must_use]
    pub fn volumes_behind(&self, place: Option<&VolumePlace>, most: usize) -> Vec<VolumeView> {
        let (jobs_from, releasing_from) = match place {
            None => (Some((Bound::Unbounded, None)), Bound::Unbounded),
            Some(VolumePlace::OfJob(job, index)) => {
                let from = (Bound::Included(job.as_str()), Some((job, *index)));
                (Some(from), Bound::Unbounded)
            }
            Some(VolumePlace::Releasing(id)) => (None, Bound::Excluded(id.as_str())),
        };
        let kept = jobs_from.into_iter().flat_map(|(from, last)| {
            let jobs = self.jobs.range::<str, _>((from, Bound::Unbounded));
            jobs.flat_map(move |(name, job)| {
                let last = last.filter(|(of, _)| *of == name);
                let from = last.map_or(Bound::Unbounded, |(_, index)| Bound::Excluded(index));
                let volumes = job.volumes.range((from, Bound::Unbounded));
                volumes.map(|(_, volume)| view_of(volume, volume_state(job, volume)))
            })
        });
        let releasing = self
            .released
            .range::<str, _>((releasing_from, Bound::Unbounded));
        let releasing = releasing.map(|(_, volume)| view_of(volume, RELEASING));
        kept.chain(releasing).take(most).collect()
    }

    /// Returns the number of volumes in each role.
    #[must_use]
    pub fn volume_counts(&self) -> BTreeMap<String, usize> {
        // All volumes of a job are in one role.
        let of_jobs = self.jobs.values().filter_map(|job| {
            let (_, first) = job.volumes.first_key_value()?;
            Some((&*first.record.role, job.volumes.len()))
        });
        let releasing = self.released.values();
        let releasing = releasing.map(|volume| (&*volume.record.role, 1));
        sums(of_jobs.chain(releasing))
    }

    /// Returns running tasks with ports, among `most` tasks behind a place, and the place of the next page.
    #[must_use]
    pub fn discovered_behind(
        &self,
        place: Option<&DiscoveredPlace>,
        most: usize,
    ) -> (Vec<Discovered>, Option<DiscoveredPlace>) {
        let from = place.map_or(Bound::Unbounded, |(job, _)| Bound::Included(job.as_str()));
        let jobs = self.jobs.range::<str, _>((from, Bound::Unbounded));
        let tasks = jobs.flat_map(|(name, job)| {
            let last = place.filter(|(of, _)| of == name).map(|(_, id)| &**id);
            let tasks = job.tasks.behind_id(last);
            tasks.map(move |(id, task)| (job, id, task))
        });
        let (mut found, mut looked, mut last) = (Vec::new(), 0, None);
        for (job, id, task) in tasks.take(most) {
            found.extend(discovered(self.clock.at(), job, id, task));
            (looked, last) = (looked + 1, Some((job, id)));
        }
        let last = last.filter(|_| looked == most);
        (found, last.map(|(job, id)| (job.name.clone(), id.clone())))
    }

    /// Returns the approximate number of ports of the tasks in each role.
    #[must_use]
    pub fn port_counts(&self) -> BTreeMap<String, usize> {
        let ports = self.jobs.values().filter_map(|job| {
            let spec = job.spec()?;
            Some((&*spec.role, spec.task.ports.len() * job.tasks.len()))
        });
        sums(ports)
    }
}

fn sums<'a>(counts: impl Iterator<Item = (&'a str, usize)>) -> BTreeMap<String, usize> {
    let mut sums: BTreeMap<String, usize> = BTreeMap::new();
    for (role, count) in counts {
        *sums.entry(role.to_owned()).or_default() += count;
    }
    sums
}

/// Returns the cost of a look at a job.
fn work_of(job: &Job) -> usize {
    let slots: usize = job.runs.values().map(|run| run.slots.len()).sum();
    JOB_WORK + job.tasks.len() + job.volumes.len() + slots
}
