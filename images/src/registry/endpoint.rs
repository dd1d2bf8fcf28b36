//! The servers that a registry's name stands for, and the redirects that they may send.
//!
//! [`RegistrySettings::endpoints`] lists the mirrors of a registry and then the registry. [`check_redirect`] decides about a
//! redirect. Pure. Invariant: https is the rule, and no redirect leaves it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ureq::http::Uri;

use crate::reference::DOCKER_HUB;

/// The host of Docker Hub's API.
const DOCKER_HUB_HOST: &str = "registry-1.docker.io";

/// The operator's settings of registries.
#[derive(Clone, Debug, Default)]
pub struct RegistrySettings {
    /// Registries (`HOST` or `HOST:PORT`) that use plain http. Loopback addresses do so without being named.
    pub plain_http: Vec<String>,
    /// Mirrors of a registry, in order of preference, as `https://HOST[:PORT]` or `http://HOST[:PORT]`.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// Hosts of token services beside those in the domain of their registry.
    pub realms: Vec<String>,
}

/// A server of a registry's API.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Endpoint {
    /// `https://HOST[:PORT]` without a path.
    pub(crate) base: Uri,
    /// The host by which credentials are chosen: a mirror has its own.
    pub(crate) credentials_host: String,
    /// The registry that a mirror stands for.
    pub(crate) mirror_of: Option<String>,
}

impl RegistrySettings {
    pub(crate) fn endpoints(&self, registry: &str) -> Result<Vec<Endpoint>, String> {
        let mut endpoints = Vec::new();
        for mirror in self.mirrors.get(registry).into_iter().flatten() {
            let invalid = || {
                format!(
                    "the mirror {mirror:?} of {registry} is not http://HOST[:PORT] or https://HOST[:PORT]"
                )
            };
            let base = mirror
                .trim_end_matches('/')
                .parse::<Uri>()
                .map_err(|_| invalid())?;
            let is_bare = base.path() == "/" && base.query().is_none();
            let is_http = matches!(base.scheme_str(), Some("http" | "https"));
            if !is_bare || !is_http || base.authority().is_none_or(|it| it.as_str().contains('@')) {
                return Err(invalid());
            }
            endpoints.push(Endpoint {
                credentials_host: authority(&base),
                base,
                mirror_of: Some(registry.to_owned()),
            });
        }
        let host = match registry {
            DOCKER_HUB => DOCKER_HUB_HOST,
            other => other,
        };
        let is_named = self
            .plain_http
            .iter()
            .any(|one| one.eq_ignore_ascii_case(host));
        let scheme = match is_named || is_loopback(host_of(host)) {
            true => "http",
            false => "https",
        };
        let base = format!("{scheme}://{host}").parse::<Uri>();
        let base = base.map_err(|error| format!("{host} is not a registry's host: {error}"))?;
        endpoints.push(Endpoint {
            base,
            credentials_host: registry.to_owned(),
            mirror_of: None,
        });
        Ok(endpoints)
    }
}

/// The part of `HOST[:PORT]` before the port.
fn host_of(authority: &str) -> &str {
    match authority
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        Some((address, _)) => address,
        None => authority.split(':').next().unwrap_or_default(),
    }
}

pub(crate) fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_local = |address: IpAddr| {
        let address = address.to_canonical();
        address.is_loopback() || address.is_unspecified()
    };
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_local)
}

/// Returns `HOST:PORT` in lower case, with the port that the scheme implies.
pub(crate) fn authority(uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default().to_ascii_lowercase();
    let implied = match uri.scheme_str() {
        Some("http") => 80,
        _ => 443,
    };
    match uri.port_u16().unwrap_or(implied) {
        443 if uri.scheme_str() == Some("https") => host,
        port => format!("{host}:{port}"),
    }
}

/// Whether a request to `to` may carry the credentials of `from`: scheme, host and port are the same.
pub(crate) fn is_same_origin(from: &Uri, to: &Uri) -> bool {
    from.scheme() == to.scheme() && authority(from) == authority(to)
}

/// Returns the target of a redirect, or the reason to refuse it.
pub(crate) fn check_redirect(from: &Uri, location: &str) -> Result<Uri, String> {
    let invalid = || {
        format!(
            "the redirect has the invalid address {:?}",
            truncate(location)
        )
    };
    let location = location.trim();
    let absolute = if location.contains("://") {
        location.to_owned()
    } else {
        let scheme = from.scheme_str().unwrap_or("https");
        let authority = from.authority().map_or("", |it| it.as_str());
        match location.strip_prefix("//") {
            Some(rest) => format!("{scheme}://{rest}"),
            None if location.starts_with('/') => format!("{scheme}://{authority}{location}"),
            None => {
                let folder = from
                    .path()
                    .rsplit_once('/')
                    .map_or("", |(folder, _)| folder);
                format!("{scheme}://{authority}{folder}/{location}")
            }
        }
    };
    let to = absolute.parse::<Uri>().map_err(|_| invalid())?;
    let (Some(scheme), Some(host)) = (to.scheme_str(), to.host()) else {
        return Err(invalid());
    };
    if to.authority().is_some_and(|it| it.as_str().contains('@')) {
        return Err(format!(
            "the redirect to {host} has a user name in its address"
        ));
    }
    match (from.scheme_str(), scheme) {
        (_, "https") | (Some("http"), "http") => {}
        (_, "http") => return Err(format!("the redirect to {host} leaves https")),
        _ => return Err(invalid()),
    }
    if is_loopback(host) && !from.host().is_some_and(is_loopback) {
        return Err(format!(
            "the redirect leads to {host}, which is this machine"
        ));
    }
    Ok(to)
}

/// Signed addresses are long.
fn truncate(text: &str) -> String {
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bases(settings: &RegistrySettings, registry: &str) -> Vec<String> {
        let endpoints = settings.endpoints(registry).expect("valid settings");
        endpoints.iter().map(|one| one.base.to_string()).collect()
    }

    #[test]
    fn https_unless_loopback_or_named() {
        let settings = RegistrySettings {
            plain_http: vec!["10.0.0.1:5000".to_owned()],
            ..RegistrySettings::default()
        };
        for (registry, base) in [
            ("docker.io", "https://registry-1.docker.io/"),
            ("ghcr.io", "https://ghcr.io/"),
            ("localhost:5000", "http://localhost:5000/"),
            ("127.1.2.3:5000", "http://127.1.2.3:5000/"),
            ("[::1]:5000", "http://[::1]:5000/"),
            ("10.0.0.1:5000", "http://10.0.0.1:5000/"),
            ("10.0.0.1:5001", "https://10.0.0.1:5001/"),
            ("localhost.example", "https://localhost.example/"),
        ] {
            assert_eq!(bases(&settings, registry), [base]);
        }
    }

    #[test]
    fn mirrors_come_before_their_registry() {
        let mirrors = vec![
            "https://mirror.example/".to_owned(),
            "http://10.0.0.2:5000".to_owned(),
        ];
        let settings = RegistrySettings {
            mirrors: [(DOCKER_HUB.to_owned(), mirrors)].into(),
            ..RegistrySettings::default()
        };
        assert_eq!(
            bases(&settings, DOCKER_HUB),
            [
                "https://mirror.example/",
                "http://10.0.0.2:5000/",
                "https://registry-1.docker.io/"
            ]
        );
        assert_eq!(bases(&settings, "ghcr.io"), ["https://ghcr.io/"]);
        let endpoints = settings.endpoints(DOCKER_HUB).expect("valid");
        let hosts = endpoints.iter().map(|one| one.credentials_host.as_str());
        assert_eq!(
            hosts.collect::<Vec<_>>(),
            ["mirror.example", "10.0.0.2:5000", DOCKER_HUB]
        );
    }

    #[test]
    fn invalid_mirrors_are_named() {
        for mirror in [
            "mirror",
            "ftp://m",
            "https://ann:pw@m",
            "https://m/path",
            "https://",
        ] {
            let settings = RegistrySettings {
                mirrors: [("r.io".to_owned(), vec![mirror.to_owned()])].into(),
                ..RegistrySettings::default()
            };
            assert!(settings.endpoints("r.io").is_err(), "{mirror}");
        }
    }

    #[test]
    fn redirects_never_leave_https() {
        for (from, location, to) in [
            (
                "https://r.io/v2/a",
                "https://cdn.io/x?sig=y",
                Some("https://cdn.io/x?sig=y"),
            ),
            ("https://r.io/v2/a", "/v2/b", Some("https://r.io/v2/b")),
            ("https://r.io/v2/a", "b?c", Some("https://r.io/v2/b?c")),
            ("https://r.io/v2/a", "//cdn.io/x", Some("https://cdn.io/x")),
            ("https://r.io/v2/a", "http://r.io/v2/a", None),
            ("https://r.io/v2/a", "https://127.0.0.1/x", None),
            ("https://r.io/v2/a", "https://[::ffff:127.0.0.1]/x", None),
            ("https://r.io/v2/a", "https://ann@cdn.io/x", None),
            ("https://r.io/v2/a", "file:///etc/passwd", None),
            ("https://r.io/v2/a", "https://", None),
            (
                "http://10.0.0.1/a",
                "http://10.0.0.2/b",
                Some("http://10.0.0.2/b"),
            ),
            ("http://10.0.0.1/a", "http://localhost/b", None),
            (
                "http://127.0.0.1:1/a",
                "http://127.0.0.1:2/b",
                Some("http://127.0.0.1:2/b"),
            ),
        ] {
            let from = from.parse().expect("a URL");
            let checked = check_redirect(&from, location)
                .ok()
                .map(|uri| uri.to_string());
            assert_eq!(checked.as_deref(), to, "{from} {location}");
        }
    }

    #[test]
    fn another_port_is_another_origin() {
        let is_same = |one: &str, other: &str| {
            is_same_origin(&one.parse().expect("a URL"), &other.parse().expect("a URL"))
        };
        assert!(is_same("https://r.io/a", "https://R.io:443/b"));
        assert!(!is_same("https://r.io/a", "https://r.io:8443/a"));
        assert!(!is_same("http://r.io/a", "https://r.io/a"));
        assert!(!is_same("https://r.io/a", "https://cdn.r.io/a"));
    }
}
