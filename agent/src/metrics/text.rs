//! The Prometheus text format: heads of families, labels and numbers.

use std::fmt::Write as _;

use super::families;

/// Writes a value. Most values are whole numbers, which do not need the slow search for the shortest fraction.
pub(super) fn write_value(out: &mut String, value: f64) {
    /// The bound of exact whole numbers: beyond, not every whole number is an `f64`.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    // Writing to a `String` cannot fail.
    let _ = if value.fract() == 0.0 && (0.0..EXACT_MAX).contains(&value) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a whole number in the range of the condition"
        )]
        let whole = value as u64;
        write!(out, "{whole}")
    } else {
        write!(out, "{value}")
    };
}

pub(super) fn write_head(out: &mut String, name: &str) {
    let known = families().find(|(known, _)| *known == name);
    debug_assert!(known.is_some(), "{name} is not listed");
    let help = known.map_or("", |(_, help)| help);
    let is_counter = name.ends_with("_total");
    let kind = if is_counter { "counter" } else { "gauge" };
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Formats labels as `a="b",c="d"`, with the values escaped for the text format.
pub(super) fn labels(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        for c in value.chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                other => text.push(other),
            }
        }
        text.push('"');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_they_are() {
        for (value, text) in [
            (0.0, "0"),
            (-0.5, "-0.5"),
            (-3.0, "-3"),
            (0.1, "0.1"),
            (67_108_864.0, "67108864"),
            (0.000_001, "0.000001"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "NaN"),
        ] {
            let mut out = String::new();
            write_value(&mut out, value);
            assert_eq!(out, text);
            assert!(out.parse::<f64>().is_ok());
        }
    }
}
