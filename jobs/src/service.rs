//! The driver of the core: takes inputs from clients, the master, the store and the clock, and executes the effects.
//!
//! [`Service::run`] owns the state; [`Handle`] is the only way in. Invariants: waiting inputs are processed together, so
//! that a burst causes one decision and one write. A scheduler takes nothing but questions, and no time passes for its
//! core, while it may not act, the master is slow to take its calls, or its store is full. Meanwhile a limited number of
//! changes is held; questions are answered, however many changes wait.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use meseta_daemon::fair_semaphore::Permit;
use meseta_etcd::leadership::{Role, Standing, tell};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::core::{Accepted, Effect, Event, Input, Refusal, Request, RoleSet, State};
use crate::link::{CallQueue, Outgoing, Registration, calls};
use crate::store::Store;
use meseta_daemon::clock::Clock;

/// Waiting questions and requests of clients.
const QUEUE_MAX: usize = 256;
/// Changes that are held while calls wait for room.
const HELD_MAX: usize = 256;
/// Events that the link has read and the core has not processed.
const LINK_QUEUE_MAX: usize = 1_024;
/// Inputs that one step processes.
const BATCH_MAX: usize = 1_024;
/// The client questions and requests that the core takes between two steps; it decides on the requests together.
const COMMANDS_MAX: usize = 16;
/// The pause between two ticks of the core.
const TICK: Duration = Duration::from_millis(100);
/// The pause between two checks whether the core is still in the same step.
const BUSY_INTERVAL: Duration = Duration::from_secs(1);
/// Events by which a reader of the stream may be behind.
const EVENTS_MAX: usize = 4_096;

/// The messages from the link to the core.
#[derive(Debug)]
pub(crate) enum FromLink {
    /// A new stream; calls go to this queue until the next stream.
    Subscribed {
        framework_id: String,
        /// The roles that the stream was opened with.
        roles: RoleSet,
        calls: CallQueue,
    },
    Input(Input),
    /// The response to a call, which has no meaning once its stream has ended.
    Answer {
        input: Input,
        /// The token that is cancelled with the stream.
        broken: CancellationToken,
    },
}

type Reading = Box<dyn FnOnce(&State) + Send>;

/// The outcome of a requested change.
type Answer = Result<Result<Accepted, Refusal>, Unavailable>;

enum Command {
    Request(Request, Asker),
    Read(Reading),
}

/// The client that waits for the answer to a change.
struct Asker {
    reply: oneshot::Sender<Answer>,
    /// The turn of the client, which lasts until the answer, whether or not the client still waits.
    _turn: Option<Permit>,
}

impl Asker {
    /// Returns true if the client has left.
    fn is_gone(&self) -> bool {
        self.reply.is_closed()
    }

    fn answer(self, answer: Answer) {
        // The client may have left.
        let _ = self.reply.send(answer);
    }
}

/// The handle to the core for the rest of the daemon; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    commands: mpsc::Sender<Command>,
    events: broadcast::Sender<Arc<Event>>,
    /// The standing of this scheduler, which decides whether the core accepts changes.
    pub(crate) standing: Standing,
}

/// The reason why the core does not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unavailable {
    #[error("the scheduler is ending")]
    Ending,
    #[error("this scheduler accepts no changes at the moment: {0}")]
    Suspended(String),
    #[error("this scheduler cannot act at the moment; the result of the change is not known yet")]
    Unknown,
    #[error(
        "the master or the store is slow, and {HELD_MAX} changes are waiting: the scheduler \
         rejected this change; try again later"
    )]
    Busy,
}

impl Handle {
    /// Requests a change without a turn.
    #[cfg(test)]
    pub(crate) async fn request(&self, request: Request) -> Answer {
        self.request_with(request, None).await
    }

    /// Requests a change of a client that has its turn, and returns its result once the change is durable.
    pub(crate) async fn request_in_turn(&self, request: Request, turn: Permit) -> Answer {
        self.request_with(request, Some(turn)).await
    }

    async fn request_with(&self, request: Request, turn: Option<Permit>) -> Answer {
        if let Some(reason) = self.standing.suspended() {
            return Err(Unavailable::Suspended(reason));
        }
        let (reply, answer) = oneshot::channel();
        let asker = Asker { reply, _turn: turn };
        self.send(Command::Request(request, asker)).await?;
        let mut role = self.standing.role.clone();
        let until_suspended = role.wait_for(|role| matches!(role, Role::Suspended { .. }));
        tokio::select! {
            biased;
            answer = answer => answer.unwrap_or(Err(Unavailable::Ending)),
            Ok(_) = until_suspended => Err(Unavailable::Unknown),
        }
    }

    async fn send(&self, command: Command) -> Result<(), Unavailable> {
        let sent = self.commands.send(command).await;
        sent.map_err(|_| Unavailable::Ending)
    }

    /// Reads the state between two steps.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&State) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (reply, answer) = oneshot::channel();
        let reading = Box::new(move |state: &State| {
            // The caller may have left.
            let _ = reply.send(look(state));
        });
        self.send(Command::Read(reading)).await?;
        answer.await.map_err(|_| Unavailable::Ending)
    }

    /// Returns a receiver of events from now on.
    pub(crate) fn events(&self) -> broadcast::Receiver<Arc<Event>> {
        self.events.subscribe()
    }
}

/// The start of the core's present step or look, for its watchers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Busy(Arc<Mutex<Option<Instant>>>);

impl Busy {
    fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        self.set(Some(Instant::now()));
        let done = work();
        self.set(None);
        done
    }

    fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Waits until one step or look has taken this long.
    pub(crate) async fn beyond(&self, most: Duration) {
        let mut looks = tokio::time::interval(BUSY_INTERVAL);
        loop {
            looks.tick().await;
            let since = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if since.is_some_and(|since| since.elapsed() > most) {
                return;
            }
        }
    }
}

/// The loop around the core, with everything that the loop owns.
pub(crate) struct Service {
    state: State,
    store: Store,
    clock: Clock,
    inbox: Inbox,
    outgoing: Outgoing,
    /// Whether the store had no room at the last check.
    is_store_full: bool,
    /// Requests that came while calls or writes wait for room.
    held: Vec<(Request, Asker)>,
    waiting: BTreeMap<u64, Asker>,
    next_request: u64,
}

/// The channel ends of a service, created before the service itself.
pub(crate) struct Ends {
    pub(crate) handle: Handle,
    pub(crate) link: mpsc::Sender<FromLink>,
    pub(crate) registration: watch::Receiver<Registration>,
    pub(crate) inbox: Inbox,
}

/// The service's sources of input and its watchers.
#[derive(Debug)]
pub(crate) struct Inbox {
    commands: mpsc::Receiver<Command>,
    link: mpsc::Receiver<FromLink>,
    events: broadcast::Sender<Arc<Event>>,
    registration: watch::Sender<Registration>,
    standing: Standing,
    pub(crate) busy: Busy,
}

impl Ends {
    pub(crate) fn new(registration: Registration, standing: Standing) -> Self {
        let (commands, of_commands) = mpsc::channel(QUEUE_MAX);
        let (link, of_link) = mpsc::channel(LINK_QUEUE_MAX);
        let (events, _) = broadcast::channel(EVENTS_MAX);
        let (registration, of_registration) = watch::channel(registration);
        Self {
            inbox: Inbox {
                commands: of_commands,
                link: of_link,
                events: events.clone(),
                registration,
                standing: standing.clone(),
                busy: Busy::default(),
            },
            handle: Handle {
                commands,
                events,
                standing,
            },
            link,
            registration: of_registration,
        }
    }
}

impl Inbox {
    /// Answers questions from this state while there is no service. Never returns while questions may come.
    pub(crate) async fn stand_by(&mut self, nothing: &State) {
        while self.answer_next(nothing).await {}
    }

    /// Answers the next question from this state. Returns false once no question can come.
    pub(crate) async fn answer_next(&mut self, state: &State) -> bool {
        match self.commands.recv().await {
            Some(Command::Read(look)) => look(state),
            // No request gets here: the dropped answer shows that the scheduler ends.
            Some(Command::Request(..)) => {}
            None => return false,
        }
        true
    }
}

impl Service {
    pub(crate) fn new(state: State, store: Store, clock: Clock, inbox: Inbox) -> Self {
        inbox
            .registration
            .send_modify(|present| *present = present.with(&state));
        Self {
            state,
            store,
            clock,
            inbox,
            outgoing: Outgoing::default(),
            is_store_full: false,
            held: Vec::new(),
            waiting: BTreeMap::new(),
            next_request: 0,
        }
    }

    /// Runs until `shutdown`; decisions made before are durable.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut durable = self.store.durable();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut role = self.inbox.standing.role.clone();
        loop {
            let is_blocked = self.outgoing.is_blocked();
            self.look_at_store();
            let leads = self.inbox.standing.now() == Role::Leading && !is_blocked;
            let acts = leads && !self.is_store_full;
            let mut inputs = match acts {
                true => self.take_held(),
                false => Vec::new(),
            };
            tokio::select! {
                () = shutdown.cancelled() => break,
                // A durable write of a full store ends that wait.
                Ok(()) = durable.changed(), if leads => {
                    inputs.push(Input::Stored(*durable.borrow_and_update()));
                }
                Some(told) = self.inbox.link.recv(), if acts => self.take(told, &mut inputs),
                Some(command) = self.inbox.commands.recv() => self.command(command, &mut inputs),
                _ = ticks.tick(), if acts => {
                    let kills_waiting = self.outgoing.kills_waiting();
                    inputs.push(Input::Tick { kills_waiting });
                }
                () = self.outgoing.drain(), if is_blocked => {}
                Ok(()) = role.changed() => {}
            }
            while acts
                && inputs.len() < BATCH_MAX
                && let Ok(told) = self.inbox.link.try_recv()
            {
                self.take(told, &mut inputs);
            }
            for _ in 1..COMMANDS_MAX {
                let Ok(command) = self.inbox.commands.try_recv() else {
                    break;
                };
                self.command(command, &mut inputs);
            }
            self.step(inputs);
        }
        self.store.close().await;
    }

    fn take(&mut self, told: FromLink, inputs: &mut Vec<Input>) {
        match told {
            FromLink::Input(input) => inputs.push(input),
            FromLink::Answer { input, broken } => {
                inputs.extend((!broken.is_cancelled()).then_some(input));
            }
            FromLink::Subscribed {
                framework_id,
                roles,
                calls,
            } => {
                self.outgoing.connect(calls);
                inputs.push(Input::Subscribed {
                    framework_id,
                    roles,
                });
            }
        }
    }

    fn command(&mut self, command: Command, inputs: &mut Vec<Input>) {
        match command {
            Command::Read(look) => self.inbox.busy.during(|| look(&self.state)),
            Command::Request(request, asker) => {
                match self.outgoing.is_blocked() || self.is_store_full {
                    true => self.hold(request, asker),
                    false => inputs.push(self.asked(request, asker)),
                }
            }
        }
    }

    /// Checks whether the store has room for further decisions.
    fn look_at_store(&mut self) {
        let was_full = std::mem::replace(&mut self.is_store_full, self.store.is_full());
        match (was_full, self.is_store_full) {
            (false, true) => {
                tracing::warn!(
                    "the store is slow: the scheduler decides nothing until the store \
                    has capacity"
                )
            }
            (true, false) => tracing::info!("the store has capacity again"),
            _ => {}
        }
    }

    /// Holds a change until calls and writes are sent, or refuses it if too many waiting clients' changes are held.
    fn hold(&mut self, request: Request, asker: Asker) {
        if self.held.len() >= HELD_MAX {
            self.held.retain(|(_, asker)| !asker.is_gone());
        }
        if self.held.len() < HELD_MAX {
            return self.held.push((request, asker));
        }
        asker.answer(Err(Unavailable::Busy));
    }

    /// Returns the held changes, except those of clients that have left.
    fn take_held(&mut self) -> Vec<Input> {
        let held = std::mem::take(&mut self.held).into_iter();
        let held = held.filter(|(_, asker)| !asker.is_gone());
        held.map(|(request, asker)| self.asked(request, asker))
            .collect()
    }

    fn asked(&mut self, request: Request, asker: Asker) -> Input {
        self.next_request += 1;
        let id = self.next_request;
        self.waiting.insert(id, asker);
        Input::Request { id, request }
    }

    fn step(&mut self, inputs: Vec<Input>) {
        if inputs.is_empty() {
            return;
        }
        let (state, now) = (&mut self.state, self.clock.now());
        let effects = (self.inbox.busy).during(|| state.step_all(now, inputs));
        for effect in effects {
            self.carry_out(effect);
        }
        let registration = self.inbox.registration.borrow().with(&self.state);
        tell(&self.inbox.registration, registration);
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Store { id, records } => self.store.write(id, records),
            Effect::Answer { id, answer } => {
                if let Some(asker) = self.waiting.remove(&id) {
                    asker.answer(Ok(answer));
                }
            }
            Effect::Event(event) => {
                tracing::debug!(job = %event.job, task_id = event.task_id.as_deref(), text = %event.text, "event");
                // The events may have no subscriber.
                let _ = self.inbox.events.send(Arc::new(event));
            }
            Effect::Accept(accept) => {
                let call = calls::accept(&accept, &self.inbox.registration.borrow());
                self.outgoing.send(call);
            }
            Effect::Decline { offers, refuse } => {
                self.outgoing.send(calls::decline(offers, refuse));
            }
            Effect::Kill { task_id, agent_id } => {
                self.outgoing.send(calls::kill(task_id, agent_id));
            }
            Effect::Acknowledge(status) => {
                if let Some(call) = calls::acknowledge(&status) {
                    self.outgoing.send(call);
                }
            }
            Effect::Reconcile(request) => self.outgoing.send(request.into_call()),
            Effect::AcknowledgeOperation(status) => {
                if let Some(call) = calls::acknowledge_operation(&status) {
                    self.outgoing.send(call);
                }
            }
            Effect::ReconcileOperations(operations) => {
                self.outgoing.send(calls::reconcile_operations(operations));
            }
            Effect::Suppress(roles) => self.outgoing.send(calls::suppress(roles)),
            Effect::Revive(roles) => self.outgoing.send(calls::revive(roles)),
            Effect::Roles(roles) => {
                let present = self.inbox.registration.borrow().with(&self.state);
                let registration = Registration { roles, ..present };
                self.outgoing.send(calls::update_framework(&registration));
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use crate::store::disk_report::DiskReport;
    use meseta_etcd::leadership::fence::BootTime;
    use meseta_etcd::leadership::{Fence, ProvenLeader};
    use meseta_proto::mesos::v1::scheduler::Call;
    use meseta_proto::mesos::v1::{TaskId, TaskState, TaskStatus};
    use meseta_proto::reconciler::ReconcileIntervals;
    use meseta_resources::Resources;

    use super::*;
    use crate::core::Options;
    use crate::placement::Offer;
    use crate::store;

    /// Returns the state of a scheduler without jobs.
    pub(crate) fn empty_state(clock: Clock) -> State {
        State::restore(options(), clock.now(), []).expect("nothing to restore")
    }

    pub(crate) fn options() -> Options {
        Options {
            service_unreachable: Duration::from_secs(60),
            batch_unreachable: Duration::from_secs(60),
            next_time: |_, _| None,
            reconcile: ReconcileIntervals::default(),
            principal: None,
            drawn: 1,
        }
    }

    #[tokio::test]
    async fn fenced_leader_accepts_only_questions() {
        let dir = tempfile::tempdir().expect("a folder");
        // The scheduler does not know yet that it no longer leads.
        let (_role, role) = watch::channel(Role::Leading);
        let fence = Fence::closed();
        let ends = Ends::new(
            Registration::default(),
            Standing {
                role,
                fence: fence.clone(),
                proven: ProvenLeader::any(),
            },
        );
        let opened = store::embedded::open(
            &dir.path().join("jobs"),
            Duration::ZERO,
            &DiskReport::default(),
        )
        .await;
        let (_, store) = opened.expect("a new file");
        let clock = Clock::new();
        let service = Service::new(empty_state(clock), store, clock, ends.inbox);
        let stop = CancellationToken::new();
        let running = tokio::spawn(service.run(stop.clone()));
        let subscribed = Input::Subscribed {
            framework_id: "f".to_owned(),
            roles: RoleSet::default(),
        };
        let told = ends.link.send(FromLink::Input(subscribed)).await;
        assert!(told.is_ok());
        for _ in 0..10 {
            let is_connected = ends.handle.read(|state| state.is_connected()).await;
            assert_eq!(is_connected, Ok(false));
        }
        fence.extend(BootTime::now().after(Duration::from_secs(3_600)));
        while ends.handle.read(|state| state.is_connected()).await != Ok(true) {}
        stop.cancel();
        running.await.expect("it has ended");
    }

    fn taken_role() -> RoleSet {
        RoleSet {
            roles: BTreeSet::from(["r".to_owned()]),
            ..RoleSet::default()
        }
    }

    /// Returns a scheduler with this many launched tasks of a batch, and its last write.
    fn with_tasks(clock: Clock, count: u32) -> State {
        let mut state = empty_state(clock);
        let mut step = |input: Input| {
            let mut effects = state.step(clock.now(), input);
            // Every write is durable at once.
            while let Some(id) = effects.iter().find_map(|effect| match effect {
                Effect::Store { id, .. } => Some(*id),
                _ => None,
            }) {
                effects = state.step(clock.now(), Input::Stored(id));
            }
        };
        step(Input::Subscribed {
            framework_id: "f".to_owned(),
            roles: taken_role(),
        });
        let text = format!(
            "name = \"array\"\nkind = \"batch\"\nrole = \"r\"\ncount = {count}\n[task]\ncommand = \"true\"\n"
        );
        let spec = crate::file::from_toml(&text).expect("a job");
        step(Input::Request {
            id: 1,
            request: Request::Submit(Box::new(spec)),
        });
        step(Input::RolesAnswered { refused: None });
        let offer = Offer {
            id: "o".to_owned(),
            agent_id: "a".to_owned(),
            role: "r".to_owned(),
            ..Offer::default()
        };
        let resources = Resources::parse("cpus:10000;mem:1000000", &meseta_resources::Role::star());
        step(Input::Offers(vec![
            offer.with_resources(resources.expect("resources")),
        ]));
        let launched = state
            .job("array")
            .map(|job| job.tasks.map(|tasks| tasks.len()));
        assert_eq!(launched, Some(Some(count as usize)));
        state
    }

    /// Runs a scheduler of this many tasks, with its input channel and its queue for a master that reads nothing, behind
    /// other calls.
    async fn while_nothing_is_taken(
        tasks: u32,
        before: usize,
        look: impl AsyncFnOnce(&Handle, mpsc::Sender<FromLink>, &mut mpsc::Receiver<Call>),
    ) {
        let clock = Clock::new();
        let state = with_tasks(clock, tasks);
        let (_role, role) = watch::channel(Role::Leading);
        let fence = Fence::never();
        let ends = Ends::new(
            Registration::default(),
            Standing {
                role,
                fence,
                proven: ProvenLeader::any(),
            },
        );
        let dir = tempfile::tempdir().expect("a folder");
        let opened = store::embedded::open(
            &dir.path().join("jobs"),
            Duration::ZERO,
            &DiskReport::default(),
        )
        .await;
        let (_, store) = opened.expect("a new file");
        let stop = CancellationToken::new();
        let running = tokio::spawn(Service::new(state, store, clock, ends.inbox).run(stop.clone()));
        let (queue, mut waiting) = CallQueue::idle();
        let mut outgoing = Outgoing::default();
        outgoing.connect(queue.clone());
        for _ in 0..before {
            outgoing.send(calls::decline(Vec::new(), TICK));
        }
        let subscribed = FromLink::Subscribed {
            framework_id: "f".to_owned(),
            roles: taken_role(),
            calls: queue,
        };
        assert!(ends.link.send(subscribed).await.is_ok());
        while ends.handle.read(|state| state.is_connected()).await != Ok(true) {}
        // The core receives the waiting inputs.
        tokio::time::pause();
        for _ in 0..50 {
            tokio::time::advance(TICK).await;
            assert_eq!(ends.handle.read(|_| ()).await, Ok(()));
        }
        tokio::time::resume();
        look(&ends.handle, ends.link, &mut waiting).await;
        stop.cancel();
        running.await.expect("it has ended");
    }

    async fn stop(handle: &Handle) {
        let request = Request::Stop {
            name: "array".to_owned(),
            purge: false,
        };
        let answer = handle.request(request).await.expect("it answers");
        answer.expect("it stops");
    }

    #[tokio::test]
    async fn core_answers_while_kills_are_blocked() {
        while_nothing_is_taken(6_000, 0, async |handle, _, waiting| {
            stop(handle).await;
            // The kills leave room for other calls.
            while waiting.len() < 500 {
                assert!(handle.read(|_| ()).await.is_ok());
            }
            assert!(waiting.len() < 600, "{}", waiting.len());
        })
        .await;
    }

    #[tokio::test]
    async fn core_answers_during_blocked_unknown_kills() {
        while_nothing_is_taken(1, 0, async |handle, link, waiting| {
            for index in 0..6_000 {
                let status = TaskStatus {
                    task_id: TaskId {
                        value: format!("gone.1.1.{index}.1"),
                    },
                    state: TaskState::TaskRunning.into(),
                    ..TaskStatus::default()
                };
                let told = FromLink::Input(Input::Update(Box::new(status)));
                let in_time = tokio::time::timeout(Duration::from_secs(60), link.send(told)).await;
                assert!(in_time.is_ok_and(|sent| sent.is_ok()), "update {index}");
            }
            while link.capacity() < link.max_capacity() {
                assert!(handle.read(|_| ()).await.is_ok());
            }
            assert!(handle.read(|_| ()).await.is_ok());
            assert!((500..600).contains(&waiting.len()), "{}", waiting.len());
        })
        .await;
    }

    #[tokio::test]
    async fn blocked_calls_leave_in_order() {
        while_nothing_is_taken(1, 0, async |handle, link, waiting| {
            let ids = (0..6_000).map(|number| format!("o{number}"));
            let ids: Vec<String> = ids.collect();
            let all = ids.clone();
            let told = link.clone();
            let telling = tokio::spawn(async move {
                for id in all {
                    let told = told.send(FromLink::Input(Input::UnreadableOffers(vec![id])));
                    assert!(told.await.is_ok());
                }
            });
            while waiting.len() < waiting.max_capacity() {
                assert!(handle.read(|_| ()).await.is_ok());
            }
            // A change requested meanwhile is done later.
            let name = "none".to_owned();
            let request = handle.request(Request::Restart { name });
            let mut request = std::pin::pin!(request);
            for _ in 0..100 {
                assert!(handle.read(|_| ()).await.is_ok());
                tokio::select! {
                    biased;
                    _ = &mut request => panic!("nothing more is decided"),
                    () = std::future::ready(()) => {}
                }
            }
            let mut declined = Vec::new();
            while declined.len() < ids.len() {
                let call = waiting.recv().await.expect("a call");
                let offers = call.decline.map(|decline| decline.offer_ids);
                declined.extend(offers.into_iter().flatten().map(|id| id.value));
            }
            assert_eq!(declined, ids);
            telling.await.expect("all of it");
            assert!(matches!(request.await, Ok(Err(Refusal::NotFound(_)))));
            // Waiting calls of an ended stream are dropped.
            let (queue, ended) = CallQueue::idle();
            let mut outgoing = Outgoing::default();
            outgoing.connect(queue);
            for _ in 0..=ended.max_capacity() {
                outgoing.send(calls::decline(Vec::new(), TICK));
            }
            assert!(outgoing.is_blocked());
            drop(ended);
            outgoing.drain().await;
            assert!(!outgoing.is_blocked());
        })
        .await;
    }

    #[tokio::test]
    async fn questions_are_answered_despite_full_queue() {
        while_nothing_is_taken(1, 0, async |handle, link, waiting| {
            // Two failures in a row are needed: the first may come from a suspended machine.
            let mut untaken = 0;
            for number in 0..6_000 {
                let told = FromLink::Input(Input::UnreadableOffers(vec![format!("o{number}")]));
                let in_time = tokio::time::timeout(Duration::from_millis(200), link.send(told));
                untaken = match in_time.await {
                    Ok(_) => 0,
                    Err(_) => untaken + 1,
                };
                if untaken == 2 {
                    break;
                }
            }
            assert_eq!(waiting.len(), waiting.max_capacity());
            let ask = || {
                let (handle, name) = (handle.clone(), "none".to_owned());
                tokio::spawn(async move { handle.request(Request::Restart { name }).await })
            };
            let reads = async |count: usize| {
                for _ in 0..count {
                    let read = tokio::time::timeout(Duration::from_secs(20), handle.read(|_| ()));
                    assert_eq!(read.await, Ok(Ok(())));
                }
            };
            let asked: Vec<_> = (0..HELD_MAX + 44).map(|_| ask()).collect();
            reads(1_000).await;
            let (refused, held): (Vec<_>, Vec<_>) =
                asked.into_iter().partition(|asked| asked.is_finished());
            assert_eq!((refused.len(), held.len()), (44, HELD_MAX));
            for refused in refused {
                let answer = refused.await.expect("an answer");
                assert_eq!(answer, Err(Unavailable::Busy));
            }
            // Requests of clients that have left make room.
            let mut held = held.into_iter();
            for left in held.by_ref().take(10) {
                left.abort();
                assert!(left.await.is_err());
            }
            let more: Vec<_> = (0..10).map(|_| ask()).collect();
            reads(100).await;
            assert!(more.iter().all(|asked| !asked.is_finished()));
            // Held changes are done once the calls have left.
            for asked in held.chain(more) {
                while !asked.is_finished() {
                    while waiting.try_recv().is_ok() {}
                    reads(1).await;
                }
                let answer = asked.await.expect("an answer");
                assert!(
                    matches!(answer, Ok(Err(Refusal::NotFound(_)))),
                    "{answer:?}"
                );
            }
        })
        .await;
    }

    #[tokio::test]
    async fn kills_are_queued_behind_other_calls() {
        while_nothing_is_taken(10, 600, async |handle, _, waiting| {
            stop(handle).await;
            // The master reads nothing: the other calls stay before the kills.
            let all = async {
                while waiting.len() < 610 {
                    assert!(handle.read(|_| ()).await.is_ok());
                }
            };
            let in_time = tokio::time::timeout(Duration::from_secs(20), all).await;
            assert!(in_time.is_ok(), "{} calls", waiting.len());
            let mut kills = 0;
            while let Ok(call) = waiting.try_recv() {
                kills += usize::from(call.kill.is_some());
            }
            assert_eq!(kills, 10);
        })
        .await;
    }

    /// Returns a service and its parts, on a store that makes nothing durable until the test permits it.
    fn on_a_stalled_store(
        stop: &CancellationToken,
    ) -> (Handle, mpsc::Sender<FromLink>, watch::Sender<u64>) {
        let (_role, role) = watch::channel(Role::Leading);
        let fence = Fence::never();
        let ends = Ends::new(
            Registration::default(),
            Standing {
                role,
                fence,
                proven: ProvenLeader::any(),
            },
        );
        let (told, durable) = watch::channel(0);
        let store = Store::new(store::Writer::Stalled(durable));
        let clock = Clock::new();
        let service = Service::new(empty_state(clock), store, clock, ends.inbox);
        let stop = stop.clone();
        tokio::spawn(async move {
            // The scheduler leads for as long as it runs.
            let _role = _role;
            service.run(stop).await;
        });
        (ends.handle, ends.link, told)
    }

    /// Regression: on a stalled etcd, after 1,024 writes, no question was answered, not even `/health`.
    #[tokio::test]
    async fn full_store_leaves_questions_answered() {
        const WRITES_MAX: usize = 1_024;
        let stop = CancellationToken::new();
        let (handle, link, durable) = on_a_stalled_store(&stop);
        let submit = |number: usize| {
            let text = format!("name = \"job{number}\"\n[task]\ncommand = \"true\"\n");
            let spec = crate::file::from_toml(&text).expect("a job");
            let handle = handle.clone();
            let request = Request::Submit(Box::new(spec));
            tokio::spawn(async move { handle.request(request).await })
        };
        let read = async || {
            let read = handle.read(State::job_count);
            let read = tokio::time::timeout(Duration::from_secs(60), read).await;
            read.expect("it answers").expect("it is there")
        };
        let mut asked = Vec::new();
        for number in 0..WRITES_MAX + HELD_MAX + 44 {
            asked.push(submit(number));
            read().await;
        }
        assert_eq!(read().await, WRITES_MAX);
        // Input from the master causes no more writes either.
        let told = Input::UnreadableOffers(vec!["o".to_owned()]);
        assert!(link.send(FromLink::Input(told)).await.is_ok());
        for _ in 0..1_000 {
            read().await;
        }
        let (refused, held): (Vec<_>, Vec<_>) =
            asked.into_iter().partition(|asked| asked.is_finished());
        assert_eq!(refused.len(), 44);
        for refused in refused {
            assert_eq!(refused.await.expect("an answer"), Err(Unavailable::Busy));
        }
        // The decided changes are answered, and the held changes are decided, once the writes are durable.
        let mut last = 0;
        for asked in held {
            while !asked.is_finished() {
                last += 1;
                durable.send_replace(last);
                read().await;
            }
            let answer = asked.await.expect("an answer").expect("it is there");
            assert!(answer.is_ok(), "{answer:?}");
        }
        assert_eq!(read().await, WRITES_MAX + HELD_MAX);
        stop.cancel();
    }

    #[tokio::test]
    async fn answer_of_ended_stream_is_ignored() {
        let stop = CancellationToken::new();
        let (handle, link, _durable) = on_a_stalled_store(&stop);
        let subscribed = Input::Subscribed {
            framework_id: "f".to_owned(),
            roles: RoleSet::default(),
        };
        let text = "name = \"a\"\nrole = \"s\"\n[task]\ncommand = \"true\"\n";
        let spec = crate::file::from_toml(text).expect("a job");
        let asking = handle.clone();
        let request = Request::Submit(Box::new(spec));
        tokio::spawn(async move { asking.request(request).await });
        while handle.read(State::job_count).await != Ok(1) {}
        assert!(link.send(FromLink::Input(subscribed)).await.is_ok());
        let tell = async |is_ended: bool| {
            let broken = CancellationToken::new();
            if is_ended {
                broken.cancel();
            }
            let input = Input::RolesAnswered { refused: None };
            assert!(link.send(FromLink::Answer { input, broken }).await.is_ok());
            while link.capacity() < link.max_capacity() {
                assert!(handle.read(|_| ()).await.is_ok());
            }
            handle.read(State::roles).await.expect("it answers")
        };
        assert_eq!(tell(true).await, BTreeSet::new());
        assert_eq!(tell(false).await, BTreeSet::from(["s".to_owned()]));
        stop.cancel();
    }
}
