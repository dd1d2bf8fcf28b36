//! The tokens of this agent's executors: the key that they are signed with, and where it is kept.
//!
//! Entered through [`ExecutorTokens::open`]. Nothing is kept of a token: any life of the agent makes and
//! reads the same ones from the key, which is the operator's (`--jwt_secret_key`) or one that the agent made
//! for itself in its work directory. Invariant: nobody but the key's owner may read its file.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use meseta_access::executor_token::KEY_BYTES_MIN;
use meseta_access::{Claims, TokenKey};
use meseta_daemon::{authentication, tls};
use meseta_isolators::is_disk_full;
use tracing::{debug, warn};

use crate::checkpoint::{Layout, RunKey};
use crate::directories::DISK_FULL_RETRY;

/// Why executors cannot be given tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The operator's key cannot be used.
    #[error("failed to read the key of executors' tokens (--jwt_secret_key)")]
    Given(#[source] tls::FileError),
    /// The daemon's own certificate cannot be loaded.
    #[error("failed to read the key of executors' tokens: remove it, and a new one is made")]
    Kept(#[source] tls::FileError),
    /// It would be guessed.
    #[error("{path} holds {length} bytes: a key of executors' tokens has at least {KEY_BYTES_MIN}")]
    Short {
        path: PathBuf,
        /// How long it is.
        length: usize,
    },
    /// A new one cannot be kept.
    #[error("failed to write the key of executors' tokens to {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Makes and reads tokens.
#[derive(Clone, Debug)]
pub(crate) struct ExecutorTokens {
    key: TokenKey,
}

impl ExecutorTokens {
    /// With the operator's key, or with our own, made if it is not there.
    pub(crate) fn open(given: Option<&Path>, layout: &Layout) -> Result<Self, TokenError> {
        if let Some(path) = given {
            let plain = path.to_str().and_then(|text| text.strip_prefix("file://"));
            let path = plain.map_or(path, Path::new);
            let bytes = tls::read_secret_file(path).map_err(TokenError::Given)?;
            return Self::new(path, &bytes);
        }
        let path = layout.executor_key();
        let failed = |source| TokenError::Write {
            path: path.clone(),
            source,
        };
        put_damaged_aside(&path).map_err(failed)?;
        if !path.exists() {
            let fresh = authentication::fresh_key();
            match write_whole(&path, &fresh) {
                // No executor is launched before there is room again, and then it is kept.
                Err(error) if is_disk_full(&error) => {
                    warn!(path = %path.display(), %error, "the disk is full; this file follows when it is not");
                    let key = Self::new(&path, fresh.as_ref())?;
                    tokio::spawn(save_when_disk_has_space(path, fresh));
                    return Ok(key);
                }
                written => written.map_err(failed)?,
            }
        }
        let bytes = tls::read_secret_file(&path).map_err(TokenError::Kept)?;
        Self::new(&path, &bytes)
    }

    fn new(path: &Path, bytes: &[u8]) -> Result<Self, TokenError> {
        let key = TokenKey::new(bytes).ok_or_else(|| TokenError::Short {
            path: path.to_owned(),
            length: bytes.len(),
        })?;
        Ok(Self { key })
    }

    /// The token of a run's container.
    pub(crate) fn of(&self, run: &RunKey) -> String {
        self.key.sign(&Claims {
            framework: run.framework.to_string(),
            executor: run.executor.to_string(),
            container: run.container.to_string(),
        })
    }

    /// Whose token it is, if it is one of ours.
    pub(crate) fn read(&self, token: &str) -> Option<Claims> {
        self.key.verify(token)
    }
}

/// What a damaged disk left of our own key is no key, and keeps nobody from making another.
fn put_damaged_aside(path: &Path) -> io::Result<()> {
    let is_key = |found: &fs::Metadata| {
        let long_enough = u64::try_from(KEY_BYTES_MIN).is_ok_and(|least| found.len() >= least);
        found.is_file() && long_enough
    };
    match fs::symlink_metadata(path) {
        Ok(found) if !is_key(&found) => {
            let aside = path.with_extension("damaged");
            warn!(path = %path.display(), aside = %aside.display(), "the key of executors' tokens is damaged; making another");
            match fs::symlink_metadata(&aside) {
                Ok(earlier) if earlier.is_dir() => fs::remove_dir_all(&aside)?,
                Ok(_) => fs::remove_file(&aside)?,
                Err(_) => {}
            }
            fs::rename(path, &aside)
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

async fn save_when_disk_has_space(path: PathBuf, key: [u8; 32]) {
    while let Err(error) = write_whole(&path, &key) {
        debug!(path = %path.display(), %error, "cannot be written yet");
        tokio::time::sleep(DISK_FULL_RETRY).await;
    }
}

/// Writes a file that is there whole or not at all.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    path.parent()
        .map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use meseta_resources::{AgentId, ContainerId, ExecutorId, FrameworkId};

    use super::*;

    fn run(container: &str) -> RunKey {
        RunKey {
            agent: AgentId::new("a").expect("an id"),
            framework: FrameworkId::new("f").expect("an id"),
            executor: ExecutorId::new("e").expect("an id"),
            container: ContainerId::new(container).expect("an id"),
        }
    }

    #[test]
    fn another_life_of_the_agent_reads_the_tokens_of_the_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(dir.path());
        fs::create_dir(layout.meta()).expect("made");
        let first = ExecutorTokens::open(None, &layout).expect("tokens");
        let token = first.of(&run("c1"));
        let mode = fs::metadata(layout.executor_key()).expect("a key").mode();
        assert_eq!(mode & 0o7777, 0o600);
        let second = ExecutorTokens::open(None, &layout).expect("tokens");
        let claims = second.read(&token).expect("ours");
        assert_eq!(
            (claims.executor.as_str(), claims.container.as_str()),
            ("e", "c1")
        );
        assert_ne!(second.of(&run("c2")), token);
        let elsewhere = tempfile::tempdir().expect("a directory");
        let other = Layout::new(elsewhere.path());
        fs::create_dir(other.meta()).expect("made");
        let stranger = ExecutorTokens::open(None, &other).expect("tokens");
        assert_eq!(stranger.read(&token), None, "each agent has its own key");
    }

    #[test]
    fn a_damaged_key_of_our_own_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(dir.path());
        fs::create_dir(layout.meta()).expect("made");
        let path = layout.executor_key();
        for _ in 0..2 {
            fs::write(&path, "").expect("written");
            ExecutorTokens::open(None, &layout).expect("tokens");
            fs::remove_file(&path).expect("a file");
            fs::create_dir(&path).expect("made");
            ExecutorTokens::open(None, &layout).expect("tokens");
        }
    }

    #[test]
    fn keys_that_others_may_read_or_that_are_short_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(dir.path());
        let path = dir.path().join("key");
        let open = |mode: u32, key: &[u8]| {
            fs::write(&path, key).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
            ExecutorTokens::open(Some(&path), &layout)
        };
        assert!(open(0o600, b"0123456789abcdef").is_ok());
        let read = open(0o644, b"0123456789abcdef").expect_err("others may read it");
        assert!(read.to_string().contains("--jwt_secret_key"), "{read}");
        let short = open(0o600, b"0123").expect_err("short");
        assert!(short.to_string().contains("4 bytes"), "{short}");
    }
}
