//! Proves that a daemon of a kind listens at an address: by a handshake, after which no data is sent.
//!
//! Invariant: the certificate is valid for the address or the host name, and its marks name the kind. A certificate without
//! marks counts only if this daemon's own certificate has none either.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::daemon_kind::{ExpectedServer, host_of};
use super::server_verifier::Judgement;
use super::{DaemonKind, PROTOCOLS, Served, client_with};
use crate::error_chain::chain;

/// The longest time for a connection and its handshake.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The expected kind of daemon, and this daemon's own certificate, whose authorities decide about others.
#[derive(Clone, Debug)]
pub struct ServerProof {
    pub kind: DaemonKind,
    pub served: Arc<Served>,
}

impl ServerProof {
    /// Connects to `address`, `host:port`, of a daemon with the name `hostname`, and checks its certificate. The error is
    /// the reason why the daemon is not trusted.
    pub async fn prove(&self, address: &str, hostname: &str) -> Result<(), String> {
        let failed = |error: &dyn std::error::Error| chain(error).to_string();
        let name = ServerName::try_from(host_of(address).to_owned()).map_err(|e| failed(&e))?;
        let judgement = Judgement {
            other_name: ServerName::try_from(hostname.to_owned()).ok(),
            expected: Some(ExpectedServer::on_any_host(
                self.kind,
                !self.served.current().is_marked,
            )),
            ..Judgement::default()
        };
        let config = client_with(self.served.authorities(), None, judgement);
        let mut config = config.map_err(|e| failed(&e))?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        let shaken = async {
            let stream = TcpStream::connect(address).await?;
            TlsConnector::from(Arc::new(config))
                .connect(name, stream)
                .await
        };
        match tokio::time::timeout(TIMEOUT, shaken).await {
            Ok(Ok(_closed)) => Ok(()),
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => Err(format!("no handshake within {} s", TIMEOUT.as_secs())),
        }
    }
}
