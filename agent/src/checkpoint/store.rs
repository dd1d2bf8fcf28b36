//! The checkpoint store: carries the core's writes to disk, in order, many at once.
//!
//! [`Store::commit`] is the only way in after recovery; when it returns, all that it was given is
//! durable. Blocking; owned by one writer thread. Invariant: what is committed is found again by
//! [`super::read`], whatever happens after.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meseta_daemon::disk_pulse::DiskPulse;
use meseta_proto::mesos::v1::DrainConfig;
use meseta_resources::{AgentId, FrameworkId, Resource};
use prost::Message as _;
use tracing::error;

use super::durable::{Batch, StoreError};
use super::holdings::{self, Holdings, ResourcesRecord, volume_path};
use super::janitor::Janitor;
use super::layout::{
    EXECUTOR_INFO, EXECUTOR_LOG, Layout, RunKey, TASK_INFO, TASK_UPDATES, TaskKey,
};
use super::makings::Makings;
use super::read::Image;
use super::records::{
    AgentRecord, DrainRecord, ExecutorRecord, FrameworkRecord, LogEntry, LogRecord, TaskRecord,
};
use super::removals::{RemovalThreads, Removals};
use super::repair::Repair;
use super::volume_places::VolumePlaces;

/// One change to what is durable.
#[derive(Clone, Debug)]
pub enum Write {
    /// Who the agent is; also makes it the latest.
    Agent {
        agent: AgentId,
        /// What it told its master.
        record: Box<AgentRecord>,
    },
    /// The boot and the name of this agent's cgroup folder; comes before anything that is launched in it.
    Remember {
        /// The running boot, so that what was left of an earlier one is history.
        boot_id: String,
        instance: String,
    },
    /// What was read at the start, and is told of before anything newer is: an agent that was killed may have left it
    /// written and not synced.
    SyncRecovered {
        agent: AgentId,
        /// Those of which something is to be told again.
        tasks: Vec<Arc<TaskKey>>,
    },
    /// What was found damaged is put right.
    Repair { repairs: Vec<Repair> },
    /// What a crash may have cut short of making and destroying volumes is completed.
    RestoreVolumes {
        /// What was written of them.
        record: Box<ResourcesRecord>,
    },
    /// How the agent is being drained, or that it is not any more.
    Drain {
        agent: AgentId,
        /// What the master asked for.
        config: Option<DrainConfig>,
    },
    /// A framework's newest description.
    Framework {
        agent: AgentId,
        framework: FrameworkId,
        /// The framework as it is recorded.
        record: Box<FrameworkRecord>,
    },
    /// The intent to run a task.
    Task {
        key: Arc<TaskKey>,
        record: Box<TaskRecord>,
    },
    /// The intent to run an executor that is more than one command.
    Executor {
        /// Which run of it.
        key: Arc<RunKey>,
        record: Box<ExecutorRecord>,
    },
    /// Something happened to such an executor.
    ExecutorLog {
        /// Which run of it.
        key: Arc<RunKey>,
        entry: Box<LogEntry>,
    },
    /// Something happened to a task.
    Log {
        key: Arc<TaskKey>,
        entry: Box<LogEntry>,
    },
    /// What was reserved and made at run time, and what is to be told of it; replaces what was
    /// written before.
    Resources {
        holdings: Arc<Holdings>,
        /// Volumes that are new in it.
        created: Vec<Resource>,
        /// Volumes that are gone from it.
        destroyed: Vec<Resource>,
    },
    /// The data of destroyed volumes on disks of their own is gone: they are not named any more.
    ForgetRemoved,
    /// A run is over and all its updates are acknowledged: nothing of it is needed any more.
    Retire { key: RunKey },
    /// A task of an executor that goes on is over, told, and shown no longer.
    RetireTask { key: Arc<TaskKey> },
    /// A framework has no runs left here.
    RetireFramework {
        agent: AgentId,
        framework: FrameworkId,
    },
}

impl Write {
    /// What it takes while it waits for the disk, more or less.
    pub fn bytes(&self) -> usize {
        /// Its keys and its place.
        const SMALL: usize = 512;
        let record = match self {
            Self::Agent { record, .. } => record.encoded_len(),
            Self::Framework { record, .. } => record.encoded_len(),
            Self::Task { record, .. } => record.encoded_len(),
            Self::Executor { record, .. } => record.encoded_len(),
            Self::RestoreVolumes { record } => record.encoded_len(),
            Self::ExecutorLog { entry, .. } | Self::Log { entry, .. } => match &**entry {
                LogEntry::Update(status) => status.encoded_len(),
                LogEntry::Started(_)
                | LogEntry::Acknowledged(_)
                | LogEntry::KillRequested(_)
                | LogEntry::Delivered(_) => 0,
            },
            // Shared with the core but for what changed.
            Self::SyncRecovered { tasks, .. } => tasks.len().saturating_mul(SMALL),
            Self::Resources { holdings, .. } => holdings.operations.len().saturating_mul(SMALL),
            Self::Remember { .. }
            | Self::Repair { .. }
            | Self::ForgetRemoved
            | Self::Drain { .. }
            | Self::Retire { .. }
            | Self::RetireTask { .. }
            | Self::RetireFramework { .. } => 0,
        };
        record.saturating_add(SMALL)
    }
}

/// The writer's side of the checkpoints.
#[derive(Debug)]
pub struct Store {
    layout: Layout,
    janitor: Janitor,
    removal: RemovalThreads,
    makings: Makings,
    /// The number of the newest record of reservations and volumes.
    holdings_number: AtomicU64,
    /// That record, while data of volumes that it names as destroyed is to be removed.
    holdings: Mutex<Option<ResourcesRecord>>,
    /// Told of each answer of the disk.
    pulse: DiskPulse,
}

impl Store {
    /// Over a work directory; nothing is written yet.
    pub fn open(layout: Layout) -> Self {
        let janitor = Janitor::start(layout.retired());
        Self {
            layout,
            janitor,
            removal: RemovalThreads::start(),
            makings: Makings::default(),
            holdings_number: AtomicU64::new(0),
            holdings: Mutex::default(),
            pulse: DiskPulse::default(),
        }
    }

    /// Goes on from what was read: what is written next is newer.
    pub fn after(self, image: &Image) -> Self {
        let number = image.holdings.as_ref().map_or(0, |record| record.number);
        Self {
            holdings_number: AtomicU64::new(number),
            ..self
        }
    }

    /// The volumes whose data is to be removed.
    pub(crate) fn removals(&self) -> &Removals {
        self.removal.removals()
    }

    /// What is under way at the places of volumes on disks of their own.
    pub(crate) fn volume_places(&self) -> VolumePlaces {
        VolumePlaces {
            removals: self.removals().clone(),
            makings: self.makings.clone(),
        }
    }

    /// The heartbeat of the disk, as long as something is being committed.
    pub(super) fn pulse(&self) -> &DiskPulse {
        &self.pulse
    }

    /// The paths that it writes to.
    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Makes all of `writes` durable, in order.
    pub fn commit<'a>(
        &self,
        writes: impl IntoIterator<Item = &'a Write>,
    ) -> Result<(), StoreError> {
        self.begin(writes).resume()
    }

    /// The same for those who try again after an error: what was carried out is not done again, since
    /// a write may undo what a later one of the batch has done (a log entry revives a retired run).
    pub fn begin<'s, 'w>(&'s self, writes: impl IntoIterator<Item = &'w Write>) -> Commit<'s, 'w> {
        Commit {
            store: self,
            writes: writes.into_iter().collect(),
            batch: Batch::with_pulse(self.pulse.clone()),
            appends: Appends::default(),
            retired: false,
        }
    }

    fn carry_out(
        &self,
        write: &Write,
        batch: &mut Batch,
        appends: &mut Appends,
    ) -> Result<(), StoreError> {
        match write {
            Write::Remember { boot_id, instance } => {
                batch.make_dir(&self.layout.agents())?;
                batch.write_file(&self.layout.boot_id(), boot_id.as_bytes())?;
                batch.write_file(&self.layout.instance(), instance.as_bytes())
            }
            Write::SyncRecovered { agent, tasks } => {
                self.sync_recovered(agent, tasks, batch);
                Ok(())
            }
            Write::Repair { repairs } => {
                let retired = |key: &RunKey| (self.top_of(key), self.janitor.next_path());
                repairs
                    .iter()
                    .try_for_each(|one| one.carry_out(&self.layout, batch, retired))
            }
            Write::RestoreVolumes { record } => self.restore_volumes(record, batch),
            Write::Drain { agent, config } => match config {
                Some(config) => {
                    let record = DrainRecord { config: *config };
                    batch.write_file(&self.layout.drain(agent), &record.encode_to_vec())
                }
                None => batch.remove_file(&self.layout.drain(agent)),
            },
            Write::Agent { agent, record } => {
                batch.write_file(&self.layout.agent_info(agent), &record.encode_to_vec())?;
                batch.link(&self.layout.latest_agent(), Path::new(agent.as_str()))
            }
            Write::Framework {
                agent,
                framework,
                record,
            } => batch.write_file(
                &self.layout.framework_info(agent, framework),
                &record.encode_to_vec(),
            ),
            Write::Task { key, record } => {
                let path = self.layout.task(key).join(TASK_INFO);
                batch.write_file(&path, &record.encode_to_vec())
            }
            Write::Log { key, entry } => {
                let path = self.layout.task(key).join(TASK_UPDATES);
                let body = LogRecord::of((**entry).clone()).encode_to_vec();
                appends.push(batch, path, body)
            }
            Write::Resources {
                holdings,
                created,
                destroyed,
            } => self.write_holdings(holdings, created, destroyed, batch),
            Write::ForgetRemoved => self.forget_removed(batch),
            Write::Executor { key, record } => {
                let path = self.layout.run(key).join(EXECUTOR_INFO);
                batch.write_file(&path, &record.encode_to_vec())
            }
            Write::ExecutorLog { key, entry } => {
                let path = self.layout.run(key).join(EXECUTOR_LOG);
                let body = LogRecord::of((**entry).clone()).encode_to_vec();
                appends.push(batch, path, body)
            }
            Write::Retire { key } => {
                appends.flush(batch)?;
                batch.move_away(&self.top_of(key), &self.janitor.next_path())
            }
            Write::RetireTask { key } => {
                appends.flush(batch)?;
                batch.move_away(&self.layout.task(key), &self.janitor.next_path())
            }
            Write::RetireFramework { agent, framework } => {
                appends.flush(batch)?;
                let framework = self.layout.framework(agent, framework);
                batch.move_away(&framework, &self.janitor.next_path())
            }
        }
    }

    /// Records were synced before they got their names: their folders are synced again, and those logs that something is
    /// told from.
    fn sync_recovered(&self, agent: &AgentId, tasks: &[Arc<TaskKey>], batch: &mut Batch) {
        let meta = self.layout.meta();
        let mut files = vec![
            self.layout.holdings(),
            self.layout.holdings_copy(),
            self.layout.agent_info(agent),
        ];
        let logs = tasks
            .iter()
            .map(|key| self.layout.task(key).join(TASK_UPDATES));
        for log in logs {
            batch.touch_log(&log);
            files.push(log);
        }
        for file in &files {
            let folders = file.ancestors().skip(1);
            folders
                .take_while(|folder| folder.starts_with(&meta))
                .for_each(|folder| batch.touch_dir(folder));
        }
    }

    fn write_holdings(
        &self,
        holdings: &Holdings,
        created: &[Resource],
        destroyed: &[Resource],
        batch: &mut Batch,
    ) -> Result<(), StoreError> {
        self.make_volumes(created, batch)?;
        let removing = self.removals().now();
        let (on_own_disks, others): (Vec<_>, Vec<_>) = destroyed
            .iter()
            .cloned()
            .partition(holdings::is_on_own_disk);
        let named = [&removing.waiting[..], destroyed].concat();
        let record = holdings.record(&named, self.next_number());
        holdings::write(&self.layout, &record, batch)?;
        if destroyed.is_empty() && removing.is_empty() {
            return Ok(());
        }
        // Data goes only once nothing durable names it.
        batch.finish()?;
        let is_removing = !removing.waiting.is_empty() || !on_own_disks.is_empty();
        *self.newest_holdings() = is_removing.then_some(record);
        self.removals().forget(&removing.done);
        self.remove_from_own_disks(&on_own_disks);
        others
            .iter()
            .try_for_each(|volume| unless_hopeless(self.move_volume_away(volume, batch)))
    }

    /// Written again after a failure a record is a later one, which is as good.
    fn next_number(&self) -> u64 {
        1 + self.holdings_number.fetch_add(1, Ordering::Relaxed)
    }

    fn newest_holdings(&self) -> MutexGuard<'_, Option<ResourcesRecord>> {
        self.holdings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves those destroyed volumes out of the record whose data is gone from disks of their own.
    fn forget_removed(&self, batch: &mut Batch) -> Result<(), StoreError> {
        let removing = self.removals().now();
        let mut newest = self.newest_holdings();
        let Some(record) = newest.as_mut().filter(|_| !removing.done.is_empty()) else {
            return Ok(());
        };
        record.destroyed = holdings::messages(&removing.waiting);
        record.number = self.next_number();
        holdings::write(&self.layout, record, batch)?;
        // Who is given a volume there may write to it once nothing would remove that after a crash.
        batch.finish()?;
        if removing.waiting.is_empty() {
            *newest = None;
        }
        self.removals().forget(&removing.done);
        Ok(())
    }

    fn move_volume_away(&self, volume: &Resource, batch: &mut Batch) -> Result<(), StoreError> {
        let aside = self.janitor.next_path();
        holdings::move_volume_away(&self.layout, volume, &aside, batch)
    }

    fn make_volumes(&self, volumes: &[Resource], batch: &mut Batch) -> Result<(), StoreError> {
        volumes
            .iter()
            .try_for_each(|volume| unless_hopeless(self.make_volume(volume, batch)))
    }

    fn make_volume(&self, volume: &Resource, batch: &mut Batch) -> Result<(), StoreError> {
        if holdings::is_on_own_disk(volume) {
            self.makings.add(&self.layout, volume);
            return Ok(());
        }
        holdings::make_volume(&self.layout, volume, batch)
    }

    fn remove_from_own_disks(&self, volumes: &[Resource]) {
        for volume in volumes {
            self.makings.cancel(&self.layout, volume);
        }
        self.removals().add(&self.layout, volumes);
    }

    /// Completes what a crash may have cut short: directories of volumes that were made, and those of
    /// volumes that were destroyed. A volume whose disk is ill holds nothing else up.
    fn restore_volumes(
        &self,
        record: &ResourcesRecord,
        batch: &mut Batch,
    ) -> Result<(), StoreError> {
        let unless_ill = |restored: Result<(), StoreError>| match restored {
            Err(error @ StoreError::Io { .. }) if !error.is_out_of_resources() => {
                tracing::error!(%error, "a volume could not be restored");
                Ok(())
            }
            restored => restored,
        };
        let volumes = holdings::volumes(&record.resources);
        for volume in &volumes {
            unless_ill(self.make_volume(volume, batch))?;
        }
        // One that is there at the place of one whose data was not gone has had no user.
        let (on_own_disks, others): (Vec<_>, Vec<_>) = holdings::volumes(&record.destroyed)
            .into_iter()
            .partition(holdings::is_on_own_disk);
        if !on_own_disks.is_empty() {
            *self.newest_holdings() = Some(record.clone());
            self.removals().add(&self.layout, &on_own_disks);
        }
        for volume in others {
            let path = volume_path(&self.layout, &volume);
            if !volumes
                .iter()
                .any(|kept| volume_path(&self.layout, kept) == path)
            {
                unless_ill(self.move_volume_away(&volume, batch))?;
            }
        }
        Ok(())
    }

    /// The highest folder that holds this run and nothing else: with the usual single run that is its
    /// executor's, so that one rename does for all.
    fn top_of(&self, key: &RunKey) -> PathBuf {
        let run = self.layout.run(key);
        let above = run.ancestors().skip(1).take(2);
        above
            .take_while(|folder| holds_one(folder))
            .last()
            .map_or(run.clone(), Path::to_owned)
    }
}

/// Leaves out what can never be written: tried again, it would hold up all that follows for ever. The core
/// refuses such names before, and a launch under them finds no sandbox.
fn unless_hopeless(written: Result<(), StoreError>) -> Result<(), StoreError> {
    match written {
        Err(error) if error.is_hopeless() => {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            error!(%error, source, "a checkpoint that no file can hold is left out");
            Ok(())
        }
        written => written,
    }
}

fn holds_one(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|entries| entries.take(2).count() == 1)
}

/// Writes on their way to the disk.
#[derive(Debug)]
pub struct Commit<'s, 'w> {
    store: &'s Store,
    /// Those not carried out yet.
    writes: VecDeque<&'w Write>,
    batch: Batch,
    appends: Appends,
    retired: bool,
}

impl Commit<'_, '_> {
    /// Whether the next write replaces the front one before anybody could be told of it: a thousand
    /// operations at once are one record.
    fn is_overtaken(&self) -> bool {
        let front = self.writes.front();
        let destroys_nothing = matches!(
            front, Some(Write::Resources { destroyed, .. }) if destroyed.is_empty()
        );
        destroys_nothing && matches!(self.writes.get(1), Some(Write::Resources { .. }))
    }

    /// Goes on where the last error stopped it.
    pub fn resume(&mut self) -> Result<(), StoreError> {
        while let Some(write) = self.writes.front() {
            if self.is_overtaken() {
                if let Write::Resources { created, .. } = write {
                    self.store.make_volumes(created, &mut self.batch)?;
                }
                self.writes.pop_front();
                continue;
            }
            let store = self.store;
            let written = store.carry_out(write, &mut self.batch, &mut self.appends);
            store.pulse.beat();
            unless_hopeless(written)?;
            self.retired |= match write {
                Write::Retire { .. }
                | Write::RetireTask { .. }
                | Write::RetireFramework { .. }
                | Write::RestoreVolumes { .. } => true,
                Write::Resources { destroyed, .. } => !destroyed.is_empty(),
                Write::Repair { repairs } => repairs
                    .iter()
                    .any(|one| matches!(one, Repair::Retire { .. })),
                Write::Remember { .. }
                | Write::SyncRecovered { .. }
                | Write::ForgetRemoved
                | Write::Drain { .. } => false,
                Write::Agent { .. }
                | Write::Framework { .. }
                | Write::Task { .. }
                | Write::Log { .. }
                | Write::Executor { .. }
                | Write::ExecutorLog { .. } => false,
            };
            self.writes.pop_front();
        }
        self.appends.flush(&mut self.batch)?;
        self.batch.finish()?;
        if self.retired {
            self.store.janitor.wake();
        }
        Ok(())
    }
}

/// Log records on their way, so that neighbours of one log are written at once.
#[derive(Debug, Default)]
struct Appends {
    path: PathBuf,
    bodies: Vec<Vec<u8>>,
}

impl Appends {
    fn push(&mut self, batch: &mut Batch, path: PathBuf, body: Vec<u8>) -> Result<(), StoreError> {
        if path != self.path {
            self.flush(batch)?;
            self.path = path;
        }
        self.bodies.push(body);
        Ok(())
    }

    fn flush(&mut self, batch: &mut Batch) -> Result<(), StoreError> {
        if self.bodies.is_empty() {
            return Ok(());
        }
        unless_hopeless(batch.append(&self.path, &self.bodies))?;
        self.bodies.clear();
        Ok(())
    }
}
