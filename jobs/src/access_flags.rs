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
    /// Credentials file: `{"credentials": [{"principal": ..., "secret": ...}]}`, or lines of `principal hash`. Each
    /// secret is a hash from `meseta credential`. Only the owner may be able to read the file. The daemon rereads a
    /// changed file.
    #[arg(long, visible_alias = "credentials", value_name = "FILE",
          value_hint = ValueHint::FilePath)]
    pub http_credentials: Option<PathBuf>,

    /// File with the principal and the secret, in plain text, that the scheduler uses to authenticate to the
    /// master. Only the owner may be able to read the file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub credential: Option<PathBuf>,

    /// Require authentication for requests that only read. Default: true if the network can reach the scheduler. On
    /// loopback, all users and tasks except root and the scheduler's own user must authenticate.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    pub authenticate_http_readonly: Option<bool>,

    /// Require authentication for requests that change state. Default: as `--authenticate_http_readonly`.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    pub authenticate_http_readwrite: Option<bool>,

    /// Access control lists: Mesos's JSON, or `file:///path` to it. `register_frameworks` lists who may run and
    /// change jobs in which roles, `view_roles` who may see the jobs. Without a matching entry, the scheduler
    /// allows an action on loopback and with --insecure, and forbids the action elsewhere; `permissive` in the
    /// lists overrides this. The scheduler rereads a changed file.
    #[arg(long, value_name = "JSON", value_hint = ValueHint::AnyPath)]
    pub acls: Option<String>,

    #[command(flatten)]
    pub requests: RequestFlags,

    /// Certificate of this server with its chain, in PEM form; the scheduler also shows this certificate to the
    /// master. The daemon rereads a changed file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ssl_cert_file: Option<PathBuf>,

    /// Private key of `--ssl_cert_file`. Only the owner may be able to read the file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ssl_key_file: Option<PathBuf>,

    /// Certificate authorities of the master's certificate, in PEM form. With this flag, the connection to the
    /// master uses TLS.
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
