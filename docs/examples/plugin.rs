//! A resource estimator and a QoS controller in a separate process:
//! `plugin --socket=/run/plugin.sock [--share=0.5] [--load=8]`.
//!
//! The estimator oversubscribes a share of the CPUs that are allocated to regular executors. The controller evicts
//! every executor with revocable CPUs while the five-minute load is above a threshold. Start the agent with
//! `meseta agent --resource_estimator=unix:///run/plugin.sock --qos_controller=unix:///run/plugin.sock`.
#![expect(
    clippy::disallowed_macros,
    reason = "a program of its own, whose runtime is the usual one"
)]
#![expect(clippy::print_stdout, reason = "an example speaks to whoever runs it")]

use std::error::Error;
use std::path::PathBuf;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::qo_s_controller_server::{QoSController, QoSControllerServer};
use meseta_proto::meseta::v1::resource_estimator_server::{
    ResourceEstimator, ResourceEstimatorServer,
};
use meseta_proto::mesos::v1 as pb;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

#[derive(Clone, Debug)]
struct Plugin {
    share: f64,
    load: f64,
}

/// Returns the CPUs in a list of resources: either the revocable or the regular CPUs.
fn cpus(resources: &[pb::Resource], revocable: bool) -> f64 {
    let wanted = |one: &&pb::Resource| one.name == "cpus" && one.revocable.is_some() == revocable;
    let scalars = resources.iter().filter(wanted).filter_map(|one| one.scalar);
    scalars.map(|scalar| scalar.value).sum()
}

#[tonic::async_trait]
impl ResourceEstimator for Plugin {
    async fn estimate(
        &self,
        request: Request<wire::Usage>,
    ) -> Result<Response<wire::Oversubscribable>, Status> {
        let usage = request.into_inner();
        let executors = &usage.resources.executors;
        let promised: f64 = executors
            .iter()
            .map(|one| cpus(&one.allocated, false))
            .sum();
        let oversubscribed: f64 = executors.iter().map(|one| cpus(&one.allocated, true)).sum();
        let value = (promised * self.share - oversubscribed).max(0.0);
        let resource = pb::Resource {
            name: "cpus".to_owned(),
            r#type: pb::value::Type::Scalar.into(),
            scalar: Some(pb::value::Scalar { value }),
            revocable: Some(pb::resource::RevocableInfo {}),
            ..pb::Resource::default()
        };
        let resources = vec![resource];
        Ok(Response::new(wire::Oversubscribable { resources }))
    }
}

#[tonic::async_trait]
impl QoSController for Plugin {
    async fn correct(
        &self,
        request: Request<wire::Usage>,
    ) -> Result<Response<wire::Corrections>, Status> {
        let usage = request.into_inner();
        let load = usage.host.and_then(|host| host.load_5min).unwrap_or(0.0);
        let mut corrections = Vec::new();
        if load > self.load {
            let borrowers = usage.resources.executors.iter();
            for one in borrowers.filter(|one| cpus(&one.allocated, true) > 0.0) {
                corrections.push(wire::QoSCorrection {
                    r#type: wire::qo_s_correction::Type::Kill.into(),
                    kill: wire::qo_s_correction::Kill {
                        framework_id: one.executor_info.framework_id.clone().unwrap_or_default(),
                        executor_id: one.executor_info.executor_id.clone(),
                        container_id: Some(one.container_id.clone()),
                    },
                    reason: Some(format!(
                        "the load of 5 minutes is {load}, over {}",
                        self.load
                    )),
                });
            }
        }
        Ok(Response::new(wire::Corrections {
            corrections,
            ..wire::Corrections::default()
        }))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (mut socket, mut plugin) = (
        None,
        Plugin {
            share: 0.5,
            load: 8.0,
        },
    );
    for argument in std::env::args().skip(1) {
        match argument.split_once('=') {
            Some(("--socket", path)) => socket = Some(PathBuf::from(path)),
            Some(("--share", share)) => plugin.share = share.parse()?,
            Some(("--load", load)) => plugin.load = load.parse()?,
            _ => return Err(format!("what is {argument}? plugin --socket=PATH").into()),
        }
    }
    let socket = socket.ok_or("plugin --socket=PATH [--share=0.5] [--load=8]")?;
    let _ = std::fs::remove_file(&socket);
    let listener = tokio::net::UnixListener::bind(&socket)?;
    println!("serving at unix://{}", socket.display());
    let (connections, queue) = tokio::sync::mpsc::channel(16);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            if connections
                .send(Ok::<_, std::io::Error>(connection))
                .await
                .is_err()
            {
                return;
            }
        }
    });
    tonic::transport::Server::builder()
        .add_service(ResourceEstimatorServer::new(plugin.clone()))
        .add_service(QoSControllerServer::new(plugin))
        .serve_with_incoming(ReceiverStream::new(queue))
        .await?;
    Ok(())
}
