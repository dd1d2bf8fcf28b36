//! The services over one store; each call may have the fault that a test injects.

use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::channel;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::store::Store;
use super::{Call, Fault, Shared};
use crate::api::auth_server::Auth;
use crate::api::kv_server::Kv;
use crate::api::lease_server::Lease;
use crate::api::watch_server::Watch;
use crate::api::{
    AuthenticateRequest, AuthenticateResponse, LeaseGrantRequest, LeaseGrantResponse,
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest, LeaseRevokeResponse,
    RangeRequest, RangeResponse, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
    watch_request,
};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The services of etcd.
#[derive(Clone, Debug)]
pub(super) struct Service(pub(super) Arc<Shared>);

impl Service {
    /// Answers a call, or applies its fault.
    async fn answer<T: Send + 'static>(
        &self,
        call: Call,
        change: impl FnOnce(&mut Store) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        match self.0.fault(call) {
            None => self.0.change(change),
            Some(Fault::Compacted) => {
                self.0.change(Store::compact);
                self.0.change(change)
            }
            Some(Fault::OutOfSpace) => Err(Status::resource_exhausted(
                "etcdserver: mvcc: database space exceeded",
            )),
            Some(Fault::LostBefore) => std::future::pending().await,
            Some(Fault::LostAfter) => {
                drop(self.0.change(change));
                std::future::pending().await
            }
            Some(Fault::AnsweredAfter(time)) => {
                let answer = self.0.change(change);
                tokio::time::sleep(time).await;
                answer
            }
            Some(Fault::Late) => {
                let shared = self.0.clone();
                // The caller may cancel the call long before.
                tokio::spawn(async move {
                    let mut releases = shared.releases.subscribe();
                    if releases.changed().await.is_ok() {
                        drop(shared.change(change));
                    }
                });
                std::future::pending().await
            }
        }
    }

    /// Ends a lease without a renewal in time.
    fn expire_in_time(&self, id: i64, ttl: Duration) {
        let shared = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            let mut due = Some(tokio::time::Instant::now() + ttl);
            while let Some(at) = due {
                tokio::time::sleep_until(at).await;
                let Some(shared) = shared.upgrade() else {
                    return;
                };
                due = shared.change(|store| store.expire(id));
            }
        });
    }
}

#[tonic::async_trait]
impl Kv for Service {
    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        let range = request.into_inner();
        let found = self.answer(Call::Range, move |store| store.range(&range));
        found.await.map(Response::new)
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let txn = request.into_inner();
        self.0.transactions().push(txn.clone());
        let done = self.answer(Call::Txn, move |store| store.txn(txn));
        done.await.map(Response::new)
    }
}

#[tonic::async_trait]
impl Auth for Service {
    async fn authenticate(
        &self,
        request: Request<AuthenticateRequest>,
    ) -> Result<Response<AuthenticateResponse>, Status> {
        let password = self.0.password.lock();
        let password = password.unwrap_or_else(PoisonError::into_inner);
        if *password != Some(request.into_inner().password) {
            return Err(Status::invalid_argument(
                "etcdserver: authentication failed, invalid user ID or password",
            ));
        }
        Ok(Response::new(AuthenticateResponse {
            token: "token".to_owned(),
            ..AuthenticateResponse::default()
        }))
    }
}

#[tonic::async_trait]
impl Lease for Service {
    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        let seconds = request.into_inner().ttl;
        let ttl = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        let service = self.clone();
        let grant = self.answer(Call::Grant, move |store| {
            let id = store.grant(ttl);
            service.expire_in_time(id, ttl);
            Ok(LeaseGrantResponse {
                header: store.header(),
                id,
                ttl: seconds,
                error: String::new(),
            })
        });
        grant.await.map(Response::new)
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let LeaseRevokeRequest { id } = request.into_inner();
        let revoke = self.answer(Call::Revoke, move |store| {
            if !store.revoke(id) {
                return Err(Status::not_found("etcdserver: requested lease not found"));
            }
            Ok(LeaseRevokeResponse {
                header: store.header(),
            })
        });
        revoke.await.map(Response::new)
    }

    type LeaseKeepAliveStream = Answers<LeaseKeepAliveResponse>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let asked = request.into_inner().message().await?;
        let id = asked
            .ok_or_else(|| Status::invalid_argument("no lease"))?
            .id;
        let kept = self.answer(Call::KeepAlive, move |store| {
            let left = store.keep_alive(id).unwrap_or_default();
            Ok(LeaseKeepAliveResponse {
                header: store.header(),
                id,
                ttl: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            })
        });
        let kept = kept.await?;
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(kept)))))
    }
}

#[tonic::async_trait]
impl Watch for Service {
    type WatchStream = Answers<WatchResponse>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let mut requests = request.into_inner();
        let asked = requests.message().await?;
        let Some(watch_request::RequestUnion::CreateRequest(create)) =
            asked.and_then(|asked| asked.request_union)
        else {
            return Err(Status::invalid_argument("no key to watch"));
        };
        self.answer(Call::Watch, |_| Ok(())).await?;
        let (answers, stream) = channel(16);
        let shared = self.0.clone();
        tokio::spawn(async move {
            let mut revisions = shared.revision.subscribe();
            let mut from = create.start_revision;
            let created = WatchResponse {
                created: true,
                ..WatchResponse::default()
            };
            let mut next = Some(created);
            loop {
                if let Some(answer) = next.take()
                    && answers.send(Ok(answer)).await.is_err()
                {
                    return;
                }
                let (events, revision) = {
                    let store = shared.store();
                    (store.events(&create.key, from), store.revision())
                };
                let Some(events) = events else {
                    let compacted = WatchResponse {
                        canceled: true,
                        compact_revision: revision,
                        ..WatchResponse::default()
                    };
                    let _gone = answers.send(Ok(compacted)).await;
                    return;
                };
                from = from.max(revision + 1);
                if !events.is_empty() {
                    next = Some(WatchResponse {
                        events,
                        ..WatchResponse::default()
                    });
                    continue;
                }
                tokio::select! {
                    changed = revisions.changed() => if changed.is_err() { return },
                    () = answers.closed() => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}
