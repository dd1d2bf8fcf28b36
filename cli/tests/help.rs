//! The binary as it is first met: help, version, and a slip of the finger.

use std::process::{Command, Output};

fn meseta(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_meseta"))
        .args(args)
        .output()
        .expect("meseta runs")
}

#[test]
fn help_names_every_verb_and_what_to_do_first() {
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
        "volumes",
        "drain",
        "maintenance",
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
fn an_unknown_verb_is_refused_with_the_near_one() {
    let output = meseta(&["exceute"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(text.contains("execute"), "{text}");
}

#[test]
fn a_verb_without_a_master_says_so_and_ends() {
    let output = meseta(&["agents", "--master=127.0.0.1:1"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("nothing answers at 127.0.0.1:1"), "{text}");
}
