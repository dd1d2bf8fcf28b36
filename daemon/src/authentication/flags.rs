//! The common flags of the daemons about refused requests of any client.

use clap::Args;

use super::Names;

/// Flags of hosts, origins and endpoints.
#[derive(Args, Clone, Debug)]
#[command(rename_all = "snake_case")]
pub struct RequestFlags {
    /// Host names that requests may use in addition to this machine's names, the names in the certificate and
    /// `localhost`: `name` or `*.domain`, separated by commas; `*` allows every name. IP addresses need no entry. A
    /// request for another name gets 421.
    #[arg(long, value_name = "NAMES")]
    pub allowed_hosts: Option<String>,

    /// Origins whose web pages may change state here in addition to this address, for example
    /// `https://page.example:8443`, separated by commas: for pages behind a proxy.
    #[arg(long, value_name = "ORIGINS")]
    pub allowed_origins: Option<String>,

    /// Disabled endpoints, as `{"disabled_endpoints": {"paths": [...]}}` or `file:///path` to it.
    #[arg(long, value_name = "JSON")]
    pub firewall_rules: Option<String>,
}

impl RequestFlags {
    /// Returns the names of the daemon; others see it as `hostname`.
    #[must_use]
    pub fn names(&self, hostname: Option<String>) -> Names {
        Names {
            hostname,
            allowed_hosts: self.allowed_hosts.clone(),
            allowed_origins: self.allowed_origins.clone(),
        }
    }
}
