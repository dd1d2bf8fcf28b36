//! A framework over gRPC that counts its events and keeps many calls in flight.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use meseta_proto::meseta::v1::scheduler_client::SchedulerClient;
use meseta_proto::mesos::v1::scheduler::{Call, Event, call};
use meseta_proto::mesos::v1::{self, TaskState};
use meseta_tests::simulated_agents::KEPT;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tonic::Streaming;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;

use crate::updates::Told;

/// The largest number of concurrent acknowledgements.
const CALLS_MAX: usize = 256;
const MESSAGE_MAX: usize = 64 * 1024 * 1024;
const WINDOW_BYTES: u32 = 64 * 1024 * 1024;

/// The identity of a framework.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) role: String,
    pub(crate) user: String,
    /// The seconds for which the framework may be absent, if set.
    pub(crate) failover_timeout: Option<f64>,
    /// The id from an earlier master.
    pub(crate) id: Option<v1::FrameworkId>,
}

impl Identity {
    /// Returns the usual identity: the common role and user, and a framework that ends with its stream.
    pub(crate) fn plain(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            role: "load".to_owned(),
            user: "root".to_owned(),
            failover_timeout: None,
            id: None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Framework {
    client: SchedulerClient<Channel>,
    stream_id: MetadataValue<Ascii>,
    id: v1::FrameworkId,
    events: Streaming<Event>,
    offers: VecDeque<v1::Offer>,
    pub(crate) updates: usize,
    running: usize,
    finished: usize,
    calls: Arc<Semaphore>,
    /// The updates of its tasks, if they are recorded.
    pub(crate) told: Option<Told>,
}

impl Framework {
    pub(crate) async fn subscribe(master: SocketAddr, name: &str) -> anyhow::Result<Self> {
        Self::start(master, &Identity::plain(name), false).await
    }

    /// Subscribes with a role and a user of its own.
    pub(crate) async fn subscribe_as(master: SocketAddr, who: &Identity) -> anyhow::Result<Self> {
        Self::start(master, who, false).await
    }

    pub(crate) async fn subscribe_suppressed(
        master: SocketAddr,
        name: &str,
    ) -> anyhow::Result<Self> {
        Self::start(master, &Identity::plain(name), true).await
    }

    /// Subscribes with a window that holds the events which arrive during a call: unread events would otherwise delay the
    /// answer of the call.
    async fn start(master: SocketAddr, who: &Identity, suppressed: bool) -> anyhow::Result<Self> {
        let channel = Channel::from_shared(format!("http://{master}"))?
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(2 * WINDOW_BYTES);
        Self::subscribed(channel.connect().await?, who, suppressed).await
    }

    /// Subscribes on a connection that others may use too.
    pub(crate) async fn over(
        channel: Channel,
        name: &str,
        suppressed: bool,
    ) -> anyhow::Result<Self> {
        Self::subscribed(channel, &Identity::plain(name), suppressed).await
    }

    async fn subscribed(
        channel: Channel,
        who: &Identity,
        suppressed: bool,
    ) -> anyhow::Result<Self> {
        let mut client = SchedulerClient::new(channel)
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(MESSAGE_MAX);
        let kinds = [
            v1::framework_info::capability::Type::MultiRole,
            v1::framework_info::capability::Type::PartitionAware,
        ];
        let framework_info = v1::FrameworkInfo {
            user: who.user.clone(),
            name: who.name.clone(),
            roles: vec![who.role.clone()],
            failover_timeout: who.failover_timeout,
            id: who.id.clone(),
            capabilities: kinds
                .map(|kind| v1::framework_info::Capability {
                    r#type: Some(kind.into()),
                })
                .to_vec(),
            ..v1::FrameworkInfo::default()
        };
        let subscribe = call::Subscribe {
            framework_info,
            suppressed_roles: suppressed.then(|| who.role.clone()).into_iter().collect(),
            ..call::Subscribe::default()
        };
        let response = client.subscribe(subscribe).await?;
        let stream_id = response
            .metadata()
            .get("mesos-stream-id")
            .context("a stream id")?
            .clone();
        let mut events = response.into_inner();
        let first = events.message().await?.context("SUBSCRIBED")?;
        let id = first.subscribed.context("SUBSCRIBED")?.framework_id;
        Ok(Self {
            client,
            stream_id,
            id,
            events,
            offers: VecDeque::new(),
            updates: 0,
            running: 0,
            finished: 0,
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            told: None,
        })
    }

    pub(crate) fn id(&self) -> v1::FrameworkId {
        self.id.clone()
    }

    pub(crate) fn offers(&self) -> usize {
        self.offers.len()
    }

    fn request(&self, kind: call::Type, body: Call) -> tonic::Request<Call> {
        let mut request = tonic::Request::new(Call {
            framework_id: Some(self.id.clone()),
            r#type: Some(kind.into()),
            ..body
        });
        request
            .metadata_mut()
            .insert("mesos-stream-id", self.stream_id.clone());
        request
    }

    async fn call(&mut self, kind: call::Type, body: Call) -> anyhow::Result<()> {
        let request = self.request(kind, body);
        self.client.call(request).await?;
        Ok(())
    }

    /// Handles the next event and acknowledges it if necessary.
    pub(crate) async fn step(&mut self) -> anyhow::Result<()> {
        let event = self
            .events
            .message()
            .await?
            .context("the stream has ended")?;
        if let Some(error) = event.error {
            bail!(error.message);
        }
        self.offers
            .extend(event.offers.into_iter().flat_map(|offers| offers.offers));
        if let Some(rescind) = event.rescind {
            self.offers.retain(|offer| offer.id != rescind.offer_id);
        }
        let Some(status) = event.update.map(|update| update.status) else {
            return Ok(());
        };
        self.updates += 1;
        self.running += usize::from(status.state() == TaskState::TaskRunning);
        self.finished += usize::from(status.state() == TaskState::TaskFinished);
        let state = status.state();
        let (Some(uuid), Some(agent_id)) = (status.uuid, status.agent_id) else {
            return Ok(());
        };
        let is_noted = self.told.is_some();
        if let Some(told) = &mut self.told {
            let updates = told.entry(status.task_id.value.clone()).or_default();
            updates.push((state, uuid.clone()));
        }
        let acknowledge = call::Acknowledge {
            agent_id,
            task_id: status.task_id,
            uuid,
        };
        let body = Call {
            acknowledge: Some(acknowledge),
            ..Call::default()
        };
        let request = self.request(call::Type::Acknowledge, body);
        let mut client = self.client.clone();
        let permit = self.calls.clone().acquire_owned().await?;
        tokio::spawn(async move {
            let _permit = permit;
            // The tests that note updates sometimes kill the master; the agent then resends the update.
            if let Err(status) = client.call(request).await
                && !is_noted
            {
                eprintln!("an acknowledgement was refused: {status}");
            }
        });
        Ok(())
    }

    /// Launches tasks on all offers and waits for their acknowledged ends.
    pub(crate) async fn run_tasks(&mut self, count: usize) -> anyhow::Result<()> {
        self.launch_all("task", count, |all| all.finished).await
    }

    /// Launches tasks that do not end.
    pub(crate) async fn keep_tasks(&mut self, count: usize) -> anyhow::Result<()> {
        self.launch_all(KEPT, count, |all| all.running).await
    }

    /// Launches tasks that end later, whose ids begin with `kind`.
    pub(crate) async fn launch_all_of(&mut self, kind: &str, count: usize) -> anyhow::Result<()> {
        self.launch_all(kind, count, |all| all.running).await
    }

    async fn launch_all(
        &mut self,
        kind: &str,
        count: usize,
        done: fn(&Self) -> usize,
    ) -> anyhow::Result<()> {
        let share = count.div_ceil(self.offers().max(1)).min(5_000);
        let (mut launched, end) = (0, done(self) + count);
        while done(self) < end {
            while launched < count
                && let Some(offer) = self.offers.pop_front()
            {
                let tasks = (launched..count.min(launched + share))
                    .map(|index| task(&offer.agent_id, kind, index))
                    .collect::<Vec<_>>();
                launched += tasks.len();
                self.launch(offer.id, tasks).await?;
            }
            self.step().await?;
        }
        // All acknowledgements have their responses.
        let permits = u32::try_from(CALLS_MAX)?;
        self.calls.acquire_many(permits).await?.forget();
        self.calls.add_permits(CALLS_MAX);
        Ok(())
    }

    async fn launch(&mut self, offer: v1::OfferId, tasks: Vec<v1::TaskInfo>) -> anyhow::Result<()> {
        let launch = v1::offer::Operation {
            r#type: Some(v1::offer::operation::Type::Launch.into()),
            launch: Some(v1::offer::operation::Launch { task_infos: tasks }),
            ..v1::offer::Operation::default()
        };
        let accept = call::Accept {
            offer_ids: vec![offer],
            operations: vec![launch],
            filters: Some(v1::Filters {
                refuse_seconds: Some(0.0),
            }),
        };
        let body = Call {
            accept: Some(accept),
            ..Call::default()
        };
        self.call(call::Type::Accept, body).await
    }

    /// Measures the time from a request for offers until offers come, this many times.
    pub(crate) async fn offer_latencies(&mut self, times: usize) -> anyhow::Result<Vec<Duration>> {
        let mut latencies = Vec::with_capacity(times);
        for _ in 0..times {
            while self.offers.is_empty() {
                self.step().await?;
            }
            let offer_ids = self.offers.drain(..).map(|offer| offer.id).collect();
            let decline = call::Decline {
                offer_ids,
                filters: Some(v1::Filters {
                    refuse_seconds: Some(3600.0),
                }),
            };
            let body = Call {
                decline: Some(decline),
                ..Call::default()
            };
            self.call(call::Type::Decline, body).await?;
            let start = Instant::now();
            self.call(call::Type::Revive, Call::default()).await?;
            while self.offers.is_empty() {
                self.step().await?;
            }
            latencies.push(start.elapsed());
        }
        Ok(latencies)
    }

    /// Measures DECLINE calls of nothing, one after another, each through the master's core, until `is_over`.
    pub(crate) async fn decline_until(
        &mut self,
        is_over: impl Fn() -> bool,
    ) -> anyhow::Result<Vec<Duration>> {
        let mut latencies = Vec::new();
        while !is_over() {
            let body = Call {
                decline: Some(call::Decline::default()),
                ..Call::default()
            };
            let start = Instant::now();
            self.call(call::Type::Decline, body).await?;
            latencies.push(start.elapsed());
        }
        Ok(latencies)
    }

    /// Suppresses offers, and declines those that it has.
    pub(crate) async fn suppress(&mut self) -> anyhow::Result<()> {
        self.call(call::Type::Suppress, Call::default()).await?;
        self.give_back().await
    }

    async fn give_back(&mut self) -> anyhow::Result<()> {
        let offer_ids = self.offers.drain(..).map(|offer| offer.id).collect();
        let decline = call::Decline {
            offer_ids,
            ..call::Decline::default()
        };
        let body = Call {
            decline: Some(decline),
            ..Call::default()
        };
        self.call(call::Type::Decline, body).await
    }

    /// Sends one RECONCILE about unknown tasks.
    pub(crate) async fn reconcile_unknown(&mut self, count: usize) -> anyhow::Result<()> {
        let tasks = (0..count)
            .map(|index| call::reconcile::Task {
                task_id: v1::TaskId {
                    value: format!("no-such-task-{index}"),
                },
                agent_id: None,
            })
            .collect();
        self.reconcile(tasks).await
    }

    /// Sends one RECONCILE about all its tasks: without ids, or with the ids that [`Self::keep_tasks`] gave them.
    pub(crate) async fn reconcile_kept(&mut self, named: Option<usize>) -> anyhow::Result<()> {
        let tasks = (0..named.unwrap_or_default())
            .map(|index| call::reconcile::Task {
                task_id: v1::TaskId {
                    value: format!("{KEPT}-{index}"),
                },
                agent_id: None,
            })
            .collect();
        self.reconcile(tasks).await
    }

    async fn reconcile(&mut self, tasks: Vec<call::reconcile::Task>) -> anyhow::Result<()> {
        let body = Call {
            reconcile: Some(call::Reconcile { tasks }),
            ..Call::default()
        };
        self.call(call::Type::Reconcile, body).await
    }

    /// Reads on for a framework that wants nothing more: offers that were already under way go back too.
    pub(crate) fn read_in_background(mut self) -> JoinHandle<()> {
        tokio::spawn(async move {
            while self.step().await.is_ok() {
                if !self.offers.is_empty() && self.give_back().await.is_err() {
                    break;
                }
            }
        })
    }

    pub(crate) async fn teardown(mut self) -> anyhow::Result<()> {
        self.call(call::Type::Teardown, Call::default()).await
    }
}

fn task(agent_id: &v1::AgentId, kind: &str, index: usize) -> v1::TaskInfo {
    let needs = |name: &str, value: f64| v1::Resource {
        name: name.to_owned(),
        r#type: v1::value::Type::Scalar.into(),
        scalar: Some(v1::value::Scalar { value }),
        ..v1::Resource::default()
    };
    v1::TaskInfo {
        name: "load".to_owned(),
        task_id: v1::TaskId {
            value: format!("{kind}-{index}"),
        },
        agent_id: agent_id.clone(),
        command: Some(v1::CommandInfo {
            value: Some("true".to_owned()),
            ..v1::CommandInfo::default()
        }),
        resources: vec![needs("cpus", 0.1), needs("mem", 16.0)],
        ..v1::TaskInfo::default()
    }
}
