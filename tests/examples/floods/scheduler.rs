//! A framework over `/api/v1/scheduler`, in protobuf: one stream of events with arrival times, and calls on a kept
//! connection. It can stop reading its stream.

use std::collections::VecDeque;
use std::io::{self, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::framework_info::capability::Type as Capability;
use meseta_proto::mesos::v1::scheduler::{Call, Event, OfferConstraints, call, event};
use prost::Message as _;

use crate::fleet::{self, Fleet};
use crate::sockets::{Chunked, Client, Head, Reply, connect, next_record, send_head};

const PATH: &str = "POST /api/v1/scheduler";
const MEDIA: &str = "application/x-protobuf";
/// The address group of hostile frameworks.
const GROUP: u8 = 10;
/// The pause between two looks whether an unread stream is to be read.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The settings of a framework's subscription.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) principal: &'static str,
    pub(crate) info: pb::FrameworkInfo,
    pub(crate) constraints: Option<OfferConstraints>,
    pub(crate) suppressed: bool,
    /// The source address of its connections, if it differs from the daemons' address.
    pub(crate) from: Option<Ipv4Addr>,
}

impl Subscription {
    /// Returns a subscription of the hostile principal, in these roles.
    pub(crate) fn hostile(roles: &[&str]) -> Self {
        Self {
            principal: "flood",
            info: info(roles),
            constraints: None,
            suppressed: false,
            from: Some(fleet::client_address(GROUP, 1)),
        }
    }

    pub(crate) fn measured(roles: &[&str]) -> Self {
        Self {
            principal: fleet::MEASURED,
            from: None,
            ..Self::hostile(roles)
        }
    }
}

fn info(roles: &[&str]) -> pb::FrameworkInfo {
    let kinds = [
        Capability::MultiRole,
        Capability::ReservationRefinement,
        Capability::PartitionAware,
    ];
    let capability = |kind: Capability| pb::framework_info::Capability {
        r#type: Some(kind.into()),
    };
    pb::FrameworkInfo {
        user: "root".to_owned(),
        name: roles.join("+"),
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        checkpoint: Some(true),
        capabilities: kinds.map(capability).to_vec(),
        ..pb::FrameworkInfo::default()
    }
}

#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(crate) id: pb::FrameworkId,
    stream_id: String,
    authorization: String,
    client: Client,
    stream: TcpStream,
    events: Receiver<(Instant, Event)>,
    kept: VecDeque<(Instant, Event)>,
    reads: Arc<AtomicBool>,
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // The reading thread ends with the stream.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

fn refused(status: u16) -> io::Error {
    io::Error::other(format!("the master answered {status}"))
}

impl Scheduler {
    /// Subscribes, and returns the status if the master refuses.
    pub(crate) fn subscribe(fleet: &Fleet, what: Subscription) -> io::Result<Result<Self, u16>> {
        let authorization = fleet::authorization(what.principal);
        let roles = what.info.roles.clone();
        let subscribe = call::Subscribe {
            framework_info: what.info,
            suppressed_roles: if what.suppressed { roles } else { Vec::new() },
            offer_constraints: what.constraints,
        };
        let body = Call {
            r#type: Some(call::Type::Subscribe.into()),
            subscribe: Some(subscribe),
            ..Call::default()
        };
        let body = body.encode_to_vec();
        let mut stream = connect(fleet.master_address(), what.from)?;
        let headers = [
            ("Content-Type", MEDIA),
            ("Accept", MEDIA),
            ("Authorization", &authorization),
        ];
        let sent = send_head(&mut stream, PATH, &headers, body.len())
            .and_then(|()| stream.write_all(&body));
        drop(body);
        let mut reader = BufReader::new(stream.try_clone()?);
        let head = match (Head::read(&mut reader), sent) {
            (Ok(head), _) => head,
            (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(error),
        };
        if head.status != 200 {
            return Ok(Err(head.status));
        }
        let stream_id = head.header("mesos-stream-id").unwrap_or_default();
        let stream_id = stream_id.to_owned();
        let mut records = Chunked::new(reader);
        let first = next_record(&mut records)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let first = Event::decode(first.as_slice()).map_err(io::Error::other)?;
        let Some(subscribed) = first.subscribed else {
            return Err(io::Error::other(format!("no SUBSCRIBED: {first:?}")));
        };
        // Heartbeats come, but no other event must.
        stream.set_read_timeout(None)?;
        let reads = Arc::new(AtomicBool::new(true));
        Ok(Ok(Self {
            id: subscribed.framework_id,
            stream_id,
            authorization,
            client: Client::new(fleet.master_address(), what.from),
            events: read(records, reads.clone()),
            stream,
            kept: VecDeque::new(),
            reads,
        }))
    }

    /// Subscribes; a refusal is an error.
    pub(crate) fn subscribed(fleet: &Fleet, what: Subscription) -> io::Result<Self> {
        Self::subscribe(fleet, what)?.map_err(refused)
    }

    /// Stops reading from the socket, after at most one more event.
    pub(crate) fn read_no_more(&self) {
        self.reads.store(false, Ordering::Relaxed);
    }

    /// Returns the next matching event with its time; other events are kept in order.
    pub(crate) fn event<T>(
        &mut self,
        limit: Duration,
        mut probe: impl FnMut(&Event) -> Option<T>,
    ) -> io::Result<(Instant, T)> {
        for at in 0..self.kept.len() {
            if let Some(found) = probe(&self.kept[at].1)
                && let Some((when, _)) = self.kept.remove(at)
            {
                return Ok((when, found));
            }
        }
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let (when, event) = self
                .events
                .recv_timeout(left)
                .map_err(|error| match error {
                    RecvTimeoutError::Timeout => io::Error::from(io::ErrorKind::TimedOut),
                    RecvTimeoutError::Disconnected => io::ErrorKind::UnexpectedEof.into(),
                })?;
            if let Some(found) = probe(&event) {
                return Ok((when, found));
            }
            let is_useful = event.offers.is_some() || event.update.is_some();
            if is_useful {
                self.kept.push_back((when, event));
            }
        }
    }

    /// Returns the next offer to this role, with its time.
    pub(crate) fn offer(
        &mut self,
        role: &str,
        limit: Duration,
    ) -> io::Result<(Instant, pb::Offer)> {
        let of_role = |offer: &&pb::Offer| {
            let info = offer.allocation_info.as_ref();
            info.is_some_and(|info| info.role() == role)
        };
        self.event(limit, |event| {
            let offers = &event.offers.as_ref()?.offers;
            offers.iter().find(of_role).cloned()
        })
    }

    /// Returns an offer to the queue, before all unread events.
    pub(crate) fn put_back(&mut self, when: Instant, offer: pb::Offer) {
        self.kept.push_front((when, of_offer(offer)));
    }

    /// Returns the next matching update. Every update on the way is acknowledged, because further ones would not come
    /// otherwise.
    pub(crate) fn update(
        &mut self,
        limit: Duration,
        matches: impl Fn(&pb::TaskStatus) -> bool,
    ) -> io::Result<(Instant, pb::TaskStatus)> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let (when, status) = self.event(left, |event| {
                event.update.as_ref().map(|update| update.status.clone())
            })?;
            self.acknowledge(&status)?;
            if matches(&status) {
                return Ok((when, status));
            }
        }
    }

    /// Acknowledges all received updates without waiting for more, and returns the number of tasks that they end.
    pub(crate) fn acknowledge_all(&mut self) -> io::Result<usize> {
        let mut ended = 0;
        loop {
            match self.update(Duration::ZERO, |_| true) {
                Ok((_, status)) => ended += usize::from(is_terminal(&status)),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(ended),
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn acknowledge(&mut self, status: &pb::TaskStatus) -> io::Result<()> {
        let (Some(uuid), Some(agent_id)) = (status.uuid.clone(), status.agent_id.clone()) else {
            return Ok(());
        };
        let acknowledge = call::Acknowledge {
            agent_id,
            task_id: status.task_id.clone(),
            uuid,
        };
        let body = Call {
            acknowledge: Some(acknowledge),
            ..Call::default()
        };
        self.accepted(call::Type::Acknowledge, body)
    }

    /// Sends a call, and returns the status of the response.
    pub(crate) fn call(&mut self, kind: call::Type, call: Call) -> io::Result<u16> {
        let call = Call {
            framework_id: Some(self.id.clone()),
            r#type: Some(kind.into()),
            ..call
        };
        let headers = [
            ("Content-Type", MEDIA),
            ("Authorization", &self.authorization),
            ("Mesos-Stream-Id", &self.stream_id),
        ];
        let sent = self.client.send(PATH, &headers, &call.encode_to_vec());
        sent.map(|Reply { status, .. }| status)
    }

    /// Sends a call that must be accepted.
    pub(crate) fn accepted(&mut self, kind: call::Type, call: Call) -> io::Result<()> {
        match self.call(kind, call)? {
            202 => Ok(()),
            status => Err(refused(status)),
        }
    }

    /// Sends ACCEPT with these tasks; refuses the rest of the offer for this time.
    pub(crate) fn launch(
        &mut self,
        offer: &pb::Offer,
        tasks: Vec<pb::TaskInfo>,
        refuse_seconds: f64,
    ) -> io::Result<u16> {
        let launch = pb::offer::Operation {
            r#type: Some(pb::offer::operation::Type::Launch.into()),
            launch: Some(pb::offer::operation::Launch { task_infos: tasks }),
            ..pb::offer::Operation::default()
        };
        let accept = call::Accept {
            offer_ids: vec![offer.id.clone()],
            operations: vec![launch],
            filters: Some(pb::Filters {
                refuse_seconds: Some(refuse_seconds),
            }),
        };
        let body = Call {
            accept: Some(accept),
            ..Call::default()
        };
        self.call(call::Type::Accept, body)
    }

    pub(crate) fn decline(&mut self, offer: &pb::Offer, refuse_seconds: f64) -> io::Result<()> {
        let decline = call::Decline {
            offer_ids: vec![offer.id.clone()],
            filters: Some(pb::Filters {
                refuse_seconds: Some(refuse_seconds),
            }),
        };
        let body = Call {
            decline: Some(decline),
            ..Call::default()
        };
        self.accepted(call::Type::Decline, body)
    }

    pub(crate) fn revive(&mut self, role: &str) -> io::Result<()> {
        let revive = call::Revive {
            roles: vec![role.to_owned()],
        };
        let body = Call {
            revive: Some(revive),
            ..Call::default()
        };
        self.accepted(call::Type::Revive, body)
    }

    pub(crate) fn kill(&mut self, task: &str) -> io::Result<()> {
        let kill = call::Kill {
            task_id: task_id(task),
            agent_id: None,
            kill_policy: None,
        };
        let body = Call {
            kill: Some(kill),
            ..Call::default()
        };
        self.accepted(call::Type::Kill, body)
    }

    /// Sends a MESSAGE to an executor.
    pub(crate) fn message(
        &mut self,
        agent_id: &pb::AgentId,
        executor: &str,
        data: Vec<u8>,
    ) -> io::Result<u16> {
        let message = call::Message {
            agent_id: agent_id.clone(),
            executor_id: executor_id(executor),
            data,
        };
        let body = Call {
            message: Some(message),
            ..Call::default()
        };
        self.call(call::Type::Message, body)
    }

    pub(crate) fn teardown(mut self) -> io::Result<u16> {
        self.call(call::Type::Teardown, Call::default())
    }
}

/// Starts a thread that reads events until the stream ends.
fn read(mut records: Chunked, reads: Arc<AtomicBool>) -> Receiver<(Instant, Event)> {
    let (sender, events) = channel();
    std::thread::spawn(move || {
        while let Ok(Some(record)) = next_record(&mut records) {
            let now = Instant::now();
            let Ok(event) = Event::decode(record.as_slice()) else {
                return;
            };
            if divided(event).any(|event| sender.send((now, event)).is_err()) {
                return;
            }
            // Only its owner has the other reference.
            while !reads.load(Ordering::Relaxed) && Arc::strong_count(&reads) > 1 {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    });
    events
}

/// Returns one event for each offer.
fn divided(mut event: Event) -> impl Iterator<Item = Event> {
    let offers = event
        .offers
        .as_mut()
        .map(|all| std::mem::take(&mut all.offers));
    let is_other = offers.is_none();
    let offers = offers.into_iter().flatten().map(of_offer);
    is_other.then_some(event).into_iter().chain(offers)
}

fn of_offer(offer: pb::Offer) -> Event {
    Event {
        offers: Some(event::Offers {
            offers: vec![offer],
        }),
        ..Event::default()
    }
}

pub(crate) fn is_terminal(status: &pb::TaskStatus) -> bool {
    use pb::TaskState::{
        TaskDropped, TaskError, TaskFailed, TaskFinished, TaskGone, TaskGoneByOperator, TaskKilled,
        TaskLost,
    };
    matches!(
        status.state(),
        TaskDropped
            | TaskError
            | TaskFailed
            | TaskFinished
            | TaskGone
            | TaskGoneByOperator
            | TaskKilled
            | TaskLost
    )
}

pub(crate) fn task_id(id: &str) -> pb::TaskId {
    pb::TaskId {
        value: id.to_owned(),
    }
}

pub(crate) fn executor_id(id: &str) -> pb::ExecutorId {
    pb::ExecutorId {
        value: id.to_owned(),
    }
}

/// Returns these amounts of the offered resources.
fn share(offer: &pb::Offer, amounts: [(&str, f64); 2]) -> Vec<pb::Resource> {
    let one = |(name, value): (&str, f64)| {
        let found = offer.resources.iter().find(|one| one.name == name)?;
        let mut found = found.clone();
        found.scalar = Some(pb::value::Scalar { value });
        Some(found)
    };
    amounts.into_iter().filter_map(one).collect()
}

/// Returns a task with a shell command on the agent of an offer.
pub(crate) fn task(offer: &pb::Offer, id: &str, command: &str) -> pb::TaskInfo {
    pb::TaskInfo {
        name: id.to_owned(),
        task_id: task_id(id),
        agent_id: offer.agent_id.clone(),
        command: Some(shell(command)),
        resources: share(offer, [("cpus", 0.1), ("mem", 32.0)]),
        ..pb::TaskInfo::default()
    }
}

pub(crate) fn shell(command: &str) -> pb::CommandInfo {
    pb::CommandInfo {
        value: Some(command.to_owned()),
        ..pb::CommandInfo::default()
    }
}

/// Returns a task whose executor is this program with a given behaviour.
pub(crate) fn executor_task(
    offer: &pb::Offer,
    id: &str,
    executor: &str,
    behaviour: &str,
) -> io::Result<pb::TaskInfo> {
    let program = std::env::current_exe()?;
    let info = pb::ExecutorInfo {
        r#type: Some(pb::executor_info::Type::Custom.into()),
        executor_id: executor_id(executor),
        command: Some(shell(&format!(
            "exec {} executor {behaviour} {id}",
            program.display()
        ))),
        resources: share(offer, [("cpus", 0.1), ("mem", 128.0)]),
        ..pb::ExecutorInfo::default()
    };
    Ok(pb::TaskInfo {
        command: None,
        executor: Some(Box::new(info)),
        ..task(offer, id, "")
    })
}
