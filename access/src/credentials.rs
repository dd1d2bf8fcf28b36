//! Files of credentials: principals, and the hashes of their secrets.
//!
//! Read from Mesos's JSON or from lines of `principal hash`. Invariant: a secret in plain text is an error that explains how
//! to make a hash, and no error repeats a secret.

use std::collections::BTreeMap;
use std::fmt;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::basic::Claim;

/// The maximum number of principals in one file.
const PRINCIPALS_MAX: usize = 100_000;
/// The longest name of a principal, in bytes.
const PRINCIPAL_BYTES_MAX: usize = 255;
/// The first character of a comment line.
const COMMENT: char = '#';
/// The first character of a JSON file.
const JSON: char = '{';
/// The maximum memory for checking one secret, in KiB.
const MEMORY_KIB_MAX: u32 = 256 * 1024;
/// The maximum number of passes over that memory.
const PASSES_MAX: u32 = 32;

/// A hash in PHC form, for example `$argon2id$v=19$m=19456,t=2,p=1$...`.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretHash(PasswordHash);

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(..)")
    }
}

impl SecretHash {
    /// Hashes a secret with argon2id: some 20 MiB and tens of milliseconds make guessing expensive.
    pub fn from_secret(secret: &[u8], salt: [u8; 16]) -> Result<Self, CredentialError> {
        let hash = Argon2::default().hash_password_with_salt(secret, &salt);
        hash.map(Self)
            .map_err(|error| CredentialError::Hashing(error.to_string()))
    }

    /// Parses the text form of a hash.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if !text.starts_with('$') {
            return Err("is in plain text: make a hash with \
                        `meseta credential`");
        }
        let hash = PasswordHash::new(text).map_err(|_| "is not a hash in PHC format")?;
        if !matches!(hash.algorithm.as_str(), "argon2id" | "argon2i" | "argon2d") {
            return Err("is a hash of an unknown kind: make a hash with \
                        `meseta credential`");
        }
        if hash.salt.is_none() || hash.hash.is_none() {
            return Err("is an incomplete hash");
        }
        let params = argon2::Params::try_from(&hash).map_err(|_| "has invalid parameters")?;
        if params.m_cost() > MEMORY_KIB_MAX || params.t_cost() > PASSES_MAX {
            return Err("would take more than 256 MiB or 32 passes to check");
        }
        Ok(Self(hash))
    }

    /// Whether this is the hash of that secret. Slow by design.
    #[must_use]
    pub fn is_of(&self, secret: &[u8]) -> bool {
        Argon2::default().verify_password(secret, &self.0).is_ok()
    }
}

impl fmt::Display for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Credentials {
    hashes: BTreeMap<String, SecretHash>,
}

/// Errors in a file of credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    #[error(
        "the file is neither JSON of the form {{\"credentials\": [{{\"principal\": ..., \
         \"secret\": ...}}]}} nor lines of `principal hash`{0}"
    )]
    Syntax(String),
    #[error("the secret of '{principal}' {reason}")]
    Secret {
        principal: String,
        reason: &'static str,
    },
    #[error(
        "credential {number} has no principal, or its principal has a colon, spaces or more than \
         {PRINCIPAL_BYTES_MAX} bytes"
    )]
    Principal { number: usize },
    #[error("principal '{0}' occurs twice: remove one entry")]
    Twice(String),
    #[error("`{key}` occurs twice in one object (line {line}, column {column}): remove one")]
    KeyTwice {
        key: &'static str,
        line: usize,
        column: usize,
    },
    #[error("the file has no principal: make a line with `meseta credential`")]
    Empty,
    #[error("the file has more than {PRINCIPALS_MAX} principals")]
    TooMany,
    #[error("failed to hash the secret: {0}")]
    Hashing(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    credentials: Vec<Pair>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    principal: String,
    #[serde(default)]
    secret: String,
}

impl Credentials {
    /// Parses the text of a file.
    pub fn parse(text: &str) -> Result<Self, CredentialError> {
        let pairs = if text.trim_start().starts_with(JSON) {
            let file = serde_json::from_str::<File>(text).map_err(|error| {
                let (line, column) = (error.line(), error.column());
                key_twice(&error).unwrap_or_else(|| {
                    CredentialError::Syntax(format!(" (line {line}, column {column})"))
                })
            })?;
            file.credentials
        } else {
            lines(text)?
        };
        if pairs.is_empty() {
            return Err(CredentialError::Empty);
        }
        if pairs.len() > PRINCIPALS_MAX {
            return Err(CredentialError::TooMany);
        }
        let mut hashes = BTreeMap::new();
        for (index, pair) in pairs.into_iter().enumerate() {
            if !is_principal(&pair.principal) {
                return Err(CredentialError::Principal { number: index + 1 });
            }
            let hash =
                SecretHash::parse(&pair.secret).map_err(|reason| CredentialError::Secret {
                    principal: pair.principal.clone(),
                    reason,
                })?;
            if hashes.insert(pair.principal.clone(), hash).is_some() {
                return Err(CredentialError::Twice(pair.principal));
            }
        }
        Ok(Self { hashes })
    }

    /// The hash of a principal's secret.
    #[must_use]
    pub fn find(&self, principal: &str) -> Option<&SecretHash> {
        self.hashes.get(principal)
    }

    /// The hash of an arbitrary principal: the check of an unknown principal compares with it, so that it takes as long.
    #[must_use]
    pub fn any_hash(&self) -> Option<&SecretHash> {
        self.hashes.values().next()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }
}

/// Whether a text is a valid principal: a colon would end the name on the wire.
#[must_use]
pub fn is_principal(name: &str) -> bool {
    let is_plain = |c: char| c != ':' && !c.is_whitespace() && !c.is_control();
    !name.is_empty() && name.len() <= PRINCIPAL_BYTES_MAX && name.chars().all(is_plain)
}

/// Whether a line of a file of credentials may begin with this principal: otherwise the line is a comment, or JSON.
#[must_use]
pub fn may_begin_line(principal: &str) -> bool {
    !principal.starts_with([COMMENT, JSON])
}

/// The fingerprint of a checked claim: without `key`, which is never stored, it reveals neither the secret nor a guess.
#[must_use]
pub fn fingerprint(key: &[u8; 32], claim: &Claim) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(key);
    hash.update((claim.principal.len() as u64).to_be_bytes());
    hash.update(claim.principal.as_bytes());
    hash.update(&claim.secret);
    hash.finalize().into()
}

/// The refusal of an object that has one of these keys twice. serde's own text is not passed on: it repeats the input, which
/// may be a secret.
fn key_twice(error: &serde_json::Error) -> Option<CredentialError> {
    let text = error.to_string();
    let mut keys = ["credentials", "principal", "secret"].into_iter();
    let key = keys.find(|key| text.starts_with(&format!("duplicate field `{key}`")))?;
    Some(CredentialError::KeyTwice {
        key,
        line: error.line(),
        column: error.column(),
    })
}

fn lines(text: &str) -> Result<Vec<Pair>, CredentialError> {
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with(COMMENT));
    lines
        .map(|(index, line)| {
            let mut words = line.split_whitespace();
            match (words.next(), words.next(), words.next()) {
                (Some(principal), Some(secret), None) => Ok(Pair {
                    principal: principal.to_owned(),
                    secret: secret.to_owned(),
                }),
                _ => Err(CredentialError::Syntax(format!(" (line {})", index + 1))),
            }
        })
        .collect()
}

/// The principal of a client, and its secret in plain text: only here it is needed.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    pub principal: String,
    pub secret: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("principal", &self.principal)
            .finish_non_exhaustive()
    }
}

impl Credential {
    /// Parses `{"principal": ..., "secret": ...}` or one line of `principal secret`.
    pub fn parse(text: &str) -> Result<Self, CredentialError> {
        let pair = if text.trim_start().starts_with(JSON) {
            serde_json::from_str::<Pair>(text).map_err(|error| {
                key_twice(&error).unwrap_or_else(|| {
                    CredentialError::Syntax(" (one pair is expected here)".to_owned())
                })
            })?
        } else {
            let mut pairs = lines(text)?.into_iter();
            match (pairs.next(), pairs.next()) {
                (Some(pair), None) => pair,
                _ => {
                    let text = " (one pair is expected here)".to_owned();
                    return Err(CredentialError::Syntax(text));
                }
            }
        };
        if !is_principal(&pair.principal) {
            return Err(CredentialError::Principal { number: 1 });
        }
        if pair.secret.starts_with("$argon2") {
            return Err(CredentialError::Secret {
                principal: pair.principal,
                reason: "is a hash: give the secret itself",
            });
        }
        Ok(Self {
            principal: pair.principal,
            secret: pair.secret,
        })
    }

    /// The value of an `Authorization` header.
    #[must_use]
    pub fn header(&self) -> String {
        crate::basic::header(&self.principal, self.secret.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(secret: &str) -> String {
        SecretHash::from_secret(secret.as_bytes(), [7; 16])
            .unwrap()
            .to_string()
    }

    #[test]
    fn both_file_formats_are_read() {
        let hash = hash("wonder");
        let json = format!(r#"{{"credentials":[{{"principal":"ada","secret":"{hash}"}}]}}"#);
        let text = format!("# people\n\nada {hash}\n");
        for file in [json, text] {
            let credentials = Credentials::parse(&file).unwrap();
            assert_eq!(credentials.len(), 1);
            let found = credentials.find("ada").unwrap();
            assert!(found.is_of(b"wonder"));
            assert!(!found.is_of(b"wonder "));
            assert!(credentials.find("bob").is_none());
            assert!(!format!("{credentials:?}").contains("argon2"));
        }
    }

    #[test]
    fn plain_secrets_are_refused_without_echo() {
        for file in [
            r#"{"credentials":[{"principal":"ada","secret":"CANARY"}]}"#,
            "ada CANARY",
            "ada CANARY more",
            r#"{"credentials":[{"principal":"ada","secret":"CANARY","x":1}]}"#,
            r#"{"credentials":"CANARY"}"#,
            r#"{"credentials":[{"principal":"ada","secret":"$2b$CANARY"}]}"#,
        ] {
            let error = Credentials::parse(file).unwrap_err().to_string();
            assert!(!error.contains("CANARY"), "{error}");
        }
        let error = Credentials::parse("ada CANARY").unwrap_err().to_string();
        assert!(error.contains("`meseta credential`"), "{error}");
        let dear = "ada $argon2id$v=19$m=4194304,t=2,p=1$c2FsdHNhbHQ$aGFzaGhhc2hoYXNoaGFzaA";
        let error = Credentials::parse(dear).unwrap_err().to_string();
        assert!(error.contains("256 MiB"), "{error}");
    }

    #[test]
    fn principals_are_unique_and_named() {
        let hash = hash("x");
        let twice = format!("ada {hash}\nada {hash}");
        assert_eq!(
            Credentials::parse(&twice).unwrap_err(),
            CredentialError::Twice("ada".to_owned())
        );
        assert_eq!(Credentials::parse("").unwrap_err(), CredentialError::Empty);
        let colon = format!("a:b {hash}");
        assert!(matches!(
            Credentials::parse(&colon),
            Err(CredentialError::Principal { number: 1 })
        ));
    }

    /// A file with a duplicate key does not show which value is meant.
    #[test]
    fn duplicate_key_error_names_key() {
        let pair = r#"{"principal":"ada","secret":"CANARY","secret":"b"}"#;
        let file = format!(r#"{{"credentials":[{pair}]}}"#);
        let file = Credentials::parse(&file).unwrap_err();
        let pair = Credential::parse(pair).unwrap_err();
        for error in [file.to_string(), pair.to_string()] {
            assert!(error.contains("`secret` occurs twice"), "{error}");
            assert!(!error.contains("CANARY"), "{error}");
        }
        let lists = r#"{"credentials":[],"credentials":[]}"#;
        let error = Credentials::parse(lists).unwrap_err().to_string();
        assert!(error.contains("`credentials` occurs twice"), "{error}");
    }

    #[test]
    fn comment_like_principal_line_is_refused() {
        let hash = hash("x");
        for principal in ["#x", "{x"] {
            let text = format!("{principal} {hash}\n");
            assert!(!may_begin_line(principal) && is_principal(principal));
            assert!(Credentials::parse(&text).is_err());
            let json =
                format!(r#"{{"credentials":[{{"principal":"{principal}","secret":"{hash}"}}]}}"#);
            assert!(Credentials::parse(&json).unwrap().find(principal).is_some());
        }
        assert!(may_begin_line("x#{"));
    }

    #[test]
    fn client_takes_one_plain_pair() {
        for text in [r#"{"principal":"a","secret":"b c"}"#, "a b"] {
            let credential = Credential::parse(text).unwrap();
            assert_eq!(credential.principal, "a");
            assert!(!format!("{credential:?}").contains(&credential.secret));
        }
        assert!(Credential::parse("a b\nc d").is_err());
        let error = Credential::parse(&format!("a {}", hash("b"))).unwrap_err();
        assert!(error.to_string().contains("give the secret itself"));
    }
}
