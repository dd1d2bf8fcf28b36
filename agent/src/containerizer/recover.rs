//! Recovery after a start: compares the checkpoints with the containers on the machine.
//!
//! A container with its recorded supervisor still running is adopted. Anything else in this agent's cgroups is
//! destroyed, and if it has a checkpoint, the core learns of its end. Invariant: processes are identified by boot,
//! start time and group, never by pid alone, and nothing outside this agent's instance is inspected.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use meseta_isolators::{
    BootId, ContainerName, Demand, ProcessIdentity, Recovered, is_shortage, note_repeated,
};
use meseta_proto::mesos::v1 as pb;
use meseta_resources::ContainerId;
use tracing::{info, warn};

use super::container_table::ContainerTable;
use super::inspection_limits::InspectionLimits;
use super::state::{Applied, LiveContainer};
use super::supervision::AGAIN_MIN;
use super::{Containerizer, limit_drift, limitation_file};
use crate::checkpoint::{Image, Limitation, LogEntry, RunImage};
use crate::core::{Found, Recovery, demand_of_run, demand_of_task, is_terminal};

/// The time that the start waits for the destruction of orphaned containers.
const ORPHANS_TIMEOUT: Duration = Duration::from_secs(5);

/// The action for a container of an earlier agent.
#[derive(Debug)]
pub(crate) enum Adoption {
    /// The container runs: watch it, or end it because of the limitation.
    Alive(LiveContainer, Option<Limitation>),
    /// The container has ended: destroy the rest and report the exit status.
    Ended(ContainerId, Demand),
    /// An orphan: destroy it.
    Orphan(ContainerName, Option<ProcessIdentity>),
}

/// Recovered containers in the table, so that the core's actions find them. The core gets no reports of them yet, since
/// it does not know them before it has recovered.
#[derive(Debug)]
#[must_use = "nobody watches them"]
pub(crate) struct Adopted {
    alive: Vec<(Arc<LiveContainer>, Option<Limitation>)>,
    ended: Vec<(ContainerId, Demand)>,
}

impl Adopted {
    /// Enters recovered containers into the table before the core learns of them: otherwise an immediate resize or kill
    /// from the core would find nothing, and be lost. Returns the orphans.
    pub(crate) fn enter(
        adoptions: Vec<Adoption>,
        containerizer: &Containerizer,
    ) -> (Self, Vec<Orphan>) {
        Self::enter_into(&containerizer.inner.table, adoptions)
    }

    fn enter_into(table: &ContainerTable, adoptions: Vec<Adoption>) -> (Self, Vec<Orphan>) {
        let (mut alive, mut ended, mut orphans) = (Vec::new(), Vec::new(), Vec::new());
        for adoption in adoptions {
            match adoption {
                Adoption::Alive(live, limitation) => {
                    let live = Arc::new(live);
                    table.start(live.clone());
                    alive.push((live, limitation));
                }
                Adoption::Ended(container, demand) => {
                    table.begin_end(&container);
                    ended.push((container, demand));
                }
                Adoption::Orphan(name, supervisor) => orphans.push((name, supervisor)),
            }
        }
        (Self { alive, ended }, orphans)
    }

    /// Watches the running containers, and reports the endings of the others. Called once the core has recovered.
    pub(crate) fn attend(self, containerizer: &Containerizer) {
        for (live, limitation) in self.alive {
            containerizer.attend(live, limitation);
        }
        for (container, demand) in self.ended {
            let this = containerizer.clone();
            tokio::spawn(async move { this.end(container, None, demand).await });
        }
    }
}

/// A container without a checkpoint, and its supervisor.
pub(crate) type Orphan = (ContainerName, Option<ProcessIdentity>);

impl Containerizer {
    /// Watches a container of an earlier agent, or ends it if that agent had found it beyond a limit.
    fn attend(&self, live: Arc<LiveContainer>, limitation: Option<Limitation>) {
        let container = live.container.clone();
        if let Some(limitation) = limitation {
            self.limit(&container, limitation);
        }
        // A container that waited to shrink before the restart continues to wait.
        let name = ContainerName::new(container.as_str()).ok();
        if let Some(name) = name.filter(|name| name.nesting().is_none()) {
            drop(self.shrink(container, name, live.demand));
        }
        let this = self.clone();
        tokio::spawn(async move { this.watch(live).await });
    }
}

/// Destroys the orphans before the agent registers: the master would offer their resources again. An orphan that cannot
/// die does not delay the others.
pub(crate) async fn remove_orphans(orphans: Vec<Orphan>, containerizer: &Containerizer) {
    let removals = orphans
        .into_iter()
        .map(|(name, supervisor)| containerizer.remove_orphan(name, supervisor));
    let all = async {
        for removal in removals.collect::<Vec<_>>() {
            let _ = removal.await;
        }
    };
    if tokio::time::timeout(ORPHANS_TIMEOUT, all).await.is_err() {
        warn!("orphaned containers still exist; continuing without them");
    }
}

/// Finds every container. The actions for them come after the core has recovered. Fails if the containers cannot be
/// listed: otherwise orphans would run on.
pub(crate) fn recover(
    image: Image,
    boot: &BootId,
    containerizer: &Containerizer,
) -> io::Result<(Recovery, Vec<Adoption>)> {
    let mut on_machine = machine_state(containerizer)?;
    let is_any_alive = on_machine.values().any(|found| found.supervisor.is_some());
    let rebooted = was_rebooted(&image, boot, is_any_alive);
    if rebooted {
        info!("the machine was rebooted; earlier tasks have ended");
    }
    let mut containers = BTreeMap::new();
    let mut adoptions = Vec::new();
    for run in image
        .frameworks
        .iter()
        .flat_map(|framework| &framework.runs)
    {
        for expected in expected(run) {
            let found = on_machine.remove(expected.container.as_str());
            let settled = settle(
                run,
                &expected,
                found,
                rebooted,
                containerizer,
                &mut adoptions,
            );
            if let Some(found) = settled {
                containers.insert(expected.container, found);
            }
        }
    }
    for (name, orphan) in on_machine {
        info!(container_id = name, "destroying an orphaned container");
        adoptions.push(Adoption::Orphan(orphan.name, orphan.supervisor));
    }
    let recovery = Recovery {
        image,
        rebooted,
        containers,
    };
    Ok((recovery, adoptions))
}

/// Whether the machine was booted since the checkpoints were written, judged by the checkpoints. A record of another
/// boot may be an old record that a disk restored; a task begun in this boot, or a running supervisor, proves that.
fn was_rebooted(image: &Image, boot: &BootId, is_any_alive: bool) -> bool {
    let is_other = |before: &str| before != boot.as_str();
    let mut runs = image.frameworks.iter().flat_map(|one| &one.runs);
    let began_now = |log: &[LogEntry]| started(log).is_some_and(|began| began.boot_id == *boot);
    image.boot_id.as_deref().is_some_and(is_other)
        && !is_any_alive
        && !runs.any(|run| {
            run.executor.iter().any(|executor| began_now(&executor.log))
                || run.tasks.iter().any(|task| began_now(&task.log))
        })
}

fn machine_state(containerizer: &Containerizer) -> io::Result<BTreeMap<String, Recovered>> {
    let found = when_possible(|| containerizer.containers().recover())?;
    let named = found
        .into_iter()
        .map(|found| (found.name.as_str().to_owned(), found));
    Ok(named.collect())
}

/// Returns the result of `read`, and retries while the agent lacks descriptors or memory: a failed look does not mean
/// that something is gone.
fn when_possible<T>(read: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let mut has_logged = false;
    loop {
        match read() {
            Err(error) if is_shortage(&error) => {
                note_repeated();
                if !std::mem::replace(&mut has_logged, true) {
                    warn!(%error, "failed to read the state of earlier containers; retrying");
                }
                std::thread::sleep(AGAIN_MIN);
            }
            attempt => return attempt,
        }
    }
}

fn settle(
    run: &RunImage,
    expected: &ExpectedContainer,
    found: Option<Recovered>,
    rebooted: bool,
    containerizer: &Containerizer,
    adoptions: &mut Vec<Adoption>,
) -> Option<Found> {
    let over = expected.over;
    let container = expected.container.clone();
    if over || rebooted {
        if let Some(found) = found {
            adoptions.push(Adoption::Orphan(found.name, found.supervisor));
        }
        return None;
    }
    let recorded = expected.recorded.clone();
    if found.is_none() && recorded.is_none() {
        return None;
    }
    let on_record = found.and_then(|found| found.supervisor);
    let demand = expected.demand;
    match alive(&container, on_record, recorded, containerizer) {
        Some(supervisor) => {
            restore_note(&container, &supervisor, containerizer);
            let live = LiveContainer {
                run: Arc::new(run.key.clone()),
                container: container.clone(),
                supervisor: supervisor.clone(),
                demand,
                own_limits: expected.own_limits,
                inspection_limits: inspection_limits_of(run, expected, containerizer),
                volumes: None,
                change_lock: Applied::at_first(demand, &[]),
            };
            if live.own_limits {
                limit_drift::restore(containerizer, &live);
            }
            let name = ContainerName::new(container.as_str()).ok();
            let limitation = name.and_then(|name| {
                let containers = containerizer.containers();
                when_possible(|| limitation_file::kept(containers, &name)).ok()?
            });
            adoptions.push(Adoption::Alive(live, limitation));
            Some(Found::Alive(supervisor))
        }
        None => {
            adoptions.push(Adoption::Ended(container, demand));
            Some(Found::Ending)
        }
    }
}

/// The supervisor, if it runs. Its identity comes from the runtime folder, or from the checkpoint if that folder was
/// wiped.
fn alive(
    container: &ContainerId,
    on_record: Option<ProcessIdentity>,
    checkpointed: Option<ProcessIdentity>,
    containerizer: &Containerizer,
) -> Option<ProcessIdentity> {
    match (on_record, checkpointed) {
        (Some(found), None) => Some(found),
        (Some(found), Some(recorded)) if found == recorded => Some(found),
        (found, Some(recorded)) => {
            if found.is_some() {
                warn!(container_id = %container, "a supervisor differs from the recorded \
                    supervisor");
            }
            let watched = containerizer.containers().watch(&recorded);
            // A process that cannot be inspected does not count as dead.
            (!matches!(watched, Ok(None))).then_some(recorded)
        }
        (None, None) => None,
    }
}

/// Writes the identity of the supervisor to the container's folder if it is missing there, so that both places have it
/// again.
fn restore_note(
    container: &ContainerId,
    supervisor: &ProcessIdentity,
    containerizer: &Containerizer,
) {
    let Ok(name) = ContainerName::new(container.as_str()) else {
        return;
    };
    let containers = containerizer.containers();
    let noted = match containers.is_noted(&name, supervisor) {
        Ok(true) => return,
        Ok(false) => containers.note_supervisor(&name, supervisor),
        Err(error) => Err(error),
    };
    match noted {
        Ok(true) => info!(container_id = %container, "recorded the supervisor of a container \
            again"),
        Ok(false) => {}
        Err(error) => {
            warn!(container_id = %container, %error, "failed to record the supervisor of a \
                container again");
        }
    }
}

/// A container that may be on the machine.
#[derive(Debug)]
struct ExpectedContainer {
    container: ContainerId,
    /// The checkpointed identity of the supervisor.
    recorded: Option<ProcessIdentity>,
    /// Whether the terminal updates of its tasks were made.
    over: bool,
    demand: Demand,
    /// Whether the container has its own limits; a nested container may share its parent's.
    own_limits: bool,
}

/// The containers of a run: first the nested containers, then the run's own.
fn expected(run: &RunImage) -> Vec<ExpectedContainer> {
    let mut all = Vec::new();
    for task in &run.tasks {
        let nested = task.record.nested_container.as_deref();
        if let Some(container) = nested.and_then(|id| ContainerId::new(id).ok()) {
            all.push(ExpectedContainer {
                container,
                recorded: started(&task.log),
                over: is_over(&task.log),
                demand: demand_of_task(&task.record.info),
                own_limits: has_own_limits(&task.record.info),
            });
        }
    }
    let recorded = match &run.executor {
        Some(executor) => started(&executor.log),
        None => run.tasks.iter().find_map(|task| started(&task.log)),
    };
    all.push(ExpectedContainer {
        container: run.key.container.clone(),
        recorded,
        // An executor may live longer than its tasks.
        over: run.executor.is_none() && run.tasks.iter().all(|task| is_over(&task.log)),
        demand: demand_of_run(run),
        own_limits: true,
    });
    all
}

/// Whether a task of a group has its own cgroups (`share_cgroups`).
pub(super) fn has_own_limits(task: &pb::TaskInfo) -> bool {
    let container = task.container.as_ref();
    let linux = container.and_then(|container| container.linux_info.as_ref());
    linux.is_some_and(|linux| !linux.share_cgroups())
}

/// The inspection limits of a run's own container; nested containers have none.
fn inspection_limits_of(
    run: &RunImage,
    expected: &ExpectedContainer,
    containerizer: &Containerizer,
) -> InspectionLimits {
    if expected.container != run.key.container {
        return InspectionLimits::default();
    }
    let own = run.executor.iter();
    let own = own.flat_map(|executor| &executor.record.info.resources);
    let live = run.tasks.iter().filter(|task| !is_over(&task.log));
    let of_tasks = live.flat_map(|task| &task.record.info.resources);
    let messages: Vec<_> = own.chain(of_tasks).cloned().collect();
    InspectionLimits::of_messages(&messages, containerizer.layout())
}

/// Whether the log contains a terminal update.
fn is_over(log: &[LogEntry]) -> bool {
    log.iter()
        .any(|entry| matches!(entry, LogEntry::Update(status) if is_terminal(status.state)))
}

fn started(log: &[LogEntry]) -> Option<ProcessIdentity> {
    log.iter().rev().find_map(|entry| match entry {
        LogEntry::Started(started) => ProcessIdentity::from_text(&started.supervisor),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use meseta_resources::{AgentId, ExecutorId, FrameworkId, TaskId};

    use super::*;
    use crate::checkpoint::{FrameworkImage, RunKey, Started, TaskImage, TaskRecord};
    use crate::containerizer::container_table::Destroyable;

    fn key() -> RunKey {
        RunKey {
            agent: AgentId::new("S0").expect("an id"),
            framework: FrameworkId::new("F").expect("an id"),
            executor: ExecutorId::new("t").expect("an id"),
            container: ContainerId::new("c").expect("an id"),
        }
    }

    fn image(recorded: Option<&str>, began: &str) -> Image {
        let key = key();
        let task = TaskImage {
            id: TaskId::new("t").expect("an id"),
            record: TaskRecord::default(),
            log: vec![LogEntry::Started(Started {
                supervisor: format!("7 5 {began}"),
                ..Started::default()
            })],
            is_log_short: false,
        };
        Image {
            boot_id: recorded.map(str::to_owned),
            frameworks: vec![FrameworkImage {
                id: key.framework.clone(),
                info: pb::FrameworkInfo::default(),
                runs: vec![RunImage {
                    key,
                    executor: None,
                    tasks: vec![task],
                }],
            }],
            ..Image::default()
        }
    }

    #[test]
    fn old_boot_record_ends_no_task() {
        let boot = BootId::from_text("b");
        let rebooted = |recorded, began| was_rebooted(&image(recorded, began), &boot, false);
        assert!(rebooted(Some("a"), "a"));
        // A running container proves more than any record.
        assert!(!was_rebooted(&image(Some("a"), "a"), &boot, true));
        assert!(!rebooted(Some("a"), "b"));
        assert!(!rebooted(Some("b"), "b") && !rebooted(Some("b"), "a"));
        // A lost record proves nothing; processes of another boot cannot run in this boot.
        assert!(!rebooted(None, "a"));
    }
    fn demand(mem_bytes: u64) -> Demand {
        Demand {
            mem_bytes: Some(mem_bytes),
            ..Demand::default()
        }
    }

    /// Regression: a resize took back the memory of a task that never began. It reached the table before its container,
    /// and was lost, so that the earlier limit stayed.
    #[test]
    fn recovered_containers_are_known_before_resize() {
        let container = key().container;
        let live = LiveContainer {
            run: Arc::new(key()),
            container: container.clone(),
            supervisor: ProcessIdentity::from_text("7 5 b").expect("an identity"),
            demand: demand(96),
            own_limits: true,
            inspection_limits: InspectionLimits::default(),
            volumes: None,
            change_lock: Applied::at_first(demand(96), &[]),
        };
        let gone = ContainerId::new("gone").expect("an id");
        let name = ContainerName::new("orphan").expect("a name");
        let table = ContainerTable::default();
        let (adopted, orphans) = Adopted::enter_into(
            &table,
            vec![
                Adoption::Alive(live, None),
                Adoption::Ended(gone.clone(), demand(1)),
                Adoption::Orphan(name.clone(), None),
            ],
        );
        assert_eq!(orphans, [(name, None)]);
        table.request(
            &container,
            demand(64),
            InspectionLimits::default(),
            Vec::new(),
        );
        let now = table.running(&container).expect("it runs");
        assert_eq!(now.demand, demand(64));
        assert!(matches!(table.destroyable(&gone), Destroyable::Changing));
        // Entering the containers does not consume them: they are attended later.
        assert_eq!((adopted.alive.len(), adopted.ended.len()), (1, 1));
    }
}
