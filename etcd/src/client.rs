//! The client: a channel to each endpoint, of which it uses one until a call fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::channel;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::api::auth_client::AuthClient;
use crate::api::kv_client::KvClient;
use crate::api::lease_client::LeaseClient;
use crate::api::watch_client::WatchClient;
use crate::api::{
    AuthenticateRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest,
    RangeRequest, RangeResponse, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest,
    watch_request,
};
use crate::error::Error;
use crate::settings::{Settings, SettingsError};
use crate::watch::Watch;

/// The largest accepted answer: a page of records.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// A connection to a cluster of etcd. Cheap to clone. Connects and reconnects by itself, with the certificates and the
/// password of that moment. After a call without an answer the next one goes to the next endpoint.
#[derive(Clone, Debug)]
pub struct Client {
    channels: Arc<[Channel]>,
    /// A counter; its remainder selects the endpoint.
    preferred: Arc<AtomicUsize>,
    settings: Arc<Settings>,
    /// The token that authenticates the user, once etcd has issued it.
    token: Arc<Mutex<Option<String>>>,
}

impl Client {
    /// Makes a client, which connects with its first call. Must be called within a runtime.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        Ok(Self {
            channels: settings.channels()?.into(),
            preferred: Arc::default(),
            settings: Arc::new(settings),
            token: Arc::default(),
        })
    }

    /// A client of one connection, without TLS or user.
    #[cfg(feature = "testing")]
    pub(crate) fn over(channel: Channel, call_timeout: Duration) -> Self {
        let settings = Settings {
            endpoints: Vec::new(),
            user: None,
            tls: None,
            call_timeout,
        };
        Self {
            channels: [channel].into(),
            preferred: Arc::default(),
            settings: Arc::new(settings),
            token: Arc::default(),
        }
    }

    /// Reads keys and values of a range.
    pub async fn range(&self, range: RangeRequest) -> Result<RangeResponse, Error> {
        self.call(range, |client, request| async move {
            let mut kv = KvClient::new(client).max_decoding_message_size(ANSWER_BYTES_MAX);
            kv.range(request).await
        })
        .await
    }

    /// Reads a range, asking each endpoint in turn until one answers.
    pub(crate) async fn range_from_any(&self, range: RangeRequest) -> Result<RangeResponse, Error> {
        let mut unanswered = 0;
        loop {
            match self.range(range.clone()).await {
                Err(Error::Unavailable(_)) if unanswered < self.endpoints() => unanswered += 1,
                answer => return answer,
            }
        }
    }

    /// Makes a transaction: all operations of one list or all of the other.
    pub async fn txn(&self, txn: TxnRequest) -> Result<TxnResponse, Error> {
        self.call(txn, |client, request| async move {
            let mut kv = KvClient::new(client).max_decoding_message_size(ANSWER_BYTES_MAX);
            kv.txn(request).await
        })
        .await
    }

    /// Creates a lease, which expires without a renewal within `ttl`.
    pub async fn grant(&self, ttl: Duration) -> Result<i64, Error> {
        let grant = LeaseGrantRequest {
            ttl: i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX),
            id: 0,
        };
        let granted = self.call(grant, |client, request| async move {
            LeaseClient::new(client).lease_grant(request).await
        });
        Ok(granted.await?.id)
    }

    /// Ends a lease and deletes its keys.
    pub async fn revoke(&self, id: i64) -> Result<(), Error> {
        let revoke = LeaseRevokeRequest { id };
        let revoked = self.call(revoke, |client, request| async move {
            LeaseClient::new(client).lease_revoke(request).await
        });
        revoked.await.map(drop)
    }

    /// Renews a lease for its whole time, counted from the moment when etcd accepts the request.
    pub async fn keep_alive(&self, id: i64) -> Result<(), Error> {
        let keep = self.call(LeaseKeepAliveRequest { id }, |client, request| async move {
            let (metadata, extensions, keep) = request.into_parts();
            let stream = tokio_stream::once(keep);
            let request = Request::from_parts(metadata, extensions, stream);
            let mut lease = LeaseClient::new(client);
            let response = lease.lease_keep_alive(request).await?;
            let (metadata, mut answers, extensions) = response.into_parts();
            let answer = answers.message().await?;
            let answer = answer.ok_or_else(|| Status::unavailable("no answer to a keepalive"))?;
            Ok(Response::from_parts(metadata, answer, extensions))
        });
        if keep.await?.ttl <= 0 {
            return Err(Error::LeaseGone);
        }
        Ok(())
    }

    /// Watches the changes of a key from a revision on.
    pub async fn watch(&self, key: &str, from_revision: i64) -> Result<Watch, Error> {
        let create = WatchCreateRequest {
            key: key.to_owned().into(),
            range_end: Vec::new().into(),
            start_revision: from_revision,
        };
        let create = WatchRequest {
            request_union: Some(watch_request::RequestUnion::CreateRequest(create)),
        };
        self.call(create, |client, request| async move {
            let (metadata, extensions, create) = request.into_parts();
            let (requests, receiver) = channel(1);
            if requests.try_send(create).is_err() {
                return Err(Status::internal("the watch's own queue is full"));
            }
            let stream = ReceiverStream::new(receiver);
            let request = Request::from_parts(metadata, extensions, stream);
            let response = WatchClient::new(client).watch(request).await?;
            let (metadata, responses, extensions) = response.into_parts();
            let watch = Watch {
                _requests: requests,
                responses,
                waiting: Vec::new(),
            };
            Ok(Response::from_parts(metadata, watch, extensions))
        })
        .await
    }

    /// Makes one call within its time; repeats it once when the token has expired.
    async fn call<M: Clone, A, F>(
        &self,
        message: M,
        send: impl Fn(Channel, Request<M>) -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let limit = self.settings.call_timeout;
        let used = self.preferred.load(Ordering::Relaxed);
        let channel = self.channel(used);
        let calls = async {
            let had = self.token(&channel).await?;
            let sent = Self::send(&channel, had.clone(), message.clone(), &send);
            match sent.await {
                Err(Error::Denied(_)) if had.is_some() => {
                    self.forget(had.as_deref());
                    let token = self.token(&channel).await?;
                    Self::send(&channel, token, message, &send).await
                }
                answer => answer,
            }
        };
        let answer = match tokio::time::timeout(limit, calls).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::Unavailable(format!("no answer within {limit:?}"))),
        };
        if matches!(answer, Err(Error::Unavailable(_))) {
            self.avoid(used);
        }
        answer
    }

    /// The number of endpoints.
    pub(crate) fn endpoints(&self) -> usize {
        self.channels.len()
    }

    fn channel(&self, used: usize) -> Channel {
        // The list is not empty: settings without endpoints are refused.
        self.channels[used % self.channels.len()].clone()
    }

    /// Turns to the next endpoint, unless another call has done so already.
    fn avoid(&self, used: usize) {
        let next = used.wrapping_add(1);
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        let _turned = self
            .preferred
            .compare_exchange(used, next, success, failure);
    }

    async fn send<M, A, F>(
        channel: &Channel,
        token: Option<String>,
        message: M,
        send: &impl Fn(Channel, Request<M>) -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        // A member that is cut off from the others then returns an error instead of answering alone.
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = token {
            let token = token.parse();
            let token = token.map_err(|_| Error::Denied("an unreadable token".to_owned()))?;
            metadata.insert("token", token);
        }
        let answer = send(channel.clone(), request).await?;
        Ok(answer.into_inner())
    }

    /// The token that authenticates the user, if there is a user.
    async fn token(&self, channel: &Channel) -> Result<Option<String>, Error> {
        let Some((name, password)) = &self.settings.user else {
            return Ok(None);
        };
        if let Some(token) = self.known_token().clone() {
            return Ok(Some(token));
        }
        let request = AuthenticateRequest {
            name: name.clone(),
            password: password.get(),
        };
        let mut auth = AuthClient::new(channel.clone());
        let token = auth.authenticate(request).await?.into_inner().token;
        *self.known_token() = Some(token.clone());
        Ok(Some(token))
    }

    fn forget(&self, token: Option<&str>) {
        let mut known = self.known_token();
        if known.as_deref() == token {
            *known = None;
        }
    }

    fn known_token(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
