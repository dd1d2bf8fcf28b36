//! Where files come from: `http://`, `https://`, `file://` and plain paths.

use std::fs::File;
use std::io::{Read, Write as _};
use std::sync::OnceLock;
use std::time::Duration;

use super::{Budget, Step};

/// Time for a connection to stand.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for an answer to begin.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for a whole file.
const BODY_TIMEOUT: Duration = Duration::from_secs(15 * 60);
const REDIRECTS_MAX: u32 = 10;
const CHUNK_BYTES: usize = 64 * 1024;

/// Copies what a URI names.
pub(super) fn copy_to(uri: &str, to: &mut File, budget: &mut Budget) -> Step<()> {
    let scheme = uri.split_once("://").map(|(scheme, _)| scheme);
    match scheme.map(str::to_ascii_lowercase).as_deref() {
        Some("http" | "https") => {
            let answer = agent().get(uri).call().map_err(|error| error.to_string())?;
            if answer.status().as_u16() != 200 {
                return Err(format!("the server answered {}", answer.status()));
            }
            copy(&mut answer.into_body().into_reader(), to, budget)
        }
        Some("file") => {
            let path = uri.split_once("://").map_or(uri, |(_, path)| path);
            // A host may stand before the path; it is this one.
            let path = path
                .find('/')
                .map_or(path, |at| path.get(at..).unwrap_or(path));
            copy_file(path, to, budget)
        }
        Some(other) => Err(format!(
            "scheme '{other}' is not supported: give http, https or file"
        )),
        None if uri.starts_with('/') => copy_file(uri, to, budget),
        None => Err("a relative path: give an absolute one".to_owned()),
    }
}

fn copy_file(path: &str, to: &mut File, budget: &mut Budget) -> Step<()> {
    let failed = |error: std::io::Error| format!("failed to read {path}: {error}");
    let stat = std::fs::metadata(path).map_err(failed)?;
    if !stat.is_file() {
        return Err(format!("{path} is not a regular file"));
    }
    // Not to be held up should it have become a pipe meanwhile.
    let flags = rustix::fs::OFlags::RDONLY
        | rustix::fs::OFlags::NONBLOCK
        | rustix::fs::OFlags::NOCTTY
        | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty());
    let mut file = File::from(file.map_err(|error| failed(error.into()))?);
    copy(&mut file, to, budget)
}

/// Copies all of a reader, as far as the budget goes.
pub(super) fn copy(from: &mut impl Read, to: &mut File, budget: &mut Budget) -> Step<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(format!("failed to read: {error}")),
        };
        budget.spend(count)?;
        let filled = chunk.get(..count).unwrap_or_default();
        to.write_all(filled)
            .map_err(|error| format!("failed to write: {error}"))?;
    }
}

/// One client for all fetches, made when the first one needs it.
fn agent() -> &'static ureq::Agent {
    static AGENT: OnceLock<ureq::Agent> = OnceLock::new();
    AGENT.get_or_init(|| {
        let tls = ureq::tls::TlsConfig::builder()
            .root_certs(ureq::tls::RootCerts::PlatformVerifier)
            .build();
        ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(ANSWER_TIMEOUT))
            .timeout_recv_body(Some(BODY_TIMEOUT))
            .max_redirects(REDIRECTS_MAX)
            .max_idle_connections(0)
            .http_status_as_error(false)
            .tls_config(tls)
            .build()
            .into()
    })
}
