//! The daemons that share a cluster: each has a key of its own that lives by a lease, and reads the keys of all.
//!
//! No decision depends on it: people find another daemon when one is gone for good.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::watch;

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
}

impl Presence {
    /// Maintains this daemon's key, and the addresses of all daemons in `known`. If etcd does not answer, the last addresses
    /// stay: the election logs the cause.
    pub async fn keep(self, known: watch::Sender<Vec<String>>) -> Infallible {
        let mut lease = None;
        loop {
            if let Ok(addresses) = self.round(&mut lease).await {
                tell(&known, addresses);
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    async fn round(&self, lease: &mut Option<i64>) -> Result<Vec<String>, Error> {
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

    /// The addresses of all daemons, in order.
    async fn all(&self) -> Result<Vec<String>, Error> {
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
        let daemons = daemons.filter(Leader::has_address);
        Ok(daemons.map(|daemon| daemon.address).collect())
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
        };
        let (known, told) = watch::channel(Vec::new());
        tokio::spawn(presence.keep(known));
        told
    }

    #[tokio::test(start_paused = true)]
    async fn daemons_know_each_other_and_one_that_is_gone_is_listed_no_more() {
        let etcd = FakeEtcd::start();
        etcd.put("/m/masters/x", "not a master");
        for address in ["", "z", "a:b@z:1", "z:1/x"] {
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
        assert_eq!(etcd.all("/m/masters/").len(), 5, "no daemon has a key");
        etcd.put(
            "/m/masters/z",
            r#"{"id":"","hostname":"","address":"z:1","version":""}"#,
        );
        let three = |all: &Vec<String>| *all == ["a:5050", "b:5050", "z:1"];
        first.wait_for(three).await.unwrap();
        etcd.delete_prefix("/m/masters/z");
        first.wait_for(both).await.unwrap();
    }
}
