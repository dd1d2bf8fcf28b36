//! The search for the leading master among those of `--master`, for all requests of one verb.
//!
//! Entered through [`at_leader`]. A single master is queried directly; of a list the first that leads. A redirect is
//! followed, an absent master is skipped, and while no master leads the search waits. Invariant: a repeated request was not
//! executed, or changes nothing: a following master executes nothing.

use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use meseta_daemon::leader::{self, Others};
use meseta_daemon::tls::ClientConfig;
use meseta_proto::leader::Backoff;
use tokio::time::Instant;

use super::{address, identity};
use crate::terminal;

/// The wait for a leader: somewhat longer than an election takes after a crash.
const LEADER_WAIT: Duration = Duration::from_secs(15);

/// The answer, or the need to ask another master.
pub(super) enum Asked<T> {
    Answered(T),
    /// Another master leads, or none does; the error is reported if none is found.
    Elsewhere(anyhow::Error),
    /// No response was received.
    Unanswered {
        error: anyhow::Error,
        /// The master did not receive the request, or the request changes nothing.
        may_ask_again: bool,
    },
}

impl<T> Asked<T> {
    /// Converts the answer.
    pub(super) fn and_then<U>(
        self,
        read: impl FnOnce(T) -> anyhow::Result<U>,
    ) -> anyhow::Result<Asked<U>> {
        Ok(match self {
            Self::Answered(answer) => Asked::Answered(read(answer)?),
            Self::Elsewhere(error) => Asked::Elsewhere(error),
            Self::Unanswered {
                error,
                may_ask_again,
            } => Asked::Unanswered {
                error,
                may_ask_again,
            },
        })
    }
}

/// A list of masters, and its member that was found to lead.
static FOUND: Mutex<Option<(String, String)>> = Mutex::new(None);

fn found(masters: &str) -> Option<String> {
    let found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, leader) = found.as_ref().filter(|(list, _)| list == masters)?;
    Some(leader.clone())
}

fn note(masters: &str, leader: &str) {
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    *found = Some((masters.to_owned(), leader.to_owned()));
}

/// Forgets the leader of these masters, so that the next request looks for it again.
pub(super) fn forget(masters: &str) {
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    found.take_if(|(list, _)| list == masters);
}

/// Returns all masters, for a client that is connected to one of them.
pub(super) fn others(masters: &str, master: &str) -> anyhow::Result<Others> {
    let (masters, encryption) = addresses(masters)?;
    let (_, address) = address::base(master);
    Ok(Others {
        address,
        masters,
        encryption,
    })
}

/// Returns the masters' addresses to connect to, and the TLS settings if the connections are encrypted.
fn addresses(masters: &str) -> anyhow::Result<(Vec<String>, Option<ClientConfig>)> {
    let masters: Vec<_> = masters.split(',').map(address::base).collect();
    let is_encrypted = masters.iter().any(|(scheme, _)| *scheme == "https");
    let encryption = is_encrypted
        .then(identity::encryption_of_masters)
        .transpose()?;
    let addresses = masters.into_iter().map(|(_, address)| address);
    Ok((addresses.collect(), encryption))
}

/// Parses a value of `--master`.
pub(super) fn parse(text: &str) -> Result<String, String> {
    for (prefix, name) in [("etcd://", "etcd"), ("zk://", "ZooKeeper")] {
        if text.starts_with(prefix) {
            return Err(format!(
                "{name} is not supported here: give the addresses of the masters, separated by \
                 commas (for example master1:5050,master2:5050,master3:5050)"
            ));
        }
    }
    let is_list = text.contains(',');
    if is_list && text.split(',').any(|one| one.trim().is_empty()) {
        return Err("the list has an empty entry".to_owned());
    }
    text.split(',').try_for_each(address::check)?;
    Ok(text.to_owned())
}

/// Sends a request to the leading master, and repeats it if another one leads, or if the leader is away.
pub(super) async fn at_leader<T>(
    masters: &str,
    ask: impl AsyncFn(&str) -> anyhow::Result<Asked<T>>,
) -> anyhow::Result<T> {
    let mut search = Search::new(masters);
    let mut address = match found(masters) {
        Some(leader) => leader,
        None if masters.contains(',') => search.leader(None).await?,
        None => masters.to_owned(),
    };
    loop {
        let error = match ask(&address).await? {
            Asked::Answered(answer) => return Ok(answer),
            Asked::Elsewhere(error) => error,
            Asked::Unanswered {
                error,
                may_ask_again,
            } => {
                forget(masters);
                // A single master without a search has no alternative.
                if !may_ask_again || address == masters {
                    return Err(error);
                }
                error
            }
        };
        let next = search.leader(Some(error)).await?;
        if next == address {
            search.pause().await;
        }
        address = next;
    }
}

/// The search for the leader of one verb.
struct Search<'a> {
    masters: &'a str,
    /// The end of the search, set once a leader is first searched for, because a response may have been awaited before.
    until: Option<Instant>,
    backoff: Backoff,
    was_told: bool,
}

impl<'a> Search<'a> {
    fn new(masters: &'a str) -> Self {
        let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
        Self {
            masters,
            until: None,
            backoff: Backoff::new(seed),
            was_told: false,
        }
    }

    /// Returns the leading master, once there is one; after too long the error, or the reason why none was found.
    async fn leader(&mut self, mut error: Option<anyhow::Error>) -> anyhow::Result<String> {
        let until = *self.until.get_or_insert(Instant::now() + LEADER_WAIT);
        loop {
            if Instant::now() >= until
                && let Some(error) = error.take()
            {
                return Err(error);
            }
            let (addresses, encryption) = addresses(self.masters)?;
            let is_encrypted = encryption.is_some();
            match leader::find(&addresses, encryption).await {
                Ok(leader) => {
                    let scheme = if is_encrypted { "https" } else { "http" };
                    let leader = format!("{scheme}://{leader}");
                    note(self.masters, &leader);
                    return Ok(leader);
                }
                Err(nobody) if Instant::now() >= until => {
                    return Err(nobody).context(format!(
                        "no leader was found within {} s; is --master right?",
                        LEADER_WAIT.as_secs()
                    ));
                }
                Err(_) => self.pause().await,
            }
        }
    }

    /// Pauses for a while, and prints that on a terminal.
    async fn pause(&mut self) {
        if !std::mem::replace(&mut self.was_told, true) && std::io::stderr().is_terminal() {
            let seconds = LEADER_WAIT.as_secs();
            terminal::note!(
                "meseta: no master leads at the moment; waiting for a leader, {seconds} s at most"
            );
        }
        tokio::time::sleep(self.backoff.next_pause()).await;
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use serde_json::json;

    use super::super::{canned, server};
    use super::*;

    /// Regression: a verb kept asking the first leader forever.
    #[tokio::test]
    async fn gone_leader_is_replaced_by_next() {
        let (next, _asked) = canned::server_with(&[("GET /state", 200, json!({"who": "next"}))]);
        let gone = canned::nobody();
        let masters = format!("{gone},{next}");
        note(&masters, &format!("http://{gone}"));
        let state = server::fetch_json(&masters, "/state").await;
        assert_eq!(state.expect("the next one's"), json!({"who": "next"}));
        let leader = found(&masters).expect("found");
        assert_eq!(leader, format!("http://{next}"));
        // A request that may have been executed is not repeated, but the next request goes to another master.
        let lost = at_leader(&masters, async |address| {
            Ok(Asked::<()>::Unanswered {
                error: anyhow!("{address} has not answered"),
                may_ask_again: false,
            })
        });
        let told = lost.await.expect_err("lost").to_string();
        assert_eq!(told, format!("http://{next} has not answered"));
        assert_eq!(found(&masters), None);
    }

    #[tokio::test]
    async fn single_absent_master_is_not_awaited() {
        let told = server::fetch_json(&canned::nobody(), "/state").await;
        let told = told.expect_err("nobody").to_string();
        assert!(told.starts_with("nothing answers at"), "{told}");
    }

    #[test]
    fn invalid_master_names_valid_forms() {
        for bad in ["etcd://a:2379/meseta", "zk://a:2181/mesos"] {
            let said = parse(bad).expect_err("no master");
            assert!(said.contains("master1:5050,master2:5050"), "{said}");
        }
        assert!(parse("a:5050,,b:5050").is_err());
        // Regression: the port was treated as a part of the name.
        for (bad, part) in [
            ("127.0.0.1:99999", "\"99999\" is not a port"),
            ("a:5050,b:0", "\"0\" is not a port"),
            ("a:", "\"\" is not a port"),
            ("a:5050:5051", "several colons"),
            ("fe80::1:99999", "in brackets"),
            ("[::1]5050", "names no host"),
            ("[::1]:", "\"\" is not a port"),
            ("", "names no host"),
            (":5050", "names no host"),
            ("https://", "names no host"),
            ("http://a/b", "names no host"),
            ("file:///masters", "not a supported scheme"),
        ] {
            let said = parse(bad).expect_err("no master");
            assert!(said.contains(part), "{bad}: {said}");
        }
        for good in [
            "a",
            "a:5050",
            "a:5050,b:5050",
            "a:5050, b:5050",
            "https://a:5050,https://b",
            "http://a:5050/",
            // These worked before the check: agents accept them, and URLs may have this form.
            "master@a:5050",
            "master@a:5050,b",
            "HTTP://a:5050",
            "::1",
            "[::1]",
            "[::1]:5060",
        ] {
            assert_eq!(parse(good).as_deref(), Ok(good));
        }
    }
}
