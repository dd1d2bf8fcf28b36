//! Builds a daemon's authentication from its flags, and enforces the rule for unauthenticated starts.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use meseta_access::exposure::{self, Exposure, Posture};
use serde::Deserialize;

use super::super::tls::{self, Served};
use super::local_trust::LocalTrust;
use super::rules::{Rules, Sources, plain, secret_text};
use super::{Authentication, Names, Realm, SettingsError};

/// The authentication settings of a daemon.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The daemon: `master` or `agent`.
    pub daemon: &'static str,
    /// The address that the daemon listens on.
    pub address: IpAddr,
    pub insecure: bool,
    /// The credentials file, with the name of its flag.
    pub credentials: Option<PathBuf>,
    pub credentials_flag: &'static str,
    /// The ACLs as text, or as `file:///path`.
    pub acls: Option<String>,
    /// The text of the firewall rules.
    pub firewall_rules: Option<String>,
    pub ssl_cert_file: Option<PathBuf>,
    pub ssl_key_file: Option<PathBuf>,
    pub ssl_ca_file: Option<PathBuf>,
    /// The names of the daemon, and the pages that may use it.
    pub names: Names,
    /// The existing realms, with the flag of each and its value.
    pub realms: Vec<(Realm, &'static str, Option<bool>)>,
    /// The secret key, see [`fresh_key`].
    pub key: [u8; 32],
}

/// Returns a secret key from the operating system's random generator.
#[must_use]
pub fn fresh_key() -> [u8; 32] {
    let halves = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
    let mut key = [0; 32];
    for (part, half) in key.chunks_exact_mut(16).zip(halves) {
        part.copy_from_slice(half.as_bytes());
    }
    key
}

impl Settings {
    /// Builds the authentication, and the certificate to serve, if any.
    pub fn build(self) -> Result<(Authentication, Option<Arc<Served>>), SettingsError> {
        let files = self.certificate_files()?;
        let is_loopback = self.address.to_canonical().is_loopback();
        let off = self.realms.iter().any(|(_, _, set)| *set == Some(false));
        let posture = exposure::check(Exposure {
            address: self.address,
            authentication: self.credentials.is_some() && !off,
            tls: files.is_some(),
            insecure: self.insecure,
        })
        .map_err(SettingsError::Exposed)?;
        let is_strict = posture == Posture::Strict;
        if !is_loopback && self.insecure {
            tracing::warn!(address = %self.address, "--insecure: anyone on this network may run tasks");
        }
        let authenticated: Vec<Realm> = self
            .realms
            .iter()
            .filter(|(_, _, set)| set.unwrap_or(is_strict))
            .map(|(realm, _, _)| *realm)
            .collect();
        let sources = Sources {
            credentials: self
                .credentials
                .clone()
                .map(|path| (self.credentials_flag, path)),
            acls: self.acls.clone(),
            is_strict,
        };
        let rules = Rules::read(sources, self.key)?;
        let certified_agents = files
            .as_ref()
            .is_some_and(|files| files.authorities.is_some());
        if rules.authenticator.is_none() {
            let lacking = self.realms.iter().find(|(realm, _, _)| {
                let by_certificate = *realm == Realm::Agents && certified_agents;
                authenticated.contains(realm) && !by_certificate
            });
            if let Some((_, flag, _)) = lacking {
                return Err(SettingsError::NoCredentials {
                    flag,
                    credentials: self.credentials_flag,
                });
            }
        }
        let served = files
            .map(Served::load)
            .transpose()
            .map_err(SettingsError::Tls)?;
        let authentication = Authentication {
            daemon: self.daemon,
            rules: Arc::new(rules),
            authenticated,
            exposed: is_strict,
            encrypted: served.is_some(),
            certified_agents,
            disabled: self.disabled()?,
            pages: self.names.policy(is_loopback)?,
            certificate: served.clone(),
            local_trust: self.local_trust(is_strict),
        };
        Ok((authentication, served))
    }

    /// Returns the trust in local users. Where no authentication is required, local users other than root and the daemon's
    /// own must still authenticate, unless the operator disabled that.
    fn local_trust(&self, is_strict: bool) -> LocalTrust {
        if is_strict || self.insecure {
            return LocalTrust::default();
        }
        let unsaid = self.realms.iter().filter(|(_, _, set)| set.is_none());
        let operators = unsaid.map(|(realm, _, _)| *realm);
        LocalTrust::enforced_in(
            operators
                .filter(|realm| matches!(realm, Realm::Readonly | Realm::Readwrite))
                .collect(),
        )
    }

    fn certificate_files(&self) -> Result<Option<tls::Files>, SettingsError> {
        match (&self.ssl_cert_file, &self.ssl_key_file) {
            (Some(certificate), Some(key)) => Ok(Some(tls::Files {
                certificate: plain(certificate).to_owned(),
                key: plain(key).to_owned(),
                authorities: self
                    .ssl_ca_file
                    .as_deref()
                    .map(|path| plain(path).to_owned()),
            })),
            (None, None) if self.ssl_ca_file.is_some() && self.daemon == "master" => {
                Err(SettingsError::AuthoritiesAlone)
            }
            (None, None) => Ok(None),
            _ => Err(SettingsError::HalfAPair),
        }
    }

    fn disabled(&self) -> Result<Vec<String>, SettingsError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Rules {
            disabled_endpoints: Disabled,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Disabled {
            paths: Vec<String>,
        }
        let Some(text) = &self.firewall_rules else {
            return Ok(Vec::new());
        };
        let rules: Rules = serde_json::from_str(text)
            .map_err(|error| SettingsError::Firewall(error.to_string()))?;
        let paths = rules.disabled_endpoints.paths;
        if let Some(path) = paths.iter().find(|path| !path.starts_with('/')) {
            let text = format!("{path:?} does not begin with a slash");
            return Err(SettingsError::Firewall(text));
        }
        Ok(paths)
    }
}

/// Reads the credential of a client.
pub fn client_credential(
    flag: &'static str,
    path: &Path,
) -> Result<meseta_access::Credential, SettingsError> {
    let text = secret_text(flag, path)?;
    meseta_access::Credential::parse(&text)
        .map_err(|cause| SettingsError::Credentials { flag, cause })
}
