//! The clone for the mutants, with its builds and runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, bail};

/// The time after which a test counts as endless.
const TEST_SECONDS_MAX: &str = "1200";

pub(crate) struct Scratch {
    tree: PathBuf,
    target: PathBuf,
}

/// The result of a test run.
pub(crate) enum Tested {
    /// The number of tests, none of which failed.
    Passed(usize),
    /// The names of the failed tests.
    Failed(Vec<String>),
}

fn run(command: &mut Command) -> anyhow::Result<Output> {
    let shown = format!("{command:?}");
    let output = command.output().with_context(|| shown.clone())?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let errors: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("error"))
            .collect();
        let why = if errors.is_empty() {
            text.trim().to_owned()
        } else {
            errors.join("; ")
        };
        bail!("{shown} fails: {why}");
    }
    Ok(output)
}

impl Scratch {
    /// Clones the committed tree into a folder that may hold an earlier clone.
    pub(crate) fn from_checkout(checkout: &Path, folder: &Path) -> anyhow::Result<Self> {
        let scratch = Self {
            tree: folder.join("tree"),
            target: folder.join("target"),
        };
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        if !scratch.tree.exists() {
            let mut clone = Command::new("git");
            run(clone
                .args(["clone", "--quiet", "--shared"])
                .arg(checkout)
                .arg(&scratch.tree))?;
        }
        run(scratch.git(&["fetch", "--quiet"]).arg(checkout).arg("HEAD"))?;
        run(&mut scratch.git(&["checkout", "--quiet", "--force", "--detach", "FETCH_HEAD"]))?;
        Ok(scratch)
    }

    fn git(&self, arguments: &[&str]) -> Command {
        let mut git = Command::new("git");
        git.arg("-C").arg(&self.tree).args(arguments);
        git
    }

    pub(crate) fn apply(&self, patch: &Path) -> anyhow::Result<()> {
        run(self.git(&["apply"]).arg(patch)).context("it does not apply")?;
        Ok(())
    }

    pub(crate) fn restore(&self) -> anyhow::Result<()> {
        run(&mut self.git(&["checkout", "--quiet", "--force", "."]))?;
        Ok(())
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut cargo = Command::new("cargo");
        // Only the detection of a mutant counts.
        let silent = [
            ("RUSTFLAGS", ""),
            ("CARGO_PROFILE_DEV_DEBUG", "none"),
            ("CARGO_TERM_COLOR", "never"),
        ];
        cargo.args(arguments).current_dir(&self.tree).envs(silent);
        cargo.env("CARGO_TARGET_DIR", &self.target);
        cargo
    }

    /// Builds the simulation, and returns the path of its program.
    pub(crate) fn build_simulation(&self) -> anyhow::Result<PathBuf> {
        let arguments = [
            "build",
            "--locked",
            "--profile",
            "quick",
            "-p",
            "meseta-simulation",
        ];
        run(self.cargo(&arguments).args(["--example", "simulate"]))?;
        Ok(self.target.join("quick/examples/simulate"))
    }

    /// Returns the path of the simulation program without mutants.
    pub(crate) fn simulation_as_it_is(&self) -> PathBuf {
        self.target.join("quick/examples/simulate-as-it-is")
    }

    /// Builds and runs tests, with the daemons if required.
    pub(crate) fn test(&self, words: &[String]) -> anyhow::Result<Tested> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if words.contains(&"scenarios") {
            run(&mut self.cargo(&["build", "--locked"])).context("it does not build")?;
        }
        let mut build = self.cargo(&words);
        run(build.args(["--locked", "--no-run"])).context("it does not build")?;
        let cargo = self.cargo(&words);
        let mut test = Command::new("timeout");
        test.arg(TEST_SECONDS_MAX)
            .arg("cargo")
            .args(cargo.get_args())
            .arg("--locked");
        test.current_dir(&self.tree);
        for (name, value) in cargo.get_envs() {
            test.env(name, value.unwrap_or_default());
        }
        let output = test.output().context("cargo test")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let ended = |how: &'static str| {
            let lines = text.lines().filter_map(move |line| line.strip_suffix(how));
            lines
                .filter_map(|line| line.strip_prefix("test "))
                .map(|name| name.trim().to_owned())
        };
        let failed: Vec<String> = ended("... FAILED").collect();
        match output.status.code() {
            Some(0) => Ok(Tested::Passed(ended("... ok").count())),
            Some(124) => Ok(Tested::Failed(vec!["it does not end".to_owned()])),
            _ if failed.is_empty() => Ok(Tested::Failed(vec!["it crashes".to_owned()])),
            _ => Ok(Tested::Failed(failed)),
        }
    }
}
