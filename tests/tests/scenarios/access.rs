//! Authentication and authorization on a live cluster: admitted and rejected callers, and the answers to each.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use meseta_tests::daemon::{Daemon, binary, refused};
use meseta_tests::raw::Raw;
use meseta_tests::secure::{Authority, credentials, write_private};
use meseta_tests::wait::eventually;
use meseta_tests::{http, kernel};
use tempfile::TempDir;

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        secured_cluster_runs_permitted_task,
        verbs_reach_agent_certified_by_name,
        master_files_are_private,
        refusal_explains_how_to_make_credentials,
        contradictory_requests_are_refused,
        changed_credentials_apply_without_restart;
}

/// Secrets that must not appear anywhere.
const ADMIN: (&str, &str) = ("admin", "CANARY-admin-5f1c");
const READER: (&str, &str) = ("reader", "CANARY-reader-77aa");
const NODE: (&str, &str) = ("node", "CANARY-node-90be");

/// Returns the flags that make a test's agent leave nothing behind.
fn agent_room(work_dir: &Path, cgroups_root: &str) -> Vec<String> {
    vec![
        format!("--runtime_dir={}", work_dir.join("run").display()),
        format!("--cgroups_root={cgroups_root}"),
        "--shutdown_tasks_on_exit".to_owned(),
        "--resources=cpus:2;mem:512;disk:512;ports:[31000-31009]".to_owned(),
    ]
}

/// A fully secured cluster, as an operator would set it up.
struct Shut {
    dir: TempDir,
    /// The cgroups root of this cluster alone: all groups below are removed with it.
    cgroups_root: String,
    authority: Authority,
    master: Daemon,
    agents: Vec<Daemon>,
}

impl Drop for Shut {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            agent.end(Duration::from_secs(10));
        }
        kernel::remove_groups(&self.cgroups_root);
    }
}

/// The rules: `admin` may do everything, `node` may join, `reader` may look.
const ACLS: &str = r#"{
    "register_agents": [{"principals": {"values": ["node"]}, "agents": {"type": "ANY"}}],
    "register_frameworks": [{"principals": {"values": ["admin"]}, "roles": {"type": "ANY"}}],
    "run_tasks": [{"principals": {"values": ["admin"]}, "users": {"type": "ANY"}}],
    "view_frameworks": [{"principals": {"values": ["admin", "reader"]}, "users": {"type": "ANY"}}],
    "view_tasks": [{"principals": {"values": ["admin", "reader"]}, "users": {"type": "ANY"}}],
    "view_executors": [{"principals": {"values": ["admin"]}, "users": {"type": "ANY"}}],
    "view_roles": [{"principals": {"values": ["admin", "reader"]}, "roles": {"type": "ANY"}}],
    "view_flags": [{"principals": {"values": ["admin"]}, "flags": {"type": "ANY"}}],
    "get_endpoints": [{"principals": {"values": ["admin"]}, "paths": {"type": "ANY"}}],
    "access_sandboxes": [{"principals": {"values": ["admin"]}, "users": {"type": "ANY"}}],
    "update_weights": [{"principals": {"values": ["admin"]}, "roles": {"type": "ANY"}}]
}"#;

fn text(path: &Path) -> String {
    path.display().to_string()
}

impl Shut {
    fn start() -> Self {
        let dir = TempDir::with_prefix("meseta-test-").expect("a directory");
        let name = dir.path().file_name().expect("a folder").display();
        let cgroups_root = name.to_string();
        let authority = Authority::new(&dir.path().join("certificates"));
        let people = dir.path().join("people");
        credentials(&people, &[ADMIN, READER, NODE]);
        write_private(
            &dir.path().join("node"),
            &format!("{} {}\n", NODE.0, NODE.1),
        );
        write_private(&dir.path().join("admin"), &format!("{}\n", ADMIN.1));
        let acls = dir.path().join("acls.json");
        std::fs::write(&acls, ACLS).expect("a file");
        let mut flags = vec![
            "--ip=0.0.0.0".to_owned(),
            "--advertise_ip=127.0.0.1".to_owned(),
            "--port=0".to_owned(),
            format!("--credentials=file://{}", text(&people)),
            format!("--acls=file://{}", text(&acls)),
            format!("--ssl_ca_file={}", text(&authority.file())),
        ];
        flags.extend(authority.sign("master", &["127.0.0.1"]).flags());
        let master = Daemon::start("master", &dir.path().join("master"), &flags);
        Self {
            dir,
            cgroups_root,
            authority,
            master,
            agents: Vec::new(),
        }
    }

    /// Starts an agent with the host name `host`, and a certificate for the hosts of `certified`.
    fn agent(&self, name: &str, host: &str, certified: &[&str], named: bool) -> Daemon {
        let work_dir = self.dir.path().join(name);
        let mut flags = vec![
            "--ip=0.0.0.0".to_owned(),
            "--advertise_ip=127.0.0.1".to_owned(),
            "--port=0".to_owned(),
            format!("--hostname={host}"),
            format!("--master={}", self.master.address()),
            format!(
                "--http_credentials={}",
                text(&self.dir.path().join("people"))
            ),
            format!("--acls=file://{}", text(&self.dir.path().join("acls.json"))),
            format!("--ssl_ca_file={}", text(&self.authority.file())),
            "--registration_backoff_factor=10ms".to_owned(),
        ];
        if named {
            flags.push(format!(
                "--credential={}",
                text(&self.dir.path().join("node"))
            ));
        }
        let pair = self.authority.sign(name, certified);
        flags.extend(pair.flags());
        flags.extend(agent_room(&work_dir, &self.cgroups_root));
        Daemon::start("agent", &work_dir, &flags)
    }

    fn status(&self, method: &str, path: &str, who: Option<(&str, &str)>, body: &str) -> u16 {
        let url = format!("https://{}{path}", self.master.address());
        let answer = self.authority.ask(method, &url, who, body);
        answer
            .unwrap_or_else(|e| panic!("{method} {url}: {e}"))
            .status
    }

    fn meseta(&self, verb: &str, args: &[&str]) -> Output {
        Command::new(binary())
            .arg(verb)
            .arg(format!("--master={}", self.master.address()))
            .arg(format!("--principal={}", ADMIN.0))
            .arg(format!(
                "--secret-file={}",
                text(&self.dir.path().join("admin"))
            ))
            .arg(format!("--ca={}", text(&self.authority.file())))
            // The administrator has no certificate here.
            .arg("--secret-to-agents")
            .args(args)
            .output()
            .expect("meseta runs")
    }
}

fn secured_cluster_runs_permitted_task() {
    let mut cluster = Shut::start();
    // The callers: unauthenticated, with a guess, a reader, the administrator.
    let guess = Some((ADMIN.0, "guess"));
    let weights = r#"[{"role":"ads","weight":2}]"#;
    let quota =
        r#"{"role":"ads","guarantee":[{"name":"cpus","type":"SCALAR","scalar":{"value":1}}]}"#;
    for (method, path, who, body, expected) in [
        ("GET", "/health", None, "", 200),
        ("GET", "/state", None, "", 401),
        ("GET", "/state", guess, "", 401),
        ("GET", "/state", Some(READER), "", 200),
        ("GET", "/flags", Some(READER), "", 403),
        ("GET", "/flags", Some(ADMIN), "", 200),
        ("GET", "/metrics", Some(READER), "", 403),
        ("PUT", "/weights", Some(READER), weights, 403),
        ("PUT", "/weights", Some(ADMIN), weights, 200),
        ("POST", "/quota", Some(ADMIN), quota, 403),
    ] {
        let status = cluster.status(method, path, who, body);
        assert_eq!(status, expected, "{method} {path} by {who:?}");
    }
    // Without TLS the daemon reveals nothing, even to this machine.
    let clear = http::get(&format!("http://{}/state", cluster.master.address()));
    assert_eq!(clear.status, 403, "{}", clear.text());
    assert!(clear.text().contains("https://"), "{}", clear.text());

    // One agent has another node's certificate, and one has none of the right principal.
    let thief = cluster.agent(
        "thief",
        "node1.example",
        &["node2.example", "127.0.0.1"],
        true,
    );
    eventually("the thief is refused", Duration::from_secs(30), || {
        let said = cluster.master.log_text();
        said.contains("certificate is not one for 'node1.example'")
            .then_some(())
    });
    cluster.agents.push(thief);
    let nameless = cluster.agent(
        "nameless",
        "node3.example",
        &["node3.example", "127.0.0.1"],
        false,
    );
    eventually(
        "the nameless one is refused",
        Duration::from_secs(30),
        || {
            let said = cluster.master.log_text();
            let refused = "Principal 'node3.example' is not authorized for 'register_agents'";
            said.contains(refused).then_some(())
        },
    );
    cluster.agents.push(nameless);
    let honest = cluster.agent(
        "honest",
        "node1.example",
        &["node1.example", "127.0.0.1"],
        true,
    );
    let agent_port = honest
        .address()
        .rsplit(':')
        .next()
        .expect("a port")
        .to_owned();
    cluster.agents.push(honest);

    // The verbs are admitted, and a task runs through all parts.
    let output = cluster.meseta(
        "execute",
        &[
            "--command=echo through; echo CANARY-not",
            "--resources=cpus:0.1;mem:32",
            "--timeout=60secs",
        ],
    );
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("through"),
        "{said}{complained}"
    );
    let agents = cluster.meseta("agents", &[]);
    let agents = String::from_utf8_lossy(&agents.stdout).into_owned();
    assert!(
        agents.contains("node1.example") && !agents.contains("node3"),
        "{agents}"
    );
    let nobody = Command::new(binary())
        .args([
            "agents",
            &format!("--master=https://{}", cluster.master.address()),
        ])
        .arg(format!("--ca={}", text(&cluster.authority.file())))
        .output()
        .expect("meseta runs");
    let told = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(
        !nobody.status.success() && told.contains("--principal"),
        "{told}"
    );

    // Executors use no TLS, on this machine; the rest of the agent does.
    let executor = http::post_json(
        &format!("http://127.0.0.1:{agent_port}/api/v1/executor"),
        &serde_json::json!({
            "type": "SUBSCRIBE", "framework_id": {"value": "f"}, "executor_id": {"value": "e"},
            "subscribe": {},
        }),
    );
    assert_eq!(executor.status, 400, "{}", executor.text());
    let clear = http::get(&format!("http://127.0.0.1:{agent_port}/state"));
    assert_eq!(clear.status, 403, "{}", clear.text());

    no_secret_is_told(&cluster, &agent_port);
    let audit = cluster.master.log_text();
    for (who, call, result) in [
        ("admin", "UPDATE_WEIGHTS", "done"),
        ("reader", "UPDATE_WEIGHTS", "403 Forbidden"),
        ("node", "REGISTER_AGENT", "authorized"),
        ("admin", "SUBSCRIBE", ""),
    ] {
        let is_it = |line: &&str| {
            line.contains(" audit: ")
                && line.contains(&format!("principal=\"{who}\""))
                && line.contains(call)
                && line.contains(result)
        };
        assert!(
            audit.lines().any(|line| is_it(&line)),
            "{who} {call} {result}: {audit}"
        );
    }
}

/// Verbs connect to the address from the master, which no certificate need name; unreadable output is never a success.
fn verbs_reach_agent_certified_by_name() {
    let mut cluster = Shut::start();
    let agent = cluster.agent("named", "node1.example", &["node1.example"], true);
    cluster.agents.push(agent);
    let execute = || {
        let small = "--resources=cpus:0.1;mem:32";
        cluster.meseta(
            "execute",
            &["--command=echo through", small, "--timeout=60secs"],
        )
    };
    let text = |output: &Output| {
        let (out, err) = (&output.stdout, &output.stderr);
        (
            String::from_utf8_lossy(out).into_owned(),
            String::from_utf8_lossy(err).into_owned(),
        )
    };
    let output = execute();
    let (said, complained) = text(&output);
    assert_eq!(output.status.code(), Some(0), "{said}{complained}");
    assert_eq!(said, "through\n", "{complained}");
    let task = complained
        .lines()
        .find_map(|line| line.strip_prefix("task "));
    let task = task
        .and_then(|line| line.split(' ').next())
        .expect("a task")
        .to_owned();
    let output = cluster.meseta("logs", &[&task]);
    assert_eq!(text(&output).0, "through\n", "{}", text(&output).1);
    let output = cluster.meseta("top", &["--interval=100ms"]);
    assert!(output.status.success(), "{}", text(&output).1);
    let output = cluster.meseta("logs", &[&task, "--file=nope"]);
    let complained = text(&output).1;
    assert_eq!(output.status.code(), Some(1), "{complained}");
    assert!(
        complained.contains("\"nope\"") && complained.contains("stdout"),
        "{complained}"
    );

    let forbidden = ACLS.replace(
        r#""access_sandboxes": [{"principals": {"values": ["admin"]}"#,
        r#""access_sandboxes": [{"principals": {"values": ["nobody"]}"#,
    );
    assert_ne!(forbidden, ACLS);
    std::fs::write(cluster.dir.path().join("acls.json"), forbidden).expect("written");
    eventually("the new rules count", Duration::from_secs(30), || {
        let output = cluster.meseta("logs", &[&task]);
        text(&output).1.contains("403").then_some(())
    });
    let output = execute();
    let (said, complained) = text(&output);
    assert_eq!(output.status.code(), Some(125), "{said}{complained}");
    assert!(complained.contains("TASK_FINISHED"), "{complained}");
    assert!(
        complained.contains("its output could not be read"),
        "{complained}"
    );
}

/// The registry and the endpoint file are private, with any umask and any earlier mode.
fn master_files_are_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = TempDir::new().expect("a directory");
    let work_dir = dir.path().join("master");
    let mode = |path: &Path| {
        let metadata = std::fs::metadata(path).expect("metadata");
        metadata.permissions().mode() & 0o7777
    };
    let modes = || {
        let mut found = vec![("work_dir".to_owned(), mode(&work_dir))];
        for entry in std::fs::read_dir(&work_dir).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().to_string_lossy().into_owned();
            found.push((name, mode(&entry.path())));
        }
        found
    };
    let open = |path: &Path, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("a mode");
    };
    std::fs::create_dir(&work_dir).expect("a folder");
    for round in 0..2 {
        // The modes are those of an older master, or of a careless umask.
        open(&work_dir, 0o755);
        if round == 1 {
            open(&work_dir.join("registry.redb"), 0o644);
            open(&work_dir.join("endpoint"), 0o644);
        }
        let mut master = Daemon::start("master", &work_dir, &["--port=0".to_owned()]);
        let found = modes();
        assert!(found.len() >= 3, "{found:?}");
        for (name, mode) in &found {
            let expected = if name == "work_dir" { 0o700 } else { 0o600 };
            assert_eq!(*mode, expected, "{name} among {found:?}");
        }
        master.end(Duration::from_secs(10));
    }
}

/// Checks that secrets are in no log and on no page, and that no dump is written.
fn no_secret_is_told(cluster: &Shut, agent_port: &str) {
    for daemon in cluster.agents.iter().chain([&cluster.master]) {
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.pid()));
        let limits = limits.expect("limits");
        let core = limits
            .lines()
            .find(|line| line.starts_with("Max core file size"));
        let soft = core.and_then(|line| line.split_whitespace().nth(4));
        assert_eq!(soft, Some("0"), "{limits}");
    }
    let agent = format!("https://127.0.0.1:{agent_port}");
    let master = format!("https://{}", cluster.master.address());
    let mut pages = vec![cluster.master.log_text()];
    pages.extend(cluster.agents.iter().map(Daemon::log_text));
    for base in [&master, &agent] {
        for path in ["/state", "/flags", "/metrics", "/metrics/snapshot"] {
            let url = format!("{base}{path}");
            let answer = cluster.authority.ask("GET", &url, Some(ADMIN), "");
            let answer = answer.unwrap_or_else(|e| panic!("{url}: {e}"));
            assert_eq!(answer.status, 200, "{url}: {}", answer.text());
            pages.push(answer.text());
        }
    }
    for page in pages {
        for (_, secret) in [ADMIN, READER, NODE] {
            assert!(!page.contains(secret), "{secret} is told: {page}");
        }
        assert!(!page.contains("$argon2id$"), "a hash is told: {page}");
        assert!(!page.contains("Basic Y"), "a header is told: {page}");
    }
}

fn refusal_explains_how_to_make_credentials() {
    let dir = TempDir::new().expect("a directory");
    let work_dir = dir.path().join("master");
    let plain = dir.path().join("plain");
    write_private(&plain, &format!("ada {}", ADMIN.1));
    let given = format!("--credentials={}", text(&plain));
    let said = refused("master", &work_dir, &["--port=0", &given]);
    let is_told = said.contains("meseta credential") && !said.contains("CANARY");
    assert!(is_told, "{said}");
    let made = Command::new(binary())
        .args(["credential", "--principal=ada"])
        .arg(format!("--secret-file={}", text(&plain)))
        .output()
        .expect("meseta runs");
    let line = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(
        line.starts_with("ada $argon2id$") && !line.contains("CANARY"),
        "{line}"
    );
    let people = dir.path().join("people");
    write_private(&people, &line);
    let flags = [
        "--port=0".to_owned(),
        format!("--credentials={}", text(&people)),
        "--authenticate_http_readonly".to_owned(),
    ];
    let master = Daemon::start("master", &work_dir, &flags);
    assert_eq!(http::get(&format!("{}/state", master.url)).status, 401);
}

/// A request that two readers could understand differently is invalid.
fn contradictory_requests_are_refused() {
    let dir = TempDir::new().expect("a directory");
    let work_dir = dir.path().join("master");
    let master = Daemon::start("master", &work_dir, &["--port=0".to_owned()]);
    for head in [
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: +5",
        "Content-Length: 5, 6",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
        "Content-Length: 5\r\n folded",
    ] {
        let mut raw = Raw::connect(master.address());
        let body = "0\r\n\r\nGET /state HTTP/1.1\r\nHost: localhost\r\n\r\n";
        raw.send(
            format!("POST /api/v1 HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n{body}").as_bytes(),
        );
        let answer = raw.rest();
        assert!(answer.starts_with("HTTP/1.1 400"), "{head}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{head}: {answer}");
    }
    // An invalid chunk ends the connection, and the bytes after it are no request.
    let mut raw = Raw::connect(master.address());
    raw.send(
        b"POST /api/v1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
          Transfer-Encoding: chunked\r\n\r\n-1\r\n{}\r\nGET /state HTTP/1.1\r\nHost: localhost\r\n\r\n",
    );
    let answer = raw.rest();
    assert!(!answer.contains("200 OK"), "{answer}");
    master.page("/health");
}

/// Both files change under a running master: an invalid file changes nothing and is reported, a valid file counts within
/// seconds. The log reports its own changes.
fn changed_credentials_apply_without_restart() {
    let dir = TempDir::new().expect("a directory");
    let (people, acls) = (dir.path().join("people"), dir.path().join("acls"));
    credentials(&people, &[ADMIN, READER]);
    std::fs::write(&acls, r#"{"permissive": false}"#).expect("written");
    let flags = [
        "--port=0".to_owned(),
        format!("--credentials={}", text(&people)),
        format!("--acls=file://{}", text(&acls)),
        "--authenticate_http_readwrite".to_owned(),
    ];
    let master = Daemon::start("master", &dir.path().join("master"), &flags);
    let status = |path: &str, who: (&str, &str)| {
        let header = meseta_access::basic::header(who.0, who.1.as_bytes());
        let url = format!("{}{path}", master.url);
        http::post(&url, &[("authorization", &header)], b"frameworkId=f").status
    };
    let limit = Duration::from_secs(30);
    assert_eq!(status("/teardown", READER), 403);

    std::fs::write(&acls, "{").expect("written");
    eventually("the broken file is complained of", limit, || {
        let said = master.log_text();
        (said.contains("stay in force") && said.contains("--acls")).then_some(())
    });
    assert_eq!(status("/teardown", READER), 403);
    std::fs::write(&acls, r#"{"permissive": true}"#).expect("written");
    eventually("the new rules count", limit, || {
        (status("/teardown", READER) == 400).then_some(())
    });
    credentials(&people, &[ADMIN]);
    eventually("who was taken out is out", limit, || {
        (status("/teardown", READER) == 401).then_some(())
    });

    assert_eq!(status("/logging/toggle?level=1&duration=1secs", ADMIN), 200);
    let said = master.log_text();
    let noted = said.lines().any(|line| {
        line.contains(" audit: ")
            && line.contains("principal=\"admin\"")
            && line.contains("SET_LOGGING_LEVEL")
    });
    assert!(noted, "{said}");
}
