//! A secured cluster made by `meseta tls init`, on loopback: the machine of the masters and schedulers is 127.0.0.1, and
//! the attacker's node is 127.0.0.2.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use meseta_tests::daemon::{Daemon, binary, free_port};
use meseta_tests::http::{self, Answer};
use meseta_tests::masters::Etcd;
use meseta_tests::secure::Client;
use meseta_tests::wait::eventually;
use serde_json::json;
use tempfile::TempDir;

pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// The folder of the fleet, with its daemons.
pub(super) struct Fleet {
    pub(super) daemons: Vec<Daemon>,
    pub(super) dir: TempDir,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        while let Some(mut daemon) = self.daemons.pop() {
            daemon.end(Duration::from_secs(10));
        }
        meseta_tests::kernel::remove_groups(&self.cgroups_root());
    }
}

impl Fleet {
    pub(super) fn new() -> Self {
        Self::with(&[])
    }

    /// A fleet with more flags of `meseta tls init`.
    pub(super) fn with(more: &[String]) -> Self {
        let fleet = Self {
            daemons: Vec::new(),
            dir: TempDir::with_prefix("meseta-test-").expect("a folder"),
        };
        let made = Command::new(binary())
            .args(["tls", "init", "--master=master.example=127.0.0.1"])
            .args([
                "--agent=node1.example=127.0.0.2",
                "--scheduler=master.example=127.0.0.1",
                "--principal=ads:role=ads:user=nobody",
            ])
            .args(more)
            .arg(format!("--dir={}", fleet.path("").display()))
            .output()
            .expect("meseta runs");
        assert!(made.status.success(), "{made:?}");
        fleet
    }

    /// Returns a path in the folder that `meseta tls init` created.
    pub(super) fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join("fleet").join(below)
    }

    fn cgroups_root(&self) -> String {
        let name = self.dir.path().file_name().expect("a folder");
        name.display().to_string()
    }

    /// Starts a daemon of a machine with its generated configuration, at a free port.
    pub(super) fn start(&mut self, machine: &str, daemon: &str, more: &[String]) -> usize {
        let home = self.path("machines").join(machine);
        let config = home.join(format!("{daemon}.toml"));
        let text = std::fs::read_to_string(&config).expect("configuration");
        let text = text.replace("/etc/meseta", &home.display().to_string());
        std::fs::write(&config, text).expect("written");
        let name = format!("{daemon}-{}", self.daemons.len());
        let work_dir = self.dir.path().join(name);
        let mut flags = vec![
            format!("--config={}", config.display()),
            format!("--port={}", free_port()),
        ];
        if daemon == "agent" {
            flags.extend([
                format!("--runtime_dir={}", work_dir.join("run").display()),
                format!("--cgroups_root={}", self.cgroups_root()),
                "--shutdown_tasks_on_exit".to_owned(),
                "--registration_backoff_factor=10ms".to_owned(),
                "--resources=cpus:2;mem:512;disk:512;ports:[31000-31009]".to_owned(),
            ]);
        } else {
            // The name made for it is no name of this machine.
            flags.push("--hostname=127.0.0.1".to_owned());
        }
        flags.extend_from_slice(more);
        self.daemons.push(Daemon::start(daemon, &work_dir, &flags));
        self.daemons.len() - 1
    }

    /// Runs a verb as a principal, with these masters or schedulers.
    pub(super) fn verb(&self, principal: &str, addresses: &str, arguments: &[&str]) -> Output {
        self.verb_at(principal, (addresses, addresses), arguments)
    }

    /// A verb of a principal, to these masters and these schedulers.
    pub(super) fn verb_at(
        &self,
        principal: &str,
        (masters, schedulers): (&str, &str),
        arguments: &[&str],
    ) -> Output {
        let home = self.path("principals").join(principal);
        Command::new(binary())
            .args(arguments)
            .env("MESETA_MASTER", masters)
            .env("MESETA_SCHEDULER", schedulers)
            .env("MESETA_CA", home.join("ca.pem"))
            .env("MESETA_PRINCIPAL", principal)
            .env("MESETA_SECRET_FILE", home.join("secret"))
            .env("MESETA_CERT", home.join("cert.pem"))
            .env("MESETA_KEY", home.join("key.pem"))
            .stdin(Stdio::null())
            .output()
            .expect("meseta runs")
    }

    pub(super) fn secret(&self, principal: &str) -> String {
        let path = self.path("principals").join(principal).join("secret");
        let secret = std::fs::read_to_string(path).expect("a secret");
        secret.trim_end().to_owned()
    }

    /// Returns a client that trusts the fleet's authority and follows no redirection.
    pub(super) fn client(&self) -> Client {
        let pem = std::fs::read(self.path("authority/ca.pem")).expect("a certificate");
        Client::new(&pem)
    }

    /// Returns a daemon's response to a principal's GET, if any.
    pub(super) fn get(&self, daemon: usize, principal: &str, path: &str) -> Option<Answer> {
        let url = format!("{}{path}", self.daemons[daemon].url);
        let secret = self.secret(principal);
        let asked = self
            .client()
            .ask("GET", &url, Some((principal, &secret)), "");
        asked.ok()
    }
}

/// A server with the certificate of the attacker's node, which records everything that it receives.
pub(super) struct Rogue {
    child: Child,
    pub(super) address: String,
    sent: PathBuf,
    handshakes: PathBuf,
}

impl Rogue {
    pub(super) fn start(fleet: &Fleet) -> Self {
        let address = format!("127.0.0.2:{}", free_port());
        let home = fleet.path("machines/node1.example/agent");
        let file = |name: &str| {
            let path = fleet.dir.path().join(name);
            (std::fs::File::create(&path).expect("a file"), path)
        };
        let (sent, sent_path) = file("rogue.sent");
        let (handshakes, handshakes_path) = file("rogue.handshakes");
        let child = Command::new("openssl")
            .args(["s_server", "-quiet", "-msg", "-accept", &address])
            .arg("-cert")
            .arg(home.join("cert.pem"))
            .arg("-key")
            .arg(home.join("key.pem"))
            .arg("-msgfile")
            .arg(&handshakes_path)
            .stdin(Stdio::piped())
            .stdout(sent)
            .stderr(handshakes)
            .spawn()
            .expect("openssl runs");
        let rogue = Self {
            child,
            address,
            sent: sent_path,
            handshakes: handshakes_path,
        };
        eventually("the rogue node listens", LIMIT, || {
            std::net::TcpStream::connect(&rogue.address).ok()
        });
        rogue
    }

    /// Returns the bytes that clients sent after a handshake.
    pub(super) fn sent(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.sent).expect("a file")).into_owned()
    }

    /// Returns the number of clients that started a handshake.
    pub(super) fn handshakes(&self) -> usize {
        let text = std::fs::read(&self.handshakes).expect("a file");
        String::from_utf8_lossy(&text)
            .matches("ClientHello")
            .count()
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends an attacker's call to etcd's gateway, which responds in JSON.
fn etcd_call(etcd: &Etcd, call: &str, body: &serde_json::Value) {
    let url = format!("{}/v3/kv/{call}", etcd.url);
    let answer = http::post(&url, &[], body.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// Writes `address` as the leader into etcd, at this key.
pub(super) fn poison(etcd: &Etcd, key: &str, address: &str) {
    let value =
        json!({"id": "x", "hostname": "master.example", "address": address, "version": "x"});
    let body = json!({"key": base64(key), "value": base64(&value.to_string())});
    etcd_call(etcd, "put", &body);
}

pub(super) fn delete(etcd: &Etcd, key: &str) {
    etcd_call(etcd, "deleterange", &json!({"key": base64(key)}));
}

/// Returns the flags of daemons that share this etcd.
pub(super) fn etcd_flags(etcd: &Etcd, kept_by: &str) -> Vec<String> {
    vec![
        kept_by.to_owned(),
        format!("--etcd_endpoints={}", etcd.url),
        "--etcd_lease_ttl=4secs".to_owned(),
    ]
}
