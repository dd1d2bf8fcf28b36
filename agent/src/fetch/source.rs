//! Where files come from: `http://`, `https://`, `file://` and plain paths.

use std::cell::{OnceCell, RefCell};
use std::fs::File;
use std::io::{Read, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FileType, OFlags};

use super::proxy::Proxies;
use super::{Budget, Cancel, Request, Step, web};
use crate::file_user;
use crate::host_paths::HostPaths;

/// Time for a name to be resolved, and for a connection to stand.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for an answer to begin: its head has a bound, but each byte of it may take almost as long as a stall.
const HEAD_TIMEOUT: Duration = Duration::from_mins(15);
/// Time for a whole file. A server that sends is not cut off; one that sends a byte a minute does not hold a place forever.
const BODY_TIMEOUT: Duration = Duration::from_hours(24);
const REDIRECTS_MAX: u32 = 10;
const CHUNK_BYTES: usize = 64 * 1024;
/// procfs, sysfs, the cgroup trees, debugfs, tracefs, securityfs and the tree of BPF objects, by their
/// numbers in linux/magic.h: wherever they are mounted, what they show is the kernel's.
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

/// Where one container's files come from.
#[derive(Debug)]
pub(super) struct Source {
    host_paths: Arc<HostPaths>,
    cancel: Arc<Cancel>,
    stall: Duration,
    proxies: Proxies,
    /// Made when something needs it; its connections end when the fetch is not wanted any more.
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

    /// Copies what a URI names.
    pub(super) fn copy_to(&self, uri: &str, to: &mut File, budget: &mut Budget) -> Step<()> {
        let scheme = uri.split_once("://").map(|(scheme, _)| scheme);
        match scheme.map(str::to_ascii_lowercase).as_deref() {
            Some("http" | "https") => {
                let answer = self.client()?.get(uri).call();
                let answer = answer.map_err(|error| self.in_words(&error))?;
                if answer.status().as_u16() != 200 {
                    return Err(format!("the server answered {}", answer.status()).into());
                }
                let mut body = answer.into_body().into_reader();
                let spend = |count| budget.spend_copied(count);
                copy_with(&mut body, to, spend, |error| self.of_body(error))
            }
            Some("file") => {
                let path = uri.split_once("://").map_or(uri, |(_, path)| path);
                // A host may stand before the path; it is this one.
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

    /// Copies a file of the machine's, opened with the rights of this thread's user.
    fn copy_file(&self, path: &str, to: &mut File, budget: &mut Budget) -> Step<()> {
        self.cancel.set_local(true);
        let copied = self.copy_local(path, to, budget);
        self.cancel.set_local(false);
        copied
    }

    fn copy_local(&self, path: &str, to: &mut File, budget: &mut Budget) -> Step<()> {
        let failed = |error: std::io::Error| format!("failed to read {path}: {error}");
        // First only to be looked at: opening a device may do something.
        self.check_file(
            &file_user::open(Path::new(path), OFlags::PATH).map_err(failed)?,
            path,
        )?;
        // Not to be held up should it have become a pipe meanwhile.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = file_user::open(Path::new(path), flags).map_err(failed)?;
        // What is read is what was checked, whatever the path leads to by now.
        self.check_file(&opened, path)?;
        copy(&mut File::from(opened), to, budget)
    }

    fn check_file(&self, opened: &OwnedFd, path: &str) -> Step<()> {
        let failed = |error: std::io::Error| format!("failed to read {path}: {error}");
        let stat = rustix::fs::fstat(opened).map_err(|error| failed(error.into()))?;
        let real = file_user::path_of(opened).map_err(failed)?;
        self.host_paths.check_fetch(&real)?;
        let of = rustix::fs::fstatfs(opened).map_err(|error| failed(error.into()))?;
        if KERNEL_FILES.contains(&(of.f_type & 0xffff_ffff)) {
            return Err(format!("{path} shows the kernel and is no file").into());
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(format!("{path} is not a regular file").into());
        }
        Ok(())
    }

    /// A client of its own for each fetch, so that ending one ends no other.
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
            .timeout_recv_body(Some(BODY_TIMEOUT))
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

    fn of_body(&self, error: &std::io::Error) -> String {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        inner.map_or_else(|| error.to_string(), |error| self.in_words(error))
    }
}

/// Copies all of a reader, as far as the budget goes.
pub(super) fn copy(from: &mut impl Read, to: &mut File, budget: &mut Budget) -> Step<()> {
    copy_with(
        from,
        to,
        |count| budget.spend_copied(count),
        ToString::to_string,
    )
}

/// Copies all of a reader that pays for itself out of the same budget.
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
    in_words: impl Fn(&std::io::Error) -> String,
) -> Step<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(format!("failed to read: {}", in_words(&error)).into()),
        };
        spend(count)?;
        let filled = chunk.get(..count).unwrap_or_default();
        to.write_all(filled)
            .map_err(|error| format!("failed to write: {error}"))?;
    }
}
