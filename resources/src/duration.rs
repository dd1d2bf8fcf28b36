//! Durations in Mesos's format: a decimal number and one unit, `15secs`, `1.5hrs`.
//!
//! Printing picks the largest unit that the duration fills, or the next smaller one if only that makes a whole number: 75
//! seconds print as `75secs`, 90 minutes as `90mins`, a week as `1weeks`.

use std::time::Duration;

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("secs", 1_000_000_000),
    ("mins", 60_000_000_000),
    ("hrs", 3_600_000_000_000),
    ("days", 86_400_000_000_000),
    ("weeks", 604_800_000_000_000),
];

/// The longest duration of Mesos, which counts nanoseconds in a signed 64-bit integer: 292 years.
pub const DURATION_MAX: Duration = Duration::from_nanos(i64::MAX.unsigned_abs());

/// Errors of parsing a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("Invalid duration '{0}': it has no unit; write a number and a unit, as in '15secs'")]
    NoUnit(String),
    #[error("Invalid duration '{0}': it does not begin with a number, as in '15secs' or '1.5hrs'")]
    NoNumber(String),
    #[error(
        "Unknown duration unit '{unit}' in '{text}'; supported units are 'ns', 'us', 'ms', 'secs', \
         'mins', 'hrs', 'days', and 'weeks'"
    )]
    UnknownUnit { text: String, unit: String },
    #[error("Duration '{0}' is out of range: at most 15250 weeks can be represented")]
    OutOfRange(String),
}

/// # Errors
/// When the text is not a number followed by one of the eight units.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let digits = |c: char| c.is_ascii_digit() || c == '.';
    let Some(split) = text.find(|c| !digits(c)) else {
        return Err(if text.is_empty() || text.parse::<f64>().is_err() {
            DurationError::NoNumber(text.into())
        } else {
            DurationError::NoUnit(text.into())
        });
    };
    let (number, unit) = text.split_at(split);
    let value: f64 = number
        .parse()
        .map_err(|_| DurationError::NoNumber(text.into()))?;
    let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(DurationError::UnknownUnit {
            text: text.into(),
            unit: unit.into(),
        });
    };
    // Whole numbers are exact; only a fraction goes through a double, which is then truncated.
    let nanos = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(*factor),
        Err(_) => fraction_nanos(value, *factor),
    };
    nanos
        .map(Duration::from_nanos)
        .filter(|duration| *duration <= DURATION_MAX)
        .ok_or_else(|| DurationError::OutOfRange(text.into()))
}

fn fraction_nanos(value: f64, factor: u64) -> Option<u64> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "every factor is exact in a double"
    )]
    let nanos = (value * factor as f64).trunc();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and below 2^63"
    )]
    (0.0..9_223_372_036_854_775_808.0)
        .contains(&nanos)
        .then_some(nanos as u64)
}

/// Formats a duration; see the module for the chosen unit.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let filled = |unit: &(&str, u64)| nanos >= u128::from(unit.1);
    let bucket = UNITS.iter().rposition(filled).unwrap_or(0);
    let (name, factor) = UNITS[bucket];
    let whole = |factor: u64| nanos.is_multiple_of(u128::from(factor));
    let (name, factor) = match bucket.checked_sub(1).map(|smaller| UNITS[smaller]) {
        // A fraction of microseconds prints as nanoseconds, which are always whole.
        Some(smaller) if !whole(factor) && whole(smaller.1) => smaller,
        _ => (name, factor),
    };
    format!("{}{name}", quotient(nanos, u128::from(factor)))
}

/// `nanos / factor` in up to 15 significant digits, without trailing zeros.
fn quotient(nanos: u128, factor: u128) -> String {
    const SIGNIFICANT: usize = 15;
    let (units, rest) = (nanos / factor, nanos % factor);
    if rest == 0 {
        return units.to_string();
    }
    let decimals = SIGNIFICANT.saturating_sub(units.to_string().len());
    let scale = 10_u128.pow(u32::try_from(decimals).unwrap_or(0));
    // Halves round up: a duration is not negative.
    let fraction = (rest * scale * 2 + factor) / (factor * 2);
    let (units, fraction) = (units + fraction / scale, fraction % scale);
    let fraction = format!("{fraction:0decimals$}");
    match fraction.trim_end_matches('0') {
        "" => units.to_string(),
        fraction => format!("{units}.{fraction}"),
    }
}
