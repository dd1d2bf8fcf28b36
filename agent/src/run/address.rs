//! Where the agent listens, and how it is called.

use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::RunError;
use crate::configuration::flags::Flags;

pub(super) fn bind(address: SocketAddr) -> Result<TcpListener, RunError> {
    let listener = meseta_daemon::server::listen(address);
    listener.map_err(|source| RunError::Listen { address, source })
}

/// Where a listener is, which was perhaps given a free port.
pub(super) fn local_address(
    listener: &TcpListener,
    address: SocketAddr,
) -> Result<SocketAddr, RunError> {
    let local = listener.local_addr();
    local.map_err(|source| RunError::Listen { address, source })
}

/// What the master and tasks are told.
pub(super) fn advertised(flags: &Flags, address: SocketAddr) -> SocketAddr {
    SocketAddr::new(
        flags.advertise_ip.unwrap_or(address.ip()),
        flags.advertise_port.unwrap_or(address.port()),
    )
}
