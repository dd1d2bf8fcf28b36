//! Basic authentication on the wire: parsing of the header, and the answer to a missing or wrong header.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The longest header that is read, in bytes.
const HEADER_BYTES_MAX: usize = 8 * 1024;

/// The principal and secret of a basic authentication header.
#[derive(Clone, PartialEq, Eq)]
pub struct Claim {
    pub principal: String,
    pub secret: Vec<u8>,
}

impl std::fmt::Debug for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claim")
            .field("principal", &self.principal)
            .finish_non_exhaustive()
    }
}

/// Reads the value of an `Authorization` header; `None` if it is not basic or malformed.
#[must_use]
pub fn claim(header: &[u8]) -> Option<Claim> {
    if header.len() > HEADER_BYTES_MAX {
        return None;
    }
    let space = header.iter().position(|byte| *byte == b' ')?;
    let (scheme, rest) = header.split_at(space);
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let decoded = STANDARD.decode(rest.trim_ascii()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let (principal, secret) = decoded.split_at(colon);
    Some(Claim {
        principal: String::from_utf8(principal.to_vec()).ok()?,
        secret: secret.get(1..)?.to_vec(),
    })
}

/// The value of an `Authorization` header.
#[must_use]
pub fn header(principal: &str, secret: &[u8]) -> String {
    let pair = [principal.as_bytes(), b":", secret].concat();
    format!("Basic {}", STANDARD.encode(pair))
}

/// The value of `WWW-Authenticate`.
#[must_use]
pub fn challenge(realm: &str) -> String {
    format!("Basic realm=\"{realm}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_header_round_trips() {
        let claim = claim(header("ada", b"a:b c").as_bytes()).unwrap();
        assert_eq!(claim.principal, "ada");
        assert_eq!(claim.secret, b"a:b c");
        assert!(!format!("{claim:?}").contains("97"), "no secret is shown");
    }

    #[test]
    fn nonsense_is_nobody() {
        for header in [
            "",
            "Basic",
            "Basic ",
            "Basic !!!",
            "Bearer YTpi",
            "Basic YWI=",
            "Basic /zo=",
        ] {
            assert_eq!(claim(header.as_bytes()), None, "{header:?}");
        }
        let long = format!("Basic {}", "A".repeat(1 << 20));
        assert_eq!(claim(long.as_bytes()), None);
        assert!(claim(b"bAsIc   Tm9uZTpOb25l ").is_some());
    }
}
