//! The name under which others know a daemon.

use std::net::IpAddr;

/// Returns the default name of a daemon: on loopback the address, which no other machine reaches; else the machine's name,
/// or the address if the name is no text.
#[must_use]
pub fn for_address(advertised: IpAddr) -> String {
    let advertised = advertised.to_canonical();
    if advertised.is_loopback() {
        return advertised.to_string();
    }
    let name = rustix::system::uname();
    name.nodename()
        .to_str()
        .map_or_else(|_| advertised.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn loopback_daemon_uses_its_address() {
        assert_eq!(for_address(IpAddr::from([127, 0, 0, 1])), "127.0.0.1");
        assert_eq!(for_address(Ipv6Addr::LOCALHOST.into()), "::1");
        let mapped = "::ffff:127.0.0.1".parse().unwrap();
        assert_eq!(for_address(mapped), "127.0.0.1");
        assert!(!for_address(IpAddr::from([0, 0, 0, 0])).is_empty());
    }
}
