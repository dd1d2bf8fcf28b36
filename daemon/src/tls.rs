//! TLS for both ends of a connection: rustls, with certificates from PEM files that are replaced at run time.
//!
//! Invariant: an invalid certificate never replaces a valid one; a key that others than its owner may read is refused.

use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

mod daemon_kind;
mod principal_uri;
mod server_proof;
mod server_verifier;
mod validity;

use meseta_access::browser::HostPattern;
pub use rustls::ClientConfig;
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio_util::sync::CancellationToken;

pub use self::daemon_kind::DaemonKind;
use self::daemon_kind::ExpectedServer;
pub use self::principal_uri::principal_uri;
pub use self::server_proof::ServerProof;
pub use self::server_verifier::ShownCertificate;
use self::server_verifier::{Judgement, ServerVerifier};
use super::error_chain::chain;
use super::watched::Watched;

/// The longest file of certificates, keys or credentials, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// The pause between two checks of the files for a change.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(5);
/// The time before the end of a certificate from which the daemon warns.
pub const END_WARNING: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// The pause between two warnings.
const END_WARNING_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// The files in which distributions keep the authorities that they trust.
const SYSTEM_AUTHORITIES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
];
/// The offered protocols: HTTP/2 for gRPC, HTTP/1.1 for all others.
const PROTOCOLS: [&[u8]; 2] = [HTTP2, b"http/1.1"];
const HTTP2: &[u8] = b"h2";

/// The files of a daemon's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The chain, which begins with the daemon's own certificate.
    pub certificate: PathBuf,
    /// The private key, readable by its owner only.
    pub key: PathBuf,
    /// The authorities whose client certificates are accepted.
    pub authorities: Option<PathBuf>,
}

/// The reason why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{path} holds no {what} in PEM form")]
    Pem { path: PathBuf, what: &'static str },
    #[error("failed to use the certificate in {path} with its key")]
    Pair {
        path: PathBuf,
        #[source]
        source: rustls::Error,
    },
    #[error("failed to load the authorities in {path}")]
    Authorities {
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error(
        "no authority to verify the peer's certificate: give the file of the authority that \
         signed it"
    )]
    NoAuthorities,
}

/// The reason why a file that matters to security was not read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("failed to read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("other users can read {path} (mode {mode:04o}): run `chmod 600 {path}`; only this \
        process's group may read a file of root's", path = path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error("{path} has more than {FILE_BYTES_MAX} bytes")]
    TooLong { path: PathBuf },
}

/// Reads a file of secrets that only its owner can read, or also the group of a service for which root keeps the file.
pub fn read_secret_file(path: &Path) -> Result<Vec<u8>, FileError> {
    use std::os::unix::fs::MetadataExt as _;
    let (file, bytes) = read(path)?;
    let metadata = file.metadata().map_err(|source| FileError::Read {
        path: path.to_owned(),
        source,
    })?;
    let mode = metadata.mode() & 0o7777;
    let owner = (metadata.uid(), metadata.gid());
    let process = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if is_open_to_others(mode, owner, process) {
        return Err(FileError::Open {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(bytes)
}

/// Whether users other than its owner may read a file, given the user and group of its owner and of this process. If root
/// owns the file, the group of a process that is not root's may read it.
const fn is_open_to_others(mode: u32, owner: (u32, u32), process: (u32, u32)) -> bool {
    let is_service = process.0 != 0;
    let forbidden = if is_service && owner.0 == 0 && owner.1 == process.1 {
        0o037
    } else {
        0o077
    };
    mode & forbidden != 0
}

pub(super) fn read(path: &Path) -> Result<(std::fs::File, Vec<u8>), FileError> {
    let failed = |source| FileError::Read {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    (&file)
        .take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(FileError::TooLong {
            path: path.to_owned(),
        });
    }
    Ok((file, bytes))
}

type Chain = Vec<CertificateDer<'static>>;

fn pair(certificate: &Path, key: &Path) -> Result<(Chain, PrivateKeyDer<'static>), TlsError> {
    let (_, bytes) = read(certificate)?;
    let chain: Chain = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|_| no_pem(certificate, "certificate"))?;
    if chain.is_empty() {
        return Err(no_pem(certificate, "certificate"));
    }
    let bytes = read_secret_file(key)?;
    let private = PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| no_pem(key, "private key"))?;
    Ok((chain, private))
}

fn no_pem(path: &Path, what: &'static str) -> TlsError {
    TlsError::Pem {
        path: path.to_owned(),
        what,
    }
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let (_, bytes) = read(path)?;
    let mut roots = RootCertStore::empty();
    for one in CertificateDer::pem_slice_iter(&bytes) {
        let one = one.map_err(|_| no_pem(path, "certificate"))?;
        roots.add(one).map_err(|error| TlsError::Authorities {
            path: path.to_owned(),
            source: error.into(),
        })?;
    }
    if roots.is_empty() {
        return Err(no_pem(path, "certificate"));
    }
    Ok(roots)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The served certificate, all of it from one reading of the files.
#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    /// The hosts that the certificate names.
    hosts: Arc<Vec<HostPattern>>,
    /// The end of the certificate, since the Unix epoch. The other certificates of the chain do not count: clients may
    /// believe them without an authority that has ended.
    end: Option<Duration>,
    /// Returns true if the certificate names its kind of daemon.
    is_marked: bool,
}

impl Current {
    fn read(files: &Files) -> Result<Self, TlsError> {
        let (chain, key) = pair(&files.certificate, &files.key)?;
        Ok(Self {
            hosts: Arc::new(hosts_of(&chain)),
            end: chain.first().and_then(|own| validity::end(own)),
            is_marked: chain.first().is_some_and(daemon_kind::is_marked),
            config: server(files, chain, key)?,
        })
    }
}

/// Returns the configuration for accepting connections. With authorities, the other side may show a certificate of theirs
/// on each connection; an invalid certificate ends the connection, and the routes decide about a missing one.
fn server(
    files: &Files,
    chain: Chain,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let failed = |source| TlsError::Pair {
        path: files.certificate.clone(),
        source,
    };
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    let builder = match &files.authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(authorities(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            let verifier = verifier.allow_unauthenticated().build();
            builder.with_client_cert_verifier(verifier.map_err(|error| TlsError::Authorities {
                path: path.clone(),
                source: error.into(),
            })?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(failed)?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    if files.authorities.is_some() {
        // A resumed session has the certificate from its beginning, without a new verification.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(Arc::new(config))
}

/// Returns the trusted authorities: those of the file, or else those of the system.
fn roots(trusted: Option<&Path>) -> Result<RootCertStore, TlsError> {
    match trusted {
        Some(path) => authorities(path),
        None => SYSTEM_AUTHORITIES
            .iter()
            .map(Path::new)
            .find(|path| path.is_file())
            .ok_or(TlsError::NoAuthorities)
            .and_then(authorities),
    }
}

/// Returns the configuration of a client: the trusted authorities, and its own certificate, if it has one.
pub fn client(
    trusted: Option<&Path>,
    identity: Option<(&Path, &Path)>,
) -> Result<ClientConfig, TlsError> {
    client_with(trusted, identity, Judgement::default())
}

/// Returns the configuration for servers that may receive secrets: daemons of this kind. `named` are the addresses that the
/// user gave for them. The client may also connect to an address that one of those servers names; the certificate there
/// must state the kind of daemon.
pub fn client_of(
    kind: DaemonKind,
    named: &[String],
    trusted: Option<&Path>,
    identity: Option<(&Path, &Path)>,
) -> Result<ClientConfig, TlsError> {
    let judgement = Judgement {
        expected: Some(ExpectedServer::new(kind, named)),
        ..Judgement::default()
    };
    client_with(trusted, identity, judgement)
}

/// Returns the configuration for servers with a second name besides the one in the address: a certificate for either name
/// is valid.
pub fn client_of_either(
    trusted: Option<&Path>,
    identity: Option<(&Path, &Path)>,
    name: &str,
) -> Result<ClientConfig, TlsError> {
    // A text that is no host name is on no certificate.
    let Ok(name) = ServerName::try_from(name.to_owned()) else {
        return client(trusted, identity);
    };
    let judgement = Judgement {
        other_name: Some(name),
        ..Judgement::default()
    };
    client_with(trusted, identity, judgement)
}

/// Returns a client like [`client_of`], and the certificate that the last server has shown, trusted or not.
pub fn client_that_records(
    kind: DaemonKind,
    named: &[String],
    trusted: Option<&Path>,
    identity: Option<(&Path, &Path)>,
) -> Result<(ClientConfig, ShownCertificate), TlsError> {
    let shown = ShownCertificate::default();
    let judgement = Judgement {
        expected: Some(ExpectedServer::new(kind, named)),
        shown: Some(shown.clone()),
        ..Judgement::default()
    };
    let config = client_with(trusted, identity, judgement)?;
    Ok((config, shown))
}

/// Returns a client that accepts a second name of a server, and keeps the shown certificate.
fn client_with(
    trusted: Option<&Path>,
    identity: Option<(&Path, &Path)>,
    judgement: Judgement,
) -> Result<ClientConfig, TlsError> {
    let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(trusted)?), provider());
    let usual = usual.build().map_err(|error| TlsError::Authorities {
        path: trusted.map_or_else(PathBuf::new, Path::to_owned),
        source: error.into(),
    })?;
    let verifier = Arc::new(ServerVerifier { usual, judgement });
    let path = identity.map_or_else(PathBuf::new, |(certificate, _)| certificate.to_owned());
    let failed = |source| TlsError::Pair {
        path: path.clone(),
        source,
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(failed)?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let (chain, key) = pair(certificate, key)?;
            builder.with_client_auth_cert(chain, key).map_err(failed)
        }
    }
}

/// Returns a configuration for clients without TLS: every certificate is refused.
pub fn trusting_no_server() -> ClientConfig {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider has the versions that rustls calls safe")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth()
}

/// Returns the DNS names in the first of these certificates.
fn hosts_of(chain: &[CertificateDer<'_>]) -> Vec<HostPattern> {
    let first = chain.first().map(webpki::EndEntityCert::try_from);
    let Some(Ok(certificate)) = first else {
        return Vec::new();
    };
    let names = certificate.valid_dns_names();
    names
        .filter_map(|name| HostPattern::parse(name).ok())
        .collect()
}

/// Returns the end of each certificate in a file, since the Unix epoch, in their order; `None` for a certificate without a
/// readable end.
pub fn ends_of(path: &Path) -> Result<Vec<Option<Duration>>, TlsError> {
    let (_, bytes) = read(path)?;
    let chain: Result<Chain, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let chain = chain.map_err(|_| no_pem(path, "certificate"))?;
    Ok(chain.iter().map(|one| validity::end(one)).collect())
}

/// Whether the certificate of a file is valid for this host, by name or by address.
pub fn is_for(path: &Path, host: &str) -> Result<bool, TlsError> {
    let (_, bytes) = read(path)?;
    let first = CertificateDer::pem_slice_iter(&bytes).next();
    let first = first.and_then(Result::ok);
    let first = first.ok_or_else(|| no_pem(path, "certificate"))?;
    Ok(PeerCertificate(first).is_for(host))
}

/// Returns the warning about a certificate's end at this time since the Unix epoch; `None` while the end is far away.
fn warning(end: Duration, now: Duration) -> Option<String> {
    match end.checked_sub(now) {
        Some(left) if left > END_WARNING => None,
        Some(left) => {
            let days = left.as_secs() / (24 * 60 * 60);
            Some(format!("the certificate expires in {days} days"))
        }
        None => Some("the certificate has expired: clients reject it".to_owned()),
    }
}

/// The current certificate of a daemon.
#[derive(Debug)]
pub struct Served {
    files: Files,
    watched: Watched,
    current: RwLock<Arc<Current>>,
}

impl Served {
    pub fn load(files: Files) -> Result<Arc<Self>, TlsError> {
        let all = [
            Some(&files.certificate),
            Some(&files.key),
            files.authorities.as_ref(),
        ];
        let watched = Watched::new(all.into_iter().flatten().cloned());
        let current = RwLock::new(Arc::new(Current::read(&files)?));
        Ok(Arc::new(Self {
            files,
            watched,
            current,
        }))
    }

    fn current(&self) -> Arc<Current> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// Returns the acceptor of connections, for HTTP/1 alone or for HTTP/2 as well.
    pub(super) fn acceptor(&self, http2: bool) -> tokio_rustls::TlsAcceptor {
        let config = Arc::clone(&self.current().config);
        if http2 {
            return config.into();
        }
        let mut config = ServerConfig::clone(&config);
        config.alpn_protocols.retain(|protocol| protocol != HTTP2);
        Arc::new(config).into()
    }

    /// Returns the names in the current certificate.
    pub(super) fn hosts(&self) -> Arc<Vec<HostPattern>> {
        Arc::clone(&self.current().hosts)
    }

    /// Returns the file of the trusted authorities; `None` for those of the system.
    fn authorities(&self) -> Option<&Path> {
        self.files.authorities.as_deref()
    }

    /// Returns the end of the present certificate, since the Unix epoch.
    pub fn end(&self) -> Option<Duration> {
        self.current().end
    }

    /// Reads the files again; existing connections keep the old certificate.
    pub fn reload(&self) -> Result<(), TlsError> {
        let fresh = Arc::new(Current::read(&self.files)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// Reloads changed files until `shutdown`, and warns of the certificate's end once a day.
    pub async fn watch(self: Arc<Self>, interval: Duration, shutdown: CancellationToken) {
        let watched = self.watched.clone();
        let take = || match self.reload() {
            Ok(()) => {
                tracing::info!(certificate = %self.files.certificate.display(), "certificate exchanged");
                true
            }
            // Perhaps only one of the files is new yet: the next look will show.
            Err(error) => {
                tracing::warn!(
                    error = %chain(&error),
                    "failed to load the changed certificate; keeping the old certificate"
                );
                false
            }
        };
        tokio::select! {
            () = watched.follow(interval, shutdown, take) => {}
            () = self.warn_of_end() => {}
        }
    }

    async fn warn_of_end(&self) {
        loop {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let end = self.end().zip(now.ok());
            if let Some(why) = end.and_then(|(end, now)| warning(end, now)) {
                let certificate = self.files.certificate.display();
                tracing::warn!(%certificate, "{why}");
            }
            tokio::time::sleep(END_WARNING_INTERVAL).await;
        }
    }
}

/// A certificate whose key the peer has proven to own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate(CertificateDer<'static>);

impl PeerCertificate {
    /// Returns the peer's certificate after a handshake.
    pub(super) fn from_connection(connection: &rustls::ServerConnection) -> Option<Self> {
        let first = connection.peer_certificates()?.first()?;
        Some(Self(first.clone().into_owned()))
    }

    /// Whether the certificate is valid for this host, by name or by address.
    #[must_use]
    pub fn is_for(&self, host: &str) -> bool {
        let Ok(certificate) = webpki::EndEntityCert::try_from(&self.0) else {
            return false;
        };
        let name = match host.parse::<IpAddr>() {
            Ok(address) => ServerName::from(address),
            Err(_) => match ServerName::try_from(host) {
                Ok(name) => name,
                Err(_) => return false,
            },
        };
        certificate.verify_is_valid_for_subject_name(&name).is_ok()
    }

    /// Returns the principal that the certificate names, if any; see [`principal_uri`]. Such a certificate belongs to no
    /// machine.
    #[must_use]
    pub fn named_principal(&self) -> Option<String> {
        let certificate = webpki::EndEntityCert::try_from(&self.0).ok()?;
        let mut uris = certificate.valid_uri_names();
        uris.find_map(principal_uri::principal_of)
    }

    /// Returns the principal of the certificate: the one that it names, else its first DNS name that is no pattern.
    #[must_use]
    pub fn principal(&self) -> Option<String> {
        if let Some(named) = self.named_principal() {
            return Some(named);
        }
        let certificate = webpki::EndEntityCert::try_from(&self.0).ok()?;
        let mut names = certificate.valid_dns_names();
        names.find(|name| !name.contains('*')).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests;
