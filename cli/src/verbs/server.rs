//! A request to a daemon and its result, with errors that name the next step.

use std::io::IsTerminal as _;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use http::{HeaderName, StatusCode};
use meseta_daemon::client::{Call, Client, Error, Options, RecordStream, Reply};
use meseta_daemon::error_chain;
use meseta_daemon::tls::DaemonKind;
use meseta_proto::WireMessage;
use meseta_proto::media::MediaType;
use meseta_proto::mesos::v1::master;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::address::{AGENT_PORT, MASTER_PORT, has_port, url};
use super::masters::{Asked, at_leader};
use super::{hints, identity};
use crate::terminal;

/// The verbs use protobuf: the same messages, half the bytes.
const MEDIA: MediaType = MediaType::Protobuf;
const STREAM_ID: HeaderName = HeaderName::from_static("mesos-stream-id");
/// The wait for an answer before a message appears on a terminal.
const SILENCE: Duration = Duration::from_secs(3);

/// The characters that a query contains without escapes.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Returns a value encoded for a query.
pub(super) fn encoded(value: &str) -> impl std::fmt::Display + '_ {
    utf8_percent_encode(value, PLAIN)
}

/// Returns a client for the master at this address.
pub(super) fn client(address: &str) -> anyhow::Result<Client> {
    identity::client(DaemonKind::Master, is_encrypted(address))
}

fn is_encrypted(address: &str) -> bool {
    url(address, "").starts_with("https://")
}

/// The address of an agent, as the master lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AgentAddress {
    /// The address to connect to, as `address:port`: the agent's name may be unknown here.
    pub(super) address: String,
    /// The name on its certificate, at the least: the master has checked that.
    pub(super) hostname: String,
}

impl AgentAddress {
    /// Returns the address of an agent in `/slaves`.
    pub(super) fn from_agent(agent: &Value) -> Option<Self> {
        let text = |key| agent.get(key).and_then(Value::as_str);
        let (_, address) = text("pid")?.rsplit_once('@')?;
        Some(Self {
            address: address.to_owned(),
            hostname: text("hostname").unwrap_or_default().to_owned(),
        })
    }

    /// Returns a client for the agent, which accepts a certificate for its address or its host name, and receives no
    /// secret.
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        identity::client_of_agent(is_encrypted(&self.address), &self.hostname)
    }

    /// Fetches one of its JSON pages, blocking.
    pub(super) fn get_json(&self, path: &str) -> anyhow::Result<Value> {
        let (client, address) = (self.client()?, &self.address);
        let reply = runtime()?.block_on(fetch(&client, address, path));
        let reply = reply.map_err(|error| unreachable(address, error))?;
        json_of(address, path, &refuse_failure(address, reply)?)
    }
}

/// Describes a daemon that cannot be reached, the most likely trouble of a new user.
fn unreachable(address: &str, error: Error) -> anyhow::Error {
    let hint = match &error {
        Error::Connect { source, .. } => match hints::of_certificate(source) {
            Some(hint) => {
                return anyhow!(
                    "{address} cannot be trusted: {}\nhint: {hint}",
                    error_chain::chain(source)
                );
            }
            None => nothing_answers(address),
        },
        Error::Timeout { .. } => nothing_answers(address),
        Error::Refused { status, body, .. } => return refusal(address, *status, body),
        _ => format!("the request to {address} failed"),
    };
    anyhow::Error::from(error).context(hint)
}

/// Waits for an answer; a late one is announced on a terminal.
pub(super) async fn awaited<T>(address: &str, answer: impl Future<Output = T>) -> T {
    let mut answer = pin!(answer);
    if let Ok(answer) = tokio::time::timeout(SILENCE, &mut answer).await {
        return answer;
    }
    if std::io::stderr().is_terminal() {
        let seconds = Options::default().timeout.as_secs();
        terminal::note!(
            "meseta: no answer from {address} yet; waiting for it, {seconds} s at most"
        );
    }
    answer.await
}

pub(super) fn nothing_answers(address: &str) -> String {
    format!("nothing answers at {address}; is it running (`meseta local`), is --master right?")
}

/// Returns the runtime of a verb that makes one request after another.
pub(super) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")
}

/// Gets a JSON page of the leading master, blocking.
pub(super) fn get_json(masters: &str, path: &str) -> anyhow::Result<Value> {
    runtime()?.block_on(fetch_json(masters, path))
}

/// Fetches JSON from the leader within a runtime.
pub(super) async fn fetch_json(masters: &str, path: &str) -> anyhow::Result<Value> {
    at_leader(masters, async |address| {
        let reply = match fetch(&client(address)?, address, path).await {
            Ok(reply) => reply,
            Err(error) => return Ok(unanswered(address, error, true)),
        };
        of_leader(address, reply)?.and_then(|reply| json_of(address, path, &reply))
    })
    .await
}

async fn fetch(client: &Client, address: &str, path: &str) -> Result<Reply, Error> {
    awaited(address, client.get(&url(address, path))).await
}

/// Returns the consequence of a missing answer: a request that did not arrive, or only reads, may go to another master.
fn unanswered<T>(address: &str, error: Error, is_read: bool) -> Asked<T> {
    let may_ask_again = match &error {
        Error::Connect { source, .. } => is_read || source.is_connect(),
        Error::Timeout { .. } | Error::Read { .. } => is_read,
        _ => false,
    };
    Asked::Unanswered {
        error: unreachable(address, error),
        may_ask_again,
    }
}

fn json_of(address: &str, path: &str, reply: &Reply) -> anyhow::Result<Value> {
    serde_json::from_slice(&reply.body)
        .with_context(|| format!("{path} of {address} is not JSON; is it a Meseta master?"))
}

/// Makes a call of the operator API at the leading master, blocking; the answer is empty for a call without a response.
pub(super) fn operate(masters: &str, message: &master::Call) -> anyhow::Result<master::Response> {
    let asked = at_leader(masters, async |address| {
        let call = Call::message(&url(address, "/api/v1"), MEDIA, message);
        request_change(address, call).await?.and_then(|reply| {
            meseta_proto::media::decode(MEDIA, &reply.body)
                .with_context(|| format!("{address} sent an invalid answer"))
        })
    });
    runtime()?.block_on(asked)
}

/// Posts JSON to the leading master, blocking, where the operator API has no call.
pub(super) fn post_json<T: WireMessage>(
    masters: &str,
    path: &str,
    message: &T,
) -> anyhow::Result<()> {
    let asked = at_leader(masters, async |address| {
        let call = Call::message(&url(address, path), MediaType::Json, message);
        request_change(address, call).await?.and_then(|_| Ok(()))
    });
    runtime()?.block_on(asked)
}

/// Sends a changing request, which goes to no other master once it may have arrived.
async fn request_change(address: &str, call: Call) -> anyhow::Result<Asked<Reply>> {
    match awaited(address, client(address)?.request(call)).await {
        Ok(reply) => of_leader(address, reply),
        Err(error) => Ok(unanswered(address, error, false)),
    }
}

/// Returns the response of a master, unless it is a refusal, or the master does not lead or cannot respond yet.
fn of_leader(address: &str, reply: Reply) -> anyhow::Result<Asked<Reply>> {
    let is_early =
        reply.status == StatusCode::SERVICE_UNAVAILABLE && reply.header("retry-after").is_some();
    if is_early || reply.status == StatusCode::TEMPORARY_REDIRECT {
        return Ok(Asked::Elsewhere(refuse_follower(address, &reply)));
    }
    refuse_failure(address, reply).map(Asked::Answered)
}

/// Returns the error about a master that does not lead, where no other can be queried.
fn refuse_follower(address: &str, reply: &Reply) -> anyhow::Error {
    if reply.status != StatusCode::TEMPORARY_REDIRECT {
        return refusal(address, reply.status, &reply.text());
    }
    match reply.header("location").and_then(leader_in) {
        Some(leader) => anyhow!("{address} does not lead; give --master={leader}"),
        None => anyhow!("{address} does not lead, and does not name the leader"),
    }
}

/// Returns the `host:port` of a redirection, which is printed for users to type.
fn leader_in(location: &str) -> Option<&str> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._:[]".contains(letter);
    let (_, rest) = location.split_once("//")?;
    let leader = rest.split('/').next()?;
    let is_address = has_port(leader) && !leader.starts_with(':') && leader.chars().all(is_plain);
    is_address.then_some(leader)
}

/// Returns the response of a daemon, unless it is a refusal.
fn refuse_failure(address: &str, reply: Reply) -> anyhow::Result<Reply> {
    if reply.status.is_success() {
        return Ok(reply);
    }
    Err(refusal(address, reply.status, &reply.text()))
}

/// Returns the error about a refusal, with a hint on a line of its own.
pub(super) fn refusal(address: &str, status: StatusCode, words: &str) -> anyhow::Error {
    let hint = if url(address, "").ends_with(&format!(":{AGENT_PORT}"))
        && status != StatusCode::UNAUTHORIZED
    {
        Some(format!(
            "port {AGENT_PORT} is the agent's default port; masters listen on {MASTER_PORT}"
        ))
    } else {
        hints::after(status, words).map(str::to_owned)
    };
    refusal_with(address, status, words, hint)
}

/// Returns the error about a refusal, with a hint from the caller.
pub(super) fn refusal_with(
    address: &str,
    status: StatusCode,
    words: &str,
    hint: Option<String>,
) -> anyhow::Error {
    // The server's message stays on one line: a second one could look like our hint.
    let words = terminal::one_line(words.trim());
    // The daemons' own message sometimes repeats the code, or contains nothing else.
    let more = words.strip_prefix(&format!("{status}."));
    let words = match more.map_or(&*words, str::trim_start) {
        "" if status == StatusCode::UNAUTHORIZED => "the caller is unknown",
        "" => "no reason given",
        words => words,
    };
    let hint = hint.map(|hint| format!("\nhint: {hint}"));
    let text = format!(
        "{address} answered {status}: {words}{}",
        hint.unwrap_or_default()
    );
    Refused { status, text }.into()
}

/// A refusal in the form that the user sees.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct Refused {
    status: StatusCode,
    text: String,
}

/// Returns the code of a refusal; `None` for other errors.
pub(super) fn refused_with(error: &anyhow::Error) -> Option<StatusCode> {
    let refused = error.downcast_ref::<Refused>();
    refused.map(|refused| refused.status)
}

/// Whether a repeated request may succeed a moment later: the daemon is away, or not ready.
pub(super) fn may_pass(error: &anyhow::Error) -> bool {
    let is_away = |error: &Error| {
        matches!(
            error,
            Error::Connect { .. } | Error::Timeout { .. } | Error::Read { .. }
        )
    };
    refused_with(error) == Some(StatusCode::SERVICE_UNAVAILABLE)
        || error.downcast_ref::<Error>().is_some_and(is_away)
}

/// The response to a call whose object may be missing.
#[derive(Debug)]
pub(super) struct Answer {
    address: String,
    reply: Reply,
}

impl Answer {
    /// Returns the message, or `None` if the daemon responded 404.
    pub(super) fn found<T: WireMessage>(self) -> anyhow::Result<Option<T>> {
        if self.reply.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let reply = refuse_failure(&self.address, self.reply)?;
        let message = meseta_proto::media::decode(MEDIA, &reply.body)
            .with_context(|| format!("{} sent an invalid answer", self.address))?;
        Ok(Some(message))
    }
}

/// Posts a call that has a response.
pub(super) async fn call<T: WireMessage>(
    client: &Client,
    address: &str,
    path: &str,
    message: &T,
) -> anyhow::Result<Answer> {
    awaited(address, ask(client, address, path, message)).await
}

/// Posts a call whose response comes at the end of an operation, however late.
pub(super) async fn wait<T: WireMessage>(
    client: &Client,
    address: &str,
    path: &str,
    message: &T,
) -> anyhow::Result<Answer> {
    ask(&client.without_timeout(), address, path, message).await
}

async fn ask<T: WireMessage>(
    client: &Client,
    address: &str,
    path: &str,
    message: &T,
) -> anyhow::Result<Answer> {
    let call = Call::message(&url(address, path), MEDIA, message);
    let reply = client.request(call).await;
    Ok(Answer {
        address: address.to_owned(),
        reply: reply.map_err(|error| unreachable(address, error))?,
    })
}

/// Posts a call on a stream, which is accepted or refused.
pub(super) async fn post<T: WireMessage>(
    client: &Client,
    address: &str,
    path: &str,
    stream_id: &str,
    message: &T,
) -> anyhow::Result<()> {
    let stream_id = stream_id
        .parse()
        .context("the stream id is not a header value")?;
    let call = Call::message(&url(address, path), MEDIA, message).header(STREAM_ID, stream_id);
    let reply = awaited(address, client.request(call)).await;
    let reply = reply.map_err(|error| unreachable(address, error))?;
    match of_leader(address, reply)? {
        Asked::Answered(_) => Ok(()),
        Asked::Elsewhere(error) | Asked::Unanswered { error, .. } => Err(error),
    }
}

/// The events of a subscription.
#[derive(Debug)]
pub(super) struct EventStream<T> {
    records: RecordStream,
    event: std::marker::PhantomData<T>,
}

impl<T: WireMessage> EventStream<T> {
    /// Returns the next event, or `None` once the stream has ended. Cancel safe.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<T>> {
        Ok(self.records.next_message(MEDIA).await?)
    }
}

/// Posts a message whose answer is a stream of messages.
pub(super) async fn records<C: WireMessage, E: WireMessage>(
    client: &Client,
    address: &str,
    path: &str,
    message: &C,
) -> anyhow::Result<EventStream<E>> {
    let call = Call::message(&url(address, path), MEDIA, message);
    let records = awaited(address, client.stream(call)).await;
    let records = records.map_err(|error| unreachable(address, error))?;
    Ok(EventStream {
        records,
        event: std::marker::PhantomData,
    })
}

/// A subscription to the leading master.
#[derive(Debug)]
pub(super) struct Subscription<T> {
    pub(super) client: Client,
    /// The address of the subscribed master.
    pub(super) master: String,
    pub(super) stream_id: String,
    pub(super) events: EventStream<T>,
}

/// Posts a message whose answer is a stream with an id.
pub(super) async fn subscribe<C: WireMessage, E: WireMessage>(
    masters: &str,
    path: &str,
    message: &C,
) -> anyhow::Result<Subscription<E>> {
    at_leader(masters, async |address| {
        let client = client(address)?;
        let call = Call::message(&url(address, path), MEDIA, message);
        let records = match awaited(address, client.stream(call)).await {
            Ok(records) => records,
            Err(error) => {
                let is_elsewhere = matches!(
                    error,
                    Error::Refused {
                        status: StatusCode::TEMPORARY_REDIRECT | StatusCode::SERVICE_UNAVAILABLE,
                        ..
                    }
                );
                return Ok(if is_elsewhere {
                    Asked::Elsewhere(unreachable(address, error))
                } else {
                    unanswered(address, error, false)
                });
            }
        };
        let stream_id = records.header("mesos-stream-id");
        let stream_id = stream_id.context("the answer has no Mesos-Stream-Id")?;
        Ok(Asked::Answered(Subscription {
            stream_id: stream_id.to_owned(),
            client,
            master: address.to_owned(),
            events: EventStream {
                records,
                event: std::marker::PhantomData,
            },
        }))
    })
    .await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::canned;
    use super::*;

    #[test]
    fn only_master_redirects_name_leader() {
        for (location, expected) in [
            ("//10.0.0.2:5050/state", Some("10.0.0.2:5050")),
            ("https://[::1]:5050", Some("[::1]:5050")),
            ("//leader.example:5050", Some("leader.example:5050")),
            ("//x$(id):5050", None),
            ("//two words:5050", None),
            ("//no-port/", None),
            ("/state", None),
        ] {
            assert_eq!(leader_in(location), expected, "{location}");
        }
        let reply = || Reply {
            status: StatusCode::TEMPORARY_REDIRECT,
            headers: http::HeaderMap::from_iter([(
                http::header::LOCATION,
                http::HeaderValue::from_static("//evil:5050/"),
            )]),
            body: Vec::<u8>::new().into(),
        };
        let error = refuse_follower("host:5050", &reply());
        assert!(error.to_string().ends_with("give --master=evil:5050"));
        let error = refuse_failure("host:5051", reply()).unwrap_err();
        assert!(!error.to_string().contains("--master"), "{error}");
    }

    #[tokio::test]
    async fn absent_or_unready_server_is_retried() {
        let asked = async |address: &str| {
            let answer = fetch(&Client::default(), address, "/x").await;
            match answer {
                Err(error) => unreachable(address, error),
                Ok(reply) => refuse_failure(address, reply).expect_err("refused"),
            }
        };
        let away = asked(&canned::nobody()).await;
        assert!(may_pass(&away) && refused_with(&away).is_none(), "{away:#}");
        for (status, passes) in [(503, true), (403, false), (404, false), (500, false)] {
            let (address, _asked) = canned::server_with(&[("GET /x", status, json!({}))]);
            let refused = asked(&address).await;
            let code = refused_with(&refused).map(|code| code.as_u16());
            assert_eq!((may_pass(&refused), code), (passes, Some(status)));
        }
    }

    /// Regression: `meseta reserve`, which uses gRPC, printed it twice, and so did every verb for an unknown secret.
    #[test]
    fn status_code_appears_once() {
        let (unauthorized, words) = (StatusCode::UNAUTHORIZED, "401 Unauthorized.");
        let text = refusal("host:5050", unauthorized, words).to_string();
        assert!(
            text.starts_with("host:5050 answered 401 Unauthorized: the caller is unknown\nhint:"),
            "{text}"
        );
        let missing = refusal("host:5050", StatusCode::NOT_FOUND, "404 Not Found.").to_string();
        assert!(
            missing.contains("404 Not Found: no reason given\nhint: a server of another kind"),
            "{missing}"
        );
        let (forbidden, words) = (StatusCode::FORBIDDEN, "403 Forbidden. No.");
        for error in [
            refusal("host:5050", forbidden, words),
            refusal_with("host:5050", forbidden, words, None),
        ] {
            let text = error.to_string();
            assert!(
                text.starts_with("host:5050 answered 403 Forbidden: No."),
                "{text}"
            );
        }
    }

    #[test]
    fn agent_port_is_recognised() {
        let error = refusal("host:5051", StatusCode::NOT_FOUND, "").to_string();
        assert!(error.contains("masters listen on 5050"), "{error}");
        let error = refusal("host:5050", StatusCode::NOT_FOUND, "").to_string();
        assert!(!error.contains("5051"), "{error}");
    }
}
