//! The hosts whose agents are offered: the file of `--whitelist`, read again when it changes.
//!
//! Invariant: an unreadable file changes nothing; the last list that was read stays in force.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::core::Input;
use crate::handle::Handle;

/// The interval between two checks of the file, as in Mesos.
const WATCH_INTERVAL: Duration = Duration::from_secs(5);
/// The largest file: hosts of a few hundred thousand agents.
const BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The hostnames. Without any, no agent is offered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Whitelist(pub(crate) Arc<BTreeSet<Arc<str>>>);

impl Whitelist {
    /// Reads the names from a file, one per line.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let mut text = String::new();
        let file = std::fs::File::open(path)?;
        let length = file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
        if u64::try_from(length).is_ok_and(|length| length > BYTES_MAX) {
            let reason = format!("the file is larger than {BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
        }
        let lines = text.lines().map(str::trim);
        let names = lines.filter(|line| !line.is_empty()).map(Arc::from);
        Ok(Self(Arc::new(names.collect())))
    }
}

/// Sends the file's content to the core each time that it changes.
pub(crate) async fn watch(
    path: std::path::PathBuf,
    mut known: Whitelist,
    handle: Handle,
    shutdown: CancellationToken,
) {
    let mut ticks = tokio::time::interval(WATCH_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut readable = true;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let file = path.clone();
        let read = tokio::task::spawn_blocking(move || Whitelist::read(&file)).await;
        match read {
            Ok(Ok(whitelist)) => {
                readable = true;
                if whitelist == known {
                    continue;
                }
                tracing::info!(hosts = whitelist.0.len(), "the whitelist has changed");
                known = whitelist.clone();
                let hosts = Some(whitelist.0);
                if handle.tell(Input::Whitelist { hosts }).await.is_err() {
                    return;
                }
            }
            Ok(Err(error)) if readable => {
                readable = false;
                tracing::warn!(path = %path.display(), %error, "failed to read the whitelist; \
                    keeping the last whitelist");
            }
            Ok(Err(_)) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_one_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        std::fs::write(&path, " a.example \n\nb\n").unwrap();
        let names = Whitelist::read(&path).unwrap();
        let names: Vec<&str> = names.0.iter().map(|name| &**name).collect();
        assert_eq!(names, ["a.example", "b"]);
        std::fs::write(&path, "").unwrap();
        assert_eq!(Whitelist::read(&path).unwrap(), Whitelist::default());
        assert!(Whitelist::read(dir.path()).is_err(), "a folder");
    }
}
