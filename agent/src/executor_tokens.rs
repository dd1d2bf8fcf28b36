//! The tokens of this agent's executors: the key that signs them, and its file.
//!
//! Entered through [`ExecutorTokens::open`]. No token is stored: every process of the agent makes and reads the same
//! tokens from the key. The key is the operator's (`--jwt_secret_key`) or one that the agent made itself in its work
//! directory. Invariant: only the key's owner may read its file.

use std::path::{Path, PathBuf};

use meseta_access::executor_token::KEY_BYTES_MIN;
use meseta_access::{Claims, TokenKey};
use meseta_daemon::tls;

use crate::checkpoint::{KeyError, Layout, RunKey, open_executor_key};

/// The reason why executors cannot get tokens.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The operator's key is unusable.
    #[error("failed to read the key of executors' tokens (--jwt_secret_key)")]
    Given(#[source] tls::FileError),
    /// The agent's own key cannot be read or made.
    #[error(transparent)]
    Kept(#[from] KeyError),
    /// The key is so short that it could be guessed.
    #[error("{path} holds {length} bytes: a key of executors' tokens has at least {KEY_BYTES_MIN}")]
    Short {
        path: PathBuf,
        /// The length of the key.
        length: usize,
    },
}

/// Makes and reads tokens.
#[derive(Clone, Debug)]
pub(crate) struct ExecutorTokens {
    key: TokenKey,
}

impl ExecutorTokens {
    /// Opens the operator's key, or the agent's own, which is made if missing.
    pub(crate) fn open(given: Option<&Path>, layout: &Layout) -> Result<Self, TokenError> {
        if let Some(path) = given {
            let plain = path.to_str().and_then(|text| text.strip_prefix("file://"));
            let path = plain.map_or(path, Path::new);
            let bytes = tls::read_secret_file(path).map_err(TokenError::Given)?;
            return Self::new(path, &bytes);
        }
        Self::new(&layout.meta(), &open_executor_key(layout)?)
    }

    fn new(path: &Path, bytes: &[u8]) -> Result<Self, TokenError> {
        let key = TokenKey::new(bytes).ok_or_else(|| TokenError::Short {
            path: path.to_owned(),
            length: bytes.len(),
        })?;
        Ok(Self { key })
    }

    /// Returns the token of a run's container.
    pub(crate) fn for_run(&self, run: &RunKey) -> String {
        self.key.sign(&Claims {
            framework: run.framework.to_string(),
            executor: run.executor.to_string(),
            container: run.container.to_string(),
        })
    }

    /// Returns the claims of a valid token of this agent.
    pub(crate) fn read(&self, token: &str) -> Option<Claims> {
        self.key.verify(token)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

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
    fn tokens_survive_an_agent_restart() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(dir.path());
        fs::create_dir(layout.meta()).expect("made");
        let first = ExecutorTokens::open(None, &layout).expect("tokens");
        let token = first.for_run(&run("c1"));
        let second = ExecutorTokens::open(None, &layout).expect("tokens");
        let claims = second.read(&token).expect("ours");
        assert_eq!(
            (claims.executor.as_str(), claims.container.as_str()),
            ("e", "c1")
        );
        assert_ne!(second.for_run(&run("c2")), token);
        let elsewhere = tempfile::tempdir().expect("a directory");
        let other = Layout::new(elsewhere.path());
        fs::create_dir(other.meta()).expect("made");
        let stranger = ExecutorTokens::open(None, &other).expect("tokens");
        assert_eq!(stranger.read(&token), None, "each agent has its own key");
    }

    #[test]
    fn readable_or_short_keys_are_refused() {
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
