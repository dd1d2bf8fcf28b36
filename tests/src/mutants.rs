//! Deliberate bugs: the patches of `tests/mutants/`, and the run that should find each of them.
//!
//! A patch begins with a description of the bug. Lines of the form `key: value` follow: `found-by` names the run that finds
//! it, `puts-back` the defect of an earlier version that it restores, `expects` the invariant that the simulation names.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// The run that should find a mutant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finder {
    /// The simulation of the whole cluster, as the finder.
    Simulation,
    /// Runs of the simulation for the job scheduler.
    SimulationOfJobs,
    /// The arguments of `cargo` for a test that fails.
    Test(Vec<String>),
}

impl Finder {
    fn read(text: &str) -> anyhow::Result<Self> {
        if text == "simulation" {
            return Ok(Self::Simulation);
        }
        if text == "simulation of jobs" {
            return Ok(Self::SimulationOfJobs);
        }
        let mut words = text.split_whitespace().map(str::to_owned);
        if words.next().as_deref() != Some("cargo") {
            bail!(
                "`found-by: {text}` is neither `simulation`, `simulation of jobs` nor a `cargo test`"
            );
        }
        let words: Vec<String> = words.collect();
        match words.first().map(String::as_str) {
            Some("test") => Ok(Self::Test(words)),
            _ => bail!("`found-by: {text}` runs no test"),
        }
    }

    /// Returns the text of a patch.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Simulation => "simulation".to_owned(),
            Self::SimulationOfJobs => "simulation of jobs".to_owned(),
            Self::Test(words) => format!("cargo {}", words.join(" ")),
        }
    }
}

/// A deliberate bug, as its patch describes it.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The name of its file, without the extension.
    pub name: String,
    pub path: PathBuf,
    /// The description of the bug.
    pub what: String,
    /// The defect of an earlier version that it restores, if any.
    pub puts_back: Option<String>,
    pub finder: Finder,
    /// The invariant whose violation the simulation is expected to report.
    pub expects: Option<String>,
}

impl Mutant {
    fn read(path: PathBuf) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(&path)?;
        let name = path.file_stem().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let (mut what, mut finder, mut puts_back, mut expects) = (Vec::new(), None, None, None);
        for line in text.lines().take_while(|line| !line.starts_with("--- ")) {
            match line.split_once(": ") {
                Some(("found-by", by)) => finder = Some(Finder::read(by)?),
                Some(("puts-back", defect)) => puts_back = Some(defect.to_owned()),
                Some(("expects", rule)) => expects = Some(rule.to_owned()),
                _ => what.push(line.trim()),
            }
        }
        let what = what.join(" ").trim().to_owned();
        if what.is_empty() {
            bail!("it does not say what is made wrong");
        }
        Ok(Self {
            finder: finder.context("it does not say what finds it (`found-by: ...`)")?,
            name,
            path,
            what,
            puts_back,
            expects,
        })
    }
}

/// Returns all mutants of a checkout, by name.
///
/// # Errors
///
/// Names the unreadable patch, and its missing part.
pub fn all(checkout: &Path) -> anyhow::Result<Vec<Mutant>> {
    let folder = checkout.join("tests/mutants");
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "patch") {
            paths.push(path);
        }
    }
    paths.sort();
    let read = |path: PathBuf| {
        let shown = path.display().to_string();
        Mutant::read(path).with_context(|| shown)
    };
    paths.into_iter().map(read).collect()
}
