//! The system calls for fault injection: their names, their files, and their possible errors.

use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;

/// The effect of a call, as far as faults are concerned.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub enum Effect {
    /// Changes state outside of the process.
    Changes,
    /// Reads state without a change.
    Looks,
    /// Makes a descriptor of something that is no file.
    Opens,
    /// Starts a process or a thread.
    Forks,
    /// Sends a signal to a process.
    Signals,
}

/// The position of a call's file among its arguments.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Operand {
    /// The descriptor of an open file, as an argument.
    Descriptor(usize),
    /// A path without a folder.
    Path(usize),
    /// A path below an open folder.
    Below(usize, usize),
    /// The number of a signal.
    Signal(usize),
    /// The arguments do not distinguish the call.
    Nothing,
}

/// The least length of a hexadecimal id: shorter words of these characters may be names.
const HEXADECIMAL_MIN: usize = 5;

/// A system call that the filter intercepts.
#[derive(Copy, Clone, Debug)]
pub struct Call {
    pub number: i64,
    pub name: &'static str,
    pub effect: Effect,
    pub operand: Operand,
}

const fn call(number: i64, name: &'static str, effect: Effect, operand: Operand) -> Call {
    Call {
        number,
        name,
        effect,
        operand,
    }
}

use Effect::{Changes, Forks, Looks, Opens, Signals};
use Operand::{Below, Descriptor, Nothing, Signal};

/// Calls that every machine has. An `openat` that creates or truncates its file nevertheless counts as a change.
const EVERYWHERE: &[Call] = &[
    call(libc::SYS_openat, "openat", Looks, Below(0, 1)),
    call(libc::SYS_openat2, "openat2", Looks, Below(0, 1)),
    call(libc::SYS_read, "read", Looks, Descriptor(0)),
    call(libc::SYS_pread64, "pread64", Looks, Descriptor(0)),
    call(libc::SYS_getdents64, "getdents64", Looks, Descriptor(0)),
    call(libc::SYS_write, "write", Changes, Descriptor(0)),
    call(libc::SYS_pwrite64, "pwrite64", Changes, Descriptor(0)),
    call(libc::SYS_writev, "writev", Changes, Descriptor(0)),
    call(libc::SYS_pwritev2, "pwritev2", Changes, Descriptor(0)),
    call(libc::SYS_fsync, "fsync", Changes, Descriptor(0)),
    call(libc::SYS_fdatasync, "fdatasync", Changes, Descriptor(0)),
    call(libc::SYS_ftruncate, "ftruncate", Changes, Descriptor(0)),
    call(libc::SYS_fallocate, "fallocate", Changes, Descriptor(0)),
    call(libc::SYS_fchmod, "fchmod", Changes, Descriptor(0)),
    call(libc::SYS_fchown, "fchown", Changes, Descriptor(0)),
    call(libc::SYS_fchmodat, "fchmodat", Changes, Below(0, 1)),
    call(libc::SYS_fchownat, "fchownat", Changes, Below(0, 1)),
    call(libc::SYS_mkdirat, "mkdirat", Changes, Below(0, 1)),
    call(libc::SYS_unlinkat, "unlinkat", Changes, Below(0, 1)),
    call(libc::SYS_symlinkat, "symlinkat", Changes, Below(1, 2)),
    call(libc::SYS_linkat, "linkat", Changes, Below(2, 3)),
    call(libc::SYS_renameat, "renameat", Changes, Below(2, 3)),
    call(libc::SYS_renameat2, "renameat2", Changes, Below(2, 3)),
    call(libc::SYS_mount, "mount", Changes, Operand::Path(1)),
    call(libc::SYS_umount2, "umount2", Changes, Operand::Path(0)),
    call(libc::SYS_kill, "kill", Signals, Signal(1)),
    call(
        libc::SYS_pidfd_send_signal,
        "pidfd_send_signal",
        Signals,
        Signal(1),
    ),
    call(libc::SYS_clone, "clone", Forks, Nothing),
    call(libc::SYS_clone3, "clone3", Forks, Nothing),
    call(libc::SYS_pidfd_open, "pidfd_open", Opens, Nothing),
    call(libc::SYS_pipe2, "pipe2", Opens, Nothing),
    call(libc::SYS_socket, "socket", Opens, Nothing),
    call(libc::SYS_socketpair, "socketpair", Opens, Nothing),
    call(libc::SYS_memfd_create, "memfd_create", Opens, Nothing),
    call(libc::SYS_eventfd2, "eventfd2", Opens, Nothing),
];

/// System calls that only older machines have.
#[cfg(target_arch = "x86_64")]
const LEGACY: &[Call] = &[
    call(libc::SYS_open, "open", Looks, Operand::Path(0)),
    call(libc::SYS_mkdir, "mkdir", Changes, Operand::Path(0)),
    call(libc::SYS_rmdir, "rmdir", Changes, Operand::Path(0)),
    call(libc::SYS_unlink, "unlink", Changes, Operand::Path(0)),
    call(libc::SYS_rename, "rename", Changes, Operand::Path(1)),
    call(libc::SYS_symlink, "symlink", Changes, Operand::Path(1)),
    call(libc::SYS_link, "link", Changes, Operand::Path(1)),
    call(libc::SYS_chmod, "chmod", Changes, Operand::Path(0)),
    call(libc::SYS_chown, "chown", Changes, Operand::Path(0)),
    call(libc::SYS_lchown, "lchown", Changes, Operand::Path(0)),
    call(libc::SYS_truncate, "truncate", Changes, Operand::Path(0)),
    call(libc::SYS_vfork, "vfork", Forks, Nothing),
    call(libc::SYS_fork, "fork", Forks, Nothing),
];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY: &[Call] = &[];

/// Returns all examined calls.
pub fn all() -> impl Iterator<Item = &'static Call> {
    EVERYWHERE.iter().chain(LEGACY)
}

/// Whether these flags of an `open` create or empty a file.
pub fn makes(flags: u64) -> bool {
    let making = libc::O_CREAT | libc::O_TRUNC;
    flags & u64::from(making.unsigned_abs()) != 0
}

/// Whether a call with this effect can fail with this error, even if only on a damaged machine.
pub fn may_fail(effect: Effect, name: &str, errno: Errno) -> bool {
    let is_open = name.starts_with("open");
    match (effect, errno) {
        (Effect::Changes, Errno::ENOSPC) => !matches!(name, "unlinkat" | "unlink" | "rmdir"),
        (Effect::Changes, Errno::EMFILE) | (Effect::Looks, Errno::EMFILE) => is_open,
        (Effect::Changes, _) | (Effect::Looks, Errno::EIO) => true,
        (Effect::Looks, Errno::ENOMEM) => true,
        (Effect::Opens, Errno::EMFILE | Errno::ENOMEM) => true,
        (Effect::Forks, Errno::ENOMEM) => true,
        (Effect::Looks | Effect::Opens | Effect::Forks | Effect::Signals, _) => false,
    }
}

/// Returns the kind of a file: its path with the work directory as `WORK`, ids as `ID` and numbers as `N`.
pub fn kind_of(path: &Path, work_dir: &Path, cgroups_root: &str) -> String {
    let (mut kind, rest) = match path.strip_prefix(work_dir) {
        Ok(rest) => ("WORK".to_owned(), rest),
        Err(_) => (String::new(), path),
    };
    for part in rest.components() {
        let part = match part {
            Component::RootDir => continue,
            Component::Normal(part) => part.to_string_lossy().replace(cgroups_root, "ROOT"),
            other => other.as_os_str().to_string_lossy().into_owned(),
        };
        kind.push('/');
        kind.push_str(&without_numbers(&without_ids(&part)));
    }
    kind
}

/// Returns the text with `ID` for each UUID.
fn without_ids(part: &str) -> String {
    const SHAPE: [usize; 5] = [8, 4, 4, 4, 12];
    let is_id = |text: &str| {
        let pieces: Vec<&str> = text.split('-').collect();
        pieces.len() == SHAPE.len()
            && pieces.iter().zip(SHAPE).all(|(piece, length)| {
                piece.len() == length && piece.bytes().all(|byte| byte.is_ascii_hexdigit())
            })
    };
    let length = SHAPE.iter().sum::<usize>() + SHAPE.len() - 1;
    let (mut kept, mut rest) = (String::new(), part);
    while !rest.is_empty() {
        match rest.get(..length) {
            Some(head) if is_id(head) => {
                kept.push_str("ID");
                rest = &rest[length..];
            }
            _ => {
                let next = rest.chars().next().map_or(0, char::len_utf8);
                kept.push_str(&rest[..next]);
                rest = &rest[next..];
            }
        }
    }
    kept
}

/// Returns the text with `N` for each run of digits, and for each hexadecimal number.
fn without_numbers(part: &str) -> String {
    let mut kept = String::new();
    for word in part.split_inclusive(|letter: char| !letter.is_ascii_alphanumeric()) {
        let name = word.trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric());
        let is_hexadecimal = name.len() >= HEXADECIMAL_MIN
            && name.bytes().all(|byte| byte.is_ascii_hexdigit())
            && name.bytes().any(|byte| byte.is_ascii_digit());
        if is_hexadecimal {
            kept.push('N');
            kept.push_str(&word[name.len()..]);
            continue;
        }
        for letter in word.chars() {
            match letter {
                '0'..='9' if kept.ends_with('N') => {}
                '0'..='9' => kept.push('N'),
                other => kept.push(other),
            }
        }
    }
    kept
}

/// Whether faults at this file would prove something about the agent: neither its program nor its log.
pub fn is_of_interest(file: &Path, log: &Path) -> bool {
    const SYSTEM: [&str; 6] = ["/usr", "/lib", "/lib64", "/etc", "/dev", "/memfd:"];
    let text = file.to_string_lossy();
    file.is_absolute()
        && file != log
        && !text.starts_with("/memfd:")
        && !SYSTEM.iter().any(|prefix| file.starts_with(prefix))
}

/// Joins a relative path to a folder; an absolute path stays.
pub fn joined(folder: Option<PathBuf>, path: &Path) -> PathBuf {
    match folder {
        Some(folder) if path.is_relative() => folder.join(path),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_kind_omits_ids_and_numbers() {
        let kind = |path: &str| kind_of(Path::new(path), Path::new("/tmp/x1/agent-0"), "root-7");
        assert_eq!(
            kind("/tmp/x1/agent-0/meta/slaves/01234567-89ab-cdef-0123-456789abcdef-S0/slave.info"),
            "WORK/meta/slaves/ID-SN/slave.info"
        );
        assert_eq!(
            kind("/sys/fs/cgroup/memory/root-7/agent-a1b2c3/cgroup.procs"),
            "/sys/fs/cgroup/memory/ROOT/agent-N/cgroup.procs"
        );
    }

    #[test]
    fn errors_fit_their_call() {
        assert!(may_fail(Effect::Changes, "openat", Errno::EMFILE));
        assert!(!may_fail(Effect::Changes, "write", Errno::EMFILE));
        assert!(!may_fail(Effect::Changes, "unlinkat", Errno::ENOSPC));
        assert!(may_fail(Effect::Looks, "read", Errno::EIO));
        assert!(!may_fail(Effect::Signals, "kill", Errno::EIO));
    }
}
