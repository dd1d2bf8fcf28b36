//! The page that secures a cluster in ten minutes, typed exactly, by an operator with three machines.
//!
//! A shell runs the blocks of commands of `docs/security.md`, in order. Differences from the page: addresses are of
//! loopback, `/etc`, `/var/lib` and `/run` of each machine are folders, and `scp`, `ssh`, `chown` and `systemctl` are
//! scripts that act on these. Daemons start after `systemctl`, the master and the scheduler of jobs as a user without
//! rights.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use meseta_tests::daemon::{Daemon, binary};
use meseta_tests::wait::eventually;
use meseta_tests::{Missing, kernel, unless_installed, unless_root};
use tempfile::TempDir;

meseta_tests::scenarios! {
    machine:
        security_page_works_as_printed;
}

/// The user in place of `meseta-master`.
const NOBODY: u32 = 65_534;
/// The network of the page's machines.
const PAGE_NET: &str = "10.0.0.";
/// The operator's addition to the configuration of a machine.
const EDIT: &str = "# edited on the machine\n";
const LIMIT: Duration = Duration::from_secs(60);

fn machine() -> Missing {
    unless_root().or_else(|| unless_installed("curl"))
}

/// Returns the blocks of commands on the page, in order.
fn blocks() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/security.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let (_, recipe) = page
        .split_once("## Ten minutes to a shut cluster")
        .expect("the recipe");
    let (recipe, _) = recipe.split_once("\n## ").expect("what comes after it");
    let parts = recipe.split("```sh\n").skip(1);
    parts
        .map(|part| part.split("```").next().unwrap_or_default().to_owned())
        .collect()
}

/// A script in place of `scp`, which uses the folder of a machine instead of the machine.
const SCP: &str = r#"#!/bin/sh
set -eu
[ $# -ge 3 ] && { [ "$1" = -rp ] || [ "$1" = -p ]; } || { echo "scp $*" >&2; exit 64; }
shift
for last; do :; done
host=${last#root@}; address=${host%%:*}; path=${host#*:}
root="$MACHINES/$address"
mkdir -p "$root$path"
while [ $# -gt 1 ]; do
    cp -rp "$1" "$root$path"
    for given in "$1" "$1"/*; do
        case $given in *.toml) ;; *) continue ;; esac
        sed -i -e "s#/etc/meseta#$root&#" -e "s#/var/lib/meseta#$root&#" -e "s#/run/meseta#$root&#" \
            "$root$path${given##*/}"
    done
    shift
done
"#;
const SSH: &str = r#"#!/bin/sh
set -eu
export MACHINE="${1#root@}"; shift
export PATH="$SHIMS/remote:$PATH"
exec sh -euc "$(printf '%s' "$*" | sed "s#/etc/meseta#$MACHINES/$MACHINE&#g")"
"#;
const CHOWN: &str = r#"#!/bin/sh
set -eu
[ $# = 3 ] && [ "$1" = -R ] || { echo "chown $*" >&2; exit 64; }
case "$2 $3" in
    "meseta-master: "*/master | "meseta-scheduler: "*/scheduler) ;;
    *) echo "chown $*" >&2; exit 64 ;;
esac
exec /bin/chown -R 65534:65534 "$3"
"#;
const SYSTEMCTL: &str = r#"#!/bin/sh
set -eu
[ $# = 2 ] && [ "$1" = restart ] || { echo "systemctl $*" >&2; exit 64; }
: > "$MACHINES/$MACHINE/$2"
"#;

/// The operator's desk and the simulated machines.
struct TestMachines {
    dir: TempDir,
    /// The replacement of [`PAGE_NET`].
    net: String,
    cgroups_root: String,
    daemons: Vec<Daemon>,
}

impl Drop for TestMachines {
    fn drop(&mut self) {
        // The scheduler and agents end before their master.
        while let Some(mut daemon) = self.daemons.pop() {
            daemon.end(Duration::from_secs(10));
        }
        kernel::remove_groups(&self.cgroups_root);
    }
}

fn script(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    std::fs::write(path, text).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
}

impl TestMachines {
    fn new() -> Self {
        let dir = TempDir::with_prefix("meseta-shut-").expect("a folder");
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).expect("a mode");
        let shims = dir.path().join("shims");
        script(&shims.join("scp"), SCP);
        script(&shims.join("ssh"), SSH);
        script(&shims.join("remote/chown"), CHOWN);
        script(&shims.join("remote/systemctl"), SYSTEMCTL);
        std::os::unix::fs::symlink(binary(), shims.join("meseta")).expect("a link");
        std::fs::create_dir(dir.path().join("machines")).expect("a folder");
        let pid = std::process::id();
        Self {
            dir,
            net: format!("127.{}.{}.", 16 + pid % 200, 1 + pid / 200 % 250),
            cgroups_root: format!("meseta-test-shut-{pid}"),
            daemons: Vec::new(),
        }
    }

    fn machines(&self) -> PathBuf {
        self.dir.path().join("machines")
    }

    /// Returns the shell's output for these lines, and whether all succeeded.
    fn try_lines(&self, lines: &str) -> (bool, String) {
        let shims = self.dir.path().join("shims");
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new("sh")
            .args([
                "-euc",
                &format!("exec 2>&1\n{}", lines.replace(PAGE_NET, &self.net)),
            ])
            .current_dir(self.dir.path())
            .env_clear()
            .env("PATH", format!("{}:{path}", shims.display()))
            .env("SHIMS", &shims)
            .env("MACHINES", self.machines())
            .output()
            .expect("a shell runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), said)
    }

    /// Returns the shell's output for these lines, which must all succeed.
    fn run_lines(&self, lines: &str) -> String {
        let (is_good, said) = self.try_lines(lines);
        assert!(is_good, "{lines}: {said}{}", self.logs());
        said
    }

    /// Runs a line as a member of the fleet.
    fn by(&self, principal: &str, line: &str) -> (bool, String) {
        self.try_lines(&format!(". fleet/principals/{principal}/env\n{line}"))
    }

    fn logs(&self) -> String {
        let logs = self.daemons.iter().map(Daemon::log_text);
        logs.collect::<Vec<_>>().join("\n---\n")
    }

    /// Starts the services in the calls of `systemctl`.
    fn reconcile_services(&mut self) {
        for unit in ["meseta-master", "meseta-agent", "meseta-scheduler"] {
            for entry in std::fs::read_dir(self.machines()).expect("machines") {
                let root = entry.expect("an entry").path();
                if std::fs::remove_file(root.join(unit)).is_err() {
                    continue;
                }
                let daemon = unit.trim_start_matches("meseta-");
                let work_dir = root.join("var/lib/meseta").join(daemon);
                std::fs::create_dir_all(&work_dir).expect("a folder");
                let config = root.join(format!("etc/meseta/{daemon}.toml"));
                let mut flags = vec![format!("--config={}", config.display())];
                if daemon != "agent" {
                    std::os::unix::fs::chown(&work_dir, Some(NOBODY), Some(NOBODY)).expect("owned");
                    let started = Daemon::start_as(NOBODY, daemon, &work_dir, &flags);
                    self.daemons.push(started);
                    continue;
                }
                flags.extend([
                    format!("--cgroups_root={}", self.cgroups_root),
                    "--shutdown_tasks_on_exit".to_owned(),
                    "--resources=cpus:2;mem:512;disk:512;ports:[31000-31009]".to_owned(),
                ]);
                self.daemons.push(Daemon::start(daemon, &work_dir, &flags));
            }
        }
    }

    /// Waits until the master lists these agents.
    fn registered(&self, names: &[&str]) {
        eventually("the agents are registered", LIMIT, || {
            let (_, listed) = self.by("admin", "meseta agents");
            let is_listed = |name: &&str| {
                let of_it = |line: &&str| line.contains(*name) && line.contains(" active ");
                listed.lines().any(|line| of_it(&line))
            };
            names.iter().all(is_listed).then_some(())
        });
    }
}

/// Returns the next steps that a verb prints.
fn suggested(said: &str) -> String {
    let lines = said.lines().filter_map(|line| line.strip_prefix("  "));
    lines.map(|line| format!("{line}\n")).collect()
}

fn security_page_works_as_printed() {
    let blocks = blocks();
    let [make, copy, start, come_in, later] = blocks.as_slice() else {
        panic!("the page has other steps than this test: {blocks:#?}");
    };
    let mut test_machines = TestMachines::new();
    let said = test_machines.run_lines(make);
    for line in copy.lines().chain(start.lines()) {
        let line = line.replace(PAGE_NET, &test_machines.net);
        assert!(said.contains(&format!("  {line}\n")), "{line}: {said}");
    }
    test_machines.run_lines(copy);
    test_machines.run_lines(start);
    test_machines.reconcile_services();
    assert_eq!(test_machines.daemons.len(), 4);
    test_machines.registered(&["node1.example", "node2.example"]);

    let said = test_machines.run_lines(come_in);
    for expected in [
        "node1.example",
        "node2.example",
        "hello from a task",
        "hello from a job",
        "CPUS ALLOCATED",
        "\"activated_slaves\":2.0,",
        "# HELP",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    the_rules_hold(&test_machines);

    // A verb prints the next steps, and edited configuration stays.
    let edited = ["10.0.0.1:/master.toml", "10.0.0.7:/agent.toml"].map(|text| {
        let (address, name) = text.split_once(":/").expect("two parts");
        let address = address.replace(PAGE_NET, &test_machines.net);
        test_machines
            .machines()
            .join(address)
            .join("etc/meseta")
            .join(name)
    });
    for path in &edited {
        let text = std::fs::read_to_string(path).expect("configuration");
        std::fs::write(path, format!("{text}{EDIT}")).expect("written");
    }
    for line in later.lines() {
        let said = test_machines.run_lines(line);
        test_machines.run_lines(&suggested(&said));
        test_machines.reconcile_services();
    }
    assert_eq!(test_machines.daemons.len(), 5);
    test_machines.registered(&["node3.example"]);
    eventually("the new principal is known", LIMIT, || {
        let (_, said) = test_machines.by("web", "meseta frameworks");
        said.contains("ROLES").then_some(())
    });
    eventually("the new certificates are served", LIMIT, || {
        let taken = |daemon: &Daemon| daemon.log_text().contains("certificate exchanged");
        test_machines
            .daemons
            .iter()
            .take(4)
            .all(taken)
            .then_some(())
    });
    test_machines.registered(&["node1.example", "node2.example", "node3.example"]);
    for path in &edited {
        let text = std::fs::read_to_string(path).expect("configuration");
        assert!(text.ends_with(EDIT), "{}: {text}", path.display());
    }
}

/// Checks that the administrator may do everything, a framework may act on its own objects, and others nothing.
fn the_rules_hold(test_machines: &TestMachines) {
    for line in [
        "meseta quota set eng --guarantee=cpus:1",
        "meseta weights set eng=2",
        "meseta deactivate node2.example",
        "meseta reactivate node2.example",
        "meseta drain node2.example --wait",
        "meseta reactivate node2.example",
        "meseta maintenance schedule node2.example",
        "meseta maintenance clear",
        "meseta quota remove eng",
    ] {
        let (is_good, said) = test_machines.by("admin", line);
        assert!(is_good, "{line}: {said}{}", test_machines.logs());
    }
    // The user may do it, but there is no such framework or agent.
    for line in ["meseta teardown nosuch", "meseta mark-gone nosuch"] {
        let (is_good, said) = test_machines.by("admin", line);
        assert!(!is_good && !said.contains("403"), "{line}: {said}");
    }
    let task = "meseta execute --user=www-data --role=ads --resources='cpus:0.1;mem:32'";
    let (is_good, said) = test_machines.by("ads", &format!("{task} --command='id -un'"));
    assert!(
        is_good && said.contains("www-data\n"),
        "{said}{}",
        test_machines.logs()
    );
    for (principal, line) in [
        (
            "ads",
            "meseta execute --user=root --role=ads --command=true --timeout=20secs",
        ),
        (
            "ads",
            "meseta execute --user=www-data --role=eng --command=true --timeout=20secs",
        ),
        ("ads", "meseta deactivate node2.example"),
        ("prometheus", "meseta deactivate node2.example"),
        ("prometheus", "meseta weights set eng=3"),
    ] {
        let (is_good, said) = test_machines.by(principal, line);
        let is_refused = said.to_lowercase().contains("not authorized") || said.contains("403");
        assert!(!is_good && is_refused, "{principal}: {line}: {said}");
    }
    let (is_good, said) = test_machines.try_lines(
        ". fleet/principals/admin/env; unset MESETA_PRINCIPAL MESETA_SECRET_FILE MESETA_CERT MESETA_KEY; meseta agents",
    );
    assert!(!is_good && said.contains("401"), "{said}");
    // The certificate alone identifies the user, and agents accept only that.
    let certified = ". fleet/principals/admin/env; unset MESETA_PRINCIPAL MESETA_SECRET_FILE";
    let (is_good, said) =
        test_machines.try_lines(&format!("{certified}; meseta top && meseta agents"));
    assert!(is_good && said.contains("node1.example"), "{said}");
    let (is_good, said) = test_machines.try_lines(
        ". fleet/principals/admin/env; unset MESETA_CERT MESETA_KEY; meseta agents && meseta top",
    );
    assert!(!is_good && said.contains("401"), "{said}");
    assert!(said.contains("--secret-to-agents"), "{said}");
    let (is_good, said) = test_machines.try_lines(
        ". fleet/principals/admin/env; unset MESETA_CERT MESETA_KEY; meseta top --secret-to-agents",
    );
    assert!(is_good, "{said}");
    // Secrets are in the right places, and in no log.
    for principal in ["admin", "node", "prometheus", "ads"] {
        let path = test_machines
            .dir
            .path()
            .join(format!("fleet/principals/{principal}/secret"));
        let secret = std::fs::read_to_string(path).expect("a secret");
        assert!(
            !test_machines.logs().contains(secret.trim_end()),
            "{principal}"
        );
    }
}
