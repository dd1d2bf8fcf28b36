//! Flags of the agent's authentication, authorization and TLS, and of its own credentials towards the master.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args, ValueHint};
use meseta_daemon::authentication::{
    self, ClientIdentity, Realm, RequestFlags, Settings, SettingsError,
};

/// Flags of authentication, authorization and TLS.
#[derive(Args, Clone, Debug)]
#[command(rename_all = "snake_case")]
pub struct AccessFlags {
    /// Credentials file: `{"credentials": [{"principal": ..., "secret": ...}]}`, or
    /// lines of `principal hash`. Secrets are hashes, made with `meseta credential`; nobody but its owner may read the
    /// file. A changed one is taken over while running.
    #[arg(long, visible_alias = "credentials", value_name = "FILE",
          value_hint = ValueHint::FilePath)]
    pub http_credentials: Option<PathBuf>,

    /// File with the principal and the secret, in plain text, with which the agent authenticates to the master;
    /// readable by its owner only.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub credential: Option<PathBuf>,

    /// Whether requests that only read must be authenticated.
    /// Default: where the network can reach the agent; elsewhere root and the agent's own user need not, tasks and
    /// other users must.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    pub authenticate_http_readonly: Option<bool>,

    /// Whether requests that change something must be authenticated. Default: as above.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    pub authenticate_http_readwrite: Option<bool>,

    /// Whether executors must prove which container they run in: by the token that is in their environment
    /// (`MESOS_EXECUTOR_AUTHENTICATION_TOKEN`), or, if they send none, by what the kernel knows of their
    /// connection.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = true, default_missing_value = "true", action = ArgAction::Set)]
    pub authenticate_http_executors: bool,

    /// File with the key that executors' tokens are signed with, of 16 bytes or more; nobody but its owner
    /// may read it. Default: one that the agent makes in its work directory.
    #[arg(long, visible_alias = "executor_secret_key", value_name = "FILE",
          value_hint = ValueHint::FilePath)]
    pub jwt_secret_key: Option<PathBuf>,

    /// Access control lists: Mesos's JSON, or `file:///path` of it. What it does not speak of is allowed on loopback
    /// and with --insecure, and forbidden elsewhere, unless it says `permissive` itself. A changed file is taken over
    /// while running.
    #[arg(long, value_name = "JSON", value_hint = ValueHint::AnyPath)]
    pub acls: Option<String>,

    #[command(flatten)]
    pub requests: RequestFlags,

    /// Certificate that is served and shown to the master, with those that lead to its authority, in PEM
    /// form. A new one is taken over while running.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ssl_cert_file: Option<PathBuf>,

    /// Its private key; nobody but its owner may read the file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ssl_key_file: Option<PathBuf>,

    /// Authorities that sign the certificate of the master. With it the connection to the master is
    /// encrypted.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ssl_ca_file: Option<PathBuf>,
}

impl AccessFlags {
    /// Reads the flags. `hostname` is the name of the daemon in its tokens and certificates.
    pub(crate) fn settings(
        &self,
        address: IpAddr,
        insecure: bool,
        hostname: Option<String>,
    ) -> Settings {
        Settings {
            daemon: "agent",
            address,
            insecure,
            credentials: self.http_credentials.clone(),
            credentials_flag: "http_credentials",
            acls: self.acls.clone(),
            firewall_rules: self.requests.firewall_rules.clone(),
            names: self.requests.names(hostname),
            ssl_cert_file: self.ssl_cert_file.clone(),
            ssl_key_file: self.ssl_key_file.clone(),
            ssl_ca_file: self.ssl_ca_file.clone(),
            realms: vec![
                (
                    Realm::Readonly,
                    "authenticate_http_readonly",
                    self.authenticate_http_readonly,
                ),
                (
                    Realm::Readwrite,
                    "authenticate_http_readwrite",
                    self.authenticate_http_readwrite,
                ),
            ],
            key: authentication::fresh_key(),
        }
    }

    /// Whether anybody may run anything here, as with Mesos's defaults. This holds on loopback while the agent neither
    /// presents credentials nor requires them, and with `--insecure` while no flag requires authentication.
    pub(crate) fn is_open(&self, address: IpAddr, insecure: bool) -> bool {
        let flags = [
            self.authenticate_http_readonly,
            self.authenticate_http_readwrite,
        ];
        let files = [
            &self.http_credentials,
            &self.credential,
            &self.ssl_cert_file,
            &self.ssl_ca_file,
        ];
        let asks = flags.contains(&Some(true));
        let is_shut = asks || files.into_iter().any(Option::is_some);
        (insecure && !asks) || (address.to_canonical().is_loopback() && !is_shut)
    }

    /// The files that hold secrets or hashes of secrets.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let files = [
            &self.http_credentials,
            &self.credential,
            &self.ssl_key_file,
            &self.jwt_secret_key,
        ];
        files.into_iter().flatten().cloned().collect()
    }

    /// The agent's credentials and TLS settings for its connection to the master.
    ///
    /// # Errors
    /// A file cannot be read or is invalid.
    pub fn identity(&self) -> Result<ClientIdentity, SettingsError> {
        let own = self.ssl_cert_file.clone().zip(self.ssl_key_file.clone());
        ClientIdentity::new(self.ssl_ca_file.clone(), own, self.credential.clone())
    }
}
