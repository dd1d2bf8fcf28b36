//! Finding the master that leads, among several.

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use tokio::task::JoinSet;

use super::client::{Client, Options};
use super::tls;

/// Where a master that follows names the one that leads, in the metadata of a gRPC status.
pub const LEADER: &str = "meseta-leader";

/// The longest that a master is waited for: one that is cut off must not hold up the others' answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The answer of `/leader`, as far as it matters.
#[derive(Debug, Deserialize)]
struct Answer {
    role: String,
    leader: Option<String>,
}

/// What one of the masters is, as far as it says.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// It leads, or knows nothing of leaders because it is the only one.
    Leads,
    Follows(String),
    /// Nobody leads, as far as it knows, or it does not answer; and why.
    Nobody(String),
}

/// None of the masters leads or knows who does.
#[derive(Debug, thiserror::Error)]
#[error("no master leads: {0}")]
pub struct NoLeader(String);

/// The address of the master that leads: one of `masters` (each a host and a port), or one that those name. They are
/// asked all at once; over TLS if it is given.
pub async fn find(
    masters: &[String],
    encryption: Option<tls::ClientConfig>,
) -> Result<String, NoLeader> {
    let options = Options {
        connect_timeout: ANSWER_TIMEOUT,
        timeout: ANSWER_TIMEOUT,
        body_max_bytes: 64 << 10,
    };
    let (scheme, client) = match encryption {
        Some(config) => ("https", Client::with(options, config, None)),
        None => ("http", Client::new(options)),
    };
    let mut answers = JoinSet::new();
    for master in masters {
        let (client, master) = (client.clone(), master.clone());
        answers.spawn(async move {
            let found = ask(&client, scheme, &master).await;
            (master, found)
        });
    }
    let mut named = None;
    let mut reasons = Vec::new();
    while let Some(answer) = answers.join_next().await {
        match answer {
            Ok((master, Found::Leads)) => return Ok(master),
            Ok((_, Found::Follows(leader))) => named = Some(leader),
            Ok((master, Found::Nobody(reason))) => reasons.push(format!("{master}: {reason}")),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    reasons.sort();
    named.ok_or_else(|| NoLeader(reasons.join("; ")))
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
            None => Found::Nobody("it follows nobody".to_owned()),
        },
        Ok(_) => Found::Leads,
        Err(_) => Found::Nobody(format!("it answered {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_who_leads() {
        let of = |body: &str| judge(StatusCode::OK, body.as_bytes());
        for role in ["leading", "recovering", "suspended"] {
            let body = format!(r#"{{"role": "{role}", "leader": "a:5050", "reason": null}}"#);
            assert_eq!(of(&body), Found::Leads, "{role}");
        }
        let follows = of(r#"{"role": "following", "leader": "b:5050"}"#);
        assert_eq!(follows, Found::Follows("b:5050".to_owned()));
        for nobody in [r#"{"role": "following", "leader": null}"#, "<html>"] {
            assert!(matches!(of(nobody), Found::Nobody(_)), "{nobody}");
        }
        // Older than the endpoint, so there is one master.
        assert_eq!(judge(StatusCode::NOT_FOUND, b""), Found::Leads);
    }

    #[tokio::test]
    async fn whoever_does_not_answer_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
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
