//! The connection of a client to etcd: endpoints, user, TLS and times.

use std::fmt;
use std::time::Duration;

use meseta_daemon::client::connector;
use meseta_daemon::tls::ClientConfig;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::{ServiceExt as _, service_fn};

use crate::Reloaded;

/// The settings of the connection to etcd.
#[derive(Clone)]
pub struct Settings {
    /// Endpoints of the form `http://host:port` or `https://host:port`, or `host:port`, whose scheme depends on TLS.
    pub endpoints: Vec<String>,
    /// The name and password, if etcd requires them.
    pub user: Option<(String, Reloaded<String>)>,
    /// The trusted servers and the client certificate, read at each connection.
    pub tls: Option<Reloaded<ClientConfig>>,
    /// The longest wait of a call for its answer.
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

/// Errors in the settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("the endpoint of etcd is missing: give for example http://127.0.0.1:2379")]
    NoEndpoint,
    #[error("{endpoint:?} is not an endpoint of etcd: give http://HOST:PORT or https://HOST:PORT")]
    Endpoint {
        endpoint: String,
        #[source]
        source: tonic::transport::Error,
    },
    #[error("{endpoint:?}: https:// needs the file of the authority, and that file needs https://")]
    Scheme { endpoint: String },
}

/// The time without a sign of life after which a connection is closed.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(2);

/// The interval of probes of a connection. etcd closes connections that are probed more often than every five seconds
/// (`--grpc-keepalive-min-time`).
const PROBE_INTERVAL: Duration = Duration::from_secs(6);

impl Settings {
    /// A channel to each endpoint, in the order of the flag.
    pub(crate) fn channels(&self) -> Result<Vec<Channel>, SettingsError> {
        let endpoints = self.checked()?.into_iter();
        let channel = |endpoint: Endpoint| match (&self.tls, endpoint.uri().scheme_str()) {
            (Some(config), Some("https")) => {
                let config = config.clone();
                endpoint.connect_with_connector_lazy(service_fn(move |uri: Uri| {
                    connector(config.get(), CONNECTION_TIMEOUT).oneshot(uri)
                }))
            }
            _ => endpoint.connect_lazy(),
        };
        Ok(endpoints.map(channel).collect())
    }

    fn checked(&self) -> Result<Vec<Endpoint>, SettingsError> {
        if self.endpoints.is_empty() {
            return Err(SettingsError::NoEndpoint);
        }
        self.endpoints
            .iter()
            .map(|one| self.endpoint(one))
            .collect()
    }

    fn endpoint(&self, given: &str) -> Result<Endpoint, SettingsError> {
        let uri = match (given.contains("://"), &self.tls) {
            (true, _) => given.to_owned(),
            (false, None) => format!("http://{given}"),
            (false, Some(_)) => format!("https://{given}"),
        };
        let endpoint = given.to_owned();
        if self.tls.is_some() != uri.starts_with("https://") {
            return Err(SettingsError::Scheme { endpoint });
        }
        let built = Endpoint::from_shared(uri)
            .map_err(|source| SettingsError::Endpoint { endpoint, source })?;
        Ok(built
            .connect_timeout(CONNECTION_TIMEOUT)
            .timeout(self.call_timeout)
            .http2_keep_alive_interval(PROBE_INTERVAL)
            .keep_alive_timeout(CONNECTION_TIMEOUT)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(endpoints: &[&str], tls: Option<ClientConfig>) -> Settings {
        let password = Reloaded::new(|| Ok("secret".to_owned()));
        let tls = tls.map(|config| Reloaded::new(move || Ok(config.clone())).unwrap());
        Settings {
            endpoints: endpoints.iter().map(|one| (*one).to_owned()).collect(),
            user: Some(("root".to_owned(), password.unwrap())),
            tls,
            call_timeout: Duration::from_secs(2),
        }
    }

    #[test]
    fn endpoints_are_checked() {
        let uris = settings(&["127.0.0.1:2379", "http://etcd.example:2379"], None)
            .checked()
            .unwrap();
        let uris: Vec<_> = uris.iter().map(|one| one.uri().to_string()).collect();
        assert_eq!(
            uris,
            ["http://127.0.0.1:2379/", "http://etcd.example:2379/"]
        );

        let error = |endpoints: &[&str]| settings(endpoints, None).checked().unwrap_err();
        assert!(matches!(error(&[]), SettingsError::NoEndpoint));
        let nothing = error(&["a:1", "http://"]).to_string();
        assert!(
            nothing.contains("\"http://\" is not an endpoint"),
            "{nothing}"
        );

        let trusting = Some(meseta_daemon::tls::trusting_no_server());
        for (endpoint, tls) in [("http://a:1", trusting), ("https://a:1", None)] {
            let error = settings(&[endpoint], tls).checked().unwrap_err();
            assert!(matches!(error, SettingsError::Scheme { .. }), "{error}");
        }
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
