//! The address at which others reach a daemon, and the check whether an address belongs to this machine.
//!
//! Entered through [`advertised_ip`]. The kernel's routing table decides: a UDP socket that is connected, and sends
//! nothing, has the address from which this machine would send. Without a route out of the machine's own networks, the
//! first address of an interface counts. Invariant: the advertised address is never unspecified, and an IPv4 address in the
//! form of IPv6 is written as IPv4.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::OnceLock;

use meseta_resources::HostPort;

/// Destinations outside this machine. Both are reserved for documentation, and are routed like any other machine's address.
const ELSEWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// The discard port; no data is sent to it.
const PORT: u16 = 9;

/// Returns the address to advertise for a daemon that listens on `listen`.
///
/// A daemon on all addresses advertises the address from which this machine reaches `peers`, or else any other machine. On
/// `::` an IPv6 address comes first. A machine without a network has loopback only.
#[must_use]
pub fn advertised_ip(listen: IpAddr, peers: &[IpAddr]) -> IpAddr {
    advertised_by(listen, peers, &source_towards, interface_addresses)
}

/// Chooses the address by the machine's interfaces and a routing table, which maps a destination to the source address for
/// it.
fn advertised_by(
    listen: IpAddr,
    peers: &[IpAddr],
    source_towards: &impl Fn(IpAddr) -> Option<IpAddr>,
    interfaces: impl FnOnce() -> Vec<IpAddr>,
) -> IpAddr {
    let listen = listen.to_canonical();
    if !listen.is_unspecified() {
        return listen;
    }
    let [elsewhere_v4, elsewhere_v6] = ELSEWHERE;
    let others = match listen {
        IpAddr::V4(_) => vec![elsewhere_v4],
        IpAddr::V6(_) => vec![elsewhere_v6, elsewhere_v4],
    };
    let peers = peers.iter().map(IpAddr::to_canonical);
    // A socket on an IPv4 address accepts no connection over IPv6.
    let peers = peers.filter(|peer| !peer.is_loopback() && (listen.is_ipv6() || peer.is_ipv4()));
    let found = peers.chain(others).filter_map(source_towards);
    let mut found = found.filter(|ip| is_reachable(*ip));
    let of_interface = || {
        let mut own = interfaces();
        own.retain(|ip| listen.is_ipv6() || ip.is_ipv4());
        own.sort_by_key(|ip| ip.is_ipv4());
        own.into_iter().next()
    };
    found.next().or_else(of_interface).unwrap_or(match listen {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    })
}

/// Returns the addresses of this machine's interfaces that other machines can reach, in the kernel's order.
fn interface_addresses() -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else {
        return Vec::new();
    };
    let ip_of = |address: nix::sys::socket::SockaddrStorage| -> Option<IpAddr> {
        let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
    };
    let addresses = interfaces.filter_map(|one| ip_of(one.address?));
    addresses.filter(|ip| is_reachable(*ip)).collect()
}

/// Whether another machine may reach an address. An address of one link is useless without the name of the interface, which
/// differs on each machine.
fn is_reachable(ip: IpAddr) -> bool {
    let is_of_link = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    !is_of_link && !ip.is_loopback() && !ip.is_unspecified()
}

/// Returns whether an address belongs to this machine.
#[must_use]
pub fn is_of_this_machine(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || source_towards(ip) == Some(ip)
}

/// Returns the address from which this machine would send to `destination`; `None` without a route.
fn source_towards(destination: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match destination {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((destination, PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Errors of a bind to an address or an address family that the machine lacks.
const ABSENT: [i32; 2] = [
    nix::errno::Errno::EADDRNOTAVAIL as i32,
    nix::errno::Errno::EAFNOSUPPORT as i32,
];

/// Returns 127.0.0.1, or `::1` on a machine that has no IPv4 loopback address.
#[must_use]
pub fn usual_loopback() -> IpAddr {
    // A shortage of descriptors says nothing about the addresses.
    let lacks = |ip: IpAddr| {
        let error = UdpSocket::bind((ip, 0)).err();
        let number = error.and_then(|error| error.raw_os_error());
        number.is_some_and(|number| ABSENT.contains(&number))
    };
    let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    match lacks(v4) && !lacks(v6) {
        true => v6,
        false => v4,
    }
}

/// Returns the default address of a master on this machine, as `host:port`.
#[must_use]
pub fn usual_master() -> &'static str {
    static ADDRESS: OnceLock<String> = OnceLock::new();
    ADDRESS.get_or_init(|| usual_address(5050))
}

/// Returns a port of [`usual_loopback`], as `host:port`.
#[must_use]
pub fn usual_address(port: u16) -> String {
    HostPort::new(usual_loopback().to_string(), port).to_string()
}

/// The reason why a flag's address is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpFlagError {
    #[error("invalid IP address; give one such as 10.0.0.1 or fd00::1, without brackets and port")]
    Malformed,
    #[error(
        "no client can connect to {0}; give the address at which other machines reach this one"
    )]
    NotOfOneMachine(IpAddr),
}

/// Parses `--ip`. `::ffff:127.0.0.1` is 127.0.0.1.
///
/// # Errors
/// The text is not an IP address.
pub fn parse_ip(text: &str) -> Result<IpAddr, IpFlagError> {
    let ip: IpAddr = text.parse().map_err(|_| IpFlagError::Malformed)?;
    Ok(ip.to_canonical())
}

/// Parses `--advertise_ip`.
///
/// # Errors
///
/// The text is not an IP address, or no client can connect to the address.
pub fn parse_advertised_ip(text: &str) -> Result<IpAddr, IpFlagError> {
    let ip = parse_ip(text)?;
    match ip.is_unspecified() || ip.is_multicast() {
        true => Err(IpFlagError::NotOfOneMachine(ip)),
        false => Ok(ip),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn unspecified_address_is_never_advertised() {
        let nothing = |_| None;
        let both = |to: IpAddr| Some(ip(if to.is_ipv4() { "10.0.0.7" } else { "fd00::7" }));
        let v4_only = |to: IpAddr| to.is_ipv4().then(|| ip("10.0.0.7"));
        for (listen, expected) in [
            ("10.0.0.9", ["10.0.0.9"; 3]),
            ("fd00::9", ["fd00::9"; 3]),
            ("::ffff:10.0.0.9", ["10.0.0.9"; 3]),
            ("::1", ["::1"; 3]),
            ("0.0.0.0", ["127.0.0.1", "10.0.0.7", "10.0.0.7"]),
            ("::ffff:0.0.0.0", ["127.0.0.1", "10.0.0.7", "10.0.0.7"]),
            ("::", ["::1", "fd00::7", "10.0.0.7"]),
        ] {
            let told = [
                advertised_by(ip(listen), &[], &nothing, Vec::new),
                advertised_by(ip(listen), &[], &both, Vec::new),
                advertised_by(ip(listen), &[], &v4_only, Vec::new),
            ];
            assert_eq!(told, expected.map(ip), "{listen}");
        }
    }

    #[test]
    fn the_way_to_the_master_decides() {
        let source = |to: IpAddr| match to.to_string().as_str() {
            "10.1.0.1" => Some(ip("10.1.0.2")),
            "fd01::1" => Some(ip("fd01::2")),
            "10.9.0.1" => Some(ip("127.0.0.1")),
            _ => Some(ip(if to.is_ipv4() { "10.0.0.7" } else { "fd00::7" })),
        };
        for (listen, peers, expected) in [
            ("0.0.0.0", vec!["10.1.0.1"], "10.1.0.2"),
            ("0.0.0.0", vec!["fd01::1"], "10.0.0.7"),
            ("0.0.0.0", vec!["127.0.0.1", "10.1.0.1"], "10.1.0.2"),
            ("0.0.0.0", vec!["10.9.0.1"], "10.0.0.7"),
            ("::", vec!["fd01::1"], "fd01::2"),
            ("::", vec!["::ffff:10.1.0.1"], "10.1.0.2"),
            ("::", vec!["::1"], "fd00::7"),
            ("fd00::9", vec!["fd01::1"], "fd00::9"),
        ] {
            let peers: Vec<_> = peers.into_iter().map(ip).collect();
            assert_eq!(
                advertised_by(ip(listen), &peers, &source, Vec::new),
                ip(expected),
                "{listen} {peers:?}"
            );
        }
    }

    #[test]
    fn interfaces_count_without_a_route() {
        let link_local = |_: IpAddr| Some(ip("fe80::7"));
        let both = || vec![ip("10.0.0.7"), ip("fd00::7")];
        for (listen, expected) in [("0.0.0.0", "10.0.0.7"), ("::", "fd00::7")] {
            let told = advertised_by(ip(listen), &[], &link_local, both);
            assert_eq!(told, ip(expected));
        }
        let told = advertised_by(ip("0.0.0.0"), &[], &link_local, || vec![ip("fd00::7")]);
        assert_eq!(told, ip("127.0.0.1"));
        for elsewhere in ["fe80::1", "::1", "127.0.0.1", "::", "0.0.0.0"] {
            assert!(!is_reachable(ip(elsewhere)), "{elsewhere}");
        }
    }

    #[test]
    fn loopback_is_of_this_machine() {
        for here in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(is_of_this_machine(ip(here)), "{here}");
        }
        for elsewhere in ELSEWHERE {
            assert!(!is_of_this_machine(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn flags_take_addresses_in_one_form() {
        assert_eq!(parse_ip("::ffff:127.0.0.1"), Ok(ip("127.0.0.1")));
        assert_eq!(parse_ip("0:0::1"), Ok(ip("::1")));
        for malformed in ["", "localhost", "[::1]", "::1:5050:x", "10.0.0.1:5050"] {
            assert_eq!(parse_ip(malformed), Err(IpFlagError::Malformed));
        }
        assert_eq!(parse_advertised_ip("fd00::7"), Ok(ip("fd00::7")));
        for nowhere in ["0.0.0.0", "::", "::ffff:0.0.0.0", "ff02::1", "224.0.0.1"] {
            let refused = parse_advertised_ip(nowhere);
            assert!(
                matches!(refused, Err(IpFlagError::NotOfOneMachine(_))),
                "{nowhere}"
            );
        }
    }
}
