//! Pulls of images: one for all that wait for the same image, with a fair share of the downloads for each framework.
//!
//! [`Puller::pull`] returns a [`PullHandle`], whose drop withdraws the request. Jobs run on threads of their own, as many as the
//! `queue` permits. Invariant: the last handle of a pull cancels it, and each waiter gets the outcome exactly once.

mod into_store;
mod progress;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

pub use progress::{Phase, Progress};

use crate::activity::Activity;
use crate::archive::ArchiveFolder;
use crate::credentials::Credentials;
use crate::descriptor::{Digest, LayerDescriptor};
use crate::manifest::Platform;
use crate::origin::{Origin, OriginError, ResolvedImage};
use crate::reference::Reference;
use crate::registry::RegistryClient;
use crate::wait::{Cancel, Clock};
use queue::{Job, MissingLayer, PullId, PullKey, PullQueue, WaiterId};

/// The stack of a job's thread. The client and TLS need the most.
const JOB_STACK_BYTES: usize = 512 << 10;

/// The error of a store.
pub type StoreFailure = Box<dyn std::error::Error + Send + Sync>;

/// An image to record: its layers are in the store.
#[derive(Clone, Debug)]
pub struct NewImage {
    /// The complete name.
    pub name: String,
    /// The digest that the name stood for at the registry.
    pub digest: Digest,
    pub config: Vec<u8>,
    /// Bottom first.
    pub layers: Vec<LayerDescriptor>,
}

/// The store of layers and images, as a pull needs it.
pub trait ImageStore: fmt::Debug + Send + Sync {
    /// Returns the digest of a stored image.
    fn find(&self, name: &str) -> Option<Digest>;
    /// Begins an image. Until the result is dropped, nothing is removed from the store.
    fn begin(&self) -> Result<Arc<dyn ImageStaging>, StoreFailure>;
    /// Returns those layers that the store does not have.
    fn missing_layers(&self, layers: &[LayerDescriptor]) -> Vec<LayerDescriptor>;
}

/// An image whose layers arrive.
pub trait ImageStaging: Send + Sync {
    /// Reads and stores a layer. An error of the reader leaves nothing.
    fn unpack_layer(
        &self,
        layer: &LayerDescriptor,
        from: &mut dyn Read,
    ) -> Result<(), StoreFailure>;
    /// Makes the image durable and visible.
    fn commit(&self, image: NewImage, now: SystemTime) -> Result<(), StoreFailure>;
}

/// The place of images whose name has no other.
#[derive(Clone, Debug)]
pub enum Source {
    /// Each image comes from the registry in its name.
    Registries,
    /// All images come from a folder of archives.
    Archives(ArchiveFolder),
}

/// The settings of pulls.
#[derive(Clone, Debug)]
pub struct PullOptions {
    pub source: Source,
    pub platform: Platform,
    /// Lookups and layers at a time. Pulls and frameworks that would otherwise wait for slow ones get up to twice as many.
    pub downloads: usize,
}

/// A request for an image.
#[derive(Clone, Debug)]
pub struct PullRequest {
    pub reference: Reference,
    pub credentials: Credentials,
    /// The share that the download is charged to.
    pub framework: String,
    /// Asks the registry although the store has an image of this name.
    pub is_forced: bool,
}

/// An image in the store after a pull.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PulledImage {
    pub name: String,
    pub digest: Digest,
    /// Whether the store had the image, so that nothing was downloaded.
    pub was_stored: bool,
}

/// The failure of a pull.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error("failed to pull {image}")]
    Origin {
        image: String,
        #[source]
        source: Box<OriginError>,
    },
    #[error("failed to store {image}")]
    Store {
        image: String,
        #[source]
        source: StoreFailure,
    },
    #[error("failed to pull {image}: cancelled")]
    Cancelled { image: String },
    #[error("failed to pull {image}: {reason}")]
    Refused { image: String, reason: String },
    #[error("failed to start a thread that pulls {image}: raise the limit of processes")]
    Thread {
        image: String,
        #[source]
        source: std::io::Error,
    },
    #[error("a defect ended the pull of {image}; report it with the log of this process")]
    Defect { image: String },
}

/// The outcome of a pull, the same for each waiter.
pub type Outcome = Result<PulledImage, Arc<PullError>>;

/// Numbers of pulls since the start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PullCounts {
    pub succeeded: u64,
    pub failed: u64,
    /// Requests that the store answered without a registry.
    pub stored: u64,
    pub downloaded_bytes: u64,
    /// Pulls that run or wait now.
    pub current: usize,
    /// Pulls that wait for a slot now.
    pub waiting: usize,
}

/// The service that pulls. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Puller(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    client: Arc<RegistryClient>,
    store: Arc<dyn ImageStore>,
    options: PullOptions,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    succeeded: AtomicU64,
    failed: AtomicU64,
    stored: AtomicU64,
    downloaded_bytes: AtomicU64,
}

#[derive(Debug)]
struct State {
    queue: PullQueue,
    running: BTreeMap<PullId, Arc<Pull>>,
}

type Listener = Box<dyn FnOnce(&Outcome) + Send>;

/// A pull as its threads and waiters see it.
struct Pull {
    request: PullRequest,
    cancel: Cancel,
    activity: Arc<Activity>,
    state: Mutex<PullState>,
    changed: Condvar,
}

#[derive(Default)]
struct PullState {
    progress: Progress,
    /// Bytes of documents, which are no part of the layers.
    documents: u64,
    plan: Option<Arc<Plan>>,
    outcome: Option<Outcome>,
    listeners: HashMap<WaiterId, Listener>,
}

/// The work of a pull after the lookup.
struct Plan {
    origin: Origin,
    image: ResolvedImage,
    missing: Vec<LayerDescriptor>,
    staging: Arc<dyn ImageStaging>,
}

impl fmt::Debug for Pull {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Pull({})", self.request.reference)
    }
}

impl Pull {
    fn lock(&self) -> MutexGuard<'_, PullState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn image(&self) -> String {
        self.request.reference.to_string()
    }

    fn progress(&self) -> Progress {
        let state = self.lock();
        let received = self.activity.received().saturating_sub(state.documents);
        let mut progress = state.progress.clone();
        progress.received_bytes = received.min(progress.total_bytes);
        progress.wait_reason = self.activity.wait_reason();
        progress
    }

    /// Publishes the outcome, unless there is one already.
    fn publish(&self, outcome: Outcome) -> bool {
        let mut state = self.lock();
        if state.outcome.is_some() {
            return false;
        }
        state.progress.phase = Phase::Done;
        state.plan = None;
        state.outcome = Some(outcome.clone());
        let listeners = std::mem::take(&mut state.listeners);
        drop(state);
        self.changed.notify_all();
        for (_, listener) in listeners {
            listener(&outcome);
        }
        true
    }
}

/// A waiter of a pull. Its drop withdraws the request.
#[derive(Debug)]
pub struct PullHandle {
    /// Absent if the store had the image.
    waiting: Option<(Arc<Inner>, WaiterId)>,
    pull: Arc<Pull>,
}

impl PullHandle {
    /// Waits for the end of the pull.
    pub fn wait(&self) -> Outcome {
        let mut state = self.pull.lock();
        loop {
            if let Some(outcome) = &state.outcome {
                return outcome.clone();
            }
            state = self
                .pull
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the end of the pull, at most for a time.
    pub fn wait_for(&self, time: Duration) -> Option<Outcome> {
        let state = self.pull.lock();
        let is_running = |state: &mut PullState| state.outcome.is_none();
        let waited = self
            .pull
            .changed
            .wait_timeout_while(state, time, is_running);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.outcome.clone()
    }

    /// Returns the outcome, once the pull has ended.
    pub fn outcome(&self) -> Option<Outcome> {
        self.pull.lock().outcome.clone()
    }

    /// Calls a function with the outcome, once, on the thread that ends the pull, or now if it has ended. A handle has one such
    /// function; a second replaces the first.
    pub fn when_done(&self, listener: impl FnOnce(&Outcome) + Send + 'static) {
        let mut state = self.pull.lock();
        match (&state.outcome, &self.waiting) {
            (Some(outcome), _) => {
                let outcome = outcome.clone();
                drop(state);
                listener(&outcome);
            }
            (None, Some((_, waiter))) => drop(state.listeners.insert(*waiter, Box::new(listener))),
            (None, None) => {}
        }
    }

    pub fn progress(&self) -> Progress {
        self.pull.progress()
    }
}

impl Drop for PullHandle {
    fn drop(&mut self) {
        let Some((inner, waiter)) = self.waiting.take() else {
            return;
        };
        drop(self.pull.lock().listeners.remove(&waiter));
        let left = inner.lock().queue.leave(waiter);
        if let Some(id) = left {
            inner.forget_ended(id);
            self.pull.cancel.set();
            let image = self.pull.image();
            self.pull
                .publish(Err(Arc::new(PullError::Cancelled { image })));
            Inner::start_jobs(&inner);
        }
    }
}

impl Puller {
    pub fn new(
        client: Arc<RegistryClient>,
        store: Arc<dyn ImageStore>,
        options: PullOptions,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let state = State {
            queue: PullQueue::new(options.downloads),
            running: BTreeMap::new(),
        };
        Self(Arc::new(Inner {
            client,
            store,
            options,
            clock,
            state: Mutex::new(state),
            counters: Counters::default(),
        }))
    }

    /// Requests an image. Returns at once.
    pub fn pull(&self, request: PullRequest) -> Result<PullHandle, PullError> {
        let inner = &self.0;
        let name = request.reference.to_string();
        let pull = Arc::new(Pull {
            cancel: Cancel::new(),
            activity: Arc::new(Activity::new()),
            state: Mutex::default(),
            changed: Condvar::new(),
            request,
        });
        if !pull.request.is_forced
            && let Some(digest) = inner.store.find(&name)
        {
            inner.counters.stored.fetch_add(1, Ordering::Relaxed);
            pull.publish(Ok(PulledImage {
                name,
                digest,
                was_stored: true,
            }));
            return Ok(PullHandle {
                waiting: None,
                pull,
            });
        }
        let key = PullKey {
            image: name.clone(),
            credentials: pull.request.credentials.fingerprint(),
            is_forced: pull.request.is_forced,
        };
        let mut state = inner.lock();
        let requested = state.queue.request(key, &pull.request.framework);
        let (id, waiter, is_new) = requested.map_err(|full| PullError::Refused {
            image: name,
            reason: full.to_string(),
        })?;
        let pull = match is_new {
            true => state.running.entry(id).or_insert(pull).clone(),
            false => state.running.get(&id).cloned().unwrap_or(pull),
        };
        drop(state);
        Inner::start_jobs(inner);
        Ok(PullHandle {
            waiting: Some((inner.clone(), waiter)),
            pull,
        })
    }

    pub fn counts(&self) -> PullCounts {
        let counters = &self.0.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (current, waiting) = self.0.lock().queue.counts();
        PullCounts {
            succeeded: read(&counters.succeeded),
            failed: read(&counters.failed),
            stored: read(&counters.stored),
            downloaded_bytes: read(&counters.downloaded_bytes),
            current,
            waiting,
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread for each job that has a slot.
    fn start_jobs(inner: &Arc<Self>) {
        loop {
            let mut state = inner.lock();
            let Some((id, job)) = state.queue.start_next() else {
                return;
            };
            let Some(pull) = state.running.get(&id).cloned() else {
                debug_assert!(false, "a pull of the queue is unknown");
                state.queue.finish(id, job);
                continue;
            };
            drop(state);
            let (of_thread, of_job) = (inner.clone(), pull.clone());
            let thread = std::thread::Builder::new()
                .name("image pull".to_owned())
                .stack_size(JOB_STACK_BYTES);
            let spawned = thread.spawn(move || Self::run_job(&of_thread, id, &of_job, job));
            if let Err(source) = spawned {
                let error = PullError::Thread {
                    image: pull.image(),
                    source,
                };
                inner.finish(id, &pull, job, Err(error));
            }
        }
    }

    fn run_job(inner: &Arc<Self>, id: PullId, pull: &Arc<Pull>, job: Job) {
        let work = AssertUnwindSafe(|| match job {
            Job::Resolve => inner.resolve(id, pull),
            Job::Layer(index) => inner.download(id, pull, index),
            Job::Commit => inner.commit(pull).map(Some),
        });
        let image = || pull.image();
        let ended =
            catch_unwind(work).unwrap_or_else(|_| Err(PullError::Defect { image: image() }));
        match ended {
            Ok(None) => {}
            Ok(Some(pulled)) => inner.finish(id, pull, job, Ok(pulled)),
            Err(error) => inner.finish(id, pull, job, Err(error)),
        }
        Self::start_jobs(inner);
    }

    /// Looks the image up. Returns it if the store has it already.
    fn resolve(&self, id: PullId, pull: &Arc<Pull>) -> Result<Option<PulledImage>, PullError> {
        let request = &pull.request;
        let failed = |source: OriginError| PullError::Origin {
            image: pull.image(),
            source: Box::new(source),
        };
        pull.lock().progress.phase = Phase::Resolving;
        let origin = match &self.options.source {
            Source::Archives(folder) => {
                let archive = folder.find(&request.reference);
                Origin::Archive(Arc::new(archive.map_err(|error| failed(error.into()))?))
            }
            Source::Registries => {
                let credentials = request.credentials.clone();
                let repository =
                    self.client
                        .repository(&request.reference, credentials, pull.cancel.clone());
                Origin::Registry(repository.map_err(|error| failed(error.into()))?)
            }
        };
        if let Some(stored) = self.store.find(&pull.image()) {
            let current = origin.head(&pull.activity).map_err(failed)?;
            if current.as_ref() == Some(&stored) {
                let name = pull.image();
                return Ok(Some(PulledImage {
                    name,
                    digest: stored,
                    was_stored: true,
                }));
            }
        }
        let image = origin
            .resolve(&self.options.platform, &pull.activity)
            .map_err(failed)?;
        // Begun before the look at the layers, so that none of them is removed in between.
        let staging = self.store.begin();
        let staging = staging.map_err(|source| PullError::Store {
            image: pull.image(),
            source,
        })?;
        let missing = self.store.missing_layers(&image.layers);
        let layers = missing.iter().map(|layer| MissingLayer {
            diff_id: layer.diff_id.clone(),
            size: layer.blob.size,
        });
        let layers = layers.collect::<Vec<_>>();
        let mut state = pull.lock();
        state.documents = pull.activity.received();
        state.progress.phase = Phase::Downloading;
        state.progress.total_layers = image.layers.len();
        state.progress.finished_layers = image.layers.len() - missing.len();
        state.progress.total_bytes = layers.iter().map(|layer| layer.size).sum();
        if state.outcome.is_none() {
            state.plan = Some(Arc::new(Plan {
                origin,
                image,
                missing,
                staging,
            }));
        }
        drop(state);
        self.lock().queue.resolve(id, layers);
        self.forget_ended(id);
        Ok(None)
    }

    fn download(
        &self,
        id: PullId,
        pull: &Arc<Pull>,
        index: usize,
    ) -> Result<Option<PulledImage>, PullError> {
        let cancelled = || PullError::Cancelled {
            image: pull.image(),
        };
        let plan = pull.lock().plan.clone().ok_or_else(cancelled)?;
        let layer = plan.missing.get(index).ok_or_else(cancelled)?;
        let mut reader = plan.origin.open(layer, &pull.activity);
        let unpacked = plan.staging.unpack_layer(layer, &mut reader);
        unpacked.map_err(|source| PullError::Store {
            image: pull.image(),
            source,
        })?;
        self.counters
            .downloaded_bytes
            .fetch_add(layer.blob.size, Ordering::Relaxed);
        pull.lock().progress.finished_layers += 1;
        self.lock().queue.finish_layer(id, index);
        self.forget_ended(id);
        Ok(None)
    }

    fn commit(&self, pull: &Arc<Pull>) -> Result<PulledImage, PullError> {
        let cancelled = || PullError::Cancelled {
            image: pull.image(),
        };
        let plan = {
            let mut state = pull.lock();
            state.progress.phase = Phase::Storing;
            state.plan.clone().ok_or_else(cancelled)?
        };
        let (name, digest) = (pull.image(), plan.image.digest.clone());
        let image = NewImage {
            name: name.clone(),
            digest: digest.clone(),
            config: plan.image.config.clone(),
            layers: plan.image.layers.clone(),
        };
        let committed = plan.staging.commit(image, self.clock.system_time());
        committed.map_err(|source| PullError::Store {
            image: name.clone(),
            source,
        })?;
        Ok(PulledImage {
            name,
            digest,
            was_stored: false,
        })
    }

    /// Ends a pull with the outcome of one of its jobs.
    fn finish(
        &self,
        id: PullId,
        pull: &Arc<Pull>,
        job: Job,
        outcome: Result<PulledImage, PullError>,
    ) {
        self.lock().queue.finish(id, job);
        self.forget_ended(id);
        // Ends the other jobs of a failed pull.
        pull.cancel.set();
        let is_success = outcome.is_ok();
        if pull.publish(outcome.map_err(Arc::new)) {
            let counter = match is_success {
                true => &self.counters.succeeded,
                false => &self.counters.failed,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn forget_ended(&self, id: PullId) {
        let mut state = self.lock();
        if !state.queue.contains(id) {
            state.running.remove(&id);
        }
    }
}
