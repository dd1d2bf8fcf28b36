//! The daemons that share a cluster: each has a key of its own that lives by a lease, and reads the keys of all.
//!
//! Nothing is decided by it: people find another daemon when one is gone for good, and may send it their secrets. Invariant: where a
//! proof is required, no address is listed before a handshake with it has succeeded for this very record in etcd.

use std::convert::Infallible;
use std::time::Duration;

use meseta_daemon::tls::ServerProof;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Leader, tell};
use crate::api::{RangeRequest, TxnRequest};
use crate::{Client, Error, operation};

/// The time without a renewal after which a daemon leaves the list.
const TTL: Duration = Duration::from_secs(60);

/// The interval of renewals, and of reads of the other daemons' keys.
const INTERVAL: Duration = Duration::from_secs(15);

/// The maximum number of listed masters. More than a few help nobody.
const LISTED_MAX: i64 = 64;

/// A daemon that keeps its entry in the list.
#[derive(Debug)]
pub struct Presence {
    pub client: Client,
    /// The common prefix of the keys of all daemons.
    pub prefix: String,
    pub me: Leader,
    /// The proof that other daemons owe before they are listed. Daemons without TLS cannot prove anything.
    pub proof: Option<ServerProof>,
}

impl Presence {
    /// Keeps this daemon's key, and the addresses of all proven daemons in `known`. Where etcd does not answer, the last ones
    /// stay: the election logs why.
    pub async fn keep(self, known: watch::Sender<Vec<String>>) -> Infallible {
        let proof = self.proof.clone();
        let judge = move |daemon: Leader| {
            let proof = proof.clone();
            async move {
                match proof {
                    Some(proof) => proof.prove(&daemon.address, &daemon.hostname).await,
                    None => Ok(()),
                }
            }
        };
        self.keep_judged(judge, known).await
    }

    async fn keep_judged<F>(
        self,
        judge: impl Fn(Leader) -> F,
        known: watch::Sender<Vec<String>>,
    ) -> Infallible
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let mut lease = None;
        let mut members = Members::default();
        loop {
            if let Ok(daemons) = self.round(&mut lease).await {
                members.judge(daemons, &self.me, &judge).await;
                tell(&known, members.addresses());
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    async fn round(&self, lease: &mut Option<i64>) -> Result<Vec<Leader>, Error> {
        let renewed = match *lease {
            Some(lease) => self.client.keep_alive(lease).await,
            None => Err(Error::LeaseGone),
        };
        match renewed {
            Ok(()) => {}
            Err(Error::LeaseGone) => {
                let granted = self.client.grant(TTL).await?;
                self.put(granted).await?;
                *lease = Some(granted);
            }
            Err(error) => return Err(error),
        }
        self.all().await
    }

    /// Writes the daemon's key under its address: this replaces an earlier run's key, whose lease may not have ended yet.
    async fn put(&self, lease: i64) -> Result<(), Error> {
        let key = format!("{}{}", self.prefix, self.me.address);
        let me = serde_json::to_vec(&self.me).unwrap_or_default();
        let txn = TxnRequest {
            compare: Vec::new(),
            success: vec![operation::put_leased(key, me, lease)],
            failure: Vec::new(),
        };
        self.client.txn(txn).await.map(drop)
    }

    /// The records of all daemons, in order.
    async fn all(&self) -> Result<Vec<Leader>, Error> {
        let range = RangeRequest {
            key: self.prefix.clone().into(),
            range_end: operation::prefix_end(self.prefix.as_bytes()).into(),
            limit: LISTED_MAX,
            ..RangeRequest::default()
        };
        let found = self.client.range(range).await?.kvs;
        let daemons = found
            .iter()
            .filter_map(|found| serde_json::from_slice(&found.value).ok());
        Ok(daemons.filter(Leader::has_address).collect())
    }
}

/// The daemons of the last round, each with the reason why it is unproven.
#[derive(Debug, Default)]
struct Members(Vec<(Leader, Option<String>)>);

impl Members {
    /// Takes the records of this round. A record that was proven before stays proven: its daemon may be down for a while.
    async fn judge<F>(&mut self, daemons: Vec<Leader>, me: &Leader, judge: &impl Fn(Leader) -> F)
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        let mut judging = JoinSet::new();
        let before = std::mem::take(&mut self.0);
        for daemon in daemons {
            let known = before.iter().find(|(one, _)| *one == daemon);
            if daemon == *me || known.is_some_and(|(_, refused)| refused.is_none()) {
                self.0.push((daemon, None));
                continue;
            }
            let index = self.0.len();
            let judgement = judge(daemon.clone());
            judging.spawn(async move { (index, judgement.await) });
            let last = known.and_then(|(_, refused)| refused.clone());
            self.0.push((daemon, Some(last.unwrap_or_default())));
        }
        while let Some(judged) = judging.join_next().await {
            let Ok((index, judgement)) = judged else {
                continue;
            };
            if let Some((daemon, refused)) = self.0.get_mut(index) {
                let error = judgement.err();
                if let Some(error) = error
                    .as_ref()
                    .filter(|error| refused.as_ref() != Some(error))
                {
                    tracing::warn!(
                        address = ?daemon.address,
                        %error,
                        "the certificate of a daemon in etcd does not prove its identity; not \
                         listing the daemon"
                    );
                }
                *refused = error;
            }
        }
    }

    /// The addresses of the proven daemons, each once.
    fn addresses(&self) -> Vec<String> {
        let proven = self.0.iter().filter(|(_, refused)| refused.is_none());
        let mut addresses = Vec::new();
        for (daemon, _) in proven {
            if !addresses.contains(&daemon.address) {
                addresses.push(daemon.address.clone());
            }
        }
        addresses
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::FakeEtcd;

    use super::*;

    fn start(etcd: &FakeEtcd, address: &str) -> watch::Receiver<Vec<String>> {
        let presence = Presence {
            client: etcd.client(Duration::from_secs(2)),
            prefix: "/m/masters/".to_owned(),
            me: Leader {
                address: address.to_owned(),
                ..Leader::default()
            },
            proof: None,
        };
        let (known, told) = watch::channel(Vec::new());
        tokio::spawn(presence.keep(known));
        told
    }

    #[tokio::test(start_paused = true)]
    async fn departed_daemon_leaves_the_list() {
        let etcd = FakeEtcd::start();
        etcd.put("/m/masters/x", "not a master");
        let long = format!("{}:1", "z".repeat(258));
        for address in ["", "z", "a:b@z:1", "z:1/x", long.as_str()] {
            let record =
                serde_json::json!({"id": "", "hostname": "", "address": address, "version": ""});
            etcd.put(&format!("/m/masters/{address}"), record.to_string());
        }
        let mut first = start(&etcd, "a:5050");
        first.wait_for(|all| *all == ["a:5050"]).await.unwrap();
        start(&etcd, "b:5050");
        let both = |all: &Vec<String>| *all == ["a:5050", "b:5050"];
        first.wait_for(both).await.unwrap();
        // The leases end, and the running daemons register again.
        etcd.expire_leases();
        assert_eq!(etcd.all("/m/masters/").len(), 6, "no daemon has a key");
        etcd.put(
            "/m/masters/z",
            r#"{"id":"","hostname":"","address":"z:1","version":""}"#,
        );
        let three = |all: &Vec<String>| *all == ["a:5050", "b:5050", "z:1"];
        first.wait_for(three).await.unwrap();
        etcd.delete_prefix("/m/masters/z");
        first.wait_for(both).await.unwrap();
    }

    fn at(address: &str) -> Leader {
        Leader {
            address: address.to_owned(),
            ..Leader::default()
        }
    }

    /// Whoever wrote to etcd had any address listed beside those of the masters, for people to try.
    #[tokio::test]
    async fn unproven_daemons_are_not_listed() {
        let answers = std::sync::Mutex::new(vec!["b:1"]);
        let judge = |daemon: Leader| {
            let is_master = answers.lock().unwrap().contains(&&*daemon.address);
            async move {
                is_master
                    .then_some(())
                    .ok_or_else(|| "an agent's".to_owned())
            }
        };
        let (me, mut members) = (at("a:1"), Members::default());
        let all = || vec![me.clone(), at("b:1"), at("c:1")];
        members.judge(all(), &me, &judge).await;
        assert_eq!(members.addresses(), ["a:1", "b:1"]);
        // A proven daemon that is down stays, until its record is another one.
        answers.lock().unwrap().clear();
        members.judge(all(), &me, &judge).await;
        assert_eq!(members.addresses(), ["a:1", "b:1"]);
        let another_start = Leader {
            id: "2".to_owned(),
            ..at("b:1")
        };
        members
            .judge(vec![another_start, me.clone()], &me, &judge)
            .await;
        assert_eq!(members.addresses(), ["a:1"]);
        // A daemon that proves itself later is listed then.
        answers.lock().unwrap().push("c:1");
        members.judge(all(), &me, &judge).await;
        assert_eq!(members.addresses(), ["a:1", "c:1"]);
    }
}
