//! The checkpoint store: carries the core's writes to disk, in order and in batches.
//!
//! [`Store::commit`] is the only entry after recovery; when it returns, all given writes are durable. Blocking; owned
//! by one writer thread. Invariant: after any event [`super::read`] finds the committed state again.

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

/// A change of the durable state.
#[derive(Clone, Debug)]
pub enum Write {
    /// The identity of the agent; also makes this agent the latest.
    Agent {
        agent: AgentId,
        /// The registered description of the agent.
        record: Box<AgentRecord>,
    },
    /// The boot and the name of this agent's cgroup folder; written before any launch in it.
    Remember {
        /// The running boot, so that records of an earlier boot count as history.
        boot_id: String,
        instance: String,
    },
    /// Syncs the records read at the start, before the agent sends any newer state: a killed agent may have written
    /// them without a sync.
    SyncRecovered {
        agent: AgentId,
        /// The tasks whose updates the agent must send again.
        tasks: Vec<Arc<TaskKey>>,
    },
    /// Repairs the damage found at the start.
    Repair { repairs: Vec<Repair> },
    /// Completes the creation and destruction of volumes after a crash.
    RestoreVolumes {
        /// The record of the volumes on disk.
        record: Box<ResourcesRecord>,
    },
    /// The configuration of a drain, or its end.
    Drain {
        agent: AgentId,
        /// The configuration from the master; `None` at the end of the drain.
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
    /// The intent to run an executor other than the built-in command executor.
    Executor {
        /// The run of the executor.
        key: Arc<RunKey>,
        record: Box<ExecutorRecord>,
    },
    /// An event of such an executor.
    ExecutorLog {
        /// The run of the executor.
        key: Arc<RunKey>,
        entry: Box<LogEntry>,
    },
    /// An event of a task.
    Log {
        key: Arc<TaskKey>,
        entry: Box<LogEntry>,
    },
    /// The reservations and volumes made at run time, and operations with unacknowledged results. Replaces the record
    /// written before.
    Resources {
        holdings: Arc<Holdings>,
        /// Volumes that are new in the record.
        created: Vec<Resource>,
        /// Volumes that are gone from the record.
        destroyed: Vec<Resource>,
    },
    /// The data of destroyed volumes on disks of their own is gone: the record stops naming them.
    ForgetRemoved,
    /// A run is over and all its updates are acknowledged: its records are no longer needed.
    Retire { key: RunKey },
    /// A task of a running executor has ended, its updates are acknowledged, and the API no longer shows it.
    RetireTask { key: Arc<TaskKey> },
    /// A framework without runs on this agent.
    RetireFramework {
        agent: AgentId,
        framework: FrameworkId,
    },
}

impl Write {
    /// The approximate memory of the write while it waits for the disk.
    pub fn bytes(&self) -> usize {
        /// The memory of the keys and the entry itself.
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
            // The rest is shared with the core.
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

/// The store of the checkpoints, owned by the writer.
#[derive(Debug)]
pub struct Store {
    layout: Layout,
    janitor: Janitor,
    removal: RemovalThreads,
    makings: Makings,
    /// The number of the newest record of reservations and volumes.
    holdings_number: AtomicU64,
    /// That record, while data of its destroyed volumes remains to be removed.
    holdings: Mutex<Option<ResourcesRecord>>,
    /// Notified of each answer of the disk.
    pulse: DiskPulse,
}

impl Store {
    /// Opens the store of a work directory without writing anything.
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

    /// Continues from a read image: later records get higher numbers.
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

    /// The pending work at the places of volumes on disks of their own.
    pub(crate) fn volume_places(&self) -> VolumePlaces {
        VolumePlaces {
            removals: self.removals().clone(),
            makings: self.makings.clone(),
        }
    }

    /// The heartbeat of the disk during commits.
    pub(super) fn pulse(&self) -> &DiskPulse {
        &self.pulse
    }

    /// The paths of the work directory.
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

    /// Begins a commit that can be retried after an error. A retry skips the finished writes, since a write may undo a
    /// later write of the batch (a log entry revives a retired run).
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
                let body = LogRecord::from_entry((**entry).clone()).encode_to_vec();
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
                let body = LogRecord::from_entry((**entry).clone()).encode_to_vec();
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

    /// Syncs the folders of recovered records and the logs of tasks with updates to send. The records themselves were
    /// synced before they got their names.
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
        // The data is removed only after no durable record names it.
        batch.finish()?;
        let is_removing = !removing.waiting.is_empty() || !on_own_disks.is_empty();
        *self.newest_holdings() = is_removing.then_some(record);
        self.removals().forget(&removing.done);
        self.remove_from_own_disks(&on_own_disks);
        others
            .iter()
            .try_for_each(|volume| unless_hopeless(self.move_volume_away(volume, batch)))
    }

    /// The number of the next record. A record written again after a failure gets a higher number, which is harmless.
    fn next_number(&self) -> u64 {
        1 + self.holdings_number.fetch_add(1, Ordering::Relaxed)
    }

    fn newest_holdings(&self) -> MutexGuard<'_, Option<ResourcesRecord>> {
        self.holdings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the destroyed volumes from the record whose data on disks of their own is gone.
    fn forget_removed(&self, batch: &mut Batch) -> Result<(), StoreError> {
        let removing = self.removals().now();
        let mut newest = self.newest_holdings();
        let Some(record) = newest.as_mut().filter(|_| !removing.done.is_empty()) else {
            return Ok(());
        };
        record.destroyed = holdings::messages(&removing.waiting);
        record.number = self.next_number();
        holdings::write(&self.layout, record, batch)?;
        // The record must be durable first: afterwards no crash can cause the removal of data that a new volume's user
        // writes there.
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

    /// Completes creations and destructions of volume directories after a crash. A volume on a failing disk delays
    /// nothing else.
    fn restore_volumes(
        &self,
        record: &ResourcesRecord,
        batch: &mut Batch,
    ) -> Result<(), StoreError> {
        let unless_ill = |restored: Result<(), StoreError>| match restored {
            Err(error @ StoreError::Io { .. }) if !error.is_out_of_resources() => {
                tracing::error!(%error, "failed to restore a volume");
                Ok(())
            }
            restored => restored,
        };
        let volumes = holdings::volumes(&record.resources);
        for volume in &volumes {
            unless_ill(self.make_volume(volume, batch))?;
        }
        // A new volume at the place of a volume with remaining data has had no user.
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

    /// The highest folder that holds this run and nothing else. With the usual single run that is the folder of its
    /// executor, so that one rename removes all.
    fn top_of(&self, key: &RunKey) -> PathBuf {
        let run = self.layout.run(key);
        let above = run.ancestors().skip(1).take(2);
        above
            .take_while(|folder| holds_one(folder))
            .last()
            .map_or(run.clone(), Path::to_owned)
    }
}

/// Skips a write that can never succeed: its retries would delay all later writes for ever. The core refuses such names
/// earlier, and a launch under them finds no sandbox.
fn unless_hopeless(written: Result<(), StoreError>) -> Result<(), StoreError> {
    match written {
        Err(error) if error.is_hopeless() => {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            error!(%error, source, "left out a checkpoint that is too large for a file");
            Ok(())
        }
        written => written,
    }
}

fn holds_one(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|entries| entries.take(2).count() == 1)
}

/// A batch of writes in progress.
#[derive(Debug)]
pub struct Commit<'s, 'w> {
    store: &'s Store,
    /// The writes not carried out yet.
    writes: VecDeque<&'w Write>,
    batch: Batch,
    appends: Appends,
    retired: bool,
}

impl Commit<'_, '_> {
    /// Whether the next write replaces the front one before anybody could learn of it: a thousand simultaneous
    /// operations become one record.
    fn is_overtaken(&self) -> bool {
        let front = self.writes.front();
        let destroys_nothing = matches!(
            front, Some(Write::Resources { destroyed, .. }) if destroyed.is_empty()
        );
        destroys_nothing && matches!(self.writes.get(1), Some(Write::Resources { .. }))
    }

    /// Continues after the last error.
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

/// Pending log records, so that consecutive records of one log are written at once.
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
