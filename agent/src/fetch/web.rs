//! The HTTP client of one fetch: connects to the server or to a proxy, and ends with its task.
//!
//! Entered through [`client`]. A proxy gets the whole URL for `http://`, and a CONNECT for `https://`. Invariant: a
//! cancelled fetch ends a connection in any state.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};

use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, NextTimeout, RustlsConnector, Transport,
    TransportAdapter,
};

use super::proxy::{Proxies, Proxy, in_absolute_form};
use crate::task_connection::{TaskConnector, TaskLife};

/// The longest answer to CONNECT; proxies explain a refusal in a page, which is not read.
const CONNECT_ANSWER_BYTES_MAX: usize = 16 * 1024;

pub(super) fn client(
    config: ureq::config::Config,
    life: TaskLife,
    proxies: &Proxies,
) -> ureq::Agent {
    let connector = FetchConnector {
        tcp: TaskConnector::new(life),
        proxies: proxies.clone(),
    };
    let resolver = FetchResolver {
        names: DefaultResolver::default(),
        proxies: proxies.clone(),
    };
    let connector = connector.chain(RustlsConnector::default());
    ureq::Agent::with_parts(config, connector, resolver)
}

fn choose(proxies: &Proxies, url: &Uri) -> Result<Option<Proxy>, ureq::Error> {
    let chosen = proxies.choose(url);
    chosen.map_err(|why| ureq::Error::Io(std::io::Error::other(why)))
}

/// Resolves the host to connect to: a proxy itself resolves the server's name.
#[derive(Debug)]
struct FetchResolver {
    names: DefaultResolver,
    proxies: Proxies,
}

impl Resolver for FetchResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &ureq::config::Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let proxy = choose(&self.proxies, uri)?;
        let uri = proxy.as_ref().map_or(uri, |proxy| &proxy.uri);
        self.names.resolve(uri, config, timeout)
    }
}

#[derive(Debug)]
struct FetchConnector {
    tcp: TaskConnector,
    proxies: Proxies,
}

impl Connector for FetchConnector {
    type Out = Box<dyn Transport>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(stream) = self.tcp.connect(details, None)? else {
            return Ok(None);
        };
        let Some(proxy) = choose(&self.proxies, details.uri)? else {
            return Ok(Some(Box::new(stream)));
        };
        let to_proxy: Box<dyn Transport> = match proxy.uri.scheme_str() {
            Some("https") => {
                let of_proxy = ConnectionDetails {
                    uri: &proxy.uri,
                    addrs: details.resolver.empty(),
                    resolver: details.resolver,
                    config: details.config,
                    request_level: details.request_level,
                    now: details.now,
                    timeout: details.timeout,
                    current_time: details.current_time.clone(),
                    run_connector: details.run_connector.clone(),
                    register_shutdown: details.register_shutdown.clone(),
                };
                match RustlsConnector::default().connect(&of_proxy, Some(stream))? {
                    Some(encrypted) => Box::new(encrypted),
                    None => return Ok(None),
                }
            }
            _ => Box::new(stream),
        };
        let transport: Box<dyn Transport> = match details.needs_tls() {
            true => Box::new(Plain(open_tunnel(to_proxy, &proxy, details)?)),
            false => Box::new(ProxiedTransport {
                inner: to_proxy,
                url: details.uri.clone(),
                authorization: proxy.authorization,
            }),
        };
        Ok(Some(transport))
    }
}

/// Requests a connection to the server from a proxy (RFC 9110, section 9.3.6).
fn open_tunnel(
    to_proxy: Box<dyn Transport>,
    proxy: &Proxy,
    details: &ConnectionDetails<'_>,
) -> Result<Box<dyn Transport>, ureq::Error> {
    let failed = |why: String| ureq::Error::ConnectProxyFailed(why);
    let host = details.uri.host().unwrap_or_default();
    let server = format!("{host}:{}", details.uri.port_u16().unwrap_or(443));
    let mut head = format!("CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n");
    if let Some(authorization) = &proxy.authorization {
        let _ = write!(head, "Proxy-Authorization: {authorization}\r\n");
    }
    head.push_str("\r\n");
    let mut stream = TransportAdapter::new(to_proxy, details.current_time.clone());
    stream.set_timeout(details.timeout);
    stream.write_all(head.as_bytes())?;
    stream.flush()?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte)? == 0 {
            return Err(failed("the proxy closed the connection".to_owned()));
        }
        answer.extend(byte);
        if answer.len() > CONNECT_ANSWER_BYTES_MAX {
            return Err(failed("the proxy's answer does not end".to_owned()));
        }
    }
    let line = answer.split(|byte| *byte == b'\r').next();
    let line = String::from_utf8_lossy(line.unwrap_or_default()).into_owned();
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse::<u16>().ok());
    match status {
        Some(200..=299) => Ok(stream.into_inner()),
        _ => Err(failed(format!("the proxy answered {line:?}"))),
    }
}

/// A tunnel through a proxy. The server's TLS runs inside, also if the connection to the proxy uses TLS.
#[derive(Debug)]
struct Plain(Box<dyn Transport>);

impl Transport for Plain {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.0.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.0.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.0.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.0.is_open()
    }
}

/// A connection to a proxy on which requests contain the whole URL.
#[derive(Debug)]
struct ProxiedTransport {
    inner: Box<dyn Transport>,
    url: Uri,
    authorization: Option<String>,
}

impl Transport for ProxiedTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let output = self.inner.buffers().output().get(..amount);
        let output = output.unwrap_or_default();
        // A request of a fetch consists of a single head.
        if !output.starts_with(b"GET ") {
            return self.inner.transmit_output(amount, timeout);
        }
        let head = in_absolute_form(output, &self.url, self.authorization.as_deref());
        let mut left = head.as_slice();
        while !left.is_empty() {
            let output = self.inner.buffers().output();
            let (now, later) = left.split_at(left.len().min(output.len()));
            if now.is_empty() {
                return Err(std::io::Error::from(std::io::ErrorKind::WriteZero).into());
            }
            output
                .iter_mut()
                .zip(now)
                .for_each(|(to, byte)| *to = *byte);
            self.inner.transmit_output(now.len(), timeout)?;
            left = later;
        }
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.inner.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use meseta_proto::mesos::v1::command_info::Uri as Fetched;

    use crate::fetch::tests::Fixture;
    use crate::fetch::{Proxies, Request, fetch};

    /// Answers the connections in turn with these answers, and returns the heads of the requests.
    fn proxy(answers: &'static [&'static str]) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let serving = std::thread::spawn(move || {
            let mut heads = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("a request");
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).expect("a head");
                    head.extend(byte);
                }
                heads.push(String::from_utf8(head).expect("text"));
                stream.write_all(answer.as_bytes()).expect("answered");
            }
            heads
        });
        (address, serving)
    }

    fn fetch_through(proxy: &str, url: &str) -> (Fixture, Result<(), String>) {
        let fixture = Fixture::new();
        let uri = Fetched {
            value: url.to_owned(),
            ..Fetched::default()
        };
        let proxies = Proxies::from_variables(|name| {
            (name == "all_proxy").then(|| format!("http://ann:pw@{proxy}"))
        });
        let request = Request {
            proxies,
            ..fixture.request(uri)
        };
        let fetched = fetch(request).map_err(|error| error.to_string());
        (fixture, fetched)
    }

    #[test]
    fn plain_http_uses_proxy_without_connect() {
        let (address, serving) = proxy(&[
            "HTTP/1.1 302 Found\r\nLocation: http://other.invalid/b\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ntext",
        ]);
        // Only the proxy can resolve these names.
        let (fixture, fetched) = fetch_through(&address, "http://host.invalid:81/a?q");
        fetched.expect("fetched");
        assert_eq!(fixture.read("a?q"), "text");
        let heads = serving.join().expect("no panic");
        let basic = meseta_access::basic::header("ann", b"pw");
        for (head, url, host) in [
            (&heads[0], "http://host.invalid:81/a?q", "host.invalid:81"),
            (&heads[1], "http://other.invalid/b", "other.invalid"),
        ] {
            let head = head.to_ascii_lowercase();
            assert!(
                head.starts_with(&format!("get {url} http/1.1\r\n")),
                "{head}"
            );
            assert!(head.contains(&format!("\r\nhost: {host}\r\n")), "{head}");
            let authorization = format!("proxy-authorization: {}", basic.to_ascii_lowercase());
            assert!(head.contains(&authorization), "{head}");
        }
    }

    #[test]
    fn https_uses_connect_through_proxy() {
        let (address, serving) = proxy(&["HTTP/1.1 403 Forbidden\r\n\r\n"]);
        let (_fixture, fetched) = fetch_through(&address, "https://host.invalid/a");
        let error = fetched.expect_err("refused");
        assert!(error.contains("403 Forbidden"), "{error}");
        let heads = serving.join().expect("no panic");
        assert!(
            heads[0].starts_with("CONNECT host.invalid:443 HTTP/1.1\r\nHost: host.invalid:443\r\n")
        );
    }

    #[test]
    fn endless_proxy_answer_is_refused() {
        const ENDLESS: &str = concat!("HTTP/1.1 200 OK\r\nX: ", "\r\n");
        let (address, serving) = proxy(&[ENDLESS]);
        let (_fixture, fetched) = fetch_through(&address, "https://host.invalid/a");
        let error = fetched.expect_err("refused");
        assert!(error.contains("closed the connection"), "{error}");
        serving.join().expect("no panic");
    }
}
