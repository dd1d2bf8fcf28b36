//! Tests of daemons that die during operations, and of an agent that returns with less than it promised.

use meseta_tests::{Cluster, wait};
use serde_json::{Value, json};

use super::{LIMIT, cluster, dynamic, is, post_form, reserved_full, sum, volume_dir, volume_of};

/// The agent refuses to start with fewer resources than it has promised, and reports that.
pub(super) fn missing_reserved_resources_refuse_start() {
    let mut cluster = cluster("cpus:4;mem:1024");
    let agent = cluster.agent_id();
    let three = json!([dynamic("cpus", 3.0, "dev")]).to_string();
    let answer = post_form(&cluster, "/reserve", &agent, "resources", &three);
    assert_eq!(answer.status, 202, "{}", answer.text());
    reserved_full(&cluster, "dev", 1);
    cluster.agents[0].kill();
    let dir = cluster.dir.path().join("agent-0");
    // The agent starts as a new agent, so that only the reservations are an obstacle.
    std::fs::remove_file(dir.join("meta/slaves/latest")).expect("removed");
    let start = |resources: &str| {
        std::process::Command::new(meseta_tests::daemon::binary())
            .arg("agent")
            .args([
                format!("--work_dir={}", dir.display()),
                format!("--runtime_dir={}", dir.join("run").display()),
                format!("--cgroups_root={}", cluster.cgroups_root),
                format!("--master={}", cluster.master.address()),
                "--port=0".to_owned(),
                format!("--resources={resources}"),
            ])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("the agent runs")
    };
    let mut child = start("cpus:2;mem:1024");
    let ended = wait::holds(LIMIT, || matches!(child.try_wait(), Ok(Some(_))));
    let _ = child.kill();
    let output = child.wait_with_output().expect("the agent ends");
    assert!(
        ended && !output.status.success(),
        "it runs with less than it promised"
    );
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(said.contains("lack cpus:3"), "{said}");
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    wait::eventually("the reservation is back", LIMIT, || {
        let slaves = cluster.master.page("/slaves").json();
        let slaves = slaves["slaves"].as_array()?.clone();
        let active = slaves.into_iter().find(|one| one["active"] == true)?;
        let dev = &active["reserved_resources_full"]["dev"];
        is(sum(dev, "cpus", |_| true), 3.0).then_some(())
    });
}

/// Kills the agent and the master in turn at ten points of a cycle of reserve, create, destroy and unreserve: before and
/// after each operation could have arrived, and while the volume has data.
pub(super) fn ten_crashes_leave_everything_exactly_once() {
    let mut cluster = cluster("cpus:4;mem:1024;disk:1024");
    let agent = cluster.agent_id();
    // An agent killed before that would come back as another one.
    let latest = cluster.agent_dir(0).join("meta/slaves/latest");
    wait::eventually("the agent's id is on its disk", LIMIT, || {
        latest.exists().then_some(())
    });
    let disk = dynamic("disk", 64.0, "dev");
    let data = volume_of(disk.clone(), "v");
    let dir = volume_dir(&cluster, "dev", "v");
    twice(&mut cluster, |cluster| {
        let codes = [202];
        asked(cluster, &agent, "/reserve", "resources", &disk, &codes);
    });
    settle(&cluster, &agent, &disk);
    exactly_once(&cluster, &dir, false);

    // The second call is a repetition if the first one arrived, and so is the last.
    let create = |cluster: &Cluster| {
        let codes = [202, 400];
        asked(cluster, &agent, "/create-volumes", "volumes", &data, &codes);
    };
    twice(&mut cluster, create);
    create(&cluster);
    exactly_once(&cluster, &dir, true);
    std::fs::write(dir.join("file"), "treasure").expect("written");

    twice(&mut cluster, |_| {});
    exactly_once(&cluster, &dir, true);
    let kept = std::fs::read_to_string(dir.join("file")).unwrap_or_default();
    assert_eq!(kept, "treasure", "the data is intact");

    let destroy = |cluster: &Cluster| {
        let codes = [202, 400];
        asked(
            cluster,
            &agent,
            "/destroy-volumes",
            "volumes",
            &data,
            &codes,
        );
    };
    twice(&mut cluster, destroy);
    destroy(&cluster);
    exactly_once(&cluster, &dir, false);

    let unreserve = |cluster: &Cluster| {
        let codes = [202, 409];
        asked(cluster, &agent, "/unreserve", "resources", &disk, &codes);
    };
    twice(&mut cluster, unreserve);
    unreserve(&cluster);
    wait::eventually("nothing is reserved", LIMIT, || {
        let state = cluster.agent().page("/state").json();
        let slaves = cluster.master.page("/slaves").json();
        (state["reserved_resources_full"] == json!({})
            && state["unreserved_resources"]["disk"] == 1024.0
            && slaves["slaves"][0]["reserved_resources_full"] == json!({}))
        .then_some(())
    });
}

/// Does the work and kills the agent at once, then does it again and kills the master: the request may be on its way, half
/// done, or done.
fn twice(cluster: &mut Cluster, work: impl Fn(&Cluster)) {
    work(cluster);
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    work(cluster);
    cluster.restart_master();
    cluster.wait_for_agents(1);
}

fn asked(cluster: &Cluster, agent: &str, path: &str, name: &str, resource: &Value, codes: &[u16]) {
    let value = json!([resource]).to_string();
    let answer = post_form(cluster, path, agent, name, &value);
    let code = answer.status;
    assert!(codes.contains(&code), "{path}: {code} {}", answer.text());
}

/// Waits until master, agent and disk show one reservation of 64 MB, with or without the volume.
fn exactly_once(cluster: &Cluster, dir: &std::path::Path, has_volume: bool) {
    wait::eventually(
        "one reservation, and the volume if there is one",
        LIMIT,
        || {
            let full = reserved_full(cluster, "dev", 1);
            let is_volume = full[0].get("disk").is_some();
            let amount = sum(&full, "disk", |_| true);
            (is(amount, 64.0) && is_volume == has_volume && dir.exists() == has_volume)
                .then_some(())
        },
    );
}

/// Leaves exactly one reservation: reservations add up, and one may have been lost.
fn settle(cluster: &Cluster, agent: &str, disk: &Value) {
    let value = json!([disk]).to_string();
    let reserved = wait::eventually("master and agent agree", LIMIT, || {
        let master = cluster.master.page("/slaves").json();
        let master = &master["slaves"][0]["reserved_resources_full"]["dev"];
        let state = cluster.agent().page("/state").json();
        let agent = &state["reserved_resources_full"]["dev"];
        (master == agent).then(|| sum(agent, "disk", |_| true))
    });
    let path = if is(reserved, 64.0) {
        return;
    } else if reserved < 64.0 {
        "/reserve"
    } else {
        "/unreserve"
    };
    let answer = post_form(cluster, path, agent, "resources", &value);
    assert_eq!(answer.status, 202, "{}", answer.text());
    wait::eventually("one of them is there", LIMIT, || {
        let state = cluster.agent().page("/state").json();
        let dev = &state["reserved_resources_full"]["dev"];
        is(sum(dev, "disk", |_| true), 64.0).then_some(())
    });
}
