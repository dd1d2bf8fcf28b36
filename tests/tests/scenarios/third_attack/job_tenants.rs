//! Jobs of two principals on one secured cluster: each reads the tasks, logs and files of its own jobs, and nothing of the other
//! principal's.

use std::process::Output;

use meseta_tests::http::Answer;
use meseta_tests::wait::eventually;
use serde_json::{Value, json};

use super::fleet::{Fleet, LIMIT};

/// The principals, each with a role and a user of its own.
const TENANTS: [&str; 2] = ["ads", "web"];

/// A master, an agent, a scheduler, and a service of each tenant.
struct Cluster {
    fleet: Fleet,
    master: usize,
    agent: usize,
    scheduler: usize,
}

impl Cluster {
    fn start() -> Self {
        let web = "--principal=web:role=web:user=www-data".to_owned();
        let mut fleet = Fleet::with(&[web, "--job-user=games".to_owned()]);
        let master = fleet.start("master.example", "master", &[]);
        let to_master = [format!("--master={}", fleet.daemons[master].address())];
        let agent = fleet.start("node1.example", "agent", &to_master);
        let scheduler = fleet.start("master.example", "scheduler", &to_master);
        Self {
            fleet,
            master,
            agent,
            scheduler,
        }
    }

    fn verb(&self, principal: &str, arguments: &[&str]) -> Output {
        let [master, scheduler] =
            [self.master, self.scheduler].map(|daemon| self.fleet.daemons[daemon].address());
        self.fleet
            .verb_at(principal, (master, scheduler), arguments)
    }

    /// The output of a verb that succeeds.
    fn say(&self, principal: &str, arguments: &[&str]) -> String {
        let output = self.verb(principal, arguments);
        let text = text(&output);
        assert!(output.status.success(), "{principal} {arguments:?}: {text}");
        text
    }

    fn get(&self, daemon: usize, principal: &str, path: &str) -> Answer {
        let answer = self.fleet.get(daemon, principal, path);
        answer.expect("an answer")
    }

    fn call(&self, daemon: usize, principal: &str, question: &str) -> String {
        let url = format!("{}/api/v1", self.fleet.daemons[daemon].url);
        let secret = self.fleet.secret(principal);
        let who = Some((principal, secret.as_str()));
        let call = json!({ "type": question }).to_string();
        let answer = self.fleet.client().ask("POST", &url, who, &call);
        answer.expect("an answer").text()
    }

    /// The task of a tenant's service, once it has written its line.
    fn task_of(&self, tenant: &str) -> Task {
        let name = job_of(tenant);
        let job = eventually("the service is healthy", LIMIT, || {
            let job = self.get(self.scheduler, tenant, &format!("/v1/jobs/{name}"));
            let job = job.json();
            (job["state"] == "healthy").then_some(job)
        });
        let subscription = self.get(self.scheduler, tenant, "/v1/subscription").json();
        let word = |value: &Value| value.as_str().expect("text").to_owned();
        Task {
            id: word(&job["tasks"][0]["task_id"]),
            agent_id: word(&job["tasks"][0]["agent_id"]),
            framework_id: word(&subscription["framework_id"]),
        }
    }

    fn stdout_of(&self, task: &Task) -> String {
        let Task {
            id,
            agent_id,
            framework_id,
        } = task;
        let work_dir = self.fleet.dir.path().join(format!("agent-{}", self.agent));
        let work_dir = work_dir.display();
        let run = format!("slaves/{agent_id}/frameworks/{framework_id}/executors/{id}/runs/latest");
        format!("/files/read?offset=0&path={work_dir}/{run}/stdout")
    }
}

struct Task {
    id: String,
    agent_id: String,
    framework_id: String,
}

fn job_of(tenant: &str) -> String {
    format!("{tenant}-service")
}

/// The secret in the environment of a tenant's tasks.
fn secret_of(tenant: &str) -> String {
    format!("secret-{tenant}-51c7")
}

/// The line that a tenant's tasks write.
fn line_of(tenant: &str) -> String {
    format!("line-{tenant}-83d0")
}

fn text(output: &Output) -> String {
    let both = [&output.stdout, &output.stderr];
    both.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .concat()
}

fn run_service(cluster: &Cluster, tenant: &str) {
    let (name, secret, line) = (job_of(tenant), secret_of(tenant), line_of(tenant));
    let file = cluster.fleet.dir.path().join(format!("{tenant}.toml"));
    // Neither names a user: the job runs as the only one of its submitter.
    let job = format!(
        "name = \"{name}\"\nrole = \"{tenant}\"\n[task]\ncommand = \"echo {line}; exec sleep 1000\"\n\
         [task.env]\nSECRET = \"{secret}\"\n[resources]\ncpus = 0.1\nmem = \"32MB\"\n\
         [update]\nhealthy_after = \"1secs\"\n"
    );
    std::fs::write(&file, job).expect("written");
    cluster.say(tenant, &["run", &file.display().to_string()]);
}

pub(super) fn principals_read_their_own_jobs_alone() {
    let cluster = Cluster::start();
    for tenant in TENANTS {
        run_service(&cluster, tenant);
    }
    let tasks = TENANTS.map(|tenant| cluster.task_of(tenant));
    for (number, tenant) in TENANTS.into_iter().enumerate() {
        let (own, other) = (&tasks[number], &tasks[1 - number]);
        let neighbour = TENANTS[1 - number];
        reads_its_own(&cluster, tenant, own);
        learns_nothing_of(&cluster, tenant, neighbour, other);
    }
    // Another user than its own is refused.
    let file = cluster.fleet.dir.path().join("stolen.toml");
    let job =
        "name = \"stolen\"\nrole = \"ads\"\n[task]\ncommand = \"true\"\nuser = \"www-data\"\n";
    std::fs::write(&file, job).expect("written");
    let refused = cluster.verb("ads", &["run", &file.display().to_string()]);
    assert!(!refused.status.success(), "{}", text(&refused));
    assert!(text(&refused).contains("403"), "{}", text(&refused));
}

fn reads_its_own(cluster: &Cluster, tenant: &str, own: &Task) {
    let (name, line) = (job_of(tenant), line_of(tenant));
    assert!(cluster.say(tenant, &["jobs"]).contains(&name));
    assert!(
        cluster
            .say(tenant, &["job", "status", &name])
            .contains(&own.id)
    );
    assert!(cluster.say(tenant, &["job", "logs", &name]).contains(&line));
    assert!(cluster.say(tenant, &["logs", &own.id]).contains(&line));
    assert!(cluster.say(tenant, &["tasks"]).contains(&own.id));
    let run = cluster.say(tenant, &["job", "exec", &name, "--", "printenv", "SECRET"]);
    assert!(run.contains(&secret_of(tenant)), "{run}");
    let file = cluster.get(cluster.agent, tenant, &cluster.stdout_of(own));
    assert!(
        file.status == 200 && file.text().contains(&line),
        "{tenant}: {}",
        file.text()
    );
    for daemon in [cluster.master, cluster.agent] {
        for question in ["GET_STATE", "GET_TASKS"] {
            let answer = cluster.call(daemon, tenant, question);
            assert!(answer.contains(&own.id), "{tenant} {question}: {answer}");
        }
    }
    let state = cluster.get(cluster.agent, tenant, "/state").text();
    assert!(state.contains(&own.id), "{tenant}: {state}");
    let containers = cluster.call(cluster.agent, tenant, "GET_CONTAINERS");
    assert!(containers.contains(&own.id), "{tenant}: {containers}");
}

fn learns_nothing_of(cluster: &Cluster, tenant: &str, neighbour: &str, other: &Task) {
    let name = job_of(neighbour);
    let words = [other.id.clone(), secret_of(neighbour), line_of(neighbour)];
    for arguments in [
        &["job", "status", name.as_str()][..],
        &["job", "logs", &name],
        &["job", "exec", &name, "--", "printenv"],
        &["job", "stop", &name],
        &["job", "inspect", &name],
        &["logs", &other.id],
        &["exec", &other.id, "printenv"],
    ] {
        let output = cluster.verb(tenant, arguments);
        let said = text(&output);
        assert!(!output.status.success(), "{tenant} {arguments:?}: {said}");
        for word in &words[1..] {
            assert!(!said.contains(word), "{tenant} {arguments:?}: {said}");
        }
    }
    for arguments in [&["jobs"][..], &["tasks"]] {
        let said = cluster.say(tenant, arguments);
        assert!(!said.contains(&name), "{tenant} {arguments:?}: {said}");
    }
    let file = cluster.get(cluster.agent, tenant, &cluster.stdout_of(other));
    assert_eq!(file.status, 403, "{tenant}: {}", file.text());
    let questions = ["GET_STATE", "GET_TASKS", "GET_CONTAINERS", "GET_EXECUTORS"];
    for daemon in [cluster.master, cluster.agent] {
        let answers = questions.map(|question| cluster.call(daemon, tenant, question));
        let paths = ["/state", "/containers", "/monitor/statistics", "/tasks"];
        let pages = paths.map(|path| cluster.get(daemon, tenant, path).text());
        for text in answers.into_iter().chain(pages) {
            for word in &words {
                assert!(!text.contains(word), "{tenant}: {word} in {text}");
            }
        }
    }
    let health = cluster.get(cluster.scheduler, tenant, "/v1/jobs").text();
    assert!(!health.contains(&name), "{health}");
    let job = cluster.get(cluster.scheduler, tenant, &format!("/v1/jobs/{name}"));
    assert_eq!(job.status, 404, "{}", job.text());
}
