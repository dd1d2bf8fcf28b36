//! Instances with a volume: placed on their volume, or given a new one.
//!
//! The ACCEPT that launches an instance's first task makes the volume (RESERVE, CREATE, LAUNCH), after its record is
//! durable. The instance always returns to the volume, and waits for its agent. Invariant: an index has at most one volume.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::discovery::addresses_after;
use super::input::Record;
use super::job::{Job, KillReason, Task, Wanted};
use super::launch::{Launchable, task_bytes};
use super::offer_pool::Pool;
use super::records::Key;
use super::state::State;
use super::volume::{Presence, Volume, VolumeId, VolumeRecord};
use super::volume_operations::{OPERATIONS_BYTES, named_at_most, prepare, reservation_of};
use crate::placement::{self, Offer, Placed, Placement, Why, volume_in};
use crate::spec::JobSpec;

#[cfg(test)]
thread_local! {
    /// Counts the wanted instances whose volumes' agents were looked at.
    pub(super) static LOOKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl State {
    /// Places instances on their volumes.
    pub(super) fn place_on_volumes(
        &mut self,
        name: &str,
        spec: &Arc<JobSpec>,
        wanted: &[Wanted],
        pool: &mut Pool,
    ) {
        let Some(bytes) = wanted.first().map(|one| task_bytes(name, spec, one)) else {
            return;
        };
        let bytes = bytes + OPERATIONS_BYTES;
        self.adopt_offered(name, wanted, pool.open());
        let offered = by_agent(pool.open());
        let mut launchable = None;
        // If an instance without a volume finds no room, the others find none either.
        let mut is_full = false;
        let mut placed = BTreeSet::new();
        for one in wanted {
            let volumes = self.jobs.get(name).map(|job| &job.volumes);
            let volume = volumes.and_then(|volumes| volumes.get(&one.index));
            let own = volume.map(|volume| offered.get(&volume.record.agent_id));
            if pool.work.is_spent() || own == Some(None) || (is_full && volume.is_none()) {
                continue;
            }
            let is_new = volume.is_none();
            let own = own.flatten().map_or(&[][..], Vec::as_slice);
            if is_new {
                let (present, open) = (volumes.map_or(0, BTreeMap::len), pool.open().len());
                pool.work.placed(spec, 1, present, open);
            } else {
                pool.work.spend(own.len());
            }
            let placement = self.place_instance(name, spec, (*one, bytes), (pool, own));
            is_full |= is_new && placement.is_none();
            let Some(placement) = placement.filter(|found| fits(found, bytes, pool)) else {
                continue;
            };
            let launchable = launchable.get_or_insert_with(|| Launchable {
                name,
                spec,
                addresses: addresses_after(&self.jobs, self.clock.at(), spec),
            });
            pool.charge(placement.offer, bytes);
            pool.charge_operations(placement.offer, named_at_most(&placement));
            if self.intend_on_volume(launchable, *one, placement, pool) {
                placed.insert(one.key());
            }
        }
        if let Some(job) = self.jobs.get_mut(name).filter(|_| !placed.is_empty()) {
            job.wanted.retain(|one| !placed.contains(&one.key()));
        }
    }

    /// Places an instance on its volume, if the volume is among the instance's offers. An instance without a volume may
    /// take any offer of the pool.
    fn place_instance(
        &mut self,
        name: &str,
        spec: &JobSpec,
        (one, bytes): (Wanted, usize),
        (pool, own): (&Pool, &[usize]),
    ) -> Option<Placement> {
        let job = self.jobs.get(name)?;
        // Volumes stay in place, even if a later rule forbids it; instances without volumes make room for them.
        let beside: Vec<_> = match spec.is_laid_out() && !own.is_empty() {
            true => placed_beside_volumes(job).collect(),
            false => Vec::new(),
        };
        if !job.volumes.contains_key(&one.index) {
            let placed: Vec<_> = match spec.is_laid_out() {
                true => {
                    let volumes = job.volumes.values().map(placed_of);
                    volumes.chain(placed_beside_volumes(job)).collect()
                }
                false => Vec::new(),
            };
            // Each requested resource is reserved, and so is the disk that becomes the volume.
            let named = spec.task.requests.len() + 2;
            let room = |index: usize| match pool.takes_operations(index, named) {
                true => pool.room(index, bytes),
                false => 0,
            };
            let unoffered = self.unoffered(name, spec, &placed, pool.open());
            let agents = (pool.open(), &unoffered);
            let mut spread = placement::place_beside(spec, &placed, agents, 1, &room);
            let placement = spread.placements.pop();
            if spec.is_spread() {
                self.note_spread((name, &spec.role), placement.is_some(), spread.awaited);
            }
            return placement;
        }
        let volumes = self.jobs.get_mut(name).map(|job| &mut job.volumes);
        let volume = volumes?.get_mut(&one.index)?;
        volume.obstacle = None;
        for index in own {
            let offer = std::slice::from_ref(&pool.open()[*index]);
            match placement::place_on_volume(spec, &beside, offer, &volume.id) {
                Ok(placement) => {
                    volume.obstacle = None;
                    let offer = *index;
                    return Some(Placement { offer, ..placement });
                }
                Err(Why::NoVolume { .. }) => {}
                Err(why) => volume.obstacle = Some(why.to_string()),
            }
        }
        None
    }

    /// Adopts the offered volumes of indexes that have no recorded volume.
    fn adopt_offered(&mut self, name: &str, wanted: &[Wanted], offers: &[Offer]) {
        let of_job = |id: &String| {
            let id = self.own_volume(id)?;
            (id.task.job == name).then_some(id.task.index)
        };
        let held = offers.iter().flat_map(|offer| offer.held.keys());
        let held: BTreeSet<u32> = held.filter_map(of_job).collect();
        for one in wanted.iter().filter(|one| held.contains(&one.index)) {
            self.adopt(name, one.index, offers);
        }
    }

    /// Adopts an existing volume of an index that has none by the records: the store has lost some records, or the
    /// framework started again while the volume was being made.
    fn adopt(&mut self, name: &str, index: u32, offers: &[Offer]) {
        let Some(job) = self.jobs.get(name) else {
            return;
        };
        if job.volumes.contains_key(&index) {
            return;
        }
        let of_index = |id: &str| {
            self.own_volume(id)
                .is_some_and(|id| id.task.job == name && id.task.index == index)
                && !self.released.contains_key(id)
        };
        let mut found = offers.iter().flat_map(|offer| {
            let held = offer.held.iter();
            held.filter_map(move |(id, held)| Some((offer, id, held, volume_in(held, id)?)))
        });
        let Some((offer, id, held, volume)) = found.find(|(_, id, ..)| of_index(id)) else {
            return;
        };
        let is_labelled = held.iter().any(|one| one != &volume);
        let mount = volume.disk().and_then(|disk| disk.volume.as_ref());
        let record = VolumeRecord {
            job: name.to_owned(),
            index,
            role: offer.role.clone(),
            agent_id: offer.agent_id.clone(),
            hostname: offer.hostname.clone(),
            attributes: offer.attributes.clone(),
            size_mb: volume.scalar().unwrap_or_default().to_f64(),
            path: mount
                .map(|mount| mount.container_path.clone())
                .unwrap_or_default(),
            since: self.clock.at(),
            reservation: match is_labelled {
                true => Presence::Present,
                false => Presence::Absent,
            },
            volume: Presence::Present,
            release: None,
        };
        let volume = Volume::new(id.clone(), record);
        let text = format!("takes over volume {id} on {}", offer.hostname);
        self.outbox
            .write(Key::Volume(id.clone()).put(&volume.record));
        if let Some(job) = self.jobs.get_mut(name) {
            job.volumes.insert(index, volume);
        }
        self.event(name, None, text);
    }

    /// Parses the id of a volume that this scheduler has made.
    pub(super) fn own_volume(&self, id: &str) -> Option<VolumeId> {
        let id: VolumeId = id.parse().ok()?;
        (self.meta.owner.as_ref() == Some(&id.owner)).then_some(id)
    }

    fn owner(&mut self) -> String {
        if let Some(owner) = &self.meta.owner {
            return owner.clone();
        }
        let owner = format!("{:08x}", self.options.drawn);
        self.meta.owner = Some(owner.clone());
        self.save_meta();
        owner
    }

    /// Records a task and its volume; the ACCEPT that launches the task also creates a missing volume. Returns whether the
    /// task was recorded.
    fn intend_on_volume(
        &mut self,
        launchable: &Launchable<'_>,
        one: Wanted,
        placement: Placement,
        pool: &mut Pool,
    ) -> bool {
        let Launchable { name, spec, .. } = *launchable;
        let (at, owner) = (placement.offer, self.owner());
        let before = pool.launches[at].len();
        self.intend(launchable, one, placement, pool);
        let offer = &pool.offers[at];
        let Some(launch) = pool.launches[at].get_mut(before) else {
            return false;
        };
        let Some(job) = self.jobs.get_mut(name) else {
            return false;
        };
        let Some(task) = job.tasks.get_mut(&launch.task_id) else {
            return false;
        };
        let id = match &launch.placement.returned {
            Some(returned) => returned.id.clone(),
            None => VolumeId {
                task: task.name.clone(),
                owner,
            }
            .to_string(),
        };
        let principal = self.options.principal.as_deref();
        let reservation = reservation_of((name, one.index), &id, &spec.role, principal);
        // Each launch has another number.
        let attempt = (u128::from(task.name.generation) << 32) | u128::from(launch.attempt);
        let prepared = prepare(&launch.placement, spec, &id, attempt, reservation.as_ref());
        let is_new = launch.placement.returned.is_none();
        launch.placement.resources = prepared.resources;
        launch.operations = prepared.operations;
        task.record.volume = Some(id.clone());
        let key = Key::Task(launch.task_id.clone());
        self.outbox.write(key.put(&task.record));
        if let Some(of_spec) = spec.volume.as_ref().filter(|_| is_new) {
            let record = VolumeRecord {
                job: name.to_owned(),
                index: one.index,
                role: spec.role.clone(),
                agent_id: offer.agent_id.clone(),
                hostname: offer.hostname.clone(),
                attributes: offer.attributes.clone(),
                size_mb: of_spec.size_mb,
                path: of_spec.path.clone(),
                since: self.clock.at(),
                reservation: match prepared.reserves {
                    true => Presence::Unknown,
                    false => Presence::Absent,
                },
                volume: Presence::Unknown,
                release: None,
            };
            self.outbox.write(Key::Volume(id.clone()).put(&record));
            job.volumes.insert(one.index, Volume::new(id, record));
        }
        true
    }

    /// Kills the tasks of instances whose volume was taken away.
    pub(super) fn check_volumes(&mut self, name: &str) {
        let Some(job) = self.jobs.get(name) else {
            return;
        };
        let on_other = job.tasks.iter().filter(|(_, task)| {
            let volume = job.volumes.get(&task.name.index);
            task.record.volume.is_some()
                && task.record.volume.as_ref() != volume.map(|volume| &volume.id)
        });
        let tasks: Vec<_> = on_other.map(|(id, _)| id.clone()).collect();
        for task in tasks {
            self.ask_kill(&task, KillReason::Released);
        }
    }

    /// Returns the agents of a role's volumes that wait for release, or for which instances wait.
    pub(super) fn agents_waited_for(&self, role: &str) -> BTreeSet<&str> {
        // All volumes of a job are in one role.
        let is_of_role = |job: &&Job| {
            let volume = job.volumes.values().next();
            volume.is_some_and(|volume| volume.record.role == role)
        };
        let with_volumes = self.jobs.values().filter(is_of_role);
        let of_jobs = with_volumes.flat_map(|job| {
            #[cfg(test)]
            LOOKED.set(LOOKED.get() + job.wanted.len());
            let wanted = job.wanted.iter();
            wanted.filter_map(|one| job.volume_of(one))
        });
        let volumes = of_jobs.chain(self.released.values());
        let records = volumes.map(|volume| &volume.record);
        let of_role = records.filter(|record| record.role == role);
        of_role.map(|record| &*record.agent_id).collect()
    }

    /// Returns why an instance with a volume waits, if one does.
    pub(super) fn waits_for_volume(&self, job: &Job) -> Option<String> {
        let mut away = job
            .tasks
            .values()
            .filter(|task| task.record.unreachable.is_some() && job.is_bound(task));
        if let Some(task) = away.next() {
            return Some(format!(
                "instance {} waits for {}, which has its volume and is away",
                task.name.index, task.record.hostname
            ));
        }
        let mut waiting = job.wanted.iter();
        let (index, volume) =
            waiting.find_map(|one| Some((one.index, job.volumes.get(&one.index)?)))?;
        let host = &volume.record.hostname;
        Some(match &volume.obstacle {
            Some(obstacle) => {
                format!("instance {index} does not fit beside its volume on {host}: {obstacle}")
            }
            None if volume.record.is_unsettled() => {
                format!("instance {index} waits to hear whether its volume was made on {host}")
            }
            None => format!(
                "instance {index} waits for {host}, which has its volume and has not offered it: it is away, or the volume is in use"
            ),
        })
    }

    /// # Errors
    /// Fails if the job has volumes that differ from the specification.
    pub(super) fn check_same_volume(&self, name: &str, spec: &JobSpec) -> Result<(), String> {
        let (Some(wanted), Some(job)) = (&spec.volume, self.jobs.get(name)) else {
            return Ok(());
        };
        for (index, volume) in &job.volumes {
            let record = &volume.record;
            let is_same =
                (record.size_mb - wanted.size_mb).abs() < 0.0005 && record.path == wanted.path;
            if !is_same || record.role != spec.role {
                return Err(format!(
                    "instance {index} has a volume of {} MB at {:?}, reserved for role {:?}, which stays as it is: leave \
                     [volume] and `role` as they were, or stop {:?} with purge first, which destroys its data",
                    record.size_mb, record.path, record.role, spec.name
                ));
            }
        }
        Ok(())
    }
}

/// Forgets the volume of a task whose launch has not left: the volume does not exist. Returns the deletion of its record.
pub(super) fn forget_unmade_volume(job: &mut Job, task_id: &str) -> Option<Record> {
    let made_for = |volume: &Volume| {
        let id = volume.id.parse::<VolumeId>();
        id.is_ok_and(|id| id.task.to_string() == task_id)
    };
    let index = job.tasks.get(task_id)?.name.index;
    let volume = job.volumes.get(&index)?;
    if !volume.record.is_unsettled() || !made_for(volume) {
        return None;
    }
    let volume = job.volumes.remove(&index)?;
    Some(Key::Volume(volume.id).delete())
}

/// Returns the tasks that run on none of the job's volumes, as those of a version without a volume.
fn placed_beside_volumes(job: &Job) -> impl Iterator<Item = Placed> {
    let is_on_volume = |task: &Task| {
        let volume = job.volumes.get(&task.name.index);
        volume.is_some_and(|volume| task.record.volume.as_ref() == Some(&volume.id))
    };
    let beside = job.tasks.values().filter(move |task| !is_on_volume(task));
    beside.map(super::launch::placed_of)
}

/// Returns the indexes of each agent's offers.
fn by_agent(offers: &[Offer]) -> HashMap<String, Vec<usize>> {
    let mut found: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, offer) in offers.iter().enumerate() {
        found.entry(offer.agent_id.clone()).or_default().push(index);
    }
    found
}

/// Whether the ACCEPT of an offer has room for an instance with its operations; if not, the instance comes with the next
/// offer.
fn fits(placement: &Placement, bytes: usize, pool: &Pool) -> bool {
    let index = placement.offer;
    pool.room(index, bytes) > 0 && pool.takes_operations(index, named_at_most(placement))
}

pub(super) fn placed_of(volume: &Volume) -> Placed {
    Placed {
        agent_id: volume.record.agent_id.clone(),
        hostname: volume.record.hostname.clone(),
        attributes: volume.record.attributes.clone(),
    }
}
