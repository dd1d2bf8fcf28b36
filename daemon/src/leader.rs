//! Finds the leader among several masters.

use std::collections::BTreeSet;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use tokio::task::JoinSet;

use super::client::{Client, Options};
use super::tls;

/// The time limit for a master's answer: an isolated master must not delay the answers of the others.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The silence of the present master after which an agent with several masters looks for another leader: longer than a
/// master's own pauses between two pings or heartbeats.
const SILENCE: Duration = Duration::from_secs(20);
/// The pause between two such questions.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// The masters of a client that is connected to one of them.
#[derive(Debug)]
pub struct Others {
    /// The address of the master that the client is connected to.
    pub address: String,
    pub masters: Vec<String>,
    pub encryption: Option<tls::ClientConfig>,
}

impl Others {
    /// Returns the address of another leading master, once the present one has been silent for long: a leader that stands
    /// still, is cut off or may not act keeps its connections, and so does its machine. Each message of the master starts
    /// the wait anew.
    pub async fn until_another_leads(&self) -> String {
        tokio::time::sleep(SILENCE).await;
        loop {
            if self.masters.len() > 1
                && let Some(leader) = leading(&self.masters, self.encryption.clone()).await
                && leader != self.address
            {
                return leader;
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }
}

/// The used fields of the response to `/leader`.
#[derive(Debug, Deserialize)]
struct Answer {
    role: String,
    leader: Option<String>,
    /// Absent in answers of masters from before it was told.
    cluster_id: Option<String>,
}

/// The state of a master, as far as its answer shows.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// The master leads, or is the only one and knows nothing of leaders.
    Leads,
    /// The master was elected but does not act, not yet or not any more: another master may lead by now.
    DoesNotAct,
    Follows(String),
    /// No master leads, as far as this one knows, or it does not answer; with the reason.
    Nobody(String),
}

/// No master leads or knows the leader.
#[derive(Debug, thiserror::Error)]
#[error("no master leads: {0}")]
pub struct NoLeader(String);

/// Returns the address of the leading master: one of `masters` (each a host and a port), or a master that one of them
/// names. All masters are queried at once; over TLS if `encryption` is set.
pub async fn find(
    masters: &[String],
    encryption: Option<tls::ClientConfig>,
) -> Result<String, NoLeader> {
    let mut answers = ask_all(masters, encryption);
    let (mut named, mut elected) = (None, None);
    let mut reasons = Vec::new();
    let mut silent = BTreeSet::new();
    while let Some(answer) = answers.join_next().await {
        match answer {
            Ok((master, Found::Leads)) => return Ok(master),
            Ok((master, Found::DoesNotAct)) => elected = Some(master),
            Ok((_, Found::Follows(leader))) => named = Some(leader),
            Ok((master, Found::Nobody(reason))) => {
                reasons.push(format!("{master}: {reason}"));
                silent.insert(master);
            }
            Err(error) => reasons.push(error.to_string()),
        }
    }
    reasons.sort();
    // Until the old lease has ended, the other masters name a leader that is gone.
    let named = named.filter(|leader| !silent.contains(leader));
    let found = named.or(elected);
    found.ok_or_else(|| NoLeader(reasons.join("; ")))
}

/// Returns the one of `masters` that itself claims to lead.
pub async fn leading(masters: &[String], encryption: Option<tls::ClientConfig>) -> Option<String> {
    let mut answers = ask_all(masters, encryption);
    while let Some(answer) = answers.join_next().await {
        if let Ok((master, Found::Leads)) = answer {
            return Some(master);
        }
    }
    None
}

/// The id of the cluster that this master leads; `None` where it does not tell one.
pub async fn cluster_of(master: &str, encryption: Option<tls::ClientConfig>) -> Option<String> {
    let (scheme, client) = client_with(encryption);
    let reply = client.get(&format!("{scheme}://{master}/leader")).await;
    cluster_in(&reply.ok()?.body)
}

fn cluster_in(body: &[u8]) -> Option<String> {
    let answer: Answer = serde_json::from_slice(body).ok()?;
    answer.cluster_id
}

fn client_with(encryption: Option<tls::ClientConfig>) -> (&'static str, Client) {
    let options = Options {
        connect_timeout: ANSWER_TIMEOUT,
        timeout: ANSWER_TIMEOUT,
        body_max_bytes: 64 << 10,
    };
    match encryption {
        Some(config) => ("https", Client::with(options, config, None)),
        None => ("http", Client::new(options)),
    }
}

fn ask_all(masters: &[String], encryption: Option<tls::ClientConfig>) -> JoinSet<(String, Found)> {
    let (scheme, client) = client_with(encryption);
    let mut answers = JoinSet::new();
    for master in masters {
        let (client, master) = (client.clone(), master.clone());
        answers.spawn(async move {
            let found = ask(&client, scheme, &master).await;
            (master, found)
        });
    }
    answers
}

async fn ask(client: &Client, scheme: &str, master: &str) -> Found {
    match client.get(&format!("{scheme}://{master}/leader")).await {
        Ok(reply) => judge(reply.status, &reply.body),
        Err(error) => Found::Nobody(super::error_chain::chain(&error)),
    }
}

fn judge(status: StatusCode, body: &[u8]) -> Found {
    if status == StatusCode::NOT_FOUND {
        return Found::Leads;
    }
    match serde_json::from_slice::<Answer>(body) {
        Ok(answer) if answer.role == "following" => match answer.leader {
            Some(leader) => Found::Follows(leader),
            None => Found::Nobody("it follows no leader".to_owned()),
        },
        Ok(answer) if answer.role == "leading" => Found::Leads,
        Ok(_) => Found::DoesNotAct,
        Err(_) => Found::Nobody(format!("it answered {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_names_the_leader() {
        let of = |body: &str| judge(StatusCode::OK, body.as_bytes());
        for (role, found) in [
            ("leading", Found::Leads),
            ("recovering", Found::DoesNotAct),
            ("suspended", Found::DoesNotAct),
        ] {
            let body = format!(r#"{{"role": "{role}", "leader": "a:5050", "reason": null}}"#);
            assert_eq!(of(&body), found, "{role}");
        }
        let follows = of(r#"{"role": "following", "leader": "b:5050"}"#);
        assert_eq!(follows, Found::Follows("b:5050".to_owned()));
        for nobody in [r#"{"role": "following", "leader": null}"#, "<html>"] {
            assert!(matches!(of(nobody), Found::Nobody(_)), "{nobody}");
        }
        let led = r#"{"role": "leading", "leader": "a:5050", "cluster_id": "c"}"#;
        assert_eq!(cluster_in(led.as_bytes()).as_deref(), Some("c"));
        let of_before = br#"{"role": "leading", "leader": "a:5050", "reason": null}"#;
        for none in [of_before.as_slice(), b"<html>"] {
            assert_eq!(cluster_in(none), None);
        }
        // A master without the endpoint is an old version, which is the only master.
        assert_eq!(judge(StatusCode::NOT_FOUND, b""), Found::Leads);
    }

    /// Starts a master that answers every request with this role and leader, and returns its address.
    fn answering(role: &str, leader: &str) -> String {
        let body = format!(r#"{{"role": "{role}", "leader": "{leader}", "reason": null}}"#);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _request = std::io::Read::read(&mut stream, &mut [0; 4096]).unwrap();
                let length = body.len();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                std::io::Write::write_all(&mut stream, (head + &body).as_bytes()).unwrap();
            }
        });
        address
    }

    #[tokio::test]
    async fn isolated_leader_is_not_followed() {
        let former = answering("suspended", "former:1");
        let leader = answering("leading", "leader:1");
        let follower = answering("following", "leader:1");
        let masters = [former.clone(), leader.clone()];
        assert_eq!(find(&masters, None).await.unwrap(), leader);
        assert_eq!(leading(&masters, None).await, Some(leader));
        let masters = [former.clone(), follower];
        assert_eq!(find(&masters, None).await.unwrap(), "leader:1");
        assert_eq!(leading(&masters, None).await, None);
        // The former leader waits for its registry and has no successor yet.
        let found = find(std::slice::from_ref(&former), None).await.unwrap();
        assert_eq!(found, former);
    }

    #[tokio::test]
    async fn whoever_does_not_answer_is_named() {
        // Port 1 has no listener: the kernel never assigns it to a socket without a fixed port.
        let address = "127.0.0.1:1".to_owned();
        let error = find(std::slice::from_ref(&address), None)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(&format!("no master leads: {address}: ")),
            "{error}"
        );
    }
}
