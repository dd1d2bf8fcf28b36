//! The scheduler's side of the v1 API, as far as one task needs it.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use meseta_proto::mesos::v1 as mesos;
use meseta_proto::mesos::v1::scheduler::{Call, Event, call, event};
use meseta_proto::reconciler;

use meseta_daemon::client::Client;
use meseta_daemon::leader::Others;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::masters;
use super::server::{self, EventStream};
use crate::terminal;

/// Heartbeats that may be missing before the stream counts as dead.
const HEARTBEATS_MISSED_MAX: f64 = 3.0;
/// The time limit for a sign of life from a master that states no interval.
const PATIENCE: Duration = Duration::from_secs(45);
/// Events that are read and not yet handled.
const EVENTS_MAX: usize = 16;

/// The refusal of this framework by a leading master.
#[derive(Debug, thiserror::Error)]
#[error("the master refused the subscription: {0}")]
pub(super) struct Refused(pub(super) String);

/// A subscribed framework.
#[derive(Debug)]
pub(super) struct Scheduler {
    client: Client,
    master: String,
    stream_id: String,
    framework_id: mesos::FrameworkId,
    /// The time limit for a call that comes up again.
    call_timeout: Duration,
    /// The events of the stream; the last item is the reason of its end.
    events: mpsc::Receiver<anyhow::Result<Event>>,
    _reader: AbortOnDropHandle<()>,
}

impl Scheduler {
    /// Subscribes and waits for the master's response.
    pub(super) async fn subscribe(
        masters: &str,
        framework_info: mesos::FrameworkInfo,
        call_timeout: Duration,
    ) -> anyhow::Result<Self> {
        let subscribe = Call {
            framework_id: framework_info.id.clone(),
            subscribe: Some(call::Subscribe {
                framework_info,
                ..call::Subscribe::default()
            }),
            ..empty_call(call::Type::Subscribe)
        };
        let mut subscription =
            server::subscribe::<Call, Event>(masters, "/api/v1/scheduler", &subscribe).await?;
        let first = next(&mut subscription.events, PATIENCE).await?;
        if let Some(error) = first.error {
            return Err(Refused(terminal::one_line(&error.message).into_owned()).into());
        }
        let subscribed = first
            .subscribed
            .context("the master's first event is not SUBSCRIBED")?;
        let interval = subscribed.heartbeat_interval_seconds;
        let patience = interval.map(|seconds| seconds * HEARTBEATS_MISSED_MAX);
        let patience = patience.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let others = masters::others(masters, &subscription.master)?;
        let (told, events) = mpsc::channel(EVENTS_MAX);
        let stream = subscription.events;
        let reader = read(stream, patience.unwrap_or(PATIENCE), others, told);
        Ok(Self {
            client: subscription.client,
            master: subscription.master,
            stream_id: subscription.stream_id,
            framework_id: subscribed.framework_id,
            call_timeout,
            events,
            _reader: AbortOnDropHandle::new(tokio::spawn(reader)),
        })
    }

    pub(super) fn framework_id(&self) -> &str {
        &self.framework_id.value
    }

    /// Returns the next event that is not a heartbeat. Cancel safe.
    pub(super) async fn next(&mut self) -> anyhow::Result<Event> {
        let event = self.events.recv().await;
        event.context("the stream has ended")?
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
            ..empty_call(call::Type::Accept)
        })
        .await
    }

    /// Declines offers, and asks not to receive them again for `refuse_seconds`.
    pub(super) async fn decline(&self, offer_ids: Vec<mesos::OfferId>, refuse_seconds: f64) {
        let filters = Some(mesos::Filters {
            refuse_seconds: Some(refuse_seconds),
        });
        self.attempt(Call {
            decline: Some(call::Decline { offer_ids, filters }),
            ..empty_call(call::Type::Decline)
        })
        .await;
    }

    pub(super) async fn suppress(&self) {
        self.attempt(empty_call(call::Type::Suppress)).await;
    }

    /// Requests offers again after a decline.
    pub(super) async fn revive(&self) {
        self.attempt(empty_call(call::Type::Revive)).await;
    }

    /// Sends a kill; returns false if the master refused it. With the agent's id, the master can report the state of a task
    /// that it does not know.
    pub(super) async fn kill(
        &self,
        task_id: &mesos::TaskId,
        agent_id: Option<&mesos::AgentId>,
    ) -> bool {
        let kill = call::Kill {
            task_id: task_id.clone(),
            agent_id: agent_id.cloned(),
            ..call::Kill::default()
        };
        self.attempt(Call {
            kill: Some(kill),
            ..empty_call(call::Type::Kill)
        })
        .await
    }

    /// Queries the states of tasks.
    pub(super) async fn reconcile(&self, request: reconciler::Request) {
        self.attempt(request.into_call()).await;
    }

    /// Acknowledges an update, if it needs that.
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
            ..empty_call(call::Type::Acknowledge)
        })
        .await;
    }

    pub(super) async fn teardown(&self) -> anyhow::Result<()> {
        self.send(empty_call(call::Type::Teardown)).await
    }

    /// Makes a call that can fail without loss, because its cause comes up again: the master may die in the middle of it,
    /// stand still, or refuse it for a moment. Prints the reason of a failure, and returns false.
    async fn attempt(&self, call: Call) -> bool {
        let kind = call.r#type().as_str_name();
        let sent = tokio::time::timeout(self.call_timeout, self.send(call)).await;
        let sent = sent.unwrap_or_else(|_| {
            let (master, limit) = (&self.master, self.call_timeout);
            Err(anyhow!(
                "{master} has not answered the {kind} call for {limit:?}"
            ))
        });
        if let Err(error) = &sent {
            terminal::note!("meseta: {error:#}; continuing");
        }
        sent.is_ok()
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
        .with_context(|| format!("the master did not accept the {kind} call"))
    }
}

/// Reads the events of a stream to its end, or until the master is silent for long: a master that stands still or is cut
/// off keeps its connections. Runs as a task of its own, so that the silence continues however often the caller requests an
/// event.
async fn read(
    mut stream: EventStream<Event>,
    patience: Duration,
    others: Others,
    told: mpsc::Sender<anyhow::Result<Event>>,
) {
    loop {
        let event = tokio::select! {
            leader = others.until_another_leads() => Err(anyhow!("the master is silent, and {leader} leads")),
            event = next(&mut stream, patience) => event,
        };
        let is_heartbeat = |event: &Event| event.r#type() == event::Type::Heartbeat;
        if event.as_ref().is_ok_and(is_heartbeat) {
            continue;
        }
        let is_last = event.is_err();
        if told.send(event).await.is_err() || is_last {
            return;
        }
    }
}

async fn next(stream: &mut EventStream<Event>, patience: Duration) -> anyhow::Result<Event> {
    let event = tokio::time::timeout(patience, stream.next()).await;
    let event = event.map_err(|_| anyhow!("the master has sent nothing for {patience:?}"))?;
    event?.context("the master ended the stream")
}

fn empty_call(kind: call::Type) -> Call {
    Call {
        r#type: Some(kind.into()),
        ..Call::default()
    }
}

#[cfg(test)]
mod tests {
    use meseta_proto::media::{self, MediaType};
    use meseta_proto::recordio;

    use super::super::canned;
    use super::*;

    /// Regression: the command listened to a suspended master forever.
    #[tokio::test]
    async fn silent_master_is_left() {
        let subscribed = Event {
            r#type: Some(event::Type::Subscribed.into()),
            subscribed: Some(event::Subscribed {
                heartbeat_interval_seconds: Some(0.05),
                ..event::Subscribed::default()
            }),
            ..Event::default()
        };
        let record = recordio::encode(&media::encode(MediaType::Protobuf, &subscribed));
        let master = canned::silent_after(&record);
        let framework = mesos::FrameworkInfo::default();
        let scheduler = Scheduler::subscribe(&master, framework, PATIENCE).await;
        let mut scheduler = scheduler.expect("subscribed");
        let ended = async {
            loop {
                // Each wait is as short as if the command were busy otherwise.
                let event = tokio::time::timeout(Duration::from_millis(10), scheduler.next());
                if let Ok(event) = event.await {
                    return event;
                }
            }
        };
        let event = tokio::time::timeout(Duration::from_secs(30), ended).await;
        let error = event.expect("in time").expect_err("silence").to_string();
        assert_eq!(error, "the master has sent nothing for 150ms");
    }
}
