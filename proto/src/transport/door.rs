//! The door in front of a daemon's routes: who is asking, and may he come in at all.
//!
//! [`Door::enter`] finds out who is asking, by certificate or by basic authentication, and gives a [`Caller`]
//! whose [`Approver`] decides what he may do; routes take it from the request's extensions. Invariant: in a
//! realm that is authenticated nobody comes in unknown, and a call by somebody known costs no hash.

mod authenticator;
mod guesses;
mod neighbors;
mod rules;
pub(super) mod screen;
mod settings;

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
use authenticator::Verdict;
use guesses::Source;
pub use neighbors::Confinement;
use neighbors::Neighbors;
use rules::Rules;
pub use screen::{Names, share};
pub use settings::{DoorError, Settings, client_credential, fresh_key};

/// A part of a daemon that is authenticated, or not, as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Realm {
    /// Tells nothing that matters: never authenticated.
    Open,
    /// Looks at something.
    Readonly,
    /// Changes something.
    Readwrite,
    /// Schedulers of frameworks.
    Scheduler,
    /// Agents that join.
    Agents,
    /// Executors, which know nothing to say who they are by: an exposed daemon takes them from its own
    /// machine only.
    Executor,
}

impl Realm {
    /// As Mesos calls it behind the daemon's name.
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

/// Somebody who came in.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    pub approver: Approver,
    /// What he has shown of himself, over TLS.
    pub certificate: Option<Arc<PeerCertificate>>,
    pub address: Option<SocketAddr>,
    /// What the call came over; none in tests of routes.
    pub connection: Option<Connection>,
    /// The container of the executor that it is, whose nested containers are its own.
    pub container: Option<String>,
    /// The user of this machine that a scheduler runs as which says no name; none of one on another machine.
    pub user: Option<LocalUser>,
    /// The user of this machine who opened the connection, where the kernel tells.
    pub uid: Option<u32>,
}

/// Who opened a connection on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalUser {
    Id(u32),
    /// The kernel does not tell.
    Unknown,
}

impl Caller {
    /// An executor, which may do nothing but with what is nested in its container.
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

    /// Whose name he has proven to bear.
    #[must_use]
    pub fn principal(&self) -> Option<&str> {
        self.approver.principal()
    }

    /// With whom it shares what there is of room: its principal, or else its user of this machine, or else its
    /// network. No principal is called as one of the others.
    #[must_use]
    pub fn group(&self) -> String {
        self.owned_principal().unwrap_or_else(|| self.origin())
    }

    /// The same by the machine that it calls from, which others of its principal may not.
    #[must_use]
    pub fn host(&self) -> String {
        let certificate = self.certificate.as_ref();
        let name = certificate.and_then(|certificate| certificate.principal());
        name.unwrap_or_else(|| self.origin())
    }

    fn origin(&self) -> String {
        match (self.uid, self.address) {
            (Some(uid), _) => format!("user {uid}"),
            (None, Some(address)) => format!("network {}", Network::of(address.ip())),
            (None, None) => String::new(),
        }
    }

    /// The same, to be kept.
    #[must_use]
    pub fn owned_principal(&self) -> Option<String> {
        self.principal().map(str::to_owned)
    }

    pub fn check(&self, action: Action, object: Option<&str>) -> Result<(), Forbidden> {
        self.approver.check(action, object)
    }

    /// One line of the audit log: who wanted to change what, and what came of it. `name` is the call's,
    /// `object` what it was about, `result` an answer's first words.
    pub fn audit(&self, name: &str, object: &str, result: &str) {
        const OBJECT_CHARS_MAX: usize = 256;
        let object: String = object.chars().take(OBJECT_CHARS_MAX).collect();
        tracing::info!(
            target: "audit",
            principal = self.principal().unwrap_or("-"),
            address = %self.address.map_or_else(|| "-".to_owned(), |address| address.to_string()),
            call = name,
            object = %object.escape_debug(),
            result = %result.escape_debug(),
            "change"
        );
    }
}

/// Why somebody did not come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turned {
    /// He has not said who he is, or not truthfully.
    Unauthorized { challenge: String },
    /// Too many wrong secrets come from there.
    TooMany,
    /// Too many are being asked who they are.
    Busy,
    /// A door that opens from inside only.
    Forbidden(&'static str),
    /// A browser sent it for a page that may not.
    Page(browser::Refused),
}

impl Turned {
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::Page(browser::Refused::Host(_)) => StatusCode::MISDIRECTED_REQUEST,
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

    /// The answer to an HTTP request.
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

    /// The answer to a gRPC call.
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

/// A daemon's door.
#[derive(Debug)]
pub struct Door {
    /// `master` or `agent`, for the names of realms.
    daemon: &'static str,
    rules: Arc<Rules>,
    authenticated: Vec<Realm>,
    /// Everybody on a network can knock.
    exposed: bool,
    /// Connections are to be encrypted.
    encrypted: bool,
    /// Agents have to show a certificate.
    certified_agents: bool,
    /// Paths that are shut, as Mesos's firewall has them.
    disabled: Vec<String>,
    /// What browsers may send.
    pages: Policy,
    /// What is served, which names this daemon.
    certificate: Option<Arc<Served>>,
    /// Who counts as nobody in particular on this machine.
    neighbors: Neighbors,
}

impl Door {
    /// One that stands open: Mesos's defaults, for loopback and tests.
    #[must_use]
    pub fn open(daemon: &'static str) -> Self {
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
            neighbors: Neighbors::default(),
        }
    }

    /// Tells callers in containers from others, once containers are known.
    pub fn confine(&self, confinement: Arc<dyn Confinement>) {
        self.neighbors.confine(confinement);
    }

    /// Whether a caller is root or the daemon's own user, on this machine and in no container.
    pub async fn trusts(&self, peer: &Peer) -> bool {
        self.neighbors.trusts(peer).await
    }

    /// Takes changed files of credentials and ACLs over, until `shutdown`. Whoever came in before goes by
    /// the rules that he came in by.
    pub fn watch(
        &self,
        interval: Duration,
        shutdown: CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<> {
        let rules = self.rules.clone();
        async move { rules.follow(interval, shutdown).await }
    }

    /// Whether a path was shut by `--firewall_rules`.
    #[must_use]
    pub fn is_disabled(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.disabled.iter().any(|shut| shut == path)
    }

    /// Lets somebody in, or says why not. `peer` is the connection's, where there is one.
    pub async fn enter(
        &self,
        realm: Realm,
        headers: &HeaderMap,
        peer: Option<&Peer>,
    ) -> Result<Caller, Turned> {
        if realm == Realm::Executor {
            return self.enter_executor(peer);
        }
        if self.encrypted && peer.is_some_and(|peer| !peer.encrypted) {
            return Err(Turned::Forbidden("This port speaks TLS: use https://"));
        }
        let certificate = peer.and_then(|peer| peer.certificate.clone());
        if realm == Realm::Agents && self.certified_agents && certificate.is_none() {
            return Err(Turned::Forbidden(
                "Agents must show a certificate here: give the agent --ssl_cert_file and \
                 --ssl_key_file",
            ));
        }
        let principal = if self.authenticated.contains(&realm)
            || self.is_stranger(realm, headers, peer).await?
        {
            Some(self.identify(realm, headers, peer).await?)
        } else {
            None
        };
        if let (Some(peer), Some(_)) = (peer, &principal) {
            peer.introduced();
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

    /// Whether somebody on this machine has to say who he is in a realm that asks nobody else; refused if
    /// nobody could.
    async fn is_stranger(
        &self,
        realm: Realm,
        headers: &HeaderMap,
        peer: Option<&Peer>,
    ) -> Result<bool, Turned> {
        let Some(peer) = peer.filter(|_| self.neighbors.are_asked_in(realm)) else {
            return Ok(false);
        };
        if self.neighbors.trusts(peer).await {
            return Ok(false);
        }
        let says = headers.contains_key(header::AUTHORIZATION) || peer.certificate.is_some();
        if says || self.rules.authenticator.is_some() {
            return Ok(true);
        }
        Err(Turned::Forbidden(neighbors::STRANGER))
    }

    fn enter_executor(&self, peer: Option<&Peer>) -> Result<Caller, Turned> {
        if self.exposed && peer.is_some_and(|peer| !peer.is_local()) {
            return Err(Turned::Forbidden(
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
    ) -> Result<String, Turned> {
        let unauthorized = || Turned::Unauthorized {
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
            Verdict::Known => Ok(claim.principal),
            Verdict::Unknown => Err(unauthorized()),
            Verdict::TooMany => Err(Turned::TooMany),
            Verdict::Busy => Err(Turned::Busy),
        }
    }

    /// Whom a certificate stands for here. A principal that is not, or no longer, among the credentials is nobody, with
    /// a certificate as with a secret.
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

/// Where a claim comes from, as far as it is proven.
fn source(peer: &Peer) -> Source {
    let certificate = peer.certificate.as_ref();
    if let Some(name) = certificate.and_then(|certificate| certificate.principal()) {
        return Source::Certificate(name);
    }
    match peer.owner().filter(|_| peer.is_local()) {
        Some(owner) => Source::User(owner.uid),
        None => Source::Network(Network::of(peer.address.ip())),
    }
}

#[cfg(test)]
mod tests;
