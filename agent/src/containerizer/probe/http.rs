//! HTTP checks: a GET whose status decides.
//!
//! Invariants: the check ends with its task. Names, which a redirect may contain, are looked up by a bounded number of
//! threads, of which each framework has its share.

use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use meseta_resources::FrameworkId;
use rustix::event::PollFlags;
use ureq::http::header::LOCATION;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::time::Duration as UreqDuration;
use ureq::unversioned::transport::{Connector as _, NextTimeout, RustlsConnector};

use super::location::resolve;
use crate::containerizer::fair_semaphore::FairSemaphore;
use crate::core::ProbeResult;
use crate::task_connection::{NoLook, TaskConnector, TaskLife, is_no_look, until};

/// The most redirects that a check follows, as curl does for Mesos.
const REDIRECTS_MAX: u32 = 10;
/// The most bytes of a redirect's body to read.
const REDIRECT_BODY_BYTES_MAX: u64 = 64 * 1024;
/// The most addresses of a name to try.
const ADDRESSES_MAX: usize = 16;

/// The lookups for the checks of a framework.
#[derive(Clone, Debug)]
pub(super) struct Lookups {
    pub(super) permits: FairSemaphore,
    pub(super) framework: FrameworkId,
}

pub(super) fn by_http(
    url: &str,
    timeout: Duration,
    life: &TaskLife,
    lookups: Lookups,
) -> ProbeResult {
    // As in Mesos, which disables certificate checks in curl: the task is on this machine.
    let tls = ureq::tls::TlsConfig::builder()
        .disable_verification(true)
        .build();
    let config = ureq::Agent::config_builder()
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .tls_config(tls)
        .proxy(None)
        .build();
    let connector = TaskConnector::new(life.clone());
    let connector = connector.chain(RustlsConnector::default());
    let resolver = TaskResolver {
        names: DefaultResolver::default(),
        life: life.clone(),
        lookups,
    };
    let agent = ureq::Agent::with_parts(config, connector, resolver);
    match follow(&agent, url, timeout) {
        Ok(result) => result,
        Err(ureq::Error::Io(error)) if is_no_look(&error) => ProbeResult::NotRun(error.to_string()),
        Err(error) => ProbeResult::NoAnswer(error.to_string()),
    }
}

/// Sends the request and follows redirects. A redirect without a location is the final answer, as for curl, whatever
/// its status.
fn follow(agent: &ureq::Agent, url: &str, timeout: Duration) -> Result<ProbeResult, ureq::Error> {
    let began = Instant::now();
    let mut url = url.to_owned();
    for _ in 0..=REDIRECTS_MAX {
        let left = timeout.saturating_sub(began.elapsed());
        let request = agent.get(&url).config().timeout_global(Some(left)).build();
        let answer = request.call()?;
        let status = answer.status().as_u16();
        let place = answer.headers().get_all(LOCATION).iter().next_back();
        let place = place
            .filter(|_| matches!(status, 301..=303 | 307 | 308))
            .cloned();
        let Some(place) = place else {
            return Ok(ProbeResult::Status(status.into()));
        };
        let place = String::from_utf8_lossy(place.as_bytes()).into_owned();
        let page: ureq::http::Uri = url.parse().map_err(ureq::http::Error::from)?;
        let Some(next) = resolve(&page, &place) else {
            return Ok(ProbeResult::NoAnswer(format!("it redirects to {place:?}")));
        };
        // Reads the body, so that the next request may reuse the connection; a long body is not worth that.
        let mut body = answer
            .into_body()
            .into_reader()
            .take(REDIRECT_BODY_BYTES_MAX);
        let _ = io::copy(&mut body, &mut io::sink());
        url = next;
    }
    let text = format!("it redirects more than {REDIRECTS_MAX} times");
    Ok(ProbeResult::NoAnswer(text))
}

/// Resolves an address directly, and a name with a thread that can be abandoned and counts until it ends. Ureq's own
/// resolver would panic without memory for a thread.
#[derive(Debug)]
struct TaskResolver {
    names: DefaultResolver,
    life: TaskLife,
    lookups: Lookups,
}

impl Resolver for TaskResolver {
    fn resolve(
        &self,
        uri: &ureq::http::Uri,
        config: &ureq::config::Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let host = uri.host().unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']');
        if address.parse::<IpAddr>().is_ok() {
            let never = NextTimeout {
                after: UreqDuration::NotHappening,
                ..timeout
            };
            return self.names.resolve(uri, config, never);
        }
        let named = uri.scheme().zip(uri.authority());
        let named =
            named.and_then(|(scheme, authority)| DefaultResolver::host_and_port(scheme, authority));
        let named = named.ok_or(ureq::Error::HostNotFound)?;
        let found = self.look_up(named, &timeout)?;
        let mut addresses = self.names.empty();
        for address in found.into_iter().take(ADDRESSES_MAX) {
            addresses.push(address);
        }
        match addresses.is_empty() {
            true => Err(ureq::Error::HostNotFound),
            false => Ok(addresses),
        }
    }
}

impl TaskResolver {
    fn look_up(
        &self,
        named: String,
        timeout: &NextTimeout,
    ) -> Result<Vec<SocketAddr>, ureq::Error> {
        let permit = self.lookups.permits.try_take(&self.lookups.framework);
        let permit = permit.ok_or_else(|| io::Error::other(NoLook::TooManyNames))?;
        // Closing the pipe signals the end: the thread writes nothing else to it.
        let (ended, ends) = io::pipe()?;
        let found = Arc::new(Mutex::new(None));
        let of_thread = found.clone();
        std::thread::Builder::new()
            .name("lookup".to_owned())
            .spawn(move || {
                let _counts = (permit, ends);
                let addresses = named.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
                *of_thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(addresses);
            })?;
        if !self.life.wait(&ended, PollFlags::IN, until(timeout))? {
            return Err(ureq::Error::Timeout(timeout.reason));
        }
        let found = found.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(found.unwrap_or_else(|| Err(io::Error::other("the lookup panicked")))?)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::containerizer::fair_semaphore::PermitLimits;

    /// Longer than any operation that does not hang.
    const LONG: Duration = Duration::from_secs(600);

    /// A task that lives until the other end of the pipe is dropped.
    fn life() -> (TaskLife, io::PipeWriter) {
        let (ended, ends) = io::pipe().expect("a pipe");
        (TaskLife::from_supervisor(OwnedFd::from(ended)), ends)
    }

    fn lookups(all: usize) -> Lookups {
        let limits = PermitLimits {
            all,
            each: all,
            spare: 0,
        };
        Lookups {
            permits: FairSemaphore::new(limits),
            framework: FrameworkId::new("f").expect("an id"),
        }
    }

    fn listening() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        (listener, format!("http://127.0.0.1:{port}/"))
    }

    /// Accepts one request and answers it.
    fn answer(listener: &TcpListener, answer: &str) {
        let (mut stream, _) = listener.accept().expect("a check");
        reply(&mut stream, answer);
    }

    fn reply(stream: &mut (impl io::Read + io::Write), answer: &str) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a request");
            request.extend(byte);
        }
        stream.write_all(answer.as_bytes()).expect("answered");
    }

    #[test]
    fn redirect_is_followed() {
        let (listener, url) = listening();
        let there = url.replace("127.0.0.1", "localhost");
        let server = std::thread::spawn(move || {
            answer(
                &listener,
                &format!("HTTP/1.1 302 Found\r\nLocation: {there}\r\nContent-Length: 0\r\n\r\n"),
            );
            answer(&listener, "HTTP/1.1 204 No Content\r\n\r\n");
        });
        let (life, _lives) = life();
        let seen = by_http(&url, LONG, &life, lookups(1));
        assert_eq!(seen, ProbeResult::Status(204));
        server.join().expect("no panic");
    }

    /// Regression: the check of a task behind a login page failed. `302` without a location is an answer.
    #[test]
    fn redirect_without_location_counts_by_status() {
        for (sent, status) in [
            ("302 Found\r\nContent-Length: 0", 302),
            ("301 Moved Permanently\r\nContent-Length: 0", 301),
            (
                "300 Multiple Choices\r\nContent-Length: 0\r\nLocation: /x",
                300,
            ),
            ("304 Not Modified", 304),
            ("399 Odd\r\nContent-Length: 0", 399),
            ("404 Not Found\r\nContent-Length: 0\r\nLocation: /x", 404),
        ] {
            let (listener, url) = listening();
            let server = std::thread::spawn(move || {
                answer(&listener, &format!("HTTP/1.1 {sent}\r\n\r\n"));
            });
            let (life, _lives) = life();
            let seen = by_http(&url, LONG, &life, lookups(0));
            assert_eq!(seen, ProbeResult::Status(status), "{sent}");
            server.join().expect("no panic");
        }
    }

    #[test]
    fn redirect_loop_is_no_answer() {
        let (listener, url) = listening();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a check");
            for _ in 0..=REDIRECTS_MAX {
                let again = "HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n";
                reply(&mut stream, again);
            }
        });
        let (life, _lives) = life();
        let seen = by_http(&url, LONG, &life, lookups(0));
        assert!(matches!(seen, ProbeResult::NoAnswer(_)), "{seen:?}");
        server.join().expect("no panic");
    }

    /// A server may serve only one connection at a time.
    #[test]
    fn redirect_reuses_connection_to_same_server() {
        let (listener, url) = listening();
        let there = format!("{url}there");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a check");
            let moved =
                format!("HTTP/1.1 302 Found\r\nLocation: {there}\r\nContent-Length: 0\r\n\r\n");
            reply(&mut stream, &moved);
            reply(&mut stream, "HTTP/1.1 204 No Content\r\n\r\n");
        });
        let (life, _lives) = life();
        let seen = by_http(&url, LONG, &life, lookups(0));
        assert_eq!(seen, ProbeResult::Status(204));
        server.join().expect("no panic");
    }

    /// As in Mesos, which checks no certificate of a task.
    #[test]
    fn untrusted_certificate_still_counts() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(Vec::new()).expect("sound");
        let signed = params.self_signed(&key).expect("signed");
        let secret = rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![signed.der().clone()], secret)
            .expect("a certificate and its key");
        let (listener, url) = listening();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a check");
            let mut connection =
                rustls::ServerConnection::new(Arc::new(config)).expect("a connection");
            let mut stream = rustls::Stream::new(&mut connection, &mut stream);
            reply(&mut stream, "HTTP/1.1 503 Service Unavailable\r\n\r\n");
            stream.conn.send_close_notify();
            stream.flush().expect("sent");
        });
        let (life, _lives) = life();
        let url = url.replace("http:", "https:");
        let seen = by_http(&url, LONG, &life, lookups(0));
        assert_eq!(seen, ProbeResult::Status(503));
        server.join().expect("no panic");
    }

    /// Regression: the check blocked its slot for up to its timeout.
    #[test]
    fn silent_http_check_ends_with_task() {
        let (listener, url) = listening();
        let (life, lives) = life();
        let check = std::thread::spawn(move || by_http(&url, LONG, &life, lookups(1)));
        let _connected = listener.accept().expect("a check");
        drop(lives);
        let ended = ProbeResult::NotRun(NoLook::TaskEnded.to_string());
        assert_eq!(check.join().expect("no panic"), ended);
    }

    #[test]
    fn http_check_reports_timeout() {
        let (_listener, url) = listening();
        let (life, _lives) = life();
        let seen = by_http(&url, Duration::from_millis(20), &life, lookups(1));
        assert!(matches!(seen, ProbeResult::NoAnswer(_)), "{seen:?}");
    }

    /// Regression: the number of abandoned lookup threads was not bounded.
    #[test]
    fn name_lookup_needs_a_free_slot() {
        let (listener, url) = listening();
        let server = std::thread::spawn(move || {
            let there = "http://localhost/";
            answer(
                &listener,
                &format!("HTTP/1.1 302 Found\r\nLocation: {there}\r\nContent-Length: 0\r\n\r\n"),
            );
        });
        let (life, _lives) = life();
        let seen = by_http(&url, LONG, &life, lookups(0));
        let crowded = ProbeResult::NotRun(NoLook::TooManyNames.to_string());
        assert_eq!(seen, crowded);
        server.join().expect("no panic");
    }

    /// Regression: ENOMEM at the clone of a thread made the check's thread panic.
    #[test]
    fn address_lookup_needs_no_thread() {
        let config = ureq::Agent::config_builder().build();
        let resolver = TaskResolver {
            names: DefaultResolver::default(),
            life: life().0,
            lookups: lookups(0),
        };
        // A lookup with a thread could not answer in zero time.
        let at_once = NextTimeout {
            after: UreqDuration::Exact(Duration::ZERO),
            ..NextTimeout::default()
        };
        let found = |url: &str| {
            let uri = url.parse().expect("a URL");
            let found = resolver.resolve(&uri, &config, at_once);
            found.map(|found| found.first().copied())
        };
        for (url, address) in [
            ("http://127.0.0.1:81/x", "127.0.0.1:81"),
            ("http://[::1]/", "[::1]:80"),
        ] {
            let address = address.parse().expect("an address");
            assert_eq!(found(url).expect("an address"), Some(address), "{url}");
        }
    }
}
