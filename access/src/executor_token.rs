//! The token with which an executor proves its container: a JSON web token in Mesos's format.
//!
//! [`TokenKey::sign`] makes a token for a container, [`TokenKey::verify`] reads it. Signed with HMAC-SHA256, so that only the
//! key has to be kept. Invariant: `Debug` shows neither the key nor a token, and the time of a signature's comparison reveals
//! nothing.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The longest accepted token, in bytes: three ids and the surrounding text.
const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// The shortest key, in bytes.
pub const KEY_BYTES_MIN: usize = 16;
/// The block size of SHA-256, in bytes.
const BLOCK_BYTES: usize = 64;

/// The claims of a token, under the names that Mesos gives them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    #[serde(rename = "fid")]
    pub framework: String,
    #[serde(rename = "eid")]
    pub executor: String,
    #[serde(rename = "cid")]
    pub container: String,
}

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    typ: Option<String>,
}

/// The key with which an agent signs its tokens.
#[derive(Clone)]
pub struct TokenKey {
    inner: [u8; BLOCK_BYTES],
    outer: [u8; BLOCK_BYTES],
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(..)")
    }
}

impl TokenKey {
    /// Makes a key; `None` if the key is shorter than [`KEY_BYTES_MIN`].
    #[must_use]
    pub fn new(key: &[u8]) -> Option<Self> {
        if key.len() < KEY_BYTES_MIN {
            return None;
        }
        let hashed = Sha256::digest(key);
        let key = if key.len() > BLOCK_BYTES {
            &hashed[..]
        } else {
            key
        };
        let padded = |pad: u8| {
            let mut block = [pad; BLOCK_BYTES];
            for (byte, of_key) in block.iter_mut().zip(key) {
                *byte ^= of_key;
            }
            block
        };
        Some(Self {
            inner: padded(0x36),
            outer: padded(0x5c),
        })
    }

    /// Signs the token of a container.
    #[must_use]
    pub fn sign(&self, claims: &Claims) -> String {
        let header = Header {
            alg: "HS256".to_owned(),
            typ: Some("JWT".to_owned()),
        };
        let encode = |json: serde_json::Result<Vec<u8>>| {
            // Strings always have a JSON form.
            URL_SAFE_NO_PAD.encode(json.unwrap_or_default())
        };
        let header = encode(serde_json::to_vec(&header));
        let payload = encode(serde_json::to_vec(claims));
        let signed = format!("{header}.{payload}");
        let signature = URL_SAFE_NO_PAD.encode(self.mac(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    /// The claims of a token, if it was signed with this key.
    #[must_use]
    pub fn verify(&self, token: &str) -> Option<Claims> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        if !are_equal(&signature, &self.mac(signed.as_bytes())) {
            return None;
        }
        let header: Header = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
        if header.alg != "HS256" {
            return None;
        }
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
    }

    /// The HMAC of a message (RFC 2104).
    fn mac(&self, message: &[u8]) -> [u8; 32] {
        let inside = Sha256::new()
            .chain_update(self.inner)
            .chain_update(message)
            .finalize();
        let whole = Sha256::new()
            .chain_update(self.outer)
            .chain_update(inside)
            .finalize();
        whole.into()
    }
}

/// The token in the value of an `Authorization` header.
#[must_use]
pub fn bearer(header: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(header).ok()?;
    let (scheme, token) = text.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.trim_ascii())
}

fn are_equal(left: &[u8], right: &[u8]) -> bool {
    let differences = left.iter().zip(right);
    let difference = differences.fold(0, |sum, (left, right)| sum | (left ^ right));
    left.len() == right.len() && std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &[u8]) -> TokenKey {
        TokenKey::new(text).expect("long enough")
    }

    fn claims(executor: &str) -> Claims {
        Claims {
            framework: "f-0001".to_owned(),
            executor: executor.to_owned(),
            container: "c".to_owned(),
        }
    }

    #[test]
    fn hmac_matches_rfc_4231() {
        // Cases 1, 2 (with a key of our length in between) and 6: short, and longer than a block.
        let hex = |bytes: [u8; 32]| bytes.map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(
            hex(key(&[0x0b; 20]).mac(b"Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        assert_eq!(
            hex(key(&[0xaa; 131]).mac(b"Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
        assert!(TokenKey::new(b"Jefe").is_none(), "too short a key");
    }

    #[test]
    fn token_verifies_only_signed_claims() {
        let ours = key(b"0123456789abcdef");
        let token = ours.sign(&claims("e-\"1\""));
        assert!(token.starts_with("eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9."));
        assert_eq!(ours.verify(&token), Some(claims("e-\"1\"")));
        assert_eq!(key(b"fedcba9876543210").verify(&token), None);
        let other = ours.sign(&claims("e-2"));
        let parts = |token: &str| -> Vec<String> { token.split('.').map(str::to_owned).collect() };
        let (own, other) = (parts(&token), parts(&other));
        let mixed = format!("{}.{}.{}", own[0], other[1], own[2]);
        assert_eq!(ours.verify(&mixed), None, "claims of another");
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        for forged in [
            format!("{none}.{}.", own[1]),
            format!("{none}.{}.{}", own[1], own[2]),
            format!("{}.{}.", own[0], own[1]),
            format!("{}.{}", own[0], own[1]),
            token.get(..token.len() - 2).unwrap().to_owned(),
            String::new(),
            "..".to_owned(),
            "x".repeat(TOKEN_BYTES_MAX + 1),
        ] {
            assert_eq!(ours.verify(&forged), None, "{forged}");
        }
        assert_eq!(format!("{ours:?}"), "TokenKey(..)");
    }

    #[test]
    fn foreign_algorithm_is_refused_despite_signature() {
        let ours = key(b"0123456789abcdef");
        let signed = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#),
            URL_SAFE_NO_PAD.encode(serde_json::to_vec(&claims("e")).unwrap())
        );
        let signature = URL_SAFE_NO_PAD.encode(ours.mac(signed.as_bytes()));
        assert_eq!(ours.verify(&format!("{signed}.{signature}")), None);
    }

    #[test]
    fn mesos_executor_header_is_accepted() {
        assert_eq!(bearer(b"Bearer a.b.c"), Some("a.b.c"));
        assert_eq!(bearer(b"bearer  a.b.c "), Some("a.b.c"));
        for other in [b"Basic eA==".as_slice(), b"Bearer", b"", b"\xff x"] {
            assert_eq!(bearer(other), None);
        }
    }
}
