//! Launches containers: fetch, queue for a permit, launch; cancelled by a kill.
//!
//! Invariant: after a failed launch nothing of the container is left in the table, and the core gets the reason.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use meseta_daemon::server::CancellationToken;
use meseta_isolators::{ContainerSpec, Launched, TaskIsolation};
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{ContainerId, Role};
use tracing::warn;

use super::inspection_limits::InspectionLimits;
use super::recover::has_own_limits;
use super::state::{Applied, LiveContainer};
use super::{Containerizer, blocking};
use crate::checkpoint::inside;
use crate::core::{Input, LaunchPlan, Subject};
use crate::failure::Failure;
use crate::fetch::{self, Cancel};
use crate::spec::isolation::task_isolation;
use crate::spec::{container_spec, isolated, logs_of, volumes};

/// The longest time that a launch waits for paths of the host that its container mounts.
const HOST_PATHS_WAIT: Duration = Duration::from_secs(10);

/// The reason for a launch cancelled by a kill while it waited.
const KILLED_BEFORE_LAUNCH: &str = "the container was killed before its launch";

impl Containerizer {
    pub(super) fn launch(&self, plan: LaunchPlan) {
        let container = plan.container.clone();
        let cancelled = self.inner.table.queue(container);
        let this = self.clone();
        tokio::spawn(async move { this.launch_in_turn(plan, cancelled).await });
    }

    async fn launch_in_turn(self, plan: LaunchPlan, cancelled: CancellationToken) {
        let container = plan.container.clone();
        // Waits before taking a permit, since other launches wait for permits.
        let (settings, wanted) = (self.settings(), volumes_of(&plan));
        let emptied = volumes::emptied(&settings.places, &settings.layout, &wanted);
        if let Err(cause) = unless_killed(&cancelled, emptied).await {
            return self.not_launched(container, cause.into()).await;
        }
        let mut prepared = None;
        if volumes::has_host_paths(&plan) {
            match unless_killed(&cancelled, self.prepare_apart(&plan)).await {
                Ok(spec) => prepared = Some(spec),
                Err(cause) => return self.not_launched(container, cause.into()).await,
            }
        }
        let has_uris = |command: &pb::CommandInfo| !command.uris.is_empty();
        let mut fetched = None;
        if plan.command().is_some_and(has_uris) {
            let permit = self.inner.fetch_permits.take(&plan.run.framework);
            let permit = cancelled.run_until_cancelled(permit).await.flatten();
            let Some(fetch) = permit
                .as_ref()
                .and_then(|_| self.inner.table.begin_launch(&container))
            else {
                return self
                    .not_launched(container, KILLED_BEFORE_LAUNCH.to_owned())
                    .await;
            };
            match self.fetch(plan.clone(), fetch, prepared.clone()).await {
                Ok(spec) => fetched = Some(spec),
                Err(cause) => return self.not_launched(container, cause.into()).await,
            }
        }
        let inner = self.inner.clone();
        let group = launch_group(&plan);
        let permit = inner.launch_permits.take(&group);
        let permit = match fetched {
            Some(_) => permit.await,
            None => {
                let permit = cancelled.run_until_cancelled(permit).await.flatten();
                permit.filter(|_| self.inner.table.begin_launch(&container).is_some())
            }
        };
        let Some(permit) = permit else {
            return self
                .not_launched(container, KILLED_BEFORE_LAUNCH.to_owned())
                .await;
        };
        let plan = Arc::new(plan);
        let (this, wanted) = (self.clone(), plan.clone());
        let spec = fetched.or(prepared);
        let launched = blocking(move || launch_now(&this, &wanted, spec)).await;
        drop(permit);
        match launched.unwrap_or_else(|panic| Err(panic.into())) {
            Ok(launched) => self.running(&plan, launched).await,
            Err(cause) => self.not_launched(container, cause.into()).await,
        }
    }

    /// Prepares the sandbox and the volumes of a container that mounts paths of the host. Their file systems may be
    /// silent. The work therefore runs on its own thread, which is abandoned after a timeout. An abandoned thread keeps
    /// its permit, so that the number of such threads of a framework is bounded by its share.
    async fn prepare_apart(&self, plan: &LaunchPlan) -> Result<ContainerSpec, Failure> {
        let permit = self.inner.host_path_permits.take(&plan.run.framework);
        let permit = tokio::time::timeout(HOST_PATHS_WAIT, permit).await;
        let Some(permit) = permit.ok().flatten() else {
            return Err(Failure::new(
                "too many launches of the framework wait for host volumes on file systems that \
                 do not answer; try again later",
            ));
        };
        let (tell, told) = tokio::sync::oneshot::channel();
        let (inner, plan) = (self.inner.clone(), plan.clone());
        let working = std::thread::Builder::new()
            .name("host-paths".to_owned())
            .spawn(move || {
                let spec = container_spec(&inner.options.settings, &plan);
                drop(permit);
                // After a timeout nobody waits for the file system any more.
                let _ = tell.send(spec);
            });
        working.map_err(|error| Failure::new(format!("failed to start a thread: {error}")))?;
        match tokio::time::timeout(HOST_PATHS_WAIT, told).await {
            Ok(Ok(spec)) => spec,
            Ok(Err(_)) => Err(Failure::new("the thread that makes volumes ready panicked")),
            Err(_) => Err(Failure::new(format!(
                "a volume of the host was not ready within {} seconds: its file system does not answer; try again \
                 later",
                HOST_PATHS_WAIT.as_secs()
            ))),
        }
    }

    /// Makes the sandbox if it does not exist yet, and fetches the command's URIs into it.
    async fn fetch(
        &self,
        plan: LaunchPlan,
        cancel: Arc<Cancel>,
        prepared: Option<ContainerSpec>,
    ) -> Result<ContainerSpec, Failure> {
        let inner = self.inner.clone();
        let disk = self.enforced_disk_bytes(&plan);
        let fetched = blocking(move || {
            let settings = &inner.options.settings;
            let spec = prepared.map_or_else(|| container_spec(settings, &plan), Ok)?;
            let uris = plan.command().map(|command| command.uris.clone());
            let request = fetch::Request {
                uris: uris.unwrap_or_default(),
                outer: settings.layout.sandbox(&plan.run),
                sandbox: inside(&plan.container),
                owner: spec.credentials.clone(),
                limits: fetch::Limits {
                    disk,
                    stall: inner.options.fetcher_stall_timeout,
                    ..fetch::Limits::default()
                },
                host_paths: settings.rights.host_paths.clone(),
                proxies: fetch::Proxies::from_env(),
                cancel,
            };
            fetch::fetch(request)?;
            Ok(spec)
        });
        let fetched = fetched.await.unwrap_or_else(|panic| Err(panic.into()));
        let counter = match &fetched {
            Ok(_) => &self.inner.fetches_succeeded,
            Err(_) => &self.inner.fetches_failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        fetched
    }

    /// The enforced limit of the sandbox in bytes; a nested container shares the limit of its parent.
    fn enforced_disk_bytes(&self, plan: &LaunchPlan) -> Option<u64> {
        if !self.inner.options.enforce_disk {
            return None;
        }
        match plan.subject {
            Subject::Nested(_) => {
                let outer = self.inner.table.running(&plan.run.container)?;
                outer.inspection_limits.sandbox_bytes
            }
            _ => InspectionLimits::of_plan(plan, self.layout()).sandbox_bytes,
        }
    }

    async fn not_launched(&self, container: ContainerId, cause: String) {
        self.inner.table.remove(&container);
        warn!(container_id = %container, cause, "launch failed");
        self.inner
            .tell(Input::LaunchFailed { container, cause })
            .await;
    }

    async fn running(self, plan: &LaunchPlan, launched: Launched) {
        let container = plan.container.clone();
        let supervisor = launched.supervisor.clone();
        let live = Arc::new(LiveContainer {
            run: plan.run.clone(),
            container: container.clone(),
            supervisor: supervisor.clone(),
            demand: plan.demand,
            own_limits: match &plan.subject {
                Subject::Nested(task) => has_own_limits(task),
                _ => true,
            },
            inspection_limits: InspectionLimits::of_plan(plan, self.layout()),
            volumes: None,
            change_lock: Applied::at_first(plan.demand, &plan.volumes),
        });
        self.inner.table.start(live.clone());
        let started = Input::ContainerStarted {
            container,
            supervisor,
            task_pid: launched.task_pid,
        };
        self.inner.tell(started).await;
        // A separate task: this one holds the resources of the launch, and would hold them for the container's life.
        tokio::spawn(async move { self.watch(live).await });
    }
}

/// The group of a launch: the top role of the tree that contains the role of the task.
fn launch_group(plan: &LaunchPlan) -> String {
    let role = plan.role.as_ref().map_or("*", Role::as_str);
    role.split('/').next().unwrap_or(role).to_owned()
}

/// The persistent volumes of a launch.
pub(crate) fn volumes_of(plan: &LaunchPlan) -> Vec<pb::Resource> {
    let all = plan.volumes.iter().chain(&plan.parent_volumes);
    all.cloned().collect()
}

/// Returns the result of a future that a launch waits for, or fails at once when the container is killed.
async fn unless_killed<T, E: Into<Failure>>(
    cancelled: &CancellationToken,
    waited_for: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure> {
    match cancelled.run_until_cancelled(waited_for).await {
        Some(waited) => waited.map_err(Into::into),
        None => Err(Failure::new(KILLED_BEFORE_LAUNCH)),
    }
}

fn launch_now(
    containerizer: &Containerizer,
    plan: &LaunchPlan,
    prepared: Option<ContainerSpec>,
) -> Result<Launched, Failure> {
    let settings = containerizer.settings();
    let logs = logs_of(settings, plan)?;
    let isolation = task_isolation(&settings.rights, plan)?;
    let isolation = TaskIsolation {
        stdout_log: logs.stdout,
        stderr_log: logs.stderr,
        ..isolation
    };
    let spec = prepared.map_or_else(|| container_spec(settings, plan), Ok)?;
    let _inside = containerizer.launch_inside(plan);
    containerizer.restore_runtime_folder()?;
    Ok(containerizer
        .containers()
        .launch(&isolated(spec, isolation))?)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::Poll;

    use super::*;
    use crate::checkpoint::{Layout, silent_disk};
    use crate::containerizer::fair_semaphore::FairSemaphore;
    use crate::containerizer::state::launch_limits;

    /// The job scheduler launches the tasks of all tenants as one framework.
    #[tokio::test]
    async fn next_launch_serves_least_busy_role() {
        let permits = FairSemaphore::new(launch_limits(8));
        let [many, other, few] = ["many", "other", "few"].map(str::to_owned);
        let mut held = Vec::new();
        for role in [&many, &many, &many, &many, &many, &many, &other] {
            held.push(permits.take(role).await);
        }
        let mut beyond = Box::pin(permits.take(&many));
        assert!(
            is_pending(beyond.as_mut()).await,
            "a place is left to others"
        );
        held.push(permits.take(&other).await);
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(permits.take(&many))).collect();
        for launch in &mut waiting {
            assert!(is_pending(launch.as_mut()).await);
        }
        let mut next = Box::pin(permits.take(&few));
        assert!(is_pending(next.as_mut()).await);
        drop(held.remove(0));
        assert!(!is_pending(next.as_mut()).await);
    }

    async fn is_pending<T>(mut launch: Pin<&mut impl Future<Output = T>>) -> bool {
        std::future::poll_fn(|context| Poll::Ready(launch.as_mut().poll(context).is_pending()))
            .await
    }

    /// Regression: the kill took effect only after the disk had finished all other waiting work.
    #[tokio::test(start_paused = true)]
    async fn launch_waiting_for_disk_is_killable() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(&dir.path().join("w"));
        let (places, [volume]) = silent_disk(&dir.path().join("disk"), ["a"]);
        let volumes = [volume];
        let cancelled = CancellationToken::new();
        let began = tokio::time::Instant::now();
        let emptied = volumes::emptied(&places, &layout, &volumes);
        let mut launch = Box::pin(unless_killed(&cancelled, emptied));
        let waited = tokio::time::timeout(Duration::from_secs(1), &mut launch).await;
        assert!(waited.is_err(), "it waits");
        cancelled.cancel();
        let killed = launch.await.map_err(String::from);
        assert_eq!(killed, Err(KILLED_BEFORE_LAUNCH.to_owned()));
        assert_eq!(began.elapsed(), Duration::from_secs(1));
    }
}
