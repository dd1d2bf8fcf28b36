//! The limits that every request obeys, for any daemon.

use std::time::Duration;

use http::Method;
use meseta_proto::{Invalid, invalid};
use meseta_resources::parse_duration;

/// The longest path with its query.
pub const URI_BYTES_MAX: usize = 8 * 1024;

/// The longest name of a JSONP callback.
pub const CALLBACK_BYTES_MAX: usize = 256;

/// The methods of read-only endpoints. Mesos ignores the method of these, and clients do send POST.
pub const READ: &[Method] = &[Method::GET, Method::HEAD, Method::POST];

/// Returns the reason for refusing a request with too long a path.
#[must_use]
pub fn uri_too_long() -> String {
    format!("The path is longer than {URI_BYTES_MAX} bytes")
}

/// Returns the reason for refusing a request with too long a name of a callback.
#[must_use]
pub fn callback_too_long() -> Invalid {
    invalid!("The 'jsonp' callback is longer than {CALLBACK_BYTES_MAX} bytes")
}

/// Parses a reader's `timeout`.
///
/// # Errors
///
/// The text is no duration.
pub fn timeout(text: &str) -> Result<Duration, Invalid> {
    parse_duration(text)
        .map_err(|error| invalid!("Invalid timeout '{}': {error}", text.escape_debug()))
}

/// Returns the `Allow` header, and Mesos's text of the reason.
#[must_use]
pub fn method_not_allowed(method: &Method, allowed: &[Method]) -> (String, String) {
    let names: Vec<_> = allowed.iter().map(Method::as_str).collect();
    let quoted: Vec<_> = names.iter().map(|name| format!("'{name}'")).collect();
    let reason = format!(
        "405 Method Not Allowed. Expecting one of {{ {} }}, but received '{method}'.",
        quoted.join(", ")
    );
    (names.join(", "), reason)
}
