//! Connections that the agent makes for a task: for a check, for a fetch.
//!
//! [`TaskLife::connect`] and [`TaskConnector`] make them. Invariants: a connection always also waits for the end of its
//! task, and ends with it. Each socket is recorded before it connects, so that the agent does not mistake its own
//! request for one of the operator's.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use meseta_daemon::task_sockets::TaskSocket;
use meseta_isolators::is_shortage;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use ureq::unversioned::transport::time::Duration as UreqDuration;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

/// The reasons why the result of a check proves nothing about its task.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum NoLook {
    #[error("its task has ended")]
    TaskEnded,
    #[error("too many name lookups for checks are in progress; try again later")]
    TooManyNames,
}

/// Whether an error of a connection proves nothing about the task: it is one of these reasons, or the agent lacked
/// resources.
pub(crate) fn is_no_look(error: &io::Error) -> bool {
    is_shortage(error) || error.get_ref().is_some_and(|inner| inner.is::<NoLook>())
}

/// The life of a task. Its end makes a descriptor readable: the pidfd of its supervisor, or a pipe.
#[derive(Clone, Debug)]
pub(crate) struct TaskLife {
    supervisor: Arc<OwnedFd>,
}

impl TaskLife {
    pub(crate) fn from_supervisor(supervisor: OwnedFd) -> Self {
        Self {
            supervisor: Arc::new(supervisor),
        }
    }

    pub(crate) fn supervisor(&self) -> &OwnedFd {
        &self.supervisor
    }

    /// Waits until a descriptor is ready; returns false at the deadline. The end of the task is an error.
    pub(crate) fn wait(
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
    pub(crate) fn connect(
        &self,
        address: SocketAddr,
        until: Option<Instant>,
    ) -> io::Result<TaskSocket<TcpStream>> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = TaskSocket::record(socket_with(family, SocketType::STREAM, flags, None)?)?;
        match connect(socket.get(), &address) {
            Ok(()) => return Ok(socket.into_stream()),
            // A signal does not end a connection attempt in progress.
            Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !self.wait(socket.get(), PollFlags::OUT, until)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        sockopt::socket_error(socket.get())??;
        Ok(socket.into_stream())
    }

    /// Connects within this time.
    pub(crate) fn connect_within(
        &self,
        address: SocketAddr,
        within: Duration,
    ) -> io::Result<TaskSocket<TcpStream>> {
        self.connect(address, Instant::now().checked_add(within))
    }
}

/// The end of a timeout of the client.
pub(crate) fn until(timeout: &NextTimeout) -> Option<Instant> {
    match timeout.after {
        UreqDuration::Exact(after) => Instant::now().checked_add(after),
        UreqDuration::NotHappening => None,
    }
}

/// Makes connections that live as long as the task.
#[derive(Debug)]
pub(crate) struct TaskConnector {
    life: TaskLife,
}

impl TaskConnector {
    pub(crate) fn new(life: TaskLife) -> Self {
        Self { life }
    }
}

impl Connector for TaskConnector {
    type Out = TaskTransport;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<TaskTransport>, ureq::Error> {
        let until = until(&details.timeout);
        let mut last = ureq::Error::HostNotFound;
        let mut addresses = details.addrs.iter();
        while let Some(address) = addresses.next() {
            // The remaining addresses share the remaining time.
            let until = until.map(|until| {
                let left = until.saturating_duration_since(Instant::now());
                let addresses_left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
                Instant::now() + left / addresses_left.saturating_add(1)
            });
            match self.life.connect(*address, until) {
                Ok(stream) => {
                    let _ = stream.get().set_nodelay(true);
                    let config = details.config;
                    let (input, output) = (config.input_buffer_size(), config.output_buffer_size());
                    return Ok(Some(TaskTransport {
                        stream,
                        buffers: LazyBuffers::new(input, output),
                        life: self.life.clone(),
                    }));
                }
                Err(error) if is_no_look(&error) => {
                    return Err(error.into());
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    last = ureq::Error::Timeout(details.timeout.reason);
                }
                Err(error) => last = error.into(),
            }
        }
        Err(last)
    }
}

/// A connection that ends with its task.
#[derive(Debug)]
pub(crate) struct TaskTransport {
    stream: TaskSocket<TcpStream>,
    buffers: LazyBuffers,
    life: TaskLife,
}

impl TaskTransport {
    fn wait(&self, ready: PollFlags, timeout: &NextTimeout) -> Result<(), ureq::Error> {
        match self.life.wait(self.stream.get(), ready, until(timeout))? {
            true => Ok(()),
            false => Err(ureq::Error::Timeout(timeout.reason)),
        }
    }
}

impl Transport for TaskTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let timeout = timeout.for_write();
        let mut sent = 0;
        while sent < amount {
            self.wait(PollFlags::OUT, &timeout)?;
            let output = self.buffers.output().get(sent..amount).unwrap_or_default();
            match self.stream.get().write(output) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(written) => sent += written,
                Err(error) if is_to_be_repeated(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let timeout = timeout.for_read();
        loop {
            self.wait(PollFlags::IN, &timeout)?;
            match self.stream.get().read(self.buffers.input_append_buf()) {
                Ok(read) => {
                    self.buffers.input_appended(read);
                    return Ok(read > 0);
                }
                Err(error) if is_to_be_repeated(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether the connection is open: without a request the server sends nothing but an end.
    fn is_open(&mut self) -> bool {
        let peeked = self.stream.get().peek(&mut [0]);
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

fn is_to_be_repeated(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
