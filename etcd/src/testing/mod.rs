//! An etcd in memory, of one member, with faults that a test injects.
//!
//! Tests start a [`FakeEtcd`]. Its clients reach it over pipes within the process, and its leases run by the runtime's clock,
//! so a test that has paused that clock waits for nothing. It refuses the same requests as etcd: transactions with too many
//! operations, too many bytes or a key twice, and revisions that were compacted.

mod service;
mod store;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use prost::bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::{Endpoint, Server, Uri};

use crate::api::auth_server::AuthServer;
use crate::api::kv_server::KvServer;
use crate::api::lease_server::LeaseServer;
use crate::api::watch_server::WatchServer;
use crate::api::{KeyValue, TxnRequest};
use crate::client::Client;
use service::Service;
use store::Store;

/// The calls that can have a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Range,
    Txn,
    Grant,
    Revoke,
    KeepAlive,
    Watch,
}

/// The fault of a call in place of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call takes no effect, and no answer comes.
    LostBefore,
    /// The call takes effect, and no answer comes.
    LostAfter,
    /// No answer comes; the call takes effect when the test releases it.
    Late,
    /// The call takes effect, and the answer comes after this time.
    AnsweredAfter(Duration),
    /// The call is refused because the alarm NOSPACE is raised.
    OutOfSpace,
    /// All former revisions are compacted before the answer.
    Compacted,
}

/// A fault for some calls of a kind.
#[derive(Debug)]
struct Rule {
    call: Call,
    fault: Fault,
    /// The number of normal calls before the fault.
    skip: usize,
    /// The number of calls with the fault.
    times: usize,
}

/// The shared state of the services.
#[derive(Debug)]
struct Shared {
    store: Mutex<Store>,
    /// The password of the user; `None` without a user.
    password: Mutex<Option<String>>,
    rules: Mutex<Vec<Rule>>,
    /// The received transactions, in their order.
    transactions: Mutex<Vec<TxnRequest>>,
    /// The revision, for watchers of a key.
    revision: watch::Sender<i64>,
    /// A counter that grows when late calls take effect.
    releases: watch::Sender<u64>,
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the store, and notifies the watchers.
    fn change<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let (changed, revision) = {
            let mut store = self.store();
            (change(&mut store), store.revision())
        };
        self.revision.send_replace(revision);
        changed
    }

    fn fault(&self, call: Call) -> Option<Fault> {
        let mut rules = self.rules();
        let rule = rules
            .iter_mut()
            .find(|rule| rule.call == call && rule.times > 0)?;
        if rule.skip > 0 {
            rule.skip -= 1;
            return None;
        }
        rule.times -= 1;
        Some(rule.fault)
    }

    fn rules(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn transactions(&self) -> MutexGuard<'_, Vec<TxnRequest>> {
        let transactions = self.transactions.lock();
        transactions.unwrap_or_else(PoisonError::into_inner)
    }
}

/// An etcd that lives as long as its clients do. Clones share it.
#[derive(Clone, Debug)]
pub struct FakeEtcd {
    shared: Arc<Shared>,
    connections: mpsc::Sender<tokio::io::DuplexStream>,
}

impl FakeEtcd {
    /// Starts an empty etcd. Must be called within a runtime.
    #[must_use]
    pub fn start() -> Self {
        let shared = Arc::new(Shared {
            store: Mutex::new(Store::default()),
            password: Mutex::default(),
            rules: Mutex::default(),
            transactions: Mutex::default(),
            revision: watch::Sender::default(),
            releases: watch::Sender::default(),
        });
        let (connections, incoming) = mpsc::channel(16);
        let etcd = Self {
            shared,
            connections,
        };
        let server = Server::builder().add_routes(etcd.routes());
        let incoming = ReceiverStream::new(incoming).map(Ok::<_, std::io::Error>);
        tokio::spawn(server.serve_with_incoming(incoming));
        etcd
    }

    /// The services, for a server of the test's own.
    #[must_use]
    pub fn routes(&self) -> Routes {
        let service = || Service(self.shared.clone());
        Routes::new(KvServer::new(service()).max_decoding_message_size(usize::MAX))
            .add_service(LeaseServer::new(service()))
            .add_service(WatchServer::new(service()))
            .add_service(AuthServer::new(service()))
    }

    /// Sets the password of the user.
    pub fn set_password(&self, password: &str) {
        let known = self.shared.password.lock();
        *known.unwrap_or_else(PoisonError::into_inner) = Some(password.to_owned());
    }

    /// A client whose calls end within this time.
    #[must_use]
    pub fn client(&self, call_timeout: Duration) -> Client {
        let connections = self.connections.clone();
        let connect = move |_: Uri| {
            let connections = connections.clone();
            async move {
                let (near, far) = tokio::io::duplex(1 << 20);
                let closed = |_| std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
                connections.send(far).await.map_err(closed)?;
                Ok::<_, std::io::Error>(TokioIo::new(near))
            }
        };
        // The address is never resolved.
        let channel = Endpoint::from_static("http://etcd.invalid")
            .connect_with_connector_lazy(tower::service_fn(connect));
        Client::over(channel, call_timeout)
    }

    /// Injects a fault into so many calls of a kind, after `skip` normal ones.
    pub fn inject(&self, call: Call, fault: Fault, skip: usize, times: usize) {
        let rule = Rule {
            call,
            fault,
            skip,
            times,
        };
        self.shared.rules().push(rule);
    }

    /// Removes all pending faults.
    pub fn heal(&self) {
        self.shared.rules().clear();
    }

    /// Releases late calls, and returns when they have taken effect.
    pub async fn release(&self) {
        self.shared.releases.send_modify(|count| *count += 1);
        // The calls run while this task waits, and before the clock advances.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    /// Writes a key like another program; returns the revision of the write.
    pub fn put(&self, key: &str, value: impl Into<Bytes>) -> i64 {
        let (key, value) = (key.to_owned().into(), value.into());
        self.shared.change(|store| store.put(key, value))
    }

    /// Deletes all keys with this prefix, like another program.
    pub fn delete_prefix(&self, prefix: &str) {
        self.shared.change(|store| store.delete_prefix(prefix));
    }

    #[must_use]
    pub fn get(&self, key: &str) -> Option<KeyValue> {
        self.shared.store().get(key.as_bytes())
    }

    /// Keys and values of all keys with this prefix.
    #[must_use]
    pub fn all(&self, prefix: &str) -> BTreeMap<String, Bytes> {
        let all = self.shared.store().all();
        let all = all.into_iter().map(|kv| {
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            (key, kv.value)
        });
        all.filter(|(key, _)| key.starts_with(prefix)).collect()
    }

    /// Ends all leases at once, as if no renewal had come in time.
    pub fn expire_leases(&self) {
        self.shared.change(Store::expire_all);
    }

    /// The transactions received so far, done or not, in their order.
    #[must_use]
    pub fn transactions(&self) -> Vec<TxnRequest> {
        self.shared.transactions().clone()
    }
}
