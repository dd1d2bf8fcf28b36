//! The addresses that the agent listens on and advertises.

use std::net::{IpAddr, SocketAddr};

use meseta_daemon::advertised::advertised_ip;
use meseta_resources::HostPort;
use tokio::net::TcpListener;

use super::RunError;
use crate::configuration::flags::Flags;
use crate::link::MasterAddress;

pub(super) fn bind(address: SocketAddr) -> Result<TcpListener, RunError> {
    let listener = meseta_daemon::server::listen(address);
    listener.map_err(|source| RunError::Listen { address, source })
}

/// The address of a listener, which may have got a free port.
pub(super) fn local_address(
    listener: &TcpListener,
    address: SocketAddr,
) -> Result<SocketAddr, RunError> {
    let local = listener.local_addr();
    local.map_err(|source| RunError::Listen { address, source })
}

/// Returns the address advertised to the master and tasks.
pub(super) fn advertised(flags: &Flags, address: SocketAddr, master: &MasterAddress) -> SocketAddr {
    let ip = ip_to_advertise(flags, address.ip(), master);
    SocketAddr::new(ip, flags.advertise_port.unwrap_or(address.port()))
}

/// Returns the advertised address without a port, for an agent that listens on `listen`.
pub(crate) fn ip_to_advertise(flags: &Flags, listen: IpAddr, master: &MasterAddress) -> IpAddr {
    if let Some(ip) = flags.advertise_ip {
        return ip;
    }
    // Skips names, whose lookup may be slow; the route to other machines is nearly always the route to the master.
    let masters = master.resolve().unwrap_or_default();
    let masters = masters
        .iter()
        .filter_map(|one| one.parse::<HostPort>().ok());
    let masters: Vec<IpAddr> = masters.filter_map(|one| one.host().parse().ok()).collect();
    advertised_ip(listen, &masters)
}
