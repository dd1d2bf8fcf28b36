//! The URI that marks a certificate as a principal's and not a machine's: `meseta:principal:NAME`, with all characters of
//! the name but ASCII letters, digits, `-`, `.`, `_` and `~` percent-encoded (RFC 3986, section 2.3).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

const PREFIX: &str = "meseta:principal:";
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Returns the URI of a principal, for a certificate's subject alternative names.
#[must_use]
pub fn principal_uri(name: &str) -> String {
    format!("{PREFIX}{}", utf8_percent_encode(name, ENCODED))
}

/// Returns the principal that a URI names, if any.
pub(super) fn principal_of(uri: &str) -> Option<String> {
    let encoded = uri.strip_prefix(PREFIX)?;
    let name = percent_decode_str(encoded).decode_utf8().ok()?;
    // Each name has a single spelling.
    (!name.is_empty() && principal_uri(&name) == uri).then(|| name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn principal_name_round_trips() {
        for name in ["admin", "a b%c/d", "jürgen", "x@y.example", "%61dmin"] {
            assert_eq!(principal_of(&principal_uri(name)).as_deref(), Some(name));
        }
        assert_eq!(principal_uri("a%"), "meseta:principal:a%25");
    }

    #[test]
    fn other_uris_name_nobody() {
        for uri in [
            "",
            "meseta:principal:",
            "meseta:principal:%61dmin",
            "meseta:principal:a b",
            "meseta:principal:%ff",
            "MESETA:principal:admin",
            "spiffe://example/admin",
        ] {
            assert_eq!(principal_of(uri), None, "{uri}");
        }
    }
}
