//! Connections of checks. Whatever one waits for, it waits for the end of its task as well, and is over with that.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use meseta_isolators::is_shortage;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

/// Why a check says nothing of its task.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum NoLook {
    #[error("its task has ended")]
    TaskEnded,
    #[error("too many names are being looked up for checks already")]
    TooManyNames,
}

/// Whether an error of a connection says nothing of the task: it is one of these, or the agent was short of something.
pub(super) fn is_no_look(error: &io::Error) -> bool {
    is_shortage(error) || error.get_ref().is_some_and(|inner| inner.is::<NoLook>())
}

/// The life of a task, by the pidfd of its supervisor.
#[derive(Clone, Debug)]
pub(super) struct TaskLife {
    supervisor: Arc<OwnedFd>,
}

impl TaskLife {
    pub(super) fn of(supervisor: OwnedFd) -> Self {
        Self {
            supervisor: Arc::new(supervisor),
        }
    }

    pub(super) fn supervisor(&self) -> &OwnedFd {
        &self.supervisor
    }

    /// Waits until a descriptor is ready; false if it is not until then. The end of the task is an error.
    pub(super) fn wait(
        &self,
        descriptor: impl AsFd,
        ready: PollFlags,
        until: Option<Instant>,
    ) -> io::Result<bool> {
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut both = [
                PollFd::new(&descriptor, ready),
                PollFd::new(&*self.supervisor, PollFlags::IN),
            ];
            match poll(&mut both, left.as_ref()) {
                Err(Errno::INTR) => continue,
                polled => drop(polled?),
            }
            let [descriptor, supervisor] = both.map(|one| !one.revents().is_empty());
            return match supervisor {
                true => Err(io::Error::other(NoLook::TaskEnded)),
                false => Ok(descriptor),
            };
        }
    }

    /// Connects to an address; the stream does not block.
    pub(super) fn connect(
        &self,
        address: SocketAddr,
        until: Option<Instant>,
    ) -> io::Result<TcpStream> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket.into()),
            // A signal does not end what has begun.
            Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !self.wait(&socket, PollFlags::OUT, until)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        sockopt::socket_error(&socket)??;
        Ok(socket.into())
    }

    /// The same within so long.
    pub(super) fn connect_within(
        &self,
        address: SocketAddr,
        within: Duration,
    ) -> io::Result<TcpStream> {
        self.connect(address, Instant::now().checked_add(within))
    }
}
