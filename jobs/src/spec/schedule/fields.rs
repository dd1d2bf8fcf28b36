//! The five fields of a schedule as sets of numbers, and the next local time in all of them.
//!
//! Knows no time zone.

use jiff::civil::{Date, DateTime};
use jiff::{SignedDuration, ToSpan as _};

use super::ScheduleError;

/// The names of schedules, and the fields that they stand for.
const NAMES: [(&str, &str); 7] = [
    ("@hourly", "0 * * * *"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
];
const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// A date 29 February comes at least every eight years.
const DAYS_MAX: usize = 366 * 9;

/// A kind of field: its title, its range, and the names of its numbers from `least`.
struct Kind {
    name: &'static str,
    least: u8,
    most: u8,
    names: &'static [&'static str],
}

const KINDS: [Kind; 5] = [
    kind("minute", 0, 59, &[]),
    kind("hour", 0, 23, &[]),
    kind("day of the month", 1, 31, &[]),
    kind("month", 1, 12, &MONTHS),
    kind("day of the week", 0, 7, &WEEKDAYS),
];

const fn kind(name: &'static str, least: u8, most: u8, names: &'static [&'static str]) -> Kind {
    Kind {
        name,
        least,
        most,
        names,
    }
}

/// A set of numbers up to 63, and whether its text began with a star.
#[derive(Clone, Copy, Debug)]
struct Set {
    bits: u64,
    has_star: bool,
}

impl Set {
    const fn has(self, number: u8) -> bool {
        self.bits & (1 << number) != 0
    }

    /// Returns the least number of the set from `number` on.
    fn from(self, number: u8) -> Option<u8> {
        (number..64).find(|number| self.has(*number))
    }
}

/// The sets of a schedule's five fields.
#[derive(Clone, Debug)]
pub(super) struct Fields {
    minutes: Set,
    hours: Set,
    days: Set,
    months: Set,
    weekdays: Set,
}

impl Fields {
    pub(super) fn parse(schedule: &str) -> Result<Self, ScheduleError> {
        let schedule = schedule.trim();
        let text = match NAMES.iter().find(|(name, _)| *name == schedule) {
            Some((_, text)) => text,
            None if schedule.starts_with('@') => {
                let name = schedule.to_owned();
                return Err(ScheduleError::UnknownName { name });
            }
            None => schedule,
        };
        let parts: Vec<&str> = text.split_ascii_whitespace().collect();
        let Ok(parts) = <[&str; 5]>::try_from(parts.as_slice()) else {
            return Err(ScheduleError::FieldCount {
                schedule: schedule.to_owned(),
                found: parts.len(),
            });
        };
        let set = |at: usize| KINDS[at].set(parts[at]);
        let mut fields = Self {
            minutes: set(0)?,
            hours: set(1)?,
            days: set(2)?,
            months: set(3)?,
            weekdays: set(4)?,
        };
        // Sunday is both 0 and 7.
        if fields.weekdays.has(7) {
            fields.weekdays.bits |= 1;
        }
        // The year is a leap year, so that each day of a calendar occurs.
        match fields.next_from(jiff::civil::datetime(2024, 1, 1, 0, 0, 0, 0)) {
            Some(_) => Ok(fields),
            None => Err(ScheduleError::Never {
                schedule: schedule.to_owned(),
            }),
        }
    }

    /// Whether neither minutes nor hours have a star.
    pub(super) const fn is_at_fixed_times(&self) -> bool {
        !self.minutes.has_star && !self.hours.has_star
    }

    /// Returns the first whole minute from `from` that matches all fields.
    pub(super) fn next_from(&self, from: DateTime) -> Option<DateTime> {
        let mut date = from.date();
        let (mut hour, mut minute) = (number(from.hour()), number(from.minute()));
        if from.second() > 0 || from.subsec_nanosecond() > 0 {
            return self.next_from(minute_after(from)?);
        }
        for _ in 0..DAYS_MAX {
            if self.has_day(date)
                && let Some((hour, minute)) = self.next_in_day(hour, minute)
            {
                let (hour, minute) = (i8::try_from(hour).ok()?, i8::try_from(minute).ok()?);
                return Some(date.at(hour, minute, 0, 0));
            }
            date = date.checked_add(1.day()).ok()?;
            (hour, minute) = (0, 0);
        }
        None
    }

    /// Whether the date matches both day fields, or either of them if neither is a star: as in crontab(5).
    fn has_day(&self, date: Date) -> bool {
        let day = self.days.has(number(date.day()));
        let weekday = date.weekday().to_sunday_zero_offset();
        let weekday = self.weekdays.has(number(weekday));
        let is_either = !self.days.has_star && !self.weekdays.has_star;
        self.months.has(number(date.month()))
            && if is_either {
                day || weekday
            } else {
                day && weekday
            }
    }

    fn next_in_day(&self, hour: u8, minute: u8) -> Option<(u8, u8)> {
        let first = self.hours.from(hour)?;
        if first > hour {
            return Some((first, self.minutes.from(0)?));
        }
        if let Some(minute) = self.minutes.from(minute) {
            return Some((first, minute));
        }
        Some((self.hours.from(hour + 1)?, self.minutes.from(0)?))
    }
}

impl Kind {
    fn set(&self, text: &str) -> Result<Set, ScheduleError> {
        let mut bits = 0;
        for part in text.split(',') {
            bits |= self.part(part).ok_or_else(|| self.error(part))?;
        }
        let has_star = text.starts_with('*');
        Ok(Set { bits, has_star })
    }

    /// Parses `*`, a number or a range, optionally with a step after a star or a range.
    fn part(&self, part: &str) -> Option<u64> {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (
                range,
                Some(step.parse::<u8>().ok().filter(|step| *step > 0)?),
            ),
            None => (part, None),
        };
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (self.least, self.most),
            Some((first, last)) => (self.number(first)?, self.number(last)?),
            None if step.is_some() => return None,
            None => (self.number(range)?, self.number(range)?),
        };
        if first > last {
            return None;
        }
        let numbers = (first..=last).step_by(usize::from(step.unwrap_or(1)));
        Some(numbers.fold(0, |bits, number| bits | 1 << number))
    }

    fn number(&self, text: &str) -> Option<u8> {
        let named = self
            .names
            .iter()
            .position(|name| name.eq_ignore_ascii_case(text));
        let number = match named {
            Some(at) => u8::try_from(at).ok()? + self.least,
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok()?,
            None => return None,
        };
        (self.least..=self.most).contains(&number).then_some(number)
    }

    fn error(&self, text: &str) -> ScheduleError {
        let Self { least, most, .. } = self;
        let names = match self.names {
            [] | [_] => String::new(),
            [first, .., last] => format!(", or names from `{first}` to `{last}`"),
        };
        ScheduleError::Field {
            field: self.name,
            text: text.to_owned(),
            cure: format!(
                "write numbers from {least} to {most}{names}, as `*`, `{least}`, `{least}-{most}` or `*/5`, with commas between"
            ),
        }
    }
}

/// Returns the names that stand for schedules, for messages.
pub(super) fn names() -> String {
    NAMES.map(|(name, _)| format!("`{name}`")).join(", ")
}

/// Returns the first whole minute after a time.
pub(super) fn minute_after(time: DateTime) -> Option<DateTime> {
    let time = time.checked_add(SignedDuration::from_mins(1)).ok()?;
    Some(time.date().at(time.hour(), time.minute(), 0, 0))
}

/// Converts a part of a date, which is never negative.
fn number(part: i8) -> u8 {
    part.unsigned_abs()
}
