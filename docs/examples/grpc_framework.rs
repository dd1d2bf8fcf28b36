//! A complete framework over gRPC, with the messages of the Mesos HTTP API, typed errors and one connection.
//!
//! `cargo run -p meseta-tests --example grpc_framework -- 127.0.0.1:5050 'echo hello'` runs one
//! command as a task, acknowledges its updates and exits with 0 when the task has finished. The
//! first argument may list several masters, separated by commas; the framework finds the leader.
#![expect(
    clippy::disallowed_macros,
    reason = "a program of its own, whose runtime is the usual one"
)]
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use meseta_proto::leader::{Attempt, MasterSearch};
use meseta_proto::meseta::v1::scheduler_client::SchedulerClient;
use meseta_proto::mesos::v1::scheduler::{Call, Event, call};
use meseta_proto::mesos::v1::{self as mesos, TaskState};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Response, Streaming};

/// Maximum number of attempts to subscribe. With the pauses between, they take more than a minute.
const ATTEMPTS_MAX: usize = 100;

struct Framework {
    client: SchedulerClient<Channel>,
    /// The id of the event stream, which every call carries.
    stream_id: MetadataValue<Ascii>,
    id: Option<mesos::FrameworkId>,
    command: String,
    launched: bool,
}

impl Framework {
    async fn call(&mut self, kind: call::Type, body: Call) -> anyhow::Result<()> {
        let mut request = tonic::Request::new(Call {
            framework_id: self.id.clone(),
            r#type: Some(kind.into()),
            ..body
        });
        request
            .metadata_mut()
            .insert("mesos-stream-id", self.stream_id.clone());
        self.client
            .call(request)
            .await
            .context("a call was refused")?;
        Ok(())
    }

    /// Reacts to an event, and returns the task's state if the task has ended.
    async fn handle(&mut self, event: Event) -> anyhow::Result<Option<TaskState>> {
        if let Some(error) = event.error {
            bail!("the master ended the subscription: {}", error.message);
        }
        if let Some(subscribed) = event.subscribed {
            self.id = Some(subscribed.framework_id);
        }
        for offer in event.offers.map(|offers| offers.offers).unwrap_or_default() {
            self.offered(offer).await?;
        }
        let Some(status) = event.update.map(|update| update.status) else {
            return Ok(None);
        };
        println!("{}", status.state().as_str_name());
        let state = status.state();
        if let (Some(uuid), Some(agent_id)) = (status.uuid, status.agent_id) {
            let acknowledge = call::Acknowledge {
                agent_id,
                task_id: status.task_id,
                uuid,
            };
            let body = Call {
                acknowledge: Some(acknowledge),
                ..Call::default()
            };
            self.call(call::Type::Acknowledge, body).await?;
        }
        let runs = [
            TaskState::TaskStarting,
            TaskState::TaskRunning,
            TaskState::TaskKilling,
        ];
        Ok((!runs.contains(&state)).then_some(state))
    }

    async fn offered(&mut self, offer: mesos::Offer) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.launched, true) {
            let decline = call::Decline {
                offer_ids: vec![offer.id],
                ..call::Decline::default()
            };
            let body = Call {
                decline: Some(decline),
                ..Call::default()
            };
            return self.call(call::Type::Decline, body).await;
        }
        let needs = |name: &str, value: f64| mesos::Resource {
            name: name.to_owned(),
            r#type: mesos::value::Type::Scalar.into(),
            scalar: Some(mesos::value::Scalar { value }),
            ..mesos::Resource::default()
        };
        let task = mesos::TaskInfo {
            name: "grpc".to_owned(),
            task_id: mesos::TaskId {
                value: "grpc".to_owned(),
            },
            agent_id: offer.agent_id,
            command: Some(mesos::CommandInfo {
                value: Some(self.command.clone()),
                ..mesos::CommandInfo::default()
            }),
            resources: vec![needs("cpus", 0.1), needs("mem", 32.0)],
            ..mesos::TaskInfo::default()
        };
        let launch = mesos::offer::Operation {
            r#type: Some(mesos::offer::operation::Type::Launch.into()),
            launch: Some(mesos::offer::operation::Launch {
                task_infos: vec![task],
            }),
            ..mesos::offer::Operation::default()
        };
        let accept = call::Accept {
            offer_ids: vec![offer.id],
            operations: vec![launch],
            filters: None,
        };
        let body = Call {
            accept: Some(accept),
            ..Call::default()
        };
        self.call(call::Type::Accept, body).await
    }
}

/// Subscribes at the leading master, and waits until a master leads. A follower refuses and names the leader.
async fn subscribe(
    search: &mut MasterSearch,
    framework_info: &mesos::FrameworkInfo,
) -> anyhow::Result<(SchedulerClient<Channel>, Response<Streaming<Event>>)> {
    let subscribe = call::Subscribe {
        framework_info: framework_info.clone(),
        ..call::Subscribe::default()
    };
    for _ in 0..ATTEMPTS_MAX {
        let Attempt { master, pause } = search.next_attempt();
        tokio::time::sleep(pause).await;
        let endpoint = Channel::from_shared(format!("http://{master}"))?;
        let mut client = SchedulerClient::new(endpoint.connect_lazy());
        match client.subscribe(subscribe.clone()).await {
            Ok(response) => {
                search.succeeded(&master);
                return Ok((client, response));
            }
            Err(status) if search.failed(&status) => eprintln!("{master}: {}", status.message()),
            Err(status) => return Err(status).context("the subscription was refused"),
        }
    }
    bail!("no master leads")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let (Some(masters), Some(command)) = (arguments.next(), arguments.next()) else {
        bail!("usage: grpc_framework HOST:PORT[,HOST:PORT...] COMMAND");
    };
    let seed = RandomState::new().build_hasher().finish();
    let mut search = MasterSearch::parse(&masters, seed)?;
    let mut framework_info = mesos::FrameworkInfo {
        user: "root".to_owned(),
        name: "grpc".to_owned(),
        role: Some("dev".to_owned()),
        // If the master ends, the task runs on while this framework subscribes again.
        failover_timeout: Some(60.0),
        ..mesos::FrameworkInfo::default()
    };
    let mut launched = false;
    loop {
        let (client, response) = subscribe(&mut search, &framework_info).await?;
        let stream_id = response.metadata().get("mesos-stream-id");
        let mut framework = Framework {
            client,
            stream_id: stream_id.context("no stream id")?.clone(),
            id: framework_info.id.take(),
            command: command.clone(),
            launched,
        };
        let mut events = response.into_inner();
        while let Ok(Some(event)) = events.message().await {
            if let Some(state) = framework.handle(event).await? {
                let teardown = framework.call(call::Type::Teardown, Call::default());
                teardown.await?;
                return Ok(ExitCode::from(u8::from(state != TaskState::TaskFinished)));
            }
        }
        eprintln!("the master ended the stream; subscribing again");
        (framework_info.id, launched) = (framework.id, framework.launched);
    }
}
