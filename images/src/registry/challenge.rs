//! The answers of a registry that asks for authentication.
//!
//! [`Challenge::parse_all`] reads `WWW-Authenticate`, and [`check_realm`] decides whether a token service may be asked. Pure.
//! Invariant: a realm that passes the check belongs to the registry, or the operator named it.

use std::net::IpAddr;

use serde::Deserialize;
use ureq::http::Uri;

use super::endpoint::{authority, is_loopback};

/// Challenges of one response that are read.
const CHALLENGES_MAX: usize = 8;
/// The lifetime of a token whose issuer gives none.
const TOKEN_SECONDS_DEFAULT: u64 = 60;

/// A way to authenticate that a registry offers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Challenge {
    Basic,
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

impl Challenge {
    /// Reads the challenges of all `WWW-Authenticate` headers. Unknown schemes are left out.
    pub(crate) fn parse_all<'a>(headers: impl Iterator<Item = &'a str>) -> Vec<Self> {
        let mut found = Vec::new();
        for header in headers {
            let mut scanner = Scanner { rest: header };
            while let Some((scheme, parameters)) = scanner.next_challenge() {
                let parameter = |name: &str| {
                    let pair = parameters.iter().find(|(key, _)| key == name);
                    pair.map(|(_, value)| value.clone())
                };
                match scheme.as_str() {
                    "basic" => found.push(Self::Basic),
                    "bearer" => found.extend(parameter("realm").map(|realm| Self::Bearer {
                        realm,
                        service: parameter("service"),
                        scope: parameter("scope"),
                    })),
                    _ => {}
                }
                if found.len() >= CHALLENGES_MAX {
                    return found;
                }
            }
        }
        found
    }
}

/// Reads `scheme name=value, name="value", scheme ...`.
struct Scanner<'a> {
    rest: &'a str,
}

impl Scanner<'_> {
    /// Returns the next scheme and its parameters, with scheme and names in lower case.
    fn next_challenge(&mut self) -> Option<(String, Vec<(String, String)>)> {
        self.skip_separators();
        let scheme = self.next_token()?;
        let mut parameters = Vec::new();
        loop {
            let before = self.rest;
            self.skip_separators();
            let Some(name) = self.next_token() else { break };
            if !self.rest.trim_start().starts_with('=') {
                // The next scheme.
                self.rest = before;
                break;
            }
            self.rest = self.rest.trim_start().trim_start_matches('=').trim_start();
            let value = self.next_value();
            parameters.push((name, value));
        }
        Some((scheme, parameters))
    }

    fn skip_separators(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', ',']);
    }

    fn next_token(&mut self) -> Option<String> {
        let end = self.rest.find([' ', '\t', ',', '=', '"']);
        let (token, rest) = self.rest.split_at_checked(end.unwrap_or(self.rest.len()))?;
        if token.is_empty() {
            self.rest = "";
            return None;
        }
        self.rest = rest;
        Some(token.to_ascii_lowercase())
    }

    fn next_value(&mut self) -> String {
        let Some(quoted) = self.rest.strip_prefix('"') else {
            let end = self.rest.find([',', ' ', '\t']).unwrap_or(self.rest.len());
            let (value, rest) = self.rest.split_at(end);
            self.rest = rest;
            return value.to_owned();
        };
        let mut value = String::new();
        let mut characters = quoted.chars();
        while let Some(character) = characters.next() {
            match character {
                '"' => break,
                '\\' => value.extend(characters.next()),
                other => value.push(other),
            }
        }
        self.rest = characters.as_str();
        value
    }
}

/// Decides whether a request to a realm is safe, with or without a password. `registry` is the address that sent the challenge;
/// `trusted` are the hosts that the operator allows as realms.
pub(crate) fn check_realm(registry: &Uri, realm: &str, trusted: &[String]) -> Result<Uri, String> {
    let refused = |why: &str| {
        let host = realm
            .parse::<Uri>()
            .ok()
            .and_then(|uri| uri.host().map(str::to_owned));
        let host = host.unwrap_or_else(|| realm.chars().take(200).collect());
        Err(format!(
            "the registry sends clients to the token service {host}, which {why}; if it belongs to the registry, name it in \
             --docker_registry_realms"
        ))
    };
    let Ok(uri) = realm.parse::<Uri>() else {
        return refused("has an invalid address");
    };
    let (Some(host), Some(scheme)) = (uri.host(), uri.scheme_str()) else {
        return refused("has an incomplete address");
    };
    let has_user = uri
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'));
    if has_user {
        return refused("has a user name in its address");
    }
    let is_same = authority(&uri) == authority(registry) && uri.scheme() == registry.scheme();
    let is_trusted = trusted
        .iter()
        .any(|one| one.eq_ignore_ascii_case(host) || one.eq_ignore_ascii_case(&authority(&uri)));
    if is_same || is_trusted {
        return Ok(uri);
    }
    if scheme != "https" {
        return refused("does not use https");
    }
    if is_loopback(host) && !registry.host().is_some_and(is_loopback) {
        return refused("is this machine");
    }
    match is_same_site(registry.host().unwrap_or_default(), host) {
        true => Ok(uri),
        false => refused("has another domain"),
    }
}

/// Whether two hosts are equal or have a domain in common below the public suffix, which is guessed: two labels, or three
/// below a suffix such as `co.uk`.
fn is_same_site(one: &str, other: &str) -> bool {
    let (one, other) = (one.to_ascii_lowercase(), other.to_ascii_lowercase());
    if one == other {
        return true;
    }
    let is_address = |host: &str| host.starts_with('[') || host.parse::<IpAddr>().is_ok();
    if is_address(&one) || is_address(&other) {
        return false;
    }
    let labels = one.rsplit('.').zip(other.rsplit('.'));
    let common = labels
        .take_while(|(one, other)| one == other)
        .map(|(label, _)| label);
    let common = common.collect::<Vec<_>>();
    let needed = match common.as_slice() {
        [country, second, ..] if country.len() == 2 && second.len() <= 3 => 3,
        _ => 2,
    };
    common.len() >= needed
}

/// The answer of a token service.
#[derive(Deserialize)]
pub(crate) struct TokenAnswer {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    access_token: Option<String>,
    #[serde(default)]
    expires_in: Option<u64>,
}

impl TokenAnswer {
    /// Returns the token and its lifetime in seconds. `None` if the answer has no token that fits into a header.
    pub(crate) fn into_token(self) -> Option<(String, u64)> {
        let token = self
            .token
            .filter(|token| !token.is_empty())
            .or(self.access_token)?;
        let is_printable = token.bytes().all(|byte| byte.is_ascii_graphic());
        let seconds = self.expires_in.filter(|seconds| *seconds > 0);
        (is_printable && !token.is_empty())
            .then(|| (token, seconds.unwrap_or(TOKEN_SECONDS_DEFAULT)))
    }
}

/// Returns the scope of a token. The registry's own text counts only if it asks for no more than pulling one repository.
pub(crate) fn choose_scope(asked: Option<&str>, repository: &str) -> String {
    let is_modest = |scope: &&str| {
        let inner = scope
            .strip_prefix("repository:")
            .and_then(|rest| rest.strip_suffix(":pull"));
        inner.is_some_and(|name| !name.is_empty() && !name.contains([' ', ':', ',']))
    };
    match asked.filter(is_modest) {
        Some(scope) => scope.to_owned(),
        None => format!("repository:{repository}:pull"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(header: &str) -> Vec<Challenge> {
        Challenge::parse_all(std::iter::once(header))
    }

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Challenge {
        Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
            scope: scope.map(str::to_owned),
        }
    }

    #[test]
    fn challenges_are_read() {
        let hub = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#;
        assert_eq!(
            parse(hub),
            [bearer(
                "https://auth.docker.io/token",
                Some("registry.docker.io"),
                Some("repository:a/b:pull,push")
            )]
        );
        assert_eq!(parse(r#"Basic realm="x, y=z""#), [Challenge::Basic]);
        assert_eq!(
            parse(r#"Negotiate, basic realm=x, BEARER Realm = "https://a\"b" , service=s"#),
            [Challenge::Basic, bearer("https://a\"b", Some("s"), None)]
        );
        let two = ["Basic", r#"Bearer realm="https://r""#];
        assert_eq!(
            Challenge::parse_all(two.into_iter()),
            [Challenge::Basic, bearer("https://r", None, None)]
        );
    }

    #[test]
    fn odd_challenges_are_left_out() {
        for odd in [
            "",
            ",",
            "=",
            "\"",
            "Bearer",
            "Bearer service=x",
            "Bearer realm",
            "é",
            "Digest a=\"b",
        ] {
            assert_eq!(parse(odd), [], "{odd}");
        }
        assert_eq!(parse(&"Basic,".repeat(1000)).len(), CHALLENGES_MAX);
    }

    #[test]
    fn realm_must_belong_to_the_registry() {
        let trusted = [
            "auth.elsewhere.example".to_owned(),
            "10.0.0.9:5001".to_owned(),
        ];
        for (registry, realm, is_allowed) in [
            (
                "https://registry-1.docker.io/",
                "https://auth.docker.io/token",
                true,
            ),
            ("https://ghcr.io/", "https://ghcr.io/token", true),
            (
                "https://registry.gitlab.com/",
                "https://gitlab.com/jwt/auth",
                true,
            ),
            ("https://r.example.com/", "https://evil.com/token", false),
            (
                "https://r.example.co.uk/",
                "https://evil.co.uk/token",
                false,
            ),
            (
                "https://r.example.co.uk/",
                "https://auth.example.co.uk/token",
                true,
            ),
            (
                "https://r.example.com/",
                "http://r.example.com/token",
                false,
            ),
            (
                "https://r.example.com/",
                "https://r.example.com@evil.com/",
                false,
            ),
            ("https://r.example.com/", "https://x@r.example.com/", false),
            ("https://r.example.com/", "https://127.0.0.1/token", false),
            (
                "https://r.example.com/",
                "http://169.254.169.254/latest",
                false,
            ),
            ("https://r.example.com/", "//evil", false),
            ("https://r.example.com/", "", false),
            (
                "https://r.example.com/",
                "https://auth.elsewhere.example/t",
                true,
            ),
            ("http://10.0.0.1:5000/", "http://10.0.0.1:5000/token", true),
            ("http://10.0.0.1:5000/", "http://10.0.0.1:5001/token", false),
            ("http://10.0.0.1:5000/", "http://10.0.0.9:5001/token", true),
            ("http://10.0.0.1:5000/", "https://10.0.0.1/token", true),
            ("https://10.0.0.1/", "https://11.0.0.1/token", false),
        ] {
            let registry = registry.parse().expect("a URL");
            let checked = check_realm(&registry, realm, &trusted);
            assert_eq!(checked.is_ok(), is_allowed, "{registry} {realm}");
        }
    }

    #[test]
    fn token_answers_are_read() {
        let read = |text: &str| serde_json::from_str::<TokenAnswer>(text).ok()?.into_token();
        let token = |token: &str, seconds| Some((token.to_owned(), seconds));
        assert_eq!(read(r#"{"token":"a","expires_in":300}"#), token("a", 300));
        assert_eq!(read(r#"{"access_token":"b"}"#), token("b", 60));
        assert_eq!(
            read(r#"{"token":"","access_token":"b","expires_in":0}"#),
            token("b", 60)
        );
        for odd in ["{}", r#"{"token":"a\r\nX: y"}"#, r#"{"token":""}"#, "[]"] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }

    #[test]
    fn scope_is_limited_to_one_pull() {
        assert_eq!(choose_scope(None, "a/b"), "repository:a/b:pull");
        assert_eq!(
            choose_scope(Some("repository:c:pull"), "a"),
            "repository:c:pull"
        );
        for greedy in [
            "repository:c:pull,push",
            "registry:catalog:*",
            "repository:c:pull repository:d:pull",
            "repository::pull",
        ] {
            assert_eq!(
                choose_scope(Some(greedy), "a"),
                "repository:a:pull",
                "{greedy}"
            );
        }
    }
}
