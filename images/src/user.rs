//! The user of an image: names and numbers as the image's own `passwd` and `group` files have them.
//!
//! [`read_user`] opens the files inside the image's root, where they may be links; [`resolve`] is pure. Invariant: no lookup
//! leaves the root, and the host's own users never count.

use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The longest file that is read. A directory service does not write its users into an image.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Supplementary groups; the kernel's limit is 65536.
const GROUPS_MAX: usize = 1024;
/// The home of a user that the image does not know, as in Docker.
const HOME_DEFAULT: &str = "/";

/// The numeric identity of an image's user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ImageUser {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, ascending.
    pub groups: Vec<u32>,
    /// The value for `HOME`.
    pub home: String,
    /// The name, if the image has one for the number.
    pub name: Option<String>,
}

/// Errors of finding an image's user.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    #[error(
        "the image has no user {0:?} in its /etc/passwd; use a number, or add the user to the image"
    )]
    UnknownUser(String),
    #[error(
        "the image has no group {0:?} in its /etc/group; use a number, or add the group to the image"
    )]
    UnknownGroup(String),
    #[error("invalid user {0:?}: expected USER, UID, USER:GROUP or UID:GID")]
    Invalid(String),
    #[error("failed to read {file} of the image")]
    Read {
        file: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("{file} of the image is no plain file of at most {FILE_BYTES_MAX} bytes")]
    NoPlainFile { file: &'static str },
}

/// Finds the user of a `USER` text in a mounted image.
pub fn read_user(root: BorrowedFd<'_>, text: &str) -> Result<ImageUser, UserError> {
    let passwd = read_file(root, "/etc/passwd")?;
    let group = read_file(root, "/etc/group")?;
    resolve(text, &passwd, &group)
}

/// Finds the user of a `USER` text by the content of `passwd` and `group`; empty files are fine.
///
/// As in Docker: an empty text is root; a number may be unknown; without a group in the text, the groups are those of the user
/// in both files, and with a group there are no supplementary ones.
pub fn resolve(text: &str, passwd: &str, group: &str) -> Result<ImageUser, UserError> {
    let (user, group_text) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let is_valid = |part: &str| !part.contains([':', '/', '\0']) && part.len() <= 256;
    if !is_valid(user) || !group_text.is_none_or(is_valid) {
        return Err(UserError::Invalid(text.to_owned()));
    }
    let user = if user.is_empty() { "0" } else { user };
    let number = parse_number(user);
    let known = passwd
        .lines()
        .filter_map(Account::parse)
        .find(|account| account.name == user || Some(account.uid) == number);
    let uid = match (&known, number) {
        (Some(account), _) => account.uid,
        (None, Some(number)) => number,
        (None, None) => return Err(UserError::UnknownUser(user.to_owned())),
    };
    let mut found = ImageUser {
        uid,
        gid: known.as_ref().map_or(0, |account| account.gid),
        groups: Vec::new(),
        home: HOME_DEFAULT.to_owned(),
        name: known.as_ref().map(|account| account.name.to_owned()),
    };
    if let Some(account) = known.as_ref().filter(|account| !account.home.is_empty()) {
        account.home.clone_into(&mut found.home);
    }
    match (group_text.filter(|text| !text.is_empty()), &found.name) {
        (Some(text), _) => found.gid = find_group(text, group)?,
        (None, Some(name)) => found.groups = groups_with(name, group),
        (None, None) => {}
    }
    Ok(found)
}

fn find_group(text: &str, group: &str) -> Result<u32, UserError> {
    let number = parse_number(text);
    let mut known = group.lines().filter_map(Group::parse);
    known
        .find(|group| group.name == text || Some(group.gid) == number)
        .map(|group| group.gid)
        .or(number)
        .ok_or_else(|| UserError::UnknownGroup(text.to_owned()))
}

fn groups_with(member: &str, group: &str) -> Vec<u32> {
    let known = group.lines().filter_map(Group::parse);
    let mut groups: Vec<_> = known
        .filter(|group| group.members.split(',').any(|name| name.trim() == member))
        .map(|group| group.gid)
        .collect();
    groups.sort_unstable();
    groups.dedup();
    groups.truncate(GROUPS_MAX);
    groups
}

/// A line of `passwd`.
struct Account<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl<'a> Account<'a> {
    /// Returns nothing for a comment or a damaged line.
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.trim().split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let uid = parse_number(fields.nth(1)?)?;
        let gid = parse_number(fields.next()?)?;
        Some(Self {
            name,
            uid,
            gid,
            home: fields.nth(1).unwrap_or_default(),
        })
    }
}

/// A line of `group`.
struct Group<'a> {
    name: &'a str,
    gid: u32,
    /// Names, separated by commas.
    members: &'a str,
}

impl<'a> Group<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.trim().split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let gid = parse_number(fields.nth(1)?)?;
        Some(Self {
            name,
            gid,
            members: fields.next().unwrap_or_default(),
        })
    }
}

/// Reads digits alone. The largest number means "unchanged" to the kernel.
fn parse_number(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| text.parse().ok())??;
    (number != u32::MAX).then_some(number)
}

/// Reads a file as if the root were `/`. A missing file is empty.
fn read_file(root: BorrowedFd<'_>, path: &'static str) -> Result<String, UserError> {
    let failed = |source| UserError::Read { file: path, source };
    // A pipe in the place of the file must not block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let fd = match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(String::new()),
        // Devices and sockets.
        Err(Errno::NXIO | Errno::NODEV | Errno::LOOP) => {
            return Err(UserError::NoPlainFile { file: path });
        }
        fd => fd.map_err(|errno| failed(errno.into()))?,
    };
    let stat = rustix::fs::fstat(&fd).map_err(|errno| failed(errno.into()))?;
    let is_plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_plain || u64::try_from(stat.st_size).unwrap_or(u64::MAX) > FILE_BYTES_MAX {
        return Err(UserError::NoPlainFile { file: path });
    }
    let mut bytes = Vec::new();
    File::from(fd)
        .take(FILE_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    use super::*;

    const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/sh
# a comment
damaged:x:y:z
web:x:33:34:Web:/var/www:/bin/false
1000:x:1234:1235::/home/odd:
homeless:x:50:50:::
";
    const GROUP: &str = "root:x:0:\nweb:x:34:\nlog:x:4:root,web\nssl:x:110:web\n1000:x:77:\n";

    fn find(text: &str) -> Result<(u32, u32, Vec<u32>, String), UserError> {
        let user = resolve(text, PASSWD, GROUP)?;
        Ok((user.uid, user.gid, user.groups, user.home))
    }

    #[test]
    fn names_and_numbers_are_found() {
        for (text, uid, gid, groups, home) in [
            ("", 0, 0, vec![4], "/root"),
            ("web", 33, 34, vec![4, 110], "/var/www"),
            ("33", 33, 34, vec![4, 110], "/var/www"),
            ("web:log", 33, 4, vec![], "/var/www"),
            ("web:12", 33, 12, vec![], "/var/www"),
            ("web:", 33, 34, vec![4, 110], "/var/www"),
            ("500", 500, 0, vec![], "/"),
            ("500:web", 500, 34, vec![], "/"),
            ("500:501", 500, 501, vec![], "/"),
            // Names of digits come before numbers.
            ("1000", 1234, 1235, vec![], "/home/odd"),
            ("0:1000", 0, 77, vec![], "/root"),
            ("homeless", 50, 50, vec![], "/"),
            (":log", 0, 4, vec![], "/root"),
        ] {
            let found = find(text).expect("found");
            assert_eq!(found, (uid, gid, groups, home.to_owned()), "{text}");
        }
    }

    #[test]
    fn unknown_users_are_refused() {
        assert!(matches!(find("nobody"), Err(UserError::UnknownUser(_))));
        assert!(matches!(find("damaged"), Err(UserError::UnknownUser(_))));
        assert!(matches!(
            find("web:nobody"),
            Err(UserError::UnknownGroup(_))
        ));
        assert!(matches!(find("-1"), Err(UserError::UnknownUser(_))));
        assert!(matches!(find("4294967295"), Err(UserError::UnknownUser(_))));
        assert!(matches!(find("a:b:c"), Err(UserError::Invalid(_))));
    }

    #[test]
    fn links_stay_inside_the_root() {
        let root = tempfile::tempdir().expect("a folder");
        let etc = root.path().join("etc");
        std::fs::create_dir(&etc).expect("created");
        std::fs::create_dir(root.path().join("usr")).expect("created");
        std::fs::write(root.path().join("usr/passwd"), "app:x:7:8::/app:\n").expect("written");
        symlink("/usr/passwd", etc.join("passwd")).expect("linked");
        let folder = File::open(root.path()).expect("opened");
        let user = read_user(folder.as_fd(), "app").expect("found");
        assert_eq!((user.uid, user.gid, user.home.as_str()), (7, 8, "/app"));
        // The host's file has root, the image's has not.
        std::fs::remove_file(etc.join("passwd")).expect("removed");
        symlink("../../../../../../../../etc/passwd", etc.join("passwd")).expect("linked");
        assert!(read_user(folder.as_fd(), "root").is_err());
    }

    #[test]
    fn pipe_instead_of_passwd_is_refused() {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(root.path().join("etc")).expect("created");
        let path = root.path().join("etc/passwd");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).expect("created");
        let folder = File::open(root.path()).expect("opened");
        let refused = read_user(folder.as_fd(), "0");
        assert!(
            matches!(refused, Err(UserError::NoPlainFile { .. })),
            "{refused:?}"
        );
    }
}
