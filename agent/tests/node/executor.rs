//! A small executor of a framework: runs as `node executor`, and uses `/api/v1/executor`.
//!
//! Uses the encoding that `MEDIA` names. Sends RUNNING for every task and KILLED after a kill, echoes messages, and
//! ends at SHUTDOWN. Keeps unacknowledged updates and subscribes again when the agent goes.

#![expect(
    clippy::print_stdout,
    reason = "what it was told is shown in its sandbox"
)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use meseta_daemon::client::{self, Client};
use meseta_proto::media::MediaType;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::executor::{Call, Event, call, event};

use crate::harness::patience;

struct Executor {
    url: String,
    media: MediaType,
    client: Client,
    tasks: BTreeMap<String, pb::TaskInfo>,
    updates: Vec<pb::TaskStatus>,
    told: u8,
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is set"))
}

pub(crate) fn executor_main() -> ExitCode {
    let media = if variable("MEDIA") == "json" {
        MediaType::Json
    } else {
        MediaType::Protobuf
    };
    let executor = Executor {
        url: format!(
            "http://{}/api/v1/executor",
            variable("MESOS_AGENT_ENDPOINT")
        ),
        media,
        client: Client::default(),
        tasks: BTreeMap::new(),
        updates: Vec::new(),
        told: 0,
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(executor.run())
}

impl Executor {
    async fn run(mut self) -> ExitCode {
        let mut gone = Instant::now();
        while gone.elapsed() < patience() {
            let subscribe = self.call(call::Type::Subscribe);
            let request = client::Call::message(&self.url, self.media, &subscribe)
                .header(http::header::ACCEPT, self.media.header_value());
            if let Ok(mut events) = self.client.stream(request).await {
                while let Ok(Some(event)) = events.next_message::<Event>(self.media).await {
                    if event.r#type() == event::Type::Shutdown {
                        println!("shut down");
                        return ExitCode::SUCCESS;
                    }
                    self.happened(event).await;
                }
                gone = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        ExitCode::FAILURE
    }

    fn call(&self, kind: call::Type) -> Call {
        let update = |status: &pb::TaskStatus| call::Update {
            status: status.clone(),
        };
        Call {
            executor_id: pb::ExecutorId {
                value: variable("MESOS_EXECUTOR_ID"),
            },
            framework_id: pb::FrameworkId {
                value: variable("MESOS_FRAMEWORK_ID"),
            },
            r#type: Some(kind.into()),
            subscribe: (kind == call::Type::Subscribe).then(|| call::Subscribe {
                unacknowledged_tasks: self.tasks.values().cloned().collect(),
                unacknowledged_updates: self.updates.iter().map(update).collect(),
            }),
            update: None,
            message: None,
        }
    }

    async fn send(&self, call: Call) {
        let request = client::Call::message(&self.url, self.media, &call);
        match self.client.request(request).await {
            Ok(reply) => println!("{:?}: {}", call.r#type(), reply.status),
            Err(error) => println!("{:?}: {error}", call.r#type()),
        }
    }

    async fn happened(&mut self, event: Event) {
        println!("{:?}", event.r#type());
        if let Some(launch) = event.launch {
            self.launch(launch.task).await;
        }
        for task in event
            .launch_group
            .into_iter()
            .flat_map(|one| one.task_group.tasks)
        {
            self.launch(task).await;
        }
        if let Some(kill) = event.kill {
            self.tell(&kill.task_id, pb::TaskState::TaskKilled).await;
        }
        if let Some(done) = event.acknowledged {
            self.tasks.remove(&done.task_id.value);
            self.updates
                .retain(|status| status.uuid.as_ref() != Some(&done.uuid));
        }
        if let Some(message) = event.message {
            let mut call = self.call(call::Type::Message);
            call.message = Some(call::Message { data: message.data });
            self.send(call).await;
        }
    }

    async fn launch(&mut self, task: pb::TaskInfo) {
        let id = task.task_id.clone();
        self.tasks.insert(id.value.clone(), task);
        self.tell(&id, pb::TaskState::TaskRunning).await;
    }

    async fn tell(&mut self, task: &pb::TaskId, state: pb::TaskState) {
        self.told += 1;
        let mut uuid = vec![self.told; 16];
        uuid[0] = std::process::id().to_le_bytes()[0];
        let status = pb::TaskStatus {
            task_id: task.clone(),
            state: state.into(),
            source: Some(pb::task_status::Source::Executor.into()),
            uuid: Some(uuid),
            ..pb::TaskStatus::default()
        };
        self.updates.push(status.clone());
        let mut call = self.call(call::Type::Update);
        call.update = Some(call::Update { status });
        self.send(call).await;
    }
}
