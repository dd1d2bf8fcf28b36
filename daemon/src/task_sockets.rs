//! Sockets that this process opens for tasks: for a check, for a fetch.
//!
//! A daemon trusts root on its own machine. A request that it sends to itself for a task comes from root, and must not be
//! trusted. [`TaskSocket::record`] marks such a socket before it connects; the mark is found by the socket's inode, which
//! the kernel reports for each connection. Invariant: a socket is recorded from before it connects until after it is
//! closed, so that no search through the process's descriptors is needed.

use std::collections::HashMap;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The recorded sockets by inode; the number of open descriptors bounds them. An inode is there twice only while the
/// earlier of two sockets with the same number is being removed.
static RECORDED: Mutex<Option<HashMap<u64, u32>>> = Mutex::new(None);

fn recorded() -> MutexGuard<'static, Option<HashMap<u64, u32>>> {
    RECORDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the socket with this inode is recorded.
pub(crate) fn is_recorded(inode: u32) -> bool {
    let recorded = recorded();
    let sockets = recorded.as_ref();
    sockets.is_some_and(|sockets| sockets.contains_key(&u64::from(inode)))
}

/// A recorded socket. The fields are dropped in order: the socket is closed before its mark is removed.
#[derive(Debug)]
pub struct TaskSocket<S> {
    socket: S,
    mark: Mark,
}

#[derive(Debug)]
struct Mark {
    inode: u64,
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(sockets) = recorded().as_mut()
            && let Some(count) = sockets.get_mut(&self.inode)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                sockets.remove(&self.inode);
            }
        }
    }
}

impl<S: AsFd> TaskSocket<S> {
    /// Records a socket that is not connected yet.
    ///
    /// # Errors
    ///
    /// The kernel does not report the inode of the socket.
    pub fn record(socket: S) -> io::Result<Self> {
        let inode = rustix::fs::fstat(&socket)?.st_ino;
        let mut recorded = recorded();
        *recorded
            .get_or_insert_with(HashMap::new)
            .entry(inode)
            .or_insert(0) += 1;
        let mark = Mark { inode };
        Ok(Self { socket, mark })
    }

    pub fn get(&self) -> &S {
        &self.socket
    }
}

impl TaskSocket<OwnedFd> {
    /// Returns the socket as a stream.
    #[must_use]
    pub fn into_stream(self) -> TaskSocket<TcpStream> {
        TaskSocket {
            socket: self.socket.into(),
            mark: self.mark,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn socket_is_recorded_until_closed() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = u32::try_from(rustix::fs::fstat(&socket).unwrap().st_ino).unwrap();
        assert!(!is_recorded(inode));
        let first = TaskSocket::record(socket).unwrap();
        assert!(is_recorded(inode));
        let second = TaskSocket::record(first.get().try_clone().unwrap()).unwrap();
        drop(first);
        assert!(is_recorded(inode), "its other descriptor is open");
        drop(second);
        assert!(!is_recorded(inode));
    }
}
