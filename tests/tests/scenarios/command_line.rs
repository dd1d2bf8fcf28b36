//! The command line as operators use it: its effects, its output, and its errors.

use std::fs::File;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use meseta_tests::daemon::binary;
use meseta_tests::framework::framework_info;
use meseta_tests::{Cluster, wait};
use serde_json::Value;

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        an_operators_hour,
        unwritable_output_is_an_error,
        empty_variables_count_as_unset,
        reservations_are_found_by_role,
        refusals_name_the_remedy,
        execute_uses_reserved_resources_first;
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the output of a verb, which must succeed.
fn verb(cluster: &Cluster, verb: &str, args: &[&str]) -> String {
    let output = cluster.meseta(verb, args);
    assert!(
        output.status.success(),
        "{verb} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    text(&output)
}

/// Returns the error of a verb, which must fail.
fn complaint(cluster: &Cluster, verb: &str, args: &[&str]) -> String {
    let output = cluster.meseta(verb, args);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn has_line(text: &str, words: &[&str]) -> bool {
    text.lines().any(|line| {
        line.split_whitespace()
            .collect::<Vec<_>>()
            .starts_with(words)
    })
}

/// Regression: `agents --json >/dev/full` ended with 0.
fn unwritable_output_is_an_error() {
    let cluster = Cluster::default();
    let master = format!("--master={}", cluster.master.address());
    let verbs = [
        "agents",
        "tasks",
        "frameworks",
        "offers",
        "roles",
        "quota",
        "weights",
        "volumes",
    ];
    let mut lines: Vec<Vec<&str>> = vec![
        vec!["--help"],
        vec!["--version"],
        vec!["help"],
        vec!["help", "agent"],
        vec!["agent", "--help"],
        vec!["quota", "set", "--help"],
        vec!["completions", "bash"],
        vec!["completions", "fish"],
        vec!["names", "agents", &master],
        vec!["maintenance", &master],
        vec!["agents", "--watch", &master],
    ];
    for verb in &verbs {
        lines.push(vec![verb, &master]);
        lines.push(vec![verb, &master, "--json"]);
    }
    for line in lines {
        let run = |output: Stdio| {
            let mut command = Command::new(binary());
            let child = command
                .args(&line)
                .stdout(output)
                .stderr(Stdio::piped())
                .spawn();
            let child = child.expect("meseta runs").wait_with_output();
            let output = child.expect("it ends");
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.code(), told)
        };
        let full = File::options()
            .write(true)
            .open("/dev/full")
            .expect("a full device");
        let (code, told) = run(full.into());
        assert_eq!(code, Some(1), "{line:?}: {told}");
        assert!(told.contains("No space left on device"), "{line:?}: {told}");
        // A closed reader is no error, and causes no message.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        assert_eq!(run(writer.into()), (Some(0), String::new()), "{line:?}");
    }
}

/// Regression: `MESETA_MASTER=` in a script was treated as an unreadable address.
fn empty_variables_count_as_unset() {
    let cluster = Cluster::default();
    let address = cluster.master.address();
    let (_, port) = address.rsplit_once(':').expect("a port");
    let variables = [
        "MESETA_MASTER",
        "MESETA_PRINCIPAL",
        "MESETA_SECRET_FILE",
        "MESETA_CA",
        "MESETA_CERT",
        "MESETA_KEY",
        "MESETA_SECRET_TO_AGENTS",
        "MESETA_LOG",
        "MESETA_LOG_FORMAT",
        "MESETA_CONFIG",
        "MESETA_PORT",
        "MESETA_IP",
        "MESETA_WORK_DIR",
        "MESETA_INSECURE",
        "MESETA_CREDENTIALS",
        "MESETA_SSL_CERT_FILE",
        "MESETA_RESOURCES",
        "MESETA_REGISTRY",
        "MESETA_ETCD_ENDPOINTS",
        "MESETA_STORE",
    ];
    let run = |line: &[&str]| {
        let mut command = Command::new(binary());
        command.args(line).envs(variables.map(|name| (name, "")));
        let output = command.output().expect("meseta runs");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let master = format!("--master=127.0.0.1:{port}");
    let (code, told) = run(&["agents", &master]);
    assert_eq!(code, Some(0), "{told}");
    // Without an address the verb calls the default one.
    let (_, told) = run(&["agents"]);
    assert!(
        !told.contains("127.0.0.1:5050: invalid") && !told.contains("MESETA_MASTER"),
        "{told}"
    );
    // The daemons' part: the check of an agent, and starts that end at another flag.
    let (_, told) = run(&["agent", "--check"]);
    assert!(
        !told.contains("invalid value") && !told.contains("cannot be empty"),
        "{told}"
    );
    for daemon in ["master", "agent", "scheduler"] {
        let (code, told) = run(&[daemon, "--nosuchflag"]);
        assert_eq!(code, Some(2), "{told}");
        assert!(
            told.contains("--nosuchflag") && !told.contains("failed to read"),
            "{told}"
        );
    }
}

fn an_operators_hour() {
    let cluster = Cluster::default();
    let id = cluster.agent_id();
    verb(
        &cluster,
        "quota",
        &["set", "eng", "--guarantee=cpus:2;mem:512"],
    );
    let quotas = verb(&cluster, "quota", &[]);
    assert!(
        has_line(&quotas, &["eng", "cpus", "2", "2", "0"]),
        "{quotas}"
    );
    let too_much = ["set", "ops", "--guarantee=cpus:100"];
    let refused = complaint(&cluster, "quota", &too_much);
    assert!(
        refused.contains("(use 'force' flag to bypass this check)"),
        "{refused}"
    );
    verb(
        &cluster,
        "quota",
        &["set", "ops", "--guarantee=cpus:100", "--force"],
    );
    verb(&cluster, "quota", &["remove", "ops"]);
    verb(&cluster, "weights", &["set", "eng=2.5", "ops=1"]);
    assert!(has_line(&verb(&cluster, "weights", &[]), &["eng", "2.5"]));
    let json: Value = serde_json::from_str(&verb(&cluster, "quota", &["--json"])).expect("JSON");
    assert_eq!(json[0]["quota"]["guarantee"]["cpus"], 2.0);
    assert!(has_line(
        &verb(&cluster, "roles", &[]),
        &["eng", "2.5", "0"]
    ));
    let mut framework = cluster.subscribe(&framework_info("eng"));
    let offer = framework.offer();
    framework.run_task(
        &offer,
        "t1",
        "echo hello; sleep 1000",
        &[("cpus", 2.0), ("mem", 512.0)],
    );
    let quotas = verb(&cluster, "quota", &[]);
    assert!(
        has_line(&quotas, &["eng", "cpus", "2", "2", "2"]),
        "{quotas}"
    );
    let why = verb(&cluster, "explain", &["--framework", &framework.id]);
    assert!(why.contains("has 512 mem of its limit of 512"), "{why}");
    let needs = ["--framework", &framework.id, "--needs=cpus:1;mem:64"];
    let why = verb(&cluster, "explain", &needs);
    assert!(why.contains("short of "), "{why}");
    wait::eventually("the task has written", Duration::from_secs(20), || {
        (verb(&cluster, "logs", &["t1"]) == "hello\n").then_some(())
    });
    let nobody = complaint(&cluster, "logs", &["nosuch"]);
    assert!(
        nobody.contains("task \"nosuch\" does not exist"),
        "{nobody}"
    );
    let no_file = complaint(&cluster, "logs", &["t1", "--file=nope"]);
    assert!(
        no_file.contains("file \"nope\" does not exist in the sandbox of task \"t1\""),
        "{no_file}"
    );
    verb(&cluster, "deactivate", &[&id]);
    assert!(verb(&cluster, "agents", &[]).contains("deactivated"));
    verb(&cluster, "reactivate", &[&id]);
    verb(&cluster, "teardown", &[&framework.id]);
    // Mesos's own command line uses the last status.
    let over = cluster.master.page("/tasks?task_id=t1").json();
    let statuses = over["tasks"][0]["statuses"].as_array().expect("a list");
    let last = statuses.last().map(|status| status["state"].clone());
    assert_eq!(last, Some("TASK_KILLED".into()), "{over:#}");
    verb(
        &cluster,
        "drain",
        &[&id, "--max_grace_period=1secs", "--wait"],
    );
    assert!(verb(&cluster, "agents", &[]).contains("drained"));
    let unknown = complaint(&cluster, "drain", &["nosuch"]);
    assert!(unknown.contains("Unknown agent"), "{unknown}");
    verb(
        &cluster,
        "maintenance",
        &["schedule", "other-host", "--duration=1hrs"],
    );
    assert!(verb(&cluster, "maintenance", &[]).contains("draining"));
    verb(&cluster, "maintenance", &["clear"]);
    verb(&cluster, "mark-gone", &[&id]);
}

/// Returns the reserved CPUs of a role from `meseta roles`.
fn reserved_cpus(cluster: &Cluster, role: &str) -> f64 {
    let roles: Value = serde_json::from_str(&verb(cluster, "roles", &["--json"])).expect("JSON");
    let found = roles.as_array().expect("a list").iter();
    let cpus = found
        .filter(|one| one["name"] == role)
        .map(|one| &one["reserved"]["cpus"]);
    cpus.filter_map(Value::as_f64).sum()
}

fn reservations_are_found_by_role() {
    let cluster = Cluster::default();
    let id = cluster.agent_id();
    let name = cluster.master.page("/slaves").json()["slaves"][0]["hostname"].clone();
    let name = name.as_str().expect("a name").to_owned();
    // The verb answers once the agent has it, so that later reads have it too.
    let ops = ["--resources=cpus:1;mem:64;disk:32", "--principal=ops"];
    let said = verb(&cluster, "reserve", &[&name, "--role=eng", ops[0], ops[1]]);
    assert!(
        said.contains("reserved for role 'eng'") && said.contains(&id),
        "{said}"
    );
    assert_eq!(reserved_cpus(&cluster, "eng"), 1.0);
    // Another user can act, since the verb finds the owner.
    let part = "--resources=cpus:0.5";
    let refine = ["--role=eng/backend", "--from=eng", part, "--principal=ann"];
    verb(&cluster, "reserve", &[&[id.as_str()], &refine[..]].concat());
    assert_eq!(reserved_cpus(&cluster, "eng/backend"), 0.5);
    verb(&cluster, "unreserve", &[&id, "--role=eng/backend", part]);
    assert_eq!(reserved_cpus(&cluster, "eng/backend"), 0.0);
    assert_eq!(reserved_cpus(&cluster, "eng"), 1.0);
    // A volume is named by its id alone once it exists.
    let volume = ["--role=eng", "--disk=16", "--container_path=data"];
    let create = [&["create", &id, "--id=v1"], &volume[..]].concat();
    verb(&cluster, "volumes", &create);
    assert!(has_line(
        &verb(&cluster, "volumes", &[]),
        &["v1", "eng", "16.0", "data", &id]
    ));
    let held = complaint(
        &cluster,
        "unreserve",
        &[&id, "--role=eng", "--resources=disk:32"],
    );
    assert!(
        held.contains("disk:16 by ops") && held.contains("`meseta volumes`"),
        "{held}"
    );
    verb(&cluster, "volumes", &["destroy", &id, "--id=v1"]);
    let gone = complaint(&cluster, "volumes", &["destroy", &id, "--id=v1"]);
    assert!(gone.contains("volume \"v1\" does not exist"), "{gone}");
    // With two reservers, the user must name one.
    verb(
        &cluster,
        "reserve",
        &[&id, "--role=eng", part, "--principal=bob"],
    );
    let unsure = complaint(&cluster, "unreserve", &[&id, "--role=eng", part]);
    assert!(
        unsure.contains("--reserver=NAME") && unsure.contains("cpus:0.5 by bob"),
        "{unsure}"
    );
    verb(
        &cluster,
        "unreserve",
        &[&id, "--role=eng", part, "--reserver=bob"],
    );
    let rest = "--resources=cpus:1;mem:64;disk:32";
    let said = verb(
        &cluster,
        "unreserve",
        &[&id, "--role=eng", rest, "--no-wait"],
    );
    assert!(said.contains("accepted"), "{said}");
    wait::eventually("nothing is reserved", Duration::from_secs(20), || {
        (reserved_cpus(&cluster, "eng") == 0.0).then_some(())
    });
}

/// Each refusal has a line with a hint.
fn refusals_name_the_remedy() {
    let cluster = Cluster::default();
    let id = cluster.agent_id();
    let reserve = |more: &[&'static str]| [&["AGENT", "--role=eng"], more].concat();
    for (name, args, said, hint) in [
        (
            "quota",
            vec!["set", "eng", "--guarantee=cpus:100"],
            "exceed",
            "--force",
        ),
        ("quota", vec!["remove", "eng"], "no quota", "`meseta quota`"),
        (
            "weights",
            vec!["set", "eng=0"],
            "must be positive",
            "--help",
        ),
        (
            "reserve",
            reserve(&["--resources=cpus:100"]),
            "does not contain cpus:100",
            "--from=ROLE",
        ),
        (
            "unreserve",
            reserve(&["--resources=cpus:1"]),
            "does not contain",
            "nothing that can be",
        ),
        (
            "reactivate",
            vec!["AGENT"],
            "not deactivated",
            "`meseta agents`",
        ),
        ("drain", vec!["nosuch"], "Unknown agent", "`meseta agents`"),
        ("mark-gone", vec!["nosuch"], "not found", "`meseta agents`"),
        (
            "teardown",
            vec!["nosuch"],
            "No framework",
            "`meseta frameworks`",
        ),
        (
            "explain",
            vec!["--framework=nosuch"],
            "no framework",
            "`meseta frameworks`",
        ),
        (
            "maintenance",
            vec!["down", "nosuch"],
            "not part of",
            "`meseta maintenance schedule",
        ),
        (
            "maintenance",
            vec!["up", "nosuch"],
            "not part of",
            "`meseta maintenance schedule",
        ),
    ] {
        let args: Vec<&str> = args
            .iter()
            .map(|arg| if *arg == "AGENT" { &id } else { *arg })
            .collect();
        let complained = complaint(&cluster, name, &args);
        assert!(complained.contains(said), "{name} {args:?}: {complained}");
        let help = complained.lines().find(|line| line.starts_with("hint: "));
        assert!(
            help.is_some_and(|line| line.contains(hint)),
            "{name} {args:?}: {complained}"
        );
    }
    let nobody = complaint(&cluster, "explain", &[]);
    assert!(nobody.contains("no framework is subscribed"), "{nobody}");
    let nobody = complaint(&cluster, "explain", &["--role=nosuch"]);
    assert!(nobody.contains("to role \"nosuch\""), "{nobody}");
    let state = cluster.meseta("tasks", &["--state=runing"]);
    assert_eq!(state.status.code(), Some(2), "{}", text(&state));
    let framework = cluster.framework();
    let only = verb(&cluster, "explain", &[]);
    assert!(only.contains(&framework.id), "{only}");
    let parts = verb(&cluster, "explain", &["--framework=0000", "--agent=S0"]);
    assert!(parts.contains(&framework.id), "{parts}");
    let second = cluster.framework();
    let several = complaint(&cluster, "explain", &[]);
    assert!(
        several.contains(&format!("--framework={}", second.id)),
        "{several}"
    );
}

fn execute_uses_reserved_resources_first() {
    let cluster = Cluster::with_resources("cpus:1;mem:512;cpus(eng):1;mem(eng):32");
    // The task needs more CPUs than are free, and more memory than is reserved.
    let resources = "--resources=cpus:1.5;mem:64";
    let args = ["--role=eng", resources, "--name=both", "--command=true"];
    verb(&cluster, "execute", &args);
    let tasks = cluster.master.page("/tasks").json();
    assert_eq!(tasks["tasks"][0]["resources"]["cpus"], 1.5, "{tasks:#}");
    assert_eq!(tasks["tasks"][0]["role"], "eng");
    // Another user's reservation is not available; the message comes after three seconds.
    let output = cluster.meseta(
        "execute",
        &[
            "--role=web",
            resources,
            "--command=true",
            "--timeout=12secs",
        ],
    );
    assert_eq!(output.status.code(), Some(124));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("waiting: needs cpus:1.5; mem:64, but the largest offer had"),
        "{said}"
    );
}
