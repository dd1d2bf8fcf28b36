//! The scheduler's HTTP API, as much of it as the verbs ask.

use anyhow::{Context as _, anyhow, bail};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use meseta_daemon::client::{Call, Client, Error, Reply};
use serde_json::Value;

use super::super::address::{base, has_port};
use super::super::{identity, items, server, text};

/// Where schedulers listen unless they are told otherwise.
const SCHEDULER_PORT: u16 = 5070;
/// Schedulers that a request is sent on to, one after the other.
const REDIRECTIONS_MAX: usize = 3;

/// A scheduler and the way to it.
#[derive(Debug)]
pub(super) struct Scheduler {
    base: String,
    client: Client,
    runtime: tokio::runtime::Runtime,
}

/// The path of a job.
pub(super) fn path(name: &str) -> String {
    format!("/v1/jobs/{}", server::encoded(name))
}

impl Scheduler {
    pub(super) fn at(address: &str) -> anyhow::Result<Self> {
        let (scheme, host) = address.split_once("://").unwrap_or(("", address));
        let host = host.trim_end_matches('/');
        let host = if has_port(host) {
            host.to_owned()
        } else {
            format!("{host}:{SCHEDULER_PORT}")
        };
        let full = match scheme {
            "" => host,
            scheme => format!("{scheme}://{host}"),
        };
        let (scheme, host) = base(&full);
        Ok(Self {
            base: format!("{scheme}://{host}"),
            client: identity::client(scheme == "https")?,
            runtime: server::runtime()?,
        })
    }

    pub(super) fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(path, Call::get)
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let body = body.to_string();
        self.ask(path, |url| {
            Call::post(url)
                .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
                .body(body.clone())
        })
    }

    /// Asks, and follows a scheduler that does not lead to the one that does.
    fn ask(&self, path: &str, call: impl Fn(&str) -> Call) -> anyhow::Result<Value> {
        let mut url = format!("{}{path}", self.base);
        for _ in 0..=REDIRECTIONS_MAX {
            let reply = self.runtime.block_on(self.client.request(call(&url)));
            let reply = reply.map_err(|error| self.unreachable(error))?;
            let elsewhere = reply.header("location").map(str::to_owned);
            match elsewhere.filter(|_| reply.status == StatusCode::TEMPORARY_REDIRECT) {
                Some(next) => url = next,
                None => return self.answer(&reply),
            }
        }
        bail!(
            "{} and the schedulers that it names each say that another one leads",
            self.base
        )
    }

    fn answer(&self, reply: &Reply) -> anyhow::Result<Value> {
        if reply.status.is_success() {
            return serde_json::from_slice(&reply.body).with_context(|| {
                format!(
                    "{} does not answer in JSON; is it a Meseta scheduler?",
                    self.base
                )
            });
        }
        let body: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        let errors = items(&body, "errors");
        if errors.is_empty() {
            return Err(server::refusal(&self.base, reply.status, &reply.text()));
        }
        let told = errors.iter();
        let told: Vec<String> = told
            .map(|error| format!("{}; {}", text(error, "message"), text(error, "cure")))
            .collect();
        Err(anyhow!("the scheduler refused: {}", told.join("\n")))
    }

    fn unreachable(&self, error: Error) -> anyhow::Error {
        let base = &self.base;
        let told = match error {
            Error::Connect { .. } | Error::Timeout { .. } => format!(
                "nothing answers at {base}; does `meseta scheduler` run there, is --scheduler right?"
            ),
            _ => format!("the request to {base} failed"),
        };
        anyhow::Error::from(error).context(told)
    }
}
