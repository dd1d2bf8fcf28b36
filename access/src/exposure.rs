//! The rule of starting: on loopback everything is allowed, elsewhere nothing without authentication and TLS.

use std::net::IpAddr;

/// The exposure of a daemon to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposure {
    pub address: IpAddr,
    /// Whether every client must authenticate.
    pub authentication: bool,
    pub tls: bool,
    /// Whether the operator accepts the risk.
    pub insecure: bool,
}

/// The resulting behaviour of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posture {
    /// Mesos's default: actions without a matching ACL are allowed, and authentication is optional.
    Permissive,
    /// Actions without a matching ACL are forbidden.
    Strict,
}

/// The reason why a daemon must not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("anyone on the network of {address} could run tasks as root: {}, or keep to 127.0.0.1, or give --insecure to allow it", remedy(*lacks_authentication, *lacks_tls))]
pub struct ExposureError {
    pub address: IpAddr,
    pub lacks_authentication: bool,
    pub lacks_tls: bool,
}

fn remedy(lacks_authentication: bool, lacks_tls: bool) -> &'static str {
    const BOTH: &str = "give --credentials=FILE (made with `meseta credential`) and \
                        --ssl_cert_file=FILE with --ssl_key_file=FILE";
    const CREDENTIALS: &str = "give --credentials=FILE (made with `meseta credential`) and switch \
                               off no --authenticate_* flag";
    const TLS: &str = "give --ssl_cert_file=FILE with --ssl_key_file=FILE";
    match (lacks_authentication, lacks_tls) {
        (true, true) => BOTH,
        (true, false) => CREDENTIALS,
        (false, _) => TLS,
    }
}

/// Checks whether a daemon may start with this exposure; returns its behaviour.
pub fn check(exposure: Exposure) -> Result<Posture, ExposureError> {
    if exposure.address.to_canonical().is_loopback() || exposure.insecure {
        return Ok(Posture::Permissive);
    }
    if exposure.authentication && exposure.tls {
        return Ok(Posture::Strict);
    }
    Err(ExposureError {
        address: exposure.address,
        lacks_authentication: !exposure.authentication,
        lacks_tls: !exposure.tls,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_of_starting() {
        use Posture::{Permissive, Strict};
        // Loopback, authentication, TLS, --insecure: the resulting behaviour, or the required words.
        type Row = (
            bool,
            bool,
            bool,
            bool,
            Result<Posture, &'static [&'static str]>,
        );
        let rows: [Row; 16] = [
            (true, false, false, false, Ok(Permissive)),
            (true, false, false, true, Ok(Permissive)),
            (true, false, true, false, Ok(Permissive)),
            (true, false, true, true, Ok(Permissive)),
            (true, true, false, false, Ok(Permissive)),
            (true, true, false, true, Ok(Permissive)),
            (true, true, true, false, Ok(Permissive)),
            (true, true, true, true, Ok(Permissive)),
            (
                false,
                false,
                false,
                false,
                Err(&[
                    "--credentials",
                    "--ssl_cert_file",
                    "--ssl_key_file",
                    "--insecure",
                ]),
            ),
            (false, false, false, true, Ok(Permissive)),
            (
                false,
                false,
                true,
                false,
                Err(&["--credentials", "--insecure"]),
            ),
            (false, false, true, true, Ok(Permissive)),
            (
                false,
                true,
                false,
                false,
                Err(&["--ssl_cert_file", "--insecure"]),
            ),
            (false, true, false, true, Ok(Permissive)),
            (false, true, true, false, Ok(Strict)),
            (false, true, true, true, Ok(Permissive)),
        ];
        for (loopback, authentication, tls, insecure, expected) in rows {
            for address in if loopback {
                ["127.0.0.1", "::1"]
            } else {
                ["0.0.0.0", "10.1.2.3"]
            } {
                let exposure = Exposure {
                    address: address.parse().unwrap(),
                    authentication,
                    tls,
                    insecure,
                };
                match (check(exposure), expected) {
                    (Ok(posture), Ok(expected)) => assert_eq!(posture, expected, "{exposure:?}"),
                    (Err(refusal), Err(words)) => {
                        let text = refusal.to_string();
                        for word in words {
                            assert!(text.contains(word), "{exposure:?}: {text}");
                        }
                        assert_eq!(text.contains("--credentials"), !authentication, "{text}");
                        assert_eq!(text.contains("--ssl_cert_file"), !tls, "{text}");
                    }
                    (got, expected) => panic!("{exposure:?}: {got:?}, not {expected:?}"),
                }
            }
        }
    }
}
