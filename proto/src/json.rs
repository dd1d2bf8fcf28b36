//! JSON in the Mesos dialect.
//!
//! Output: the fields' own names in the order of declaration, enums by name, 64-bit integers as numbers, bytes in base64,
//! empty lists left out, and an unset field that has a default (and is not deprecated) with that default. Input: unknown keys
//! are ignored, `null` is absence, a number or a boolean may come as a string and a single value for a list of one. The
//! errors' texts are those of Mesos. Nesting beyond 128 levels is an error.

pub(crate) mod de;
#[expect(clippy::collapsible_if, reason = "the file it includes is generated")]
mod generated;
mod lists;
mod ser;
mod session;

use serde::de::DeserializeSeed;

use crate::budget::{Charge, Exhausted};
use crate::schema::{self, WireMessage};

pub use lists::{object_of_parts, object_with_lists, response};
pub use ser::EnumName;

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("Failed to parse body into JSON: {reason}")]
    Syntax {
        reason: String,
        /// The position, line and column from 1; the column in bytes.
        line: usize,
        column: usize,
    },
    #[error("Failed to convert JSON into {message} protobuf: {reason}")]
    Convert {
        message: &'static str,
        reason: String,
    },
}

/// Reads a message; errors have the wording of Mesos.
pub fn from_slice<T: WireMessage>(body: &[u8]) -> Result<T, Error> {
    read(body, de::Root::<T>::new(), T::SCHEMA, false)
}

/// Reads a message, and charges the memory of its lists: a few bytes of JSON may become a large message. Returns the budget's
/// error if that ended the reading.
pub fn from_slice_charged<T: WireMessage>(
    body: &[u8],
    charge: Charge,
) -> Result<Result<(T, Charge), Error>, Exhausted> {
    let (read, charged) = session::charged(charge, || from_slice(body));
    let charge = charged?;
    Ok(read.map(|message| (message, charge)))
}

/// Runs `read`, which reads JSON with this module, and charges the memory of its lists. Returns the budget's error if that
/// ended the reading.
pub fn charged<T>(charge: Charge, read: impl FnOnce() -> T) -> Result<(T, Charge), Exhausted> {
    let (result, charged) = session::charged(charge, read);
    charged.map(|charge| (result, charge))
}

/// Reads an array of messages, as in `--resources` and on the v0 endpoints.
pub fn many_from_slice<T: WireMessage>(body: &[u8]) -> Result<Vec<T>, Error> {
    read(body, de::RootArray::<T>::new(), T::SCHEMA, true)
}

#[must_use]
pub fn to_vec<T: WireMessage>(message: &T) -> Vec<u8> {
    let mut out = Vec::new();
    write(message, &mut out);
    out
}

/// Appends the message to `out`.
pub fn write<T: WireMessage>(message: &T, out: &mut Vec<u8>) {
    // Writing to memory cannot fail, and the generated code returns no error of its own.
    if let Err(error) = serde_json::to_writer(out, message) {
        debug_assert!(false, "{error}");
    }
}

#[must_use]
pub fn to_string<T: WireMessage>(message: &T) -> String {
    String::from_utf8(to_vec(message)).unwrap_or_default()
}

fn read<'de, S: DeserializeSeed<'de>>(
    body: &'de [u8],
    seed: S,
    schema: &'static schema::Message,
    is_array: bool,
) -> Result<S::Value, Error> {
    // Checked once for all strings; a text that is not UTF-8 is not JSON.
    let body = std::str::from_utf8(body).map_err(|error| not_utf8(body, error))?;
    let mut source = serde_json::Deserializer::from_str(body);
    let (result, missing) = session::within(|| {
        let value = seed.deserialize(&mut source)?;
        source.end()?;
        Ok(value)
    });
    let value = result.map_err(|error| explain(body, schema, is_array, &error))?;
    if missing {
        let reason = match describe_missing(body, schema, is_array) {
            Some(paths) => format!("Missing required fields: {paths}"),
            None => "Missing required fields".to_owned(),
        };
        return Err(Error::Convert {
            message: schema.short_name(),
            reason,
        });
    }
    Ok(value)
}

fn describe_missing(
    body: &str,
    schema: &'static schema::Message,
    is_array: bool,
) -> Option<String> {
    /// The list of missing fields takes many times the size of the body.
    const DESCRIBED_MAX_BYTES: usize = 1 << 20;
    if body.len() > DESCRIBED_MAX_BYTES {
        return None;
    }
    let value: serde_json::Value = serde_json::from_str(body).ok()?;
    let missing = if is_array {
        let items = value.as_array()?;
        items
            .iter()
            .flat_map(|item| schema::missing_in_json(schema, item))
            .collect()
    } else {
        schema::missing_in_json(schema, &value)
    };
    (!missing.is_empty()).then(|| missing.join(", "))
}

/// Explains a fault like Mesos, which parses the whole body before it checks the values: a syntax error anywhere comes before
/// any other.
fn explain(
    body: &str,
    schema: &'static schema::Message,
    is_array: bool,
    error: &serde_json::Error,
) -> Error {
    if !error.is_data() {
        return Error::Syntax {
            reason: syntax(body, error),
            line: error.line().max(1),
            column: error.column().max(1),
        };
    }
    let mut source = serde_json::Deserializer::from_str(body);
    let checked = de::Skip
        .deserialize(&mut source)
        .and_then(|()| source.end());
    if let Err(error) = checked {
        return Error::Syntax {
            reason: syntax(body, &error),
            line: error.line().max(1),
            column: error.column().max(1),
        };
    }
    let reason = without_position(error);
    let reason = if is_array && reason.starts_with("invalid type") {
        "Expecting a JSON array".to_owned()
    } else {
        reason
    };
    Error::Convert {
        message: schema.short_name(),
        reason,
    }
}

fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&position).unwrap_or(&text).to_owned()
}

/// The text after the fault on its line, as Mesos shows it.
fn syntax(body: &str, error: &serde_json::Error) -> String {
    let reason = without_position(error);
    if reason.starts_with("recursion limit") {
        return format!("nested too deeply at line {}", error.line());
    }
    let line = body
        .as_bytes()
        .split(|byte| *byte == b'\n')
        .nth(error.line().saturating_sub(1));
    let rest = line.and_then(|line| line.get(error.column().saturating_sub(1)..));
    let rest = if error.is_eof() { None } else { rest };
    near(error.line(), rest.unwrap_or_default())
}

fn not_utf8(body: &[u8], error: std::str::Utf8Error) -> Error {
    let (before, rest) = body
        .split_at_checked(error.valid_up_to())
        .unwrap_or((body, &[]));
    let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
    let column = before.len()
        - before
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
    Error::Syntax {
        reason: near(line, rest),
        line,
        column: column + 1,
    }
}

fn near(line: usize, rest: &[u8]) -> String {
    const NEAR_MAX_CHARS: usize = 60;
    let shown: String = String::from_utf8_lossy(rest)
        .chars()
        .take(NEAR_MAX_CHARS)
        .collect();
    format!("syntax error at line {} near: {shown}", line.max(1))
}

#[cfg(test)]
mod tests;
