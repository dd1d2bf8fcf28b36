//! Durations, byte sizes and moments.

use std::time::Duration;

use meseta_resources::{ByteSize, DURATION_MAX, Moment, format_duration, parse_duration};

#[test]
fn duration_parse() {
    for (text, nanos) in [
        ("0ns", 0),
        ("1ns", 1),
        ("7us", 7_000),
        ("5ms", 5_000_000),
        ("15secs", 15_000_000_000),
        ("1.5secs", 1_500_000_000),
        ("10mins", 600_000_000_000),
        ("3hrs", 10_800_000_000_000),
        ("3.5hrs", 12_600_000_000_000),
        (".5secs", 500_000_000),
        ("2days", 172_800_000_000_000),
        ("1weeks", 604_800_000_000_000),
        ("1.9ns", 1),
        ("9223372036854775807ns", 9_223_372_036_854_775_807),
    ] {
        assert_eq!(
            parse_duration(text),
            Ok(Duration::from_nanos(nanos)),
            "{text}"
        );
    }
}

#[test]
fn duration_parse_is_exactly_the_dialect() {
    for (text, expected) in [
        ("", "NoNumber"),
        ("secs", "NoNumber"),
        (".secs", "NoNumber"),
        ("1.2.3secs", "NoNumber"),
        ("-1secs", "NoNumber"),
        ("+1secs", "NoNumber"),
        (" 1secs", "NoNumber"),
        ("inf", "NoNumber"),
        ("15", "NoUnit"),
        ("15s", "UnknownUnit"),
        ("15seconds", "UnknownUnit"),
        ("1 secs", "UnknownUnit"),
        ("1secs ", "UnknownUnit"),
        ("1mins2secs", "UnknownUnit"),
        ("1e3secs", "UnknownUnit"),
        ("1Secs", "UnknownUnit"),
        ("9223372036854775808ns", "OutOfRange"),
        ("15251weeks", "OutOfRange"),
        ("15250.3weeks", "OutOfRange"),
        ("99999999999999999999weeks", "OutOfRange"),
    ] {
        let error = format!("{:?}", parse_duration(text).expect_err(text));
        assert!(error.starts_with(expected), "{text:?}: {error}");
    }
    assert!(
        parse_duration("15s")
            .unwrap_err()
            .to_string()
            .contains("'s' in '15s'; supported")
    );
}

#[test]
fn duration_output_format() {
    for (duration, text) in [
        (Duration::ZERO, "0ns"),
        (Duration::from_nanos(2), "2ns"),
        (Duration::from_nanos(1_500), "1500ns"),
        (Duration::from_micros(1_500), "1500us"),
        (Duration::from_nanos(1_000_001), "1.000001ms"),
        (Duration::from_nanos(3_141_592_653), "3.141592653secs"),
        (Duration::from_millis(3_140), "3140ms"),
        (Duration::from_secs(15), "15secs"),
        (Duration::from_secs(60), "1mins"),
        (Duration::from_secs(75), "75secs"),
        (Duration::from_secs(90 * 60), "90mins"),
        (Duration::from_secs(36_000), "10hrs"),
        (Duration::from_secs(10 * 86_400), "10days"),
        (Duration::from_secs(86_400 + 4 * 3600 + 1800), "1.1875days"),
        (Duration::from_secs(14 * 86_400), "2weeks"),
        (DURATION_MAX, "15250.2844524715weeks"),
    ] {
        assert_eq!(format_duration(duration), text);
    }
}

#[test]
fn bytes_parse_and_print() {
    for (text, bytes, printed) in [
        ("0B", 0, "0B"),
        ("1B", 1, "1B"),
        ("1024B", 1024, "1KB"),
        ("1kb", 1024, "1KB"),
        ("1536KB", 1536 << 10, "1536KB"),
        ("64MB", 64 << 20, "64MB"),
        ("2Gb", 2 << 30, "2GB"),
        ("3TB", 3 << 40, "3TB"),
    ] {
        let size: ByteSize = text.parse().unwrap();
        assert_eq!(size, ByteSize::from_bytes(bytes));
        assert_eq!(size.to_string(), printed);
    }
    for (text, expected) in [
        ("1.5MB", "Fractional"),
        ("15", "Invalid"),
        ("", "Invalid"),
        ("MB", "Invalid"),
        ("-1MB", "Invalid"),
        ("1PB", "UnknownUnit"),
        ("1 MB", "UnknownUnit"),
        ("99999999999999999999B", "OutOfRange"),
        ("16777216TB", "OutOfRange"),
    ] {
        let error = format!("{:?}", text.parse::<ByteSize>().expect_err(text));
        assert!(error.starts_with(expected), "{text:?}: {error}");
    }
}

#[test]
fn moments_saturate() {
    let moment = Moment::from_nanos(5) + Duration::from_nanos(7);
    assert_eq!(moment.as_nanos(), 12);
    assert_eq!(
        moment.saturating_since(Moment::from_nanos(2)),
        Duration::from_nanos(10)
    );
    assert_eq!(Moment::ORIGIN.saturating_since(moment), Duration::ZERO);
    assert_eq!(moment + Duration::MAX, Moment::NEVER);
}
