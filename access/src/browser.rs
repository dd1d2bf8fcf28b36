//! Blocks requests that a foreign page in a browser may have sent: by their host name, and by their origin.
//!
//! [`Policy::check`] takes the headers as text. Programs other than browsers send none of the headers that matter here except
//! `Host`, and pass. Invariant: a request that changes something and claims to come from a page comes from a page of this
//! daemon, or of an origin that the operator allows.

use std::net::{IpAddr, Ipv6Addr};

/// The hosts that requests may name: one name, all names below one, or any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    Any,
    /// A name in small letters, without a dot at the end.
    Name(String),
    /// Every name with this ending, which begins with a dot.
    Below(String),
}

/// Errors of parsing a host or an origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("{0:?} is not a host name: give names, `*.domain` or `*`, without scheme and port")]
    Host(String),
    #[error("{0:?} is not an origin: give scheme, host and port, as in https://page.example:8443")]
    Origin(String),
}

impl HostPattern {
    /// Parses `name`, `*.domain` or `*`.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let (is_pattern, name) = match text.strip_prefix("*.") {
            Some(domain) => (true, domain),
            None => (false, text),
        };
        let name = normal(name);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(is_plain) {
            return Err(ParseError::Host(text.to_owned()));
        }
        Ok(if is_pattern {
            Self::Below(format!(".{name}"))
        } else {
            Self::Name(name)
        })
    }

    fn matches(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Name(name) => host == name,
            Self::Below(ending) => host.len() > ending.len() && host.ends_with(ending.as_str()),
        }
    }
}

fn normal(name: &str) -> String {
    let name = name.strip_suffix('.').unwrap_or(name);
    name.to_ascii_lowercase()
}

/// The host and port in `Host` and in the target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Authority {
    host: String,
    is_address: bool,
    port: Option<u16>,
}

impl Authority {
    fn parse(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix('[') {
            let (inside, rest) = rest.split_once(']')?;
            let address: Ipv6Addr = inside.parse().ok()?;
            return Some(Self {
                host: address.to_string(),
                is_address: true,
                port: port(rest)?,
            });
        }
        let (host, rest) = text.find(':').map_or((text, ""), |at| text.split_at(at));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if host.is_empty() || !host.chars().all(is_plain) {
            return None;
        }
        Some(Self {
            host: normal(host),
            is_address: host.parse::<IpAddr>().is_ok(),
            port: port(rest)?,
        })
    }
}

/// Parses `:port`, or an empty text.
fn port(text: &str) -> Option<Option<u16>> {
    match text.strip_prefix(':') {
        None => text.is_empty().then_some(None),
        Some("") => Some(None),
        Some(digits) => digits.parse().ok().map(Some),
    }
}

/// The origin of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    scheme: String,
    host: String,
    port: Option<u16>,
}

impl Origin {
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let parsed = text.split_once("://").and_then(|(scheme, authority)| {
            let scheme = scheme.to_ascii_lowercase();
            let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
            let is_scheme = !scheme.is_empty() && scheme.chars().all(is_plain);
            let authority = Authority::parse(authority).filter(|_| is_scheme)?;
            Some(Self {
                port: authority.port.or_else(|| default_port(&scheme)),
                host: authority.host,
                scheme,
            })
        });
        parsed.ok_or_else(|| ParseError::Origin(text.to_owned()))
    }

    /// The origin of a page from its address in `Referer`.
    fn of_page(address: &str) -> Option<Self> {
        let (scheme, rest) = address.split_once("://")?;
        let authority = rest.split(['/', '?', '#']).next()?;
        let authority = authority.rsplit('@').next()?;
        Self::parse(&format!("{scheme}://{authority}")).ok()
    }

    /// Whether a page of this origin contacts its own server.
    fn is_of(&self, authority: &Authority, encrypted: bool) -> bool {
        let port = authority.port.or_else(|| default_port(&self.scheme));
        // Behind a proxy that ends TLS, a request in the clear may come from an encrypted page.
        let fits = matches!(self.scheme.as_str(), "https") || (self.scheme == "http" && !encrypted);
        fits && self.host == authority.host && self.port == port
    }
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

/// The effect of a request, by its method and its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// GET, HEAD: the request only reads.
    Reads,
    /// POST, PUT and the like change something.
    Changes,
    /// A GET that changes something, of which Mesos has one.
    ChangesByGet,
}

/// The properties of a request that decide its origin.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The values of each `Host`, and the authority in the target.
    pub authorities: &'a [&'a str],
    pub origin: Option<&'a str>,
    pub referer: Option<&'a str>,
    pub fetch_site: Option<&'a str>,
    pub user_agent: Option<&'a str>,
    /// Whether the request came over TLS.
    pub encrypted: bool,
    pub effect: Effect,
}

/// The reasons to block a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockedRequest {
    #[error(
        "421 Misdirected Request. This daemon does not have the name '{0}': use its address or \
         its host name, or have \
         its operator give --allowed_hosts={0}"
    )]
    Host(String),
    #[error(
        "A page of {0} may not change state: use a page of this daemon or a command-line client, \
         or have \
         the operator give --allowed_origins"
    )]
    Origin(String),
    #[error(
        "Browsers cannot change state by GET: send a POST, or use a command-line client. Pages \
         of other origins \
         need --allowed_origins"
    )]
    Get,
}

/// The source of an accepted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A program, or a page of this daemon.
    Own,
    /// A page of an origin that the operator allows.
    Allowed,
}

/// The names of a daemon and the pages that may use it.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    pub hosts: Vec<HostPattern>,
    pub origins: Vec<Origin>,
    /// Whether names without a dot are accepted too. They come from a hosts file or the local network's own names, so that no
    /// stranger can make one point here; a daemon on loopback does not need them.
    pub takes_short_names: bool,
}

impl Policy {
    /// Decides on one request. `more` are further present names of the daemon.
    pub fn check(
        &self,
        request: &Request<'_>,
        more: &[HostPattern],
    ) -> Result<Source, BlockedRequest> {
        let mut asked = None;
        for text in request.authorities.iter().filter(|text| !text.is_empty()) {
            let authority = Authority::parse(text);
            let is_known = |one: &Authority| self.is_ours(one, more);
            let Some(authority) = authority.filter(is_known) else {
                return Err(BlockedRequest::Host(truncated(text)));
            };
            asked.get_or_insert(authority);
        }
        let page = request.origin.filter(|origin| *origin != "null");
        let page = page.and_then(|origin| Origin::parse(origin).ok());
        let page =
            page.or_else(|| Origin::of_page(request.referer?).filter(|_| request.origin.is_none()));
        if page
            .as_ref()
            .is_some_and(|page| self.origins.contains(page))
        {
            return self.of_allowed(request.effect);
        }
        match request.effect {
            Effect::Reads => Ok(Source::Own),
            Effect::ChangesByGet if is_browser(request) => Err(BlockedRequest::Get),
            Effect::Changes | Effect::ChangesByGet => {
                let own = |page: &Origin| {
                    let of = |one: &Authority| page.is_of(one, request.encrypted);
                    asked.as_ref().is_some_and(of)
                };
                if is_foreign(request, page.as_ref().map(own)) {
                    let named = request.origin.or(request.referer);
                    let named = named.unwrap_or("another origin");
                    return Err(BlockedRequest::Origin(truncated(named)));
                }
                Ok(Source::Own)
            }
        }
    }

    fn of_allowed(&self, effect: Effect) -> Result<Source, BlockedRequest> {
        if effect == Effect::ChangesByGet {
            return Err(BlockedRequest::Get);
        }
        Ok(Source::Allowed)
    }

    /// Whether the name or address belongs to this daemon. A foreign name may have been made to point here, so that a page of
    /// that name could read everything. Nobody can do that with an address.
    fn is_ours(&self, authority: &Authority, more: &[HostPattern]) -> bool {
        let host = authority.host.as_str();
        authority.is_address
            || host == "localhost"
            || (self.takes_short_names && !host.contains('.'))
            || self.hosts.iter().chain(more).any(|one| one.matches(host))
    }
}

/// Whether a foreign page sent the request. `is_own` is the result for the page that the request names, if any.
fn is_foreign(request: &Request<'_>, is_own: Option<bool>) -> bool {
    let site = request
        .fetch_site
        .map(|site| matches!(site, "same-origin" | "none"));
    match (request.origin, is_own, site) {
        (_, _, Some(false)) | (_, Some(false), _) => true,
        (_, Some(true), _) => false,
        // `null`, or nonsense: a browser that hides the origin of a page still shows whether it is ours.
        (Some(origin), None, site) => origin != "null" || site.is_none(),
        // The page is unreadable.
        (None, None, None) => request.referer.is_some(),
        (None, None, Some(true)) => false,
    }
}

/// Whether the request has headers that only browsers send; a page can neither suppress them nor change the name of the
/// browser.
fn is_browser(request: &Request<'_>) -> bool {
    let names_itself = |agent: &str| agent.starts_with("Mozilla/");
    request.origin.is_some()
        || request.referer.is_some()
        || request.fetch_site.is_some()
        || request.user_agent.is_some_and(names_itself)
}

/// The part of a header that an answer may repeat.
fn truncated(text: &str) -> String {
    const CHARS_MAX: usize = 256;
    let is_plain = |c: &char| c.is_ascii_graphic() && !matches!(c, '<' | '>' | '"' | '\'');
    text.chars().filter(is_plain).take(CHARS_MAX).collect()
}

/// Whether a body is of a type that a page's form can send to another site without its consent, and that no client of these
/// endpoints has reason to send. The form type itself is the one of `curl -d`.
#[must_use]
pub fn is_type_of_forms(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let main = essence.split('/').next().unwrap_or_default();
    essence.eq_ignore_ascii_case("text/plain") || main.eq_ignore_ascii_case("multipart")
}

#[cfg(test)]
mod tests;
