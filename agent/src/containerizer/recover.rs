//! After a start: what was checkpointed is compared with what the machine holds.
//!
//! A container whose supervisor is the recorded one and runs is adopted; anything else in this agent's cgroups is
//! destroyed, and its end told if it has a checkpoint. Invariant: processes are known by boot, start time and group,
//! never by pid alone, and nothing outside this agent's instance is looked at.

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

use super::inspection_limits::InspectionLimits;
use super::state::{Applied, Entry, LiveContainer};
use super::supervision::AGAIN_MIN;
use super::{Containerizer, limit_drift, limitation_file};
use crate::checkpoint::{Image, Limitation, LogEntry, RunImage};
use crate::core::{Found, Recovery, demand_of_run, demand_of_task, is_terminal};

/// How long the start waits for orphaned containers to be gone.
const ORPHANS_TIMEOUT: Duration = Duration::from_secs(5);

/// What is to be done with a container of before.
#[derive(Debug)]
pub(crate) enum Adoption {
    /// It runs: watch it, or end it for the limit that it was found beyond.
    Alive(LiveContainer, Option<Limitation>),
    /// It ended: take it apart and tell how.
    Ended(ContainerId, Demand),
    /// An orphan: destroy it.
    Orphan(ContainerName, Option<ProcessIdentity>),
}

/// Containers of before that are in the table, so that what the core asks for meets them. Nothing is told of them yet:
/// the core would not know whose end it is told.
#[derive(Debug)]
#[must_use = "nobody watches them"]
pub(crate) struct Adopted {
    alive: Vec<(Arc<LiveContainer>, Option<Limitation>)>,
    ended: Vec<(ContainerId, Demand)>,
}

impl Adopted {
    /// Takes containers of before into the table, before the core hears of them: a resize or a kill that it asks for at
    /// once would find nothing, and be lost. Those that belong to nobody come back.
    pub(crate) fn enter(
        adoptions: Vec<Adoption>,
        containerizer: &Containerizer,
    ) -> (Self, Vec<Orphan>) {
        Self::enter_into(&mut containerizer.inner.table(), adoptions)
    }

    fn enter_into(
        table: &mut BTreeMap<ContainerId, Entry>,
        adoptions: Vec<Adoption>,
    ) -> (Self, Vec<Orphan>) {
        let (mut alive, mut ended, mut orphans) = (Vec::new(), Vec::new(), Vec::new());
        for adoption in adoptions {
            match adoption {
                Adoption::Alive(live, limitation) => {
                    let live = Arc::new(live);
                    table.insert(live.container.clone(), Entry::Running(live.clone()));
                    alive.push((live, limitation));
                }
                Adoption::Ended(container, demand) => {
                    table.insert(container.clone(), Entry::Ending);
                    ended.push((container, demand));
                }
                Adoption::Orphan(name, supervisor) => orphans.push((name, supervisor)),
            }
        }
        (Self { alive, ended }, orphans)
    }

    /// Watches those that run, and tells how the others ended; once the core knows of them.
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

/// A container that belongs to nobody, and who keeps it.
pub(crate) type Orphan = (ContainerName, Option<ProcessIdentity>);

impl Containerizer {
    /// Watches a container of an earlier agent; it ends if that agent had found it beyond a limit.
    fn attend(&self, live: Arc<LiveContainer>, limitation: Option<Limitation>) {
        let container = live.container.clone();
        if let Some(limitation) = limitation {
            self.limit(&container, limitation);
        }
        // One that was to shrink once it fitted has been waiting since before the restart.
        let name = ContainerName::new(container.as_str()).ok();
        if let Some(name) = name.filter(|name| name.nesting().is_none()) {
            drop(self.shrink(container, name, live.demand));
        }
        let this = self.clone();
        tokio::spawn(async move { this.watch(live).await });
    }
}

/// What belongs to nobody goes before the master hears of the agent, which would offer its resources
/// again; but one that cannot die does not hold the others up.
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
        warn!("orphaned containers are not gone yet; going on without waiting for them");
    }
}

/// Looks for every container; what is to be done with them comes after the core has heard of them. An error says
/// that they cannot be listed: without that, those that belong to nobody would run on.
pub(crate) fn recover(
    image: Image,
    boot: &BootId,
    containerizer: &Containerizer,
) -> io::Result<(Recovery, Vec<Adoption>)> {
    let mut on_machine = machine_state(containerizer)?;
    let is_any_alive = on_machine.values().any(|found| found.supervisor.is_some());
    let rebooted = was_rebooted(&image, boot, is_any_alive);
    if rebooted {
        info!("the machine was booted since; the tasks of before are over");
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

/// Whether the machine was booted since the checkpoints were written, by what they say. A record of another boot may be an
/// old one, put back: what began in this boot says so, and so does a supervisor that lives.
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

/// What `read` gives once we have the descriptors and the memory that it takes: nothing is taken for gone
/// because we could not look.
fn when_possible<T>(read: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let mut has_logged = false;
    loop {
        match read() {
            Err(error) if is_shortage(&error) => {
                note_repeated();
                if !std::mem::replace(&mut has_logged, true) {
                    warn!(%error, "cannot read the state of earlier containers yet; trying again");
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

/// The supervisor, if it runs: by the runtime folder's word, or by the checkpoint's alone when that
/// folder was wiped.
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
                warn!(container_id = %container, "a supervisor is not the one that was recorded");
            }
            let watched = containerizer.containers().watch(&recorded);
            // Whoever cannot be looked at is not taken for dead.
            (!matches!(watched, Ok(None))).then_some(recorded)
        }
        (None, None) => None,
    }
}

/// Writes again who keeps a container, where its folder does not tell: with its record it is known from two places.
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
        Ok(true) => info!(container_id = %container, "noted again who keeps a container"),
        Ok(false) => {}
        Err(error) => {
            warn!(container_id = %container, %error, "cannot note again who keeps a container");
        }
    }
}

/// A container that may be on the machine.
#[derive(Debug)]
struct ExpectedContainer {
    container: ContainerId,
    /// The supervisor that was checkpointed.
    recorded: Option<ProcessIdentity>,
    /// Whether the last word about what was in it was said.
    over: bool,
    demand: Demand,
    /// Whether it has limits of its own; what is nested may share those around it.
    own_limits: bool,
}

/// The containers of a run: its own, and those nested in it, which come first.
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
        // An executor may live on when its tasks are over.
        over: run.executor.is_none() && run.tasks.iter().all(|task| is_over(&task.log)),
        demand: demand_of_run(run),
        own_limits: true,
    });
    all
}

/// Whether a task of a group has groups of its own (`share_cgroups`).
pub(super) fn has_own_limits(task: &pb::TaskInfo) -> bool {
    let container = task.container.as_ref();
    let linux = container.and_then(|container| container.linux_info.as_ref());
    linux.is_some_and(|linux| !linux.share_cgroups())
}

/// The claims of a run's own container; what is nested in it has none.
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

/// Whether its last word was said.
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
    use crate::containerizer::resize::note_request;

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
    fn an_old_record_of_the_boot_ends_no_task_of_this_one() {
        let boot = BootId::from_text("b");
        let rebooted = |recorded, began| was_rebooted(&image(recorded, began), &boot, false);
        assert!(rebooted(Some("a"), "a"));
        // Whatever the records say, what lives says more.
        assert!(!was_rebooted(&image(Some("a"), "a"), &boot, true));
        assert!(!rebooted(Some("a"), "b"));
        assert!(!rebooted(Some("b"), "b") && !rebooted(Some("b"), "a"));
        // A record that was lost says nothing; processes of another boot are none of this one's.
        assert!(!rebooted(None, "a"));
    }
    fn demand(mem_bytes: u64) -> Demand {
        Demand {
            mem_bytes: Some(mem_bytes),
            ..Demand::default()
        }
    }

    /// Found by kills while tasks came to an executor: the resize that takes the memory of a task back which was never
    /// begun reached the table before the container did, and was lost; the limit of before stayed.
    #[test]
    fn what_the_core_asks_for_at_once_meets_the_containers_of_before() {
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
        let mut table = BTreeMap::new();
        let (adopted, orphans) = Adopted::enter_into(
            &mut table,
            vec![
                Adoption::Alive(live, None),
                Adoption::Ended(gone.clone(), demand(1)),
                Adoption::Orphan(name.clone(), None),
            ],
        );
        assert_eq!(orphans, [(name, None)]);
        note_request(
            &mut table,
            &container,
            demand(64),
            InspectionLimits::default(),
            Vec::new(),
        );
        let Some(Entry::Running(now)) = table.get(&container) else {
            panic!("it runs: {table:?}");
        };
        assert_eq!(now.demand, demand(64));
        assert!(matches!(table.get(&gone), Some(Entry::Ending)));
        // What is attended to later takes nothing back.
        assert_eq!((adopted.alive.len(), adopted.ended.len()), (1, 1));
    }
}
