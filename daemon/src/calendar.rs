//! Times in a form for people: in UTC, to the second.

/// Formats seconds since 1970 as `2026-11-22T13:05:06Z`.
pub fn utc(seconds: f64) -> String {
    // A time before 1970 or an invalid one counts as 1970.
    let whole = std::time::Duration::try_from_secs_f64(seconds).map_or(0, |time| time.as_secs());
    let (day, time) = day_and_time(whole);
    format!("{day}T{time}Z")
}

/// Formats whole seconds since 1970 in UTC, as a day `2026-11-22` and a time of day `13:05:06`.
pub fn day_and_time(seconds: u64) -> (String, String) {
    const DAY: u64 = 86_400;
    let (days, time) = (seconds / DAY, seconds % DAY);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (time / 3_600, time / 60 % 60, time % 60);
    (
        format!("{year:04}-{month:02}-{day:02}"),
        format!("{hour:02}:{minute:02}:{second:02}"),
    )
}

/// Returns year, month and day of a day after 1970-01-01. Years are counted from March, so that the leap day ends one; 400
/// years have 146,097 days.
fn date(days: u64) -> (u64, u64, u64) {
    /// The days from 0000-03-01 to 1970-01-01.
    const EPOCH: u64 = 719_468;
    const ERA: u64 = 146_097;
    let (era, of_era) = ((days + EPOCH) / ERA, (days + EPOCH) % ERA);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / (ERA - 1)) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Month 0 is March; five months have 153 days.
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year_of_era + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0.0, "1970-01-01T00:00:00Z"),
            (951_782_399.0, "2000-02-28T23:59:59Z"),
            (951_782_400.0, "2000-02-29T00:00:00Z"),
            (1_709_251_199.9, "2024-02-29T23:59:59Z"),
            (1_709_251_200.0, "2024-03-01T00:00:00Z"),
            (1_798_761_600.0, "2027-01-01T00:00:00Z"),
            (4_107_542_400.0, "2100-03-01T00:00:00Z"),
            (-1.0, "1970-01-01T00:00:00Z"),
            (f64::NAN, "1970-01-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}
