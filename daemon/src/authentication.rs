//! Authentication of requests to a daemon's routes.
//!
//! [`Authentication::authenticate`] identifies the client, by certificate or basic authentication, and returns a [`Caller`]
//! whose [`Approver`] authorizes its actions; routes read it from the request's extensions. Invariant: an authenticated
//! realm accepts no unidentified client, and a call with credentials that are already verified costs no hash.

mod attempt_limiter;
mod authenticator;
pub(super) mod browser_check;
mod client_identity;
mod flags;
mod local_trust;
mod rules;
mod settings;
mod settings_error;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use meseta_access::browser::{self, Policy};
use meseta_access::{Acls, Action, Approver, Authorizer, Forbidden, basic};
use tokio_util::sync::CancellationToken;

use super::server::{Connection, Network, Peer};
use super::tls::{PeerCertificate, Served};
use attempt_limiter::Source;
use authenticator::CheckOutcome;
pub use browser_check::{Names, allow_cross_origin};
pub use client_identity::ClientIdentity;
pub use flags::RequestFlags;
pub use local_trust::ContainerSockets;
use local_trust::LocalTrust;
use rules::Rules;
pub use settings::{Settings, client_credential, fresh_key};
pub use settings_error::SettingsError;

/// An authentication realm, as in Mesos: the routes that require authentication together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Realm {
    /// Health and version, which are never authenticated.
    Open,
    /// Requests that only read.
    Readonly,
    /// Requests that change state.
    Readwrite,
    Scheduler,
    /// The registration and stream of agents.
    Agents,
    /// Executors, which have no credentials: a daemon that listens beyond loopback accepts them from its own
    /// machine only.
    Executor,
}

impl Realm {
    /// The suffix of the realm's name in Mesos, after the daemon's name.
    const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Readonly => "readonly",
            Self::Readwrite => "readwrite",
            Self::Scheduler => "scheduler",
            Self::Agents => "agent",
            Self::Executor => "executor",
        }
    }
}

/// The client of an accepted request.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    pub approver: Approver,
    /// The client's TLS certificate.
    pub certificate: Option<Arc<PeerCertificate>>,
    pub address: Option<SocketAddr>,
    /// The connection of the call; `None` in tests of routes.
    pub connection: Option<Connection>,
    /// The container of the executor; containers nested in it are its own.
    pub container: Option<String>,
    /// The local user of a scheduler without a principal; `None` for a remote scheduler.
    pub user: Option<LocalUser>,
    /// The local user who opened the connection, if the kernel knows it.
    pub uid: Option<u32>,
}

/// The local user who opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalUser {
    Id(u32),
    /// The kernel does not report the owner.
    Unknown,
}

impl Caller {
    /// Returns the caller for an executor, which may only act on containers nested in its own.
    #[must_use]
    pub fn of_executor(container: String, address: Option<SocketAddr>) -> Self {
        Self {
            approver: Authorizer::new(Acls::default(), false).approver(None),
            certificate: None,
            address,
            connection: None,
            container: Some(container),
            user: None,
            uid: None,
        }
    }

    #[must_use]
    pub fn principal(&self) -> Option<&str> {
        self.approver.principal()
    }

    /// Returns the group whose quota this caller uses: its principal, else its local user, else its network. No principal
    /// has a name of the other two forms.
    #[must_use]
    pub fn group(&self) -> String {
        self.owned_principal().unwrap_or_else(|| self.origin())
    }

    /// Returns the group by the client's machine, so that machines with one principal are separate groups.
    #[must_use]
    pub fn host(&self) -> String {
        let certificate = self.certificate.as_ref();
        let name = certificate.and_then(|certificate| certificate.principal());
        name.unwrap_or_else(|| self.origin())
    }

    fn origin(&self) -> String {
        match (self.uid, self.address) {
            (Some(uid), _) => format!("user {uid}"),
            (None, Some(address)) => format!("network {}", Network::from_address(address.ip())),
            (None, None) => String::new(),
        }
    }

    /// Returns the principal as an owned string.
    #[must_use]
    pub fn owned_principal(&self) -> Option<String> {
        self.principal().map(str::to_owned)
    }

    pub fn check(&self, action: Action, object: Option<&str>) -> Result<(), Forbidden> {
        self.approver.check(action, object)
    }

    /// Writes one line of the audit log: principal, call, object and result of a change. `name` is the call, `object` its
    /// object, `result` the first words of the answer.
    pub fn audit(&self, name: &str, object: &str, result: &str) {
        tracing::info!(
            target: "audit",
            principal = self.principal().unwrap_or("-"),
            address = %self.address.map_or_else(|| "-".to_owned(), |address| address.to_string()),
            call = name,
            object,
            result,
            "change"
        );
    }
}

/// The reason why a request was not authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthenticationError {
    /// Credentials are missing or wrong.
    Unauthorized { challenge: String },
    /// Too many wrong secrets came from this source.
    TooMany,
    /// Too many credentials are being checked.
    Busy,
    /// A refusal for a reason other than credentials, given by the text.
    Forbidden(&'static str),
    /// A browser sent the request for a page whose origin is not allowed.
    Page(browser::BlockedRequest),
}

impl AuthenticationError {
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::Page(browser::BlockedRequest::Host(_)) => StatusCode::MISDIRECTED_REQUEST,
            Self::Page(_) => StatusCode::FORBIDDEN,
            Self::Unauthorized { .. } => StatusCode::UNAUTHORIZED,
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
        }
    }

    #[must_use]
    pub fn text(&self) -> Cow<'static, str> {
        let text = match self {
            Self::Page(refused) => return refused.to_string().into(),
            Self::Unauthorized { .. } => "401 Unauthorized.",
            Self::TooMany => "Too many wrong credentials came from this address; try again later",
            Self::Busy => "Too many credentials are being checked; try again",
            Self::Forbidden(why) => why,
        };
        Cow::Borrowed(text)
    }

    /// Returns the response to an HTTP request.
    #[must_use]
    pub fn response(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.text().into_owned()));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        let plain = HeaderValue::from_static("text/plain; charset=utf-8");
        headers.insert(header::CONTENT_TYPE, plain);
        match self {
            Self::Unauthorized { challenge } => {
                if let Ok(challenge) = HeaderValue::from_str(challenge) {
                    headers.insert(header::WWW_AUTHENTICATE, challenge);
                }
            }
            Self::TooMany | Self::Busy => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Self::Forbidden(_) | Self::Page(_) => {}
        }
        response
    }

    /// Returns the status of the gRPC response.
    #[must_use]
    pub fn status_of_grpc(&self) -> tonic::Status {
        let text = self.text();
        match self {
            Self::Unauthorized { .. } => tonic::Status::unauthenticated(text),
            Self::TooMany => tonic::Status::resource_exhausted(text),
            Self::Busy => tonic::Status::unavailable(text),
            Self::Forbidden(_) | Self::Page(_) => tonic::Status::permission_denied(text),
        }
    }
}

/// The permissions of any principal, by the current rules. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Approvers(Arc<Rules>);

impl Approvers {
    /// Returns the rights of a principal.
    #[must_use]
    pub fn of_principal(&self, principal: Option<String>) -> Approver {
        self.0.authorizer().approver(principal)
    }
}

/// The authentication rules of one daemon.
#[derive(Debug)]
pub struct Authentication {
    /// The daemon, `master` or `agent`, for the names of realms.
    daemon: &'static str,
    rules: Arc<Rules>,
    authenticated: Vec<Realm>,
    /// Whether the daemon listens beyond loopback.
    exposed: bool,
    /// Whether connections must be encrypted.
    encrypted: bool,
    /// Whether agents must present a certificate.
    certified_agents: bool,
    /// Paths disabled by `--firewall_rules`.
    disabled: Vec<String>,
    /// The rules for requests from browsers.
    pages: Policy,
    /// The served certificate, whose names are the daemon's own.
    certificate: Option<Arc<Served>>,
    /// The local users who are trusted without credentials.
    local_trust: LocalTrust,
}

impl Authentication {
    /// Returns the permissions of any principal, by the current rules.
    #[must_use]
    pub fn approvers(&self) -> Approvers {
        Approvers(Arc::clone(&self.rules))
    }

    /// Returns an authentication without any requirement: Mesos's defaults, for loopback and tests.
    #[must_use]
    pub fn not_required(daemon: &'static str) -> Self {
        Self {
            daemon,
            rules: Arc::new(Rules::none()),
            authenticated: Vec::new(),
            exposed: false,
            encrypted: false,
            certified_agents: false,
            disabled: Vec::new(),
            pages: Policy::default(),
            certificate: None,
            local_trust: LocalTrust::default(),
        }
    }

    /// Returns the end of the served certificate, since the Unix epoch; `None` without TLS.
    #[must_use]
    pub fn certificate_end(&self) -> Option<Duration> {
        self.certificate.as_ref()?.end()
    }

    /// Sets how sockets of containers are recognized, once the containerizer runs.
    pub fn set_container_sockets(&self, container_sockets: Arc<dyn ContainerSockets>) {
        self.local_trust.set_container_sockets(container_sockets);
    }

    /// Whether a caller is root or the daemon's own user, on this machine and in no container.
    pub async fn trusts(&self, peer: &Peer) -> bool {
        self.local_trust.trusts(peer).await
    }

    /// Reloads changed credential and ACL files until `shutdown`. A request that is already authenticated keeps the
    /// rules that were in force then.
    pub fn watch(
        &self,
        interval: Duration,
        shutdown: CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<> {
        let rules = self.rules.clone();
        async move { rules.follow(interval, shutdown).await }
    }

    /// Whether a path was disabled by `--firewall_rules`.
    #[must_use]
    pub fn is_disabled(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.disabled.iter().any(|shut| shut == path)
    }

    /// Authenticates a request. `peer` is the peer of its connection, if any.
    pub async fn authenticate(
        &self,
        realm: Realm,
        headers: &HeaderMap,
        peer: Option<&Peer>,
    ) -> Result<Caller, AuthenticationError> {
        if realm == Realm::Executor {
            return self.authenticate_executor(peer);
        }
        if self.encrypted && peer.is_some_and(|peer| !peer.encrypted) {
            return Err(AuthenticationError::Forbidden(
                "This port speaks TLS: use https://",
            ));
        }
        let certificate = peer.and_then(|peer| peer.certificate.clone());
        if realm == Realm::Agents && self.certified_agents && certificate.is_none() {
            return Err(AuthenticationError::Forbidden(
                "Agents must show a certificate here: give the agent --ssl_cert_file and \
                 --ssl_key_file",
            ));
        }
        let principal = if self.authenticated.contains(&realm)
            || self.must_authenticate(realm, headers, peer).await?
        {
            Some(self.identify(realm, headers, peer).await?)
        } else {
            None
        };
        if let (Some(peer), Some(name)) = (peer, &principal) {
            peer.set_principal(name);
        }
        let is_nameless = realm == Realm::Scheduler && principal.is_none();
        let local = peer.filter(|peer| principal.is_none() && peer.is_local());
        let uid = local.and_then(Peer::owner).map(|owner| owner.uid);
        let user = local.filter(|_| is_nameless);
        let user = user.map(|_| uid.map_or(LocalUser::Unknown, LocalUser::Id));
        Ok(Caller {
            approver: self.rules.authorizer().approver(principal),
            certificate,
            address: peer.map(|peer| peer.address),
            connection: peer.map(Peer::connection),
            container: None,
            user,
            uid,
        })
    }

    /// Whether a local client must authenticate in a realm that requires no authentication otherwise; an error if no
    /// credentials are configured.
    async fn must_authenticate(
        &self,
        realm: Realm,
        headers: &HeaderMap,
        peer: Option<&Peer>,
    ) -> Result<bool, AuthenticationError> {
        let Some(peer) = peer.filter(|_| self.local_trust.is_enforced_in(realm)) else {
            return Ok(false);
        };
        if self.local_trust.trusts(peer).await {
            return Ok(false);
        }
        let says = headers.contains_key(header::AUTHORIZATION) || peer.certificate.is_some();
        if says || self.rules.authenticator.is_some() {
            return Ok(true);
        }
        Err(AuthenticationError::Forbidden(
            local_trust::UNTRUSTED_LOCAL_USER,
        ))
    }

    fn authenticate_executor(&self, peer: Option<&Peer>) -> Result<Caller, AuthenticationError> {
        if self.exposed && peer.is_some_and(|peer| !peer.is_local()) {
            return Err(AuthenticationError::Forbidden(
                "Executors are taken from this machine only",
            ));
        }
        Ok(Caller {
            approver: Approver::default(),
            certificate: None,
            address: peer.map(|peer| peer.address),
            connection: peer.map(Peer::connection),
            container: None,
            user: None,
            uid: None,
        })
    }

    async fn identify(
        &self,
        realm: Realm,
        headers: &HeaderMap,
        peer: Option<&Peer>,
    ) -> Result<String, AuthenticationError> {
        let unauthorized = || AuthenticationError::Unauthorized {
            challenge: basic::challenge(&format!("mesos-{}-{}", self.daemon, realm.name())),
        };
        let given = headers.get(header::AUTHORIZATION);
        let Some(given) = given else {
            let certificate = peer.and_then(|peer| peer.certificate.as_ref());
            let principal = certificate.and_then(|certificate| self.certified(certificate));
            return principal.ok_or_else(unauthorized);
        };
        let claim = basic::claim(given.as_bytes()).ok_or_else(unauthorized)?;
        let authenticator = self.rules.authenticator.as_ref();
        let authenticator = authenticator.ok_or_else(unauthorized)?;
        match authenticator.check(&claim, peer.map(source)).await {
            CheckOutcome::Known => Ok(claim.principal),
            CheckOutcome::Unknown => Err(unauthorized()),
            CheckOutcome::TooMany => Err(AuthenticationError::TooMany),
            CheckOutcome::Busy => Err(AuthenticationError::Busy),
        }
    }

    /// Returns the principal that a certificate names. A principal without credentials is rejected, with a certificate as
    /// with a secret.
    fn certified(&self, certificate: &PeerCertificate) -> Option<String> {
        let Some(named) = certificate.named_principal() else {
            return certificate.principal();
        };
        let authenticator = self.rules.authenticator.as_ref();
        authenticator
            .is_none_or(|authenticator| authenticator.has(&named))
            .then_some(named)
    }
}

/// Returns the verified source of a claim.
fn source(peer: &Peer) -> Source {
    let certificate = peer.certificate.as_ref();
    if let Some(name) = certificate.and_then(|certificate| certificate.principal()) {
        return Source::Certificate(name);
    }
    match peer.owner().filter(|_| peer.is_local()) {
        Some(owner) => Source::User(owner.uid),
        None => Source::Network(Network::from_address(peer.address.ip())),
    }
}

#[cfg(test)]
mod tests;
