//! Addresses in the form that users type: with or without a scheme and a port.

use meseta_resources::HostPort;

use super::identity;

/// The default port of masters.
pub(super) const MASTER_PORT: u16 = 5050;
/// The default port of agents.
pub(super) const AGENT_PORT: u16 = 5051;

/// Returns the URL of a path; an address without a port is a master's.
pub(super) fn url(address: &str, path: &str) -> String {
    let (scheme, address) = base(address);
    format!("{scheme}://{address}{path}")
}

/// Returns the URL, with this scheme if the address has none.
pub(super) fn url_with(scheme: &str, address: &str, path: &str) -> String {
    match address.contains("://") {
        true => url(address, path),
        false => url(&format!("{scheme}://{address}"), path),
    }
}

/// Returns the scheme, and the host with its port, of a typed address of a master.
pub(super) fn base(address: &str) -> (&str, String) {
    base_with(address, MASTER_PORT)
}

/// Returns the scheme, and the host with its port, of a daemon with another default port.
pub(super) fn base_with(address: &str, usual_port: u16) -> (&str, String) {
    let address = address.trim().trim_end_matches('/');
    let (scheme, rest) = address
        .split_once("://")
        .unwrap_or((identity::scheme(), address));
    let scheme = known_scheme(scheme).unwrap_or(scheme);
    let rest = without_pid(rest);
    if has_port(rest) {
        return (scheme, rest.to_owned());
    }
    (scheme, HostPort::new(rest, usual_port).to_string())
}

fn known_scheme(scheme: &str) -> Option<&'static str> {
    let mut known = ["http", "https"].into_iter();
    known.find(|known| known.eq_ignore_ascii_case(scheme))
}

/// Removes the prefix of an address in a master's own form, which agents accept too.
fn without_pid(address: &str) -> &str {
    address.strip_prefix("master@").unwrap_or(address)
}

/// Refuses an invalid address of a master, with the reason.
pub(super) fn check(address: &str) -> Result<(), String> {
    let address = address.trim();
    let rest = match address.split_once("://") {
        Some((scheme, rest)) if known_scheme(scheme).is_some() => rest,
        Some((scheme, _)) => {
            return Err(format!(
                "{scheme:?} is not a supported scheme: give HOST:PORT or https://HOST:PORT"
            ));
        }
        None => address,
    };
    let rest = without_pid(rest.trim_end_matches('/'));
    if rest.parse::<std::net::Ipv6Addr>().is_ok() {
        return Ok(());
    }
    let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        // The bracket is followed by a port or the end.
        Some((host, port)) => match port.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None => ("", None),
        },
        None => match rest.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        },
    };
    let is_odd = |letter: char| letter.is_whitespace() || "/?#@[]".contains(letter);
    if host.is_empty() || host.contains(is_odd) {
        return Err(format!(
            "{address:?} names no host: give HOST:PORT or https://HOST:PORT"
        ));
    }
    match port {
        Some(port) if port.contains(':') => Err(format!(
            "{address:?} has several colons: before a port an IPv6 address stands in brackets, as in [::1]:{MASTER_PORT}"
        )),
        Some(port) if port.parse::<std::num::NonZeroU16>().is_err() => Err(format!(
            "{port:?} is not a port: give a number from 1 to 65535"
        )),
        Some(_) | None => Ok(()),
    }
}

pub(super) fn has_port(address: &str) -> bool {
    // The colons of an IPv6 address precede no port, unless it stands in brackets.
    let is_bare_v6 = address.parse::<std::net::Ipv6Addr>().is_ok();
    let port = address.rsplit_once(':').map(|(_, port)| port);
    !is_bare_v6 && port.is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn master_without_port_uses_its_default() {
        for (address, expected) in [
            ("host", "http://host:5050/state"),
            ("host:5060", "http://host:5060/state"),
            ("http://host", "http://host:5050/state"),
            ("HTTPS://host", "https://host:5050/state"),
            ("master@host:5060", "http://host:5060/state"),
            ("https://host:443/", "https://host:443/state"),
            ("::1", "http://[::1]:5050/state"),
            ("[::1]", "http://[::1]:5050/state"),
            ("[::1]:5060", "http://[::1]:5060/state"),
        ] {
            assert_eq!(url(address, "/state"), expected, "{address}");
        }
    }
}
