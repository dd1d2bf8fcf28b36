//! Signals that operators and tools send to daemons in passing.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// A daemon that is killed when the test is over.
struct Running(Child);

impl Running {
    fn send(&self, signal: &str) {
        let pid = self.0.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.expect("kill runs").success(), "{signal}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `kill -HUP` and the like end no daemon; SIGTERM does, in order.
#[test]
fn daemons_outlive_signals_without_meaning() {
    for (verb, flags, signals) in [
        (
            "master",
            &["--registry=embedded"][..],
            &["-HUP", "-USR1", "-USR2", "-XFSZ"][..],
        ),
        (
            "scheduler",
            &["--master=127.0.0.1:1"],
            &["-HUP", "-USR1", "-USR2", "-XFSZ"],
        ),
        (
            "agent",
            &["--master=127.0.0.1:1", "--isolation=posix/cpu,posix/mem"],
            &["-HUP", "-USR2", "-XFSZ"],
        ),
    ] {
        let dir = tempfile::tempdir().expect("a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_meseta"));
        command.arg(verb).arg("--port=0").args(flags);
        command.arg(format!("--work_dir={}", dir.path().join("work").display()));
        if verb == "agent" {
            command.arg(format!(
                "--runtime_dir={}",
                dir.path().join("run").display()
            ));
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut daemon = Running(child.spawn().expect("it starts"));
        let log = daemon.0.stderr.take().expect("a log");
        let mut lines = BufReader::new(log).lines().map_while(Result::ok);
        let mut until = |text: &str| {
            let mut seen = Vec::new();
            for line in lines.by_ref() {
                if line.contains(text) {
                    return;
                }
                seen.push(line);
            }
            panic!("{verb} ended before it said {text:?}: {seen:#?}");
        };
        until("listening");
        for signal in signals {
            daemon.send(signal);
            if *signal != "-XFSZ" {
                until("signal received");
            }
        }
        daemon.send("-TERM");
        assert!(daemon.0.wait().expect("it ends").success(), "{verb}");
    }
}
