//! Failures of requests to a registry.
//!
//! A [`RegistryError`] names the operation, the image and the server; its [`Cause`] decides whether an attempt may be repeated.
//! Invariant: no part of a password, a token or a signed address is in a message.

use std::time::Duration;

use ureq::http::StatusCode;

use crate::credentials::CredentialError;
use crate::descriptor::Mismatch;
use crate::wait::Cancelled;

/// Characters of a registry's own explanation that a message quotes.
const DETAIL_CHARS_MAX: usize = 300;

/// The failure of an operation on an image at a registry.
#[derive(Debug, thiserror::Error)]
#[error("failed to {operation} of {image} at {host}")]
pub struct RegistryError {
    /// A verb and its object, for example "download layer sha256:…".
    pub(crate) operation: String,
    pub(crate) image: String,
    /// The server of the last attempt.
    pub(crate) host: String,
    #[source]
    pub(crate) cause: Box<Cause>,
}

impl RegistryError {
    pub fn cause(&self) -> &Cause {
        &self.cause
    }
}

/// The reason of a failure.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    #[error("{0}")]
    Settings(String),
    #[error("the connection failed")]
    Connection(#[source] ureq::Error),
    #[error("the connection broke: {0}")]
    Broken(String),
    #[error("the server sends less than {floor} bytes a second")]
    TooSlow { floor: u64 },
    #[error(
        "it does not exist there: check the name and the tag; a private image also looks missing without credentials"
    )]
    NotFound,
    #[error(
        "the registry needs credentials: add {host} to Docker's configuration (--docker_config)"
    )]
    NoCredentials { host: String },
    #[error("the registry refused the credentials of user {user:?} for {host}{detail}")]
    Refused {
        user: String,
        host: String,
        detail: String,
    },
    #[error("access denied{detail}")]
    Denied { detail: String },
    #[error("the registry limits requests (429){}{detail}", wait_text(*.retry_after))]
    TooManyRequests {
        retry_after: Option<Duration>,
        detail: String,
    },
    #[error("the server answered {status}{detail}")]
    Status { status: StatusCode, detail: String },
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    #[error("{0}")]
    Untrusted(String),
    #[error("the server sent more than {redirects} redirects")]
    Redirects { redirects: usize },
    #[error("the answer is larger than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
}

fn wait_text(retry_after: Option<Duration>) -> String {
    retry_after.map_or_else(String::new, |wait| {
        format!(" and asks to wait for {} s", wait.as_secs())
    })
}

/// The value of a failure for the next attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Prospect {
    /// Another attempt at the same server may succeed, perhaps after the time that the server names.
    Later(Option<Duration>),
    /// Another server may have it.
    Elsewhere,
    /// No attempt can succeed.
    Never,
}

impl Cause {
    pub(crate) fn prospect(&self) -> Prospect {
        match self {
            Self::Connection(error) if is_tls(error) => Prospect::Elsewhere,
            Self::Connection(_) | Self::Broken(_) | Self::TooSlow { .. } => Prospect::Later(None),
            Self::TooManyRequests { retry_after, .. } => Prospect::Later(*retry_after),
            Self::Status { status, .. } => {
                let is_passing = status.is_server_error() || *status == StatusCode::REQUEST_TIMEOUT;
                match is_passing && *status != StatusCode::NOT_IMPLEMENTED {
                    true => Prospect::Later(None),
                    false => Prospect::Elsewhere,
                }
            }
            Self::NotFound
            | Self::NoCredentials { .. }
            | Self::Refused { .. }
            | Self::Denied { .. }
            | Self::Credentials(_)
            | Self::Untrusted(_)
            | Self::Redirects { .. }
            | Self::TooLarge { .. }
            | Self::Invalid(_)
            | Self::Mismatch(_) => Prospect::Elsewhere,
            Self::Cancelled(_) | Self::Settings(_) => Prospect::Never,
        }
    }
}

/// Whether a connection failed for a reason that time does not heal, such as an unknown certificate.
fn is_tls(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Rustls(_) => true,
        ureq::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
        _ => false,
    }
}

/// Returns a registry's explanation as the end of a message. The body may be anything.
pub(crate) fn explain(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Answer {
        #[serde(default)]
        errors: Vec<One>,
        #[serde(default)]
        details: Option<String>,
    }
    #[derive(serde::Deserialize)]
    struct One {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let Ok(answer) = serde_json::from_slice::<Answer>(body) else {
        return String::new();
    };
    let texts = answer
        .errors
        .iter()
        .map(|one| match one.message.is_empty() {
            true => one.code.clone(),
            false => one.message.clone(),
        });
    let text = texts.chain(answer.details).find(|text| !text.is_empty());
    let Some(text) = text else {
        return String::new();
    };
    let printable = text
        .chars()
        .map(|one| if one.is_control() { ' ' } else { one });
    let printable = printable.take(DETAIL_CHARS_MAX).collect::<String>();
    format!(": the registry says {printable:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explanations_are_short_and_printable() {
        let body = br#"{"errors":[{"code":"DENIED","message":"not\nyours","detail":{}}]}"#;
        assert_eq!(explain(body), ": the registry says \"not yours\"");
        assert_eq!(
            explain(br#"{"errors":[{"code":"X"}]}"#),
            ": the registry says \"X\""
        );
        assert_eq!(
            explain(br#"{"details":"no such user"}"#),
            ": the registry says \"no such user\""
        );
        for silent in [&b""[..], b"<html>", b"{}", br#"{"errors":[]}"#] {
            assert_eq!(explain(silent), "");
        }
        let long = format!(r#"{{"errors":[{{"message":"{}"}}]}}"#, "x".repeat(5000));
        assert!(explain(long.as_bytes()).len() < 400);
    }

    #[test]
    fn rate_limit_names_the_wait() {
        let cause = Cause::TooManyRequests {
            retry_after: Some(Duration::from_secs(90)),
            detail: String::new(),
        };
        let text = "the registry limits requests (429) and asks to wait for 90 s";
        assert_eq!(cause.to_string(), text);
    }
}
