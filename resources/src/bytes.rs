//! Byte sizes in Mesos's format: a whole number and a unit of 1024s, `64MB`.

use std::fmt;
use std::str::FromStr;

const UNITS: [(&str, u64); 5] = [
    ("TB", 1 << 40),
    ("GB", 1 << 30),
    ("MB", 1 << 20),
    ("KB", 1 << 10),
    ("B", 1),
];

/// A number of bytes.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ByteSize(u64);

/// Errors of parsing a byte size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ByteSizeError {
    #[error("Invalid bytes '{0}': write a whole number and a unit, as in '64MB'")]
    Invalid(String),
    #[error("Fractional bytes '{0}': use a smaller unit, as in '512KB' for half a megabyte")]
    Fractional(String),
    #[error("Unknown bytes unit '{unit}' in '{text}'; supported units are B, KB, MB, GB and TB")]
    UnknownUnit { text: String, unit: String },
    #[error("Bytes '{0}' are out of range: at most 16777215TB can be represented")]
    OutOfRange(String),
}

impl ByteSize {
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    #[must_use]
    pub const fn as_bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;
    /// Parses a size; the case of units does not matter.
    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let invalid = || ByteSizeError::Invalid(text.into());
        let split = text
            .find(|c: char| !c.is_ascii_digit())
            .ok_or_else(invalid)?;
        let (number, unit) = text.split_at(split);
        if unit.starts_with('.') {
            return Err(ByteSizeError::Fractional(text.into()));
        }
        if number.is_empty() {
            return Err(invalid());
        }
        let known = UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit));
        let Some((_, factor)) = known else {
            return Err(ByteSizeError::UnknownUnit {
                text: text.into(),
                unit: unit.into(),
            });
        };
        // The text has only digits, so only its size can be invalid.
        let number: Option<u64> = number.parse().ok();
        number
            .and_then(|number| number.checked_mul(*factor))
            .map(Self)
            .ok_or_else(|| ByteSizeError::OutOfRange(text.into()))
    }
}

/// Prints in the largest unit without loss.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |unit: &&(&str, u64)| self.0 != 0 && self.0.is_multiple_of(unit.1);
        let (name, factor) = UNITS.iter().find(exact).unwrap_or(&("B", 1));
        write!(f, "{}{name}", self.0 / factor)
    }
}
