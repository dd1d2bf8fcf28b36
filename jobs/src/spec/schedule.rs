//! The times of a cron job: five fields or an `@name` in a time zone, and the next time after another.
//!
//! Entered through [`Schedule::parse`] and [`Schedule::next_after`]. The time zones are compiled in, so that a schedule
//! means the same on every host. Where local time jumps by less than three hours, the rules of Vixie's cron apply: a job at
//! a fixed time that would fall into a gap runs at its end, and one in an hour that comes twice runs the first time only; a
//! job with `*` in its minutes or hours follows the actual local time. Fields are in `schedule/fields.rs`.

mod fields;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use fields::Fields;

/// A longer jump of local time is a correction, and jobs follow the new time at once.
const JUMP_MAX: SignedDuration = SignedDuration::from_hours(3);
/// Segments between jumps of local time that are searched: two a year for nine years, with some reserve.
const SEGMENTS_MAX: usize = 40;

/// A schedule and its time zone.
#[derive(Clone, Debug)]
pub struct Schedule {
    fields: Fields,
    zone: TimeZone,
}

/// The reason why a text is no valid schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error("unknown time zone \"{name}\"")]
    UnknownTimeZone { name: String },
    #[error("the schedule \"{schedule}\" has {found} fields, not five")]
    FieldCount { schedule: String, found: usize },
    #[error("unknown schedule \"{name}\"")]
    UnknownName { name: String },
    #[error("\"{text}\" is not a valid {field} of a schedule")]
    Field {
        field: &'static str,
        text: String,
        cure: String,
    },
    #[error("the schedule \"{schedule}\" never occurs")]
    Never { schedule: String },
}

impl ScheduleError {
    /// Returns the remedy, as an instruction.
    #[must_use]
    pub fn cure(&self) -> String {
        match self {
            Self::UnknownTimeZone { .. } => {
                "write a name of the IANA database, as `Europe/Berlin` or `UTC`".to_owned()
            }
            Self::FieldCount { .. } => {
                "write minute, hour, day of the month, month and day of the week, as `30 4 * * 1-5`"
                    .to_owned()
            }
            Self::UnknownName { .. } => format!("write one of {}", fields::names()),
            Self::Field { cure, .. } => cure.clone(),
            Self::Never { .. } => "write a day that its months have".to_owned(),
        }
    }
}

impl Schedule {
    /// Parses a schedule.
    ///
    /// # Errors
    ///
    /// When the schedule or the time zone is invalid, or no day is ever due.
    pub fn parse(schedule: &str, time_zone: &str) -> Result<Self, ScheduleError> {
        let fields = Fields::parse(schedule)?;
        let zone = TimeZone::get(time_zone).map_err(|_| ScheduleError::UnknownTimeZone {
            name: time_zone.to_owned(),
        })?;
        Ok(Self { fields, zone })
    }

    /// Returns the next time after `unix_seconds`, in seconds since the Unix epoch; `None` if there is none up to the year
    /// 9999.
    #[must_use]
    pub fn next_after(&self, unix_seconds: i64) -> Option<i64> {
        let after = Timestamp::from_second(unix_seconds).ok()?;
        let mut offset = self.zone.to_offset(after);
        let mut local = fields::minute_after(offset.to_datetime(after))?;
        if let Some(repeated) = self.repeated_until(after) {
            local = local.max(repeated);
        }
        let mut from = after;
        for _ in 0..SEGMENTS_MAX {
            let jump = self.zone.following(from).next();
            let due = self.fields.next_from(local);
            let at = due.and_then(|due| offset.to_timestamp(due).ok());
            let Some(jump) = jump else {
                return at.map(Timestamp::as_second);
            };
            if let Some(at) = at.filter(|at| *at < jump.timestamp()) {
                return Some(at.as_second());
            }
            from = jump.timestamp();
            let before = offset.to_datetime(from);
            offset = jump.offset();
            local = offset.to_datetime(from);
            let in_gap = due.is_some_and(|due| due < local);
            if self.follows_jump(before, local) {
                if in_gap {
                    return Some(from.as_second());
                }
                local = local.max(before);
            }
        }
        None
    }

    /// Whether a jump of local time leaves the number of the job's runs unchanged.
    fn follows_jump(&self, before: DateTime, after: DateTime) -> bool {
        self.fields.is_at_fixed_times() && before.duration_until(after).abs() < JUMP_MAX
    }

    /// Returns the local time up to which a job at fixed times has already run, after the last time that clocks went back.
    fn repeated_until(&self, at: Timestamp) -> Option<DateTime> {
        let next = Timestamp::from_second(at.as_second().checked_add(1)?).ok()?;
        let jump = self.zone.preceding(next).next()?;
        let earlier = Timestamp::from_second(jump.timestamp().as_second().checked_sub(1)?).ok()?;
        let before = self.zone.to_offset(earlier).to_datetime(jump.timestamp());
        let after = jump.offset().to_datetime(jump.timestamp());
        (after < before && self.follows_jump(before, after)).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, zone: &str, after: &str) -> String {
        let after: Timestamp = after.parse().expect("a time");
        let schedule = Schedule::parse(schedule, zone).expect(schedule);
        let next = schedule.next_after(after.as_second()).expect("a next time");
        Timestamp::from_second(next).expect("in range").to_string()
    }

    #[test]
    fn next_time_is_later_and_matches() {
        for (schedule, after, expected) in [
            ("* * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"),
            ("* * * * *", "2026-01-01T00:00:59Z", "2026-01-01T00:01:00Z"),
            (
                "*/15 * * * *",
                "2026-01-01T00:46:00Z",
                "2026-01-01T01:00:00Z",
            ),
            ("30 4 * * *", "2026-01-01T04:30:00Z", "2026-01-02T04:30:00Z"),
            (
                "0 9-17/4 * * mon-fri",
                "2026-01-02T17:30:00Z",
                "2026-01-05T09:00:00Z",
            ),
            ("0 0 29 2 *", "2096-03-01T00:00:00Z", "2104-02-29T00:00:00Z"),
            ("0 0 31 * *", "2026-01-31T00:00:00Z", "2026-03-31T00:00:00Z"),
            ("0 0 * * 7", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"),
            (
                "0 12 1,15 jan *",
                "2026-01-15T12:00:00Z",
                "2027-01-01T12:00:00Z",
            ),
            ("@hourly", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"),
            ("@daily", "2026-12-31T23:59:59Z", "2027-01-01T00:00:00Z"),
            ("@weekly", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"),
            ("@monthly", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"),
            ("@yearly", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ] {
            assert_eq!(next(schedule, "UTC", after), expected, "{schedule}");
        }
    }

    #[test]
    fn either_restricted_day_is_sufficient() {
        // The days are the first of the month and every Friday.
        assert_eq!(
            next("0 0 1 * fri", "UTC", "2026-01-01T00:00:00Z"),
            "2026-01-02T00:00:00Z"
        );
        // `*/2` begins with a star: both conditions must hold.
        assert_eq!(
            next("0 0 */2 * fri", "UTC", "2026-01-01T00:00:00Z"),
            "2026-01-09T00:00:00Z"
        );
    }

    #[test]
    fn fixed_time_in_gap_runs_afterwards() {
        // On 2026-03-29 clocks in Berlin go from 02:00 to 03:00, which is 01:00 UTC.
        let zone = "Europe/Berlin";
        for (schedule, after, expected) in [
            ("30 2 * * *", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z"),
            ("30 2 * * *", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"),
            ("0 3 * * *", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z"),
            ("30 * * * *", "2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"),
            (
                "*/20 2 * * *",
                "2026-03-28T12:00:00Z",
                "2026-03-30T00:00:00Z",
            ),
        ] {
            assert_eq!(
                next(schedule, zone, after),
                expected,
                "{schedule} after {after}"
            );
        }
    }

    #[test]
    fn repeated_fixed_time_runs_once() {
        // On 2026-10-25 clocks in Berlin go from 03:00 to 02:00, which is 01:00 UTC.
        let zone = "Europe/Berlin";
        for (schedule, after, expected) in [
            ("30 2 * * *", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"),
            ("30 2 * * *", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
            ("30 2 * * *", "2026-10-25T01:10:00Z", "2026-10-26T01:30:00Z"),
            ("0 3 * * *", "2026-10-25T00:30:00Z", "2026-10-25T02:00:00Z"),
            ("30 * * * *", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"),
            (
                "*/20 2 * * *",
                "2026-10-25T00:40:00Z",
                "2026-10-25T01:00:00Z",
            ),
        ] {
            assert_eq!(
                next(schedule, zone, after),
                expected,
                "{schedule} after {after}"
            );
        }
    }

    #[test]
    fn day_skipped_by_zone_is_skipped() {
        // Samoa had no 2011-12-30.
        assert_eq!(
            next("0 12 * * *", "Pacific/Apia", "2011-12-29T22:00:00Z"),
            "2011-12-30T22:00:00Z"
        );
    }

    #[test]
    fn times_ascend_as_scheduled() {
        for (schedule, least_seconds) in [("17 2 * * *", 23 * 3600), ("*/10 * * * *", 600)] {
            let schedule = Schedule::parse(schedule, "America/New_York").expect("a schedule");
            let mut at = 1_767_225_600;
            for _ in 0..2000 {
                let next = schedule.next_after(at).expect("a next time");
                assert!(
                    next - at >= least_seconds - 3600 * i64::from(least_seconds > 3600)
                        || at == 1_767_225_600
                );
                assert!(next > at && next - at <= 25 * 3600);
                at = next;
            }
        }
    }

    #[test]
    fn invalid_schedule_names_its_remedy() {
        for (schedule, zone, expected) in [
            (
                "* * * *",
                "UTC",
                "has 4 fields, not five; write minute, hour",
            ),
            (
                "@reboot",
                "UTC",
                "unknown schedule \"@reboot\"; write one of `@hourly`",
            ),
            (
                "60 * * * *",
                "UTC",
                "\"60\" is not a valid minute of a schedule; write numbers from 0 to 59",
            ),
            (
                "* * * * sunday",
                "UTC",
                "\"sunday\" is not a valid day of the week of a schedule; write",
            ),
            ("5/10 * * * *", "UTC", "\"5/10\" is not a valid minute"),
            ("*/0 * * * *", "UTC", "\"*/0\" is not a valid minute"),
            ("20-10 * * * *", "UTC", "\"20-10\" is not a valid minute"),
            ("0 0 30 2 *", "UTC", "never occurs; write a day"),
            (
                "@daily",
                "Berlin",
                "unknown time zone \"Berlin\"; write a name",
            ),
        ] {
            let error = Schedule::parse(schedule, zone).expect_err(schedule);
            let told = format!("{error}; {}", error.cure());
            assert!(told.contains(expected), "{schedule}: {told}");
        }
    }
}
