//! The identity of a verb, and the authority that it trusts: the same for all requests of one process.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context as _;
use clap::{ArgMatches, Args, ValueHint};
use http::HeaderValue;
use meseta_access::Credential;
use meseta_daemon::client::{Client, Options, connector};
use meseta_daemon::tls::{self, DaemonKind, ShownCertificate};
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};

/// Flags of every verb that speaks to a daemon which wants to know by whom.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct IdentityFlags {
    /// Your principal (user name) for authentication and reservations.
    #[arg(long, global = true, env = "MESETA_PRINCIPAL", value_name = "NAME")]
    principal: Option<String>,
    /// File with the secret, in plain text. Only the owner may be able to read the file.
    #[arg(long, global = true, env = "MESETA_SECRET_FILE", value_name = "FILE", value_hint = ValueHint::FilePath,
          alias = "secret_file", requires = "principal", id = "secret_file")]
    secret_file: Option<PathBuf>,
    /// Authority that signed the daemons' certificates, in PEM form. With this flag, the verb uses TLS.
    #[arg(long, global = true, env = "MESETA_CA", value_name = "FILE", value_hint = ValueHint::FilePath)]
    ca: Option<PathBuf>,
    /// Your certificate, in PEM form. Agents see only the certificate, because they could misuse a secret.
    #[arg(long, global = true, env = "MESETA_CERT", value_name = "FILE", value_hint = ValueHint::FilePath,
          requires = "key")]
    cert: Option<PathBuf>,
    /// Private key of --cert.
    #[arg(long, global = true, env = "MESETA_KEY", value_name = "FILE", value_hint = ValueHint::FilePath,
          requires = "cert")]
    key: Option<PathBuf>,
    /// Also send the secret to agents that take no certificates. Any of these agents could then act as this
    /// principal.
    #[arg(
        long,
        global = true,
        env = "MESETA_SECRET_TO_AGENTS",
        alias = "secret_to_agents",
        requires = "secret_file",
        id = "secret_to_agents"
    )]
    secret_to_agents: bool,
    /// The masters and schedulers that the verb was given, which its secret is for.
    #[arg(skip)]
    named: Vec<String>,
}

impl IdentityFlags {
    /// Returns the file of the certificate to present.
    pub(super) fn certificate(&self) -> Option<&Path> {
        self.cert.as_deref()
    }

    /// Returns the file of the trusted authorities.
    pub(super) fn authorities(&self) -> Option<&Path> {
        self.ca.as_deref()
    }

    /// Whether the flags name an identity.
    pub(super) fn is_given(&self) -> bool {
        self.principal.is_some() || self.cert.is_some()
    }

    pub(super) fn principal(&self) -> Option<&str> {
        self.principal.as_deref()
    }
}

/// The context of an error about unusable certificate files.
const UNUSABLE: &str = "failed to load the certificates of --ca, --cert and --key";

static IDENTITY: OnceLock<IdentityFlags> = OnceLock::new();

/// Takes the flags of the typed verb, at whatever level below it they are.
pub(crate) fn install(matches: &ArgMatches) {
    let mut flags = IdentityFlags::default();
    let mut at = matches;
    loop {
        // Verbs without these flags provide none.
        let path = |id: &str| at.try_get_one::<PathBuf>(id).ok().flatten().cloned();
        let principal = at.try_get_one::<String>("principal");
        flags = IdentityFlags {
            principal: flags.principal.or(principal.ok().flatten().cloned()),
            secret_file: flags.secret_file.or(path("secret_file")),
            ca: flags.ca.or(path("ca")),
            cert: flags.cert.or(path("cert")),
            key: flags.key.or(path("key")),
            secret_to_agents: flags.secret_to_agents || is_set(at, "secret_to_agents"),
            named: flags.named,
        };
        for servers in ["master", "scheduler"] {
            let given = at.try_get_one::<String>(servers).ok().flatten();
            let given = given.into_iter().flat_map(|list| list.split(','));
            flags.named.extend(given.map(str::to_owned));
        }
        match at.subcommand() {
            Some((_, below)) => at = below,
            None => break,
        }
    }
    let _already = IDENTITY.set(flags);
}

fn is_set(matches: &ArgMatches, id: &str) -> bool {
    let given = matches.try_get_one::<bool>(id).ok().flatten();
    given.copied().unwrap_or_default()
}

/// Returns the scheme of an address without a scheme.
pub(super) fn scheme() -> &'static str {
    let encrypted = |flags: &IdentityFlags| flags.ca.is_some() || flags.cert.is_some();
    if IDENTITY.get().is_some_and(encrypted) {
        "https"
    } else {
        "http"
    }
}

/// Returns the TLS configuration for masters, without a client identity.
pub(super) fn encryption_of_masters() -> anyhow::Result<tls::ClientConfig> {
    encryption(&flags(), DaemonKind::Master)
}

/// Returns a client with this identity for a daemon of this kind: at a typed address, or one that such a daemon returned.
/// `is_encrypted` stands for `https`.
pub(super) fn client(kind: DaemonKind, is_encrypted: bool) -> anyhow::Result<Client> {
    let flags = flags();
    let authorization = authorization(&flags)?;
    if !is_encrypted {
        return Ok(in_the_clear(authorization));
    }
    let encryption = encryption(&flags, kind)?;
    Ok(Client::with(Options::default(), encryption, authorization))
}

/// Returns a client for an agent whose address came from the master: the agent may show a certificate for its `hostname`
/// too. The client does not send the secret unless the user wants that: the agent may be another owner's machine, which
/// could use the secret elsewhere.
pub(super) fn client_of_agent(is_encrypted: bool, hostname: &str) -> anyhow::Result<Client> {
    let flags = flags();
    let authorization = if flags.secret_to_agents {
        authorization(&flags)?
    } else {
        None
    };
    if !is_encrypted {
        return Ok(in_the_clear(authorization));
    }
    let trusted = flags.ca.as_deref();
    let encryption =
        tls::client_of_either(trusted, own_pair(&flags), hostname).context(UNUSABLE)?;
    Ok(Client::with(Options::default(), encryption, authorization))
}

/// Returns the scheme of an address without a scheme, if this authority is trusted where the verb has no other.
pub(super) fn scheme_trusting(trusted: Option<&Path>) -> &'static str {
    if trusted.is_some() { "https" } else { scheme() }
}

/// Builds a client for this master, as [`client`] does, which trusts this authority where the verb has no other, and keeps
/// the presented certificate.
pub(super) fn client_trusting(
    master: &str,
    trusted: Option<&Path>,
    is_encrypted: bool,
) -> anyhow::Result<(Client, ShownCertificate)> {
    let flags = flags();
    let authorization = authorization(&flags)?;
    if !is_encrypted {
        return Ok((in_the_clear(authorization), ShownCertificate::default()));
    }
    let trusted = flags.ca.as_deref().or(trusted);
    let (encryption, shown) = tls::client_that_records(
        DaemonKind::Master,
        &[master.to_owned()],
        trusted,
        own_pair(&flags),
    )
    .context(UNUSABLE)?;
    let client = Client::with(Options::default(), encryption, authorization);
    Ok((client, shown))
}

fn in_the_clear(authorization: Option<HeaderValue>) -> Client {
    match authorization {
        None => Client::default(),
        given => Client::plaintext(Options::default(), given),
    }
}

/// The pause between two probes of a silent server, and the time limit for its answer: some answers wait for an event,
/// however late.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns a gRPC channel to an address, not yet connected.
pub(super) fn channel(url: &str) -> anyhow::Result<Channel> {
    let timeout = Options::default().connect_timeout;
    let endpoint = Endpoint::from_shared(url.to_owned())
        .with_context(|| format!("{url} is not an address"))?
        .connect_timeout(timeout)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    if !url.starts_with("https://") {
        return Ok(endpoint.connect_lazy());
    }
    let connector = connector(encryption(&flags(), DaemonKind::Master)?, timeout);
    Ok(endpoint.connect_with_connector_lazy(connector))
}

/// Returns a message with this identity, for such a channel.
pub(super) fn signed<T>(message: T) -> anyhow::Result<Request<T>> {
    let mut request = Request::new(message);
    if let Some(header) = authorization(&flags())? {
        let mut value = MetadataValue::try_from(header.as_bytes())
            .context("the principal contains characters that are invalid in a header")?;
        value.set_sensitive(true);
        request.metadata_mut().insert("authorization", value);
    }
    Ok(request)
}

fn flags() -> IdentityFlags {
    IDENTITY.get().cloned().unwrap_or_default()
}

fn encryption(flags: &IdentityFlags, kind: DaemonKind) -> anyhow::Result<tls::ClientConfig> {
    let (trusted, own) = (flags.ca.as_deref(), own_pair(flags));
    tls::client_of(kind, &flags.named, trusted, own).context(UNUSABLE)
}

fn own_pair(flags: &IdentityFlags) -> Option<(&Path, &Path)> {
    flags.cert.as_deref().zip(flags.key.as_deref())
}

fn authorization(flags: &IdentityFlags) -> anyhow::Result<Option<HeaderValue>> {
    let (Some(principal), Some(path)) = (&flags.principal, &flags.secret_file) else {
        return Ok(None);
    };
    let secret = tls::read_secret_file(path).context("failed to read --secret-file")?;
    let secret = String::from_utf8(secret)
        .ok()
        .with_context(|| format!("{} is not UTF-8 text", path.display()))?;
    let credential = Credential {
        principal: principal.clone(),
        secret: secret.trim_end_matches(['\r', '\n']).to_owned(),
    };
    let header = HeaderValue::from_str(&credential.header());
    Ok(Some(header.context(
        "the principal contains characters that are invalid in a header",
    )?))
}
