//! The id of a task, which names the job, run, index and attempt.
//!
//! Invariant: an id is used once. Attempts of an index, runs and versions of a job only grow, and each start of a scheduler
//! on a store has its own generation. A restored old copy of a store therefore creates no id twice, two copies of a store
//! create no common id, and neither does a job that takes a purged name.

use std::fmt;
use std::str::FromStr;

/// `JOB.VERSION.RUN.INDEX.ATTEMPT`, all numbers but the job, which may have dots itself; from the second generation of a store
/// on with `-GENERATION` behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskName {
    pub job: String,
    pub version: u64,
    /// 0 for a service; batch and cron jobs count their runs from 1.
    pub run: u64,
    pub index: u32,
    pub attempt: u32,
    /// The store's generation at the launch; 0 before the first restart of its scheduler.
    pub generation: u64,
}

/// The error for an id of another scheduler's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a task id of this scheduler is JOB.VERSION.RUN.INDEX.ATTEMPT[-GENERATION]")]
pub struct NotOurs;

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            job,
            version,
            run,
            index,
            attempt,
            generation,
        } = self;
        write!(f, "{job}.{version}.{run}.{index}.{attempt}")?;
        match generation {
            0 => Ok(()),
            generation => write!(f, "-{generation}"),
        }
    }
}

impl FromStr for TaskName {
    type Err = NotOurs;

    fn from_str(text: &str) -> Result<Self, NotOurs> {
        let mut parts = text.rsplitn(5, '.');
        let last = parts.next().unwrap_or_default();
        let (attempt, generation) = match last.split_once('-') {
            // Each id has a single spelling.
            Some((_, generation)) if generation.starts_with('0') => return Err(NotOurs),
            Some((attempt, generation)) => (attempt, generation.parse().map_err(|_| NotOurs)?),
            None => (last, 0),
        };
        let mut number = || parts.next()?.parse::<u64>().ok();
        let read = (attempt.parse::<u64>().ok(), number(), number(), number());
        let (Some(attempt), Some(index), Some(run), Some(version)) = read else {
            return Err(NotOurs);
        };
        let job = parts.next().filter(|job| !job.is_empty()).ok_or(NotOurs)?;
        Ok(Self {
            job: job.to_owned(),
            version,
            run,
            index: u32::try_from(index).map_err(|_| NotOurs)?,
            attempt: u32::try_from(attempt).map_err(|_| NotOurs)?,
            generation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_round_trips_for_dotted_job() {
        let name = TaskName {
            job: "web.1.2".to_owned(),
            version: 3,
            run: 0,
            index: 7,
            attempt: 12,
            generation: 0,
        };
        assert_eq!(name.to_string(), "web.1.2.3.0.7.12");
        assert_eq!(name.to_string().parse(), Ok(name.clone()));
        let later = TaskName {
            generation: (1_764_294_000 << 32) | 7,
            ..name
        };
        assert_eq!(later.to_string(), "web.1.2.3.0.7.12-7577585030529024007");
        assert_eq!(later.to_string().parse(), Ok(later));
        for wrong in [
            "",
            "web",
            "web.1.2.3",
            ".1.2.3.4",
            "web.1.2.3.x",
            "web.1.2.3.4-",
            "web.1.2.3.4-0",
            "web.1.2.3.4-x",
            "web.1.2.3.4-5-6",
            "web.1.2.3-1.4",
            "web.1.0.1.99999999999",
        ] {
            assert_eq!(wrong.parse::<TaskName>(), Err(NotOurs), "{wrong}");
        }
    }
}
