//! The binary as it is first met: help, version, and a slip of the finger.

use std::process::{Command, Output};

fn meseta(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_meseta"))
        .args(args)
        .output()
        .expect("meseta runs")
}

#[test]
fn help_names_verbs_and_first_step() {
    let output = meseta(&["--help"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success());
    for word in [
        "master",
        "agent",
        "scheduler",
        "local",
        "doctor",
        "execute",
        "agents",
        "tasks",
        "task",
        "tls",
        "frameworks",
        "offers",
        "roles",
        "quota",
        "weights",
        "reserve",
        "unreserve",
        "reservations",
        "volumes",
        "drain",
        "maintenance",
        "images",
        "explain",
        "run",
        "plan",
        "jobs",
        "job",
        "logs",
        "teardown",
        "completions",
    ] {
        assert!(text.contains(&format!("\n  {word} ")), "{word}: {text}");
    }
    assert!(text.contains("Start with `meseta local`"), "{text}");
}

#[test]
fn unknown_verb_suggests_the_nearest() {
    let output = meseta(&["exceute"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(text.contains("execute"), "{text}");
}

#[test]
fn unreachable_master_ends_the_verb() {
    let output = meseta(&["agents", "--master=127.0.0.1:1"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("nothing answers at 127.0.0.1:1"), "{text}");
}

/// Units of systemd try a daemon again for ever unless it exits with 2.
#[test]
fn invalid_flags_exit_2_transient_1() {
    let dir = tempfile::tempdir().expect("a folder");
    let work_dir = format!("--work_dir={}", dir.path().join("w").display());
    let syntax = dir.path().join("syntax.toml");
    std::fs::write(&syntax, "port = = 1\n").expect("written");
    let syntax = format!("--config={}", syntax.display());
    // These files may be half written.
    let modules = dir.path().join("modules");
    std::fs::create_dir(&modules).expect("made");
    std::fs::write(modules.join("a.json"), "{").expect("written");
    let modules = format!("--modules_dir={}", modules.display());
    let half = |flag: &str, text: &str| {
        let path = dir.path().join(flag);
        std::fs::write(&path, text).expect("written");
        format!("--{flag}=file://{}", path.display())
    };
    let (attributes, resources) = (half("attributes", "rack:a;zone"), half("resources", "cpus"));
    let (firewall, budget) = (half("firewall_rules", ""), half("memory_budget", ""));
    let apart = attributes.replace('=', " ");
    let apart: Vec<&str> = apart.split(' ').collect();
    let agent = ["agent", "--master=127.0.0.1:1", "--port=0"];
    let with = |flag| [&agent[..], &[flag]].concat();
    for (line, code) in [
        (vec!["master", "--ip=0.0.0.0", "--port=0"], 2),
        (vec!["master", "--registry=nosuch", "--port=0"], 2),
        (vec!["scheduler", "--master=nonsense", "--port=0"], 2),
        (with("--isolation=nosuch"), 2),
        (with("--resources=cpus:many"), 2),
        (with(&syntax), 2),
        (with("--config=/nowhere/agent.toml"), 1),
        (with("--resources=file:///nowhere/at/all"), 1),
        (with("--http_credentials=/nowhere/at/all"), 1),
        (with("--attributes=rack:a;zone"), 2),
        (with("--modules={"), 2),
        (with("--firewall_rules="), 2),
        (with("--memory_budget="), 2),
        (with(&attributes), 1),
        ([&agent[..], &apart].concat(), 1),
        (with(&resources), 1),
        (with(&firewall), 1),
        (with(&budget), 1),
        (with(&modules), 1),
        (vec!["master", "--port=0", "--ip=127.0.0.1", &firewall], 1),
        // No file makes it a valid flag.
        ([&with(&attributes)[..], &["--nosuch"]].concat(), 2),
    ] {
        let output = meseta(&[&line[..], &[&work_dir]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line:?}: {said}");
    }
}
