//! Plug-ins that send nonsense, hang or die: nothing is oversubscribed, no task is harmed, and the agent reports it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::qo_s_controller_server::{QoSController, QoSControllerServer};
use meseta_proto::meseta::v1::resource_estimator_server::{
    ResourceEstimator, ResourceEstimatorServer,
};
use meseta_proto::mesos::v1 as pb;
use meseta_tests::framework::task;
use meseta_tests::revocable::launch_and_decline_rest;
use meseta_tests::{Cluster, Setup, kernel, unless_root, wait};
use serde_json::json;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

meseta_tests::scenarios! {
    unless_root:
        bad_plugin_keeps_regular_offers;
}

const PATIENCE: Duration = Duration::from_secs(60);
/// The CPUs that it oversubscribes while it is healthy.
const OVERSUBSCRIBED: f64 = 1.5;

/// The behaviour of an estimator; the tests of `plugin.rs` cover all garbage.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Manner {
    Well,
    Negative,
    Endless,
    Refuses,
    Hangs,
}

/// The behaviour of a controller.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Control {
    Well,
    NamesEverybody,
    UnknownType,
    Hangs,
}

#[derive(Clone, Debug)]
struct Plugin(Arc<Mutex<(Manner, Control)>>);

impl Plugin {
    fn now(&self) -> (Manner, Control) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn be(&self, manner: Manner, control: Control) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (manner, control);
    }
}

fn cpus(value: f64) -> pb::Resource {
    pb::Resource {
        name: "cpus".to_owned(),
        r#type: pb::value::Type::Scalar.into(),
        scalar: Some(pb::value::Scalar { value }),
        revocable: Some(pb::resource::RevocableInfo {}),
        ..pb::Resource::default()
    }
}

fn answer(manner: Manner) -> Vec<pb::Resource> {
    let well = cpus(OVERSUBSCRIBED);
    match manner {
        Manner::Negative => vec![cpus(-1.0)],
        Manner::Endless => vec![well; 100_000],
        Manner::Well | Manner::Refuses | Manner::Hangs => vec![well],
    }
}

#[tonic::async_trait]
impl ResourceEstimator for Plugin {
    async fn estimate(
        &self,
        _usage: Request<wire::Usage>,
    ) -> Result<Response<wire::Oversubscribable>, Status> {
        let (manner, _) = self.now();
        match manner {
            Manner::Refuses => return Err(Status::permission_denied("not for you")),
            Manner::Hangs => std::future::pending().await,
            _ => {}
        }
        let resources = answer(manner);
        Ok(Response::new(wire::Oversubscribable { resources }))
    }
}

#[tonic::async_trait]
impl QoSController for Plugin {
    async fn correct(
        &self,
        usage: Request<wire::Usage>,
    ) -> Result<Response<wire::Corrections>, Status> {
        let (_, control) = self.now();
        let executors = usage.into_inner().resources.executors;
        let kill = |executor: &pb::resource_usage::Executor| wire::QoSCorrection {
            r#type: wire::qo_s_correction::Type::Kill.into(),
            kill: wire::qo_s_correction::Kill {
                framework_id: executor
                    .executor_info
                    .framework_id
                    .clone()
                    .unwrap_or_default(),
                executor_id: executor.executor_info.executor_id.clone(),
                container_id: None,
            },
            reason: Some("because\u{7}\n".repeat(1000)),
        };
        let mut answer = wire::Corrections::default();
        let everybody = executors.iter().map(kill);
        match control {
            Control::Well => {}
            Control::NamesEverybody => answer.corrections.extend(everybody),
            Control::UnknownType => {
                answer.corrections.extend(everybody);
                for correction in &mut answer.corrections {
                    correction.r#type = 77;
                }
            }
            Control::Hangs => std::future::pending().await,
        }
        Ok(Response::new(answer))
    }
}

/// The plug-in's process, as far as the agent can see: its connections end with it.
struct Process(Option<tokio::runtime::Runtime>);

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn serve(socket: &Path, plugin: &Plugin) -> Process {
    let _ = std::fs::remove_file(socket);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let listener = {
        let _inside = runtime.enter();
        tokio::net::UnixListener::bind(socket).expect("a socket")
    };
    let (connections, queue) = tokio::sync::mpsc::channel(16);
    runtime.spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let sent = connections.send(Ok::<_, std::io::Error>(connection)).await;
            if sent.is_err() {
                return;
            }
        }
    });
    let serving = tonic::transport::Server::builder()
        .add_service(ResourceEstimatorServer::new(plugin.clone()))
        .add_service(QoSControllerServer::new(plugin.clone()))
        .serve_with_incoming(ReceiverStream::new(queue));
    runtime.spawn(serving);
    Process(Some(runtime))
}

fn failures(cluster: &Cluster, plugin: &str, kind: &str) -> f64 {
    let series =
        format!("meseta_agent_plugin_failures_total{{plugin=\"{plugin}\",kind=\"{kind}\"}}");
    figure(cluster, &series)
}

fn figure(cluster: &Cluster, series: &str) -> f64 {
    let text = cluster.agent().page("/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix(series));
    line.and_then(|line| line.trim().parse().ok())
        .unwrap_or(0.0)
}

fn until_oversubscribed(cluster: &Cluster, cpus: f64) {
    let what = format!("{cpus} revocable cpus are oversubscribed");
    wait::eventually(&what, PATIENCE, || {
        let agents = cluster.master.page("/slaves").json();
        let oversubscribed = agents["slaves"][0]["resources"]["cpus_revocable"].as_f64();
        ((oversubscribed.unwrap_or(0.0) - cpus).abs() < 1e-6).then_some(())
    });
}

/// Checks that a framework gets regular offers, and that its task runs to its end.
fn regular_work_goes_on(cluster: &Cluster, id: &str) {
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let small = [("cpus", 0.1), ("mem", 32.0)];
    framework.launch_task(&offer, id, "true", &small);
    framework.until_state(id, "TASK_FINISHED");
    framework.teardown();
}

fn start(socket: &Path) -> Cluster {
    let address = format!("unix://{}", socket.display());
    Cluster::start(Setup {
        agent_flags: vec![
            "--resources=cpus:4;mem:4096;disk:4096".to_owned(),
            format!("--resource_estimator={address}"),
            format!("--qos_controller={address}"),
            "--oversubscribed_resources_interval=200ms".to_owned(),
            "--monitor_interval=100ms".to_owned(),
        ],
        ..Setup::default()
    })
}

fn bad_plugin_keeps_regular_offers() {
    let dir = tempfile::tempdir().expect("a folder");
    let socket: PathBuf = dir.path().join("plugin.sock");
    let plugin = Plugin(Arc::new(Mutex::new((Manner::Well, Control::Well))));
    let process = serve(&socket, &plugin);
    let cluster = start(&socket);
    let mut regular = cluster.framework();
    let offer = regular.offer();
    let small = [("cpus", 0.5), ("mem", 32.0)];
    let asleep = task(&offer, "asleep", "exec sleep 600", &small);
    launch_and_decline_rest(&regular, &offer, &[asleep]);
    regular.until_state("asleep", "TASK_RUNNING");
    until_oversubscribed(&cluster, OVERSUBSCRIBED);

    for (manner, kind) in [
        (Manner::Negative, "garbage"),
        (Manner::Endless, "garbage"),
        (Manner::Refuses, "refused"),
        (Manner::Hangs, "deadline"),
    ] {
        let before = failures(&cluster, "resource_estimator", kind);
        plugin.be(manner, Control::Well);
        wait::eventually(&format!("{manner:?} is {kind}"), PATIENCE, || {
            (failures(&cluster, "resource_estimator", kind) > before).then_some(())
        });
        until_oversubscribed(&cluster, 0.0);
        plugin.be(Manner::Well, Control::Well);
        until_oversubscribed(&cluster, OVERSUBSCRIBED);
    }
    regular_work_goes_on(&cluster, "after-estimates");
    ill_controlled(&cluster, &plugin);
    regular_work_goes_on(&cluster, "after-corrections");

    drop(process);
    until_oversubscribed(&cluster, 0.0);
    regular_work_goes_on(&cluster, "after-its-end");
    // The next plug-in is no gRPC server at all.
    let _ = std::fs::remove_file(&socket);
    let babbler = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    std::thread::spawn(move || {
        while let Ok((mut connection, _)) = babbler.accept() {
            let _ = std::io::Write::write_all(&mut connection, &[0x2a; 4096]);
        }
    });
    regular_work_goes_on(&cluster, "beside-a-babbler");
    // The last plug-in recovers.
    let _ = std::fs::remove_file(&socket);
    let _process = serve(&socket, &plugin);
    until_oversubscribed(&cluster, OVERSUBSCRIBED);
    assert_eq!(
        kernel::tasks_below(&cluster.cgroups_root).len(),
        1,
        "the regular task never noticed"
    );
    let state = cluster.agent().page("/state").json();
    let executors = &state["frameworks"][0]["executors"];
    assert_eq!(executors[0]["id"], json!("asleep"), "{state:#}");
}

/// Corrections of protected containers are refused and counted; others are garbage.
fn ill_controlled(cluster: &Cluster, plugin: &Plugin) {
    let refused = "meseta_agent_qos_corrections_refused_total";
    plugin.be(Manner::Well, Control::NamesEverybody);
    wait::eventually("the corrections are refused", PATIENCE, || {
        (figure(cluster, refused) > 2.0).then_some(())
    });
    for (control, kind) in [
        (Control::UnknownType, "garbage"),
        (Control::Hangs, "deadline"),
    ] {
        let before = failures(cluster, "qos_controller", kind);
        plugin.be(Manner::Well, control);
        wait::eventually(&format!("{control:?} is {kind}"), PATIENCE, || {
            (failures(cluster, "qos_controller", kind) > before).then_some(())
        });
    }
    // No resource is oversubscribed without a working controller.
    until_oversubscribed(cluster, 0.0);
    plugin.be(Manner::Well, Control::Well);
    until_oversubscribed(cluster, OVERSUBSCRIBED);
}
