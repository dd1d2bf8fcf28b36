//! The options of the command line.

use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::floods;

const USAGE: &str = "floods [--minutes=30] [--only=NAME,...] [--quiet=NAME,...] [--master_budget=512MB] \
                     [--agent_budget=128MB] [--scheduler_budget=256MB] [--job_limit=SECONDS]; `--only=none` measures without floods";

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) length: Duration,
    /// The floods that are run.
    pub(crate) floods: Vec<&'static floods::Flood>,
    /// The limit for the master's resident memory, which is also its budget flag.
    pub(crate) master_budget: Option<Budget>,
    pub(crate) agent_budget: Option<Budget>,
    /// The scheduler has no flag for it.
    pub(crate) scheduler_budget: Option<Budget>,
    /// From the submission of a job until its task runs at most.
    pub(crate) job_limit: Option<Duration>,
}

/// A size as written, and in KiB.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    pub(crate) text: String,
    pub(crate) kib: u64,
}

impl Options {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut options = Self {
            length: Duration::from_secs(30 * 60),
            floods: floods::ALL.iter().collect(),
            master_budget: None,
            agent_budget: None,
            scheduler_budget: None,
            job_limit: None,
        };
        for argument in arguments {
            let (name, value) = argument.split_once('=').context(USAGE)?;
            match name {
                "--minutes" => {
                    let minutes: f64 = value.parse().context("--minutes is a number")?;
                    options.length = Duration::try_from_secs_f64(minutes * 60.0)?;
                }
                "--only" if value == "none" => options.floods.clear(),
                "--only" => options.floods = named(value)?,
                "--quiet" => {
                    let quiet = named(value)?;
                    let is_quiet =
                        |flood: &&floods::Flood| quiet.iter().any(|one| one.name == flood.name);
                    options.floods.retain(|flood| !is_quiet(flood));
                }
                "--master_budget" => options.master_budget = Some(Budget::parse(value)?),
                "--agent_budget" => options.agent_budget = Some(Budget::parse(value)?),
                "--job_limit" => {
                    let seconds = value.parse().context("--job_limit")?;
                    options.job_limit = Some(Duration::try_from_secs_f64(seconds)?);
                }
                "--scheduler_budget" => options.scheduler_budget = Some(Budget::parse(value)?),
                _ => bail!("{argument} is not known: {USAGE}"),
            }
        }
        Ok(options)
    }
}

fn named(names: &str) -> anyhow::Result<Vec<&'static floods::Flood>> {
    let find = |name: &str| {
        let found = floods::ALL.iter().find(|flood| flood.name == name);
        let all = floods::ALL.map(|flood| flood.name).join(", ");
        found.with_context(|| format!("no flood is called {name}; there are {all}"))
    };
    names.split(',').map(find).collect()
}

impl Budget {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let split = text.find(|c: char| !c.is_ascii_digit());
        let (digits, unit) = text.split_at(split.unwrap_or(text.len()));
        let factor = match unit {
            "KB" => 1,
            "MB" => 1 << 10,
            "GB" => 1 << 20,
            _ => bail!("{text} is no size: write it as 512MB"),
        };
        let kib = digits
            .parse::<u64>()
            .context("a size begins with a number")?
            * factor;
        let text = text.to_owned();
        Ok(Self { text, kib })
    }
}
