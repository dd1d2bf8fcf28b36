//! The end of certificates: the only date read from their DER form, for a warning in advance.
//!
//! Invariant: the date never decides whether a certificate is valid. An invalid certificate has no end.

use std::time::Duration;

const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// The tag of a certificate's version, which certificates of the first version lack.
const VERSION: u8 = 0xa0;

/// Returns the end of a certificate, since the Unix epoch: `notAfter` of RFC 5280, section 4.1.
pub(super) fn end(certificate: &[u8]) -> Option<Duration> {
    let (certificate, _) = element_of(SEQUENCE, certificate)?;
    let (mut rest, _) = element_of(SEQUENCE, certificate)?;
    if rest.first() == Some(&VERSION) {
        (_, _, rest) = element(rest)?;
    }
    // Skip the serial number, the signature algorithm and the issuer.
    for _ in 0..3 {
        (_, _, rest) = element(rest)?;
    }
    let (validity, _) = element_of(SEQUENCE, rest)?;
    let (_, _, rest) = element(validity)?;
    let (tag, text, _) = element(rest)?;
    time(tag, std::str::from_utf8(text).ok()?)
}

fn element_of(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = element(bytes)?;
    (found == tag).then_some((content, rest))
}

/// Returns the tag and the content of the first element, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first & 0x7f);
    if first & 0x80 != 0 {
        // This many bytes of the length follow; no certificate needs more than four.
        let (digits, after) = rest.split_at_checked(length).filter(|_| length <= 4)?;
        length = digits
            .iter()
            .fold(0, |sum, digit| (sum << 8) | usize::from(*digit));
        rest = after;
    }
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// Parses `YYMMDDHHMMSSZ` for the years 1950 to 2049, or `YYYYMMDDHHMMSSZ`.
fn time(tag: u8, text: &str) -> Option<Duration> {
    let digits = text.strip_suffix('Z')?;
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = digits.split_at_checked(2)?;
            let year: u64 = year.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = digits.split_at_checked(4)?;
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    let pair = |at: usize| rest.get(2 * at..2 * at + 2)?.parse::<u64>().ok();
    let (month, day) = (pair(0)?, pair(1)?);
    if rest.len() != 10 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // An end before 1970 is in the past.
    let days = days_to(year, month, day).unwrap_or_default();
    let seconds = ((days * 24 + pair(2)?) * 60 + pair(3)?) * 60 + pair(4)?;
    Some(Duration::from_secs(seconds))
}

/// Returns the days from 1970-01-01, unless the date is before. Years are counted from March, so that the leap day ends
/// one.
fn days_to(year: u64, month: u64, day: u64) -> Option<u64> {
    /// The days from 0000-03-01 to 1970-01-01.
    const EPOCH: u64 = 719_468;
    let year = year.checked_sub(u64::from(month <= 2))?;
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    (year * 365 + year / 4 - year / 100 + year / 400 + of_year).checked_sub(EPOCH)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};
    use rustls::pki_types::CertificateDer;

    use super::*;
    use crate::calendar::day_and_time;

    fn ending(year: i32, month: u8, day: u8) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["a".to_owned()]).expect("names");
        params.not_before = date_time_ymd(1960, 1, 1);
        params.not_after = date_time_ymd(year, month, day);
        let key = KeyPair::generate().expect("a key");
        let signed = params.self_signed(&key).expect("signed");
        signed.der().clone()
    }

    #[test]
    fn end_matches_the_certificate() {
        for (year, month, day) in [
            (1999, 12, 31),
            (2024, 2, 29),
            (2026, 3, 1),
            (2049, 12, 31),
            (2050, 1, 1),
            (2400, 2, 29),
        ] {
            let end = end(&ending(year, month, day)).expect("an end");
            let expected = format!("{year:04}-{month:02}-{day:02}");
            assert_eq!(
                day_and_time(end.as_secs()),
                (expected, "00:00:00".to_owned())
            );
        }
        assert_eq!(end(&ending(1965, 1, 1)), Some(Duration::ZERO));
    }

    /// Truncated or changed bytes never cause a panic.
    #[test]
    fn invalid_certificate_has_no_end() {
        let whole = ending(2030, 1, 1);
        for length in 0..whole.len().min(300) {
            let mut changed = whole.to_vec();
            changed[length] ^= 0xff;
            let _ = end(&changed);
            assert_eq!(end(&whole[..length]), None);
        }
        for text in ["", "Z", "30010100000", "300101000000", "3001010000é0Z"] {
            assert_eq!(time(UTC_TIME, text), None, "{text}");
        }
        assert_eq!(time(UTC_TIME, "301301000000Z"), None);
        assert_eq!(time(SEQUENCE, "300101000000Z"), None);
    }
}
