//! The environment of a task through the whole agent with its default isolation; and the effects of a task's requests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_tests::framework::task;
use meseta_tests::{Cluster, Setup, http, unless_root, wait};
use serde_json::{Value, json};

use crate::probe;

meseta_tests::scenarios! {
    unless_root:
        inside_a_task_little_is_left,
        container_escapes_are_blocked,
        task_may_drop_capabilities,
        forbidden_isolation_is_refused_by_name,
        task_or_operator_selects_seccomp_profile;
}

const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 64.0)];

/// Runs a command on a cluster and returns its output.
fn output_of(cluster: &Cluster, command: &str) -> String {
    let output = cluster.meseta(
        "execute",
        &[
            &format!("--command={command}"),
            "--resources=cpus:0.1;mem:64",
        ],
    );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn line<'a>(text: &'a str, name: &str) -> &'a str {
    let found = text.lines().find_map(|line| line.strip_prefix(name));
    found
        .unwrap_or_else(|| panic!("no {name:?} in {text}"))
        .trim()
}

fn inside_a_task_little_is_left() {
    let cluster = Cluster::default();
    let text = output_of(
        &cluster,
        "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; \
         echo processes $(ls -d /proc/[0-9]* | wc -l); \
         echo ipc $(readlink /proc/self/ns/ipc); echo uts $(readlink /proc/self/ns/uts); \
         echo pid $(readlink /proc/self/ns/pid); echo mnt $(readlink /proc/self/ns/mnt); \
         for dir in /sys/fs/cgroup /sys/fs/cgroup/*; do mkdir $dir/escape 2>/dev/null && echo made $dir; done; \
         echo shm $(ls /dev/shm | wc -l)",
    );
    assert_eq!(line(&text, "NoNewPrivs:"), "1");
    assert_eq!(line(&text, "Seccomp:"), "2");
    // The capabilities are nine: root's allow-list.
    for set in ["CapEff:", "CapBnd:", "CapPrm:"] {
        let bits = u64::from_str_radix(line(&text, set), 16).expect("a set");
        assert_eq!(bits.count_ones(), 9, "{set} {bits:x}");
        assert_eq!(bits & (1 << 21), 0, "SYS_ADMIN in {set}");
    }
    for set in ["CapInh:", "CapAmb:"] {
        assert_eq!(line(&text, set), "0000000000000000", "{set}");
    }
    // The last descriptor is that of the listed folder.
    assert_eq!(output_of(&cluster, "exec ls /proc/self/fd"), "0\n1\n2\n3\n");
    let processes: u32 = line(&text, "processes").parse().expect("a number");
    assert!(processes <= 6, "processes of others are visible: {text}");
    for namespace in ["ipc", "uts", "pid", "mnt"] {
        let own = std::fs::read_link(format!("/proc/self/ns/{namespace}")).expect("a namespace");
        assert_ne!(Path::new(line(&text, namespace)), own, "{namespace}");
    }
    assert!(!text.contains("made "), "a cgroup could be made: {text}");
    assert_eq!(line(&text, "shm"), "0");
}

/// Copies the attack program to a place where every user can run it.
fn probe_in(dir: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir, open.clone()).expect("permissions");
    let path = dir.join("probe");
    std::fs::copy(std::env::current_exe().expect("a program"), &path).expect("copied");
    std::fs::set_permissions(&path, open).expect("permissions");
    path
}

fn container_escapes_are_blocked() {
    let cluster = Cluster::default();
    let probe = probe_in(cluster.dir.path());
    let shared = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file");
    let agent = cluster.agent().pid();
    // The container's own groups are found at whatever place their trees are mounted.
    let groups = "g=; while IFS=: read -r n c p; do \
         for d in \"/sys/fs/cgroup/$c$p\" \"/sys/fs/cgroup/unified$p\" \"/sys/fs/cgroup$p\"; do \
         [ -d \"$d\" ] && g=\"$g:$d\"; done; done < /proc/self/cgroup";
    let command = format!(
        "{groups}; {}={agent} {}=\"${{g#:}}\" {}=meseta-nobody {}=1 {}={} exec {} {} escapes",
        probe::AGENT,
        probe::GROUPS,
        probe::ABSTRACT,
        probe::KEY,
        probe::SHARED,
        shared.path().display(),
        probe.display(),
        probe::MARK,
    );
    for user in ["root", "nobody"] {
        let output = cluster.meseta(
            "execute",
            &[
                &format!("--command={command}"),
                "--resources=cpus:0.1;mem:128",
                &format!("--user={user}"),
            ],
        );
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{user}: {text}");
        let blocked = text
            .lines()
            .filter(|line| line.starts_with("blocked "))
            .count();
        assert!(blocked > 40, "{user}: only {blocked} tries: {text}");
        let open: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("open "))
            .collect();
        assert_eq!(open, Vec::<&str>::new(), "{user}");
        assert!(text.contains("status NoNewPrivs:1"), "{user}: {text}");
        if user != "root" {
            assert!(text.contains("status CapBnd:0000000000000000"), "{text}");
        }
    }
}

/// Returns a task that requests settings of its container.
fn with_linux_info(offer: &Value, id: &str, command: &str, container: &Value) -> Value {
    let mut task = task(offer, id, command, SMALL);
    task["container"] = container.clone();
    task["container"]["type"] = json!("MESOS");
    task
}

/// Returns the file `stdout` of an ended task.
fn stdout_of(cluster: &Cluster, framework: &str, id: &str) -> String {
    let path = format!("/frameworks/{framework}/executors/{id}/runs/latest/stdout");
    let url = format!("{}/files/read?path={path}&offset=0", cluster.agent().url);
    let answer = wait::eventually("the output can be read", Duration::from_secs(10), || {
        let answer = http::get(&url);
        (answer.status == 200).then_some(answer)
    });
    answer.json()["data"].as_str().expect("data").to_owned()
}

fn task_may_drop_capabilities() {
    let (cluster, mut framework, offer) = Cluster::with_offer();
    let command = "grep CapBnd /proc/self/status; hostname; ulimit -n; \
                   echo shm $(stat -f -c '%b %S' /dev/shm); \
                   echo ipc $(readlink /proc/self/ns/ipc); ls -d /proc/[0-9]* | wc -l";
    let less = json!({
        "hostname": "small",
        "rlimit_info": {"rlimits": [{"type": "RLMT_NOFILE", "soft": 50, "hard": 60}]},
        "linux_info": {
            "bounding_capabilities": {"capabilities": ["KILL"]},
            "ipc_mode": "PRIVATE", "shm_size": 8,
        },
    });
    let shared = json!({"linux_info": {
        "share_pid_namespace": true, "ipc_mode": "SHARE_PARENT", "seccomp": {"unconfined": true},
    }});
    framework.launch(
        &offer,
        &[
            with_linux_info(&offer, "less", command, &less),
            with_linux_info(&offer, "shared", command, &shared),
        ],
    );
    framework.until_state("less", "TASK_FINISHED");
    framework.until_state("shared", "TASK_FINISHED");
    let text = stdout_of(&cluster, &framework.id, "less");
    assert_eq!(line(&text, "CapBnd:"), "0000000000000020");
    assert!(text.contains("\nsmall\n50\n"), "{text}");
    let size: Vec<u64> = line(&text, "shm")
        .split(' ')
        .map(|word| word.parse().expect("a number"))
        .collect();
    assert_eq!(size.iter().product::<u64>(), 8 << 20, "{text}");
    let text = stdout_of(&cluster, &framework.id, "shared");
    let own = std::fs::read_link("/proc/self/ns/ipc").expect("a namespace");
    assert_eq!(Path::new(line(&text, "ipc")), own);
    let seen: u32 = text
        .lines()
        .last()
        .expect("a count")
        .parse()
        .expect("a number");
    assert!(seen > 6, "the host's processes are not shared: {text}");
}

fn forbidden_isolation_is_refused_by_name() {
    let mut setup = Setup::default();
    setup.agent_flags.extend([
        "--disallow_sharing_agent_pid_namespace".to_owned(),
        "--disallow_sharing_agent_ipc_namespace".to_owned(),
        "--bounding_capabilities={\"capabilities\": [\"KILL\"]}".to_owned(),
    ]);
    let cluster = Cluster::start(setup);
    let mut framework = cluster.framework();
    for (id, container, complaint) in [
        (
            "pid",
            json!({"linux_info": {"share_pid_namespace": true}}),
            "sharing the agent's pid namespace is not allowed",
        ),
        (
            "ipc",
            json!({"linux_info": {"ipc_mode": "SHARE_PARENT"}}),
            "sharing the agent's ipc namespace is not allowed",
        ),
        (
            "caps",
            json!({"linux_info": {"effective_capabilities": {"capabilities": ["SYS_ADMIN"]}}}),
            "CAP_SYS_ADMIN are not allowed",
        ),
        (
            "profile",
            json!({"linux_info": {"seccomp": {"profile_name": "none.json"}}}),
            "no seccomp profile \"none.json\"",
        ),
        (
            "rlimit",
            json!({"rlimit_info": {"rlimits": [{"type": "RLMT_NOFILE", "soft": 5}]}}),
            "needs both",
        ),
    ] {
        let offer = framework.offer();
        framework.launch(&offer, &[with_linux_info(&offer, id, "true", &container)]);
        let status = framework.until_state(id, "TASK_FAILED");
        assert_eq!(
            status["reason"], "REASON_CONTAINER_LAUNCH_FAILED",
            "{status:#}"
        );
        let message = status["message"].as_str().expect("a message");
        assert!(message.contains(complaint), "{id}: {message}");
    }
}

fn task_or_operator_selects_seccomp_profile() {
    let folder = tempfile::tempdir().expect("a folder");
    let deny = |name: &str| {
        json!({"defaultAction": "SCMP_ACT_ALLOW",
               "syscalls": [{"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}]})
    };
    for (file, call) in [("no-uname.json", "uname"), ("no-chdir.json", "chdir")] {
        std::fs::write(folder.path().join(file), deny(call).to_string()).expect("written");
    }
    let mut setup = Setup::default();
    setup.agent_flags.extend([
        format!("--seccomp_config_dir={}", folder.path().display()),
        "--seccomp_profile_name=no-uname.json".to_owned(),
    ]);
    let cluster = Cluster::start(setup);
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let command = "uname -s >/dev/null 2>&1 && echo uname; cd / 2>/dev/null && echo chdir; true";
    let seccomp = |info: Value| json!({"linux_info": {"seccomp": info}});
    framework.launch(
        &offer,
        &[
            with_linux_info(&offer, "default", command, &json!({})),
            with_linux_info(
                &offer,
                "own",
                command,
                &seccomp(json!({"profile_name": "no-chdir.json"})),
            ),
            with_linux_info(
                &offer,
                "none",
                command,
                &seccomp(json!({"unconfined": true})),
            ),
        ],
    );
    for (id, output) in [
        ("default", "chdir\n"),
        ("own", "uname\n"),
        ("none", "uname\nchdir\n"),
    ] {
        framework.until_state(id, "TASK_FINISHED");
        assert_eq!(stdout_of(&cluster, &framework.id, id), output, "{id}");
    }
}
