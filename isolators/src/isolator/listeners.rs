//! The listening TCP sockets of the host's network, read once for all containers.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use procfs::net::TcpState;
use procfs::process::Process;

/// The listening TCP sockets of the host's network at one moment, read at the first use. A value serves one pass over all
/// containers: their table has every connection of the machine, so the tasks together decide the cost of reading it for each
/// container. The next pass finds later listeners.
#[derive(Debug, Default)]
pub struct Listeners(OnceLock<HashMap<u64, u16>>);

impl Listeners {
    /// The ports by the inodes of their sockets.
    pub(super) fn read(&self, proc: &Path) -> io::Result<&HashMap<u64, u16>> {
        match self.0.get() {
            Some(ports) => Ok(ports),
            None => {
                let ports = read(proc)?;
                Ok(self.0.get_or_init(|| ports))
            }
        }
    }
}

/// Ports of the listening TCP sockets of our own network, by inode.
fn read(proc: &Path) -> io::Result<HashMap<u64, u16>> {
    let ourselves = Process::new_with_root(proc.join("self")).map_err(io::Error::other)?;
    let mut sockets = HashMap::new();
    let four = ourselves.tcp().map_err(io::Error::other)?;
    // A machine without IPv6 has no such file.
    let six = ourselves.tcp6().unwrap_or_default();
    for entry in four.into_iter().chain(six) {
        if entry.state == TcpState::Listen {
            sockets.insert(entry.inode, entry.local_address.port());
        }
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the tens of thousands of connections of one tenant were read again for each container.
    #[test]
    fn connection_table_is_read_once() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let proc = dir.path();
        std::fs::create_dir_all(proc.join("1/net")).expect("made");
        std::os::unix::fs::symlink("1", proc.join("self")).expect("linked");
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
             0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1 0 100 0 0 10 0\n   \
             1: 0100007F:1F91 0100007F:0050 06 00000000:00000000 00:00000000 00000000     0        0 78 1 0 100 0 0 10 0\n";
        let expected = HashMap::from([(77, 8080)]);
        let listeners = Listeners::default();
        listeners.read(proc).expect_err("there is no table yet");
        std::fs::write(proc.join("1/net/tcp"), table).expect("written");
        assert_eq!(listeners.read(proc).expect("read"), &expected);
        std::fs::remove_file(proc.join("1/net/tcp")).expect("removed");
        assert_eq!(listeners.read(proc).expect("known"), &expected);
    }

    #[test]
    fn own_listener_is_found_by_inode() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = socket.local_addr().expect("bound").port();
        let found = read(Path::new("/proc")).expect("read");
        assert!(found.values().any(|one| *one == port));
    }
}
