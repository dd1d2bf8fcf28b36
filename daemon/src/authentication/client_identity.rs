//! What a daemon shows the master of itself: a certificate, and a principal with a secret.

use std::path::PathBuf;

use http::HeaderValue;

use super::settings::client_credential;
use super::settings_error::SettingsError;
use crate::tls::{self, DaemonKind, TlsError};

/// How the master is spoken to. Files are read anew at each question, so that new certificates and secrets need no
/// restart.
#[derive(Clone, Debug, Default)]
pub struct ClientIdentity {
    authorities: Option<PathBuf>,
    /// The certificate that is shown, and its key.
    own: Option<(PathBuf, PathBuf)>,
    credential: Option<PathBuf>,
}

impl ClientIdentity {
    /// Of the files that `--ssl_ca_file`, `--ssl_cert_file` with `--ssl_key_file`, and `--credential` name.
    ///
    /// # Errors
    /// One of them cannot be used: it is read here for the first time.
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

    /// The certificates as the files have them now, for a connection to the master that leads, which may be one that
    /// `masters`, those that the operator named, name themselves; nothing where the master is spoken to in the clear.
    ///
    /// # Errors
    /// A file cannot be read or makes no sense.
    pub fn encryption(&self, masters: &[String]) -> Result<Option<tls::ClientConfig>, TlsError> {
        if !self.is_encrypted() {
            return Ok(None);
        }
        let own = self.own.as_ref();
        let own = own.map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        let trusted = self.authorities.as_deref();
        tls::client_of(DaemonKind::Master, masters, trusted, own).map(Some)
    }

    /// The value of an `Authorization` header.
    ///
    /// # Errors
    /// The credential cannot be read or makes no sense.
    pub fn authorization(&self) -> Result<Option<HeaderValue>, SettingsError> {
        let Some(credential) = self.read_credential()? else {
            return Ok(None);
        };
        // Basic authentication is plain ASCII whatever the secret is.
        Ok(HeaderValue::from_str(&credential.header()).ok())
    }

    /// The principal that the master knows this daemon by.
    ///
    /// # Errors
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
