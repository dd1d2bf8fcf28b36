//! The decision which pull does what next.
//!
//! A [`PullQueue`] joins requests for the same image into one pull, and [`PullQueue::start_next`] hands out jobs: the lookup of an
//! image, its layers with the largest first, and its record. Pure. Invariants: a layer is downloaded by one pull at a time;
//! downloads of one framework, and of one slow pull, leave slots for others; a pull ends with its last waiter.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::descriptor::Digest;

/// Pulls at a time, running or waiting. A request beyond is refused.
const PULLS_MAX: usize = 1000;
/// Waiters of all pulls together.
const WAITERS_MAX: usize = 20_000;

/// The identity of a pull. Requests with equal keys share one.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct PullKey {
    pub(super) image: String,
    /// Differs for different credentials: nobody gets an image by the password of another.
    pub(super) credentials: String,
    /// Whether the pull asks the registry although the store has an image of this name.
    pub(super) is_forced: bool,
}

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct PullId(u64);

#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct WaiterId(u64);

/// A piece of work for a thread.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum Job {
    Resolve,
    /// The index of a layer among the missing ones.
    Layer(usize),
    Commit,
}

/// The refusal of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "too many images are being pulled: {PULLS_MAX} pulls with {WAITERS_MAX} waiters is the limit; try again later"
)]
pub(super) struct QueueFull;

/// A layer to download.
#[derive(Clone, Debug)]
pub(super) struct MissingLayer {
    pub(super) diff_id: Digest,
    pub(super) size: u64,
}

#[derive(Debug)]
enum Stage {
    Waiting,
    Resolving,
    /// Indexes of layers that have not started, the largest last.
    Layers {
        pending: Vec<usize>,
        unfinished: usize,
    },
    Committing,
    /// Failed or cancelled: waits for its running jobs.
    Ending,
}

#[derive(Debug)]
struct Pull {
    key: PullKey,
    /// The framework of the first waiter.
    framework: String,
    waiters: HashSet<WaiterId>,
    stage: Stage,
    layers: Vec<MissingLayer>,
    running: HashSet<Job>,
}

impl Pull {
    /// The jobs that occupy slots.
    fn slots(&self) -> usize {
        self.running
            .iter()
            .filter(|job| !matches!(job, Job::Commit))
            .count()
    }
}

/// All pulls. See the module.
#[derive(Debug)]
pub(super) struct PullQueue {
    /// Slots that any pull may use. Half as many more are for pulls without a running job, and the same again for frameworks
    /// without one.
    slots: usize,
    pulls: BTreeMap<PullId, Pull>,
    keys: HashMap<PullKey, PullId>,
    waiters: HashMap<WaiterId, PullId>,
    last_id: u64,
}

impl PullQueue {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots: slots.max(1),
            pulls: BTreeMap::new(),
            keys: HashMap::new(),
            waiters: HashMap::new(),
            last_id: 0,
        }
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Adds a waiter to the pull of a key. Returns whether the pull is new.
    pub(super) fn request(
        &mut self,
        key: PullKey,
        framework: &str,
    ) -> Result<(PullId, WaiterId, bool), QueueFull> {
        if self.waiters.len() >= WAITERS_MAX {
            return Err(QueueFull);
        }
        let known = self.keys.get(&key).copied();
        if known.is_none() && self.pulls.len() >= PULLS_MAX {
            return Err(QueueFull);
        }
        let waiter = WaiterId(self.next_id());
        let id = known.unwrap_or_else(|| {
            let id = PullId(self.next_id());
            self.keys.insert(key.clone(), id);
            self.pulls.insert(
                id,
                Pull {
                    key,
                    framework: framework.to_owned(),
                    waiters: HashSet::new(),
                    stage: Stage::Waiting,
                    layers: Vec::new(),
                    running: HashSet::new(),
                },
            );
            id
        });
        if let Some(pull) = self.pulls.get_mut(&id) {
            pull.waiters.insert(waiter);
        }
        self.waiters.insert(waiter, id);
        Ok((id, waiter, known.is_none()))
    }

    /// Removes a waiter. Returns its pull if nobody waits for it any more: the caller cancels the pull.
    pub(super) fn leave(&mut self, waiter: WaiterId) -> Option<PullId> {
        let id = self.waiters.remove(&waiter)?;
        let pull = self.pulls.get_mut(&id)?;
        pull.waiters.remove(&waiter);
        if !pull.waiters.is_empty() {
            return None;
        }
        self.end(id);
        Some(id)
    }

    /// Starts the most deserving job, if there is a slot for one: of the framework, and then of the pull, with the fewest running
    /// jobs.
    pub(super) fn start_next(&mut self) -> Option<(PullId, Job)> {
        let mut of_framework = HashMap::<&str, usize>::new();
        let mut busy_layers = HashSet::new();
        let mut used = 0;
        for pull in self.pulls.values() {
            *of_framework.entry(&pull.framework).or_default() += pull.slots();
            used += pull.slots();
            busy_layers.extend(pull.running.iter().filter_map(|job| match job {
                Job::Layer(index) => Some(pull.layers.get(*index)?.diff_id.clone()),
                Job::Resolve | Job::Commit => None,
            }));
        }
        let extra = self.slots.div_ceil(2);
        let best = self
            .pulls
            .iter()
            .filter_map(|(id, pull)| {
                let job = next_job(pull, &busy_layers)?;
                let framework = of_framework
                    .get(pull.framework.as_str())
                    .copied()
                    .unwrap_or(0);
                let has_slot = job == Job::Commit
                    || used < self.slots
                    || (pull.slots() == 0 && used < self.slots + extra)
                    || (framework == 0 && used < self.slots + 2 * extra);
                let rank = (job != Job::Commit, framework, pull.slots(), *id);
                has_slot.then_some((rank, *id, job))
            })
            .min_by_key(|(rank, ..)| *rank);
        let (_, id, job) = best?;
        let pull = self.pulls.get_mut(&id)?;
        pull.running.insert(job);
        match (&mut pull.stage, job) {
            (stage, Job::Resolve) => *stage = Stage::Resolving,
            (stage, Job::Commit) => *stage = Stage::Committing,
            (Stage::Layers { pending, .. }, Job::Layer(index)) => {
                pending.retain(|one| *one != index)
            }
            _ => {}
        }
        Some((id, job))
    }

    /// Continues a pull whose layers are known.
    pub(super) fn resolve(&mut self, id: PullId, layers: Vec<MissingLayer>) {
        let Some(pull) = self.pulls.get_mut(&id) else {
            return;
        };
        pull.running.remove(&Job::Resolve);
        if let Stage::Resolving = pull.stage {
            let mut pending = (0..layers.len()).collect::<Vec<_>>();
            pending.sort_by_key(|index| layers.get(*index).map_or(0, |layer| layer.size));
            let unfinished = pending.len();
            pull.stage = Stage::Layers {
                pending,
                unfinished,
            };
            pull.layers = layers;
        }
        self.forget_ended(id);
    }

    /// Records the end of a layer.
    pub(super) fn finish_layer(&mut self, id: PullId, index: usize) {
        let Some(pull) = self.pulls.get_mut(&id) else {
            return;
        };
        let was_running = pull.running.remove(&Job::Layer(index));
        if let Stage::Layers { unfinished, .. } = &mut pull.stage
            && was_running
        {
            *unfinished -= 1;
        }
        self.forget_ended(id);
    }

    /// Ends a pull after success, failure or cancellation. Its waiters leave, and it is forgotten when `job`, and every other job that
    /// runs, has ended.
    pub(super) fn finish(&mut self, id: PullId, job: Job) {
        if let Some(pull) = self.pulls.get_mut(&id) {
            pull.running.remove(&job);
        }
        self.end(id);
    }

    fn end(&mut self, id: PullId) {
        let Some(pull) = self.pulls.get_mut(&id) else {
            return;
        };
        pull.stage = Stage::Ending;
        for waiter in pull.waiters.drain() {
            self.waiters.remove(&waiter);
        }
        // A new request begins a new pull.
        if self.keys.get(&pull.key) == Some(&id) {
            self.keys.remove(&pull.key);
        }
        self.forget_ended(id);
    }

    fn forget_ended(&mut self, id: PullId) {
        let is_over = self
            .pulls
            .get(&id)
            .is_some_and(|pull| matches!(pull.stage, Stage::Ending) && pull.running.is_empty());
        if is_over {
            self.pulls.remove(&id);
        }
    }

    pub(super) fn contains(&self, id: PullId) -> bool {
        self.pulls.contains_key(&id)
    }

    /// Pulls that run or wait, and those among them without a running job.
    pub(super) fn counts(&self) -> (usize, usize) {
        let waiting = self
            .pulls
            .values()
            .filter(|pull| pull.running.is_empty())
            .count();
        (self.pulls.len(), waiting)
    }
}

/// The job that a pull can start now. A layer that another pull downloads waits for its end, and is then in the store.
fn next_job(pull: &Pull, busy_layers: &HashSet<Digest>) -> Option<Job> {
    match &pull.stage {
        Stage::Waiting => Some(Job::Resolve),
        Stage::Layers { unfinished: 0, .. } => Some(Job::Commit),
        Stage::Layers { pending, .. } => {
            let is_free = |index: &&usize| {
                let layer = pull.layers.get(**index);
                layer.is_some_and(|layer| !busy_layers.contains(&layer.diff_id))
            };
            pending
                .iter()
                .rev()
                .find(is_free)
                .map(|index| Job::Layer(*index))
        }
        Stage::Resolving | Stage::Committing | Stage::Ending => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(image: &str) -> PullKey {
        PullKey {
            image: image.to_owned(),
            credentials: String::new(),
            is_forced: false,
        }
    }

    fn layers(sizes: &[(&str, u64)]) -> Vec<MissingLayer> {
        let layers = sizes.iter().map(|(name, size)| MissingLayer {
            diff_id: Digest::from_content(name.as_bytes()),
            size: *size,
        });
        layers.collect()
    }

    /// Requests an image and brings its pull to the download of these layers.
    fn start(
        queue: &mut PullQueue,
        image: &str,
        framework: &str,
        sizes: &[(&str, u64)],
    ) -> (PullId, WaiterId) {
        let (id, waiter, _) = queue.request(key(image), framework).expect("room");
        assert_eq!(queue.start_next(), Some((id, Job::Resolve)));
        queue.resolve(id, layers(sizes));
        (id, waiter)
    }

    fn start_all(queue: &mut PullQueue) -> Vec<(PullId, Job)> {
        std::iter::from_fn(|| queue.start_next()).collect()
    }

    #[test]
    fn equal_requests_share_one_pull() {
        let mut queue = PullQueue::new(4);
        let (first, waiter, is_new) = queue.request(key("a"), "f").expect("room");
        assert!(is_new);
        let (second, other, is_new) = queue.request(key("a"), "g").expect("room");
        assert_eq!((first, is_new), (second, false));
        let forced = PullKey {
            is_forced: true,
            ..key("a")
        };
        let secret = PullKey {
            credentials: "x".to_owned(),
            ..key("a")
        };
        assert!(queue.request(forced, "f").expect("room").2);
        assert!(queue.request(secret, "f").expect("room").2);
        assert_eq!(queue.leave(waiter), None);
        assert_eq!(queue.leave(other), Some(first));
        assert_eq!(queue.leave(other), None);
    }

    #[test]
    fn largest_layer_starts_first() {
        let mut queue = PullQueue::new(2);
        let (id, _) = start(&mut queue, "a", "f", &[("s", 1), ("l", 9), ("m", 5)]);
        assert_eq!(
            start_all(&mut queue),
            [(id, Job::Layer(1)), (id, Job::Layer(2))]
        );
        queue.finish_layer(id, 1);
        assert_eq!(start_all(&mut queue), [(id, Job::Layer(0))]);
        queue.finish_layer(id, 0);
        assert_eq!(queue.start_next(), None);
        queue.finish_layer(id, 2);
        assert_eq!(queue.start_next(), Some((id, Job::Commit)));
        assert_eq!(queue.start_next(), None);
        queue.finish(id, Job::Commit);
        assert_eq!(queue.counts(), (0, 0));
    }

    #[test]
    fn image_without_missing_layers_is_committed() {
        let mut queue = PullQueue::new(1);
        let (id, _) = start(&mut queue, "a", "f", &[]);
        assert_eq!(queue.start_next(), Some((id, Job::Commit)));
    }

    /// Requests two images, and brings both pulls to the download of their layers.
    fn start_two(
        queue: &mut PullQueue,
        frameworks: [&str; 2],
        sizes: [&[(&str, u64)]; 2],
    ) -> [PullId; 2] {
        let ids = ["a", "b"]
            .map(key)
            .into_iter()
            .zip(frameworks)
            .map(|(key, framework)| {
                let (id, ..) = queue.request(key, framework).expect("room");
                assert_eq!(queue.start_next(), Some((id, Job::Resolve)));
                id
            });
        let ids = ids.collect::<Vec<_>>();
        for (id, sizes) in ids.iter().zip(sizes) {
            queue.resolve(*id, layers(sizes));
        }
        ids.try_into().expect("two")
    }

    #[test]
    fn common_layer_is_downloaded_once() {
        let mut queue = PullQueue::new(4);
        let sizes: [&[(&str, u64)]; 2] = [&[("base", 9), ("a", 1)], &[("base", 9), ("b", 1)]];
        let [first, second] = start_two(&mut queue, ["f", "f"], sizes);
        assert_eq!(
            start_all(&mut queue),
            [
                (first, Job::Layer(0)),
                (second, Job::Layer(1)),
                (first, Job::Layer(1))
            ]
        );
        queue.finish_layer(first, 0);
        assert_eq!(start_all(&mut queue), [(second, Job::Layer(0))]);
    }

    #[test]
    fn frameworks_share_slots_equally() {
        let mut queue = PullQueue::new(4);
        let many = [("1", 1), ("2", 1), ("3", 1), ("4", 1), ("5", 1), ("6", 1)];
        let other = [("7", 1), ("8", 1), ("9", 1)];
        let [greedy, modest] = start_two(&mut queue, ["greedy", "modest"], [&many, &other]);
        let started = start_all(&mut queue);
        let count = |pull| started.iter().filter(|(id, _)| *id == pull).count();
        assert_eq!((count(greedy), count(modest)), (2, 2));
    }

    #[test]
    fn slow_pull_leaves_room_for_others() {
        let mut queue = PullQueue::new(2);
        let (slow, _) = start(&mut queue, "a", "f", &[("1", 1), ("2", 1), ("3", 1)]);
        assert_eq!(start_all(&mut queue).len(), 2);
        // Another pull of the same framework, and then another framework.
        let (same, ..) = queue.request(key("b"), "f").expect("room");
        assert_eq!(start_all(&mut queue), [(same, Job::Resolve)]);
        queue.request(key("c"), "f").expect("room");
        assert_eq!(queue.start_next(), None);
        let (other, ..) = queue.request(key("d"), "g").expect("room");
        assert_eq!(start_all(&mut queue), [(other, Job::Resolve)]);
        queue.finish_layer(slow, 2);
        assert_eq!(queue.start_next(), None);
    }

    #[test]
    fn last_waiter_cancels_running_jobs() {
        let mut queue = PullQueue::new(2);
        let (id, waiter) = start(&mut queue, "a", "f", &[("1", 1), ("2", 2), ("3", 3)]);
        start_all(&mut queue);
        assert_eq!(queue.leave(waiter), Some(id));
        // The slots stay occupied until the jobs have ended, and a new request begins a new pull.
        let (again, _, is_new) = queue.request(key("a"), "f").expect("room");
        assert!(is_new && again != id);
        assert_eq!(queue.counts().0, 2);
        queue.finish_layer(id, 2);
        queue.finish(id, Job::Layer(1));
        assert_eq!(queue.counts().0, 1);
        assert_eq!(start_all(&mut queue), [(again, Job::Resolve)]);
    }

    #[test]
    fn failed_pull_starts_nothing_more() {
        let mut queue = PullQueue::new(1);
        let (id, waiter) = start(&mut queue, "a", "f", &[("1", 1), ("2", 2)]);
        assert_eq!(queue.start_next(), Some((id, Job::Layer(1))));
        queue.finish(id, Job::Layer(1));
        assert_eq!(queue.start_next(), None);
        assert_eq!(queue.counts(), (0, 0));
        assert_eq!(queue.leave(waiter), None);
    }

    #[test]
    fn late_result_after_cancellation_is_dropped() {
        let mut queue = PullQueue::new(1);
        let (id, waiter, _) = queue.request(key("a"), "f").expect("room");
        assert_eq!(queue.start_next(), Some((id, Job::Resolve)));
        assert_eq!(queue.leave(waiter), Some(id));
        queue.resolve(id, layers(&[("1", 1)]));
        assert_eq!((queue.start_next(), queue.counts()), (None, (0, 0)));
    }

    #[test]
    fn requests_beyond_the_limit_are_refused() {
        let mut queue = PullQueue::new(1);
        for index in 0..PULLS_MAX {
            queue.request(key(&index.to_string()), "f").expect("room");
        }
        assert_eq!(queue.request(key("x"), "f"), Err(QueueFull));
        assert!(queue.request(key("0"), "f").is_ok());
    }
}
