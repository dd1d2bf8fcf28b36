//! The units as systemd's own tools judge them; `tests/vm/run` shows their effects.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use meseta_tests::{Missing, unless_installed};

meseta_tests::scenarios! {
    unless_analyze:
        verify_has_nothing_to_say,
        exposure_is_within_its_bounds;
    crate::anywhere:
        the_examples_are_understood;
}

/// The highest exposure of each unit with a drop-in, in tenths.
const EXPOSURES: [(&str, Option<&str>, u32); 5] = [
    ("meseta-master.service", None, 15),
    ("meseta-scheduler.service", None, 15),
    ("meseta-agent.service", None, 60),
    ("meseta-agent.service", Some("kernel"), 56),
    ("meseta-agent.service", Some("hardened"), 49),
];

fn unless_analyze() -> Missing {
    unless_installed("systemd-analyze")
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd")
}

/// Copies the units to a separate folder, with a program that every machine has.
fn staged(drop_in: Option<&str>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for unit in [
        "meseta-agent.service",
        "meseta-master.service",
        "meseta-scheduler.service",
        "meseta.slice",
    ] {
        let text = fs::read_to_string(folder().join(unit)).expect("a unit");
        let mut text = text.replace("/usr/bin/meseta", "/bin/true");
        if unit == "meseta-agent.service"
            && let Some(name) = drop_in
        {
            let path = format!("meseta-agent.service.d/{name}.conf.example");
            text += &fs::read_to_string(folder().join(path)).expect("a drop-in");
        }
        fs::write(dir.path().join(unit), text).expect("written");
    }
    dir
}

/// The tool also succeeds with an unknown key: only empty output counts.
fn verify_has_nothing_to_say() {
    for drop_in in [
        None,
        Some("kernel"),
        Some("hardened"),
        Some("setuid"),
        Some("network"),
        Some("sessions"),
    ] {
        let dir = staged(drop_in);
        let output = Command::new("systemd-analyze")
            .arg("verify")
            .args([
                "./meseta-agent.service",
                "./meseta-master.service",
                "./meseta-scheduler.service",
                "./meseta.slice",
            ])
            .current_dir(dir.path())
            .output()
            .expect("systemd-analyze runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.is_empty(),
            "{drop_in:?}: {said}"
        );
    }
}

fn exposure_is_within_its_bounds() {
    for (unit, drop_in, bound) in EXPOSURES {
        let dir = staged(drop_in);
        let output = Command::new("systemd-analyze")
            .args(["security", "--offline=yes", "--no-pager"])
            .arg(format!("--threshold={bound}"))
            .arg(format!("./{unit}"))
            .current_dir(dir.path())
            .output()
            .expect("systemd-analyze runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let level = said.lines().last().unwrap_or_default();
        assert!(output.status.success(), "{unit} {drop_in:?}: {level}");
    }
}

/// Each daemon accepts its example configuration: it fails later, for an invalid port.
fn the_examples_are_understood() {
    for daemon in ["agent", "master", "scheduler"] {
        let config = folder().join(format!("{daemon}.toml"));
        let output = Command::new(meseta_tests::daemon::binary())
            .arg(daemon)
            .arg(format!("--config={}", config.display()))
            .arg("--port=none")
            .output()
            .expect("meseta runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("--port") && !said.contains(".toml"), "{said}");
    }
}
