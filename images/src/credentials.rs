//! Credentials of registries: from a task's secret, from Docker's configuration file, and from helper programs.
//!
//! [`Credentials::for_host`] looks in each [`DockerConfig`] in turn: the task's comes first. Invariant: a helper learns only about
//! its own host, ends within its timeout, and nothing that it prints reaches a log.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use crate::descriptor::Digest;
use crate::manifest::null_as_default;
use crate::reference::DOCKER_HUB;

/// Bytes of a configuration file.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a helper's answer.
const ANSWER_BYTES_MAX: u64 = 256 << 10;
/// The time of a helper: some ask a service of the cloud first.
const HELPER_TIMEOUT: Duration = Duration::from_secs(30);

/// A way to authenticate at a registry.
#[derive(Clone, Eq, PartialEq)]
pub enum Credential {
    Password {
        user: String,
        password: String,
    },
    /// A token that the token service exchanges for short-lived tokens.
    IdentityToken(String),
}

impl fmt::Debug for Credential {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password { user, .. } => write!(to, "Password({user})"),
            Self::IdentityToken(_) => write!(to, "IdentityToken"),
        }
    }
}

impl Credential {
    /// The value of `Authorization` for a password.
    pub(crate) fn basic_header(&self) -> Option<String> {
        match self {
            Self::Password { user, password } => {
                let encoded = BASE64_STANDARD.encode(format!("{user}:{password}"));
                Some(format!("Basic {encoded}"))
            }
            Self::IdentityToken(_) => None,
        }
    }

    pub(crate) fn user(&self) -> &str {
        match self {
            Self::Password { user, .. } => user,
            Self::IdentityToken(_) => "<token>",
        }
    }
}

/// The failure to obtain credentials. Never contains a part of a secret.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    #[error("failed to read Docker's configuration {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "Docker's configuration of {origin} is invalid in line {line}: expected an object with auths, credHelpers or credsStore"
    )]
    Parse { origin: String, line: usize },
    #[error(
        "the entry {host} of Docker's configuration of {origin} is invalid: 'auth' must be base64 of USER:PASSWORD"
    )]
    Entry { origin: String, host: String },
    #[error(
        "failed to run the credential helper {helper} for {host}: is it installed, and in PATH of this process?"
    )]
    Start {
        helper: String,
        host: String,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "the credential helper {helper} did not answer about {host} within {seconds} s and was killed"
    )]
    Timeout {
        helper: String,
        host: String,
        seconds: u64,
    },
    #[error(
        "the credential helper {helper} failed for {host} ({status}): run it by hand to see its message"
    )]
    Failed {
        helper: String,
        host: String,
        status: String,
    },
    #[error(
        "the credential helper {helper} gave an answer about {host} that is not JSON with Username and Secret"
    )]
    Answer { helper: String, host: String },
}

/// A configuration in Docker's format.
#[derive(Clone)]
pub struct DockerConfig {
    /// A text for messages: a path, or "the task's secret".
    origin: String,
    file: ConfigFile,
    /// Helpers run only for the operator's file: a task must not start programs on the host.
    may_run_helpers: bool,
    fingerprint: Digest,
}

impl fmt::Debug for DockerConfig {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "DockerConfig({})", self.origin)
    }
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConfigFile {
    #[serde(default, deserialize_with = "null_as_default")]
    auths: BTreeMap<String, Entry>,
    #[serde(default, deserialize_with = "null_as_default")]
    cred_helpers: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "null_as_default")]
    creds_store: String,
}

#[derive(Clone, Default, Deserialize)]
struct Entry {
    #[serde(default, deserialize_with = "null_as_default")]
    auth: String,
    #[serde(default, deserialize_with = "null_as_default")]
    username: String,
    #[serde(default, deserialize_with = "null_as_default")]
    password: String,
    #[serde(
        default,
        rename = "identitytoken",
        deserialize_with = "null_as_default"
    )]
    identity_token: String,
}

impl DockerConfig {
    /// Reads the operator's file.
    pub fn read(path: &Path) -> Result<Self, CredentialError> {
        let failed = |source| CredentialError::Read {
            path: path.to_owned(),
            source,
        };
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut text = Vec::new();
        file.take(CONFIG_BYTES_MAX)
            .read_to_end(&mut text)
            .map_err(failed)?;
        Self::parse(&text, path.display().to_string(), true)
    }

    /// Reads the value of a task's secret.
    pub fn from_secret(text: &[u8]) -> Result<Self, CredentialError> {
        Self::parse(text, "the task's secret".to_owned(), false)
    }

    fn parse(text: &[u8], origin: String, may_run_helpers: bool) -> Result<Self, CredentialError> {
        // serde's message could quote a part of the secret.
        let file = serde_json::from_slice::<ConfigFile>(text);
        let mut file = file.map_err(|error| CredentialError::Parse {
            origin: origin.clone(),
            line: error.line(),
        })?;
        if file.auths.is_empty() && file.cred_helpers.is_empty() && file.creds_store.is_empty() {
            // The older form, `.dockercfg`, has the entries at the top.
            file.auths = serde_json::from_slice(text).unwrap_or_default();
            file.auths.retain(|_, entry| !entry.auth.is_empty());
        }
        Ok(Self {
            fingerprint: Digest::from_content(text),
            origin,
            file,
            may_run_helpers,
        })
    }

    /// Returns the credential of a host (`HOST[:PORT]`), which may come from a helper.
    fn for_host(
        &self,
        host: &str,
        timeout: Duration,
    ) -> Result<Option<Credential>, CredentialError> {
        let helper = self
            .file
            .cred_helpers
            .iter()
            .find(|(key, _)| is_for(key, host));
        let helper = helper.filter(|_| self.may_run_helpers);
        if let Some((key, helper)) = helper {
            return Helper {
                name: helper,
                timeout,
            }
            .ask(key);
        }
        if !self.file.creds_store.is_empty() && self.may_run_helpers {
            let key = self.file.auths.keys().find(|key| is_for(key, host));
            let stored_as = match (key, host) {
                (Some(key), _) => key.as_str(),
                (None, DOCKER_HUB) => DOCKER_HUB_KEY,
                (None, host) => host,
            };
            let name = &self.file.creds_store;
            if let Some(found) = (Helper { name, timeout }).ask(stored_as)? {
                return Ok(Some(found));
            }
        }
        let entry = self.file.auths.iter().find(|(key, _)| is_for(key, host));
        entry.map_or(Ok(None), |(key, entry)| {
            entry.credential().map_err(|()| CredentialError::Entry {
                origin: self.origin.clone(),
                host: key.clone(),
            })
        })
    }
}

impl Entry {
    fn credential(&self) -> Result<Option<Credential>, ()> {
        if !self.identity_token.is_empty() {
            return Ok(Some(Credential::IdentityToken(self.identity_token.clone())));
        }
        if !self.auth.is_empty() {
            let bytes = BASE64_STANDARD.decode(self.auth.trim()).map_err(|_| ())?;
            let text = String::from_utf8(bytes).map_err(|_| ())?;
            // Docker itself wrote zero bytes at the end.
            let (user, password) = text.trim_end_matches('\0').split_once(':').ok_or(())?;
            return Ok(Some(password_of(user, password)));
        }
        let is_empty = self.username.is_empty() && self.password.is_empty();
        Ok((!is_empty).then(|| password_of(&self.username, &self.password)))
    }
}

/// The user `<token>` says that the password is an identity token.
fn password_of(user: &str, password: &str) -> Credential {
    match user {
        "<token>" => Credential::IdentityToken(password.to_owned()),
        user => Credential::Password {
            user: user.to_owned(),
            password: password.to_owned(),
        },
    }
}

/// The key of Docker Hub in configuration files.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// Whether a key of a configuration file names a host. Keys may have a scheme and a path.
fn is_for(key: &str, host: &str) -> bool {
    let without_scheme = key.split_once("://").map_or(key, |(_, rest)| rest);
    let named = without_scheme.split('/').next().unwrap_or_default();
    let is_hub = |name: &str| {
        let names = [DOCKER_HUB, "index.docker.io", "registry-1.docker.io"];
        names.iter().any(|one| one.eq_ignore_ascii_case(name))
    };
    named.eq_ignore_ascii_case(host) || (is_hub(named) && is_hub(host))
}

/// A program `docker-credential-NAME`.
struct Helper<'a> {
    name: &'a str,
    timeout: Duration,
}

#[derive(Deserialize)]
struct HelperAnswer {
    #[serde(rename = "Username")]
    user: String,
    #[serde(rename = "Secret")]
    secret: String,
}

impl Helper<'_> {
    /// Returns the credential that the helper has for a key; `None` if it has none.
    fn ask(&self, key: &str) -> Result<Option<Credential>, CredentialError> {
        let helper = format!("docker-credential-{}", self.name);
        let host = key.to_owned();
        if self.name.contains('/') {
            let source = std::io::Error::other("the name of a helper has no '/'");
            return Err(CredentialError::Start {
                helper,
                host,
                source,
            });
        }
        let mut command = Command::new(&helper);
        command
            .arg("get")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        // A process group of its own, so that the helper's own children are killed with it.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let started = command.spawn();
        match started {
            Ok(child) => self.finish(child, key),
            Err(source) => Err(CredentialError::Start {
                helper,
                host,
                source,
            }),
        }
    }

    /// Reads the answer of a running helper, and ends the helper.
    fn finish(&self, mut child: Child, key: &str) -> Result<Option<Credential>, CredentialError> {
        let helper = format!("docker-credential-{}", self.name);
        let host = key.to_owned();
        let answer = exchange(&mut child, key, self.timeout);
        let Some(answer) = answer else {
            kill_group(&child);
            let _ = child.wait();
            return Err(CredentialError::Timeout {
                helper,
                host,
                seconds: self.timeout.as_secs(),
            });
        };
        // A helper that closed its output and does not end is killed: its answer is complete.
        kill_group(&child);
        let status = child.wait();
        let parsed = serde_json::from_slice::<HelperAnswer>(&answer);
        match parsed {
            Ok(answer) if answer.user.is_empty() && answer.secret.is_empty() => Ok(None),
            Ok(answer) => Ok(Some(password_of(&answer.user, &answer.secret))),
            // The protocol's words for "not found" are on standard output.
            Err(_) if contains_not_found(&answer) => Ok(None),
            Err(_) => match status {
                Ok(status) if !status.success() => Err(CredentialError::Failed {
                    helper,
                    host,
                    status: status.to_string(),
                }),
                _ => Err(CredentialError::Answer { helper, host }),
            },
        }
    }
}

fn contains_not_found(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    text.contains("credentials not found") || text.contains("no credentials server URL")
}

fn kill_group(child: &Child) {
    let id = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    if let Some(id) = id {
        let _ = rustix::process::kill_process_group(id, rustix::process::Signal::KILL);
    }
}

/// Writes the key and reads the answer to its end. `None` after the timeout.
fn exchange(child: &mut Child, key: &str, timeout: Duration) -> Option<Vec<u8>> {
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let (send, receive) = mpsc::sync_channel(1);
    let key = key.to_owned();
    // The thread ends with the helper's output, which ends when its process group is killed.
    let spawned = std::thread::Builder::new()
        .name("credentials".to_owned())
        .spawn(move || {
            let mut answer = Vec::new();
            if let Some(mut input) = input {
                let _ = input.write_all(key.as_bytes());
            }
            if let Some(output) = output {
                let _ = output.take(ANSWER_BYTES_MAX).read_to_end(&mut answer);
            }
            let _ = send.send(answer);
        });
    spawned.ok()?;
    receive.recv_timeout(timeout).ok()
}

/// The configurations that apply to a pull, the most specific first.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    configs: Vec<Arc<DockerConfig>>,
}

impl Credentials {
    /// `task` is the configuration of a task's secret, which wins for each host that it names.
    pub fn new(task: Option<Arc<DockerConfig>>, operator: Option<Arc<DockerConfig>>) -> Self {
        Self {
            configs: task.into_iter().chain(operator).collect(),
        }
    }

    pub(crate) fn for_host(&self, host: &str) -> Result<Option<Credential>, CredentialError> {
        for config in &self.configs {
            if let Some(found) = config.for_host(host, HELPER_TIMEOUT)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A text that differs for different credentials, so that no pull is shared between their owners.
    pub(crate) fn fingerprint(&self) -> String {
        let configs = self.configs.iter().map(|config| config.fingerprint.hex());
        configs.collect::<Vec<_>>().join("+")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn config(text: &str) -> DockerConfig {
        DockerConfig::parse(text.as_bytes(), "a test".to_owned(), true).expect("valid")
    }

    fn password(user: &str, password: &str) -> Option<Credential> {
        Some(password_of(user, password))
    }

    fn find(config: &DockerConfig, host: &str) -> Option<Credential> {
        config.for_host(host, HELPER_TIMEOUT).expect("no failure")
    }

    #[test]
    fn keys_match_hosts_in_every_form() {
        let auth = BASE64_STANDARD.encode("ann:p:w");
        for key in [
            "r.io",
            "https://r.io",
            "https://r.io/v1/",
            "http://R.io/v2/",
        ] {
            let config = config(&format!(r#"{{"auths":{{"{key}":{{"auth":"{auth}"}}}}}}"#));
            assert_eq!(find(&config, "r.io"), password("ann", "p:w"), "{key}");
            assert_eq!(find(&config, "r.io:5000"), None);
            assert_eq!(find(&config, "x.r.io"), None);
        }
        let hub = config(&format!(
            r#"{{"auths":{{"{DOCKER_HUB_KEY}":{{"auth":"{auth}"}}}}}}"#
        ));
        assert_eq!(find(&hub, DOCKER_HUB), password("ann", "p:w"));
        let old = config(&format!(r#"{{"r.io":{{"auth":"{auth}","email":"x"}}}}"#));
        assert_eq!(find(&old, "r.io"), password("ann", "p:w"));
    }

    #[test]
    fn identity_tokens_are_recognised() {
        let token = Some(Credential::IdentityToken("t".to_owned()));
        let config = config(
            r#"{"auths":{"a.io":{"auth":"PHRva2VuPjp0"},"b.io":{"identitytoken":"t"},"c.io":{"username":"u","password":"p"},"d.io":{}}}"#,
        );
        assert_eq!(find(&config, "a.io"), token);
        assert_eq!(find(&config, "b.io"), token);
        assert_eq!(find(&config, "c.io"), password("u", "p"));
        assert_eq!(find(&config, "d.io"), None);
    }

    #[test]
    fn task_secret_wins_over_operator() {
        let of = |user: &str| {
            let auth = BASE64_STANDARD.encode(format!("{user}:pw"));
            format!(r#"{{"auths":{{"r.io":{{"auth":"{auth}"}}}}}}"#)
        };
        let task = DockerConfig::from_secret(of("task").as_bytes()).expect("valid");
        let operator = config(&of("operator"));
        let both = Credentials::new(Some(task.into()), Some(operator.clone().into()));
        assert_eq!(
            both.for_host("r.io").expect("found"),
            password("task", "pw")
        );
        let alone = Credentials::new(None, Some(operator.into()));
        assert_eq!(
            alone.for_host("r.io").expect("found"),
            password("operator", "pw")
        );
        assert_ne!(both.fingerprint(), alone.fingerprint());
    }

    #[test]
    fn errors_and_debug_hide_secrets() {
        let secret = "hunter2";
        for text in [
            format!(r#"{{"auths":{{"r.io":{{"auth":["{secret}"]}}}}}}"#),
            format!(r#"{{"auths":{{"r.io":{{"auth":"{secret}!"}}}}}}"#),
            format!(r#"{{"auths":"{secret}"}}"#),
            secret.to_owned(),
        ] {
            let parsed = DockerConfig::from_secret(text.as_bytes());
            let error = parsed.and_then(|config| config.for_host("r.io", HELPER_TIMEOUT));
            let error = error.expect_err("invalid");
            assert!(!format!("{error} {error:?}").contains(secret), "{error}");
        }
        let shown = format!("{:?}", password("ann", secret));
        assert!(!shown.contains(secret), "{shown}");
    }

    /// Writes a helper into a folder and returns a configuration that names its whole path.
    fn ask_helper(script: &str, timeout: Duration) -> Result<Option<Credential>, CredentialError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("docker-credential-test");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("set");
        let mut command = Command::new(&path);
        command
            .arg("get")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.spawn().expect("started");
        Helper {
            name: "test",
            timeout,
        }
        .finish(child, "r.io")
    }

    #[test]
    fn helper_answers_for_its_host() {
        let script =
            r#"read host; echo "noise" >&2; echo "{\"Username\":\"$host\",\"Secret\":\"s\"}""#;
        let answer = ask_helper(&format!("{script}\n"), HELPER_TIMEOUT);
        assert_eq!(answer.expect("answered"), password("r.io", "s"));
        let token = r#"echo '{"Username":"<token>","Secret":"t"}'"#;
        let answer = ask_helper(token, HELPER_TIMEOUT).expect("answered");
        assert_eq!(answer, Some(Credential::IdentityToken("t".to_owned())));
    }

    #[test]
    fn helper_without_entry_means_anonymous() {
        let script = "echo 'credentials not found in native keychain'; exit 1";
        assert_eq!(
            ask_helper(script, HELPER_TIMEOUT).expect("no failure"),
            None
        );
    }

    #[test]
    fn broken_helpers_are_named() {
        let error = ask_helper("exit 3", HELPER_TIMEOUT).expect_err("failed");
        assert!(matches!(error, CredentialError::Failed { .. }), "{error}");
        let error = ask_helper("echo hunter2", HELPER_TIMEOUT).expect_err("no JSON");
        assert!(matches!(error, CredentialError::Answer { .. }), "{error}");
        assert!(!error.to_string().contains("hunter2"));
        let hanging = ask_helper("sleep 1000 & sleep 1000", Duration::from_millis(50));
        assert!(matches!(hanging, Err(CredentialError::Timeout { .. })));
    }

    #[test]
    fn missing_helper_fails_only_its_host() {
        let config = config(
            r#"{"auths":{"a.io":{"username":"u","password":"p"}},"credHelpers":{"b.io":"absent-helper"}}"#,
        );
        assert_eq!(find(&config, "a.io"), password("u", "p"));
        let error = config
            .for_host("b.io", HELPER_TIMEOUT)
            .expect_err("missing");
        assert!(matches!(error, CredentialError::Start { .. }), "{error}");
    }

    #[test]
    fn task_secret_starts_no_programs() {
        let config = DockerConfig::from_secret(br#"{"credsStore":"x","credHelpers":{"r.io":"x"}}"#);
        assert_eq!(find(&config.expect("valid"), "r.io"), None);
    }
}
