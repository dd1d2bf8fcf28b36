//! File systems of a test: small ones that are soon full, their fillers, and those that lose power.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MsFlags, mount};

use crate::{Missing, unless_installed, unless_root};

/// A small file system, for tests of full disks.
#[derive(Copy, Clone, Debug)]
pub enum SmallDisk {
    /// A file system in memory, with these options: `size=16m`.
    Tmpfs(&'static str),
    /// A file system on a loop device; needs `mkfs.ext4`.
    Ext4 {
        mib: u64,
        /// The number of inodes in all.
        inodes: u64,
    },
    /// A file system on a loop device, with a journal.
    Journaled {
        mib: u64,
        /// The command line that creates it; the image comes last.
        make: &'static [&'static str],
        /// The options of its mount, including `loop`.
        options: &'static str,
    },
}

impl SmallDisk {
    /// Creates the folder and mounts the file system there. The loop device is released at the unmount.
    pub fn mount_at(self, dir: &Path) {
        std::fs::create_dir(dir).expect("a directory");
        match self {
            Self::Tmpfs(_) => {}
            Self::Ext4 { mib, inodes } => {
                let inodes = inodes.to_string();
                // The file system has no room for root alone: an agent must not depend on such room.
                let make = ["mkfs.ext4", "-q", "-F", "-m", "0", "-N", inodes.as_str()];
                make_image(&Self::image(dir), mib, &make);
            }
            Self::Journaled { mib, make, .. } => make_image(&Self::image(dir), mib, make),
        }
        self.mount_again(dir);
    }

    /// Mounts the disk again, with the contents from before; a disk in memory is empty.
    pub(crate) fn mount_again(self, dir: &Path) {
        match self {
            Self::Tmpfs(options) => {
                let flags = MsFlags::empty();
                mount(Some("small"), dir, Some("tmpfs"), flags, Some(options))
                    .expect("a small disk");
            }
            Self::Ext4 { .. } => mount_image("loop", dir),
            Self::Journaled { options, .. } => mount_image(options, dir),
        }
    }

    /// Returns the image file of a folder on a loop device.
    pub(crate) fn image(dir: &Path) -> PathBuf {
        dir.with_extension("image")
    }
}

fn make_image(image: &Path, mib: u64, make: &[&str]) {
    let file = File::create(image).expect("an image");
    file.set_len(mib << 20).expect("its length");
    succeed(Command::new(make[0]).args(&make[1..]).arg(image));
}

fn mount_image(options: &str, dir: &Path) {
    let image = SmallDisk::image(dir);
    let mut command = Command::new("mount");
    succeed(command.args(["-o", options]).arg(&image).arg(dir));
}

fn succeed(command: &mut Command) {
    let status = command.status().expect("it runs");
    assert!(status.success(), "{command:?}: {status}");
}

/// Fills a file system, until it is removed.
#[derive(Debug)]
pub struct Filler {
    folder: PathBuf,
    files: usize,
}

impl Filler {
    /// Returns a filler for the file system of this folder.
    pub fn new(above: &Path) -> Self {
        let folder = above.join("filler");
        std::fs::create_dir(&folder).expect("a folder");
        Self { folder, files: 0 }
    }

    /// Fills all remaining bytes.
    pub fn fill_bytes(&mut self) {
        let path = self.folder.join("bytes");
        let file = File::options().create(true).append(true).open(path);
        let Ok(mut file) = file else { return };
        for bytes in [1 << 20, 4096, 512, 1] {
            while file.write_all(&vec![0; bytes]).is_ok() {}
        }
        // The sync allocates blocks that the kernel has only promised.
        let _ = file.sync_all();
    }

    /// Fills all remaining inodes.
    pub fn fill_inodes(&mut self) {
        while File::create(self.folder.join(format!("inode-{}", self.files))).is_ok() {
            self.files += 1;
        }
    }

    /// Frees all filled bytes and inodes.
    pub fn remove(self) {
        std::fs::remove_dir_all(&self.folder).expect("removed");
    }
}

/// The reason why no file system can be frozen here.
pub fn unless_freezing() -> Missing {
    unless_root()
        .or_else(|| unless_installed("mkfs.ext4"))
        .or_else(|| unless_installed("fsfreeze"))
}

/// A file system that takes no writes until this is dropped: who writes to it sleeps.
#[derive(Debug)]
pub struct Frozen {
    dir: PathBuf,
}

impl Frozen {
    /// Freezes the file system at this folder.
    pub fn freeze(dir: &Path) -> Self {
        let frozen = Self {
            dir: dir.to_owned(),
        };
        assert!(frozen.fsfreeze("-f"), "{}", dir.display());
        frozen
    }

    fn fsfreeze(&self, how: &str) -> bool {
        let status = Command::new("fsfreeze").arg(how).arg(&self.dir).status();
        status.is_ok_and(|status| status.success())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.fsfreeze("-u");
    }
}
