//! The names of the files and folders of a fleet, in its own folder and on its machines.
//!
//! Invariant: within this module only this file contains the names; [`layout`](super::layout) decides which of them exist,
//! and their contents.

use std::path::{Path, PathBuf};

/// The members of the fleet, in its folder alone.
pub(super) const FLEET: &str = "fleet.json";
/// The rules, in the fleet's folder and in that of each daemon.
pub(super) const ACLS: &str = "acls.json";
/// The principals with the hashes of their secrets, in the same folders.
pub(super) const CREDENTIALS: &str = "credentials";

/// The authority's own folder, which is copied to no machine.
pub(super) const AUTHORITY: &str = "authority/ca.pem";
pub(super) const AUTHORITY_KEY: &str = "authority/ca.key";

/// The trusted authority of daemons and principals, beside their own certificate.
pub(super) const CA: &str = "ca.pem";
pub(super) const CERTIFICATE: &str = "cert.pem";
pub(super) const KEY: &str = "key.pem";
/// A principal and its secret, which a daemon presents to the master.
pub(super) const CREDENTIAL: &str = "credential";
/// A principal's secret, and the file with which a shell acts as the principal.
pub(super) const SECRET: &str = "secret";
pub(super) const ENV: &str = "env";

/// The folders of the machines and of the principals.
pub(super) const MACHINES: &str = "machines";
pub(super) const PRINCIPALS: &str = "principals";

/// The daemons of a machine, which also name their folders.
pub(super) const MASTER: &str = "master";
pub(super) const AGENT: &str = "agent";
pub(super) const SCHEDULER: &str = "scheduler";

/// The target of a machine's folder on the machine.
pub(super) const ETC: &str = "/etc/meseta";
/// The extension of configuration files.
const CONFIGURATION: &str = "toml";

/// Returns the name of a daemon's configuration file.
pub(super) fn configuration(daemon: &str) -> String {
    format!("{daemon}.{CONFIGURATION}")
}

pub(super) fn is_configuration(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == CONFIGURATION)
}

/// Returns the folder with the contents of [`ETC`] on this machine.
pub(super) fn machine_dir(name: &str) -> PathBuf {
    Path::new(MACHINES).join(name)
}

pub(super) fn principal_dir(name: &str) -> PathBuf {
    Path::new(PRINCIPALS).join(name)
}

/// Returns the path of a principal's secret.
pub(super) fn secret(principal: &str) -> PathBuf {
    principal_dir(principal).join(SECRET)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the names stood in four files, and one file wrote a name that another file spelled differently.
    #[test]
    fn names_of_files_stand_here_alone() {
        // These names resemble no word of a flag or of a rule.
        let names = [
            FLEET,
            ACLS,
            AUTHORITY,
            AUTHORITY_KEY,
            CA,
            CERTIFICATE,
            KEY,
            "machines/",
            "principals/",
            ".toml",
            ETC,
        ];
        for (file, text) in [
            ("acls.rs", include_str!("acls.rs")),
            ("authority.rs", include_str!("authority.rs")),
            ("folder.rs", include_str!("folder.rs")),
            ("layout.rs", include_str!("layout.rs")),
            ("mod.rs", include_str!("mod.rs")),
            ("names.rs", include_str!("names.rs")),
        ] {
            let lines = text.lines();
            let code = lines.filter(|line| !line.trim_start().starts_with("//"));
            for line in code {
                let named = names.iter().find(|name| line.contains(**name));
                assert_eq!(named, None, "{file}: {line}");
            }
        }
    }
}
