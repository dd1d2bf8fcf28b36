//! The table of mounts of a process, `mountinfo` of proc(5).
//!
//! [`MountTable::read`] reads it. Names are bytes: the kernel escapes white space and backslashes in them, and nothing else,
//! so that a name need not be text. Invariant: a malformed line loses its mount, and never the table.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// A mount, parsed from one line of the table.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mount {
    pub id: i32,
    /// The file system, as `major:minor`.
    pub device: String,
    /// The mounted folder of the file system.
    pub root: PathBuf,
    /// The mount point, as the process sees it.
    pub point: PathBuf,
    /// The type of the file system.
    pub kind: String,
    /// The options of the file system.
    pub super_options: Vec<String>,
}

/// A place in a file system, independent of its mount point.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Location {
    /// The file system, as `major:minor`.
    pub device: String,
    /// The path from the file system's own root.
    pub path: PathBuf,
}

impl Location {
    /// Whether this place equals the other one or is below it.
    pub fn is_within(&self, other: &Self) -> bool {
        self.device == other.device && self.path.starts_with(&other.path)
    }
}

impl Mount {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
        let id = text(fields.next()?).parse().ok()?;
        let _parent = fields.next()?;
        let device = text(fields.next()?);
        let root = unescaped(fields.next()?);
        let point = unescaped(fields.next()?);
        // Options of the mount, and optional fields up to a dash.
        fields.find(|field| *field == b"-")?;
        let kind = text(fields.next()?);
        let _source = fields.next()?;
        let super_options = fields.next().map(text).unwrap_or_default();
        Some(Self {
            id,
            device,
            root,
            point,
            kind,
            super_options: super_options.split(',').map(str::to_owned).collect(),
        })
    }

    /// The place of a path in the process's view, if the path is at or below the mount point.
    pub fn locate(&self, path: &Path) -> Option<Location> {
        let below = path.strip_prefix(&self.point).ok()?;
        let mut location = self.location();
        // The mount point itself has no remaining path to append.
        if !below.as_os_str().is_empty() {
            location.path.push(below);
        }
        Some(location)
    }

    /// The location of the mounted folder.
    pub fn location(&self) -> Location {
        Location {
            device: self.device.clone(),
            path: self.root.clone(),
        }
    }
}

/// All mounts in a process's view, in the order in which they were made.
#[derive(Clone, Debug, Default)]
pub struct MountTable(Vec<Mount>);

impl MountTable {
    /// Reads the table of a process from its folder in procfs, or of this thread from `thread-self`.
    ///
    /// # Errors
    /// If the table cannot be read.
    pub fn read(process: &Path) -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read(process.join("mountinfo"))?))
    }

    pub fn parse(table: &[u8]) -> Self {
        let lines = table.split(|byte| *byte == b'\n');
        Self(lines.filter_map(Mount::parse).collect())
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Mount> {
        self.0.iter()
    }

    pub fn by_id(&self, id: i32) -> Option<&Mount> {
        self.iter().find(|mount| mount.id == id)
    }

    /// Whether the table has no mounts.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The place of a path without links in it: in the deepest mount on its way, and in the last of several at one point.
    pub fn locate(&self, path: &Path) -> Option<Location> {
        let around = self.iter().filter(|mount| path.starts_with(&mount.point));
        let deepest = around.max_by_key(|mount| mount.point.components().count())?;
        deepest.locate(path)
    }
}

/// A path as the kernel lists it: white space and backslashes in three octal digits.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let octal = octal.filter(|digits| digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn names_are_taken_as_they_are() {
        for (listed, name) in [
            (r"/a\040b", &b"/a b"[..]),
            (r"/a\011b\012c", b"/a\tb\nc"),
            (r"/a\134040", b"/a\\040"),
            (r"/a\04", b"/a\\04"),
            (r"/a\999", b"/a\\999"),
            (r"/a\777", b"/a\\777"),
            (r"/a\", b"/a\\"),
        ] {
            assert_eq!(unescaped(listed.as_bytes()).as_os_str().as_bytes(), name);
        }
        let no_text = b"/a\xff\\040b";
        assert_eq!(
            unescaped(no_text).as_os_str(),
            OsStr::from_bytes(b"/a\xff b")
        );
    }

    #[test]
    fn senseless_lines_cost_no_other_mount() {
        let table = b"1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n\
            x 0 8:1 / /no rw - ext4 /dev/sda1 rw\n\
            2 1 8:1\n\
            \n\
            3 1 8:2 /in\\040side /m\xff rw master:2 propagate_from:1 - xfs none rw\n\
            4 1 0:9 / /m\xff/over rw - tmpfs  rw\n";
        let table = MountTable::parse(table);
        let ids: Vec<_> = table.iter().map(|mount| mount.id).collect();
        assert_eq!(ids, [1, 3, 4]);
        let third = table.by_id(3).expect("there");
        assert_eq!(third.point.as_os_str(), OsStr::from_bytes(b"/m\xff"));
        assert_eq!((third.kind.as_str(), third.device.as_str()), ("xfs", "8:2"));
        let place = table.locate(&third.point.join("x")).expect("there");
        assert_eq!(place.path, Path::new("/in side/x"));
        assert!(place.is_within(&third.location()));
        assert!(!third.location().is_within(&place));
        let first = table.locate(Path::new("/")).expect("there");
        assert_eq!((first.device.as_str(), first.path), ("8:1", "/".into()));
    }
}
