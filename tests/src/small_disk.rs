//! File systems that are soon full, and what fills them.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MsFlags, mount};

/// A small file system.
#[derive(Copy, Clone, Debug)]
pub enum SmallDisk {
    /// In memory, with these options: `size=16m`.
    Tmpfs(&'static str),
    /// On a loop device; needs `mkfs.ext4`.
    Ext4 {
        mib: u64,
        /// How many there are in all.
        inodes: u64,
    },
}

impl SmallDisk {
    /// Makes the folder and mounts it there. The loop device goes when it is unmounted.
    pub(crate) fn mount_at(self, dir: &Path) {
        std::fs::create_dir(dir).expect("a directory");
        match self {
            Self::Tmpfs(options) => {
                let flags = MsFlags::empty();
                mount(Some("small"), dir, Some("tmpfs"), flags, Some(options))
                    .expect("a small disk");
            }
            Self::Ext4 { mib, inodes } => {
                let image = dir.with_extension("ext4");
                let file = File::create(&image).expect("an image");
                file.set_len(mib << 20).expect("its length");
                let inodes = inodes.to_string();
                // Without room for root alone: an agent is not to live on that.
                let make = ["-q", "-F", "-m", "0", "-N", inodes.as_str()];
                succeed(Command::new("mkfs.ext4").args(make).arg(&image));
                succeed(
                    Command::new("mount")
                        .args(["-o", "loop"])
                        .arg(&image)
                        .arg(dir),
                );
            }
        }
    }
}

fn succeed(command: &mut Command) {
    let status = command.status().expect("it runs");
    assert!(status.success(), "{command:?}: {status}");
}

/// Takes what room there is on a file system, until it is removed.
#[derive(Debug)]
pub struct Filler {
    folder: PathBuf,
    files: usize,
}

impl Filler {
    /// Of the file system that holds this folder.
    pub fn new(above: &Path) -> Self {
        let folder = above.join("filler");
        std::fs::create_dir(&folder).expect("a folder");
        Self { folder, files: 0 }
    }

    /// Takes all bytes that are left.
    pub fn fill_bytes(&mut self) {
        let path = self.folder.join("bytes");
        let file = File::options().create(true).append(true).open(path);
        let Ok(mut file) = file else { return };
        for bytes in [1 << 20, 4096, 512, 1] {
            while file.write_all(&vec![0; bytes]).is_ok() {}
        }
        // What the kernel has only promised room for is placed.
        let _ = file.sync_all();
    }

    /// Takes all inodes that are left.
    pub fn fill_inodes(&mut self) {
        while File::create(self.folder.join(format!("inode-{}", self.files))).is_ok() {
            self.files += 1;
        }
    }

    /// Gives all that was taken back.
    pub fn remove(self) {
        std::fs::remove_dir_all(&self.folder).expect("removed");
    }
}
