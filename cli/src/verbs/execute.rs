//! The `meseta execute` verb: runs a command as a task, shows its output, and exits with its code.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use meseta_proto::convert;
use meseta_proto::mesos::v1 as mesos;
use meseta_proto::mesos::v1::scheduler::Event;
use meseta_proto::reconciler::{Observation, ReconcileIntervals, Reconciler};
use meseta_resources::time::Moment;
use meseta_resources::{HostPort, Resources};
use tokio::time::Instant;

use self::ending::{Ends, Patience, Search, left, until};
use self::launched::{Copied, LaunchedTask, copy_next};
use super::masters;
use super::outcome::{describe, exit_code};
use super::output::EXIT_UNREAD;
pub(crate) use super::request::Options;
use super::request::Request;
use super::scheduler::Scheduler;
use super::server;
use super::server::AgentAddress;
use crate::terminal;

mod ending;
mod launched;

/// The pause between two reads of the task's output.
const OUTPUT_POLL: Duration = Duration::from_millis(50);
/// The time for which an offer that does not fit is declined.
const REFUSE_SECONDS: f64 = 2.0;
/// The time without a fitting offer before the command names its obstacle.
const HINT_AFTER: Duration = Duration::from_secs(3);
const RESUBSCRIBE_PAUSE: Duration = Duration::from_millis(250);
/// The pause before a kill that the master refused is repeated.
const KILL_PAUSE: Duration = Duration::from_millis(500);
/// The exit code of coreutils' `timeout`.
pub(super) const EXIT_TIMED_OUT: u8 = 124;
/// The exit code of `timeout` and `docker run` for their own failure.
const EXIT_FAILED_ITSELF: u8 = 125;
/// The time limit for reading the last output of a task: a restarting agent is back by then.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(10);
const OUTPUT_PAUSE: Duration = Duration::from_millis(200);

/// Runs the task until its end.
pub(crate) fn run(options: Options) -> anyhow::Result<ExitCode> {
    server::runtime()?.block_on(execute(options, Patience::default()))
}

async fn execute(options: Options, patience: Patience) -> anyhow::Result<ExitCode> {
    let request = Request::new(&options)?;
    let master = &options.master.master;
    let scheduler = Scheduler::subscribe(master, request.framework(), patience.call).await?;
    let deadline = options.timeout.map(|timeout| Instant::now() + timeout);
    let mut job = Job {
        master: master.clone(),
        request,
        scheduler,
        launched: None,
        reconciler: Reconciler::new(ReconcileIntervals::default()),
        started: Instant::now(),
        largest: None,
        last: None,
        output_lost: false,
        is_unread: false,
        is_quiet: options.quiet,
        is_left: false,
        is_heard: true,
        is_kill_taken: true,
        kill_at: None,
        leave_at: None,
        ends: Ends::watch(deadline)?,
        patience,
    };
    job.reconciler.start(job.now());
    let code = job.run().await;
    if job.is_left {
        return code;
    }
    // In every case the framework must not stay behind; its stream is ending anyway.
    job.ends.finish(patience, job.scheduler.teardown()).await;
    code
}

#[derive(Debug)]
struct Job {
    request: Request,
    master: String,
    scheduler: Scheduler,
    launched: Option<LaunchedTask>,
    /// The queries about the task when its updates may have been lost.
    reconciler: Reconciler,
    /// The origin of the reconciler's time.
    started: Instant,
    /// The largest of the offers that did not fit.
    largest: Option<Resources>,
    last: Option<mesos::TaskState>,
    output_lost: bool,
    /// The reader of the output has gone away.
    is_unread: bool,
    /// Print errors only.
    is_quiet: bool,
    /// The task runs, and continues when this command has ended.
    is_left: bool,
    /// The master has reported something about the task. A new leader may not know its agent yet, and then answers neither
    /// the query nor the kill.
    is_heard: bool,
    /// Whether the master has accepted the last kill.
    is_kill_taken: bool,
    /// The time of the next kill, once the first was sent: the agent may not have received it.
    kill_at: Option<Instant>,
    /// The time to abandon an ending task whose agent is away, or whose kill the master refuses.
    leave_at: Option<Instant>,
    ends: Ends,
    patience: Patience,
}

impl Job {
    async fn run(&mut self) -> anyhow::Result<ExitCode> {
        let mut poll = tokio::time::interval(OUTPUT_POLL);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let hint_timer = tokio::time::sleep(HINT_AFTER);
        tokio::pin!(hint_timer);
        loop {
            let (reconcile_at, kill_at) = (self.reconcile_at(), self.kill_at);
            let leave_at = self.leave_at;
            let code = tokio::select! {
                event = self.scheduler.next() => match event {
                    Ok(event) => {
                        let code = self.handle(event).await?;
                        code.map(|code| self.ends.code().unwrap_or(code))
                    }
                    Err(error) => self.subscribe_again(error).await?,
                },
                copied = copy_next(&mut poll, &mut self.launched), if self.shows_output() => {
                    if self.note_copied(copied) {
                        poll.reset_immediately();
                    }
                    if self.is_unread {
                        self.ends.end_with(EXIT_UNREAD);
                        self.kill().await;
                    }
                    None
                }
                () = until(reconcile_at) => {
                    self.reconcile().await;
                    None
                }
                () = until(kill_at) => {
                    self.kill().await;
                    None
                }
                () = until(leave_at) => Some(self.leave_on_agent()),
                () = &mut hint_timer, if self.launched.is_none() => {
                    self.explain_waiting().await;
                    hint_timer.as_mut().reset(Instant::now() + HINT_AFTER * 10);
                    None
                }
                told = self.ends.next() => {
                    if told.is_repeated || !self.kill().await {
                        Some(told.code)
                    } else {
                        told.say("ending the task");
                        None
                    }
                }
            };
            if let Some(code) = code {
                return Ok(ExitCode::from(code));
            }
        }
    }

    /// Subscribes again after the end of a stream, for example at a restart of the master: the same framework subscribes,
    /// and queries its task. Returns the exit code, if this command had to end meanwhile.
    async fn subscribe_again(&mut self, error: anyhow::Error) -> anyhow::Result<Option<u8>> {
        terminal::note!("{error:#}; subscribing again");
        self.reconciler.disconnected();
        self.leave_at = None;
        // The master may be gone, or suspended with all its connections.
        masters::forget(&self.master);
        let id = self.scheduler.framework_id().to_owned();
        let mut info = self.request.framework();
        info.id = Some(mesos::FrameworkId { value: id });
        let mut search = Search::begin(self.patience, self.is_ending(), error);
        self.scheduler = loop {
            let attempt = Scheduler::subscribe(&self.master, info.clone(), self.patience.call);
            tokio::select! {
                subscribed = attempt => match subscribed {
                    Ok(scheduler) => break scheduler,
                    Err(error) => {
                        search.failed(error);
                        tokio::time::sleep(RESUBSCRIBE_PAUSE).await;
                    }
                },
                told = self.ends.next() => {
                    if told.is_repeated || self.launched.is_none() {
                        self.say_left();
                        return Ok(Some(told.code));
                    }
                    told.say("ending the task once a master leads");
                    self.kill_at = Some(Instant::now());
                    search.note_ending();
                }
                () = tokio::time::sleep_until(search.until()) => {}
            }
            if Instant::now() >= search.until() {
                self.say_left();
                return match self.ends.code() {
                    Some(code) => Ok(Some(code)),
                    None => Err(search.error()),
                };
            }
        };
        self.is_heard = false;
        self.reconciler.start(self.now());
        if self.launched.is_some() {
            self.scheduler.suppress().await;
        }
        if self.is_ending() {
            // The previous master may not have passed the kill on.
            self.kill().await;
        }
        Ok(None)
    }

    /// Prints the fate of the task if no master accepts this command again.
    fn say_left(&self) {
        if let Some(task) = &self.launched {
            let (id, framework) = (&task.id.value, self.scheduler.framework_id());
            terminal::note!("{}", left(id, framework, self.request.detach));
        }
    }

    /// Leaves a task that must end, while its agent is away or the master accepts no kill.
    fn leave_on_agent(&self) -> u8 {
        if !self.is_kill_taken {
            self.say_left();
        } else if let Some(task) = &self.launched {
            let (id, agent) = (&task.id.value, &task.agent.value);
            terminal::note!(
                "task {id} may run on agent {agent}, which is away: it ends when that agent is back"
            );
        }
        self.ends.code().unwrap_or(1)
    }

    /// Notes the time from which the task must end and cannot, because its agent is away or the master accepts no kill.
    fn note_away(&mut self) {
        use mesos::TaskState as S;
        let is_away = !self.is_heard
            || !self.is_kill_taken
            || matches!(self.last, Some(S::TaskUnreachable | S::TaskUnknown));
        let grace = self.patience.away;
        self.leave_at = (is_away && self.is_ending())
            .then(|| self.leave_at.unwrap_or_else(|| Instant::now() + grace));
    }

    fn now(&self) -> Moment {
        Moment::ORIGIN + self.started.elapsed()
    }

    fn reconcile_at(&self) -> Option<Instant> {
        let due = self.reconciler.next_deadline()?;
        Some(self.started + due.saturating_since(Moment::ORIGIN))
    }

    /// Sends the queries that are due.
    async fn reconcile(&mut self) {
        while let Some(request) = self.reconciler.poll(self.now()) {
            self.scheduler.reconcile(request).await;
        }
    }

    /// Sends kills until the task ends; returns false when there is no task yet.
    async fn kill(&mut self) -> bool {
        let Some(task) = &self.launched else {
            return false;
        };
        let is_taken = self.scheduler.kill(&task.id, Some(&task.agent)).await;
        let pause = if is_taken {
            self.patience.repeat
        } else {
            KILL_PAUSE
        };
        self.kill_at = Some(Instant::now() + pause);
        self.is_kill_taken = is_taken;
        if is_taken && !self.is_heard {
            // If the agent returns and ends the task meanwhile, the scheduler learns this before the next question is due.
            self.reconciler.start(self.now());
        }
        self.note_away();
        true
    }

    /// Whether the end of the task was requested.
    const fn is_ending(&self) -> bool {
        self.kill_at.is_some()
    }

    /// Whether output is shown. For a detached task the command prints the id alone, for `$(meseta execute -d ...)`.
    fn shows_output(&self) -> bool {
        self.launched.is_some() && !self.request.detach && !self.is_unread
    }

    /// Handles an event, and returns the exit code once the event is the task's end.
    async fn handle(&mut self, event: Event) -> anyhow::Result<Option<u8>> {
        if let Some(error) = event.error {
            let reason = terminal::one_line(&error.message);
            bail!("the master ended the subscription: {reason}");
        }
        if let Some(offers) = event.offers {
            self.offered(offers.offers).await?;
        }
        match event.update {
            Some(update) => self.updated(update.status).await,
            None => Ok(None),
        }
    }

    async fn offered(&mut self, offers: Vec<mesos::Offer>) -> anyhow::Result<()> {
        let mut unwanted = Vec::new();
        for offer in offers {
            let resources = convert::resources(&offer.resources)
                .context("the master sent an offer with invalid resources")?
                .unallocate();
            // Resources reserved to the role are used before unreserved ones.
            let cover = self.request.cover(&resources);
            if self.launched.is_none()
                && let Some(cover) = cover
            {
                self.launch(offer, &cover).await?;
                continue;
            }
            if self
                .largest
                .as_ref()
                .is_none_or(|l| l.cpus() < resources.cpus())
            {
                self.largest = Some(resources);
            }
            unwanted.push(offer.id);
        }
        if !unwanted.is_empty() {
            self.scheduler.decline(unwanted, REFUSE_SECONDS).await;
        }
        Ok(())
    }

    async fn launch(&mut self, offer: mesos::Offer, cover: &Resources) -> anyhow::Result<()> {
        let framework = self.scheduler.framework_id();
        let suffix = framework.rsplit('-').next().unwrap_or_default();
        let id = mesos::TaskId {
            value: format!("{}-{suffix}", self.request.name),
        };
        let address = offer
            .url
            .as_ref()
            .map(|url| &url.address)
            .context("the master sent an offer without a url")?;
        let host = address
            .ip
            .as_deref()
            .or(address.hostname.as_deref())
            .unwrap_or_default();
        let address = AgentAddress {
            address: HostPort::of_message(host, address.port).to_string(),
            hostname: offer.hostname.clone(),
        };
        if !self.is_quiet {
            terminal::note!(
                "task {} on {} ({})",
                terminal::one_line(&id.value),
                terminal::one_line(&offer.hostname),
                terminal::one_line(&address.address)
            );
        }
        self.reconciler
            .track(&id.value, Some(&offer.agent_id.value));
        let agent = offer.agent_id.clone();
        let task = self.request.task(id.clone(), offer.agent_id, cover)?;
        self.scheduler.accept(offer.id, task).await?;
        self.launched = Some(LaunchedTask::new(id, agent, framework, &address));
        self.scheduler.suppress().await;
        Ok(())
    }

    async fn updated(&mut self, status: mesos::TaskStatus) -> anyhow::Result<Option<u8>> {
        if self.reconciler.observe(self.now(), &status) == Observation::Untracked {
            // Unacknowledged updates come again.
            let agent = status.agent_id.as_ref();
            if self.scheduler.kill(&status.task_id, agent).await {
                self.scheduler.acknowledge(&status).await;
            }
            return Ok(None);
        }
        self.is_heard = true;
        let state = status.state();
        let mut code = exit_code(&status);
        // The output comes before the report about the end.
        let has_run = matches!(
            state,
            mesos::TaskState::TaskFinished
                | mesos::TaskState::TaskFailed
                | mesos::TaskState::TaskKilled
        );
        let is_output_whole = !has_run || !self.shows_output() || self.show_the_rest().await;
        if status.reason() == mesos::task_status::Reason::InvalidOffers {
            // An operator's request came first: the task has not run.
            if self.is_ending() {
                return Ok(Some(EXIT_FAILED_ITSELF));
            }
            terminal::note!(
                "the master rescinded the offer before its use; waiting for another offer"
            );
            self.launched = None;
            self.scheduler.revive().await;
            return Ok(None);
        }
        let is_well = matches!(code, None | Some(0));
        if self.last.replace(state) != Some(state) && !(self.is_quiet && is_well) {
            terminal::note!("{}", describe(&status));
        }
        self.note_away();
        if let Some(code) = &mut code
            && !is_output_whole
            && *code == 0
        {
            terminal::note!(
                "the task succeeded, but its output could not be read or written completely"
            );
            *code = EXIT_FAILED_ITSELF;
        }
        self.scheduler.acknowledge(&status).await;
        if self.request.detach && state == mesos::TaskState::TaskRunning {
            let id = &status.task_id.value;
            self.is_left = true;
            terminal::say(id);
            if !self.is_quiet {
                terminal::note!("`meseta logs {id}` shows its output, `meseta kill {id}` ends it");
            }
            return Ok(Some(0));
        }
        Ok(code)
    }

    /// Copies the remaining output of an ended task. Returns false if the output is unavailable, or if not all of it was
    /// written here, also because of a signal.
    async fn show_the_rest(&mut self) -> bool {
        let mut end = Instant::now() + OUTPUT_TIMEOUT;
        loop {
            let Some(task) = &mut self.launched else {
                return false;
            };
            let copying = tokio::time::timeout_at(end, task.copy_to_ours());
            let Some(copied) = self.ends.unless_signalled(copying).await else {
                return false;
            };
            let copied = copied.unwrap_or_else(|_| Err(anyhow!("its agent does not answer")));
            if self.note_copied(copied) {
                end = Instant::now() + OUTPUT_TIMEOUT;
                continue;
            }
            if !self.output_lost {
                return self.launched.as_ref().is_some_and(LaunchedTask::is_whole);
            }
            if Instant::now() >= end {
                return false;
            }
            tokio::time::sleep(OUTPUT_PAUSE).await;
        }
    }

    /// Whether there may be more to copy. Unavailable output is reported once, and is no reason to lose the task's end: a
    /// restarting agent is back in a moment.
    fn note_copied(&mut self, copied: anyhow::Result<Copied>) -> bool {
        match copied {
            Ok(copied) => {
                self.output_lost = false;
                self.is_unread |= copied == Copied::Unread;
                copied == Copied::Some
            }
            Err(error) => {
                if !std::mem::replace(&mut self.output_lost, true) {
                    terminal::note!("failed to copy the task's output: {error:#}");
                }
                false
            }
        }
    }

    /// Prints the needs of the task and the obstacle.
    async fn explain_waiting(&self) {
        let (requested, role) = (&self.request.resources, &self.request.role);
        let offered = match &self.largest {
            Some(largest) => format!("the largest offer had {largest}"),
            None => format!("role {role} got no offer"),
        };
        let framework = self.scheduler.framework_id();
        match self.obstacle().await {
            Some(reason) => terminal::note!(
                "waiting: {}; needs {requested}, and {offered}",
                terminal::one_line(&reason)
            ),
            None => terminal::note!(
                "waiting: needs {requested}, but {offered}; `meseta agents` lists the agents, `meseta explain --framework={framework}` the obstacles"
            ),
        }
    }

    /// Returns the master's explanation why this framework gets no offers, or only small ones, of some agent.
    async fn obstacle(&self) -> Option<String> {
        let framework = server::encoded(self.scheduler.framework_id());
        let path = format!("/explain?framework_id={framework}");
        let page = server::fetch_json(&self.master, &path);
        let page = tokio::time::timeout(self.patience.call, page).await;
        let page = page.ok()?.ok()?;
        if page.get("agents").and_then(serde_json::Value::as_u64) == Some(0) {
            return Some(super::explain::NO_AGENTS.to_owned());
        }
        let reasons = super::items(&page, "explanations").iter();
        let mut reasons = reasons.filter_map(|one| Some(one.get("reason")?.as_str()?.to_owned()));
        // The reason that others may come first explains nothing.
        reasons.find(|reason| {
            !reason.starts_with("nothing is in the way") && !reason.contains("declined")
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use meseta_proto::mesos::v1::scheduler::{Call, call, event};

    use super::super::canned;
    use super::*;

    fn options(master: &str) -> Options {
        let master = format!("--master={master}");
        let line = [
            "meseta",
            "execute",
            &master,
            "--command=x",
            "--user=u",
            "-d",
            "-q",
        ];
        let parsed = crate::flags::parse(line.iter().map(OsString::from).collect());
        match parsed.expect("understood").verb {
            crate::flags::Verb::Execute(options) => *options,
            other => panic!("{other:?}"),
        }
    }

    /// A call without a limit would wait for 30 seconds.
    const IN_TIME: Duration = Duration::from_secs(20);

    /// Returns the exit code of a command whose task has a time limit.
    async fn ended(master: &str, patience: Patience) -> ExitCode {
        let mut options = options(master);
        options.timeout = Some(Duration::from_millis(500));
        execute(options, patience).await.expect("a code")
    }

    /// Returns a subscription, and an offer of each of two agents.
    fn start() -> Vec<Event> {
        let id = mesos::FrameworkId {
            value: "f-0001".to_owned(),
        };
        let resources =
            convert::parse_resources("cpus:2;mem:512", &meseta_resources::Role::default());
        let resources = resources.expect("resources");
        let resources = convert::to_resources(&resources, convert::Format::PostRefinement);
        let resources = resources.expect("messages");
        let offer = |name: &str| mesos::Offer {
            id: mesos::OfferId {
                value: name.to_owned(),
            },
            framework_id: id.clone(),
            agent_id: mesos::AgentId {
                value: name.to_owned(),
            },
            hostname: name.to_owned(),
            url: Some(mesos::Url {
                address: mesos::Address {
                    hostname: Some(name.to_owned()),
                    port: 5051,
                    ..mesos::Address::default()
                },
                ..mesos::Url::default()
            }),
            resources: resources.clone(),
            ..mesos::Offer::default()
        };
        let offers = vec![offer("n1"), offer("n2")];
        let subscribed = event::Subscribed {
            framework_id: id.clone(),
            ..event::Subscribed::default()
        };
        vec![
            Event {
                r#type: Some(event::Type::Subscribed.into()),
                subscribed: Some(subscribed),
                ..Event::default()
            },
            Event {
                r#type: Some(event::Type::Offers.into()),
                offers: Some(event::Offers { offers }),
                ..Event::default()
            },
        ]
    }

    /// Returns the end of the task that was launched with this name before its suffix.
    fn update(state: mesos::TaskState, message: &str) -> Event {
        let status = mesos::TaskStatus {
            task_id: mesos::TaskId {
                value: "execute-0001".to_owned(),
            },
            state: state.into(),
            message: Some(message.to_owned()),
            ..mesos::TaskStatus::default()
        };
        Event {
            r#type: Some(event::Type::Update.into()),
            update: Some(event::Update { status }),
            ..Event::default()
        }
    }

    /// Regression: the refusal ended the command, and with it the task.
    #[tokio::test]
    async fn task_survives_refused_decline() {
        let master = canned::master_of(start(), |call: &Call| match call.r#type() {
            call::Type::Decline => {
                let end = update(mesos::TaskState::TaskFailed, "Command exited with status 3");
                (429, vec![end])
            }
            _ => (202, Vec::new()),
        });
        let code = execute(options(&master), Patience::default())
            .await
            .expect("a code");
        assert_eq!(code, ExitCode::from(3));
    }

    /// The command waits again after a rescinded offer, unless it has already sent a kill: then no offer is to come.
    #[tokio::test]
    async fn rescinded_offer_ends_an_ending_command() {
        let taken_back = || {
            let mut event = update(mesos::TaskState::TaskLost, "");
            let update = event.update.as_mut().expect("an update");
            let reason = mesos::task_status::Reason::InvalidOffers;
            update.status.reason = Some(reason.into());
            event
        };
        let mut accepts = 0;
        let master = canned::master_of(start(), move |call: &Call| match call.r#type() {
            call::Type::Accept => {
                accepts += 1;
                let first = if accepts == 1 {
                    vec![taken_back()]
                } else {
                    vec![]
                };
                (202, first)
            }
            call::Type::Revive => (202, start().split_off(1)),
            call::Type::Kill => (202, vec![taken_back()]),
            _ => (202, Vec::new()),
        });
        let code = ended(&master, Patience::default()).await;
        assert_eq!(code, ExitCode::from(EXIT_TIMED_OUT));
    }

    /// Regression: for example at a restart of the master, the command exited with 1 instead of 124.
    #[tokio::test]
    async fn refused_kill_is_repeated() {
        let mut kills = 0;
        let master = canned::master_of(start(), move |call: &Call| match call.r#type() {
            call::Type::Kill if kills == 0 => {
                kills += 1;
                (503, Vec::new())
            }
            call::Type::Kill => (202, vec![update(mesos::TaskState::TaskKilled, "")]),
            _ => (202, Vec::new()),
        });
        let code = ended(&master, Patience::default()).await;
        assert_eq!(code, ExitCode::from(EXIT_TIMED_OUT));
    }

    /// Returns a master that answers the kills of a launched task like this.
    fn master_that_answers_kills(
        mut answer: impl FnMut(&call::Kill) -> Vec<Event> + Send + 'static,
    ) -> String {
        canned::master_of(start(), move |call: &Call| match &call.kill {
            Some(kill) => (202, answer(kill)),
            None => (202, Vec::new()),
        })
    }

    /// Regression: KILL named no agent, so that no master could report that the agent has no such task, and the command
    /// never ended.
    #[tokio::test]
    async fn kill_names_agent_to_detect_gone() {
        let master = master_that_answers_kills(|kill| {
            let agent = kill.agent_id.as_ref().map(|id| id.value.as_str());
            let state = match agent {
                Some("n1") => mesos::TaskState::TaskGone,
                _ => mesos::TaskState::TaskUnknown,
            };
            vec![update(state, "")]
        });
        let code = ended(&master, Patience::default()).await;
        assert_eq!(code, ExitCode::from(EXIT_TIMED_OUT));
    }

    /// Regression: a command with a time limit waited as long as its agent was away.
    #[tokio::test]
    async fn ending_task_on_absent_agent_abandoned() {
        for state in [
            mesos::TaskState::TaskUnreachable,
            mesos::TaskState::TaskUnknown,
        ] {
            let master = master_that_answers_kills(move |_| vec![update(state, "")]);
            let patience = Patience {
                away: Duration::from_millis(200),
                ..Patience::default()
            };
            let code = ended(&master, patience).await;
            assert_eq!(code, ExitCode::from(EXIT_TIMED_OUT));
        }
    }

    /// Regression: neither its time limit nor a signal ended a command that looked for a leader.
    #[tokio::test]
    async fn leader_search_ends_in_time() {
        let master = canned::master_of(start(), |call: &Call| match call.r#type() {
            call::Type::Suppress => (canned::GONE, Vec::new()),
            _ => (202, Vec::new()),
        });
        let patience = Patience {
            ending: Duration::from_millis(200),
            ..Patience::default()
        };
        let code = ended(&master, patience).await;
        assert_eq!(code, ExitCode::from(EXIT_TIMED_OUT));
    }

    /// Regression: a new master responds neither to KILL nor to RECONCILE of an agent that it has not heard of. The command
    /// exceeded its time by the ten minutes that the master gives the agent.
    #[tokio::test]
    async fn agent_unknown_to_master_ends_waiting() {
        let master = canned::master_of(start(), |call: &Call| match call.r#type() {
            call::Type::Accept => (canned::ENDS_STREAM, Vec::new()),
            _ => (202, Vec::new()),
        });
        let patience = Patience {
            away: Duration::from_millis(200),
            ..Patience::default()
        };
        let code = timed_out(&master, patience).await;
        assert_eq!(code, Some(ExitCode::from(EXIT_TIMED_OUT)));
    }

    /// Returns the exit code of the command soon after its time limit, if it ends.
    async fn timed_out(master: &str, patience: Patience) -> Option<ExitCode> {
        let code = tokio::time::timeout(IN_TIME, ended(master, patience)).await;
        code.ok()
    }

    #[tokio::test]
    async fn task_known_to_master_is_awaited() {
        // A pause of the test machine takes time from the command's task, or from its status updates.
        for _ in 0..20 {
            if kills_of_a_known_task().await == 2 {
                return;
            }
        }
        panic!("it is never waited for by the task's end");
    }

    /// Returns how often a command kills a task that only the second KILL ends.
    async fn kills_of_a_known_task() -> u32 {
        let kills = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&kills);
        let master = canned::master_of(start(), move |call: &Call| match call.r#type() {
            call::Type::Accept => (canned::ENDS_STREAM, Vec::new()),
            call::Type::Reconcile => (202, vec![update(mesos::TaskState::TaskStarting, "")]),
            call::Type::Kill if seen.fetch_add(1, Ordering::Relaxed) == 1 => {
                (202, vec![update(mesos::TaskState::TaskKilled, "")])
            }
            _ => (202, Vec::new()),
        });
        let patience = Patience {
            away: Duration::from_millis(500),
            repeat: Duration::from_secs(1),
            ..Patience::default()
        };
        let code = timed_out(&master, patience).await;
        assert_eq!(code, Some(ExitCode::from(EXIT_TIMED_OUT)));
        kills.load(Ordering::Relaxed)
    }

    /// Regression: each KILL waited for 30 seconds, without regard to the time limit or signals.
    #[tokio::test]
    async fn command_leaves_stalled_master_in_time() {
        let master = canned::master_of(start(), |call: &Call| match call.r#type() {
            call::Type::Kill => (canned::STANDS_STILL, Vec::new()),
            _ => (202, Vec::new()),
        });
        let patience = Patience {
            call: Duration::from_millis(200),
            away: Duration::from_millis(200),
            ..Patience::default()
        };
        let code = timed_out(&master, patience).await;
        assert_eq!(code, Some(ExitCode::from(EXIT_TIMED_OUT)));
    }

    /// Regression: a read of the output waited for 30 seconds, during which time limit, signals and the task's end were
    /// ignored.
    #[tokio::test]
    async fn command_with_stalled_agent_ends_timely() {
        let agent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = agent.local_addr().expect("its address");
        let mut events = start();
        for offer in events.iter_mut().filter_map(|event| event.offers.as_mut()) {
            for url in offer.offers.iter_mut().filter_map(|one| one.url.as_mut()) {
                url.address.ip = Some(address.ip().to_string());
                url.address.port = i32::from(address.port());
            }
        }
        let master = canned::master_of(events, |call: &Call| match call.r#type() {
            call::Type::Kill => (202, vec![update(mesos::TaskState::TaskGone, "")]),
            _ => (202, Vec::new()),
        });
        let mut options = options(&master);
        options.detach = false;
        options.timeout = Some(Duration::from_millis(500));
        let code = execute(options, Patience::default());
        let code = tokio::time::timeout(IN_TIME, code).await;
        let code = code.expect("in time").expect("a code");
        assert_eq!(code, ExitCode::from(EXIT_TIMED_OUT));
    }
}
