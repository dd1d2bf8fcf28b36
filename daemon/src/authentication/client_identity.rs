//! The identity of a daemon towards the master: a certificate, and a principal with a secret.

use std::path::PathBuf;

use http::HeaderValue;

use super::settings::client_credential;
use super::settings_error::SettingsError;
use crate::tls::{self, DaemonKind, TlsError};

/// The identity for calls to the master. Files are read anew at each call, so that new certificates and secrets need no
/// restart.
#[derive(Clone, Debug, Default)]
pub struct ClientIdentity {
    authorities: Option<PathBuf>,
    /// The certificate that is presented, and its key.
    own: Option<(PathBuf, PathBuf)>,
    credential: Option<PathBuf>,
}

impl ClientIdentity {
    /// Returns the identity from the files of `--ssl_ca_file`, `--ssl_cert_file` with `--ssl_key_file`, and `--credential`.
    ///
    /// # Errors
    ///
    /// One of the files is unusable: they are read here for the first time.
    pub fn new(
        authorities: Option<PathBuf>,
        own: Option<(PathBuf, PathBuf)>,
        credential: Option<PathBuf>,
    ) -> Result<Self, SettingsError> {
        let identity = Self {
            authorities,
            own,
            credential,
        };
        identity.encryption(&[]).map_err(SettingsError::Tls)?;
        identity.authorization()?;
        Ok(identity)
    }

    /// Whether the connection is encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.authorities.is_some() || self.own.is_some()
    }

    /// Reads the certificates for a connection to the leading master; `None` without TLS. The leader may be a master that
    /// one of `masters`, the operator's addresses, names itself.
    ///
    /// # Errors
    ///
    /// A file is unreadable or invalid.
    pub fn encryption(&self, masters: &[String]) -> Result<Option<tls::ClientConfig>, TlsError> {
        if !self.is_encrypted() {
            return Ok(None);
        }
        let own = self.own.as_ref();
        let own = own.map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        let trusted = self.authorities.as_deref();
        tls::client_of(DaemonKind::Master, masters, trusted, own).map(Some)
    }

    /// Returns the value of an `Authorization` header.
    ///
    /// # Errors
    ///
    /// The credential cannot be read or is invalid.
    pub fn authorization(&self) -> Result<Option<HeaderValue>, SettingsError> {
        let Some(credential) = self.read_credential()? else {
            return Ok(None);
        };
        // Basic authentication is plain ASCII for any secret.
        Ok(HeaderValue::from_str(&credential.header()).ok())
    }

    /// Returns the principal of this daemon at the master.
    ///
    /// # Errors
    ///
    /// As [`ClientIdentity::authorization`].
    pub fn principal(&self) -> Result<Option<String>, SettingsError> {
        let credential = self.read_credential()?;
        Ok(credential.map(|credential| credential.principal))
    }

    fn read_credential(&self) -> Result<Option<meseta_access::Credential>, SettingsError> {
        let path = self.credential.as_ref();
        path.map(|path| client_credential("credential", path))
            .transpose()
    }
}
