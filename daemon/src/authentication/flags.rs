//! The common flags of the daemons about refused requests of any client.

use clap::Args;

use super::Names;

/// Flags of hosts, origins and endpoints.
#[derive(Args, Clone, Debug)]
#[command(rename_all = "snake_case")]
pub struct RequestFlags {
    /// Names that requests may ask for besides this machine's own, those of the certificate and `localhost`: `name`
    /// or `*.domain`, with commas between; `*` allows every name. Addresses need no entry. A page in a browser
    /// whose name points here is answered nothing (421).
    #[arg(long, value_name = "NAMES")]
    pub allowed_hosts: Option<String>,

    /// Origins whose pages may change something here besides pages of this address, as
    /// `https://page.example:8443`, with commas between: for pages behind a proxy.
    #[arg(long, value_name = "ORIGINS")]
    pub allowed_origins: Option<String>,

    /// Endpoints that are shut, as `{"disabled_endpoints": {"paths": [...]}}` or `file:///path` of it.
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
