//! The mark of a daemon's kind in its certificate: the URI `meseta:daemon:master`, `meseta:daemon:agent` or
//! `meseta:daemon:scheduler` among its names.
//!
//! Any machine of a fleet has a certificate signed by the fleet's authority. The mark prevents the use of a stolen agent's
//! certificate for a master. Invariant: a certificate with marks is valid for servers of these kinds alone. A certificate
//! without marks, as older versions and other authorities sign them, is valid for the server that the user named, and for
//! no server that another server named.

use std::fmt;

use rustls::pki_types::{CertificateDer, ServerName};

const PREFIX: &str = "meseta:daemon:";

/// A kind of daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonKind {
    Master,
    Agent,
    Scheduler,
}

impl DaemonKind {
    const ALL: [Self; 3] = [Self::Master, Self::Agent, Self::Scheduler];

    const fn name(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::Agent => "agent",
            Self::Scheduler => "scheduler",
        }
    }

    /// Returns the URI that marks certificates of this kind, among their subject alternative names.
    #[must_use]
    pub fn uri(self) -> String {
        format!("{PREFIX}{}", self.name())
    }

    fn of_uri(uri: &str) -> Option<Self> {
        let name = uri.strip_prefix(PREFIX)?;
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The servers to which a client sends secrets.
#[derive(Clone, Debug)]
pub(super) struct ExpectedServer {
    kind: DaemonKind,
    /// The hosts that the user specified as such servers.
    named: Vec<ServerName<'static>>,
    /// True if a certificate without a mark is accepted on any host.
    takes_unmarked: bool,
}

/// The reason why an otherwise valid certificate does not belong to the expected server.
#[derive(thiserror::Error)]
pub(super) enum WrongServer {
    #[error("the certificate is that of another daemon: it names no {}", .expected.name())]
    Kind { expected: DaemonKind },
    #[error(
        "the certificate is not marked for a {kind}, and its host is not among the hosts given as {kind}s: \
         renew it (`meseta tls renew`), or name that host too",
        kind = .expected.name()
    )]
    Unmarked { expected: DaemonKind },
}

impl fmt::Debug for WrongServer {
    /// Writes the message: rustls shows foreign errors in this form only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl ExpectedServer {
    /// Expects servers that the user specified, each as `host`, `host:port` or a URL.
    pub(super) fn new(kind: DaemonKind, named: &[String]) -> Self {
        let name = |address: &String| ServerName::try_from(host_of(address).to_owned()).ok();
        let named = named.iter().filter_map(name).collect();
        Self {
            kind,
            named,
            takes_unmarked: false,
        }
    }

    /// Expects servers that no user specified.
    pub(super) fn on_any_host(kind: DaemonKind, takes_unmarked: bool) -> Self {
        Self {
            takes_unmarked,
            ..Self::new(kind, &[])
        }
    }

    /// Checks the marks of an otherwise valid certificate.
    pub(super) fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), WrongServer> {
        let expected = self.kind;
        let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else {
            return Err(WrongServer::Unmarked { expected });
        };
        let mut marks = certificate
            .valid_uri_names()
            .filter(|uri| uri.starts_with(PREFIX))
            .peekable();
        if marks.peek().is_some() {
            let is_expected = marks.any(|uri| DaemonKind::of_uri(uri) == Some(expected));
            return is_expected
                .then_some(())
                .ok_or(WrongServer::Kind { expected });
        }
        let is_for =
            |name: &ServerName<'_>| certificate.verify_is_valid_for_subject_name(name).is_ok();
        let is_named = self.takes_unmarked || self.named.iter().any(is_for);
        is_named
            .then_some(())
            .ok_or(WrongServer::Unmarked { expected })
    }
}

/// Returns true if a certificate has a mark of any kind.
pub(super) fn is_marked(certificate: &CertificateDer<'_>) -> bool {
    webpki::EndEntityCert::try_from(certificate).is_ok_and(|certificate| {
        certificate
            .valid_uri_names()
            .any(|uri| uri.starts_with(PREFIX))
    })
}

/// Returns the host of an address.
pub(super) fn host_of(address: &str) -> &str {
    let (_, address) = address
        .trim()
        .split_once("://")
        .unwrap_or(("", address.trim()));
    let address = address.split('/').next().unwrap_or_default();
    match address.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        // An IPv6 address without brackets has no port.
        None if address.matches(':').count() > 1 => address,
        None => address.split(':').next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a certificate for these hosts with these URIs.
    fn certificate(hosts: &[&str], uris: &[&str]) -> CertificateDer<'static> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(hosts).unwrap();
        for uri in uris {
            params
                .subject_alt_names
                .push(rcgen::SanType::URI((*uri).try_into().unwrap()));
        }
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn certificates_of_other_daemons_are_refused() {
        let named = [
            "m1.example:5050",
            "https://10.0.0.1:5050",
            "[2001:db8::1]:5050",
        ]
        .map(str::to_owned);
        let check = |hosts: &[&str], uris: &[&str]| {
            let expected = ExpectedServer::new(DaemonKind::Master, &named);
            expected
                .check(&certificate(hosts, uris))
                .map_err(|error| error.to_string())
        };
        let master = DaemonKind::Master.uri();
        assert_eq!(
            check(&["m9.example"], &[&master]),
            Ok(()),
            "it says what it is"
        );
        // The rule also holds if the user has named its host: a node on the machine of a master is no master.
        for uris in [
            &["meseta:daemon:agent"][..],
            &["meseta:daemon:scheduler"],
            &["meseta:daemon:Master"],
            &["meseta:daemon:"],
            &["meseta:daemon:master2"],
        ] {
            let told = check(&["m1.example"], uris).expect_err(uris[0]);
            assert!(told.contains("names no master"), "{told}");
        }
        let both = ["meseta:daemon:agent", &master];
        assert_eq!(check(&["node.example"], &both), Ok(()));
        // Unmarked certificates come from older versions and other authorities.
        for host in ["m1.example", "10.0.0.1", "2001:db8::1"] {
            assert_eq!(check(&[host], &[]), Ok(()), "{host}");
        }
        let told = check(&["node.example", "10.0.0.7"], &["spiffe://x/y"]).expect_err("not named");
        assert!(told.contains("`meseta tls renew`"), "{told}");
    }

    #[test]
    fn host_of_address_is_found() {
        for (address, host) in [
            ("a:5050", "a"),
            ("a", "a"),
            ("https://a.b:1/x", "a.b"),
            ("[::1]:5050", "::1"),
            ("::1", "::1"),
            ("http://[::1]", "::1"),
        ] {
            assert_eq!(host_of(address), host, "{address}");
        }
    }
}
