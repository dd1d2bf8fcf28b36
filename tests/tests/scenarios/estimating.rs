//! The `meseta estimate replay` verb: the table, the picture, and the errors for invalid traces.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use meseta_tests::daemon::binary;

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        trace_becomes_table_and_picture,
        invalid_trace_is_refused_with_reason;
}

/// Returns a trace of two tasks over two days of five-minute steps; one is busy by day.
fn trace() -> String {
    let mut text = String::from("t_s,web,batch\nlimit,4,2\n");
    for step in 0..576 {
        let web = if step % 288 < 144 { 1.5 } else { 0.5 };
        let _ = writeln!(text, "{},{web},0.2", step * 300);
    }
    text
}

fn meseta(trace: &Path, flags: &[&str]) -> Output {
    Command::new(binary())
        .args(["estimate", "replay"])
        .args(flags)
        .arg(trace)
        .output()
        .expect("meseta runs")
}

fn trace_becomes_table_and_picture() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, picture) = (dir.path().join("trace.csv"), dir.path().join("first.svg"));
    std::fs::write(&file, trace()).expect("written");
    let drawn = format!("--picture={}", picture.display());
    let output = meseta(&file, &["--machines=2", "--size=2", "--seeds=1,2", &drawn]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for row in [
        "2 tasks, 576 steps",
        "2 machines of 2, seeds [1, 2]",
        "| oracle, 10 min | ",
        "| borg-default, 0.9 of the limits | 0.100 | 0.000 % | 0.000 % | 0.000 % | 0.00 |",
        "| Koordinator batch, last + 0.4 C | ",
        "| **slack**, predictor | ",
        "| **slack**, predictor, seed 2 | ",
        "| **slack**, after its caps | ",
    ] {
        assert!(said.contains(row), "{row:?} in {said}");
    }
    let drawing = std::fs::read_to_string(&picture).expect("a picture");
    assert!(drawing.starts_with("<svg"), "{drawing:.80}");
    assert!(drawing.trim_end().ends_with("</svg>"));
}

fn invalid_trace_is_refused_with_reason() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("trace.csv");
    std::fs::write(&file, trace().replacen("300,1.5", "300,-1.5", 1)).expect("written");
    let not_negative = "line 4: \"-1.5\" is not a number of at least 0";
    for (path, flags, words) in [
        (file.clone(), vec![], not_negative),
        (dir.path().join("gone.csv"), vec![], "gone.csv"),
        (dir.path().to_owned(), vec![], "cpu_mhz_5min.csv"),
        (file.clone(), vec!["--seeds=one"], "--seeds"),
        (file.clone(), vec!["--machines=0"], "--machines"),
    ] {
        let output = meseta(&path, &flags);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains(words),
            "{words}: {said}"
        );
        assert!(!said.contains("panicked"), "{said}");
    }
}
