//! The proxy for a fetch, from the environment of the agent.
//!
//! [`Proxies::choose`] follows curl, which fetches for Mesos: `http_proxy` for `http://`, `https_proxy` for `https://`,
//! `all_proxy` for both, and no proxy for the hosts in `no_proxy`. Each name also works in upper case. Pure: variables
//! come in as a function.

use std::net::IpAddr;

use ureq::http::Uri;

/// The proxies of one fetch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proxies {
    http: Option<String>,
    https: Option<String>,
    no_proxy: String,
}

/// A proxy to connect to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Proxy {
    /// `http://host:port/` or `https://host:port/`, without credentials.
    pub(super) uri: Uri,
    /// The value of `Proxy-Authorization`, if its URL has credentials.
    pub(super) authorization: Option<String>,
}

impl Proxies {
    pub(crate) fn from_env() -> Self {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    pub(super) fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let either = |name: &str| {
            let set = [name.to_owned(), name.to_ascii_uppercase()];
            let values = set.iter().filter_map(|name| variable(name));
            values
                .map(|value| value.trim().to_owned())
                .find(|value| !value.is_empty())
        };
        let for_scheme = |name: &str| either(name).or_else(|| either("all_proxy"));
        Self {
            http: for_scheme("http_proxy"),
            https: for_scheme("https_proxy"),
            no_proxy: either("no_proxy").unwrap_or_default(),
        }
    }

    /// Returns the proxy for a URL; `None` if no proxy applies. An unusable proxy is an error, so that no request
    /// bypasses the operator's proxy.
    pub(super) fn choose(&self, url: &Uri) -> Result<Option<Proxy>, String> {
        let host = url.host().unwrap_or_default();
        let (variable, proxy) = match url.scheme_str() {
            Some("https") => ("https_proxy", &self.https),
            _ => ("http_proxy", &self.http),
        };
        let Some(proxy) = proxy.as_deref() else {
            return Ok(None);
        };
        if is_exempt(host, &self.no_proxy) {
            return Ok(None);
        }
        let parsed = Proxy::parse(proxy);
        // The text may contain a password.
        let parsed =
            parsed.map_err(|why| format!("the proxy of {variable} (or all_proxy) {why}"))?;
        Ok(Some(parsed))
    }
}

impl Proxy {
    fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let scheme = scheme.to_ascii_lowercase();
        if !["http", "https"].contains(&scheme.as_str()) {
            return Err(format!("has scheme '{scheme}': give http or https"));
        }
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (credentials, host) = match authority.rsplit_once('@') {
            Some((credentials, host)) => (Some(credentials), host),
            None => (None, authority),
        };
        // Without a port, curl uses 1080 and all others use the scheme's default, which operators expect.
        let uri = format!("{scheme}://{host}/").parse::<Uri>();
        let uri = uri.map_err(|error| format!("is not a URL: {error}"))?;
        if uri.host().is_none_or(str::is_empty) {
            return Err("names no host".to_owned());
        }
        let authorization = credentials.map(|credentials| {
            let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
            let decoded = |text| percent_encoding::percent_decode_str(text).collect::<Vec<u8>>();
            let user = String::from_utf8_lossy(&decoded(user)).into_owned();
            meseta_access::basic::header(&user, &decoded(password))
        });
        Ok(Self { uri, authorization })
    }
}

/// Whether a `no_proxy` list matches a host: names match themselves and their subdomains, addresses match themselves or
/// a network (`10.0.0.0/8`), `*` matches all.
fn is_exempt(host: &str, list: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let address = host.parse::<IpAddr>().ok();
    let entries = list
        .split([',', ' ', '\t'])
        .filter(|entry| !entry.is_empty());
    entries.map(str::to_ascii_lowercase).any(|entry| {
        if entry == "*" {
            return true;
        }
        if let Some(address) = address {
            return is_in_network(address, &entry);
        }
        let name = entry.trim_start_matches('*').trim_matches('.');
        let rest = host.strip_suffix(name).filter(|_| !name.is_empty());
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

fn is_in_network(address: IpAddr, entry: &str) -> bool {
    let (network, length) = match entry.split_once('/') {
        Some((network, length)) => (network, length.parse::<u32>().ok()),
        None => (entry, Some(128)),
    };
    let network = network.trim_start_matches('[').trim_end_matches(']');
    let (Ok(network), Some(length)) = (network.parse::<IpAddr>(), length) else {
        return false;
    };
    let (one, other, bits) = match (address.to_canonical(), network.to_canonical()) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits().into(), other.to_bits().into(), 32),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits(), other.to_bits(), 128),
        _ => return false,
    };
    let free = bits - length.min(bits);
    let differing: u128 = one ^ other;
    differing.checked_shr(free).unwrap_or(0) == 0
}

/// The head of a request with its target in the absolute form that a proxy needs (RFC 9112, section 3.2.2). Unchanged
/// if the target has another form.
pub(super) fn in_absolute_form(head: &[u8], url: &Uri, authorization: Option<&str>) -> Vec<u8> {
    let authority = url.authority().map_or("", |authority| {
        let authority = authority.as_str();
        authority
            .rsplit_once('@')
            .map_or(authority, |(_, host)| host)
    });
    let target = head.iter().position(|byte| *byte == b' ').map(|at| at + 1);
    let line = head.windows(2).position(|bytes| bytes == b"\r\n");
    let (Some(target), Some(line)) = (target, line) else {
        return head.to_vec();
    };
    let (Some(method), Some(path), Some(rest)) =
        (head.get(..target), head.get(target..line), head.get(line..))
    else {
        return head.to_vec();
    };
    if !path.starts_with(b"/") {
        return head.to_vec();
    }
    let mut absolute = [method, b"http://", authority.as_bytes(), path].concat();
    if let Some(authorization) = authorization {
        absolute.extend(b"\r\nProxy-Authorization: ");
        absolute.extend(authorization.as_bytes());
    }
    absolute.extend(rest);
    absolute
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(variables: &[(&str, &str)], url: &str) -> Option<String> {
        let variable = |name: &str| {
            let set = variables.iter().find(|(set, _)| *set == name);
            set.map(|(_, value)| (*value).to_owned())
        };
        let proxies = Proxies::from_variables(variable);
        let proxy = proxies.choose(&url.parse().expect("a URL"));
        proxy.expect("usable").map(|proxy| proxy.uri.to_string())
    }

    #[test]
    fn each_scheme_has_its_own_proxy() {
        let both = [("http_proxy", "http://a:1"), ("HTTPS_PROXY", "http://b:2")];
        assert_eq!(chosen(&both, "http://h/").as_deref(), Some("http://a:1/"));
        assert_eq!(chosen(&both, "https://h/").as_deref(), Some("http://b:2/"));
        let all = [("ALL_PROXY", "c:3"), ("http_proxy", "")];
        assert_eq!(chosen(&all, "http://h/").as_deref(), Some("http://c:3/"));
        assert_eq!(chosen(&all, "https://h/").as_deref(), Some("http://c:3/"));
        let lower_first = [
            ("HTTP_PROXY", "http://upper"),
            ("http_proxy", "http://lower"),
        ];
        assert_eq!(
            chosen(&lower_first, "http://h/").as_deref(),
            Some("http://lower/")
        );
        let only_https = [("https_proxy", "http://b:2")];
        assert_eq!(chosen(&only_https, "http://h/"), None);
    }

    #[test]
    fn listed_hosts_need_no_proxy() {
        for (list, host, is_listed) in [
            ("example.com", "example.com", true),
            ("example.com", "www.EXAMPLE.com", true),
            (".example.com", "www.example.com", true),
            ("*.example.com", "www.example.com", true),
            ("example.com", "notexample.com", false),
            ("a, example.com b", "example.com", true),
            ("*", "anything", true),
            ("", "anything", false),
            (".", "anything", false),
            ("127.0.0.1", "127.0.0.1", true),
            ("10.0.0.0/8", "10.9.8.7", true),
            ("10.0.0.0/8", "11.9.8.7", false),
            ("10.0.0.0/99", "10.9.8.7", false),
            ("0.0.0.0/0", "10.9.8.7", true),
            ("::1", "[::1]", true),
            ("[::1]", "[::1]", true),
            ("fd00::/8", "[fd12::1]", true),
            ("fd00::/8", "[fe12::1]", false),
            ("::/0", "10.9.8.7", false),
            ("10.0.0.0/x", "10.0.0.0", false),
        ] {
            assert_eq!(is_exempt(host, list), is_listed, "{host} in {list:?}");
        }
    }

    #[test]
    fn proxy_error_hides_the_password() {
        for proxy in [
            "socks5://ann:secret@h",
            "http://ann:secret@",
            "http://ann:secret@a b",
        ] {
            let proxies = Proxies {
                http: Some(proxy.to_owned()),
                ..Proxies::default()
            };
            let error = proxies
                .choose(&Uri::from_static("http://h/"))
                .expect_err(proxy);
            assert!(
                error.contains("http_proxy") && !error.contains("secret"),
                "{error}"
            );
        }
    }

    #[test]
    fn proxy_request_names_whole_url() {
        let url = Uri::from_static("http://ann:pw@host:81/a?b");
        let head = b"GET /a?b HTTP/1.1\r\nHost: host:81\r\n\r\n";
        let absolute = in_absolute_form(head, &url, Some("Basic YTpi"));
        assert_eq!(
            String::from_utf8(absolute).expect("text"),
            "GET http://host:81/a?b HTTP/1.1\r\nProxy-Authorization: Basic YTpi\r\nHost: host:81\r\n\r\n"
        );
        for odd in [
            &b""[..],
            b"GET",
            b"GET /a",
            b"GET http://x/ HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(in_absolute_form(odd, &url, None), odd);
        }
    }

    #[test]
    fn credentials_of_a_proxy_are_decoded() {
        let proxy = Proxy::parse("http://ann%40x:p%3Aw@h:3128/").expect("a proxy");
        assert_eq!(proxy.uri, Uri::from_static("http://h:3128/"));
        let expected = meseta_access::basic::header("ann@x", b"p:w");
        assert_eq!(proxy.authorization, Some(expected));
    }
}
