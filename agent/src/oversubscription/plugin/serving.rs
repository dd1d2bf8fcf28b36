//! Plug-ins that answer, hang, fail, return garbage or are missing, over a real socket.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::resource_estimator_server::{
    ResourceEstimator, ResourceEstimatorServer,
};
use meseta_proto::mesos::v1 as pb;
use meseta_resources::Resources;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{Answer, Failure, Plugin, Question, Role};

/// Much longer than any deadline here.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Copy, Clone, Debug)]
enum Manner {
    Oversubscribes(f64),
    Hangs,
    Refuses,
}

#[tonic::async_trait]
impl ResourceEstimator for Manner {
    async fn estimate(
        &self,
        _request: Request<wire::Usage>,
    ) -> Result<Response<wire::Oversubscribable>, Status> {
        let value = match *self {
            Self::Oversubscribes(value) => value,
            Self::Hangs => std::future::pending().await,
            Self::Refuses => return Err(Status::failed_precondition("not today")),
        };
        let cpus = pb::Resource {
            name: "cpus".to_owned(),
            r#type: pb::value::Type::Scalar.into(),
            scalar: Some(pb::value::Scalar { value }),
            revocable: Some(pb::resource::RevocableInfo {}),
            ..pb::Resource::default()
        };
        let resources = vec![cpus];
        Ok(Response::new(wire::Oversubscribable { resources }))
    }
}

/// A plug-in's process; its connections end with it.
struct Process(Option<tokio::runtime::Runtime>);

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn serve(socket: &Path, manner: Manner) -> Process {
    let _ = std::fs::remove_file(socket);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let listener = {
        let _inside = runtime.enter();
        tokio::net::UnixListener::bind(socket).unwrap()
    };
    let (connections, queue) = mpsc::channel(1);
    runtime.spawn(async move {
        let serving = tonic::transport::Server::builder()
            .add_service(ResourceEstimatorServer::new(manner))
            .serve_with_incoming(ReceiverStream::new(queue));
        tokio::pin!(serving);
        loop {
            tokio::select! {
                _ = &mut serving => return,
                Ok((connection, _)) = listener.accept() => {
                    let _ = connections.send(Ok::<_, std::io::Error>(connection)).await;
                }
            }
        }
    });
    Process(Some(runtime))
}

fn question() -> Question {
    let resources = pb::ResourceUsage::default();
    Question {
        usage: Arc::new(wire::Usage {
            timestamp: 1.0,
            resources,
            host: None,
        }),
        allocated: Resources::new(),
    }
}

struct Asked {
    plugin: Plugin,
    answers: mpsc::Receiver<Answer>,
}

impl Asked {
    fn at(socket: &Path) -> Self {
        let (sender, answers) = mpsc::channel(4);
        let address = format!("unix://{}", socket.display());
        let plugin = Plugin::start(Role::Estimator, &address, sender).unwrap();
        Self { plugin, answers }
    }

    async fn oversubscribes(&mut self) -> Result<f64, Failure> {
        self.plugin.ask(question());
        let answer = tokio::time::timeout(PATIENCE, self.answers.recv()).await;
        let Answer::Estimate(outcome) = answer.expect("in time").expect("an answer") else {
            panic!("an estimator gave an assessment");
        };
        let (_, estimate) = (*outcome)?;
        let free = estimate.oversubscribable.expect("something");
        Ok(free.revocable().cpus().map_or(0.0, |cpus| cpus.to_f64()))
    }

    /// Returns the answer of a plug-in that does not hang. Repeats the call after a timeout, since the machine may have
    /// paused.
    async fn answered(&mut self) -> Result<f64, Failure> {
        for _ in 0..20 {
            match self.oversubscribes().await {
                Err(failure) if failure.kind == "deadline" => {}
                outcome => return outcome,
            }
        }
        panic!("it is never answered in time");
    }
}

#[tokio::test]
async fn plugin_may_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("plugin.sock");
    let mut asked = Asked::at(&socket);
    assert_eq!(asked.answered().await.unwrap_err().kind, "unreachable");
    let serving = serve(&socket, Manner::Oversubscribes(2.5));
    assert_eq!(asked.answered().await, Ok(2.5));
    drop(serving);
    // The plug-in's connection may live a moment longer than the process.
    let failure = loop {
        if let Err(failure) = asked.oversubscribes().await {
            break failure;
        }
    };
    assert_ne!(failure.kind, "garbage", "{failure:?}");
    let _serving = serve(&socket, Manner::Oversubscribes(1.5));
    for _ in 0..100 {
        if let Ok(oversubscribed) = asked.oversubscribes().await {
            assert_eq!(oversubscribed, 1.5);
            return;
        }
    }
    panic!("it came back, and is not heard");
}

#[tokio::test]
async fn hung_plugin_is_asked_again() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("plugin.sock");
    let _serving = serve(&socket, Manner::Hangs);
    let mut asked = Asked::at(&socket);
    assert_eq!(asked.oversubscribes().await.unwrap_err().kind, "deadline");
}

#[tokio::test]
async fn errors_and_nonsense_are_no_answers() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("plugin.sock");
    for (manner, kind) in [
        (Manner::Refuses, "refused"),
        (Manner::Oversubscribes(-1.0), "garbage"),
        (Manner::Oversubscribes(f64::INFINITY), "garbage"),
        (Manner::Oversubscribes(f64::NAN), "garbage"),
    ] {
        let serving = serve(&socket, manner);
        let failure = Asked::at(&socket).answered().await.unwrap_err();
        assert_eq!(failure.kind, kind, "{manner:?}: {failure:?}");
        drop(serving);
    }
}
