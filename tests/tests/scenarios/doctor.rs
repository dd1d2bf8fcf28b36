//! Tests of `meseta doctor`: each broken setup is reported with its remedy.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use meseta_tests::daemon::{Daemon, binary};
use meseta_tests::secure::Authority;

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        the_way_to_the_master;
    meseta_tests::unless_root:
        the_machine;
}

/// Returns the output, and whether the check was content.
fn told(output: &Output) -> (bool, String) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code().is_some_and(|code| code < 2),
        "{errors}"
    );
    (output.status.success(), text + &errors)
}

fn doctor(flags: &[&str]) -> (bool, String) {
    let mut command = Command::new(binary());
    command.args(["doctor", "--client"]).args(flags);
    told(&command.output().expect("meseta runs"))
}

/// Answers one request for `/version` as a master with another time and version.
fn odd_master() -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).expect("a request");
        let body = r#"{"version": "1.12.0", "meseta_version": "0.99.0"}"#;
        let head = "HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Length";
        write!(stream, "{head}: {}\r\n\r\n{body}", body.len()).expect("an answer");
    });
    (address, answering)
}

fn the_way_to_the_master() {
    let dir = tempfile::tempdir().expect("a folder");
    let flags = ["--port=0", "--registry=in_memory"].map(str::to_owned);
    let master = Daemon::start("master", &dir.path().join("clear"), &flags);
    let (is_well, text) = doctor(&["--master", master.address()]);
    assert!(is_well && text.contains("0 problems, 0 warnings"), "{text}");

    let (address, answering) = odd_master();
    let (is_well, text) = doctor(&["--master", &address]);
    answering.join().expect("it has answered");
    assert!(!is_well, "{text}");
    for part in [
        "has version 0.99.0",
        "upgrade this machine",
        "behind this one",
        "set-ntp",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }

    let (is_well, text) = doctor(&["--master=127.0.0.1:1"]);
    assert!(
        !is_well && text.contains("127.0.0.1:1 does not answer"),
        "{text}"
    );
    assert!(text.contains("systemctl start meseta-master"), "{text}");

    let authority = Authority::new(&dir.path().join("authority"));
    let mut flags = flags.to_vec();
    flags.extend(authority.sign("master", &["127.0.0.1"]).flags());
    let master = Daemon::start("master", &dir.path().join("encrypted"), &flags);
    let ca = |authority: &Authority| format!("--ca={}", authority.file().display());
    let address = master.address().trim_start_matches("https://").to_owned();
    let (is_well, text) = doctor(&["--master", &address, &ca(&authority)]);
    assert!(is_well, "{text}");
    let other = Authority::new(&dir.path().join("other"));
    let (is_well, text) = doctor(&["--master", &address, &ca(&other)]);
    assert!(!is_well && text.contains("is not trusted"), "{text}");
    assert!(
        text.contains("give that authority with --ca (or MESETA_CA)"),
        "{text}"
    );
}

/// Runs `meseta doctor` in a shell with separate mounts, on a machine that was broken just before.
fn on_a_machine(broken_by: &str, dir: &Path, flags: &str) -> String {
    let script = format!(
        "{broken_by}; exec '{}' doctor --master=127.0.0.1:1 -- --work_dir='{}' {flags}",
        binary().display(),
        dir.display()
    );
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .output();
    told(&output.expect("unshare runs")).1
}

fn the_machine() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().display();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = format!("--port={}", taken.local_addr().expect("an address").port());
    let full = format!("mount -t tmpfs -o size=1m none '{path}'");
    for (broken_by, flags, what, mend) in [
        (
            full.as_str(),
            "--port=0",
            "is on a full filesystem",
            "larger file system",
        ),
        (
            "ulimit -n 1024",
            "--port=0",
            "the open-file limit is 1024",
            "LimitNOFILE",
        ),
        (
            ":",
            port.as_str(),
            "failed to listen on",
            "give another --ip or --port",
        ),
    ] {
        let text = on_a_machine(broken_by, dir.path(), flags);
        assert!(text.contains(what) && text.contains(mend), "{what}: {text}");
    }
    // The command covers each mounted hierarchy.
    let read_only = "awk '$3 ~ /^cgroup/ { print $2 }' /proc/mounts | while read -r tree; do mount -o remount,bind,ro $tree; done";
    let text = on_a_machine(read_only, dir.path(), "--port=0");
    let has_cgroups = !text.contains("no cgroups are mounted");
    assert!(
        !has_cgroups || text.contains("mounted read-only, so the agent"),
        "{text}"
    );
    // As under `ip netns exec`.
    let hidden = on_a_machine("mount -t sysfs none /sys", dir.path(), "--port=0");
    let is_named =
        hidden.contains("another mount hides the cgroup trees") && hidden.contains("nsenter");
    assert!(!has_cgroups || is_named, "{hidden}");
    // The binary is run by its descriptor, because its folder may be closed to others.
    let user = format!(
        "exec 3<'{}'; exec setpriv --reuid=65534 --regid=65534 --clear-groups /proc/self/fd/3 doctor --master=127.0.0.1:1",
        binary().display()
    );
    let output = Command::new("sh")
        .args(["-c", &user])
        .output()
        .expect("sh runs");
    assert!(
        told(&output)
            .1
            .contains("not root: tasks would run as this user")
    );
}
