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
    /// Credentials file: `{"credentials": [{"principal": ..., "secret": ...}]}`, or lines of `principal hash`. Each
    /// secret is a hash from `meseta credential`. Only the owner may be able to read the file. The daemon rereads a
    /// changed file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub credentials: Option<PathBuf>,

    /// Require authentication for requests that only read. Default: true if the network can reach the master. On
    /// loopback, all users except root and the master's own user must authenticate.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    pub authenticate_http_readonly: Option<bool>,

    /// Require authentication for requests that change state. Default: as `--authenticate_http_readonly`.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    pub authenticate_http_readwrite: Option<bool>,

    /// Require frameworks to authenticate. Default: as `--authenticate_http_readonly`.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    pub authenticate_http_frameworks: Option<bool>,

    /// Require agents to authenticate with a credential or a certificate. Default: as
    /// `--authenticate_http_readonly`.
    #[arg(long, alias = "authenticate_slaves", value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = ArgAction::Set)]
    pub authenticate_agents: Option<bool>,

    /// Access control lists: Mesos's JSON, or `file:///path` to it. Without a matching entry, the master allows an
    /// action on loopback and with --insecure, and forbids the action elsewhere; `permissive` in the lists
    /// overrides this. The master rereads a changed file.
    #[arg(long, value_name = "JSON", value_hint = ValueHint::AnyPath)]
    pub acls: Option<String>,

    /// Calls per second of frameworks, by principal: Mesos's JSON, or `file:///path` to it.
    #[arg(long, value_name = "JSON")]
    pub rate_limits: Option<String>,

    #[command(flatten)]
    pub requests: RequestFlags,

    /// Certificate of this server with its chain, in PEM form. The daemon rereads a changed file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ssl_cert_file: Option<PathBuf>,

    /// Private key of `--ssl_cert_file`. Only the owner may be able to read the file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub ssl_key_file: Option<PathBuf>,

    /// Certificate authorities of the agents' certificates, in PEM form. With this flag, each agent must show a
    /// certificate for its host.
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
