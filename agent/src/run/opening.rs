//! Reads and creates the state that the core needs before it can run: checkpoints, cgroups, the runtime folder.

use std::path::Path;
use std::time::Duration;

use meseta_daemon::error_chain::chain;
use meseta_isolators::{BootId, ContainerName, Containers, Host};
use tracing::{info, warn};

use super::RunError;
use super::hierarchies::{cgroups_root, narrow};
use crate::check;
use crate::checkpoint::{self, Image, Layout, Store, Write};
use crate::configuration::Configuration;
use crate::configuration::flags::{Flags, Recover};
use crate::configuration::isolation::{InspectionSettings, IsolationSettings, TaskRights};
use crate::core::Enforceable;
use crate::detect::Machine;
use crate::directories::{RuntimeFolder, instance_of, runtime_dir};
use crate::other_instances;

/// Timeout from the launch request until exec.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(30);

/// The address of this agent.
pub(super) struct OwnAddress {
    pub(super) port: u16,
    /// The endpoint that the agent gives to its tasks.
    pub(super) endpoint: String,
}

/// The state that the core needs before it can run.
pub(super) struct Opened {
    pub(super) image: Image,
    pub(super) store: Store,
    /// The writes that must become durable first.
    pub(super) first: Vec<Write>,
    /// Held until the work on containers has ended.
    pub(super) runtime_folder: RuntimeFolder,
    pub(super) boot: BootId,
    pub(super) containers: Containers,
    /// The machine's resources, including its disk.
    pub(super) machine: Machine,
    pub(super) enforceable: Enforceable,
    pub(super) privileged: bool,
    pub(super) rights: TaskRights,
    pub(super) watch: InspectionSettings,
}

pub(super) async fn open(
    flags: &Flags,
    layout: &Layout,
    configuration: &Configuration,
    own_address: OwnAddress,
) -> Result<Opened, RunError> {
    let (flags, layout) = (flags.clone(), layout.clone());
    let isolation = configuration.isolation.clone();
    let opening = tokio::task::spawn_blocking(move || {
        open_blocking(&flags, &layout, &isolation, &own_address)
    });
    opening
        .await
        .map_err(|error| RunError::Internal(format!("open the work directory: {error}")))?
}

fn open_blocking(
    flags: &Flags,
    layout: &Layout,
    settings: &IsolationSettings,
    own_address: &OwnAddress,
) -> Result<Opened, RunError> {
    let store = Store::open(layout.clone());
    let mut image = checkpoint::read(layout).map_err(RunError::Checkpoints)?;
    let store = store.after(&image);
    if let Some(first) = image.damages.first().filter(|_| flags.strict) {
        return Err(RunError::Damaged {
            count: image.damages.len(),
            path: first.path.clone(),
            why: first.why.clone(),
        });
    }
    let unusable = |error: &dyn std::error::Error| RunError::Containers(chain(error));
    let boot = BootId::current().map_err(|error| unusable(&error))?;
    let mut host = Host::detect().map_err(|error| unusable(&error))?;
    narrow(&mut host, &flags.cgroups_hierarchy)?;
    let cgroups_root = cgroups_root(&mut host, flags)?;
    let fresh = || instance_of(layout.work_dir());
    let instance = image.instance.clone().unwrap_or_else(fresh);
    let name = ContainerName::new(&instance).map_err(|error| unusable(&error))?;
    let isolation = settings.isolation(&host)?;
    let isolators: Vec<_> = isolation.names().collect();
    info!(mode = ?host.mode, instance, isolation = isolators.join(","), "preparing for containers");
    let privileged = host.privileged;
    let is_root = rustix::process::geteuid().is_root();
    let weakness = settings.weakness(&isolation, &host, is_root)?;
    for text in weakness.all() {
        warn!("isolation is weak: {text}");
    }
    if flags.cgroups_limit_swap && check::is_swap_uncounted(&host) {
        warn!(
            "isolation is weak: --cgroups_limit_swap does nothing, the kernel does not account swap"
        );
    }
    if !is_root {
        warn!("not root: tasks run as this user, without cgroups or namespaces");
    }
    let enforceable = Enforceable {
        cpus: isolation.has("cgroups/cpu"),
        mem: isolation.has("cgroups/mem"),
    };
    let runtime_dir = runtime_dir(flags, layout, privileged);
    let mut own = flags.access.files();
    own.extend([layout.work_dir().to_owned(), runtime_dir.clone()]);
    refuse_beside_left(flags, &runtime_dir, &instance)?;
    warn_of_earlier_tasks(own_address, layout);
    refuse_without_records(flags, layout, &image, &runtime_dir.join(&instance))?;
    let mut runtime_folder = RuntimeFolder::take(runtime_dir.join(&instance), layout.work_dir())?;
    let (rights, watch) = (settings.rights(&isolation, own), settings.watch(&isolation));
    let containers = Containers::open_with(
        host,
        meseta_isolators::Options {
            runtime_dir: runtime_folder.path().to_owned(),
            cgroups_root,
            instance: name,
            isolation,
            enable_cfs: flags.cgroups_enable_cfs,
            revocable_cpu_low_priority: flags.revocable_cpu_low_priority,
            limit_swap: flags.cgroups_limit_swap,
            pids_limit: (flags.cgroups_pids_limit > 0).then_some(flags.cgroups_pids_limit),
            launch_timeout: LAUNCH_TIMEOUT,
        },
        &settings.node,
        Vec::new(),
    )
    .map_err(|error| unusable(&error))?;
    runtime_folder.note_port(own_address.port);
    // The writer makes these durable, and waits for a full disk. A start that fails before must find the old boot
    // again. Nothing is launched in this boot before its id is recorded.
    let first = first_writes(&mut image, &boot, instance);
    Ok(Opened {
        image,
        store,
        first,
        runtime_folder,
        boot,
        containers,
        machine: Machine::read(layout.work_dir()),
        enforceable,
        privileged,
        rights,
        watch,
    })
}

/// Refuses the start if the former agent at the same address had another work directory: the new agent would run tasks
/// beside the old containers, which no agent manages. An agent at another address may come back, and is only reported.
fn refuse_beside_left(flags: &Flags, runtime_dir: &Path, own: &str) -> Result<(), RunError> {
    for left in other_instances::abandoned(runtime_dir, own) {
        if let Some(port) = left.port().filter(|port| *port == flags.port) {
            return Err(RunError::LeftBehind {
                what: left.what(),
                port,
                cure: left.cure(),
            });
        }
        warn!(folder = %left.folder.display(), containers = left.containers, "{}: {}", left.what(), left.cure());
    }
    Ok(())
}

/// Reports running tasks of an earlier agent whose runtime directory is elsewhere.
fn warn_of_earlier_tasks(own_address: &OwnAddress, layout: &Layout) {
    let endpoint = &own_address.endpoint;
    let found = other_instances::tasks_at(Path::new("/proc"), endpoint, layout.work_dir());
    for (work_dir, pid) in found {
        warn!(
            work_dir = %work_dir.display(), pid, endpoint,
            "tasks of an agent with this address and another --work_dir still run, and no agent \
             manages them: start an agent \
             with that --work_dir, and with --recover=cleanup to end them"
        );
    }
}

/// Refuses the start if this work directory has no records of its running containers, since they would be destroyed as
/// orphans. If its disk was not mounted, or was removed, these are all tasks of the node. A directory made new by
/// removing the link to its agent still has that agent's records.
fn refuse_without_records(
    flags: &Flags,
    layout: &Layout,
    image: &Image,
    folder: &Path,
) -> Result<(), RunError> {
    let has_agents = std::fs::read_dir(layout.agents()).is_ok_and(|mut all| all.next().is_some());
    if image.agent.is_some() || has_agents || flags.recover == Recover::Cleanup {
        return Ok(());
    }
    match meseta_isolators::living_containers(folder) {
        0 => Ok(()),
        containers => Err(RunError::RecordsGone {
            containers,
            work_dir: layout.work_dir().to_owned(),
            folder: folder.to_owned(),
        }),
    }
}

fn first_writes(image: &mut Image, boot: &BootId, instance: String) -> Vec<Write> {
    let repairs = std::mem::take(&mut image.repairs);
    let mut first = Vec::new();
    if !repairs.is_empty() {
        first.push(Write::Repair { repairs });
    }
    if let Some(record) = image.holdings.clone() {
        let record = Box::new(record);
        first.push(Write::RestoreVolumes { record });
    }
    let known = (image.boot_id.as_deref(), image.instance.as_deref());
    if known != (Some(boot.as_str()), Some(instance.as_str())) {
        let boot_id = boot.as_str().to_owned();
        first.push(Write::Remember { boot_id, instance });
    }
    first
}
