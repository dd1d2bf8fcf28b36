//! The election of a leader: a lease, and a key that lives by it.
//!
//! etcd's own election service is not used: its locks alone do not exclude two holders. So writes compare the key
//! ([`crate::store`]), and answers stop by the clock ([`Fence`]).

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::failures::Failures;
use super::fence::{self, BootTime};
use super::{Fence, Leader, Role, tell};
use crate::api::{KeyValue, RangeRequest, RangeResponse, TxnRequest};
use crate::{Change, Client, Error, operation};

/// The pause between two attempts to reach etcd.
const RETRY: Duration = Duration::from_millis(500);

/// The time that a follower watches without an event before it reads the key.
const WATCH_CHECK: Duration = Duration::from_secs(10);

/// The times of a lease.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTimes {
    /// The time without a renewal after which etcd ends the lease.
    pub ttl: Duration,
}

impl LeaseTimes {
    /// The time by which this daemon ends its lease earlier than etcd.
    fn margin(self) -> Duration {
        self.ttl / 5
    }

    /// The interval of renewals.
    fn interval(self) -> Duration {
        self.ttl / 4
    }

    /// The end of a daemon's right to act, after a renewal that was sent at this time and answered.
    fn safe_until(self, sent: BootTime) -> BootTime {
        sent.after(self.ttl - self.margin())
    }
}

/// A leadership that was won.
#[derive(Clone, Debug)]
pub struct Elected {
    /// The id of the daemon's start that won the election.
    pub leader_id: String,
    /// The revision at which the leader's key was created, which is unique to this leader.
    pub created: i64,
    pub lease: i64,
    /// The end of the leadership without a renewal.
    pub safe_until: BootTime,
}

/// The reasons why a leader stops leading.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    #[error("etcd ended its lease")]
    LeaseEnded,
    #[error("another daemon leads, or no daemon leads")]
    Replaced,
    #[error("{0}")]
    Refused(Error),
}

/// A daemon that leads or tries to lead.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub client: Client,
    /// The key of the leader in etcd.
    pub key: String,
    pub me: Leader,
    pub times: LeaseTimes,
    /// The clock, shared with the fence.
    pub clock: fence::Clock,
}

/// The state of the leader's key.
struct Holder {
    /// The key and its value; `None` without a holder.
    found: Option<KeyValue>,
    /// The revision of this state.
    revision: i64,
}

impl Holder {
    fn in_answer(answer: RangeResponse) -> Self {
        Self {
            found: answer.kvs.into_iter().next(),
            revision: answer.header.map_or(0, |header| header.revision),
        }
    }

    fn is(&self, elected: &Elected) -> bool {
        let found = self.found.as_ref();
        found.is_some_and(|found| found.create_revision == elected.created)
    }
}

impl Candidate {
    /// Follows the leader until there is none and this daemon has won; never returns if etcd refuses it, which is logged.
    pub async fn campaign(&self, role: &watch::Sender<Role>) -> Elected {
        let mut granted: Option<(i64, BootTime)> = None;
        let mut failures = Failures::default();
        loop {
            match self.try_once(role, &mut granted).await {
                Ok(Some(elected)) => return elected,
                Ok(None) => failures = Failures::default(),
                Err(error) => {
                    if failures.is_worth_a_line(&error, Instant::now()) {
                        tracing::warn!(%error, "the election failed; retrying");
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    async fn try_once(
        &self,
        role: &watch::Sender<Role>,
        granted: &mut Option<(i64, BootTime)>,
    ) -> Result<Option<Elected>, Error> {
        let holder = self.holder().await?;
        let Some(found) = holder.found else {
            tell(role, Role::Following(None));
            return self.try_to_win(granted).await;
        };
        let leader = self.leader_in(&found.value);
        if let Some((lease, sent)) = *granted
            && found.lease == lease
        {
            // The answer to an earlier attempt was lost.
            return Ok(Some(self.elected(lease, sent, found.create_revision)));
        }
        if let Some((lease, _)) = granted.take() {
            // The lease expires by itself if this call fails.
            let _unanswered = self.client.revoke(lease).await;
        }
        tell(role, Role::Following(leader));
        self.until_changed(holder.revision).await.map(|()| None)
    }

    /// Returns the leader that a key names, or `None` if the key is unreadable, names no daemon, has an address that is
    /// more or less than a host and a port, or if it is left from an earlier run at this daemon's own address.
    fn leader_in(&self, value: &[u8]) -> Option<Leader> {
        let leader: Leader = serde_json::from_slice(value).ok()?;
        let is_of_use = leader.has_address() && leader.address != self.me.address;
        is_of_use.then_some(leader)
    }

    /// Takes the key if it is free; otherwise returns the holder, if still known. Tries once, through an endpoint that has
    /// answered before the first write.
    pub async fn win_if_free(&self) -> Result<Result<Elected, Option<KeyValue>>, Error> {
        let mut granted = None;
        let found = self.client.range_from_any(self.key_alone()).await?;
        if let Some(found) = Holder::in_answer(found).found {
            return Ok(Err(Some(found)));
        }
        match self.try_to_win(&mut granted).await? {
            Some(elected) => Ok(Ok(elected)),
            None => Ok(Err(self.holder().await?.found)),
        }
    }

    fn key_alone(&self) -> RangeRequest {
        RangeRequest {
            key: self.key.clone().into(),
            ..RangeRequest::default()
        }
    }

    async fn holder(&self) -> Result<Holder, Error> {
        let answer = self.client.range(self.key_alone()).await?;
        Ok(Holder::in_answer(answer))
    }

    /// Returns when the key has changed, or after a while.
    async fn until_changed(&self, revision: i64) -> Result<(), Error> {
        let mut watch = self.client.watch(&self.key, revision + 1).await?;
        match watch.next_within(WATCH_CHECK).await {
            Ok(_) | Err(Error::Compacted) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn try_to_win(
        &self,
        granted: &mut Option<(i64, BootTime)>,
    ) -> Result<Option<Elected>, Error> {
        let sent = (self.clock)();
        let lease = self.client.grant(self.times.ttl).await?;
        *granted = Some((lease, sent));
        let me = serde_json::to_vec(&self.me).unwrap_or_default();
        let txn = TxnRequest {
            compare: vec![operation::created_at(self.key.clone(), 0)],
            success: vec![operation::put_leased(self.key.clone(), me, lease)],
            failure: Vec::new(),
        };
        let answer = self.client.txn(txn).await?;
        let created = answer.header.map_or(0, |header| header.revision);
        Ok(answer.succeeded.then(|| self.elected(lease, sent, created)))
    }

    fn elected(&self, lease: i64, sent: BootTime, created: i64) -> Elected {
        Elected {
            leader_id: self.me.id.clone(),
            created,
            lease,
            safe_until: self.times.safe_until(sent),
        }
    }

    /// Acts as the leader until `act` ends or the leadership is lost, and then resigns.
    pub async fn act<T, E: From<Lost>>(
        &self,
        elected: &Elected,
        role: &watch::Sender<Role>,
        fence: &Fence,
        acting: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tracing::info!(lease = elected.lease, "elected: this daemon leads");
        let _following = role.send_replace(Role::Recovering);
        let ended = tokio::select! {
            lost = self.hold(elected, fence) => Err(E::from(lost)),
            ended = acting => ended,
        };
        self.resign(elected, fence).await;
        ended
    }

    /// Renews the lease until the leadership is lost; each answer extends the fence, and the end closes it.
    pub async fn hold(&self, elected: &Elected, fence: &Fence) -> Lost {
        fence.extend(elected.safe_until);
        let lost = tokio::select! {
            lost = self.renew(elected, fence) => lost,
            () = self.until_replaced(elected) => Lost::Replaced,
        };
        fence.close();
        lost
    }

    async fn renew(&self, elected: &Elected, fence: &Fence) -> Lost {
        let mut was_answered = true;
        let mut failures = Failures::default();
        loop {
            let is_sure = was_answered && fence.is_open();
            let renewed = self.renew_once(elected, is_sure).await;
            was_answered = renewed.is_ok();
            let pause = match renewed {
                Ok(sent) => {
                    failures = Failures::default();
                    fence.extend(self.times.safe_until(sent));
                    self.times.interval()
                }
                Err(Error::LeaseGone) => return Lost::LeaseEnded,
                Err(error) if error.is_passing() => {
                    if failures.is_worth_a_line(&error, Instant::now()) {
                        tracing::warn!(%error, "failed to renew the lease; retrying");
                    }
                    RETRY
                }
                Err(error) => return Lost::Refused(error),
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Renews the lease; returns the time of sending. Reads the key first unless `is_sure`. A daemon that was away for long must
    /// not act before that. And a daemon whose requests arrive without answers must not keep a lease that it cannot use.
    async fn renew_once(&self, elected: &Elected, is_sure: bool) -> Result<BootTime, Error> {
        if !is_sure && !self.holder().await?.is(elected) {
            return Err(Error::LeaseGone);
        }
        let sent = (self.clock)();
        self.client.keep_alive(elected.lease).await?;
        Ok(sent)
    }

    /// Returns when the key is known to be gone or to belong to another daemon.
    async fn until_replaced(&self, elected: &Elected) {
        let mut revision = elected.created;
        loop {
            if self.watch_key(elected, revision).await.is_ok() {
                return;
            }
            // The watch has ended; a read shows the changes of that time.
            tokio::time::sleep(RETRY).await;
            if let Ok(holder) = self.holder().await {
                revision = holder.revision;
                if !holder.is(elected) {
                    return;
                }
            }
        }
    }

    /// Returns when another daemon deletes or writes the key; an error if the watch fails.
    async fn watch_key(&self, elected: &Elected, revision: i64) -> Result<(), Error> {
        let mut watch = self.client.watch(&self.key, revision + 1).await?;
        loop {
            match watch.next().await? {
                Change::Put { created, .. } if created == elected.created => {}
                Change::Put { .. } | Change::Deleted { .. } => return Ok(()),
            }
        }
    }

    /// Gives the leadership up, so that another daemon need not wait for the end of the lease.
    pub async fn resign(&self, elected: &Elected, fence: &Fence) {
        fence.close();
        if let Err(error) = self.client.revoke(elected.lease).await {
            tracing::warn!(%error, "failed to give the leadership up; it ends with its lease");
        }
    }
}

#[cfg(test)]
mod tests;
