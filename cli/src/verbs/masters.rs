//! Finding the master that leads among those of `--master`, for all that one verb asks.
//!
//! Entered through [`at_leader`]. A master alone is asked as it is; of a list each is asked who leads. One that sends
//! elsewhere is followed, and where nobody leads at the moment that is waited for. Invariant: what is asked again was
//! not done: a master that follows does nothing.

use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use meseta_daemon::leader;
use meseta_proto::leader::Backoff;
use tokio::time::Instant;

use super::{address, identity};

/// How long a leader is waited for: somewhat longer than the next one takes after a crash.
const LEADER_WAIT: Duration = Duration::from_secs(15);

/// What was asked for, or that it is to be asked of another master.
pub(super) enum Asked<T> {
    Answered(T),
    /// Another master leads, or none does; the error is what is said if none is found.
    Elsewhere(anyhow::Error),
}

/// A list and the master of it that was found to lead.
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

/// A value of `--master`, if it can be one.
pub(super) fn parse(text: &str) -> Result<String, String> {
    for (prefix, name) in [("etcd://", "etcd"), ("zk://", "ZooKeeper")] {
        if text.starts_with(prefix) {
            return Err(format!(
                "it names {name}, which this command does not speak to: give the masters themselves, with commas \
                 between (for example master1:5050,master2:5050,master3:5050)"
            ));
        }
    }
    let is_list = text.contains(',');
    if is_list && text.split(',').any(|one| one.trim().is_empty()) {
        return Err("a master of the list is empty".to_owned());
    }
    Ok(text.to_owned())
}

/// Asks the master that leads, as often as another one does.
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
        match ask(&address).await? {
            Asked::Answered(answer) => return Ok(answer),
            Asked::Elsewhere(error) => {
                let next = search.leader(Some(error)).await?;
                if next == address {
                    search.pause().await;
                }
                address = next;
            }
        }
    }
}

/// The search for one verb's leader.
struct Search<'a> {
    masters: &'a str,
    until: Instant,
    backoff: Backoff,
    was_told: bool,
}

impl<'a> Search<'a> {
    fn new(masters: &'a str) -> Self {
        let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
        Self {
            masters,
            until: Instant::now() + LEADER_WAIT,
            backoff: Backoff::new(seed),
            was_told: false,
        }
    }

    /// The master that leads, once there is one; after too long the error, or why none was found.
    async fn leader(&mut self, mut error: Option<anyhow::Error>) -> anyhow::Result<String> {
        let masters: Vec<_> = self.masters.split(',').map(address::base).collect();
        let is_encrypted = masters.iter().any(|(scheme, _)| *scheme == "https");
        let addresses: Vec<_> = masters.into_iter().map(|(_, address)| address).collect();
        loop {
            if Instant::now() >= self.until
                && let Some(error) = error.take()
            {
                return Err(error);
            }
            let encryption = is_encrypted
                .then(identity::encryption_of_masters)
                .transpose()?;
            match leader::find(&addresses, encryption).await {
                Ok(leader) => {
                    let scheme = if is_encrypted { "https" } else { "http" };
                    let leader = format!("{scheme}://{leader}");
                    note(self.masters, &leader);
                    return Ok(leader);
                }
                Err(nobody) if Instant::now() >= self.until => {
                    return Err(nobody).context(format!(
                        "no leader was found within {} s; is --master right?",
                        LEADER_WAIT.as_secs()
                    ));
                }
                Err(_) => self.pause().await,
            }
        }
    }

    /// Waits a while, which is said at a terminal.
    async fn pause(&mut self) {
        if !std::mem::replace(&mut self.was_told, true) && std::io::stderr().is_terminal() {
            let seconds = LEADER_WAIT.as_secs();
            eprintln!(
                "meseta: no master leads at the moment; waiting for one, {seconds} s at most"
            );
        }
        tokio::time::sleep(self.backoff.next_pause()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_master_is_refused_with_what_would() {
        for bad in ["etcd://a:2379/meseta", "zk://a:2181/mesos"] {
            let said = parse(bad).expect_err("no master");
            assert!(said.contains("master1:5050,master2:5050"), "{said}");
        }
        assert!(parse("a:5050,,b:5050").is_err());
        for good in ["a", "a:5050", "a:5050,b:5050", "https://a:5050,https://b"] {
            assert_eq!(parse(good).as_deref(), Ok(good));
        }
    }
}
