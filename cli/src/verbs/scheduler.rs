//! The scheduler's side of the v1 API, as small as one task needs it.

use anyhow::{Context as _, bail};
use meseta_proto::mesos::v1 as mesos;
use meseta_proto::mesos::v1::scheduler::{Call, Event, call, event};
use meseta_proto::reconciler;

use meseta_daemon::client::Client;

use super::server::{self, EventStream};

/// A subscribed framework.
#[derive(Debug)]
pub(super) struct Scheduler {
    client: Client,
    master: String,
    stream_id: String,
    framework_id: mesos::FrameworkId,
    events: EventStream<Event>,
}

impl Scheduler {
    /// Subscribes and waits for the master's answer.
    pub(super) async fn subscribe(
        masters: &str,
        framework_info: mesos::FrameworkInfo,
    ) -> anyhow::Result<Self> {
        let subscribe = Call {
            framework_id: framework_info.id.clone(),
            subscribe: Some(call::Subscribe {
                framework_info,
                ..call::Subscribe::default()
            }),
            ..of(call::Type::Subscribe)
        };
        let mut subscription =
            server::subscribe::<Call, Event>(masters, "/api/v1/scheduler", &subscribe).await?;
        let first = subscription
            .events
            .next()
            .await?
            .context("the master closed the stream at once")?;
        if let Some(error) = first.error {
            bail!("the master refused the subscription: {}", error.message);
        }
        let subscribed = first
            .subscribed
            .context("the master's first event is not SUBSCRIBED")?;
        Ok(Self {
            client: subscription.client,
            master: subscription.master,
            stream_id: subscription.stream_id,
            framework_id: subscribed.framework_id,
            events: subscription.events,
        })
    }

    pub(super) fn framework_id(&self) -> &str {
        &self.framework_id.value
    }

    /// The next event that is not a heartbeat. Cancel safe.
    pub(super) async fn next(&mut self) -> anyhow::Result<Event> {
        loop {
            let event = self
                .events
                .next()
                .await?
                .context("the master ended the stream")?;
            if event.r#type() == event::Type::Heartbeat {
                continue;
            }
            return Ok(event);
        }
    }

    pub(super) async fn accept(
        &self,
        offer: mesos::OfferId,
        task: mesos::TaskInfo,
    ) -> anyhow::Result<()> {
        let launch = mesos::offer::Operation {
            r#type: Some(mesos::offer::operation::Type::Launch.into()),
            launch: Some(mesos::offer::operation::Launch {
                task_infos: vec![task],
            }),
            ..mesos::offer::Operation::default()
        };
        let accept = call::Accept {
            offer_ids: vec![offer],
            operations: vec![launch],
            filters: None,
        };
        self.send(Call {
            accept: Some(accept),
            ..of(call::Type::Accept)
        })
        .await
    }

    /// Gives offers back and asks not to see them again for `refuse_seconds`.
    pub(super) async fn decline(
        &self,
        offer_ids: Vec<mesos::OfferId>,
        refuse_seconds: f64,
    ) -> anyhow::Result<()> {
        let filters = Some(mesos::Filters {
            refuse_seconds: Some(refuse_seconds),
        });
        self.send(Call {
            decline: Some(call::Decline { offer_ids, filters }),
            ..of(call::Type::Decline)
        })
        .await
    }

    pub(super) async fn suppress(&self) {
        self.attempt(of(call::Type::Suppress)).await;
    }

    /// Asks for offers again.
    pub(super) async fn revive(&self) {
        self.attempt(of(call::Type::Revive)).await;
    }

    pub(super) async fn kill(&self, task_id: &mesos::TaskId) -> anyhow::Result<()> {
        let kill = call::Kill {
            task_id: task_id.clone(),
            ..call::Kill::default()
        };
        self.send(Call {
            kill: Some(kill),
            ..of(call::Type::Kill)
        })
        .await
    }

    /// Asks what became of tasks.
    pub(super) async fn reconcile(&self, request: reconciler::Request) {
        self.attempt(request.into_call()).await;
    }

    /// Acknowledges an update, if it is one that wants it.
    pub(super) async fn acknowledge(&self, status: &mesos::TaskStatus) {
        let (Some(uuid), Some(agent_id)) = (&status.uuid, &status.agent_id) else {
            return;
        };
        let acknowledge = call::Acknowledge {
            agent_id: agent_id.clone(),
            task_id: status.task_id.clone(),
            uuid: uuid.clone(),
        };
        self.attempt(Call {
            acknowledge: Some(acknowledge),
            ..of(call::Type::Acknowledge)
        })
        .await;
    }

    pub(super) async fn teardown(&self) -> anyhow::Result<()> {
        self.send(of(call::Type::Teardown)).await
    }

    /// Makes a call that can fail without loss, because what it answers or asks comes up again: the
    /// master may die in the middle of it. Why it failed is said.
    async fn attempt(&self, call: Call) {
        if let Err(error) = self.send(call).await {
            eprintln!("meseta: {error:#}; going on");
        }
    }

    async fn send(&self, mut call: Call) -> anyhow::Result<()> {
        call.framework_id = Some(self.framework_id.clone());
        let kind = call.r#type().as_str_name();
        server::post(
            &self.client,
            &self.master,
            "/api/v1/scheduler",
            &self.stream_id,
            &call,
        )
        .await
        .with_context(|| format!("the master did not take the {kind} call"))
    }
}

fn of(kind: call::Type) -> Call {
    Call {
        r#type: Some(kind.into()),
        ..Call::default()
    }
}
