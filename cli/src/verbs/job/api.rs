//! The part of the scheduler's HTTP API that the verbs use.

use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use meseta_daemon::client::{Call, Client, Error, Reply};
use meseta_daemon::tls::DaemonKind;
use meseta_jobs::spec::name_in;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::super::address::base_with;
use super::super::{identity, items, server, text};
use crate::terminal;

/// The default port of schedulers.
pub(super) const SCHEDULER_PORT: u16 = 5070;
/// Characters that are escaped in a name, such as the slash between the role and the name of a job.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');
/// Redirections that a request follows, one after the other.
const REDIRECTIONS_MAX: usize = 3;

/// The pause between two requests while no scheduler leads, and the limit of that wait.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const LEADER_PATIENCE: Duration = Duration::from_secs(20);

/// A scheduler, or several of which one leads, and their client.
#[derive(Debug)]
pub(super) struct Scheduler {
    bases: Vec<String>,
    client: Client,
    runtime: tokio::runtime::Runtime,
}

/// The result of a request to one scheduler.
enum Asked {
    Answered(Reply),
    /// The scheduler was unreachable, so it received nothing; or it did not answer a read-only request.
    Away(Error),
    /// No scheduler leads, as far as this one knows.
    NoLeader(Reply),
}

/// Returns the path of a job, if the name is valid, with or without its role.
pub(super) fn path(name: &str) -> anyhow::Result<String> {
    if name_in(name).is_none() {
        bail!("{name:?} is not a job name; `meseta jobs` lists the jobs");
    }
    Ok(format!("/v1/jobs/{}", utf8_percent_encode(name, ESCAPED)))
}

/// Returns the path of a version's job file.
pub(super) fn file_path(name: &str, version: Option<u64>) -> anyhow::Result<String> {
    let path = format!("{}/file", path(name)?);
    Ok(match version {
        Some(version) => format!("{path}?version={version}"),
        None => path,
    })
}

/// Takes the place of the next page out of the answer.
fn next_page(answer: &mut Value) -> Option<String> {
    match answer.as_object_mut()?.remove("next")? {
        Value::String(next) => Some(next),
        _ => None,
    }
}

fn tasks_of(answer: &mut Value) -> Option<&mut Vec<Value>> {
    answer.get_mut("tasks")?.as_array_mut()
}

impl Scheduler {
    /// Returns the client for `address`: one address, or several separated by commas.
    pub(super) fn at(address: &str) -> anyhow::Result<Self> {
        let bases: Vec<_> = address.split(',').map(base_of).collect();
        let is_encrypted = bases.iter().any(|base| base.starts_with("https:"));
        Ok(Self {
            bases,
            client: identity::client(DaemonKind::Scheduler, is_encrypted)?,
            runtime: server::runtime()?,
        })
    }

    pub(super) fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(path, true, Call::get)
    }

    /// Returns a job with all its tasks, which are read in pages. Each page shows the state at its own time.
    pub(super) fn whole_job(&self, name: &str) -> anyhow::Result<Value> {
        let path = path(name)?;
        let mut job = self.get(&path)?;
        let mut next = next_page(&mut job);
        while let Some(after) = next {
            let mut page = self.get(&format!("{path}?after={after}"))?;
            next = next_page(&mut page).filter(|next| *next != after);
            match (tasks_of(&mut job), tasks_of(&mut page)) {
                (Some(all), Some(more)) if !more.is_empty() => all.append(more),
                _ => break,
            }
        }
        Ok(job)
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let body = body.to_string();
        self.ask(path, false, |url| {
            Call::post(url)
                .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
                .body(body.clone())
        })
    }

    /// Sends the request to one scheduler after the other until the leader has answered; with several, waits while none
    /// leads. A read-only request goes to the next scheduler if one does not answer in time.
    fn ask(&self, path: &str, is_read: bool, call: impl Fn(&str) -> Call) -> anyhow::Result<Value> {
        let until = Instant::now() + LEADER_PATIENCE;
        loop {
            let (mut away, mut no_leader) = (None, None);
            for base in &self.bases {
                match self.ask_one(base, path, is_read, &call)? {
                    Asked::Answered(reply) => return answer(base, &reply),
                    Asked::Away(error) => away = Some((base, error)),
                    Asked::NoLeader(reply) => no_leader = Some((base, reply)),
                }
            }
            let is_over = Instant::now() >= until;
            match (no_leader, away) {
                (Some((base, reply)), _) if is_over => return answer(base, &reply),
                (None, Some((base, error))) if is_over || self.bases.len() == 1 => {
                    return Err(unreachable(base, error));
                }
                _ => std::thread::sleep(RETRY_PAUSE),
            }
        }
    }

    /// Sends a request, and follows redirections to the leader.
    fn ask_one(
        &self,
        base: &str,
        path: &str,
        is_read: bool,
        call: &impl Fn(&str) -> Call,
    ) -> anyhow::Result<Asked> {
        let mut url = format!("{base}{path}");
        for _ in 0..=REDIRECTIONS_MAX {
            let reply = server::awaited(base, self.client.request(call(&url)));
            let reply = match self.runtime.block_on(reply) {
                Ok(reply) => reply,
                Err(error @ Error::Connect { .. }) => return Ok(Asked::Away(error)),
                Err(error @ Error::Timeout { .. }) if is_read => return Ok(Asked::Away(error)),
                Err(error) => return Err(unreachable(base, error)),
            };
            let is_later = reply.header("retry-after").is_some();
            if reply.status == StatusCode::SERVICE_UNAVAILABLE && is_later {
                return Ok(Asked::NoLeader(reply));
            }
            let elsewhere = reply.header("location").map(|next| resolved(&url, next));
            match elsewhere.filter(|_| reply.status == StatusCode::TEMPORARY_REDIRECT) {
                // A request over TLS is not redirected to an address without TLS.
                Some(next) if url.starts_with("https:") && !next.starts_with("https:") => {
                    bail!("{base} redirects to {next}, which does not use TLS")
                }
                Some(next) => url = next,
                None => return Ok(Asked::Answered(reply)),
            }
        }
        bail!("no leader found: {base} and the schedulers that it names each name another leader")
    }
}

/// Returns the scheme, and the host with its port, of a typed address.
fn base_of(address: &str) -> String {
    let (scheme, host) = base_with(address, SCHEDULER_PORT);
    format!("{scheme}://{host}")
}

/// Returns the target of a redirect: a scheduler names no scheme.
fn resolved(url: &str, location: &str) -> String {
    let scheme = url.split_once(':').map_or("http", |(scheme, _)| scheme);
    match location.strip_prefix("//") {
        Some(rest) => format!("{scheme}://{rest}"),
        None => location.to_owned(),
    }
}

fn answer(base: &str, reply: &Reply) -> anyhow::Result<Value> {
    if reply.status.is_success() {
        return serde_json::from_slice(&reply.body)
            .with_context(|| format!("{base} does not answer in JSON; is it a Meseta scheduler?"));
    }
    let body: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
    let errors = items(&body, "errors");
    if errors.is_empty() {
        let message = body.get("message").and_then(Value::as_str);
        let words = message.map_or_else(|| reply.text(), str::to_owned);
        return Err(server::refusal(base, reply.status, &words));
    }
    let told = errors.iter();
    let told: Vec<String> = told
        .map(|error| format!("{}; {}", text(error, "message"), text(error, "cure")))
        .map(|told| terminal::one_line(&told).into_owned())
        .collect();
    Err(anyhow!("the scheduler refused: {}", told.join("\n")))
}

fn unreachable(base: &str, error: Error) -> anyhow::Error {
    let told = match error {
        Error::Connect { .. } | Error::Timeout { .. } => format!(
            "nothing answers at {base}; does `meseta scheduler` run there, is --scheduler right?"
        ),
        _ => format!("the request to {base} failed"),
    };
    anyhow::Error::from(error).context(told)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use meseta_daemon::client::Options;
    use serde_json::json;

    use super::super::super::canned;
    use super::*;

    /// Regression: the list of all jobs was shown as a job without a name.
    #[test]
    fn only_a_name_has_a_path() {
        assert_eq!(path("web.1").unwrap(), "/v1/jobs/web.1");
        assert_eq!(path("ads/eu/web").unwrap(), "/v1/jobs/ads%2Feu%2Fweb");
        assert_eq!(path("*/web").unwrap(), "/v1/jobs/%2A%2Fweb");
        for name in ["", "a/", "/web", "../x", "a b/x", "A b"] {
            let told = path(name).unwrap_err().to_string();
            assert!(told.contains("`meseta jobs` lists the jobs"), "{told}");
        }
    }

    /// Regression: a stopped scheduler kept the verbs from the leader.
    #[test]
    fn reads_leave_a_stalled_scheduler() {
        let still = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = still.local_addr().expect("its address");
        let (next, _asked) = canned::server_with(&[("GET /v1/jobs", 200, json!({"jobs": []}))]);
        let scheduler = Scheduler {
            bases: vec![format!("http://{address}"), format!("http://{next}")],
            client: Client::new(Options {
                timeout: Duration::from_millis(200),
                ..Options::default()
            }),
            runtime: server::runtime().expect("a runtime"),
        };
        // The next scheduler may be late as well while the machine stands still.
        let jobs = (0..50).find_map(|_| scheduler.get("/v1/jobs").ok());
        assert_eq!(jobs.expect("the next one's"), json!({"jobs": []}));
        // The scheduler may execute the request once it continues.
        let told = scheduler.post("/v1/jobs", &json!({})).unwrap_err();
        assert!(told.to_string().contains(&address.to_string()), "{told:#}");
    }

    /// Regression: instances beyond the first page were unknown to `job logs` and `job exec`.
    #[test]
    fn large_job_is_read_completely() {
        let task = |index: u32| json!({ "id": format!("web.{index}"), "index": index });
        let (address, asked) = canned::server_with(&[
            (
                "GET /v1/jobs/web?after=0.1.0.1",
                200,
                json!({"name": "web", "tasks": [task(1), task(2)], "tasks_total": 4, "next": "0.2.0.1"}),
            ),
            (
                "GET /v1/jobs/web?after=0.2.0.1",
                200,
                json!({"name": "web", "tasks": [task(3)], "tasks_total": 4}),
            ),
            (
                "GET /v1/jobs/web",
                200,
                json!({"name": "web", "tasks": [task(0)], "tasks_total": 4, "next": "0.1.0.1"}),
            ),
        ]);
        let scheduler = Scheduler::at(&address).expect("an address");
        let job = scheduler.whole_job("web").expect("answered");
        let all: Vec<Value> = (0..4).map(task).collect();
        assert_eq!(job, json!({"name": "web", "tasks": all, "tasks_total": 4}));
        assert_eq!(asked.iter().take(3).count(), 3);
    }

    #[test]
    fn refusal_uses_the_scheduler_message() {
        let reply = Reply {
            status: StatusCode::NOT_FOUND,
            headers: http::HeaderMap::new(),
            body: r#"{"message":"there is no job \"web\""}"#.into(),
        };
        let told = answer("http://a:5070", &reply).unwrap_err().to_string();
        let expected = "http://a:5070 answered 404 Not Found: there is no job \"web\"\nhint: `meseta jobs` lists the jobs";
        assert_eq!(told, expected);
    }

    #[test]
    fn scheduler_list_and_redirects_get_schemes() {
        let bases: Vec<_> = "a, https://b:1,c:5/,::1,[::1]:7"
            .split(',')
            .map(base_of)
            .collect();
        let expected = [
            "http://a:5070",
            "https://b:1",
            "http://c:5",
            "http://[::1]:5070",
            "http://[::1]:7",
        ];
        assert_eq!(bases, expected);
        let there = resolved("https://b:1/v1/jobs", "//c:2/v1/jobs?x=1");
        assert_eq!(there, "https://c:2/v1/jobs?x=1");
        assert_eq!(resolved("http://b:1/", "http://d:3/"), "http://d:3/");
    }
}
