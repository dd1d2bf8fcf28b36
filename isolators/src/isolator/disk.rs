//! disk/du: the disk usage of a container's folders, compared with their quota.
//!
//! Walks the folder through descriptors without following links, so that a task which swaps a folder for a link during the
//! walk cannot lead us out of it. Folders beyond the limits of depth or number count as over the quota: hiding from the
//! measure must not pay. Each entry is counted as it is listed, and a folder is walked at once: no names are kept, of which a
//! task can make any number. Deleted files that a process still holds open count in their former folder. Unreadable parts of
//! the disk are skipped, and the rest is measured.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::path::Path;

use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat, stat};
use rustix::fs::Dir;

use super::unlinked::{self, Unlinked, unless_gone};
use super::{Breach, DiskArea, DiskUsage, Inspected, Inspection, Isolator};
use crate::mount_table::MountTable;

/// The maximum number of open folders: the deepest nesting of a walk.
const DEPTH_MAX: usize = 256;

/// The limit on entries of one folder and all below it; about five seconds' work.
const ENTRIES_MAX: u64 = 2_000_000;

/// The unit of `st_blocks` on every filesystem.
pub(super) const BLOCK_BYTES: u64 = 512;

const OPEN: OFlag = OFlag::O_DIRECTORY
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC)
    .union(OFlag::O_NONBLOCK);

#[derive(Debug)]
pub(super) struct DiskDu;

impl Isolator for DiskDu {
    fn name(&self) -> &'static str {
        "disk/du"
    }

    fn inspect(&self, inspection: &Inspection<'_>, found: &mut Inspected) -> io::Result<()> {
        if inspection.disk.is_empty() {
            return Ok(());
        }
        let mut measured = Vec::new();
        for area in inspection.disk {
            // A removed area uses nothing, and the others still have to be measured.
            measured.extend(unless_gone(measure(area, DEPTH_MAX, ENTRIES_MAX))?);
        }
        add_unlinked(&mut measured, unlinked::held_by(inspection)?)?;
        for usage in measured {
            found.breaches.extend(breach(&usage));
            found.disk.push(usage);
        }
        Ok(())
    }
}

/// Adds each file to its former folder, the innermost of several.
fn add_unlinked(measured: &mut [DiskUsage], files: Vec<Unlinked>) -> io::Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let mounts = MountTable::read(Path::new("/proc/thread-self"))?;
    let located = measured.iter_mut().filter_map(|usage| {
        let path = std::fs::canonicalize(&usage.path).ok()?;
        Some((mounts.locate(&path)?, usage))
    });
    let mut located: Vec<_> = located.collect();
    // The innermost areas come first.
    located.sort_by_key(|(location, _)| std::cmp::Reverse(location.path.components().count()));
    for file in files {
        let mut around = located.iter_mut();
        if let Some((_, usage)) = around.find(|(location, _)| file.location.is_within(location)) {
            usage.used_bytes = usage.used_bytes.saturating_add(file.bytes);
            usage.entries += 1;
        }
    }
    Ok(())
}

fn breach(usage: &DiskUsage) -> Option<Breach> {
    let quota = usage.quota_bytes?;
    if usage.used_bytes <= quota && !usage.truncated {
        return None;
    }
    let least = if usage.truncated { "more than " } else { "" };
    let message = format!(
        "Disk usage ({least}{}B) exceeds quota ({quota}B)",
        usage.used_bytes
    );
    Some(Breach::Disk {
        usage: usage.clone(),
        message,
    })
}

/// Sums the blocks of everything in a folder, including the folder.
fn measure(area: &DiskArea, depth_max: usize, entries_max: u64) -> io::Result<DiskUsage> {
    let root = open(&area.path, OPEN, Mode::empty())?;
    let top = fstat(&root)?;
    let excluded = area.excluded.iter().filter_map(|path| stat(path).ok());
    let mut walk = Walk {
        device: top.st_dev,
        seen: excluded.map(|stat| (stat.st_dev, stat.st_ino)).collect(),
        used_bytes: blocks(&top),
        entries: 1,
        truncated: false,
    };
    // The folders being listed, each inside the previous one.
    let mut stack = vec![Dir::new(root)?];
    while let Some(folder) = stack.last_mut() {
        let Some(entry) = folder.read() else {
            stack.pop();
            continue;
        };
        let Some(entry) = unless_gone(entry.map_err(io::Error::from))? else {
            // The rest of this folder is unreadable on the disk.
            stack.pop();
            continue;
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if walk.entries >= entries_max {
            walk.truncated = true;
            break;
        }
        let below = walk.look(folder, name)?;
        match below {
            Some(_) if stack.len() >= depth_max => walk.truncated = true,
            Some(below) => stack.push(below),
            None => {}
        }
    }
    Ok(DiskUsage {
        path: area.path.clone(),
        used_bytes: walk.used_bytes,
        entries: walk.entries,
        truncated: walk.truncated,
        quota_bytes: area.quota_bytes,
    })
}

struct Walk {
    device: u64,
    /// Entries that must not be counted again: excluded folders, files with several names.
    seen: HashSet<(u64, u64)>,
    used_bytes: u64,
    entries: u64,
    truncated: bool,
}

impl Walk {
    /// Counts an entry of a folder; returns its folder if the entry is a folder to walk.
    fn look(&mut self, folder: &Dir, name: &CStr) -> io::Result<Option<Dir>> {
        self.entries += 1;
        let folder = folder.fd()?;
        // A file that was removed in the meantime uses no space.
        let stat = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW);
        let Some(stat) = unless_gone(stat.map_err(io::Error::from))? else {
            return Ok(None);
        };
        if !self.count(&stat) || stat.st_mode & libc::S_IFMT != libc::S_IFDIR {
            return Ok(None);
        }
        // A folder that was removed or replaced by a link in the meantime is skipped.
        let below = openat(folder, name, OPEN, Mode::empty()).map_err(io::Error::from);
        Ok(unless_gone(below)?.map(Dir::new).transpose()?)
    }

    /// Adds a file's blocks; returns whether the file had to be counted.
    fn count(&mut self, stat: &FileStat) -> bool {
        let identity = (stat.st_dev, stat.st_ino);
        let again = if stat.st_nlink > 1 && stat.st_mode & libc::S_IFMT != libc::S_IFDIR {
            !self.seen.insert(identity)
        } else {
            self.seen.contains(&identity)
        };
        if stat.st_dev != self.device || again {
            return false;
        }
        self.used_bytes = self.used_bytes.saturating_add(blocks(stat));
        true
    }
}

fn blocks(stat: &FileStat) -> u64 {
    u64::try_from(stat.st_blocks)
        .unwrap_or(0)
        .saturating_mul(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn area(path: &Path, quota_bytes: Option<u64>) -> DiskArea {
        DiskArea {
            path: path.to_owned(),
            quota_bytes,
            excluded: vec![path.join("volume")],
        }
    }

    fn used(path: &Path) -> u64 {
        measure(&area(path, None), DEPTH_MAX, ENTRIES_MAX)
            .expect("measured")
            .used_bytes
    }

    #[test]
    fn blocks_counted_once_links_not_followed() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let root = dir.path().join("sandbox");
        fs::create_dir_all(root.join("a/b")).expect("made");
        fs::create_dir(root.join("volume")).expect("made");
        let before = used(&root);
        let written = vec![1; 1 << 20];
        fs::write(root.join("a/b/file"), &written).expect("written");
        let after = used(&root);
        assert!((1 << 20..(1 << 20) + 65536).contains(&(after - before)));
        fs::hard_link(root.join("a/b/file"), root.join("again")).expect("linked");
        fs::write(dir.path().join("outside"), &written).expect("written");
        std::os::unix::fs::symlink("../outside", root.join("link")).expect("linked");
        std::os::unix::fs::symlink("..", root.join("folder")).expect("linked");
        fs::write(root.join("volume/file"), &written).expect("written");
        assert!(used(&root) - after < 65536, "counted twice, or outside");
    }

    /// The walk enters a folder in the middle of its parent's list, and then continues the parent.
    #[test]
    fn every_entry_is_counted_once() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let name = |number: usize| format!("{number:0>250}");
        // More names than one read of the folder returns.
        for number in 0..2_000 {
            if number % 100 == 0 {
                let below = dir.path().join(name(number)).join("a/b");
                fs::create_dir_all(&below).expect("made");
                fs::write(below.join("file"), "text").expect("written");
            } else {
                fs::write(dir.path().join(name(number)), "").expect("written");
            }
        }
        let usage = measure(&area(dir.path(), None), DEPTH_MAX, ENTRIES_MAX).expect("measured");
        assert_eq!((usage.entries, usage.truncated), (2_061, false));
    }

    #[test]
    fn deleted_files_count_in_innermost_folder() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let root = fs::canonicalize(dir.path()).expect("a path");
        fs::create_dir_all(root.join("sandbox/volume")).expect("made");
        let mut usages: Vec<_> = ["sandbox", "sandbox/volume", "gone"]
            .map(|path| DiskUsage {
                path: root.join(path),
                used_bytes: 1,
                entries: 1,
                truncated: false,
                quota_bytes: None,
            })
            .into();
        let mounts = MountTable::read(Path::new("/proc/self")).expect("mounts");
        let file = |path: &str, bytes| Unlinked {
            location: mounts.locate(&root.join(path)).expect("somewhere"),
            bytes,
        };
        let files = vec![
            file("sandbox/a", 10),
            file("sandbox/volume/a", 100),
            file("sandboxes", 1_000),
        ];
        add_unlinked(&mut usages, files).expect("added");
        let used: Vec<_> = usages.iter().map(|usage| usage.used_bytes).collect();
        assert_eq!(used, [11, 101, 1]);
    }

    #[test]
    fn many_siblings_are_no_depth() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for number in 0..600 {
            fs::create_dir(dir.path().join(number.to_string())).expect("made");
        }
        let usage = measure(&area(dir.path(), None), 2, ENTRIES_MAX).expect("measured");
        assert_eq!((usage.entries, usage.truncated), (601, false));
    }

    #[test]
    fn hiding_does_not_pay() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir_all(dir.path().join("1/2/3")).expect("made");
        for (depth, entries) in [(3, ENTRIES_MAX), (DEPTH_MAX, 2)] {
            let quota = Some(1 << 40);
            let usage = measure(&area(dir.path(), quota), depth, entries).expect("measured");
            assert!(usage.truncated);
            assert!(breach(&usage).is_some());
        }
        let usage = measure(&area(dir.path(), Some(1 << 40)), 4, ENTRIES_MAX).expect("measured");
        assert_eq!(breach(&usage), None);
    }

    #[test]
    fn quota_breach_starts_one_byte_over() {
        let usage = |used_bytes| DiskUsage {
            path: "/s".into(),
            used_bytes,
            entries: 1,
            truncated: false,
            quota_bytes: Some(100),
        };
        assert_eq!(breach(&usage(100)), None);
        let Some(Breach::Disk { message, .. }) = breach(&usage(101)) else {
            panic!("no breach")
        };
        assert_eq!(message, "Disk usage (101B) exceeds quota (100B)");
    }
}
