//! The master's flags of authentication and authorization.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args, ValueHint};
use meseta_access::rate_limits::RateLimits;
use meseta_daemon::authentication::{self, Realm, RequestFlags, Settings};
use meseta_daemon::flag_error::FlagError;

/// Flags of authentication, authorization and TLS.
#[derive(Args, Clone, Debug)]
#[command(rename_all = "snake_case")]
pub struct AccessFlags {
    /// Credentials file: `{"credentials": [{"principal": ..., "secret": ...}]}`, or
    /// lines of `principal hash`. Secrets are hashes, made with `meseta credential`; nobody but its owner may read the
    /// file. A changed one is taken over while running.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub credentials: Option<PathBuf>,

    /// Whether requests that only read must be authenticated.
    /// Default: where the network can reach the master; elsewhere root and the master's own user need not, other users
    /// must.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    pub authenticate_http_readonly: Option<bool>,

    /// Whether requests that change something must be authenticated. Default: as above.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    pub authenticate_http_readwrite: Option<bool>,

    /// Whether frameworks must authenticate. Default: as above.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    pub authenticate_http_frameworks: Option<bool>,

    /// Whether agents must authenticate, by a credential or a certificate. Default: as above.
    #[arg(long, alias = "authenticate_slaves", value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    pub authenticate_agents: Option<bool>,

    /// Access control lists: Mesos's JSON, or `file:///path` of it. What it does not speak of is allowed on loopback
    /// and with --insecure, and forbidden elsewhere, unless it says `permissive` itself. A changed file is taken over
    /// while running.
    #[arg(long, value_name = "JSON", value_hint = ValueHint::AnyPath)]
    pub acls: Option<String>,

    /// Calls per second of frameworks, by principal: Mesos's JSON, or `file:///path` of it.
    #[arg(long, value_name = "JSON")]
    pub rate_limits: Option<String>,

    #[command(flatten)]
    pub requests: RequestFlags,

    /// Certificate that is served, with those that lead to its authority, in PEM form. A new one is taken
    /// over while running.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ssl_cert_file: Option<PathBuf>,

    /// Its private key; nobody but its owner may read the file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ssl_key_file: Option<PathBuf>,

    /// Authorities that sign the certificates of agents. With it every agent must show one for the host
    /// that it says it is.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ssl_ca_file: Option<PathBuf>,
}

impl AccessFlags {
    /// Converts the flags. `hostname` is the daemon's name in messages to others.
    pub(crate) fn settings(
        &self,
        address: IpAddr,
        insecure: bool,
        hostname: Option<String>,
    ) -> Settings {
        Settings {
            daemon: "master",
            address,
            insecure,
            credentials: self.credentials.clone(),
            credentials_flag: "credentials",
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
                (
                    Realm::Scheduler,
                    "authenticate_http_frameworks",
                    self.authenticate_http_frameworks,
                ),
                (
                    Realm::Agents,
                    "authenticate_agents",
                    self.authenticate_agents,
                ),
            ],
            key: authentication::fresh_key(),
        }
    }

    pub(crate) fn limits(&self) -> Result<Option<RateLimits>, FlagError> {
        let Some(text) = &self.rate_limits else {
            return Ok(None);
        };
        let limits = RateLimits::parse(text);
        let limits = limits.map_err(|error| FlagError::new("rate_limits", text, error))?;
        Ok(Some(limits))
    }
}
