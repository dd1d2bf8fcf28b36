//! Clients on the daemon's own machine: which of them are trusted as the operator without credentials.
//!
//! On loopback a daemon trusts root and its own user outside containers, and no other client: tasks on the same machine
//! could otherwise launch anything as root. Invariant: a client whose user the kernel does not report is not trusted.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use tokio::sync::Semaphore;

use super::Realm;
use crate::background;
use crate::owner::SocketOwner;
use crate::server::Peer;

/// The error for an untrusted local client where no credentials are configured.
pub(super) const UNTRUSTED_LOCAL_USER: &str = "Only root and the user of this daemon may call it without \
    authentication, and no task may: authenticate (the daemon needs --credentials, on an agent \
    --http_credentials), or let everybody on this machine in with --authenticate_http_readonly=false \
    and --authenticate_http_readwrite=false";

/// Threads that look up the clients of new connections at a time: a burst of connections takes no more.
static LOOKUPS: Semaphore = Semaphore::const_new(8);

/// Knows which sockets were opened in containers.
pub trait ContainerSockets: Send + Sync {
    /// Whether this one was. May block for some milliseconds.
    fn is_inside(&self, socket: &SocketOwner) -> bool;
}

/// The sockets of this process. An agent sends requests to itself only for a task, as a health check or a fetch.
/// One scan serves all concurrent callers, since it is slow with thousands of descriptors.
#[derive(Default)]
struct OwnSockets {
    /// When the look began, and what it found; `None` if it could not look everywhere.
    last: Mutex<Option<(Instant, Option<HashSet<u64>>)>>,
}

impl OwnSockets {
    /// Whether a socket is among them, by a scan that began no sooner than `asked`. What cannot be looked at is taken
    /// to be held. Blocks.
    fn contains(&self, inode: u32, asked: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|(began, _)| *began < asked) {
            *last = Some((Instant::now(), own_sockets().ok()));
        }
        let found = last.as_ref().and_then(|(_, found)| found.as_ref());
        found.is_none_or(|inodes| inodes.contains(&u64::from(inode)))
    }
}

fn own_sockets() -> rustix::io::Result<HashSet<u64>> {
    use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(CWD, "/proc/self/fd", flags, Mode::empty())?;
    let mut inodes = HashSet::new();
    for entry in rustix::fs::Dir::read_from(&folder)? {
        // What was closed meanwhile is not held.
        let Ok(stat) = rustix::fs::statat(&folder, entry?.file_name(), AtFlags::empty()) else {
            continue;
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Socket {
            inodes.insert(stat.st_ino);
        }
    }
    Ok(inodes)
}

#[derive(Default)]
pub(super) struct LocalTrust {
    enforced_in: Vec<Realm>,
    container_sockets: OnceLock<Arc<dyn ContainerSockets>>,
    own: Arc<OwnSockets>,
}

impl fmt::Debug for LocalTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalTrust")
            .field("enforced_in", &self.enforced_in)
            .finish_non_exhaustive()
    }
}

impl LocalTrust {
    pub(super) fn enforced_in(realms: Vec<Realm>) -> Self {
        Self {
            enforced_in: realms,
            ..Self::default()
        }
    }

    pub(super) fn is_enforced_in(&self, realm: Realm) -> bool {
        self.enforced_in.contains(&realm)
    }

    pub(super) fn set_container_sockets(&self, container_sockets: Arc<dyn ContainerSockets>) {
        let _ = self.container_sockets.set(container_sockets);
    }

    pub(super) async fn trusts(&self, peer: &Peer) -> bool {
        let Some(owner) = peer.owner() else {
            return false;
        };
        let own = rustix::process::geteuid();
        if owner.uid != 0 && owner.uid != own.as_raw() {
            return false;
        }
        let Some(container_sockets) = self.container_sockets.get() else {
            return true;
        };
        // Tasks of an agent without root are its own user's processes: nothing keeps them apart from it.
        if !own.is_root() {
            return true;
        }
        let (peer, container_sockets, own) =
            (peer.clone(), container_sockets.clone(), self.own.clone());
        let asked = Instant::now();
        let Ok(permit) = LOOKUPS.acquire().await else {
            return false;
        };
        let checking = background::spawn(move || {
            let _permit = permit;
            peer.is_confined(|| {
                own.contains(owner.inode, asked)
                    || container_sockets.is_inside(&owner)
                    || !peer.is_open()
            })
        });
        checking.await.is_ok_and(|confined| !confined)
    }
}
