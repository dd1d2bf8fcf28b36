//! A sandbox belongs to its user, who puts links, pipes and others' files in the way of the agent's root.

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use meseta_tests::{Cluster, Framework, http, kernel, wait};
use serde_json::{Value, json};

use super::{
    NOBODY, as_nobody, framework_of_nobody, health, open_cluster, sandbox, secret, small,
    until_healthy,
};

/// The time for unblocked processes to end.
const END_LIMIT: Duration = Duration::from_secs(15);

fn end(framework: &mut Framework, task: &str) {
    framework.kill(task);
    framework.until_state(task, "TASK_KILLED");
}

/// Launches a group of one task, in a sandbox inside that of its executor.
fn launch_group(framework: &mut Framework, executor: &str, mut task: Value) {
    let offer = framework.offer();
    task["agent_id"] = offer["agent_id"].clone();
    let resources = [("cpus", 0.1), ("mem", 32.0), ("disk", 8.0)];
    let resources = meseta_tests::framework::task(&offer, "", "", &resources)["resources"].clone();
    let info = json!({
        "executor_id": {"value": executor}, "type": "DEFAULT",
        "framework_id": {"value": framework.id},
        "resources": resources,
    });
    let launch = json!({"type": "LAUNCH_GROUP", "launch_group": {
        "executor": info, "task_group": {"tasks": [task]}}});
    framework.accepted(json!({"type": "ACCEPT", "accept": {
        "offer_ids": [offer["id"]], "operations": [launch], "filters": {"refuse_seconds": 0.0}}}));
}

/// The output of a check goes to its task's sandbox, through folders that the task's user can swap.
pub(super) fn check_writes_through_no_link() {
    let cluster = open_cluster(&[]);
    let mut framework = framework_of_nobody(&cluster);
    for (executor, existing) in [("fresh", false), ("existing", true)] {
        let secret = secret(&cluster, &format!("secret-{executor}"));
        if existing {
            std::fs::rename(secret.join("file"), secret.join("health-check.log")).expect("renamed");
        }
        let before = std::fs::read_dir(&secret).expect("read").count();
        let mut task = small(&Value::Null, executor, "exec sleep 1000");
        task["health_check"] = health("echo checked >&2");
        launch_group(&mut framework, executor, task);
        until_healthy(&mut framework, executor, true);
        let run = sandbox(&cluster, &framework, executor);
        let swap = format!(
            "mkdir evil; ln -s {} evil/$(ls containers); mv containers real; ln -s evil containers",
            secret.display()
        );
        assert!(as_nobody(&run, &swap));
        until_healthy(&mut framework, executor, false);
        let entries = std::fs::read_dir(&secret).expect("read");
        let entries: Vec<_> = entries
            .map(|entry| entry.expect("an entry").path())
            .collect();
        assert_eq!(entries.len(), before, "{entries:?}");
        for path in entries {
            assert_eq!(
                std::fs::metadata(&path).expect("there").uid(),
                0,
                "{path:?}"
            );
            assert_eq!(std::fs::read_to_string(&path).expect("read"), "secret");
        }
        end(&mut framework, executor);
    }
}

/// Attacks with the file itself: a pipe without a reader, or a second name of root's file.
pub(super) fn check_opens_no_foreign_file() {
    let cluster = open_cluster(&[]);
    let mut framework = framework_of_nobody(&cluster);
    let secret = secret(&cluster, "secret").join("file");
    for kind in ["pipe", "name"] {
        let offer = framework.offer();
        let mut task = small(&offer, kind, "exec sleep 1000");
        task["health_check"] = health("echo checked >&2");
        framework.launch(&offer, &[task]);
        until_healthy(&mut framework, kind, true);
        let run = sandbox(&cluster, &framework, kind);
        if kind == "pipe" {
            assert!(as_nobody(&run, "mkfifo pipe; mv pipe health-check.log"));
        } else {
            // Some kernels do not prevent users from this link.
            std::fs::hard_link(&secret, run.join("planted")).expect("linked");
            std::fs::rename(run.join("planted"), run.join("health-check.log")).expect("renamed");
        }
        until_healthy(&mut framework, kind, false);
        end(&mut framework, kind);
    }
    let found = std::fs::metadata(&secret).expect("there");
    assert_eq!((found.uid(), found.mode() & 0o777), (0, 0o600));
    assert_eq!(std::fs::read_to_string(&secret).expect("read"), "secret");
    wait::eventually("no process of root's waits for a reader", END_LIMIT, || {
        let processes = kernel::processes_below(&cluster.cgroups_root);
        let left = processes.into_iter().filter(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.trim() == "meseta-init")
        });
        (left.count() == 0).then_some(())
    });
}

/// Returns the id of a task's container.
fn container_of(status: &Value) -> Value {
    json!({"value": status["container_status"]["container_id"]["value"]})
}

fn call(cluster: &Cluster, body: &Value) -> http::Answer {
    http::post_json(&format!("{}/api/v1", cluster.agent().url), body)
}

fn run_nested(cluster: &Cluster, id: &Value, command: &str) {
    let launch = json!({"type": "LAUNCH_NESTED_CONTAINER", "launch_nested_container": {
        "container_id": id, "command": {"value": command, "user": "nobody"}}});
    let answer = call(cluster, &launch);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let wait = json!({"type": "WAIT_NESTED_CONTAINER", "wait_nested_container": {
        "container_id": id}});
    assert_eq!(call(cluster, &wait).status, 200);
}

/// A nested container's sandbox is removed at its place, and not where its name leads now.
pub(super) fn nested_removal_follows_no_link() {
    let cluster = open_cluster(&[]);
    let mut framework = framework_of_nobody(&cluster);
    let offer = framework.offer();
    framework.launch(&offer, &[small(&offer, "t", "exec sleep 1000")]);
    let status = framework.until_state("t", "TASK_RUNNING");
    let run = sandbox(&cluster, &framework, "t");
    let victims = cluster.dir.path().join("victims");
    std::fs::create_dir_all(victims.join("child")).expect("made");
    std::fs::write(victims.join("child/precious"), "text").expect("written");
    let id = json!({"value": "child", "parent": container_of(&status)});
    run_nested(&cluster, &id, "echo own > file");
    let swap = format!("mv containers real; ln -s {} containers", victims.display());
    assert!(as_nobody(&run, &swap));
    let remove = json!({"type": "REMOVE_NESTED_CONTAINER", "remove_nested_container": {
        "container_id": id}});
    call(&cluster, &remove);
    assert!(victims.join("child/precious").exists());
    // Without an attack the folder is removed.
    let id = json!({"value": "other", "parent": container_of(&status)});
    assert!(as_nobody(&run, "rm containers; mv real containers"));
    run_nested(&cluster, &id, "mkdir -p a/b/c; echo own > a/b/c/file");
    assert!(run.join("containers/other/a/b/c/file").exists());
    let remove = json!({"type": "REMOVE_NESTED_CONTAINER", "remove_nested_container": {
        "container_id": id}});
    assert_eq!(call(&cluster, &remove).status, 200);
    assert!(!run.join("containers/other").exists());
    end(&mut framework, "t");
}

/// An attacker who knows the id of a nested container beforehand puts a foreign folder in its place.
pub(super) fn nested_sandbox_keeps_foreign_folder() {
    let cluster = open_cluster(&[]);
    let mut framework = framework_of_nobody(&cluster);
    let offer = framework.offer();
    framework.launch(&offer, &[small(&offer, "t", "exec sleep 1000")]);
    let status = framework.until_state("t", "TASK_RUNNING");
    let run = sandbox(&cluster, &framework, "t");
    assert!(as_nobody(&run, "mkdir containers"));
    // The user may rename a folder of root, because the parent folder is theirs.
    let planted = run.join("containers/child");
    std::fs::create_dir(&planted).expect("made");
    std::fs::write(planted.join("file"), "root's").expect("written");
    let id = json!({"value": "child", "parent": container_of(&status)});
    let launch = json!({"type": "LAUNCH_NESTED_CONTAINER", "launch_nested_container": {
        "container_id": id, "command": {"value": "true", "user": "nobody"}}});
    let answer = call(&cluster, &launch);
    assert_ne!(answer.status, 200, "{}", answer.text());
    assert_eq!(std::fs::metadata(&planted).expect("there").uid(), 0);
    end(&mut framework, "t");
}

/// The API reads no file that the task itself may not read.
pub(super) fn api_reads_no_foreign_file() {
    let cluster = open_cluster(&[]);
    let mut framework = framework_of_nobody(&cluster);
    let secret = secret(&cluster, "secret").join("file");
    let offer = framework.offer();
    let command = "echo own > own; ln own again; mkdir folder; ln -s ../own folder/link; \
        echo printed; exec sleep 1000";
    framework.launch(&offer, &[small(&offer, "t", command)]);
    framework.until_state("t", "TASK_RUNNING");
    let run = sandbox(&cluster, &framework, "t");
    wait::eventually("its files", END_LIMIT, || {
        let printed = std::fs::read_to_string(run.join("stdout")).unwrap_or_default();
        printed.contains("printed").then_some(())
    });
    // Some kernels do not prevent users from this link.
    std::fs::hard_link(&secret, run.join("planted")).expect("linked");
    let read = |name: &str| {
        let path = format!(
            "/frameworks/{}/executors/t/runs/latest/{name}",
            framework.id
        );
        let url = &cluster.agent().url;
        http::get(&format!("{url}/files/read?path={path}&offset=0"))
    };
    for name in ["own", "again", "folder/link", "stdout"] {
        assert_eq!(read(name).status, 200, "{name}");
    }
    let answer = read("planted");
    assert!(answer.status >= 400, "{}", answer.text());
    assert!(!answer.text().contains("secret"), "{}", answer.text());
    std::fs::remove_file(run.join("planted")).expect("removed");
    let owner = std::fs::metadata(run.join("stdout")).expect("there").uid();
    assert_eq!(owner, NOBODY);
    end(&mut framework, "t");
}

/// The task's files are exchanged for links to root's while they are read; `sandbox_files` has a test with very many reads.
pub(super) fn file_read_race_never_succeeds() {
    const TRIES: usize = 300;
    let cluster = open_cluster(&[]);
    let mut framework = framework_of_nobody(&cluster);
    let secret = secret(&cluster, "secret");
    let command = format!(
        "mkdir inside away; echo own > inside/file; ln -s {0} outside; ln -s {0}/file leads; echo own > plain; \
         mkfifo pipe; ln -s /proc/self/root/etc/shadow root; echo made; \
         while :; do mv inside kept; mv outside inside; mv inside outside; mv kept inside; \
         mv plain kept; mv leads plain; mv plain leads; mv kept plain; done",
        secret.display()
    );
    let offer = framework.offer();
    framework.launch(&offer, &[small(&offer, "t", &command)]);
    framework.until_state("t", "TASK_RUNNING");
    let run = sandbox(&cluster, &framework, "t");
    wait::eventually("its files", END_LIMIT, || {
        let printed = std::fs::read_to_string(run.join("stdout")).unwrap_or_default();
        printed.contains("made").then_some(())
    });
    let path = format!("/frameworks/{}/executors/t/runs/latest", framework.id);
    let url = &cluster.agent().url;
    let mut own = 0;
    for number in 0..TRIES {
        let name = ["inside/file", "plain"][number % 2];
        let answer = match number % 3 {
            0 => http::get(&format!("{url}/files/download?path={path}/{name}")),
            _ => http::get(&format!("{url}/files/read?path={path}/{name}&offset=0")),
        };
        assert!(
            !answer.text().contains("secret"),
            "{name}: {}",
            answer.text()
        );
        own += usize::from(answer.text().contains("own"));
    }
    eprintln!("{own} of {TRIES} tries read the task's own file");
    assert!(own > 0);
    for name in [
        "pipe",
        "root",
        "../../../../../../../../etc/shadow",
        "outside/file",
        "leads",
    ] {
        let answer = http::get(&format!("{url}/files/read?path={path}/{name}&offset=0"));
        assert!(answer.status >= 400, "{name}: {}", answer.text());
    }
    for part in [
        "offset=-9",
        "offset=9223372036854775808",
        "offset=0&length=-5",
        "offset=x",
    ] {
        let answer = http::get(&format!("{url}/files/read?path={path}/stdout&{part}"));
        assert!(
            [200, 400].contains(&answer.status),
            "{part}: {}",
            answer.text()
        );
        assert!(!answer.text().contains("panicked"));
    }
    end(&mut framework, "t");
}
