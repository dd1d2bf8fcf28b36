//! The work directory of a daemon that keeps secrets: created, restricted and written so that only its own user reads it.
//!
//! Invariant: files are 0600 and the directory is 0700 under any umask and with any earlier modes; a directory with foreign
//! files keeps its mode.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_resources::HostPort;

const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const ENDPOINT: &str = "endpoint";
/// The temporary name of an incomplete endpoint file.
const FRESH_ENDPOINT: &str = ".endpoint.tmp";
const PROBE: &str = ".probe";

/// The files that each daemon keeps here, besides its own.
const COMMON: [&str; 3] = [ENDPOINT, FRESH_ENDPOINT, PROBE];

/// Creates the directory, or restricts the existing one, and checks that it is writable. `own` are the names of the files
/// that the daemon keeps in it.
///
/// # Errors
///
/// The directory cannot be created or written.
pub fn prepare(path: &Path, own: &[&str]) -> io::Result<()> {
    match DirBuilder::new()
        .recursive(false)
        .mode(DIR_MODE)
        .create(path)
    {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            DirBuilder::new().mode(DIR_MODE).create(path)?;
        }
        Err(_) if path.is_dir() => {}
        Err(error) => return Err(error),
    }
    tighten(path, own)?;
    let probe = path.join(PROBE);
    create_file(&probe)?;
    std::fs::remove_file(&probe)
}

/// Restricts a directory to its owner, unless other programs use it, as they do `/tmp` or `/var/lib`.
fn tighten(path: &Path, own: &[&str]) -> io::Result<()> {
    let mode = std::fs::metadata(path)?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let name = entry?.file_name();
        if !own.iter().chain(&COMMON).any(|known| name == **known) {
            tracing::warn!(
                path = %path.display(),
                mode = format!("{:04o}", mode & 0o7777),
                "other users can read the work directory, and it holds other files too: give the \
                 daemon a separate directory with --work_dir"
            );
            return Ok(());
        }
    }
    match std::fs::set_permissions(path, Permissions::from_mode(DIR_MODE)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            tracing::warn!(
                path = %path.display(),
                "other users can read the work directory; run `chmod 700` as its owner"
            );
            Ok(())
        }
        tightened => tightened,
    }
}

/// Opens a file of the daemon, created if missing, readable by its owner only from now on.
///
/// # Errors
///
/// The file cannot be opened, or its mode cannot be changed.
pub fn create_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(FILE_MODE)
        .open(path)?;
    if file.metadata()?.permissions().mode() & 0o7777 != FILE_MODE {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(file)
}

/// Replaces a file with a small text, or a few bytes: after a crash the file has its old or its new contents, complete.
///
/// # Errors
///
/// The file cannot be written.
pub fn replace_file(path: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".tmp");
    let mut file = create_file(fresh.as_ref())?;
    file.set_len(0)?;
    file.write_all(contents.as_ref())?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// Returns the address at which a local program reaches a daemon with a listen address: loopback if the daemon listens on
/// all addresses.
#[must_use]
pub fn local_address(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip().to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Writes the daemon's address into the work directory, as `http://10.0.0.1:5050`; the file is complete or absent.
///
/// # Errors
///
/// The file cannot be written.
pub fn write_endpoint(work_dir: &Path, scheme: &str, address: SocketAddr) -> io::Result<()> {
    let fresh = work_dir.join(FRESH_ENDPOINT);
    let mut file = create_file(&fresh)?;
    file.set_len(0)?;
    let address = HostPort::from(local_address(address));
    writeln!(file, "{}", address.url(scheme, ""))?;
    std::fs::rename(&fresh, work_dir.join(ENDPOINT))
}

/// The time that the end of a daemon waits for the removal of a file.
const REMOVAL_WAIT: Duration = Duration::from_secs(1);

/// Removes the file of [`write_endpoint`]: the daemon no longer listens. Does not wait for a disk without an answer: the
/// next start replaces the file.
pub fn remove_endpoint(work_dir: &Path) {
    remove_in_time(work_dir.join(ENDPOINT));
}

/// Removes a file, waiting at most a second for its disk. Blocking.
pub fn remove_in_time(path: PathBuf) {
    let (tell, removed) = std::sync::mpsc::sync_channel(1);
    let removing = std::thread::Builder::new().spawn(move || {
        let _ = tell.send(std::fs::remove_file(path));
    });
    if removing.is_ok() {
        let _ = removed.recv_timeout(REMOVAL_WAIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: [&str; 1] = ["registry.redb"];

    fn mode(path: &Path) -> u32 {
        let metadata = std::fs::metadata(path).expect("metadata");
        metadata.permissions().mode() & 0o7777
    }

    fn loosen(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
    }

    #[test]
    fn new_directory_is_private() {
        let dir = tempfile::tempdir().expect("a folder");
        let work_dir = dir.path().join("a/b");
        prepare(&work_dir, &OWN).expect("prepared");
        assert_eq!(mode(&work_dir), 0o700);
        let address = "127.0.0.1:5050".parse().expect("an address");
        write_endpoint(&work_dir, "http", address).expect("written");
        let endpoint = work_dir.join("endpoint");
        assert_eq!(mode(&endpoint), 0o600);
        let text = std::fs::read_to_string(&endpoint).expect("text");
        assert_eq!(text, "http://127.0.0.1:5050\n");
        let entries = std::fs::read_dir(&work_dir).expect("a folder").count();
        assert_eq!(entries, 1, "the probe is gone");
    }

    #[test]
    fn open_directory_is_closed_at_start() {
        let dir = tempfile::tempdir().expect("a folder");
        for name in ["registry.redb", "endpoint"] {
            std::fs::write(dir.path().join(name), "").expect("written");
            loosen(&dir.path().join(name), 0o644);
        }
        loosen(dir.path(), 0o755);
        prepare(dir.path(), &OWN).expect("prepared");
        assert_eq!(mode(dir.path()), 0o700);
        create_file(&dir.path().join("registry.redb")).expect("opened");
        assert_eq!(mode(&dir.path().join("registry.redb")), 0o600);
    }

    #[test]
    fn file_is_replaced_atomically() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("registry.id");
        for text in ["a longer text\n", "short\n"] {
            replace_file(&path, text).expect("written");
            assert_eq!(std::fs::read_to_string(&path).expect("text"), text);
            assert_eq!(mode(&path), 0o600);
        }
        let entries = std::fs::read_dir(dir.path()).expect("a folder").count();
        assert_eq!(entries, 1, "nothing is left over");
    }

    #[test]
    fn foreign_directory_is_left_unchanged() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("somebody's"), "").expect("written");
        loosen(dir.path(), 0o1777);
        prepare(dir.path(), &OWN).expect("prepared");
        assert_eq!(mode(dir.path()), 0o1777);
    }
}
