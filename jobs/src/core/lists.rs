//! What readers see of all jobs, a part at a time, so that what the core has to decide comes between.
//!
//! Invariant: what one part looks at is bounded, but for one job alone, whatever that has.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;

use super::discovery::Discovered;
use super::job::Job;
use super::quotas::Quotas;
use super::state::State;
use super::view::{JobView, VolumeView, pending_of, running_of, view_of, volume_state};

/// Tasks, slots and volumes that one part looks at, of the jobs that it has.
const LOOKED_MAX: usize = 20_000;
/// A job costs as much as so many of them.
const JOB_WORK: usize = 100;
/// The state of volumes that are to be released.
const RELEASING: &str = "releasing";

/// How many there are of what is measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many jobs are in each state.
    pub jobs: BTreeMap<&'static str, usize>,
    pub volumes: BTreeMap<&'static str, usize>,
    /// How many tasks run.
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

/// Where a part of the volumes ends: first come those of jobs, then those that are to be released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumePlace {
    OfJob(String, u32),
    Releasing(String),
}

impl VolumePlace {
    fn of(volume: &VolumeView) -> Self {
        match volume.state {
            RELEASING => Self::Releasing(volume.volume_id.clone()),
            _ => Self::OfJob(volume.key.clone(), volume.index),
        }
    }
}

/// The parts of one list of volumes.
#[derive(Debug, Default)]
pub struct VolumeParts {
    /// The ids of those that the parts before have: a volume that is released meanwhile comes again at the end.
    listed: HashSet<String>,
    /// Where the next part begins; nowhere before the first.
    pub behind: Option<VolumePlace>,
    pub is_over: bool,
}

impl VolumeParts {
    /// Takes what was read behind the place, up to a number; gives those of it that are listed, and that no part before has.
    #[must_use]
    pub fn take(
        &mut self,
        mut part: Vec<VolumeView>,
        most: usize,
        is_listed: impl Fn(&VolumeView) -> bool,
    ) -> Vec<VolumeView> {
        self.is_over = part.len() < most;
        self.behind = part.last().map(VolumePlace::of);
        part.retain(|volume| is_listed(volume) && self.listed.insert(volume.volume_id.clone()));
        part
    }
}

/// Where a part of the tasks of all jobs ends: a job and a task of it.
pub type DiscoveredPlace = (String, String);

impl State {
    /// Jobs behind a name, without their tasks: none only where there is none.
    #[must_use]
    pub fn jobs_behind(&self, name: Option<&str>) -> Vec<JobView> {
        let jobs = self.part_behind(name);
        let unknown = Quotas::default();
        jobs.map(|job| self.view(job, &unknown)).collect()
    }

    /// What is measured of jobs behind a name, and where to go on. What belongs to no job is with the first of them.
    #[must_use]
    pub fn tally_behind(&self, name: Option<&str>) -> (Tally, Option<String>) {
        let (mut tally, mut last) = (Tally::default(), None);
        if name.is_none() && !self.releasing.is_empty() {
            tally.volumes.insert(RELEASING, self.releasing.len());
        }
        for job in self.part_behind(name) {
            *tally.jobs.entry(self.state_of(job)).or_default() += 1;
            for volume in job.volumes.values() {
                *tally.volumes.entry(volume_state(job, volume)).or_default() += 1;
            }
            tally.running += running_of(job);
            tally.healthy += job.healthy(self.clock.at);
            tally.pending += pending_of(job);
            last = Some(job.name.clone());
        }
        (tally, last)
    }

    /// As many jobs behind a name as one part looks at.
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
            .releasing
            .range::<str, _>((releasing_from, Bound::Unbounded));
        let releasing = releasing.map(|(_, volume)| view_of(volume, RELEASING));
        kept.chain(releasing).take(most).collect()
    }

    /// How many volumes there are in each role.
    #[must_use]
    pub fn volume_counts(&self) -> BTreeMap<String, usize> {
        // All volumes of a job are in one role.
        let of_jobs = self.jobs.values().filter_map(|job| {
            let (_, first) = job.volumes.first_key_value()?;
            Some((&*first.record.role, job.volumes.len()))
        });
        let releasing = self.releasing.values();
        let releasing = releasing.map(|volume| (&*volume.record.role, 1));
        sums(of_jobs.chain(releasing))
    }

    /// Running tasks with ports, of so many behind a place, and where to go on.
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
            found.extend(self.discovered(job, id, task));
            (looked, last) = (looked + 1, Some((job, id)));
        }
        let last = last.filter(|_| looked == most);
        (found, last.map(|(job, id)| (job.name.clone(), id.clone())))
    }

    /// How many ports the tasks of each role have, more or less.
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

/// What a look at a job costs.
fn work_of(job: &Job) -> usize {
    let slots: usize = job.runs.values().map(|run| run.slots.len()).sum();
    JOB_WORK + job.tasks.len() + job.volumes.len() + slots
}
