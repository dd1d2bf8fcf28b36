//! How a client reaches etcd: endpoints, user, TLS and times.

use std::fmt;
use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// How to reach etcd.
#[derive(Clone)]
pub struct Settings {
    /// `http://host:port` or `https://host:port`, or `host:port`, which takes the scheme that TLS asks for.
    pub endpoints: Vec<String>,
    /// Name and password, where etcd asks for them.
    pub user: Option<(String, String)>,
    pub tls: Option<Tls>,
    /// The longest that a call waits for its answer.
    pub call_timeout: Duration,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("endpoints", &self.endpoints)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("call_timeout", &self.call_timeout)
            .finish_non_exhaustive()
    }
}

/// Certificates in PEM form.
#[derive(Clone)]
pub struct Tls {
    /// Of the authority that signed the certificates of etcd's members.
    pub authority: Vec<u8>,
    /// The master's own certificate and its key, where etcd asks for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_identity = self.identity.is_some();
        f.debug_struct("Tls")
            .field("has_identity", &has_identity)
            .finish_non_exhaustive()
    }
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("no endpoint of etcd is given: for instance http://127.0.0.1:2379")]
    NoEndpoint,
    #[error("{endpoint:?} is no endpoint of etcd: give http://HOST:PORT or https://HOST:PORT")]
    Endpoint {
        endpoint: String,
        #[source]
        source: tonic::transport::Error,
    },
    #[error("{endpoint:?} needs https:// because certificates are given")]
    Scheme { endpoint: String },
    #[error("the certificates for {endpoint:?} cannot be used")]
    Certificates {
        endpoint: String,
        #[source]
        source: tonic::transport::Error,
    },
}

/// After so long without a sign of life a connection is given up.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// Between two probes of a connection. etcd closes those that are probed more often than every five seconds
/// (`--grpc-keepalive-min-time`).
const PROBE_INTERVAL: Duration = Duration::from_secs(6);

impl Settings {
    /// The endpoints in the order given.
    pub(crate) fn channels(&self) -> Result<Vec<Endpoint>, SettingsError> {
        if self.endpoints.is_empty() {
            return Err(SettingsError::NoEndpoint);
        }
        self.endpoints.iter().map(|one| self.channel(one)).collect()
    }

    fn channel(&self, given: &str) -> Result<Endpoint, SettingsError> {
        let uri = match (given.contains("://"), &self.tls) {
            (true, _) => given.to_owned(),
            (false, None) => format!("http://{given}"),
            (false, Some(_)) => format!("https://{given}"),
        };
        let endpoint = given.to_owned();
        let is_secure = uri.starts_with("https://");
        if self.tls.is_some() && !is_secure {
            return Err(SettingsError::Scheme { endpoint });
        }
        let built = Endpoint::from_shared(uri).map_err(|source| SettingsError::Endpoint {
            endpoint: endpoint.clone(),
            source,
        })?;
        let built = built
            .connect_timeout(CONNECTION_TIMEOUT)
            .timeout(self.call_timeout)
            .http2_keep_alive_interval(PROBE_INTERVAL)
            .keep_alive_timeout(CONNECTION_TIMEOUT)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        if !is_secure {
            return Ok(built);
        }
        let tls = self
            .tls
            .as_ref()
            .map_or_else(ClientTlsConfig::new, client_tls);
        let secured = built.tls_config(tls);
        secured.map_err(|source| SettingsError::Certificates { endpoint, source })
    }
}

fn client_tls(tls: &Tls) -> ClientTlsConfig {
    let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.authority));
    match &tls.identity {
        Some((certificate, key)) => config.identity(Identity::from_pem(certificate, key)),
        None => config,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(endpoints: &[&str], tls: Option<Tls>) -> Settings {
        Settings {
            endpoints: endpoints.iter().map(|one| (*one).to_owned()).collect(),
            user: Some(("root".to_owned(), "secret".to_owned())),
            tls,
            call_timeout: Duration::from_secs(2),
        }
    }

    #[test]
    fn endpoints_are_checked() {
        let uris = settings(&["127.0.0.1:2379", "http://etcd.example:2379"], None)
            .channels()
            .unwrap();
        let uris: Vec<_> = uris.iter().map(|one| one.uri().to_string()).collect();
        assert_eq!(
            uris,
            ["http://127.0.0.1:2379/", "http://etcd.example:2379/"]
        );

        let error = |endpoints: &[&str]| settings(endpoints, None).channels().unwrap_err();
        assert!(matches!(error(&[]), SettingsError::NoEndpoint));
        let nothing = error(&["a:1", "http://"]).to_string();
        assert!(nothing.contains("\"http://\" is no endpoint"), "{nothing}");

        let tls = Tls {
            authority: Vec::new(),
            identity: None,
        };
        let plain = settings(&["http://a:1"], Some(tls)).channels().unwrap_err();
        assert!(matches!(plain, SettingsError::Scheme { .. }), "{plain}");
    }

    #[test]
    fn a_password_is_not_shown() {
        let shown = format!("{:?}", settings(&["a:1"], None));
        assert!(
            shown.contains("root") && !shown.contains("secret"),
            "{shown}"
        );
    }
}
