//! The sources of files: `http://`, `https://`, `file://` and plain paths.

use std::cell::{OnceCell, RefCell};
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, OFlags};

use super::proxy::Proxies;
use super::{Budget, Cancel, Request, Step, web};
use crate::file_user;
use crate::host_paths::HostPaths;

/// Timeout for resolving a name, and for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for the head of an answer: its length is bounded, but each byte may take almost as long as a stall.
const HEAD_TIMEOUT: Duration = Duration::from_mins(15);
/// Timeout for a whole file. It does not cut off a server that sends, but a server that sends a byte a minute cannot
/// hold a permit for ever.
const BODY_TIMEOUT: Duration = Duration::from_hours(24);
const REDIRECTS_MAX: u32 = 10;
const CHUNK_BYTES: usize = 64 * 1024;
/// The numbers of procfs, sysfs, the cgroup trees, debugfs, tracefs, securityfs and the tree of BPF objects in
/// linux/magic.h. Their files are the kernel's, wherever they are mounted.
const KERNEL_FILES: [rustix::fs::FsWord; 8] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xcafe_4a11,
];

/// The source of one container's files.
#[derive(Debug)]
pub(super) struct Source {
    host_paths: Arc<HostPaths>,
    cancel: Arc<Cancel>,
    stall: Duration,
    proxies: Proxies,
    /// Created on demand; its connections end when the fetch is cancelled.
    client: OnceCell<ureq::Agent>,
}

impl Source {
    pub(super) fn new(request: &Request) -> Self {
        Self {
            host_paths: request.host_paths.clone(),
            cancel: request.cancel.clone(),
            stall: request.limits.stall,
            proxies: request.proxies.clone(),
            client: OnceCell::new(),
        }
    }

    /// Copies the file of a URI.
    pub(super) fn copy_to(&self, uri: &str, to: &mut File, budget: &mut Budget) -> Step<()> {
        let scheme = uri.split_once("://").map(|(scheme, _)| scheme);
        match scheme.map(str::to_ascii_lowercase).as_deref() {
            Some("http" | "https") => {
                let answer = self.client()?.get(uri).call();
                let answer = answer.map_err(|error| self.in_words(&error))?;
                if answer.status().as_u16() != 200 {
                    return Err(format!("the server answered {}", answer.status()).into());
                }
                let body = answer.into_body().into_reader();
                let mut body = TimedBody::new(body, Instant::now);
                let spend = |count| budget.spend_copied(count);
                copy_with(&mut body, to, spend, |error| self.of_body(error))
            }
            Some("file") => {
                let path = uri.split_once("://").map_or(uri, |(_, path)| path);
                // The URL may name a host before the path, which is this host.
                let path = path
                    .find('/')
                    .map_or(path, |at| path.get(at..).unwrap_or(path));
                self.copy_file(path, to, budget)
            }
            Some(other) => {
                Err(format!("scheme '{other}' is not supported: give http, https or file").into())
            }
            None if uri.starts_with('/') => self.copy_file(uri, to, budget),
            None => Err("a relative path: give an absolute one".into()),
        }
    }

    /// Copies a local file, opened with the rights of this thread's user.
    fn copy_file(&self, path: &str, to: &mut File, budget: &mut Budget) -> Step<()> {
        self.cancel.set_local(true);
        let copied = self.copy_local(path, to, budget);
        self.cancel.set_local(false);
        copied
    }

    fn copy_local(&self, path: &str, to: &mut File, budget: &mut Budget) -> Step<()> {
        let failed = |error: io::Error| format!("failed to read {path}: {error}");
        // First opened only for inspection: opening a device may have effects.
        self.check_file(
            &file_user::open(Path::new(path), OFlags::PATH).map_err(failed)?,
            path,
        )?;
        // Does not block if it has become a pipe meanwhile.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = file_user::open(Path::new(path), flags).map_err(failed)?;
        // Checks the opened file again, since the path may lead elsewhere by now.
        self.check_file(&opened, path)?;
        copy(&mut File::from(opened), to, budget)
    }

    fn check_file(&self, opened: &OwnedFd, path: &str) -> Step<()> {
        let failed = |error: io::Error| format!("failed to read {path}: {error}");
        let stat = rustix::fs::fstat(opened).map_err(|error| failed(error.into()))?;
        let real = file_user::path_of(opened).map_err(failed)?;
        self.host_paths.check_fetch(&real)?;
        let of = rustix::fs::fstatfs(opened).map_err(|error| failed(error.into()))?;
        if KERNEL_FILES.contains(&(of.f_type & 0xffff_ffff)) {
            return Err(format!("{path} is a kernel interface, not a file").into());
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(format!("{path} is not a regular file").into());
        }
        Ok(())
    }

    /// Each fetch has its own client, so that ending one fetch ends no other.
    fn client(&self) -> Step<&ureq::Agent> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let tls = ureq::tls::TlsConfig::builder()
            .root_certs(ureq::tls::RootCerts::PlatformVerifier)
            .build();
        let config = ureq::Agent::config_builder()
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT.min(self.stall)))
            .timeout_recv_response(Some(HEAD_TIMEOUT))
            .timeout_per_read(Some(self.stall))
            .timeout_per_write(Some(self.stall))
            .max_redirects(REDIRECTS_MAX)
            .max_idle_connections(0)
            .http_status_as_error(false)
            .tls_config(tls)
            .proxy(None)
            .build();
        let life = self.cancel.life()?;
        Ok(self
            .client
            .get_or_init(|| web::client(config, life, &self.proxies)))
    }

    fn in_words(&self, error: &ureq::Error) -> String {
        match error {
            ureq::Error::Timeout(ureq::Timeout::PerRead | ureq::Timeout::PerWrite) => format!(
                "the server sent nothing for {:?} (--fetcher_stall_timeout)",
                self.stall
            ),
            other => other.to_string(),
        }
    }

    fn of_body(&self, error: &io::Error) -> String {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        inner.map_or_else(|| error.to_string(), |error| self.in_words(error))
    }
}

/// The body of an answer, which ends with an error once it has been read for [`BODY_TIMEOUT`].
struct TimedBody<R, C> {
    body: R,
    /// Returns the current time.
    clock: C,
    deadline: Instant,
}

impl<R, C: Fn() -> Instant> TimedBody<R, C> {
    fn new(body: R, clock: C) -> Self {
        let deadline = clock() + BODY_TIMEOUT;
        Self {
            body,
            clock,
            deadline,
        }
    }
}

impl<R: Read, C: Fn() -> Instant> Read for TimedBody<R, C> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.body.read(buffer)?;
        if count > 0 && (self.clock)() > self.deadline {
            let hours = BODY_TIMEOUT.as_secs() / 3600;
            let error = format!("the server needs more than {hours} hours for the file");
            return Err(io::Error::other(error));
        }
        Ok(count)
    }
}

/// Copies all bytes of a reader, within the budget.
pub(super) fn copy(from: &mut impl Read, to: &mut File, budget: &mut Budget) -> Step<()> {
    copy_with(
        from,
        to,
        |count| budget.spend_copied(count),
        ToString::to_string,
    )
}

/// Copies all bytes of a reader that charges itself to the same budget.
pub(super) fn copy_paid(
    from: &mut impl Read,
    to: &mut File,
    budget: &RefCell<&mut Budget>,
) -> Step<()> {
    let spend = |count| budget.borrow_mut().spend_disk(count);
    copy_with(from, to, spend, ToString::to_string)
}

fn copy_with(
    from: &mut impl Read,
    to: &mut File,
    mut spend: impl FnMut(usize) -> Step<()>,
    in_words: impl Fn(&io::Error) -> String,
) -> Step<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(format!("failed to read: {}", in_words(&error)).into()),
        };
        spend(count)?;
        let filled = chunk.get(..count).unwrap_or_default();
        to.write_all(filled)
            .map_err(|error| format!("failed to write: {error}"))?;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A server that sends one byte a minute, for so long.
    struct Slow<'a> {
        now: &'a Cell<Instant>,
        left: Duration,
    }

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            const PAUSE: Duration = Duration::from_mins(1);
            if self.left.is_zero() {
                return Ok(0);
            }
            self.left = self.left.saturating_sub(PAUSE);
            self.now.set(self.now.get() + PAUSE);
            buffer.first_mut().expect("room").clone_from(&b'x');
            Ok(1)
        }
    }

    /// The number of bytes that such a server sends until its body ends.
    fn read_for(time: Duration) -> io::Result<u64> {
        let now = Cell::new(Instant::now());
        let slow = Slow {
            now: &now,
            left: time,
        };
        let mut body = TimedBody::new(slow, || now.get());
        io::copy(&mut body, &mut io::sink())
    }

    /// A file of 100 GB ended after 15 minutes, in the middle.
    #[test]
    fn slow_body_is_read_completely() {
        for hours in [1, 23] {
            let read = read_for(Duration::from_hours(hours));
            assert_eq!(read.expect("read"), hours * 60);
        }
        let error = read_for(Duration::from_hours(25)).expect_err("too long");
        let text = "the server needs more than 24 hours for the file";
        assert_eq!(error.to_string(), text);
    }
}
