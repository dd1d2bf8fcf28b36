//! The flags of daemons that share their state in etcd.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueHint};
use meseta_daemon::error_chain::chain;
use meseta_daemon::flag_error::FlagError;
use meseta_daemon::tls::{self, read_secret_file};
use meseta_resources::parse_duration;

use crate::{Reloaded, Settings};

/// The etcd flags of a daemon that keeps its state there.
#[derive(Args, Clone, Debug)]
#[command(rename_all = "snake_case")]
pub struct EtcdFlags {
    /// Endpoints of etcd, if etcd stores the state: `http://host:port,...`, or `https://`.
    #[arg(long, value_name = "URLS")]
    pub etcd_endpoints: Option<String>,

    /// Prefix of this cluster's keys in etcd. The keys of job schedulers begin with `PREFIX-scheduler`. Clusters
    /// that share an etcd need different prefixes.
    #[arg(long, default_value = "/meseta", value_name = "PREFIX")]
    pub etcd_prefix: String,

    /// User name for etcd, if etcd requires authentication; needs --etcd_password_file.
    #[arg(long, value_name = "NAME")]
    pub etcd_user: Option<String>,

    /// File with the password of `--etcd_user`. Only the owner may be able to read the file. The daemon rereads a
    /// changed file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub etcd_password_file: Option<PathBuf>,

    /// Certificate authorities of etcd's certificates, in PEM form. The daemon rereads a changed file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub etcd_ca_file: Option<PathBuf>,

    /// Certificate that this daemon shows to etcd, in PEM form; needs --etcd_key_file. The daemon rereads a changed
    /// file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub etcd_cert_file: Option<PathBuf>,

    /// Private key of --etcd_cert_file. Only the owner may be able to read the file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub etcd_key_file: Option<PathBuf>,

    /// Time that a leader leads without hearing from etcd, from 2secs to 5mins. After a leader has failed, another
    /// daemon takes over within this time.
    #[arg(long, default_value = "8secs", value_name = "DURATION")]
    pub etcd_lease_ttl: String,
}

/// The shortest and the longest lease.
const LEASE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));

impl EtcdFlags {
    /// The duration of the leader's lease.
    pub fn lease_ttl(&self) -> Result<Duration, FlagError> {
        let error = |reason: String| FlagError::new("etcd_lease_ttl", &self.etcd_lease_ttl, reason);
        let ttl =
            parse_duration(&self.etcd_lease_ttl).map_err(|source| error(source.to_string()))?;
        if !(LEASE.0..=LEASE.1).contains(&ttl) || ttl.subsec_nanos() != 0 {
            return Err(error("give whole seconds from 2secs to 5mins".to_owned()));
        }
        Ok(ttl)
    }

    /// Returns the settings of the client of etcd; reads the files, for the first time. `needed_by` is the flag that requires
    /// etcd; `is_insecure` means that the operator allows endpoints that anyone may write to.
    pub fn settings(
        &self,
        lease_ttl: Duration,
        needed_by: &str,
        is_insecure: bool,
    ) -> Result<Settings, FlagError> {
        self.check_exposure(is_insecure)?;
        let given = self.etcd_endpoints.as_deref().unwrap_or_default();
        let endpoints = given
            .split(',')
            .map(str::trim)
            .filter(|one| !one.is_empty());
        let endpoints: Vec<_> = endpoints.map(str::to_owned).collect();
        if endpoints.is_empty() {
            let reason = format!("{needed_by} needs it: for instance http://127.0.0.1:2379");
            return Err(FlagError::new("etcd_endpoints", given, reason));
        }
        Ok(Settings {
            endpoints,
            user: self.user()?,
            tls: self.tls()?,
            // Several attempts must fit in a lease.
            call_timeout: lease_ttl / 4,
        })
    }

    /// Refuses endpoints by which others could take this cluster over. A writer of etcd names the leader, which agents,
    /// schedulers and verbs then contact. So the rule for listening holds for etcd too: on loopback anything is allowed,
    /// elsewhere nothing without TLS and authentication, unless the operator permits it (`is_insecure`).
    fn check_exposure(&self, is_insecure: bool) -> Result<(), FlagError> {
        let given = self.etcd_endpoints.as_deref().unwrap_or_default();
        let endpoints = given.split(',').map(str::trim);
        let exposed = endpoints
            .filter(|one| !one.is_empty())
            .find(|one| !is_loopback(one));
        let Some(exposed) = exposed.filter(|_| !is_insecure) else {
            return Ok(());
        };
        let mut missing = Vec::new();
        if self.etcd_ca_file.is_none() {
            missing.push("--etcd_ca_file=FILE with https:// endpoints");
        }
        if self.etcd_user.is_none() && self.etcd_cert_file.is_none() {
            missing.push(
                "--etcd_user=NAME with --etcd_password_file=FILE (or --etcd_cert_file=FILE with --etcd_key_file=FILE)",
            );
        }
        if missing.is_empty() {
            return Ok(());
        }
        let reason = format!(
            "anyone on the network of {exposed} could choose the leader of this cluster: give \
             {}, or keep etcd to 127.0.0.1, \
             or give --insecure to allow it",
            missing.join(" and ")
        );
        Err(FlagError::new("etcd_endpoints", given, reason))
    }

    /// The warning about endpoints that are not in use, because the flag that enables etcd is missing or belongs to another
    /// feature. Several daemons that should share their state then have a state each, and all of them lead.
    pub fn unused(&self, needed_by: &str) -> Option<String> {
        let endpoints = self.etcd_endpoints.as_deref()?;
        Some(format!(
            "--etcd_endpoints={endpoints} has no effect without {needed_by}: this daemon leads \
             alone; give {needed_by}, or leave the flags of etcd out"
        ))
    }

    fn user(&self) -> Result<Option<(String, Reloaded<String>)>, FlagError> {
        match (&self.etcd_user, &self.etcd_password_file) {
            (None, None) => Ok(None),
            (Some(user), Some(path)) => {
                let path = path.clone();
                let password = Reloaded::new(move || password(&path))?;
                Ok(Some((user.clone(), password)))
            }
            (Some(user), None) => Err(FlagError::new(
                "etcd_user",
                user,
                "it needs --etcd_password_file",
            )),
            (None, Some(path)) => Err(FlagError::new(
                "etcd_password_file",
                &path.display().to_string(),
                "it needs --etcd_user",
            )),
        }
    }

    fn tls(&self) -> Result<Option<Reloaded<tls::ClientConfig>>, FlagError> {
        let own = match (&self.etcd_cert_file, &self.etcd_key_file) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (Some(one), None) => return Err(alone("etcd_cert_file", one, "--etcd_key_file")),
            (None, Some(one)) => return Err(alone("etcd_key_file", one, "--etcd_cert_file")),
        };
        match (&self.etcd_ca_file, own) {
            (None, None) => Ok(None),
            (None, Some((certificate, _))) => {
                Err(alone("etcd_cert_file", &certificate, "--etcd_ca_file"))
            }
            (Some(path), own) => {
                let path = path.clone();
                Reloaded::new(move || encryption(&path, own.as_ref())).map(Some)
            }
        }
    }
}

/// Whether an endpoint is on this machine. A name other than `localhost` may be any machine's.
fn is_loopback(endpoint: &str) -> bool {
    let (_, address) = endpoint.split_once("://").unwrap_or(("", endpoint));
    let address = address.split(['/', '?', '#']).next().unwrap_or_default();
    // The part before it would be a user, which etcd does not take from an address.
    let address = address.rsplit('@').next().unwrap_or_default();
    let host = match address.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => address.split(':').next().unwrap_or_default(),
    };
    let is_loopback = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.to_canonical().is_loopback(),
    };
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback)
}

fn alone(flag: &'static str, path: &Path, other: &str) -> FlagError {
    FlagError::new(
        flag,
        &path.display().to_string(),
        format!("it needs {other}"),
    )
}

fn password(path: &Path) -> Result<String, FlagError> {
    let read = read_secret_file(path).map_err(|error| {
        let path = path.display().to_string();
        FlagError::new("etcd_password_file", &path, chain(&error))
    })?;
    Ok(String::from_utf8_lossy(&read).trim_end().to_owned())
}

fn encryption(
    authorities: &Path,
    own: Option<&(PathBuf, PathBuf)>,
) -> Result<tls::ClientConfig, FlagError> {
    let own = own.map(|(certificate, key)| (certificate.as_path(), key.as_path()));
    tls::client(Some(authorities), own).map_err(|error| {
        let path = authorities.display().to_string();
        FlagError::new("etcd_ca_file", &path, chain(&error))
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: EtcdFlags,
    }

    fn flags(given: &[&str]) -> EtcdFlags {
        let all = ["master"].iter().chain(given);
        Command::try_parse_from(all).unwrap().flags
    }

    #[test]
    fn incomplete_flags_are_refused() {
        for (given, expected) in [
            (&[][..], "--etcd_endpoints=: --registry=etcd needs it"),
            (
                &["--etcd_endpoints=a:1", "--etcd_user=u"],
                "--etcd_user=u: it needs --etcd_password_file",
            ),
            (
                &["--etcd_endpoints=a:1", "--etcd_cert_file=/c"],
                "--etcd_cert_file=/c: it needs --etcd_key_file",
            ),
            (
                &["--etcd_endpoints=a:1", "--etcd_ca_file=/no/file"],
                "--etcd_ca_file=/no/file: failed to read /no/file",
            ),
        ] {
            let error = flags(given).settings(Duration::from_secs(10), "--registry=etcd", true);
            let error = error.unwrap_err();
            let error = error.to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        for ttl in ["1secs", "6mins", "2500ms", "nonsense"] {
            let error = flags(&[&format!("--etcd_lease_ttl={ttl}")])
                .lease_ttl()
                .unwrap_err();
            assert!(error.to_string().contains(ttl), "{error}");
        }
    }

    /// Regression: a secured master accepted `http://` endpoints without a user, so every client of that etcd could name the
    /// leader.
    #[test]
    fn etcd_elsewhere_needs_tls_and_authentication() {
        const CA: &str = "--etcd_ca_file=/ca";
        const USER: [&str; 2] = ["--etcd_user=u", "--etcd_password_file=/p"];
        const CERTIFICATE: [&str; 2] = ["--etcd_cert_file=/c", "--etcd_key_file=/k"];
        let check = |endpoints: &str, more: &[&str], is_insecure| {
            let endpoints = format!("--etcd_endpoints={endpoints}");
            let given: Vec<&str> = [endpoints.as_str()].iter().chain(more).copied().collect();
            let refused = flags(&given).check_exposure(is_insecure).err();
            refused.map(|error| error.to_string())
        };
        for here in [
            "http://127.0.0.1:2379",
            "127.8.9.1:2379",
            "http://[::1]:2379,http://localhost:2379/",
            "http://[::ffff:127.0.0.1]:2379",
            "",
        ] {
            assert_eq!(check(here, &[], false), None, "{here}");
        }
        for elsewhere in [
            "http://10.0.0.1:2379",
            "http://127.0.0.1:2379,http://etcd2:2379",
            "etcd.example:2379",
            "http://[2001:db8::1]:2379",
            "http://[::]:2379",
            "http://0.0.0.0:2379",
            "http://127.0.0.1@10.0.0.1:2379",
            "http://127.0.0.1.example:2379",
        ] {
            let refused = check(elsewhere, &[], false).expect(elsewhere);
            for word in ["--etcd_ca_file", "--etcd_user", "--insecure", "127.0.0.1"] {
                assert!(refused.contains(word), "{elsewhere}: {refused}");
            }
            assert_eq!(check(elsewhere, &[], true), None, "{elsewhere}");
        }
        let endpoints = "https://10.0.0.1:2379";
        let refused = check(endpoints, &[CA], false).expect("nobody is asked for a name");
        assert!(
            !refused.contains("--etcd_ca_file") && refused.contains("--etcd_user"),
            "{refused}"
        );
        let refused = check(endpoints, &USER, false).expect("in the clear");
        assert!(
            refused.contains("--etcd_ca_file") && !refused.contains("--etcd_user"),
            "{refused}"
        );
        for own in [USER, CERTIFICATE] {
            let more = [CA, own[0], own[1]];
            assert_eq!(check(endpoints, &more, false), None);
        }
    }

    /// Regression: without `registry = "etcd"` three masters of one configuration were the leaders of three clusters.
    #[test]
    fn unused_endpoints_are_reported() {
        assert_eq!(flags(&[]).unused("--registry=etcd"), None);
        let told = flags(&["--etcd_endpoints=http://a:2379"]).unused("--registry=etcd");
        let told = told.expect("it is told");
        assert!(told.contains("without --registry=etcd"), "{told}");
    }

    #[test]
    fn endpoints_are_a_list() {
        let settings = flags(&["--etcd_endpoints=http://a:2379, http://b:2379,"]);
        let settings = settings
            .settings(Duration::from_secs(8), "--store=etcd", true)
            .unwrap();
        assert_eq!(settings.endpoints, ["http://a:2379", "http://b:2379"]);
        assert_eq!(settings.call_timeout, Duration::from_secs(2));
    }
}
