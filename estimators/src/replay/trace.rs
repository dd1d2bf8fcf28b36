//! Recorded usage: for each step and task, the mean use over the step that ends then.
//!
//! Read from comma-separated text: a first line `t_s,<task>,...`, an optional line `limit,<limit>,...`, and a line of use for
//! each step, in the unit of the limits. An empty cell before a task's first value or after its last one means that the task
//! does not run; an empty cell in between means that its use was unreadable.

use std::time::Duration;

use crate::numbers::sound;

/// The limit on cells, to bound the memory of a trace.
const CELLS_MAX: usize = 50_000_000;

#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    step: Duration,
    tasks: Vec<Task>,
    steps: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Task {
    pub(super) name: String,
    /// The limit in processors.
    pub(super) limit: f64,
    /// The use in processors, one value for each step.
    pub(super) used: Vec<Option<f64>>,
}

/// Errors of parsing a trace.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TraceError {
    #[error("the trace is empty")]
    Empty,
    #[error("line {line}: {cells} cells where the first line has {expected}")]
    Cells {
        line: usize,
        cells: usize,
        expected: usize,
    },
    #[error("line {line}: {text:?} is not a number of at least 0")]
    Number { line: usize, text: String },
    #[error("line {line}: steps are {step} s apart before, and {found} s here")]
    Step { line: usize, step: f64, found: f64 },
    #[error("the trace has fewer than two steps")]
    TooShort,
    #[error("the trace has more than {CELLS_MAX} values")]
    TooLong,
    #[error("task {0:?} has no limit")]
    NoLimit(String),
    #[error("the limits have no column {0:?}")]
    NoColumn(&'static str),
}

fn number(line: usize, text: &str) -> Result<f64, TraceError> {
    let parsed = text.trim().parse().ok().and_then(sound);
    parsed.ok_or_else(|| TraceError::Number {
        line,
        text: text.to_owned(),
    })
}

/// The non-empty lines, with their numbers from 1.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
}

impl Trace {
    /// Reads a trace, with `limits` if the trace has no line of them. `limits` has a first line with the columns `vm` or `task`,
    /// and `limit` or `cpu_capacity_mhz`, and perhaps `cpu_count`. With the last column, the unit is chosen such that the sum of
    /// all limits equals the sum of all processors.
    ///
    /// # Errors
    /// When a line does not fit, a step is not as long as the others, or a limit is missing.
    pub fn parse(usage: &str, limits: Option<&str>) -> Result<Self, TraceError> {
        let mut lines = lines(usage);
        let (_, first) = lines.next().ok_or(TraceError::Empty)?;
        let names: Vec<&str> = first.split(',').skip(1).map(str::trim).collect();
        let mut own_limits = None;
        let mut columns: Vec<Vec<Option<f64>>> = vec![Vec::new(); names.len()];
        let (mut times, mut cells_read) = (Vec::new(), 0);
        for (line, text) in lines {
            let cells: Vec<&str> = text.split(',').collect();
            let (Some((time, cells)), true) = (cells.split_first(), cells.len() == names.len() + 1)
            else {
                let (cells, expected) = (cells.len(), names.len() + 1);
                return Err(TraceError::Cells {
                    line,
                    cells,
                    expected,
                });
            };
            if time.trim() == "limit" {
                let read = cells.iter().map(|cell| number(line, cell));
                own_limits = Some(read.collect::<Result<Vec<f64>, _>>()?);
                continue;
            }
            cells_read += cells.len();
            if cells_read > CELLS_MAX {
                return Err(TraceError::TooLong);
            }
            times.push((line, number(line, time)?));
            for (column, cell) in columns.iter_mut().zip(cells) {
                let empty = cell.trim().is_empty();
                column.push(if empty {
                    None
                } else {
                    Some(number(line, cell)?)
                });
            }
        }
        let step = step_of(&times)?;
        let (limits, scale) = match (own_limits, limits) {
            (Some(own), _) => (own, 1.0),
            (None, Some(limits)) => Limits::parse(limits)?.for_tasks(&names)?,
            (None, None) => return Err(TraceError::NoLimit(names.join(","))),
        };
        let tasks = names
            .into_iter()
            .zip(limits)
            .zip(columns)
            .map(|((name, limit), used)| {
                // A counter may be slightly ahead of its clock: no task uses more than its limit.
                let scaled = |used: f64| used.min(limit) * scale;
                let used = used.into_iter().map(|used| used.map(scaled)).collect();
                Task {
                    name: name.to_owned(),
                    limit: limit * scale,
                    used,
                }
            });
        Ok(Self {
            step,
            tasks: tasks.collect(),
            steps: times.len(),
        })
    }

    #[must_use]
    pub const fn step(&self) -> Duration {
        self.step
    }

    /// The number of steps in the trace.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.steps
    }

    /// Whether the trace has no steps, which is false for every parsed trace.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.steps == 0
    }

    /// The number of tasks in the trace.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn task(&self, index: usize) -> Option<&Task> {
        self.tasks.get(index)
    }

    /// The number of steps of a horizon; at least one.
    pub(super) fn steps_in(&self, horizon: Duration) -> usize {
        let steps = horizon.as_nanos() / self.step.as_nanos().max(1);
        usize::try_from(steps).unwrap_or(usize::MAX).max(1)
    }
}

fn step_of(times: &[(usize, f64)]) -> Result<Duration, TraceError> {
    let (Some((_, first)), Some((_, second))) = (times.first(), times.get(1)) else {
        return Err(TraceError::TooShort);
    };
    let step = second - first;
    for ((_, one), (line, next)) in times.iter().zip(times.iter().skip(1)) {
        let found = next - one;
        if (found - step).abs() > 1e-3 || step <= 0.0 {
            return Err(TraceError::Step {
                line: *line,
                step,
                found,
            });
        }
    }
    Duration::try_from_secs_f64(step).map_err(|_| TraceError::TooShort)
}

/// A table of limits by task.
struct Limits<'a> {
    rows: Vec<(&'a str, f64)>,
    /// The value of one unit of the limits, in processors.
    scale: f64,
}

impl<'a> Limits<'a> {
    fn parse(text: &'a str) -> Result<Self, TraceError> {
        let mut lines = lines(text);
        let (_, first) = lines.next().ok_or(TraceError::Empty)?;
        let names: Vec<&str> = first.split(',').map(str::trim).collect();
        let column = |wanted: [&str; 2]| names.iter().position(|name| wanted.contains(name));
        let task = column(["vm", "task"]).ok_or(TraceError::NoColumn("task"))?;
        let limit = column(["limit", "cpu_capacity_mhz"]).ok_or(TraceError::NoColumn("limit"))?;
        let processors = column(["cpu_count", "cpu_count"]);
        let (mut rows, mut units, mut cpus) = (Vec::new(), 0.0, 0.0);
        for (line, text) in lines {
            let cells: Vec<&str> = text.split(',').map(str::trim).collect();
            let cell = |column: usize| {
                let (cells_found, expected) = (cells.len(), names.len());
                let short = TraceError::Cells {
                    line,
                    cells: cells_found,
                    expected,
                };
                cells.get(column).copied().ok_or(short)
            };
            let value = number(line, cell(limit)?)?;
            if let Some(processors) = processors {
                cpus += number(line, cell(processors)?)?;
                units += value;
            }
            rows.push((cell(task)?, value));
        }
        let scale = if units > 0.0 && cpus > 0.0 {
            cpus / units
        } else {
            1.0
        };
        Ok(Self { rows, scale })
    }

    fn for_tasks(&self, tasks: &[&str]) -> Result<(Vec<f64>, f64), TraceError> {
        let find = |task: &&str| {
            let row = self.rows.iter().find(|(name, _)| name == task);
            row.map(|(_, limit)| *limit)
                .ok_or_else(|| TraceError::NoLimit((*task).to_owned()))
        };
        Ok((
            tasks.iter().map(find).collect::<Result<_, _>>()?,
            self.scale,
        ))
    }
}
