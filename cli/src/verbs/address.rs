//! Addresses as they are typed: with a scheme and a port, or without.

use super::identity;

/// Where masters listen unless they are told otherwise.
pub(super) const MASTER_PORT: u16 = 5050;
/// Where agents listen unless they are told otherwise.
pub(super) const AGENT_PORT: u16 = 5051;

/// An address without a port is one of a master.
pub(super) fn url(address: &str, path: &str) -> String {
    let (scheme, address) = base(address);
    format!("{scheme}://{address}{path}")
}

/// The scheme, and the host with its port, of an address that was typed.
pub(super) fn base(address: &str) -> (&str, String) {
    let address = address.trim().trim_end_matches('/');
    let (scheme, rest) = address
        .split_once("://")
        .unwrap_or((identity::scheme(), address));
    if has_port(rest) {
        return (scheme, rest.to_owned());
    }
    match rest.parse::<std::net::Ipv6Addr>() {
        Ok(bare) => (scheme, format!("[{bare}]:{MASTER_PORT}")),
        Err(_) => (scheme, format!("{rest}:{MASTER_PORT}")),
    }
}

pub(super) fn has_port(address: &str) -> bool {
    // The colons of an IPv6 address are none before a port, unless it stands in brackets.
    let is_bare_v6 = address.parse::<std::net::Ipv6Addr>().is_ok();
    let port = address.rsplit_once(':').map(|(_, port)| port);
    !is_bare_v6 && port.is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_without_a_port_listens_on_its_own() {
        for (address, expected) in [
            ("host", "http://host:5050/state"),
            ("host:5060", "http://host:5060/state"),
            ("http://host", "http://host:5050/state"),
            ("https://host:443/", "https://host:443/state"),
            ("::1", "http://[::1]:5050/state"),
            ("[::1]", "http://[::1]:5050/state"),
            ("[::1]:5060", "http://[::1]:5060/state"),
        ] {
            assert_eq!(url(address, "/state"), expected, "{address}");
        }
    }
}
