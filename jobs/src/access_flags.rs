//! Flags of the scheduler's authentication, authorization and TLS, and of its own credentials towards the master.

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

    /// File with the principal and the secret, in plain text, with which the scheduler authenticates to the master;
    /// readable by its owner only.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub credential: Option<PathBuf>,

    /// Whether requests that only read must be authenticated.
    /// Default: where the network can reach the scheduler; elsewhere root and the scheduler's own user need not, tasks
    /// and other users must.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    pub authenticate_http_readonly: Option<bool>,

    /// Whether requests that change something must be authenticated. Default: as above.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    pub authenticate_http_readwrite: Option<bool>,

    /// Access control lists: Mesos's JSON, or `file:///path` of it. `register_frameworks` says who may run and change
    /// jobs in which roles, `view_roles` who sees them. What it does not speak of is allowed on loopback and with
    /// --insecure, and forbidden elsewhere, unless it says `permissive` itself. A changed file is taken over while
    /// running.
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
    /// Collects the security settings. The scheduler tells others its name `hostname`.
    pub(crate) fn settings(
        &self,
        address: IpAddr,
        insecure: bool,
        hostname: Option<String>,
    ) -> Settings {
        Settings {
            daemon: "scheduler",
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

    /// Loads the identity for calls to the master; fails now if the files are unusable.
    pub(crate) fn identity(&self) -> Result<ClientIdentity, SettingsError> {
        let own = self.ssl_cert_file.clone().zip(self.ssl_key_file.clone());
        ClientIdentity::new(self.ssl_ca_file.clone(), own, self.credential.clone())
    }
}
