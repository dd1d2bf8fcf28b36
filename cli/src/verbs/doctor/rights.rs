//! The findings of `meseta doctor` about our identity at a master: whether it accepts the credentials, and whether the
//! agent may register.
//!
//! [`ask`] reads, [`evaluate`] decides and is pure.

use std::path::Path;

use http::StatusCode;
use meseta_agent::Finding;
use meseta_daemon::authentication::ClientIdentity;
use meseta_daemon::client::{Client, Error, Options, Reply};
use meseta_daemon::error_chain::chain;
use serde_json::Value;

use crate::verbs::{address, hints, identity};

/// The endpoint with which every master shows known clients their rights.
const PATH: &str = "/rights";

/// The identity that queries a master.
pub(super) enum Asker<'a> {
    /// The agent of this machine, as it would register.
    Agent(&'a ClientIdentity),
    /// The user of this command; the authority is trusted unless the verb has another.
    Client(Option<&'a Path>),
}

impl Asker<'_> {
    const fn name(&self) -> &'static str {
        match self {
            Self::Agent(_) => "this agent",
            Self::Client(_) => "this caller",
        }
    }

    /// Whether the agent may be accepted without credentials although readers are not: only a master with TLS always
    /// requires credentials of agents, and other masters on one machine require them only of readers other than root.
    fn may_be_nobody(&self) -> bool {
        let Self::Agent(identity) = self else {
            return false;
        };
        !identity.is_encrypted() && identity.principal().is_ok_and(|name| name.is_none())
    }

    /// Returns the flags that make the master accept this identity.
    fn remedy(&self) -> String {
        match self {
            Self::Client(_) => {
                "give --principal=NAME and --secret-file=FILE as the master's --credentials have them, or --cert=FILE and \
                 --key=FILE"
                    .to_owned()
            }
            Self::Agent(identity) => match identity.principal().ok().flatten() {
                Some(name) => format!(
                    "the master's --credentials must hold {name:?} with the hash of this secret (`meseta credential` makes \
                     it); else give the agent another --credential"
                ),
                None => {
                    "give the agent --credential=FILE with a principal and its secret that the master's --credentials \
                     hold, as `meseta tls init` does"
                        .to_owned()
                }
            },
        }
    }
}

/// The master's answer to a query.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The master answered, as this principal; `None` if it requires no authentication.
    Accepted {
        principal: Option<String>,
        may_register: bool,
    },
    /// Another master leads, and only the leader can answer.
    Elsewhere,
    /// No master leads yet, according to this one.
    Nobody(String),
    Refused {
        status: StatusCode,
        words: String,
    },
    Unanswered {
        why: String,
        hint: Option<&'static str>,
    },
}

pub(super) async fn ask(address: &str, asker: &Asker<'_>) -> Answer {
    let asked = match asker {
        Asker::Agent(identity) => of_agent(address, identity),
        Asker::Client(trusted) => of_client(address, *trusted),
    };
    let (client, url) = match asked {
        Ok(asked) => asked,
        Err(why) => return Answer::Unanswered { why, hint: None },
    };
    match client.get(&url).await {
        Ok(reply) => read(&reply),
        Err(error) => Answer::Unanswered {
            hint: match (&error, asker) {
                (Error::Timeout { .. }, _) => {
                    Some("try again in a moment; the master's log shows the reason for the wait")
                }
                // The usual hint names flags of verbs.
                (Error::Connect { source, .. }, Asker::Client(_)) => hints::of_certificate(source),
                _ => None,
            },
            why: chain(&error),
        },
    }
}

/// Connects to the master with the credentials and in the way of the agent.
fn of_agent(address: &str, identity: &ClientIdentity) -> Result<(Client, String), String> {
    let encryption = identity
        .encryption(&[address.to_owned()])
        .map_err(|error| chain(&error))?;
    let authorization = identity.authorization().map_err(|error| chain(&error))?;
    let scheme = match &encryption {
        Some(_) => "https",
        None => "http",
    };
    let client = match encryption {
        Some(encryption) => Client::with(Options::default(), encryption, authorization),
        None => Client::plaintext(Options::default(), authorization),
    };
    Ok((client, address::url_with(scheme, address, PATH)))
}

fn of_client(address: &str, trusted: Option<&Path>) -> Result<(Client, String), String> {
    let url = address::url_with(identity::scheme_trusting(trusted), address, PATH);
    let client = identity::client_trusting(address, trusted, url.starts_with("https://"));
    let (client, _shown) = client.map_err(|error| format!("{error:#}"))?;
    Ok((client, url))
}

fn read(reply: &Reply) -> Answer {
    let words = reply.text().trim().to_owned();
    let status = reply.status;
    if status == StatusCode::TEMPORARY_REDIRECT {
        return Answer::Elsewhere;
    }
    if status == StatusCode::SERVICE_UNAVAILABLE && reply.header("retry-after").is_some() {
        return Answer::Nobody(words);
    }
    let page = serde_json::from_slice::<Value>(&reply.body).ok();
    let actions = page.as_ref().and_then(|page| page.get("actions"));
    let (true, Some(actions)) = (status.is_success(), actions) else {
        return Answer::Refused { status, words };
    };
    // An agent is no object that an entry could name.
    let register = actions.pointer("/register_agents/others");
    let principal = page.as_ref().and_then(|page| page.get("principal"));
    Answer::Accepted {
        principal: principal.and_then(Value::as_str).map(str::to_owned),
        may_register: register.and_then(Value::as_bool).unwrap_or(true),
    }
}

/// Evaluates the response of a reachable master.
pub(super) fn evaluate(address: &str, asker: &Asker<'_>, answer: &Answer) -> Option<Finding> {
    let who = asker.name();
    match answer {
        Answer::Elsewhere | Answer::Nobody(_) => None,
        Answer::Accepted {
            principal,
            may_register,
        } => {
            // A master that does not authenticate readers may still authenticate agents.
            let name = principal.as_deref()?;
            let is_refused = matches!(asker, Asker::Agent(_)) && !may_register;
            Some(if is_refused {
                Finding::problem(
                    format!(
                        "master {address} knows {who} as {name:?}, and this principal may not register agents"
                    ),
                    format!(
                        "give the agent the --credential of a permitted principal (`meseta tls \
                        init` makes one), or allow {name:?} `register_agents` in the master's \
                        --acls"
                    ),
                )
            } else {
                Finding::fine(format!("master {address} knows {who} as {name:?}"))
            })
        }
        Answer::Unanswered { why, hint } => Some(Finding::problem(
            format!("master {address} does not answer {who}: {why}"),
            hint.unwrap_or(match asker {
                Asker::Agent(_) => {
                    "--ssl_ca_file must hold the authority that signed the master's certificate, \
                    and the agent's certificate and key must belong to this cluster"
                }
                Asker::Client(_) => "--cert, --key and the secret must belong to this cluster",
            }),
        )),
        Answer::Refused { status, words } => Some(evaluate_refusal(address, asker, *status, words)),
    }
}

fn evaluate_refusal(address: &str, asker: &Asker<'_>, status: StatusCode, words: &str) -> Finding {
    let who = asker.name();
    let what = format!("master {address} refuses {who}: {status} {words}");
    match status {
        StatusCode::FORBIDDEN if words.ends_with("is disabled") => Finding::warning(
            format!(
                "credentials of {who} not checked: the --firewall_rules of master {address} \
                disable {PATH}"
            ),
            "enable this endpoint for the duration of the check",
        ),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
            if asker.may_be_nobody() && !words.contains(hints::SPEAKS_TLS) =>
        {
            Finding::warning(
                format!(
                    "unknown whether master {address} accepts {who} without credentials: reads \
                    require credentials ({status})"
                ),
                "run this as root, or as the user that the master runs as; if the agent is refused, give it --credential",
            )
        }
        StatusCode::UNAUTHORIZED => Finding::problem(
            format!("master {address} does not accept the credentials of {who}: {status}"),
            asker.remedy(),
        ),
        StatusCode::FORBIDDEN if words.contains(hints::SPEAKS_TLS) => Finding::problem(
            what,
            match asker {
                Asker::Agent(_) => {
                    "give the agent --ssl_ca_file, --ssl_cert_file and --ssl_key_file, as `meseta tls init` does"
                }
                Asker::Client(_) => hints::after(status, words).unwrap_or_default(),
            },
        ),
        StatusCode::FORBIDDEN => Finding::problem(what, asker.remedy()),
        status if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS => {
            Finding::problem(
                format!("{address} answers, but is not a master: {PATH} is {status} there"),
                super::masters::NO_MASTER,
            )
        }
        _ => Finding::warning(
            format!("credentials of {who} not checked: master {address} answers {status} {words}"),
            "try again in a moment",
        ),
    }
}

/// Evaluates all responses of these masters together: without a leader, no verb and no agent can proceed.
pub(super) fn evaluate_leader(masters: &str, answers: &[Answer]) -> Option<Finding> {
    let is_silent = |answer: &Answer| matches!(answer, Answer::Elsewhere | Answer::Nobody(_));
    if answers.is_empty() || !answers.iter().all(is_silent) {
        return None;
    }
    let why = answers.iter().find_map(|answer| match answer {
        Answer::Nobody(why) => Some(why),
        _ => None,
    });
    Some(match why {
        Some(why) if !answers.contains(&Answer::Elsewhere) => Finding::problem(
            format!("no leader answers among the masters {masters}: {why}"),
            "try again in a moment; else start the other masters and check etcd (`etcdctl \
            endpoint health`): the masters' logs show the cause",
        ),
        _ => Finding::warning(
            format!(
                "credentials not checked: no leader answers among the masters {masters}, and \
                only the leader knows them"
            ),
            "give all masters of the cluster with --master; if all are given, the leader is \
            away: try again in a moment",
        ),
    })
}

#[cfg(test)]
mod tests {
    use meseta_agent::Severity;
    use serde_json::json;

    use super::*;
    use crate::verbs::canned;

    fn refused(status: u16, words: &str) -> Answer {
        Answer::Refused {
            status: StatusCode::from_u16(status).expect("a status"),
            words: words.to_owned(),
        }
    }

    fn accepted(principal: Option<&str>, may_register: bool) -> Answer {
        Answer::Accepted {
            principal: principal.map(str::to_owned),
            may_register,
        }
    }

    fn secret_file(text: &str) -> tempfile::NamedTempFile {
        // The file is readable by its owner only, as such files are created.
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        file
    }

    /// Regression: each of these counted as no problem, but neither verbs nor the agent could do anything.
    #[test]
    fn rejected_agent_names_missing_credential() {
        let identity = ClientIdentity::default();
        let (agent, client) = (Asker::Agent(&identity), Asker::Client(None));
        let credential = secret_file("node secret");
        let path = Some(credential.path().to_owned());
        let known = ClientIdentity::new(None, None, path).expect("read");
        let shown = Asker::Agent(&known);
        let unanswered = Answer::Unanswered {
            why: "bad certificate".to_owned(),
            hint: None,
        };
        for (asker, answer, severity, part) in [
            (&shown, refused(401, ""), Severity::Problem, "--credential"),
            (
                &shown,
                refused(403, "no"),
                Severity::Problem,
                "--credential",
            ),
            // The agent may be accepted without a name, where readers are not.
            (
                &agent,
                refused(401, ""),
                Severity::Warning,
                "unknown whether",
            ),
            (
                &agent,
                refused(403, "Only root"),
                Severity::Warning,
                "unknown whether",
            ),
            (
                &client,
                refused(401, ""),
                Severity::Problem,
                "--secret-file",
            ),
            (
                &client,
                refused(403, "no"),
                Severity::Problem,
                "--principal",
            ),
            (&client, refused(404, ""), Severity::Problem, "port 5050"),
            (
                &agent,
                refused(403, "This port speaks TLS: use https://"),
                Severity::Problem,
                "--ssl_ca_file",
            ),
            (&client, refused(429, ""), Severity::Warning, "a moment"),
            (
                &client,
                refused(403, "Endpoint '/rights' is disabled"),
                Severity::Warning,
                "--firewall_rules",
            ),
            (
                &agent,
                accepted(Some("node1"), false),
                Severity::Problem,
                "register_agents",
            ),
            (&agent, accepted(Some("node"), true), Severity::Fine, "node"),
            (&client, accepted(Some("ada"), false), Severity::Fine, "ada"),
            (&agent, unanswered, Severity::Problem, "bad certificate"),
        ] {
            let found = evaluate("m:5050", asker, &answer).expect("a finding");
            assert_eq!(found.severity, severity, "{found}");
            assert_eq!(severity == Severity::Fine, found.mend.is_empty());
            assert!(found.to_string().contains(part), "{found}");
        }
        // Without authentication no acceptance is needed, and a follower cannot decide it.
        assert_eq!(evaluate("m", &agent, &accepted(None, false)), None);
        assert_eq!(evaluate("m", &agent, &Answer::Elsewhere), None);
    }

    /// Regression: the findings named only the silent master, and not that the others follow no leader.
    #[test]
    fn masters_without_leader_are_a_problem() {
        let nobody = || Answer::Nobody("No master leads at the moment".to_owned());
        let severity = |answers: &[Answer]| {
            let found = evaluate_leader("a,b", answers)?;
            assert!(found.what.contains("a,b"), "{found}");
            Some(found.severity)
        };
        assert_eq!(severity(&[]), None);
        assert_eq!(
            severity(&[Answer::Elsewhere, accepted(None, true), nobody()]),
            None
        );
        assert_eq!(severity(&[nobody(), nobody()]), Some(Severity::Problem));
        let elsewhere = severity(&[Answer::Elsewhere, nobody()]);
        assert_eq!(elsewhere, Some(Severity::Warning));
    }

    #[tokio::test]
    async fn master_is_queried_as_the_agent() {
        let credential = secret_file("node secret");
        let path = Some(credential.path().to_owned());
        let identity = ClientIdentity::new(None, None, path).expect("read");
        let agent = Asker::Agent(&identity);
        let rights = json!({
            "principal": "node",
            "actions": {"register_agents": {"others": false, "named": []}},
        });
        let (master, _asked) = canned::server_with(&[("GET /rights", 200, rights)]);
        assert_eq!(ask(&master, &agent).await, accepted(Some("node"), false));
        // An agent or a job scheduler has no such page.
        let (other, _asked) = canned::server_with(&[]);
        assert_eq!(ask(&other, &agent).await, refused(404, "{}"));
        let elsewhere = json!({"location": "//next:5050/rights"});
        let (follower, _asked) = canned::server_with(&[("GET /rights", 307, elsewhere)]);
        assert_eq!(ask(&follower, &agent).await, Answer::Elsewhere);
        let why = Answer::Nobody("No master leads at the moment".to_owned());
        let early = Reply {
            status: StatusCode::SERVICE_UNAVAILABLE,
            headers: http::HeaderMap::from_iter([(
                http::header::RETRY_AFTER,
                http::HeaderValue::from_static("1"),
            )]),
            body: "No master leads at the moment".into(),
        };
        assert_eq!(read(&early), why);
        let remedy = agent.remedy();
        assert!(remedy.contains("\"node\""), "{remedy}");
    }
}
