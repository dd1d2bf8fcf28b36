//! A host and a port, in the form of URLs.
//!
//! [`HostPort`] is the only way in which the daemons and the command line join the two. Invariant: an IPv6 address stands in
//! brackets before its port (`[::1]:5050`), for every input form, so that the text can follow `http://` and can be parsed
//! again.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// A host name or an IP address, with a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// The name, or the address without brackets.
    host: String,
    port: u16,
}

impl HostPort {
    /// Joins a host name or an address, with or without brackets, and a port.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        let inside = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let host = inside.map(str::to_owned).unwrap_or(host);
        Self { host, port }
    }

    /// Joins a host and a port of a message; a number that cannot be a port becomes 0, on which nothing listens.
    #[must_use]
    pub fn of_message(host: &str, port: impl TryInto<u16>) -> Self {
        Self::new(host, port.try_into().unwrap_or_default())
    }

    /// The host name, or the address without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a path on this host, for instance `http://[::1]:5050/state`.
    #[must_use]
    pub fn url(&self, scheme: &str, path: &str) -> String {
        format!("{scheme}://{self}{path}")
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(out, "[{}]:{}", self.host, self.port),
            false => write!(out, "{}:{}", self.host, self.port),
        }
    }
}

impl From<SocketAddr> for HostPort {
    /// Writes an IPv4 address in the form of IPv6 as IPv4.
    fn from(address: SocketAddr) -> Self {
        Self::new(address.ip().to_canonical().to_string(), address.port())
    }
}

/// The reasons why a text is not a host and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostPortError {
    #[error("the port is missing: give HOST:PORT")]
    NoPort,
    #[error("an IPv6 address before a port needs brackets, as in [::1]:5050")]
    NoBrackets,
    #[error("the host is missing or has letters that no host name has")]
    Host,
    #[error("the port is not a number from 1 to 65535")]
    Port,
}

impl FromStr for HostPort {
    type Err = HostPortError;

    /// Parses `host:port`, `10.0.0.1:port` or `[::1]:port`.
    fn from_str(text: &str) -> Result<Self, HostPortError> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (inside, rest) = rest.split_once(']').ok_or(HostPortError::Host)?;
                let address = inside.parse::<Ipv6Addr>();
                let address = address.map_err(|_| HostPortError::Host)?;
                let port = rest.strip_prefix(':').ok_or(HostPortError::NoPort)?;
                (address.to_string(), port)
            }
            None => {
                if text.parse::<Ipv6Addr>().is_ok() || text.matches(':').count() > 1 {
                    return Err(HostPortError::NoBrackets);
                }
                let (host, port) = text.split_once(':').ok_or(HostPortError::NoPort)?;
                (checked_host(host)?.to_owned(), port)
            }
        };
        let is_number = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        let port = port.parse().ok().filter(|port| *port != 0 && is_number);
        Ok(Self {
            host,
            port: port.ok_or(HostPortError::Port)?,
        })
    }
}

/// A host name or an IPv4 address.
fn checked_host(host: &str) -> Result<&str, HostPortError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    match !host.is_empty() && host.chars().all(is_plain) {
        true => Ok(host),
        false => Err(HostPortError::Host),
    }
}

/// The text of an IP address in its usual form, and any other text unchanged: `::0001` and `::1` are one address.
#[must_use]
pub fn usual_ip(text: &str) -> String {
    let parsed = text.parse::<IpAddr>();
    parsed.map_or_else(|_| text.to_owned(), |ip| ip.to_canonical().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_address_is_written_in_brackets() {
        for (host, expected) in [
            ("node1.example", "node1.example:5050"),
            ("10.0.0.1", "10.0.0.1:5050"),
            ("::1", "[::1]:5050"),
            ("[::1]", "[::1]:5050"),
            ("fd00::7", "[fd00::7]:5050"),
            ("fe80::1%eth0", "[fe80::1%eth0]:5050"),
        ] {
            assert_eq!(HostPort::new(host, 5050).to_string(), expected);
        }
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:5050".parse().expect("an address");
        assert_eq!(HostPort::from(mapped).to_string(), "10.0.0.1:5050");
        let url = HostPort::new("::1", 80).url("http", "/state");
        assert_eq!(url, "http://[::1]:80/state");
        assert_eq!(HostPort::of_message("::1", -1_i32).to_string(), "[::1]:0");
    }

    #[test]
    fn written_addresses_parse_again() {
        for text in ["a:1", "10.0.0.1:65535", "[::1]:5050", "[fd00::7]:5051"] {
            let parsed: HostPort = text.parse().expect(text);
            assert_eq!(parsed.to_string(), text);
        }
        for (text, reason) in [
            ("a", HostPortError::NoPort),
            ("[::1]", HostPortError::NoPort),
            ("::1", HostPortError::NoBrackets),
            ("::1:5050", HostPortError::NoBrackets),
            ("fd00::7:5050", HostPortError::NoBrackets),
            (":5050", HostPortError::Host),
            ("[]:5050", HostPortError::Host),
            ("[::1", HostPortError::Host),
            ("[a]:1", HostPortError::Host),
            ("a b:1", HostPortError::Host),
            ("a/b:1", HostPortError::Host),
            ("a:0", HostPortError::Port),
            ("a:+1", HostPortError::Port),
            ("a:65536", HostPortError::Port),
            ("[::1]:", HostPortError::Port),
        ] {
            assert_eq!(text.parse::<HostPort>(), Err(reason), "{text}");
        }
    }

    #[test]
    fn ip_addresses_are_compared_normalized() {
        for (text, expected) in [
            ("0:0:0:0:0:0:0:1", "::1"),
            ("FD00::7", "fd00::7"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("node1", "node1"),
        ] {
            assert_eq!(usual_ip(text), expected);
        }
    }
}
