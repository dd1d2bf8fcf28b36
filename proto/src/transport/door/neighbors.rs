//! Callers on the daemon's own machine: which of them are taken for the operator without a word.
//!
//! On loopback a daemon believes root and its own user, as far as they are in no container, and nobody else:
//! tasks of others run on the same machine, and could otherwise have what they like launched as root.
//! Invariant: a caller whose user the kernel does not tell is not believed.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use super::Realm;
use crate::background;
use crate::transport::owner::SocketOwner;
use crate::transport::server::Peer;

/// What a caller hears that is not believed, where there are no credentials to show.
pub(super) const STRANGER: &str = "Only root and the user of this daemon may call it without \
    authentication, and no task may: authenticate (the daemon needs --credentials, on an agent \
    --http_credentials), or let everybody on this machine in with --authenticate_http_readonly=false \
    and --authenticate_http_readwrite=false";

/// Knows which sockets were opened in containers.
pub trait Confinement: Send + Sync {
    /// Whether this one was. May block for some milliseconds.
    fn is_inside(&self, socket: &SocketOwner) -> bool;
}

/// The sockets that this very process holds: what a daemon with containers asks itself for, it asks for a task, as
/// a check or as a file to fetch. Looked for once for all who ask meanwhile, since it takes a while with thousands
/// of descriptors.
#[derive(Default)]
struct OwnSockets {
    /// When the look began, and what it found; `None` if it could not look everywhere.
    last: Mutex<Option<(Instant, Option<HashSet<u64>>)>>,
}

impl OwnSockets {
    /// Whether a socket is among them. What cannot be looked at is taken to be held. Blocks.
    fn hold(&self, inode: u32) -> bool {
        let asked = Instant::now();
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
pub(super) struct Neighbors {
    asked_in: Vec<Realm>,
    confinement: OnceLock<Arc<dyn Confinement>>,
    own: Arc<OwnSockets>,
}

impl fmt::Debug for Neighbors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Neighbors")
            .field("asked_in", &self.asked_in)
            .finish_non_exhaustive()
    }
}

impl Neighbors {
    pub(super) fn asked_in(realms: Vec<Realm>) -> Self {
        Self {
            asked_in: realms,
            ..Self::default()
        }
    }

    pub(super) fn are_asked_in(&self, realm: Realm) -> bool {
        self.asked_in.contains(&realm)
    }

    pub(super) fn confine(&self, confinement: Arc<dyn Confinement>) {
        let _ = self.confinement.set(confinement);
    }

    pub(super) async fn trusts(&self, peer: &Peer) -> bool {
        let Some(owner) = peer.owner() else {
            return false;
        };
        let own = rustix::process::geteuid();
        if owner.uid != 0 && owner.uid != own.as_raw() {
            return false;
        }
        let Some(confinement) = self.confinement.get() else {
            return true;
        };
        // Tasks of an agent without root are its own user's processes: nothing keeps them apart from it.
        if !own.is_root() {
            return true;
        }
        let (peer, confinement, own) = (peer.clone(), confinement.clone(), self.own.clone());
        let looking = background::spawn(move || {
            peer.is_confined(|| {
                own.hold(owner.inode) || confinement.is_inside(&owner) || !peer.is_open()
            })
        });
        looking.await.is_ok_and(|confined| !confined)
    }
}
