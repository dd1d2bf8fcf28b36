//! Reads the checkpoints back after a restart.
//!
//! Entered through [`read`]. An unreadable record costs the run that it belongs to, which is then set aside in
//! `meta/quarantine`, and never the start. Only a record of a later version stops the agent, because an older agent
//! must not change it. A shortage in the agent or a temporary disk error is not damage: the agent reads the record
//! again. Invariant: reading changes nothing; [`Image::repairs`] lists the repairs.

mod disk;

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use meseta_proto::mesos::v1::{DrainConfig, FrameworkInfo};
use meseta_resources::{AgentId, ContainerId, ExecutorId, FrameworkId, TaskId};
use prost::Message as _;

use super::frame::{self, FrameError};
use super::holdings::{self, Found, ResourcesRecord};
use super::layout::{
    EXECUTOR_INFO, EXECUTOR_LOG, Layout, RunKey, TASK_INFO, TASK_UPDATES, TaskKey,
};
use super::records::{
    AgentRecord, DrainRecord, ExecutorRecord, FrameworkRecord, LogEntry, LogRecord, TaskRecord,
};
use super::repair::{Repair, hole_note, hole_text};
use disk::{Disk, LocalDisk, RetryBudget};

/// The checkpointed state as a whole.
#[derive(Debug, Default)]
pub struct Image {
    /// The boot in which the records were written.
    pub boot_id: Option<String>,
    /// The name of the agent's cgroup folder.
    pub instance: Option<String>,
    /// The identity and the records of the agent.
    pub agent: Option<AgentImage>,
    /// The reservations and volumes made at run time.
    pub holdings: Option<ResourcesRecord>,
    /// The agent's frameworks, by id.
    pub frameworks: Vec<FrameworkImage>,
    /// The records that could not be read.
    pub damages: Vec<Damage>,
    /// The repairs to make before any other write.
    pub repairs: Vec<Repair>,
}

#[derive(Debug)]
pub struct AgentImage {
    pub id: AgentId,
    /// The registered description of the agent, unless the record is damaged.
    pub record: Option<AgentRecord>,
    /// The configuration of the drain, if the agent was draining.
    pub drain: Option<DrainConfig>,
}

/// A framework and its runs.
#[derive(Debug)]
pub struct FrameworkImage {
    pub id: FrameworkId,
    /// The newest description that could be read.
    pub info: FrameworkInfo,
    pub runs: Vec<RunImage>,
}

/// A run of an executor. Its records have lost their copies of the framework, see [`FrameworkImage::info`].
#[derive(Debug)]
pub struct RunImage {
    pub key: RunKey,
    /// The executor of the run; `None` for a command task.
    pub executor: Option<ExecutorImage>,
    pub tasks: Vec<TaskImage>,
}

/// An executor other than the built-in command executor.
#[derive(Debug)]
pub struct ExecutorImage {
    pub record: ExecutorRecord,
    /// The later events of the executor, in order.
    pub log: Vec<LogEntry>,
}

#[derive(Debug)]
pub struct TaskImage {
    pub id: TaskId,
    pub record: TaskRecord,
    /// The later events of the task, in order.
    pub log: Vec<LogEntry>,
    /// Whether further events may be missing: the log is torn or has a hole.
    pub is_log_short: bool,
}

/// A file that could not be read and was set aside.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Damage {
    pub path: PathBuf,
    /// The description of the damage.
    pub why: String,
}

/// The checkpoints are unusable as a whole.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A later version of the agent wrote the file.
    #[error("{path} has version {version}: start the newer agent that wrote it")]
    Newer { path: PathBuf, version: u32 },
    /// The link to the agent is damaged, and more than one agent has records.
    #[error(
        "{link} does not identify the agent, and several agents have records of running tasks \
         ({}): link it to the agent that ran last (ln -sfn AGENT {link}), or remove it to start \
         as a new agent, which ends these tasks",
        agents.join(", ")
    )]
    UnknownAgent { link: PathBuf, agents: Vec<String> },
}

pub fn read(layout: &Layout) -> Result<Image, ReadError> {
    read_from(layout, &LocalDisk)
}

fn read_from(layout: &Layout, disk: &dyn Disk) -> Result<Image, ReadError> {
    let mut reader = Reader {
        layout,
        disk,
        retries: RetryBudget::default(),
        framework: None,
        damages: Vec::new(),
        holes: Vec::new(),
        short_logs: 0,
        repairs: Vec::new(),
    };
    let mut image = Image {
        boot_id: reader.text(&layout.boot_id())?,
        instance: reader.text(&layout.instance())?,
        ..Image::default()
    };
    image.holdings = reader.holdings()?;
    if let Some(id) = reader.latest_agent()? {
        let record = reader.message::<AgentRecord>(&layout.agent_info(&id))?;
        let drain = reader.message_or_aside::<DrainRecord>(&layout.drain(&id))?;
        image.frameworks = reader.frameworks(&id)?;
        image.agent = Some(AgentImage {
            id,
            record,
            drain: drain.map(|record| record.config),
        });
    }
    image.damages = reader.damages;
    image.damages.append(&mut reader.holes);
    image.repairs = reader.repairs;
    Ok(image)
}

struct Reader<'a> {
    layout: &'a Layout,
    disk: &'a dyn Disk,
    retries: RetryBudget,
    /// The framework of the current runs, as far as it is known.
    framework: Option<FrameworkInfo>,
    damages: Vec<Damage>,
    /// Damages that cost only a single record.
    holes: Vec<Damage>,
    /// The number of logs so far that are torn or have a hole.
    short_logs: usize,
    repairs: Vec<Repair>,
}

impl Reader<'_> {
    /// Reads the record of reservations and volumes, or its copy. Sets a damaged file aside. Without either file the
    /// directories of the volumes stay, but no record names them.
    fn holdings(&mut self) -> Result<Option<ResourcesRecord>, ReadError> {
        let path = self.layout.holdings();
        let record = self.record_of_holdings(&path)?;
        let copy = self.record_of_holdings(&self.layout.holdings_copy())?;
        let chosen = holdings::choose(record, copy);
        if let Some(why) = chosen.loss {
            self.note(&path, why);
        }
        if let Some(record) = chosen.record.clone().filter(|_| chosen.is_rewritten) {
            let record = Box::new(record);
            self.repairs.push(Repair::WriteHoldings { record });
        }
        Ok(chosen.record)
    }

    fn record_of_holdings(&mut self, path: &Path) -> Result<Found, ReadError> {
        let damages_before = self.damages.len();
        let record = self.message_or_aside(path)?;
        Ok(match record {
            Some(record) => Found::Record(record),
            None if self.damages.len() > damages_before => Found::Damaged,
            None => Found::Missing,
        })
    }

    /// Reads a record that belongs to no run. A damaged record is set aside.
    fn message_or_aside<M: prost::Message + Default>(
        &mut self,
        path: &Path,
    ) -> Result<Option<M>, ReadError> {
        let damages_before = self.damages.len();
        let record = self.message(path)?;
        if self.damages.len() > damages_before {
            self.set_aside(path);
        }
        Ok(record)
    }

    /// Reads the link to the latest agent. Without the link there is no former agent: an operator may have removed it.
    /// A damaged link costs no task, since the records identify the agent.
    fn latest_agent(&mut self) -> Result<Option<AgentId>, ReadError> {
        let link = self.layout.latest_agent();
        let target = match self.retries.read(self.disk, || self.disk.read_link(&link)) {
            Ok(target) => target.to_str().map(str::to_owned),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                self.note(&link, &format!("it cannot be read: {error}"));
                return self.agent_with_records();
            }
        };
        let id = target.and_then(|name| AgentId::new(&name).ok());
        match id.filter(|id| self.layout.agent(id).is_dir()) {
            Some(id) => Ok(Some(id)),
            None => {
                self.note(&link, "it does not point to an agent");
                self.agent_with_records()
            }
        }
    }

    /// Returns the last agent if the link is damaged: the only agent, the only agent with runs, or the only agent with
    /// a record. Former agents without anything to lose do not count.
    fn agent_with_records(&mut self) -> Result<Option<AgentId>, ReadError> {
        let names = self.list(&self.layout.agents());
        let ids: Vec<_> = names
            .iter()
            .filter_map(|name| AgentId::new(name).ok())
            .collect();
        let mut ids: Vec<_> = ids
            .into_iter()
            .filter(|id| id.as_str() != "latest" && !id.as_str().starts_with('.'))
            .filter(|id| self.layout.agent(id).is_dir())
            .collect();
        for has in [Self::has_runs, Self::has_record] {
            if ids.len() > 1 && ids.iter().any(|id| has(self.layout, id)) {
                ids.retain(|id| has(self.layout, id));
            }
        }
        match <[AgentId; 1]>::try_from(ids) {
            Ok([only]) => Ok(Some(only)),
            Err(none) if none.is_empty() => Ok(None),
            Err(several) => Err(ReadError::UnknownAgent {
                link: self.layout.latest_agent(),
                agents: several.iter().map(ToString::to_string).collect(),
            }),
        }
    }

    fn has_runs(layout: &Layout, agent: &AgentId) -> bool {
        let frameworks = std::fs::read_dir(layout.agent(agent).join("frameworks"));
        frameworks.is_ok_and(|mut entries| entries.next().is_some())
    }

    fn has_record(layout: &Layout, agent: &AgentId) -> bool {
        let record = std::fs::symlink_metadata(layout.agent_info(agent));
        record.is_ok_and(|record| record.is_file() && record.len() > 0)
    }

    fn frameworks(&mut self, agent: &AgentId) -> Result<Vec<FrameworkImage>, ReadError> {
        let mut frameworks = Vec::new();
        for name in self.list(&self.layout.agent(agent).join("frameworks")) {
            let Ok(id) = FrameworkId::new(&name) else {
                self.note(Path::new(&name), "it is not a framework id");
                continue;
            };
            self.framework = self
                .message::<FrameworkRecord>(&self.layout.framework_info(agent, &id))?
                .map(|record| record.info);
            let runs = self.runs(agent, &id)?;
            let is_empty = runs.is_empty();
            let unnamed = || (!is_empty).then(FrameworkInfo::default);
            if let Some(info) = self.framework.take().or_else(unnamed) {
                frameworks.push(FrameworkImage { id, info, runs });
            }
        }
        Ok(frameworks)
    }

    /// Keeps the framework that a record contains; the image holds it once, although many records may contain it.
    fn keep_framework(&mut self, told: &mut FrameworkInfo) {
        let told = std::mem::take(told);
        if self.framework.is_none() && told != FrameworkInfo::default() {
            self.framework = Some(told);
        }
    }

    fn runs(
        &mut self,
        agent: &AgentId,
        framework: &FrameworkId,
    ) -> Result<Vec<RunImage>, ReadError> {
        let mut runs = Vec::new();
        let executors = self.layout.framework(agent, framework).join("executors");
        for executor in self.list(&executors) {
            for container in self.list(&executors.join(&executor).join("runs")) {
                let ids = ExecutorId::new(&executor)
                    .ok()
                    .zip(ContainerId::new(&container).ok());
                let Some((executor, container)) = ids else {
                    self.note(&executors.join(&executor), "it is not a run of an executor");
                    continue;
                };
                let key = RunKey {
                    agent: agent.clone(),
                    framework: framework.clone(),
                    executor,
                    container,
                };
                runs.extend(self.run(key)?);
            }
        }
        Ok(runs)
    }

    /// Reads a run. `None` if nothing of it had become durable, or if it is damaged.
    fn run(&mut self, key: RunKey) -> Result<Option<RunImage>, ReadError> {
        let folder = self.layout.run(&key);
        let damages_before = self.damages.len();
        let executor = self.executor(&folder)?;
        let mut tasks = Vec::new();
        for name in self.list(&folder.join("tasks")) {
            let Ok(id) = TaskId::new(&name) else {
                self.note(&folder.join("tasks").join(&name), "it is not a task id");
                continue;
            };
            let task = TaskKey {
                run: key.clone(),
                task: id.clone(),
            };
            let short_before = self.short_logs;
            if let Some((record, log)) = self.task(&task)? {
                tasks.push(TaskImage {
                    id,
                    record,
                    log,
                    is_log_short: self.short_logs != short_before,
                });
            }
        }
        // The record of the executor is written before the records of its tasks.
        let has_executor = |task: &TaskImage| {
            task.record.info.executor.is_some() || task.record.nested_container.is_some()
        };
        if executor.is_none()
            && self.damages.len() == damages_before
            && tasks.iter().any(has_executor)
        {
            self.note(
                &folder.join(EXECUTOR_INFO),
                "it is missing, but its tasks exist",
            );
        }
        if self.damages.len() > damages_before {
            self.quarantine(&folder, &key);
            return Ok(None);
        }
        if tasks.is_empty() && executor.is_none() {
            // The agent ended before anything of the run was durable.
            let key = Box::new(key);
            self.repairs.push(Repair::Retire { key });
            return Ok(None);
        }
        Ok(Some(RunImage {
            key,
            executor,
            tasks,
        }))
    }

    fn executor(&mut self, folder: &Path) -> Result<Option<ExecutorImage>, ReadError> {
        let (path, log) = (folder.join(EXECUTOR_INFO), folder.join(EXECUTOR_LOG));
        let Some(mut record) = self.record_of_log::<ExecutorRecord>(&path, &log)? else {
            return Ok(None);
        };
        self.keep_framework(&mut record.framework);
        let log = self.log(&log)?;
        Ok(log.map(|log| ExecutorImage { record, log }))
    }

    /// Reads a task. `None` if its intent never became durable, so that nothing was started, or if the task is damaged,
    /// which is noted.
    fn task(&mut self, key: &TaskKey) -> Result<Option<(TaskRecord, Vec<LogEntry>)>, ReadError> {
        let folder = self.layout.task(key);
        let (path, log) = (folder.join(TASK_INFO), folder.join(TASK_UPDATES));
        let Some(mut record) = self.record_of_log::<TaskRecord>(&path, &log)? else {
            return Ok(None);
        };
        self.keep_framework(&mut record.framework);
        let log = self.log(&log)?;
        Ok(log.map(|log| (record, log)))
    }

    /// Reads a record that a log belongs to. The record gets its name before the log. A record missing beside its log
    /// is therefore damage, and its task or executor may still run.
    fn record_of_log<M: prost::Message + Default>(
        &mut self,
        path: &Path,
        log: &Path,
    ) -> Result<Option<M>, ReadError> {
        let damages_before = self.damages.len();
        let record = self.message(path)?;
        let is_missing = record.is_none() && self.damages.len() == damages_before;
        if is_missing && self.bytes(log).is_some() {
            self.note(path, "it is missing, but its log exists");
        }
        Ok(record)
    }

    fn log(&mut self, path: &Path) -> Result<Option<Vec<LogEntry>>, ReadError> {
        let Some(bytes) = self.bytes(path) else {
            return Ok(Some(Vec::new()));
        };
        let contents = match frame::decode_log(&bytes) {
            Ok(contents) => contents,
            Err(error) => return self.damaged(path, error).map(|()| None),
        };
        let tail = bytes.get(contents.valid_bytes..).unwrap_or_default();
        if !tail.is_empty() {
            tracing::warn!(
                path = %path.display(),
                torn_bytes = tail.len(),
                "cut off the torn tail of a log of updates"
            );
            self.short_logs += 1;
            self.repairs.push(Repair::CutTail {
                path: path.to_owned(),
                valid_bytes: contents.valid_bytes,
                tail: tail.to_vec(),
            });
        }
        if contents.hole.is_some() {
            self.short_logs += 1;
        }
        // Each hole is reported once, not at each start.
        if let Some(hole) = &contents.hole
            && !self.is_known(path, &hole.bytes)
        {
            let damage = Damage {
                path: path.to_owned(),
                why: format!(
                    "its bytes {} to {} are not a record; the agent reads the records before and after them",
                    hole.bytes.start, hole.bytes.end
                ),
            };
            tracing::error!(path = %path.display(), why = damage.why, "damaged checkpoint");
            self.holes.push(damage);
            self.repairs.push(Repair::NoteHole {
                path: path.to_owned(),
                hole: hole.bytes.clone(),
            });
        }
        let records_before = contents.hole.map_or(usize::MAX, |hole| hole.records_before);
        let mut entries = Vec::with_capacity(contents.bodies.len());
        for (at, body) in contents.bodies.into_iter().enumerate() {
            match LogRecord::decode(body) {
                // Behind a hole the bytes might be part of data that others wrote. The machine also shows which processes
                // run.
                Ok(LogRecord {
                    entry: Some(LogEntry::Started(_)),
                }) if at >= records_before => {}
                Ok(LogRecord { entry: Some(entry) }) => entries.push(entry),
                // Entries of a kind that this version does not know are ignored.
                Ok(LogRecord { entry: None }) => {}
                Err(error) => {
                    self.note(path, &format!("it cannot be decoded: {error}"));
                    return Ok(None);
                }
            }
        }
        Ok(Some(entries))
    }

    /// Returns whether an earlier start has reported this hole of a log.
    fn is_known(&mut self, log: &Path, hole: &Range<usize>) -> bool {
        let note = hole_note(log);
        let read = self.retries.read(self.disk, || self.disk.read(&note));
        let text = hole_text(hole);
        read.is_ok_and(|bytes| frame::decode_file(&bytes) == Ok(text.as_bytes()))
    }

    fn text(&mut self, path: &Path) -> Result<Option<String>, ReadError> {
        let Some(bytes) = self.bytes(path) else {
            return Ok(None);
        };
        match frame::decode_file(&bytes) {
            Ok(body) => Ok(str::from_utf8(body).ok().map(str::to_owned)),
            Err(error) => self.damaged(path, error).map(|()| None),
        }
    }

    fn message<M: prost::Message + Default>(
        &mut self,
        path: &Path,
    ) -> Result<Option<M>, ReadError> {
        let Some(bytes) = self.bytes(path) else {
            return Ok(None);
        };
        match frame::decode_file(&bytes).map(M::decode) {
            Ok(Ok(message)) => Ok(Some(message)),
            Ok(Err(error)) => {
                self.note(path, &format!("it cannot be decoded: {error}"));
                Ok(None)
            }
            Err(error) => self.damaged(path, error).map(|()| None),
        }
    }

    /// Returns a file's bytes. `None` if there is no such file, or if it is unreadable, which is noted.
    fn bytes(&mut self, path: &Path) -> Option<Vec<u8>> {
        let read = self.retries.read(self.disk, || self.disk.read(path));
        match read {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                self.note(path, &format!("it cannot be read: {error}"));
                None
            }
        }
    }

    fn damaged(&mut self, path: &Path, error: FrameError) -> Result<(), ReadError> {
        if let FrameError::Newer(version) = error {
            let path = path.to_owned();
            return Err(ReadError::Newer { path, version });
        }
        self.note(path, &error.to_string());
        Ok(())
    }

    fn note(&mut self, path: &Path, why: &str) {
        tracing::error!(path = %path.display(), why, "damaged checkpoint");
        self.damages.push(Damage {
            path: path.to_owned(),
            why: why.to_owned(),
        });
    }

    fn quarantine(&mut self, folder: &Path, key: &RunKey) {
        let to = self.layout.quarantine().join(key.container.as_str());
        // The repairs of the damaged folder are dropped with it.
        self.repairs.retain(|repair| {
            !matches!(
                repair,
                Repair::CutTail { path, .. }
                | Repair::NoteHole { path, .. }
                | Repair::SetAside { from: path, .. } if path.starts_with(folder)
            )
        });
        self.repairs.push(Repair::SetAside {
            from: folder.to_owned(),
            to,
        });
    }

    /// Sets aside an entry that is not a run.
    fn set_aside(&mut self, path: &Path) {
        use std::os::unix::ffi::OsStrExt as _;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let sum = crc32fast::hash(path.as_os_str().as_bytes());
        self.repairs.push(Repair::SetAside {
            from: path.to_owned(),
            to: self.layout.quarantine().join(format!("{name}-{sum:08x}")),
        });
    }

    /// Returns the names of the folders in a folder, in order. Empty if the folder is missing, or is not a folder,
    /// which is noted. Files are leftovers of writes.
    fn list(&mut self, folder: &Path) -> Vec<String> {
        match self.retries.read(self.disk, || self.disk.list(folder)) {
            Ok(mut names) => {
                names.sort_unstable();
                names
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                self.note(folder, &format!("it cannot be listed: {error}"));
                let found = std::fs::symlink_metadata(folder);
                if found.is_ok_and(|found| !found.is_dir()) {
                    self.set_aside(folder);
                }
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
mod tests;
