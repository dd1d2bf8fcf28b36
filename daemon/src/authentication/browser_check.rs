//! Rejects cross-origin requests of browsers, before credentials are checked.
//!
//! Applies the rules in [`meseta_access::browser`] to the headers of a request. Invariant: every route of both daemons is
//! behind it.

use std::borrow::Cow;

use http::header::{HOST, HeaderName, ORIGIN, REFERER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Version};
use meseta_access::browser::{self, Effect, HostPattern, Origin, Policy, Source};

use super::{Authentication, AuthenticationError, SettingsError};
use crate::server::{Peer, RESOURCE_POLICY};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The `Host` names and origins that a daemon accepts.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The value of `--hostname`, or its default.
    pub hostname: Option<String>,
    /// The value of `--allowed_hosts`: names separated by commas.
    pub allowed_hosts: Option<String>,
    /// The value of `--allowed_origins`: origins separated by commas.
    pub allowed_origins: Option<String>,
}

impl Names {
    /// Returns the rules of a daemon that listens on loopback only, or on other addresses too.
    pub(super) fn policy(&self, is_loopback: bool) -> Result<Policy, SettingsError> {
        let items = |flag: &Option<String>| -> Vec<String> {
            let text = flag.as_deref().unwrap_or_default();
            let items = text.split(',').map(str::trim);
            let items = items.filter(|item| !item.is_empty());
            items.map(str::to_owned).collect()
        };
        let mut hosts = Vec::new();
        for item in items(&self.allowed_hosts) {
            let host = HostPattern::parse(&item).map_err(|cause| SettingsError::Page {
                flag: "allowed_hosts",
                cause,
            })?;
            hosts.push(host);
        }
        // An invalid name, such as an address, needs no entry.
        let own = self.hostname.clone().into_iter().chain(system_names());
        hosts.extend(own.filter_map(|name| HostPattern::parse(&name).ok()));
        let mut origins = Vec::new();
        for item in items(&self.allowed_origins) {
            let origin = Origin::parse(&item).map_err(|cause| SettingsError::Page {
                flag: "allowed_origins",
                cause,
            })?;
            origins.push(origin);
        }
        Ok(Policy {
            hosts,
            origins,
            takes_short_names: !is_loopback,
        })
    }
}

/// Returns the names of this machine, alone and with its search domains.
fn system_names() -> Vec<String> {
    let [hostname, hosts, resolver] = [
        "/proc/sys/kernel/hostname",
        "/etc/hosts",
        "/etc/resolv.conf",
    ]
    .map(|path| std::fs::read_to_string(path).unwrap_or_default());
    names_of(hostname.trim(), &hosts, &resolver)
}

/// Returns the names, given the texts of the files.
fn names_of(hostname: &str, hosts: &str, resolver: &str) -> Vec<String> {
    if hostname.is_empty() || hostname == "(none)" {
        return Vec::new();
    }
    let mut names = vec![hostname.to_owned()];
    for line in hosts.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let of_line: Vec<&str> = line.split_whitespace().skip(1).collect();
        if of_line.contains(&hostname) {
            names.extend(of_line.into_iter().map(str::to_owned));
        }
    }
    for line in resolver.lines() {
        let mut words = line.split_whitespace();
        if matches!(words.next(), Some("search" | "domain")) {
            names.extend(words.map(|domain| format!("{hostname}.{domain}")));
        }
    }
    names
}

impl Authentication {
    /// Rejects a request that a browser sent for a page of a foreign origin. `changes_by_get` means that the route changes
    /// state with any method.
    pub fn check_browser_request<B>(
        &self,
        request: &Request<B>,
        changes_by_get: bool,
    ) -> Result<Source, AuthenticationError> {
        let headers = request.headers();
        let hosts = headers.get_all(HOST).iter().map(text);
        let target = request.uri().authority().map(|one| one.as_str().into());
        let authorities: Vec<Cow<'_, str>> = hosts.chain(target).collect();
        let authorities: Vec<&str> = authorities.iter().map(AsRef::as_ref).collect();
        let [origin, referer, fetch_site, user_agent] =
            [ORIGIN, REFERER, SEC_FETCH_SITE, USER_AGENT].map(|name| one(headers, &name));
        let peer = request.extensions().get::<Peer>();
        let encrypted = peer.is_some_and(|peer| peer.encrypted);
        // No browser uses HTTP/2 without TLS: agents and schedulers may use any name for this daemon.
        let is_program = request.version() == Version::HTTP_2 && !encrypted;
        let authorities = if is_program { &[][..] } else { &authorities };
        let asked = browser::Request {
            authorities,
            origin: origin.as_deref(),
            referer: referer.as_deref(),
            fetch_site: fetch_site.as_deref(),
            user_agent: user_agent.as_deref(),
            encrypted,
            effect: match *request.method() {
                Method::GET | Method::HEAD if changes_by_get => Effect::ChangesByGet,
                Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE => Effect::Reads,
                _ => Effect::Changes,
            },
        };
        let certified = self.certificate.as_ref().map(|served| served.hosts());
        let certified = certified.as_ref().map_or(&[][..], |hosts| hosts.as_slice());
        let checked = self.pages.check(&asked, certified);
        checked.map_err(AuthenticationError::Page)
    }
}

/// Lets pages of allowed origins use a response in a script; see [`RESOURCE_POLICY`].
pub fn allow_cross_origin<B>(source: Source, response: &mut Response<B>) {
    if source == Source::Allowed {
        let value = HeaderValue::from_static("cross-origin");
        response.headers_mut().insert(RESOURCE_POLICY, value);
    }
}

fn text(value: &HeaderValue) -> Cow<'_, str> {
    String::from_utf8_lossy(value.as_bytes())
}

/// Returns the value of a header that comes once. No browser sends one of these twice, so a repeated header belongs to no
/// page.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Cow<'a, str>> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(text);
    if values.next().is_some() {
        return Some(Cow::Borrowed("several"));
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_matches_short_and_full_name() {
        let hosts = "127.0.0.1 localhost\n# 10.0.0.1 node1 evil.example\n\
                     10.0.0.1\tnode1.lab.example node1 # mine\n10.0.0.2 node2\n";
        let resolver = "nameserver 10.0.0.53\nsearch corp.example example\noptions ndots:1\n";
        let names = names_of("node1", hosts, resolver);
        assert_eq!(
            names,
            [
                "node1",
                "node1.lab.example",
                "node1",
                "node1.corp.example",
                "node1.example"
            ]
        );
        assert!(names_of("", hosts, resolver).is_empty());
        assert!(names_of("(none)", hosts, resolver).is_empty());
    }
}
