//! The owner of the other end of a local connection, as the kernel knows it.
//!
//! Entered through [`SocketOwner::find`], which queries the kernel's socket diagnostics for the one socket that is
//! connected to ours. Without netlink it reads the tables of procfs, which contain no cgroups. Invariants: the owner is
//! reported only while its end of the connection is open, whether or not that end has sent its last byte, so the report
//! concerns the sender of the bytes that we read: while our end is open the kernel connects no other socket to it. In a
//! user namespace that does not map all users, the unmapped users are indistinguishable, so nothing is reported for them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// The owner of a socket, as the kernel reports it.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct SocketOwner {
    /// The user that opened the socket.
    pub uid: u32,
    pub inode: u32,
    /// The cgroup of version 2 in which the socket was opened, whoever has it now.
    pub cgroup: Option<u64>,
}

/// The states `TCP_ESTABLISHED`, and `TCP_FIN_WAIT1` and `TCP_FIN_WAIT2` of an end that sends no more and still reads; a
/// closed socket is in these, too, without an inode.
const CONNECTED: [u8; 3] = [1, 4, 5];

impl SocketOwner {
    /// Finds the owner of the socket that is bound to `peer` and connected to `local`, if it is on this machine.
    #[must_use]
    pub fn find(peer: SocketAddr, local: SocketAddr) -> Option<Self> {
        let (peer, local) = (canonical(peer), canonical(local));
        let found = diagnosed(peer, local).unwrap_or_else(|error| {
            tracing::debug!(%error, "socket diagnostics are unavailable; reading procfs instead");
            listed(peer, local)
        });
        found.filter(|owner| known_users().know(owner.uid))
    }

    /// Returns the owner for addresses that can be local, without the slow search in the tables of procfs.
    pub(super) fn find_local(peer: SocketAddr, local: SocketAddr) -> Option<Self> {
        let (peer, local) = (canonical(peer), canonical(local));
        let is_here = peer.ip().is_loopback() || peer.ip() == local.ip();
        let found = is_here.then(|| diagnosed(peer, local));
        let found = found.and_then(Result::ok).flatten();
        found.filter(|owner| known_users().know(owner.uid))
    }
}

/// The users that this process can distinguish.
#[derive(Clone, Copy, Debug)]
struct KnownUsers {
    /// The id that the kernel reports for all users unmapped in this process's namespace; `None` if all users are mapped.
    unmapped: Option<u32>,
}

impl KnownUsers {
    /// Parses `uid_map` and `overflowuid` of procfs, see user_namespaces(7).
    fn from_uid_map(uid_map: &str, overflow: &str) -> Self {
        const ALL: u64 = u32::MAX as u64;
        let lengths = uid_map
            .lines()
            .filter_map(|line| line.split_ascii_whitespace().nth(2)?.parse::<u64>().ok());
        let knows_all = lengths.sum::<u64>() >= ALL;
        Self {
            unmapped: overflow.trim().parse().ok().filter(|_| !knows_all),
        }
    }

    fn know(self, uid: u32) -> bool {
        self.unmapped != Some(uid)
    }
}

fn known_users() -> KnownUsers {
    static KNOWN: OnceLock<KnownUsers> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        KnownUsers::from_uid_map(
            &read("/proc/self/uid_map"),
            &read("/proc/sys/kernel/overflowuid"),
        )
    })
}

/// Converts IPv4 in the form of IPv6 to plain IPv4: both are the same connection.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

mod request {
    pub(super) const LENGTH: usize = 16 + 56;
    pub(super) const SOCK_DIAG_BY_FAMILY: u16 = 20;
    pub(super) const NLM_F_REQUEST: u16 = 1;
    pub(super) const IPPROTO_TCP: u8 = 6;
    pub(super) const AF_INET: u8 = 2;
    pub(super) const AF_INET6: u8 = 10;
}

/// Returns `struct nlmsghdr` and `struct inet_diag_req_v2`, for one socket.
fn asked(peer: SocketAddr, local: SocketAddr) -> Vec<u8> {
    use request::{AF_INET, AF_INET6, IPPROTO_TCP, LENGTH, NLM_F_REQUEST, SOCK_DIAG_BY_FAMILY};
    let mut bytes = Vec::with_capacity(LENGTH);
    bytes.extend(u32::try_from(LENGTH).unwrap_or(u32::MAX).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    // Sequence and sender are zero: this socket has no other user.
    bytes.extend([0; 8]);
    let family = if peer.is_ipv4() { AF_INET } else { AF_INET6 };
    bytes.extend([family, IPPROTO_TCP, 0, 0]);
    // The mask permits any state.
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(peer.port().to_be_bytes());
    bytes.extend(local.port().to_be_bytes());
    for address in [peer.ip(), local.ip()] {
        let mut padded = [0; 16];
        match address {
            IpAddr::V4(ip) => padded
                .iter_mut()
                .zip(ip.octets())
                .for_each(|(to, byte)| *to = byte),
            IpAddr::V6(ip) => padded = ip.octets(),
        }
        bytes.extend(padded);
    }
    // Any interface, any cookie.
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend([0xff; 8]);
    bytes
}

fn diagnosed(peer: SocketAddr, local: SocketAddr) -> io::Result<Option<SocketOwner>> {
    if peer.is_ipv4() != local.is_ipv4() {
        return Ok(None);
    }
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    rustix::net::send(&socket, &asked(peer, local), SendFlags::empty())?;
    let mut answer = [0_u8; 4096];
    // The kernel responds before `send` returns.
    let (length, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    parse(answer.get(..length).unwrap_or_default())
}

/// Reads `struct nlmsghdr` with `struct inet_diag_msg` and its attributes, or `struct nlmsgerr`.
fn parse(message: &[u8]) -> io::Result<Option<SocketOwner>> {
    const ERROR: u16 = 2;
    const HEADER: usize = 16;
    const STATE: usize = HEADER + 1;
    const UID: usize = HEADER + 64;
    const INODE: usize = HEADER + 68;
    const ATTRIBUTES: usize = HEADER + 72;
    let short = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let word = |at: usize| -> Option<[u8; 4]> { message.get(at..at + 4)?.try_into().ok() };
    let kind: [u8; 2] = message
        .get(4..6)
        .and_then(|kind| kind.try_into().ok())
        .ok_or_else(short)?;
    if u16::from_ne_bytes(kind) == ERROR {
        let code = i32::from_ne_bytes(word(HEADER).ok_or_else(short)?);
        let error = Errno::from_raw_os_error(code.saturating_neg());
        // There is no such socket: the other end is on another machine, or gone.
        return if error == Errno::NOENT {
            Ok(None)
        } else {
            Err(error.into())
        };
    }
    let state = *message.get(STATE).ok_or_else(short)?;
    let owner = SocketOwner {
        uid: u32::from_ne_bytes(word(UID).ok_or_else(short)?),
        inode: u32::from_ne_bytes(word(INODE).ok_or_else(short)?),
        cgroup: cgroup_in(message.get(ATTRIBUTES..).unwrap_or_default()),
    };
    // A socket without an inode no longer has an owner.
    Ok((CONNECTED.contains(&state) && owner.inode != 0).then_some(owner))
}

/// The value of `INET_DIAG_CGROUP_ID`, since Linux 5.8.
fn cgroup_in(mut attributes: &[u8]) -> Option<u64> {
    const CGROUP_ID: u16 = 21;
    loop {
        let (header, rest) = attributes.split_first_chunk::<4>()?;
        let [length_low, length_high, kind_low, kind_high] = *header;
        let length = usize::from(u16::from_ne_bytes([length_low, length_high])).checked_sub(4)?;
        let value = rest.get(..length)?;
        if u16::from_ne_bytes([kind_low, kind_high]) == CGROUP_ID {
            return value.try_into().ok().map(u64::from_ne_bytes);
        }
        attributes = rest.get(length.next_multiple_of(4)..)?;
    }
}

/// Searches `/proc/net/tcp` and `/proc/net/tcp6` for the connection.
fn listed(peer: SocketAddr, local: SocketAddr) -> Option<SocketOwner> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    tables.into_iter().find_map(|table| {
        let text = std::fs::read_to_string(table).ok()?;
        text.lines().find_map(|line| row(line, peer, local))
    })
}

fn row(line: &str, peer: SocketAddr, local: SocketAddr) -> Option<SocketOwner> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let is = |at: usize, address: SocketAddr| {
        let told = fields.get(at).copied().and_then(address_of);
        told.map(canonical) == Some(address)
    };
    let state = u8::from_str_radix(fields.get(3)?, 16).ok()?;
    if !is(1, peer) || !is(2, local) || !CONNECTED.contains(&state) {
        return None;
    }
    Some(SocketOwner {
        uid: fields.get(7)?.parse().ok()?,
        inode: fields
            .get(9)?
            .parse()
            .ok()
            .filter(|inode: &u32| *inode != 0)?,
        cgroup: None,
    })
}

/// Parses an address such as `0100007F:1F90`: words in the machine's byte order, and a port.
fn address_of(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| -> Option<[u8; 4]> {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let mut octets = [0; 16];
            for (part, at) in octets.chunks_exact_mut(4).zip([0, 8, 16, 24]) {
                part.copy_from_slice(&word(at)?);
            }
            IpAddr::from(octets)
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;

    use super::*;

    fn connected(address: &str) -> Option<(TcpStream, TcpStream)> {
        // A machine may lack IPv6.
        let listener = TcpListener::bind(address).ok()?;
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        Some((ours, theirs))
    }

    #[test]
    fn user_outside_namespace_is_nobody() {
        let whole = KnownUsers::from_uid_map("         0          0 4294967295\n", "65534\n");
        assert!(whole.know(1_000) && whole.know(65_534));
        let map = "         0          0          1\n       990        990          1\n";
        let part = KnownUsers::from_uid_map(map, "65534\n");
        assert!(part.know(0) && part.know(990) && !part.know(65_534));
    }

    fn inode_of(stream: &TcpStream) -> u32 {
        let path = format!("/proc/self/fd/{}", stream.as_raw_fd());
        let link = std::fs::read_link(path).unwrap();
        let text = link.to_str().unwrap();
        let text = text.trim_start_matches("socket:[").trim_end_matches(']');
        text.parse().unwrap()
    }

    #[test]
    fn kernel_names_owner_of_peer() {
        let uid = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            let Some((ours, accepted)) = connected(address) else {
                continue;
            };
            let peer = accepted.peer_addr().unwrap();
            let local = accepted.local_addr().unwrap();
            let inode = inode_of(&ours);
            let asked = diagnosed(canonical(peer), canonical(local));
            let found = asked.unwrap().expect("a socket");
            assert_eq!((found.uid, found.inode), (uid, inode), "{address}");
            let read = listed(canonical(peer), canonical(local)).expect("a row");
            assert_eq!((read.uid, read.inode), (uid, inode), "{address}");
            assert_eq!(
                SocketOwner::find(peer, local).map(|owner| owner.inode),
                Some(inode)
            );
            let found_local = SocketOwner::find_local(peer, local);
            assert_eq!(found_local.map(|owner| owner.inode), Some(inode));
            // The client sends no more, but still reads.
            ours.shutdown(Shutdown::Write).unwrap();
            for found in [
                diagnosed(canonical(peer), canonical(local)).unwrap(),
                listed(canonical(peer), canonical(local)),
            ] {
                let found = found.expect("an end that is held");
                assert_eq!((found.uid, found.inode), (uid, inode), "{address}");
            }
            drop(ours);
            assert_eq!(SocketOwner::find(peer, local), None, "it is gone");
            assert_eq!(listed(canonical(peer), canonical(local)), None);
        }
    }

    #[test]
    fn listener_is_not_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let nobody = "127.0.0.1:1".parse().unwrap();
        assert_eq!(SocketOwner::find(address, nobody), None);
    }

    #[test]
    fn invalid_kernel_answers_name_no_owner() {
        assert!(parse(&[]).is_err());
        assert!(parse(&[0; 20]).is_err());
        let mut denied = vec![36, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        denied.extend((-1_i32).to_ne_bytes());
        assert!(parse(&denied).is_err());
        let mut whole = vec![0; 16 + 72];
        for state in 0..=u8::MAX {
            whole[17] = state;
            whole[16 + 68] = 0;
            assert_eq!(parse(&whole).unwrap(), None, "no inode");
            whole[16 + 68] = 7;
            let is_told = parse(&whole).unwrap().is_some();
            assert_eq!(is_told, matches!(state, 1 | 4 | 5), "{state}");
        }
        whole[17] = 1;
        assert_eq!(parse(&whole).unwrap().unwrap().cgroup, None);
        // The attributes claim a length beyond the message, and no length.
        for length in [200_u16, 0] {
            let mut odd = whole.clone();
            odd.extend(length.to_ne_bytes());
            odd.extend([21, 0, 1, 2]);
            assert_eq!(parse(&odd).unwrap().unwrap().cgroup, None);
        }
        assert_eq!(address_of("0100007F"), None);
        assert_eq!(address_of("0100007F:zz"), None);
        assert_eq!(address_of("01:1F90"), None);
    }
}
