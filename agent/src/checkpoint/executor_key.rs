//! `meta/executor_key`: the key that signs the tokens of executors, if the agent made the key itself.
//!
//! The agent keeps the key twice: without the key no running executor can speak to the agent, and one damaged file must
//! not cost all of them. The first file holds only the key, as earlier versions wrote it. The second is a copy with a
//! checksum, which wins if the two differ. Entered through [`open`]. Invariants: only the key's owner may read the
//! files; the agent makes another key only if it can read neither of the two.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use meseta_access::executor_token::KEY_BYTES_MIN;
use meseta_daemon::tls::FileError;
use meseta_daemon::{authentication, tls, work_dir};
use meseta_isolators::{again, is_disk_full, is_shortage};
use tracing::{debug, warn};

use super::frame::{FrameError, decode_file, encode_file};
use super::layout::Layout;
use crate::directories::DISK_FULL_RETRY;
use crate::folders::unless_gone;

/// The reason why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Other users may read the file, the agent may not, or the agent lacks the resources to read it.
    #[error("failed to read the key of executors' tokens")]
    Read(#[source] FileError),
    /// Written by a later version of the agent.
    #[error("{path} has version {version}: start the newer agent that wrote it")]
    Newer { path: PathBuf, version: u32 },
    /// A new key cannot be saved.
    #[error("failed to write the key of executors' tokens to {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The content of one of the two files.
#[derive(Debug, Eq, PartialEq)]
enum Found {
    Key(Vec<u8>),
    Missing,
    Damaged(String),
}

/// Returns the key, and makes one if there is none. Sets aside a damaged file and writes it again from the other file.
/// Blocks.
pub(crate) fn open(layout: &Layout) -> Result<Vec<u8>, KeyError> {
    let record = find(&layout.executor_key(), plain)?;
    let copy = find(&layout.executor_key_copy(), decode_file)?;
    let kept = [&copy, &record].into_iter().find_map(|found| match found {
        Found::Key(key) => Some(key.clone()),
        Found::Missing | Found::Damaged(_) => None,
    });
    let is_new = kept.is_none();
    let key = kept.unwrap_or_else(|| authentication::fresh_key().to_vec());
    let with_checksum = encode_file(&key).map_err(|error| KeyError::Write {
        path: layout.executor_key_copy(),
        source: io::Error::other(error),
    })?;
    let mut waiting = Vec::new();
    for (path, found, bytes) in [
        (layout.executor_key(), record, key.clone()),
        (layout.executor_key_copy(), copy, with_checksum),
    ] {
        if found == Found::Key(key.clone()) {
            continue;
        }
        match replace(&path, &found, &bytes) {
            Ok(()) => {}
            // The agent launches no executor on a full disk. Once there is room again, it saves the key.
            Err(error) if is_disk_full(&error) => {
                warn!(path = %path.display(), %error, "the disk is full; writing this file once \
                    space is free");
                waiting.push((path, bytes));
            }
            Err(source) if is_new => return Err(KeyError::Write { path, source }),
            Err(error) => {
                warn!(path = %path.display(), %error, "failed to write one of the two copies of \
                    the key of executors' tokens");
            }
        }
    }
    if !waiting.is_empty() {
        tokio::spawn(save_when_disk_has_space(waiting));
    }
    Ok(key)
}

fn find(path: &Path, key: fn(&[u8]) -> Result<&[u8], FrameError>) -> Result<Found, KeyError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Missing),
        Ok(found) if !found.is_file() => {
            return Ok(Found::Damaged(
                "it is not a regular \
            file"
                    .to_owned(),
            ));
        }
        _ => {}
    }
    // A temporary device error must not cost the key.
    let read = again(|| match tls::read_secret_file(path) {
        Err(FileError::Read { source, .. }) => Err(source),
        read => Ok(read),
    });
    let read = read.unwrap_or_else(|source| {
        let path = path.to_owned();
        Err(FileError::Read { path, source })
    });
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(FileError::Read { source, .. }) if is_damage(&source) => {
            return Ok(Found::Damaged(format!("it cannot be read: {source}")));
        }
        Err(error @ FileError::TooLong { .. }) => return Ok(Found::Damaged(error.to_string())),
        Err(error) => return Err(KeyError::Read(error)),
    };
    match key(&bytes) {
        Ok(key) if key.len() >= KEY_BYTES_MIN => Ok(Found::Key(key.to_owned())),
        Ok(_) => Ok(Found::Damaged("it is too short".to_owned())),
        Err(FrameError::Newer(version)) => {
            let path = path.to_owned();
            Err(KeyError::Newer { path, version })
        }
        Err(error) => Ok(Found::Damaged(error.to_string())),
    }
}

/// Whether a read error comes from the file itself, and not from the agent's own resources or rights.
fn is_damage(error: &io::Error) -> bool {
    !is_shortage(error) && error.kind() != io::ErrorKind::PermissionDenied
}

const fn plain(bytes: &[u8]) -> Result<&[u8], FrameError> {
    Ok(bytes)
}

/// Writes one of the two files, and keeps a damaged file as evidence.
fn replace(path: &Path, found: &Found, bytes: &[u8]) -> io::Result<()> {
    let why = match found {
        Found::Missing => None,
        Found::Key(_) => Some("it differs from its copy"),
        Found::Damaged(why) => Some(why.as_str()),
    };
    if let Some(why) = why {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".damaged");
        let aside = PathBuf::from(aside);
        warn!(path = %path.display(), aside = %aside.display(), why, "a file of the key of executors' tokens is damaged");
        clear(&aside)?;
        fs::rename(path, &aside)?;
    }
    work_dir::replace_file(path, bytes)
}

async fn save_when_disk_has_space(files: Vec<(PathBuf, Vec<u8>)>) {
    for (path, bytes) in files {
        while let Err(error) = work_dir::replace_file(&path, &bytes) {
            debug!(path = %path.display(), %error, "failed to write a file; retrying");
            tokio::time::sleep(DISK_FULL_RETRY).await;
        }
    }
}

/// Removes an entry of any kind.
fn clear(path: &Path) -> io::Result<()> {
    unless_gone(match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        _ => fs::remove_file(path),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    struct Agent {
        _dir: tempfile::TempDir,
        layout: Layout,
        paths: [PathBuf; 2],
    }

    impl Agent {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            let layout = Layout::new(dir.path());
            fs::create_dir(layout.meta()).expect("made");
            Self {
                _dir: dir,
                paths: [layout.executor_key(), layout.executor_key_copy()],
                layout,
            }
        }

        fn key(&self) -> Vec<u8> {
            open(&self.layout).expect("a key")
        }

        fn are_both(&self, key: &[u8]) -> bool {
            let key = Found::Key(key.to_owned());
            let record = find(&self.paths[0], plain).expect("read");
            let copy = find(&self.paths[1], decode_file).expect("read");
            record == key && copy == key
        }
    }

    #[test]
    fn key_has_two_private_copies() {
        let agent = Agent::new();
        let key = agent.key();
        assert_eq!(agent.key(), key);
        assert!(agent.are_both(&key));
        for path in &agent.paths {
            let mode = fs::metadata(path).expect("a file").mode();
            assert_eq!(mode & 0o7777, 0o600, "{}", path.display());
        }
        assert_ne!(Agent::new().key(), key, "each agent has its own");
    }

    #[test]
    fn key_survives_damage_to_one_file() {
        let agent = Agent::new();
        let key = agent.key();
        for path in &agent.paths {
            let whole = fs::read(path).expect("a file");
            for at in 0..whole.len() {
                let mut flipped = whole.clone();
                flipped[at] ^= 1;
                for damaged in [&flipped, &whole[..at].to_vec()] {
                    fs::write(path, damaged).expect("written");
                    assert_eq!(agent.key(), key, "byte {at} of {}", path.display());
                    assert!(agent.are_both(&key), "byte {at} of {}", path.display());
                }
            }
            fs::remove_file(path).expect("a file");
            assert_eq!(agent.key(), key, "{} gone", path.display());
            // Runs twice: the second time an earlier evidence file is in the way.
            for _ in 0..2 {
                fs::remove_file(path).expect("a file");
                fs::create_dir(path).expect("made");
                fs::write(path.join("inside"), "").expect("written");
                assert_eq!(agent.key(), key, "{} a folder", path.display());
                assert!(agent.are_both(&key));
            }
        }
    }

    #[test]
    fn key_is_remade_without_both_files() {
        let agent = Agent::new();
        let key = agent.key();
        for path in &agent.paths {
            fs::write(path, "").expect("written");
        }
        let other = agent.key();
        assert_ne!(other, key);
        assert_eq!(agent.key(), other);
        assert!(agent.are_both(&other));
    }

    #[test]
    fn earlier_key_is_adopted_and_readable() {
        let agent = Agent::new();
        let key = authentication::fresh_key();
        fs::write(&agent.paths[0], key).expect("written");
        fs::set_permissions(&agent.paths[0], fs::Permissions::from_mode(0o600)).expect("a mode");
        assert_eq!(agent.key(), key);
        assert!(agent.are_both(&key));
        assert_eq!(fs::read(&agent.paths[0]).expect("a file"), key);
    }

    #[test]
    fn readable_key_refused_later_version_kept() {
        let agent = Agent::new();
        agent.key();
        let open_to_all = fs::Permissions::from_mode(0o644);
        fs::set_permissions(&agent.paths[1], open_to_all).expect("a mode");
        assert!(matches!(open(&agent.layout), Err(KeyError::Read(_))));
        let agent = Agent::new();
        agent.key();
        let mut later = encode_file(&[1; 32]).expect("short");
        later[4..8].copy_from_slice(&9_u32.to_le_bytes());
        let sum = crc32fast::hash(&[&later[4..12], &[1; 32]].concat());
        later[12..16].copy_from_slice(&sum.to_le_bytes());
        fs::write(&agent.paths[1], &later).expect("written");
        let refused = open(&agent.layout).expect_err("newer");
        assert!(refused.to_string().contains("start the newer agent"));
        assert_eq!(fs::read(&agent.paths[1]).expect("a file"), later);
    }
}
