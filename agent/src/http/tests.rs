//! The endpoints, without sockets: the handlers' context over a core that is as a test says.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use clap::Parser as _;
use http::header;
use meseta_access::{Acls, Authorizer, SecretHash};
use meseta_daemon::authentication::Authentication;
use meseta_daemon::build_info::BuildInfo;
use meseta_daemon::server::CancellationToken;
use meseta_daemon::verbosity::Verbosity;
use meseta_isolators::Demand;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::agent::call::Type;
use meseta_resources::{AgentId, ContainerId, ExecutorId, FrameworkId, Resources};
use tempfile::TempDir;
use tokio::net::unix::pipe;

use super::container_rights::authorize;
use super::*;
use crate::budgets::Budgets;
use crate::checkpoint::{DiskCondition, Layout, RunKey};
use crate::configuration::flags::Flags;
use crate::core::{
    Container, Counters, Executor, ExecutorKind, ExecutorLink, Framework, Oversubscription,
    Snapshot, State as CoreState,
};
use crate::handle;
use crate::run::serving;

#[derive(clap::Parser)]
struct Command {
    #[command(flatten)]
    flags: Flags,
}

/// What handlers share, and the one executor that there is: a framework's own, of the user `nobody`.
struct TestAgent {
    context: Arc<Context>,
    executor: Arc<RunKey>,
    _dir: TempDir,
}

impl TestAgent {
    /// On a network, with authentication and TLS.
    fn exposed() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let pair = rcgen::generate_simple_self_signed(["agent".to_owned()]).expect("a pair");
        let hash = SecretHash::of(b"secret", [1; 16]).expect("a hash");
        let files = [
            ("http_credentials", format!("admin {hash}")),
            ("ssl_cert_file", pair.cert.pem()),
            ("ssl_key_file", pair.signing_key.serialize_pem()),
        ];
        let mut args = vec!["--ip=10.0.0.1".to_owned()];
        for (flag, text) in files {
            let path = dir.path().join(flag);
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
            args.push(format!("--{flag}={}", path.display()));
        }
        let flags = flags(dir.path(), &args);
        let settings = flags.access.settings(flags.ip, flags.insecure, None);
        let (authentication, _) = settings.build().expect("sound");
        Self::of(dir, &flags, authentication)
    }

    fn of(dir: TempDir, flags: &Flags, authentication: Authentication) -> Self {
        let layout = Layout::new(dir.path());
        fs::create_dir(layout.meta()).expect("made");
        let executor = Arc::new(RunKey {
            agent: AgentId::new("a").expect("an id"),
            framework: FrameworkId::new("f").expect("an id"),
            executor: ExecutorId::new("e").expect("an id"),
            container: ContainerId::new("outer").expect("an id"),
        });
        let (handle, mut mailbox) = handle::mailbox();
        let snapshot = Arc::new(snapshot(&executor));
        tokio::spawn(async move {
            while let Some(asked) = mailbox.queries.recv().await {
                let _ = asked.send(snapshot.clone());
            }
        });
        let context = serving::context(
            (flags, Budgets::read(flags.memory_budget).expect("enough")),
            &layout,
            handle,
            (BTreeMap::new(), Verbosity::default(), BuildInfo::default()),
            SocketAddr::from(([10, 0, 0, 1], 5051)),
            Instant::now(),
            (&CancellationToken::new(), authentication),
        );
        let context = context.expect("a context");
        context.recovered.store(true, Ordering::Release);
        Self {
            context,
            executor,
            _dir: dir,
        }
    }

    /// The status of a call of the operator API with the executor's token, from an address, over TLS.
    async fn call_with_token(&self, from: &str) -> StatusCode {
        let tokens = self.context.tokens.as_ref().expect("tokens");
        let mut peer = Peer::at(from.parse().expect("an address"));
        peer.encrypted = true;
        let request = Request::post("/api/v1")
            .header(header::CONTENT_TYPE, "application/json")
            .header(
                header::AUTHORIZATION,
                format!("Bearer {}", tokens.of(&self.executor)),
            )
            .extension(peer)
            .body(Body::from(r#"{"type":"GET_HEALTH"}"#));
        let request = request.expect("a request");
        dispatch(State(self.context.clone()), request)
            .await
            .status()
    }
}

fn flags(work_dir: &Path, more: &[String]) -> Flags {
    let work_dir = format!("--work_dir={}", work_dir.display());
    let args = ["agent", "--master=127.0.0.1:5050", &work_dir];
    let more = more.iter().map(String::as_str);
    let parsed = Command::try_parse_from(args.into_iter().chain(more));
    parsed.expect("flags").flags
}

/// A core that runs this executor and nothing else.
fn snapshot(run: &Arc<RunKey>) -> Snapshot {
    let executor = Executor {
        key: run.clone(),
        kind: ExecutorKind::Custom,
        info: None,
        user: "nobody".to_owned(),
        resources: Resources::default(),
        role: None,
        container: Container::new(run.container.clone(), Demand::default()),
        tasks: BTreeMap::new(),
        completed: VecDeque::new(),
        completed_bytes: 0,
        orphaned: false,
        link: ExecutorLink::default(),
    };
    let info = Arc::new(pb::FrameworkInfo::default());
    let mut framework = Framework::new(run.framework.clone(), info);
    let executors = &mut framework.executors;
    executors.insert(run.executor.clone(), Arc::new(executor));
    Snapshot {
        sequence: 1,
        state: CoreState::Running,
        agent_id: Some(run.agent.clone()),
        info: pb::AgentInfo::default(),
        capabilities: Vec::new(),
        resources: Resources::default(),
        operations: Vec::new(),
        master: None,
        master_epoch: None,
        frameworks: BTreeMap::from([(run.framework.clone(), Arc::new(framework))]),
        completed_frameworks: Vec::new(),
        counters: Counters::default(),
        disk: DiskCondition::default(),
        oversubscription: Oversubscription::default(),
    }
}

#[tokio::test]
async fn the_token_of_an_executor_is_taken_from_this_machine_only() {
    let agent = TestAgent::exposed();
    let here = agent.call_with_token("127.0.0.1:9").await;
    assert_eq!(here, StatusCode::OK);
    let elsewhere = agent.call_with_token("10.9.9.9:9").await;
    assert_eq!(elsewhere, StatusCode::UNAUTHORIZED);
}

/// A container inside the executor's.
fn nested_id(name: &str) -> pb::ContainerId {
    let outer = pb::ContainerId {
        value: "outer".to_owned(),
        parent: None,
    };
    pb::ContainerId {
        value: name.to_owned(),
        parent: Some(Box::new(outer)),
    }
}

/// One that may type into what runs as this user.
fn typist(user: &str) -> Caller {
    let acls = format!(
        r#"{{"attach_containers_input": [
            {{"principals": {{"type": "ANY"}}, "users": {{"values": ["{user}"]}}}}]}}"#
    );
    let authorizer = Authorizer::new(Acls::parse(&acls).expect("ACLs"), false);
    Caller {
        approver: authorizer.approver(Some("typist".to_owned())),
        ..Caller::default()
    }
}

#[tokio::test]
async fn another_users_session_is_neither_its_executors_nor_of_those_with_rights_for_that_one() {
    let agent = TestAgent::exposed();
    let mut running = Vec::new();
    for (name, user) in [("own", "nobody"), ("operators", "root")] {
        let (input, _) = pipe::pipe().expect("a pipe");
        let id = ContainerId::try_from(&nested_id(name)).expect("an id");
        let nested = &agent.context.nested;
        running.push(nested.insert_running((&id, &agent.executor), user, input));
    }
    let executor = Caller::of_executor("outer".to_owned(), None);
    let stranger = Caller::of_executor("another".to_owned(), None);
    // Who, and whether that one may type into its executor's own, and into the operator's.
    for (caller, own, operators) in [
        (executor, true, false),
        (stranger, false, false),
        (typist("nobody"), true, false),
        (typist("root"), false, true),
    ] {
        for (name, expected) in [("own", own), ("operators", operators)] {
            let id = nested_id(name);
            let kind = Type::AttachContainerInput;
            let allowed = authorize(&agent.context, &caller, kind, Some(&id)).await;
            assert_eq!(allowed.is_ok(), expected, "{caller:?}: {name}");
        }
    }
}
