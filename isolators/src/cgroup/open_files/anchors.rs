//! Anchors: folders relative to which control files are opened.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

/// Open folders above many control files. Opening a file from there spares the kernel the path from the root, each step of
/// which takes locks inside a cgroup tree.
#[derive(Debug, Default)]
pub(crate) struct Anchors(Vec<(PathBuf, File)>);

impl Anchors {
    /// Opens the folders and keeps those that can be opened.
    pub(crate) fn at(folders: Vec<PathBuf>) -> Self {
        let folders = folders.into_iter();
        Self(
            folders
                .filter_map(|folder| Some((folder.clone(), File::open(folder).ok()?)))
                .collect(),
        )
    }

    pub(super) fn open(&self, dir: &Path, file: &str) -> io::Result<File> {
        let below = |(folder, open): &(PathBuf, File)| {
            let rest = dir
                .as_os_str()
                .as_bytes()
                .strip_prefix(folder.as_os_str().as_bytes())?;
            let path = Path::new(OsStr::from_bytes(rest.strip_prefix(b"/")?)).join(file);
            let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
            openat(open, &path, flags, Mode::empty())
                .ok()
                .map(File::from)
        };
        // The folder may have been removed and made again.
        let found = self.0.iter().find_map(below);
        found.map_or_else(|| File::open(dir.join(file)), Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Budget, Files};
    use super::*;
    use std::fs;
    use std::sync::Arc;

    #[test]
    fn file_opens_with_or_without_anchor() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let dir: Arc<Path> = folder.path().into();
        let group: Arc<Path> = dir.join("group").into();
        fs::create_dir(&group).expect("made");
        fs::write(group.join("pids.current"), "7\n").expect("written");
        let anchors = Anchors::at(vec![dir.join("none"), dir.to_path_buf()]);
        assert_eq!(anchors.0.len(), 1);
        let files = Files::keeping(Budget::new(0), Arc::new(anchors));
        assert_eq!(files.number(&group, "pids.current"), Some(7));
        assert_eq!(files.number(&group, "pids.max"), None);
        // The folder behind the anchor is gone, and another folder has its name.
        fs::remove_dir_all(&dir).expect("removed");
        fs::create_dir_all(&group).expect("made");
        fs::write(group.join("pids.current"), "8\n").expect("written");
        assert_eq!(files.number(&group, "pids.current"), Some(8));
    }
}
