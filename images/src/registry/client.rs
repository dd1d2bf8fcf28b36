//! Requests to a registry, with authentication, redirects, mirrors and repeated attempts.
//!
//! Entered through [`RegistryClient::repository`]. Invariant: only the registry's own answers are challenges; an answer of a redirect's
//! target never causes authentication.

use std::fmt;
use std::io::Read as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ureq::http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HeaderName, LOCATION, RANGE, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use ureq::http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use ureq::{Agent, Body};

use super::blob::BlobReader;
use super::challenge::{Challenge, TokenAnswer, check_realm, choose_scope};
use super::endpoint::{Endpoint, RegistrySettings, authority, check_redirect, is_same_origin};
use super::error::{Cause, Prospect, RegistryError, explain};
use super::retry::{Retry, parse_retry_after};
use crate::activity::Activity;
use crate::credentials::{Credential, Credentials};
use crate::descriptor::{BlobDescriptor, Digest, Hasher};
use crate::manifest::{self, MANIFEST_BYTES_MAX};
use crate::reference::Reference;
use crate::wait::{Cancel, Clock};

/// Redirects of one request.
const REDIRECTS_MAX: usize = 5;
/// Bytes of an error's body, or of a token service's answer.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// Connections that wait for the next request: one a layer.
const IDLE_CONNECTIONS_MAX: usize = 16;
/// A token is replaced this long before its end, for the time of the request.
const TOKEN_MARGIN: Duration = Duration::from_secs(5);
/// The longest use of a token, whatever its issuer says.
const TOKEN_LIFE_MAX: Duration = Duration::from_secs(24 * 3600);
const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
const USER_AGENT: &str = concat!("meseta/", env!("CARGO_PKG_VERSION"));

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// The time for a name lookup, and again for the connection.
    pub connect: Duration,
    /// The time until an answer begins.
    pub answer: Duration,
    /// The time for the whole body of a manifest or a token.
    pub document: Duration,
    /// The time in which no byte arrives.
    pub stall: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(15),
            answer: Duration::from_secs(60),
            document: Duration::from_secs(60),
            stall: Duration::from_secs(30),
        }
    }
}

/// The settings of a client.
#[derive(Clone, Debug, Default)]
pub struct RegistryOptions {
    pub settings: RegistrySettings,
    pub timeouts: Timeouts,
}

/// A client of all registries.
#[derive(Debug)]
pub struct RegistryClient {
    settings: RegistrySettings,
    timeouts: Timeouts,
    /// For `http://`: each scheme has its own proxy.
    plain: Agent,
    secure: Agent,
    clock: Arc<dyn Clock>,
}

impl RegistryClient {
    /// Makes a client that uses the proxies of the environment (`http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`). Fails if
    /// such a proxy is unusable.
    pub fn new(options: RegistryOptions, clock: Arc<dyn Clock>) -> Result<Self, Cause> {
        Self::with_variables(options, |name| std::env::var(name).ok(), clock)
    }

    /// Makes a client with the given variables in place of the environment.
    pub(super) fn with_variables(
        options: RegistryOptions,
        variable: impl Fn(&str) -> Option<String>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Cause> {
        Ok(Self {
            plain: make_agent(&options.timeouts, find_proxy("http", &variable)?),
            secure: make_agent(&options.timeouts, find_proxy("https", &variable)?),
            settings: options.settings,
            timeouts: options.timeouts,
            clock,
        })
    }

    /// Returns the view of one pull.
    pub fn repository(
        self: &Arc<Self>,
        reference: &Reference,
        credentials: Credentials,
        cancel: Cancel,
    ) -> Result<Arc<Repository>, RegistryError> {
        let endpoints = self.settings.endpoints(reference.registry());
        let endpoints = endpoints.map_err(|why| RegistryError {
            operation: "find the servers".to_owned(),
            image: reference.to_string(),
            host: reference.registry().to_owned(),
            cause: Box::new(Cause::Settings(why)),
        })?;
        let endpoints = endpoints.into_iter().map(|endpoint| Server {
            endpoint,
            authorization: Mutex::new(Authorization::default()),
        });
        Ok(Arc::new(Repository {
            client: self.clone(),
            reference: reference.clone(),
            servers: endpoints.collect(),
            credentials,
            cancel,
        }))
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }
}

fn make_agent(timeouts: &Timeouts, proxy: Option<ureq::Proxy>) -> Agent {
    let tls = ureq::tls::TlsConfig::builder()
        .root_certs(ureq::tls::RootCerts::PlatformVerifier)
        .build();
    let config = Agent::config_builder()
        .user_agent(USER_AGENT)
        .timeout_resolve(Some(timeouts.connect))
        .timeout_connect(Some(timeouts.connect))
        .timeout_recv_response(Some(timeouts.answer))
        .timeout_per_read(Some(timeouts.stall))
        .timeout_per_write(Some(timeouts.stall))
        .max_redirects(0)
        .max_redirects_will_error(false)
        .max_idle_connections(IDLE_CONNECTIONS_MAX)
        .max_idle_connections_per_host(IDLE_CONNECTIONS_MAX)
        .http_status_as_error(false)
        .tls_config(tls)
        .proxy(proxy)
        .build();
    Agent::new_with_config(config)
}

/// Returns the proxy of the environment for a scheme. Lower-case names come first, as curl has it. An unusable proxy is an
/// error, so that no request bypasses the operator's proxy.
fn find_proxy(
    scheme: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<ureq::Proxy>, Cause> {
    let find = |name: &str| {
        let values = [name.to_owned(), name.to_ascii_uppercase()]
            .into_iter()
            .filter_map(|name| variable(&name));
        values
            .map(|value| value.trim().to_owned())
            .find(|value| !value.is_empty())
    };
    let name = format!("{scheme}_proxy");
    let Some(address) = find(&name).or_else(|| find("all_proxy")) else {
        return Ok(None);
    };
    // The address may contain a password.
    let unusable = || {
        Cause::Settings(format!(
            "the proxy in {name} (or all_proxy) is unusable: expected http://HOST:PORT"
        ))
    };
    let parsed = ureq::Proxy::new(&address).map_err(|_| unusable())?;
    let protocol = parsed.protocol();
    if !matches!(
        protocol,
        ureq::ProxyProtocol::Http | ureq::ProxyProtocol::Https
    ) {
        return Err(unusable());
    }
    let mut builder = ureq::Proxy::builder(protocol)
        .host(parsed.host())
        .port(parsed.port());
    if let Some(user) = parsed.username() {
        builder = builder.username(user);
    }
    if let Some(password) = parsed.password() {
        builder = builder.password(password);
    }
    for host in find("no_proxy").unwrap_or_default().split([',', ' ']) {
        if !host.is_empty() {
            builder = builder.no_proxy(host);
        }
    }
    builder.build().map(Some).map_err(|_| unusable())
}

/// A server of the registry, with the authorization that it accepted last.
#[derive(Debug)]
struct Server {
    endpoint: Endpoint,
    authorization: Mutex<Authorization>,
}

/// The value of `Authorization` for a server.
#[derive(Default)]
struct Authorization {
    header: Option<String>,
    expires: Option<Instant>,
}

impl fmt::Debug for Authorization {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Authorization({})", self.header.is_some())
    }
}

/// A manifest or an index as the registry sent it, with its digest checked.
#[derive(Clone, Debug)]
pub struct FetchedManifest {
    pub bytes: Vec<u8>,
    pub media_type: String,
    pub digest: Digest,
}

/// A repository as a single pull sees it.
#[derive(Debug)]
pub struct Repository {
    client: Arc<RegistryClient>,
    reference: Reference,
    /// Mirrors first.
    servers: Vec<Server>,
    credentials: Credentials,
    cancel: Cancel,
}

/// A request, the same at each server.
#[derive(Debug)]
pub(super) struct Ask {
    method: Method,
    /// The path below `/v2/NAME/`.
    path: String,
    accept: Option<&'static str>,
    /// The first byte to send.
    pub(super) start: u64,
    /// The operation in messages: a verb and its object.
    operation: String,
    /// Whether the body is small and must arrive within the time of a document.
    is_document: bool,
}

impl Ask {
    pub(super) fn for_blob(blob: &BlobDescriptor, operation: String) -> Self {
        Self {
            method: Method::GET,
            path: format!("blobs/{}", blob.digest),
            accept: None,
            start: 0,
            operation,
            is_document: false,
        }
    }
}

impl Repository {
    pub fn reference(&self) -> &Reference {
        &self.reference
    }

    pub(super) fn client(&self) -> &RegistryClient {
        &self.client
    }

    pub(super) fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Returns the digest of the manifest that the reference names now, by a `HEAD` request, which registries do not count
    /// as a pull. `None` if the registry does not tell.
    pub fn head(&self, activity: &Activity) -> Result<Option<Digest>, RegistryError> {
        let ask = Ask {
            method: Method::HEAD,
            path: format!("manifests/{}", self.reference.selector()),
            accept: Some(manifest::ACCEPT),
            start: 0,
            operation: "look up the manifest".to_owned(),
            is_document: true,
        };
        let answered = self.perform_with(&ask, activity, |response| {
            let digest = response.headers().get(CONTENT_DIGEST);
            let digest = digest.and_then(|value| value.to_str().ok());
            Ok(digest.and_then(|text| Digest::parse(text).ok()))
        });
        match answered {
            Err(error) if matches!(error.cause(), Cause::Status { status, .. } if *status == StatusCode::METHOD_NOT_ALLOWED) => {
                Ok(None)
            }
            other => other,
        }
    }

    /// Downloads the manifest that the reference names, or the one with this digest.
    pub fn manifest(
        &self,
        digest: Option<&Digest>,
        activity: &Activity,
    ) -> Result<FetchedManifest, RegistryError> {
        let selector = digest.map_or_else(|| self.reference.selector(), Digest::to_string);
        let expected = digest.or(self.reference.digest());
        let ask = Ask {
            method: Method::GET,
            path: format!("manifests/{selector}"),
            accept: Some(manifest::ACCEPT),
            start: 0,
            operation: "download the manifest".to_owned(),
            is_document: true,
        };
        self.perform_with(&ask, activity, |response| {
            let text = |name: HeaderName| {
                let value = response.headers().get(name);
                value
                    .and_then(|value| value.to_str().ok())
                    .unwrap_or_default()
                    .to_owned()
            };
            let (media_type, told) = (text(CONTENT_TYPE), text(CONTENT_DIGEST));
            let told = Digest::parse(&told).ok();
            let bytes = read_limited(response, MANIFEST_BYTES_MAX)?;
            activity.record_bytes(bytes.len() as u64);
            let digest = check_document(&bytes, expected.or(told.as_ref()))?;
            Ok(FetchedManifest {
                bytes,
                media_type,
                digest,
            })
        })
    }

    /// Downloads a small blob whole: the configuration.
    pub fn document(
        &self,
        blob: &BlobDescriptor,
        limit: u64,
        activity: &Activity,
    ) -> Result<Vec<u8>, RegistryError> {
        let mut ask = Ask::for_blob(blob, "download the configuration".to_owned());
        ask.is_document = true;
        if blob.size > limit {
            return Err(self.fail(&ask, None, Cause::TooLarge { limit }));
        }
        self.perform_with(&ask, activity, |response| {
            let bytes = read_limited(response, limit)?;
            activity.record_bytes(bytes.len() as u64);
            check_document(&bytes, Some(&blob.digest))?;
            Ok(bytes)
        })
    }

    /// Returns a reader of a blob, which opens its connection at the first read and continues after a cut.
    pub fn blob(self: &Arc<Self>, blob: &BlobDescriptor, activity: Arc<Activity>) -> BlobReader {
        BlobReader::new(self.clone(), blob.clone(), activity)
    }

    pub(super) fn fail(&self, ask: &Ask, server: Option<usize>, cause: Cause) -> RegistryError {
        let server = server.and_then(|index| self.servers.get(index));
        RegistryError {
            operation: ask.operation.clone(),
            image: self.reference.to_string(),
            host: server.map_or_else(
                || self.reference.registry().to_owned(),
                |server| authority(&server.endpoint.base),
            ),
            cause: Box::new(cause),
        }
    }

    pub(super) fn server_count(&self) -> usize {
        self.servers.len()
    }

    /// Sends a request to each server until one answers and its answer can be read.
    fn perform_with<T>(
        &self,
        ask: &Ask,
        activity: &Activity,
        mut read: impl FnMut(Response<Body>) -> Result<T, Cause>,
    ) -> Result<T, RegistryError> {
        let mut failure = None;
        for index in 0..self.servers.len() {
            let is_last = index + 1 == self.servers.len();
            let mut retry = if is_last {
                Retry::new()
            } else {
                Retry::with_one_attempt()
            };
            loop {
                let outcome = self.attempt(index, ask).and_then(&mut read);
                let cause = match outcome {
                    Ok(value) => return Ok(value),
                    Err(cause) => cause,
                };
                match self.wait_to_retry(&cause, &mut retry, activity) {
                    Ok(true) => {}
                    Ok(false) => {
                        let is_final = cause.prospect() == Prospect::Never;
                        let error = self.fail(ask, Some(index), cause);
                        if is_final {
                            return Err(error);
                        }
                        failure = Some(error);
                        break;
                    }
                    Err(cancelled) => return Err(self.fail(ask, Some(index), cancelled)),
                }
            }
        }
        Err(failure.unwrap_or_else(|| self.fail(ask, None, Cause::NotFound)))
    }

    /// Waits if a failed request should be repeated at the same server. Returns false if it should not.
    pub(super) fn wait_to_retry(
        &self,
        cause: &Cause,
        retry: &mut Retry,
        activity: &Activity,
    ) -> Result<bool, Cause> {
        let Prospect::Later(retry_after) = cause.prospect() else {
            return Ok(false);
        };
        let Some(wait) = retry.after_failure(retry_after, fastrand::f64()) else {
            return Ok(false);
        };
        let seconds = wait.as_secs_f64();
        activity.set_wait(Some(format!(
            "waiting {seconds:.0} s before the next attempt: {}",
            Chain(cause)
        )));
        let waited = self.client.clock.wait(wait, &self.cancel);
        activity.set_wait(None);
        waited?;
        Ok(true)
    }

    /// Sends a request once, and once more after authentication. Returns an answer of success.
    pub(super) fn attempt(&self, server: usize, ask: &Ask) -> Result<Response<Body>, Cause> {
        let Some(server) = self.servers.get(server) else {
            return Err(Cause::NotFound);
        };
        let mut is_second = false;
        loop {
            self.cancel.check()?;
            let sent = self.current_authorization(server);
            let (response, is_own) = self.send(server, ask, sent.as_deref())?;
            let status = response.status();
            if status == StatusCode::UNAUTHORIZED && is_own && !is_second {
                is_second = true;
                let headers = response.headers().clone();
                let _ = read_limited(response, ANSWER_BYTES_MAX);
                self.authenticate(server, &headers, sent.as_deref())?;
                continue;
            }
            return match status.is_success() {
                true => Ok(response),
                false => Err(self.refusal(server, response, sent.is_some())),
            };
        }
    }

    fn refusal(&self, server: &Server, response: Response<Body>, was_authorized: bool) -> Cause {
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok());
        let now = self.client.clock.system_time();
        let retry_after = retry_after.and_then(|value| parse_retry_after(value, now));
        let body = read_limited(response, ANSWER_BYTES_MAX).unwrap_or_default();
        let detail = explain(&body);
        let host = server.endpoint.credentials_host.clone();
        match status {
            StatusCode::NOT_FOUND => Cause::NotFound,
            StatusCode::TOO_MANY_REQUESTS => Cause::TooManyRequests {
                retry_after,
                detail,
            },
            StatusCode::SERVICE_UNAVAILABLE if retry_after.is_some() => Cause::TooManyRequests {
                retry_after,
                detail,
            },
            StatusCode::UNAUTHORIZED if was_authorized => Cause::Denied { detail },
            StatusCode::UNAUTHORIZED => Cause::NoCredentials { host },
            StatusCode::FORBIDDEN => Cause::Denied { detail },
            status => Cause::Status { status, detail },
        }
    }

    /// Sends a request and follows redirects. Returns whether the answer is the registry's own.
    fn send(
        &self,
        server: &Server,
        ask: &Ask,
        authorization: Option<&str>,
    ) -> Result<(Response<Body>, bool), Cause> {
        let base = &server.endpoint.base;
        let name = self.reference.repository();
        // A mirror of several registries needs the name of the registry.
        let query = server
            .endpoint
            .mirror_of
            .as_ref()
            .map_or_else(String::new, |of| format!("?ns={of}"));
        let scheme = base.scheme_str().unwrap_or("https");
        let place = base.authority().map_or("", |it| it.as_str());
        let url = format!("{scheme}://{place}/v2/{name}/{}{query}", ask.path);
        let invalid = |_| Cause::Invalid(format!("{url} is not a valid address"));
        let mut url = url.parse::<Uri>().map_err(invalid)?;
        for _ in 0..=REDIRECTS_MAX {
            let is_own = is_same_origin(base, &url);
            let authorization = authorization.filter(|_| is_own);
            let response = self.send_once(&url, ask, authorization)?;
            if !is_redirect(response.status()) {
                return Ok((response, is_own));
            }
            let location = response.headers().get(LOCATION);
            let Some(location) = location.and_then(|value| value.to_str().ok()) else {
                return Err(Cause::Invalid("the redirect has no address".to_owned()));
            };
            let location = location.to_owned();
            let _ = read_limited(response, ANSWER_BYTES_MAX);
            url = check_redirect(&url, &location).map_err(Cause::Untrusted)?;
        }
        Err(Cause::Redirects {
            redirects: REDIRECTS_MAX,
        })
    }

    fn send_once(
        &self,
        url: &Uri,
        ask: &Ask,
        authorization: Option<&str>,
    ) -> Result<Response<Body>, Cause> {
        let mut request = Request::builder()
            .method(ask.method.clone())
            .uri(url.clone());
        // A compressed answer would have another digest.
        request = request.header(ACCEPT_ENCODING, "identity");
        if let Some(accept) = ask.accept {
            request = request.header(ACCEPT, accept);
        }
        if ask.start > 0 {
            request = request.header(RANGE, format!("bytes={}-", ask.start));
        }
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request
            .body(())
            .map_err(|error| Cause::Invalid(error.to_string()))?;
        let agent = self.agent_for(url);
        let document = ask.is_document.then_some(self.client.timeouts.document);
        let configured = agent
            .configure_request(request)
            .timeout_recv_body(document)
            .build();
        agent.run(configured).map_err(Cause::Connection)
    }

    fn agent_for(&self, url: &Uri) -> &Agent {
        match url.scheme_str() {
            Some("http") => &self.client.plain,
            _ => &self.client.secure,
        }
    }

    /// Downloads from an address beside the registry, which a manifest names for a layer that the registry may not distribute.
    pub(super) fn attempt_elsewhere(
        &self,
        address: &str,
        ask: &Ask,
    ) -> Result<Response<Body>, Cause> {
        let invalid = || {
            Cause::Invalid(format!(
                "the layer's address {address:?} is not an https address"
            ))
        };
        let mut url = address.parse::<Uri>().map_err(|_| invalid())?;
        let is_usable = url.scheme_str() == Some("https")
            || (url.scheme_str() == Some("http") && is_same_scheme(&self.servers, &url));
        if !is_usable || url.authority().is_none_or(|it| it.as_str().contains('@')) {
            return Err(invalid());
        }
        let from = self
            .servers
            .last()
            .map(|server| server.endpoint.base.clone());
        if let Some(from) = from {
            url = check_redirect(&from, address).map_err(Cause::Untrusted)?;
        }
        for _ in 0..=REDIRECTS_MAX {
            self.cancel.check()?;
            let response = self.send_once(&url, ask, None)?;
            if response.status().is_success() {
                return Ok(response);
            }
            if !is_redirect(response.status()) {
                let status = response.status();
                return Err(Cause::Status {
                    status,
                    detail: String::new(),
                });
            }
            let location = response.headers().get(LOCATION);
            let location = location
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default();
            url = check_redirect(&url, location).map_err(Cause::Untrusted)?;
        }
        Err(Cause::Redirects {
            redirects: REDIRECTS_MAX,
        })
    }

    fn current_authorization(&self, server: &Server) -> Option<String> {
        let now = self.client.clock.now();
        let mut held = server
            .authorization
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if held.expires.is_some_and(|expires| expires <= now) {
            *held = Authorization::default();
        }
        held.header.clone()
    }

    /// Answers a challenge. `refused` is the authorization that did not suffice.
    fn authenticate(
        &self,
        server: &Server,
        headers: &HeaderMap,
        refused: Option<&str>,
    ) -> Result<(), Cause> {
        let mut held = server
            .authorization
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if held.header.is_some() && held.header.as_deref() != refused {
            // Another thread of this pull was faster.
            return Ok(());
        }
        *held = Authorization::default();
        let values = headers.get_all(WWW_AUTHENTICATE);
        let challenges =
            Challenge::parse_all(values.iter().filter_map(|value| value.to_str().ok()));
        let host = &server.endpoint.credentials_host;
        let credential = self.credentials.for_host(host)?;
        let bearer = challenges
            .iter()
            .find(|one| matches!(one, Challenge::Bearer { .. }));
        if let Some(Challenge::Bearer {
            realm,
            service,
            scope,
        }) = bearer
        {
            let realm = check_realm(&server.endpoint.base, realm, &self.client.settings.realms);
            let realm = realm.map_err(Cause::Untrusted)?;
            let asked = TokenRequest {
                realm,
                service: service.as_deref(),
                scope: choose_scope(scope.as_deref(), self.reference.repository()),
                host,
            };
            let (token, seconds) = self.ask_for_token(&asked, credential.as_ref())?;
            let life = Duration::from_secs(seconds).min(TOKEN_LIFE_MAX);
            *held = Authorization {
                header: Some(format!("Bearer {token}")),
                expires: self
                    .client
                    .clock
                    .now()
                    .checked_add(life.saturating_sub(TOKEN_MARGIN)),
            };
            return Ok(());
        }
        if !challenges.contains(&Challenge::Basic) {
            let what =
                "the registry asks for authentication of an unknown kind: expected Basic or Bearer";
            return Err(Cause::Invalid(what.to_owned()));
        }
        let basic = credential.as_ref().and_then(Credential::basic_header);
        let Some(basic) = basic else {
            return Err(Cause::NoCredentials { host: host.clone() });
        };
        if refused == Some(basic.as_str()) {
            let user = credential.map_or_else(String::new, |one| one.user().to_owned());
            return Err(Cause::Refused {
                user,
                host: host.clone(),
                detail: String::new(),
            });
        }
        *held = Authorization {
            header: Some(basic),
            expires: None,
        };
        Ok(())
    }

    /// Exchanges a credential, or nothing, for a token that permits one pull.
    fn ask_for_token(
        &self,
        asked: &TokenRequest<'_>,
        credential: Option<&Credential>,
    ) -> Result<(String, u64), Cause> {
        let agent = self.agent_for(&asked.realm);
        let limit = Some(self.client.timeouts.document);
        let sent = match credential {
            Some(Credential::IdentityToken(token)) => {
                let form = asked.form(token);
                let request = Request::post(asked.realm.clone())
                    .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
                    .body(form);
                let request = request.map_err(|error| Cause::Invalid(error.to_string()))?;
                agent.run(
                    agent
                        .configure_request(request)
                        .timeout_recv_body(limit)
                        .build(),
                )
            }
            other => {
                let mut request = Request::get(asked.url()?);
                if let Some(basic) = other.and_then(Credential::basic_header) {
                    request = request.header(AUTHORIZATION, basic);
                }
                let request = request
                    .body(())
                    .map_err(|error| Cause::Invalid(error.to_string()))?;
                agent.run(
                    agent
                        .configure_request(request)
                        .timeout_recv_body(limit)
                        .build(),
                )
            }
        };
        let response = sent.map_err(Cause::Connection)?;
        let status = response.status();
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok());
        let retry_after =
            retry_after.and_then(|value| parse_retry_after(value, self.client.clock.system_time()));
        let body = read_limited(response, ANSWER_BYTES_MAX)?;
        if status.is_success() {
            let answer = serde_json::from_slice::<TokenAnswer>(&body).ok();
            return answer
                .and_then(TokenAnswer::into_token)
                .ok_or_else(|| Cause::Invalid("the token service sent no token".to_owned()));
        }
        let detail = explain(&body);
        Err(match (status, credential) {
            (StatusCode::TOO_MANY_REQUESTS, _) => Cause::TooManyRequests {
                retry_after,
                detail,
            },
            (
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST,
                Some(credential),
            ) => Cause::Refused {
                user: credential.user().to_owned(),
                host: asked.host.to_owned(),
                detail,
            },
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, None) => Cause::NoCredentials {
                host: asked.host.to_owned(),
            },
            // Its target is not the service that was checked.
            (status, _) if is_redirect(status) => Cause::Untrusted(
                "the token service sent a redirect, which could lead the password elsewhere"
                    .to_owned(),
            ),
            (status, _) => Cause::Status { status, detail },
        })
    }
}

/// Whether the registry itself uses the scheme of an address.
fn is_same_scheme(servers: &[Server], url: &Uri) -> bool {
    servers
        .last()
        .is_some_and(|server| server.endpoint.base.scheme() == url.scheme())
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// A request for a token.
struct TokenRequest<'a> {
    realm: Uri,
    service: Option<&'a str>,
    scope: String,
    host: &'a str,
}

impl TokenRequest<'_> {
    fn url(&self) -> Result<Uri, Cause> {
        let realm = self.realm.to_string();
        let separator = if self.realm.query().is_some() {
            '&'
        } else {
            '?'
        };
        let service = self
            .service
            .map_or_else(String::new, |it| format!("service={}&", encode(it)));
        let url = format!("{realm}{separator}{service}scope={}", encode(&self.scope));
        url.parse()
            .map_err(|_| Cause::Invalid("the token service has an invalid address".to_owned()))
    }

    fn form(&self, token: &str) -> String {
        let service = self.service.unwrap_or_default();
        format!(
            "grant_type=refresh_token&client_id=meseta&service={}&scope={}&refresh_token={}",
            encode(service),
            encode(&self.scope),
            encode(token)
        )
    }
}

/// Percent-encodes a value of a query.
fn encode(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// Reads a body whole. Longer bodies are an error.
fn read_limited(response: Response<Body>, limit: u64) -> Result<Vec<u8>, Cause> {
    let mut bytes = Vec::new();
    let reader = response.into_body().into_reader();
    reader
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(broken)?;
    match bytes.len() as u64 > limit {
        true => Err(Cause::TooLarge { limit }),
        false => Ok(bytes),
    }
}

/// A failure to read a body.
pub(super) fn broken(error: std::io::Error) -> Cause {
    Cause::Broken(error.to_string())
}

/// Returns the digest of a document, which must be the expected one.
fn check_document(bytes: &[u8], expected: Option<&Digest>) -> Result<Digest, Cause> {
    let Some(expected) = expected else {
        return Ok(Digest::from_content(bytes));
    };
    let mut hasher = Hasher::new(expected.algorithm());
    hasher.update(bytes);
    let actual = hasher.finish();
    match actual == *expected {
        true => Ok(actual),
        false => Err(Cause::Mismatch(crate::descriptor::Mismatch::Digest {
            expected: expected.clone(),
            actual,
        })),
    }
}

/// A failure with its causes.
struct Chain<'a>(&'a dyn std::error::Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(inner) = cause {
            write!(to, ": {inner}")?;
            cause = inner.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    fn proxy(scheme: &str, variables: &[(&str, &str)]) -> Result<Option<String>, Cause> {
        let variable = |name: &str| {
            let set = variables.iter().find(|(set, _)| *set == name);
            set.map(|(_, value)| (*value).to_owned())
        };
        Ok(find_proxy(scheme, variable)?.map(|proxy| format!("{}:{}", proxy.host(), proxy.port())))
    }

    #[test]
    fn each_scheme_has_its_own_proxy() {
        let both = [("http_proxy", "http://a:1"), ("HTTPS_PROXY", "http://b:2")];
        assert_eq!(
            proxy("http", &both).expect("usable").as_deref(),
            Some("a:1")
        );
        assert_eq!(
            proxy("https", &both).expect("usable").as_deref(),
            Some("b:2")
        );
        let all = [("all_proxy", "http://c:3"), ("http_proxy", " ")];
        assert_eq!(proxy("http", &all).expect("usable").as_deref(), Some("c:3"));
        assert_eq!(proxy("https", &[]).expect("usable"), None);
    }

    #[test]
    fn unusable_proxy_is_an_error() {
        for address in ["socks5://ann:secret@h", "http://ann:secret@", "::secret"] {
            let error = proxy("https", &[("https_proxy", address)]).expect_err(address);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
