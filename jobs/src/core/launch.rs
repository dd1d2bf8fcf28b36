//! Answers to offers: launches for tasks that fit, declines for the rest, and a gang's offers kept for a while.
//!
//! Invariant: every offer is accepted, declined, or kept for the one collecting gang, whose time is limited.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meseta_resources::Resources;
use prost::Message as _;

use super::discovery::addresses_after;
use super::gangs::Tried;
use super::give_way;
use super::input::{Accept, Effect, Launch, RefusedAccept};
use super::job::{Phase, Task, Wanted, WantedGroup};
use super::offer_pool::{FRAMING_BYTES, Pool, Work};
use super::outbox::Deferred;
use super::records::{Key, TaskRecord};
use super::roles::top_of;
use super::spread::REFUSE_MEANWHILE;
use super::state::State;
use super::task_name::TaskName;
use crate::placement::{self, Offer, Placed, Placement, SpreadValues};
use crate::spec::JobSpec;
use crate::task_info::{Instance, task_info};

/// The length of an agent id as a master creates it, and of a DNS name at most.
const AGENT_ID_BYTES: usize = 64;
const HOSTNAME_BYTES: usize = 255;
/// The time after which an agent's offers return if work in the role waits for the agent. Other offers return when the role
/// is revived.
pub(super) const REFUSE_SHORT: Duration = Duration::from_secs(5);
const REFUSE_LONG: Duration = Duration::from_secs(3600);
/// Offers that a gang held in vain go to others at once.
const REFUSE_HELD: Duration = Duration::from_millis(100);

/// The work that each role may do in a step, however many roles have offers.
pub(super) const ROLE_WORK_MIN: usize = 1_000;

/// The common data of the tasks that one step launches for a job.
pub(super) struct Launchable<'a> {
    pub(super) name: &'a str,
    pub(super) spec: &'a Arc<JobSpec>,
    /// The addresses of the jobs that it starts after.
    pub(super) addresses: BTreeMap<String, String>,
}

impl State {
    pub(super) fn answer_offers(&mut self) {
        self.end_collecting();
        let by_role = self.offers.free_by_role();
        // No role takes the time of others, even with many roles below it.
        let mut trees: BTreeMap<String, usize> = BTreeMap::new();
        for role in by_role.keys() {
            *trees.entry(top_of(role).to_owned()).or_default() += 1;
        }
        let of_tree = self.limits.step_work / trees.len().max(1);
        for (role, offers) in by_role {
            let work = of_tree / trees.get(top_of(&role)).copied().unwrap_or(1);
            self.answer_role(&role, offers, Work::new(work.max(ROLE_WORK_MIN)));
        }
        for role in self.spreads.end_waits(self.clock.at(), &self.jobs) {
            self.roles.wants_all(&role);
        }
    }

    fn answer_role(&mut self, role: &str, offers: Vec<Offer>, work: Work) {
        let at = self.clock.at();
        let mut pool = Pool::new(offers, self.accept_limits.at(at), work);
        self.release_offered(&mut pool);
        let waiting: Vec<_> = self
            .jobs
            .count_demand(at)
            .waiting_in(role)
            .cloned()
            .collect();
        let mut jobs: Vec<_> = waiting
            .into_iter()
            .filter_map(|name| {
                let spec = self.jobs.get(&name)?.spec()?;
                let collects = self.gangs.is_collecting(&name);
                Some((Reverse(spec.priority), !collects, name))
            })
            .collect();
        jobs.sort();
        let jobs: Vec<String> = jobs.into_iter().map(|(_, _, name)| name).collect();
        self.place_jobs(role, &jobs, &mut pool);
        let any_agent_serves = self.jobs.count_demand(at).in_role(role).anywhere > 0;
        let waited_for = self.agents_waited_for(role);
        let (mut declined, mut elsewhere) = (Vec::new(), Vec::new());
        let mut accepts = Vec::new();
        let open = pool.open().len();
        let pool_is_held_out = pool.is_held_out;
        for (index, (offer, tasks)) in pool.offers.iter().zip(pool.launches).enumerate() {
            if !tasks.is_empty() {
                accepts.push(accept_of(offer, tasks));
            } else if index < open {
                let into = if any_agent_serves || waited_for.contains(&*offer.agent_id) {
                    &mut declined
                } else {
                    &mut elsewhere
                };
                into.push(offer.id.clone());
            }
        }
        self.commit(accepts, false);
        let refuse = match pool_is_held_out {
            true => REFUSE_MEANWHILE,
            false => REFUSE_SHORT,
        };
        self.decline(declined, refuse);
        self.decline(elsewhere, REFUSE_LONG);
    }

    /// Places the jobs of a role, as many as one step may look at; the next step continues with the others. Half of the
    /// work starts at the top, so that higher priorities come first. The other half starts where the last step ended, so
    /// that every job has its turn.
    fn place_jobs(&mut self, role: &str, jobs: &[String], pool: &mut Pool) {
        let from = self.turns.take(role);
        let from = jobs.iter().position(|name| Some(name) == from.as_ref());
        let (sooner, later) = jobs.split_at(from.unwrap_or_default());
        let aside = match sooner.is_empty() {
            true => Work::new(0),
            false => pool.work.set_half_aside(),
        };
        let sooner = self.place_some(sooner, pool);
        pool.work.take_back(aside);
        let mut left = self.place_some(later, pool);
        left.extend(sooner);
        let left = self.place_some(&left, pool);
        if let Some(next) = left.into_iter().next() {
            self.turns.set(role, next);
        }
    }

    /// Places jobs in this order within the work limit, and the collecting gang in any case: its offers are not for the
    /// jobs behind it. Returns the other jobs.
    fn place_some(&mut self, jobs: &[String], pool: &mut Pool) -> Vec<String> {
        let mut left = Vec::new();
        for name in jobs {
            if pool.work.is_spent() && !self.gangs.is_collecting(name) {
                left.push(name.clone());
                continue;
            }
            self.place_job(name, pool);
        }
        left
    }

    pub(super) fn decline(&mut self, offers: Vec<String>, refuse: Duration) {
        for id in &offers {
            self.offers.remove(id);
        }
        if !offers.is_empty() {
            self.outbox.send(Effect::Decline { offers, refuse });
        }
    }

    /// Declines unreadable offers, for the longest time.
    pub(super) fn decline_unreadable(&mut self, offers: Vec<String>) {
        self.statistics.count_unreadable_offers(offers.len());
        self.outbox.send(Effect::Decline {
            offers,
            refuse: REFUSE_LONG,
        });
    }

    /// Handles a refused ACCEPT, of which nothing was done: its offers go back, and its tasks start again in smaller
    /// ACCEPTs.
    pub(super) fn accept_refused(&mut self, refused: RefusedAccept) {
        let RefusedAccept {
            offers,
            tasks,
            operations,
            why,
        } = refused;
        self.accept_limits.refused(self.clock.at(), tasks.len());
        self.decline(offers, REFUSE_SHORT);
        let why = format!("the master refuses its ACCEPT: {why}");
        for id in operations {
            self.operation_refused(id, &why);
        }
        for id in &tasks {
            // A task with a reported state was part of another ACCEPT.
            let task = self.jobs.task(id);
            if task.is_some_and(|task| task.phase == Phase::Launched) {
                self.task_lost(id, &why);
            }
        }
    }

    fn commit(&mut self, accepts: Vec<Accept>, is_gang: bool) {
        for accept in &accepts {
            self.offers.commit(&accept.offer.id);
            self.seen.left(&accept.offer);
        }
        if !accepts.is_empty() {
            self.outbox.defer(Deferred::Launch { accepts, is_gang });
        }
    }

    /// Declines an offer of the collecting gang for each tree of roles whose turn it is.
    pub(super) fn give_way(&mut self) {
        let at = self.clock.at();
        let Some((_, role)) = self.gangs.collecting() else {
            return self.claims.clear();
        };
        let own = top_of(role).to_owned();
        let claims = self.jobs.count_demand(at).claims();
        let claims = claims.filter(|(top, _)| *top != own);
        let waiting = claims.map(|(top, all)| (top.to_owned(), all)).collect();
        for top in self.claims.due(at, &waiting) {
            let found = give_way::find_offer(&self.jobs, &self.offers, (&top, &own));
            let Some((offer, role)) = found else {
                continue;
            };
            self.decline(vec![offer], give_way::OFFERED_WITHIN);
            // The role may have declined resources of the same agent before.
            self.roles.wants_all(&role);
            self.claims.note_given_back(at, &top);
        }
    }

    fn place_job(&mut self, name: &str, pool: &mut Pool) {
        let job = self.jobs.get(name).filter(|_| !pool.open().is_empty());
        let Some(job) = job else {
            return;
        };
        let role = pool.role().to_owned();
        for group in job.wants(self.clock.at(), &role, pool.limit(job)) {
            if group.is_gang && self.goes_on_collecting(name, &group.tasks, pool) {
                continue;
            }
            self.place_group(name, &group, pool);
        }
    }

    /// Returns the values of agents that are not among the offers and have room, and for which a job still waits.
    pub(super) fn unoffered(
        &mut self,
        name: &str,
        spec: &JobSpec,
        placed: &[Placed],
        offers: &[Offer],
    ) -> BTreeSet<SpreadValues> {
        // An instance that moves stays where it is until it finds a better agent.
        let job = self.jobs.get(name);
        let is_moving = job.is_some_and(|job| !job.record.moving.is_empty());
        let (at, job) = (self.clock.at(), (name, is_moving));
        self.spreads.unoffered(at, job, spec, placed, offers)
    }

    /// Notes the values for which a job waits from now on, and whether the job has placed tasks.
    pub(super) fn note_spread(
        &mut self,
        (name, role): (&str, &str),
        has_placed: bool,
        awaited: BTreeSet<SpreadValues>,
    ) {
        let at = self.clock.at();
        if self.spreads.note(at, name, has_placed, awaited) {
            self.roles.wants_all(role);
        }
    }

    fn place_group(&mut self, name: &str, group: &WantedGroup, pool: &mut Pool) {
        let wanted = &group.tasks;
        let Some(job) = self.jobs.get(name) else {
            return;
        };
        let Some(spec) = job.spec_of(group.version).cloned() else {
            return;
        };
        if spec.volume.is_some() {
            return self.place_on_volumes(name, &spec, wanted, pool);
        }
        let placed: Vec<_> = match spec.constraints.is_empty() {
            true => Vec::new(),
            false => job.tasks.values().map(placed_of).collect(),
        };
        let bytes = wanted.first().map(|one| task_bytes(name, &spec, one));
        let Some(bytes) = bytes else {
            return;
        };
        let unoffered = self.unoffered(name, &spec, &placed, pool.open());
        let room = |index: usize| pool.room(index, bytes);
        let agents = (pool.open(), &unoffered);
        let spread = placement::place_beside(&spec, &placed, agents, wanted.len(), &room);
        let placements = spread.placements;
        let (tasks, open) = (placements.len(), pool.open().len());
        pool.work
            .placed(&spec, tasks, placed.len(), open + unoffered.len());
        if spec.is_spread() {
            pool.work.spend(self.spreads.agent_count());
            pool.is_held_out |= !spread.awaited.is_empty();
            self.note_spread((name, &spec.role), tasks > 0, spread.awaited);
        }
        match group.is_gang {
            true => self.place_gang(name, &spec, wanted, (placements, bytes), pool),
            false => self.intend_all(name, &spec, wanted, (placements, bytes), pool),
        }
    }

    fn intend_all(
        &mut self,
        name: &str,
        spec: &Arc<JobSpec>,
        wanted: &[Wanted],
        (placements, bytes): (Vec<Placement>, usize),
        pool: &mut Pool,
    ) {
        if placements.is_empty() {
            return;
        }
        let launchable = Launchable {
            name,
            spec,
            addresses: addresses_after(&self.jobs, self.clock.at(), spec),
        };
        for placement in &placements {
            pool.charge(placement.offer, bytes);
        }
        let placed: BTreeSet<_> = wanted
            .iter()
            .take(placements.len())
            .map(Wanted::key)
            .collect();
        for (one, placement) in wanted.iter().zip(placements) {
            self.intend(&launchable, *one, placement, pool);
        }
        if let Some(job) = self.jobs.get_mut(name) {
            job.wanted.retain(|one| !placed.contains(&one.key()));
        }
    }

    /// Places the whole gang or nothing. The scheduler keeps the found offers for as long as the gang may collect.
    fn place_gang(
        &mut self,
        name: &str,
        spec: &Arc<JobSpec>,
        wanted: &[Wanted],
        (placements, bytes): (Vec<Placement>, usize),
        pool: &mut Pool,
    ) {
        let offers = placements.iter().map(|placement| placement.offer);
        let mut offers: BTreeSet<usize> = offers.collect();
        let fits = placements.len() == wanted.len();
        if fits {
            self.intend_all(name, spec, wanted, (placements, bytes), pool);
            if self.gangs.is_collecting(name) {
                self.stop_collecting(&spec.role);
            }
            self.gangs.end_rest(name);
            let mut accepts = Vec::new();
            for index in pool.close(&offers) {
                let tasks = std::mem::take(&mut pool.launches[index]);
                if !tasks.is_empty() {
                    accepts.push(accept_of(&pool.offers[index], tasks));
                }
            }
            return self.commit(accepts, true);
        }
        if placements.is_empty() || !self.may_collect(name, spec) {
            return;
        }
        offers.retain(|index| pool.launches[*index].is_empty());
        if let Some(first) = wanted.first() {
            let id = |index: &usize| pool.offers[*index].id.clone();
            self.gangs.note_tried(Tried {
                version: first.version,
                tasks: wanted.len(),
                offers: (0..pool.open().len()).map(|index| id(&index)).collect(),
                kept: offers.iter().map(id).collect(),
            });
        }
        pool.close(&offers);
    }

    /// Whether the collecting gang did not fit in these offers before: then it keeps its offers.
    fn goes_on_collecting(&self, name: &str, wanted: &[Wanted], pool: &mut Pool) -> bool {
        let tasks = wanted.first().map(|first| (first.version, wanted.len()));
        let kept = tasks.and_then(|tasks| self.gangs.kept_as_before(name, tasks, pool.open()));
        let Some(kept) = kept else {
            return false;
        };
        let open = pool.open().iter().enumerate();
        let kept = open
            .filter(|(index, offer)| kept.contains(&offer.id) && pool.launches[*index].is_empty());
        let kept = kept.map(|(index, _)| index).collect();
        pool.close(&kept);
        true
    }

    /// Whether this gang keeps offers back, or may start to.
    fn may_collect(&mut self, name: &str, spec: &JobSpec) -> bool {
        if self.gangs.is_collecting(name) {
            return true;
        }
        let at = self.clock.at();
        let role = &spec.role;
        let Some(gang) = spec.gang.filter(|_| !self.gangs.rests(name, at)) else {
            return false;
        };
        if self.gangs.collecting().is_some() || !self.roles.may_collect(at, role) {
            self.roles.refused_to_collect(at, role);
            return false;
        }
        self.roles.began_to_collect(at, role);
        self.gangs
            .begin_to_collect((name, role), at, gang.hold_at_most);
        true
    }

    /// Ends the collection of a gang whose time is over, or that wants nothing more: the next gang may collect, from new
    /// offers.
    fn end_collecting(&mut self) {
        let at = self.clock.at();
        let Some((name, role)) = self.gangs.collecting() else {
            return;
        };
        let (name, role) = (name.to_owned(), role.to_owned());
        let job = self.jobs.get(&name);
        let is_idle = job.is_none_or(|job| job.demand(at) == 0);
        if !is_idle && !self.gangs.is_time_over(at) {
            return;
        }
        let gang = job.and_then(|job| job.spec()).and_then(|spec| spec.gang);
        self.stop_collecting(&role);
        if let Some(gang) = gang.filter(|_| !is_idle) {
            self.gangs.rest(&name, at, gang.hold_at_most);
            let text = "gave back the offers that it held: not all of its tasks fit in time";
            self.event(&name, None, text);
        }
        self.decline_held();
    }

    /// Stops keeping offers back; the last collecting gang was in this role.
    fn stop_collecting(&mut self, role: &str) {
        let at = self.clock.at();
        self.gangs.stop_collecting();
        self.roles.ended_to_collect(at);
        self.roles.collected(at, role);
    }

    /// Declines all kept offers, so that the next offers include resources of the same agents that became free meanwhile.
    fn decline_held(&mut self) {
        let offers = self.offers.take_free();
        if !offers.is_empty() {
            self.outbox.send(Effect::Decline {
                offers,
                refuse: REFUSE_HELD,
            });
        }
    }

    /// Notes a task before its launch; no ACCEPT is sent before the note is durable.
    pub(super) fn intend(
        &mut self,
        launchable: &Launchable<'_>,
        wanted: Wanted,
        placement: Placement,
        pool: &mut Pool,
    ) {
        let Launchable {
            name,
            spec,
            addresses,
        } = launchable;
        let generation = self.meta.generation;
        let (at, Some(job)) = (self.clock.at(), self.jobs.get_mut(name)) else {
            return;
        };
        let offer = &mut pool.offers[placement.offer];
        if offer.take(&placement).is_err() {
            return;
        }
        if std::mem::take(&mut job.record.held) {
            self.outbox.write_all(job.records());
        }
        self.next_ports.used(&offer.agent_id, &placement.ports);
        offer.ports_from = self.next_ports.for_agent(&offer.agent_id);
        let key = job.slot_key(wanted.run, wanted.index);
        let run = job.runs.entry(wanted.run).or_default();
        let slot = run.slot_mut(wanted.index);
        slot.attempt += 1;
        let slot = *slot;
        run.waiting.remove(&(slot.not_before, wanted.index));
        run.live += 1;
        let task_name = name_of(name, &wanted, (slot.attempt, generation));
        let id = task_name.to_string();
        let record = TaskRecord {
            agent_id: offer.agent_id.clone(),
            hostname: offer.hostname.clone(),
            attributes: offer.attributes.clone(),
            ports: placement.ports.clone(),
            launched: at,
            running: None,
            unreachable: None,
            shown_since: Some(self.clock.unix()),
            volume: None,
            killing: None,
        };
        self.outbox.write(key.put(&slot));
        self.outbox.write(Key::Task(id.clone()).put(&record));
        let task = Task::new(task_name, record, Phase::Intended);
        job.tasks.insert(id.clone(), task);
        let launches = &mut pool.launches[placement.offer];
        launches.push(Launch {
            task_id: id,
            spec: Arc::clone(spec),
            version: wanted.version,
            run: wanted.run,
            index: wanted.index,
            attempt: slot.attempt,
            placement,
            addresses: addresses.clone(),
            operations: Vec::new(),
        });
    }
}

/// Returns the maximum bytes of one task of a job in an ACCEPT, for any agent and without its resources: with the longest
/// possible numbers.
pub(super) fn task_bytes(name: &str, spec: &JobSpec, one: &Wanted) -> usize {
    /// A port is a separate range among the resources.
    const PORT_BYTES: usize = 32;
    let instance = Instance {
        task_id: name_of(name, one, (u32::MAX, u64::MAX)).to_string(),
        version: one.version,
        index: u32::MAX,
        attempt: u32::MAX,
    };
    let offer = Offer {
        agent_id: "x".repeat(AGENT_ID_BYTES),
        hostname: "x".repeat(HOSTNAME_BYTES),
        ..Offer::default()
    };
    let ports = spec.task.ports.iter();
    let placement = Placement {
        offer: 0,
        resources: Resources::new(),
        ports: ports.map(|port| (port.clone(), u16::MAX)).collect(),
        new_volume: Resources::new(),
        returned: None,
    };
    let info = task_info(spec, &instance, &offer, &placement);
    info.encoded_len() + spec.task.ports.len() * PORT_BYTES + FRAMING_BYTES
}

pub(super) fn name_of(job: &str, wanted: &Wanted, (attempt, generation): (u32, u64)) -> TaskName {
    TaskName {
        job: job.to_owned(),
        version: wanted.version,
        run: wanted.run,
        index: wanted.index,
        attempt,
        generation,
    }
}

fn accept_of(offer: &Offer, tasks: Vec<Launch>) -> Accept {
    Accept {
        offer: offer.clone(),
        operations: Vec::new(),
        tasks,
    }
}

pub(super) fn placed_of(task: &Task) -> Placed {
    Placed {
        agent_id: task.record.agent_id.clone(),
        hostname: task.record.hostname.clone(),
        attributes: task.record.attributes.clone(),
    }
}
