//! The build script: passes the commit of the build, and its time, to the binary.
//!
//! `MESETA_COMMIT` and `SOURCE_DATE_EPOCH` (seconds since the Unix epoch) replace git in a build without it, as in a
//! package's build; git takes precedence otherwise. Facts that neither provides are left out. Only this crate is compiled
//! again when the commit changes.

use std::path::Path;
use std::process::Command;

fn main() {
    for variable in ["MESETA_COMMIT", "SOURCE_DATE_EPOCH"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let given = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    // The log of HEAD grows with each commit, and with each change to another branch.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo:rerun-if-changed={log}");
    } else {
        println!("cargo:rerun-if-changed=build.rs");
    }
    let commit = given("MESETA_COMMIT").or_else(|| git(&["log", "-1", "--format=%H"]));
    let time = given("SOURCE_DATE_EPOCH").or_else(|| git(&["log", "-1", "--format=%ct"]));
    if let Some(commit) = commit {
        println!("cargo:rustc-env=MESETA_BUILD_COMMIT={commit}");
    }
    if let Some(time) = time {
        let seconds: Result<u64, _> = time.parse();
        assert!(
            seconds.is_ok(),
            "SOURCE_DATE_EPOCH={time:?} is not a number of seconds since 1970"
        );
        println!("cargo:rustc-env=MESETA_BUILD_TIME={time}");
    }
}

/// Returns the output of git, if this is a checkout of this repository and not a copy inside another one.
fn git(arguments: &[&str]) -> Option<String> {
    let run = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    (run(&["rev-parse", "--show-prefix"])? == "cli/").then(|| run(arguments))?
}
