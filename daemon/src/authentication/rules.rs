//! Credentials and ACLs, which are reloaded while the daemon runs.
//!
//! The files are read, and read again when they change. Invariant: an invalid file never replaces a valid one, and the log
//! reports it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use meseta_access::{AclError, Acls, Authorizer, CredentialError, Credentials};
use tokio_util::sync::CancellationToken;

use super::super::watched::Watched;
use super::super::{error_chain, tls};
use super::SettingsError;
use super::authenticator::Authenticator;

/// Characters of an invalid ACLs value that an error quotes.
const ACLS_SHOWN_MAX: usize = 100;

/// The sources of the rules.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources {
    /// The credentials file, with the name of its flag.
    pub(super) credentials: Option<(&'static str, PathBuf)>,
    /// The ACLs, as text or as `file:///path`.
    pub(super) acls: Option<String>,
    /// Actions that the rules do not mention are forbidden.
    pub(super) is_strict: bool,
}

impl Sources {
    fn acl_file(&self) -> Option<PathBuf> {
        let path = self.acls.as_deref()?.strip_prefix("file://")?;
        Some(path.into())
    }

    fn read_credentials(&self) -> Result<Option<Credentials>, SettingsError> {
        let Some((flag, path)) = &self.credentials else {
            return Ok(None);
        };
        let text = secret_text(flag, path)?;
        let credentials = Credentials::parse(&text)
            .map_err(|cause| SettingsError::Credentials { flag, cause })?;
        tracing::info!(principals = credentials.len(), "credentials read");
        Ok(Some(credentials))
    }

    fn read_acls(&self) -> Result<Authorizer, SettingsError> {
        let text = match (self.acl_file(), &self.acls) {
            (Some(path), _) => acl_text(&path)?,
            (None, Some(text)) if text.trim_start().starts_with('{') => text.clone(),
            (None, Some(text)) => {
                return Err(SettingsError::NoAcls(
                    text.chars().take(ACLS_SHOWN_MAX).collect(),
                ));
            }
            (None, None) if self.is_strict => {
                tracing::warn!("--acls is unset: every action that needs a permission is denied");
                return Ok(Authorizer::new(Acls::default(), false));
            }
            (None, None) => return Ok(Authorizer::everything()),
        };
        let acls = Acls::parse(&text).map_err(SettingsError::Acls)?;
        if self.is_strict && acls.permissive == Some(true) {
            tracing::warn!("the ACLs set `permissive`: actions that no entry mentions are allowed");
        }
        Ok(Authorizer::new(acls, !self.is_strict))
    }
}

/// The credentials and ACLs in force.
#[derive(Debug)]
pub(super) struct Rules {
    sources: Sources,
    credential_files: Watched,
    acl_files: Watched,
    pub(super) authenticator: Option<Authenticator>,
    authorizer: RwLock<Authorizer>,
    /// The number of times that the ACLs were replaced.
    version: AtomicU64,
}

impl Rules {
    /// Returns rules without credentials and ACLs.
    pub(super) fn none() -> Self {
        Self {
            sources: Sources::default(),
            credential_files: Watched::new([]),
            acl_files: Watched::new([]),
            authenticator: None,
            authorizer: RwLock::new(Authorizer::everything()),
            version: AtomicU64::new(0),
        }
    }

    /// Reads everything for the first time. For `key` see [`super::fresh_key`].
    pub(super) fn read(sources: Sources, key: [u8; 32]) -> Result<Self, SettingsError> {
        let file = sources.credentials.as_ref();
        let file = file.map(|(_, path)| plain(path).to_owned());
        // The watch begins before the read, so that no change is missed.
        let (credential_files, acl_files) = (Watched::new(file), Watched::new(sources.acl_file()));
        let credentials = sources.read_credentials()?;
        Ok(Self {
            authenticator: credentials.map(|all| Authenticator::new(all, key)),
            authorizer: RwLock::new(sources.read_acls()?),
            version: AtomicU64::new(0),
            sources,
            credential_files,
            acl_files,
        })
    }

    pub(super) fn authorizer(&self) -> Authorizer {
        let current = self.authorizer.read();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reloads changed files until `shutdown`.
    pub(super) async fn follow(&self, interval: Duration, shutdown: CancellationToken) {
        let credentials = || taken("credentials", self.exchange_credentials());
        let acls = || taken("ACLs", self.exchange_acls());
        tokio::join!(
            self.credential_files
                .clone()
                .follow(interval, shutdown.clone(), credentials),
            self.acl_files.clone().follow(interval, shutdown, acls),
        );
    }

    pub(super) fn exchange_credentials(&self) -> Result<(), SettingsError> {
        let fresh = self.sources.read_credentials()?;
        if let (Some(authenticator), Some(fresh)) = (&self.authenticator, fresh) {
            authenticator.exchange(fresh);
        }
        Ok(())
    }

    pub(super) fn exchange_acls(&self) -> Result<(), SettingsError> {
        let fresh = self.sources.read_acls()?;
        let version = self.version.fetch_add(1, Ordering::Relaxed) + 1;
        let mut current = self
            .authorizer
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *current = fresh.of_version(version);
        Ok(())
    }
}

/// Logs the outcome of a changed file.
fn taken(what: &'static str, outcome: Result<(), SettingsError>) -> bool {
    match &outcome {
        Ok(()) => tracing::info!(what, "exchanged"),
        Err(error) => tracing::warn!(
            what,
            error = %error_chain::chain(error),
            "a changed file is invalid; the previous contents stay in force"
        ),
    }
    outcome.is_ok()
}

/// Returns the path of `file:///path` or `/path`.
pub(super) fn plain(path: &Path) -> &Path {
    let text = path.to_str().and_then(|text| text.strip_prefix("file://"));
    text.map_or(path, Path::new)
}

fn acl_text(path: &Path) -> Result<String, SettingsError> {
    let file = |cause| SettingsError::File {
        flag: "acls",
        cause,
    };
    let (_, bytes) = tls::read(path).map_err(file)?;
    String::from_utf8(bytes)
        .map_err(|error| SettingsError::Acls(AclError::Syntax(error.utf8_error().to_string())))
}

/// Reads the text of a secret file that a flag names; errors never quote it.
pub(super) fn secret_text(flag: &'static str, path: &Path) -> Result<String, SettingsError> {
    let is_text = |c: char| matches!(c, '{' | '\n' | ' ');
    if path.to_string_lossy().contains(is_text) && !path.exists() {
        return Err(SettingsError::Inline { flag });
    }
    let bytes =
        tls::read_secret_file(plain(path)).map_err(|cause| SettingsError::File { flag, cause })?;
    String::from_utf8(bytes).map_err(|_| SettingsError::Credentials {
        flag,
        cause: CredentialError::Syntax(String::new()),
    })
}
