//! A fleet's folder on disk.
//!
//! Invariant: folders are private to their owner (0700) except for a machine's own (0755, it becomes `/etc/meseta`), files
//! likewise (0600) except for configuration (0644), with any umask; a file is complete or absent, and so is a new folder.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};

use super::file_names::{FLEET, MACHINES};
use super::layout::{self, File, Fleet};

const DIR_MODE: u32 = 0o700;
/// The mode of `/etc/meseta`: everybody reads configuration, but not the folders below.
const MACHINE_MODE: u32 = 0o755;

/// The folder, or its temporary form.
#[derive(Debug)]
pub(super) struct Folder {
    /// The path where the folder is written.
    path: PathBuf,
    /// The final path of the folder.
    place: PathBuf,
    is_kept: bool,
}

impl Folder {
    /// Creates a folder, which is removed again unless it is kept.
    pub(super) fn create(dir: &Path) -> anyhow::Result<Self> {
        let place =
            std::path::absolute(dir).with_context(|| format!("{} is not a path", dir.display()))?;
        let name = place.file_name().with_context(|| {
            format!(
                "{} does not name a new folder: give --dir=NAME",
                dir.display()
            )
        })?;
        refuse_existing(dir)?;
        let parent = place.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(parent)
            .with_context(|| format!("failed to create {}", parent.display()))?;
        let mut fresh = std::ffi::OsString::from(".");
        fresh.push(name);
        fresh.push(format!(".new-{}", std::process::id()));
        let path = parent.join(fresh);
        make_dir(&path, DIR_MODE)?;
        Ok(Self {
            path,
            place,
            is_kept: false,
        })
    }

    /// Opens a folder that `init` made.
    pub(super) fn open(dir: &Path) -> anyhow::Result<Self> {
        let place =
            std::path::absolute(dir).with_context(|| format!("{} is not a path", dir.display()))?;
        ensure!(
            place.join(FLEET).is_file(),
            "{} has no {}: give the folder that `meseta tls init` made",
            dir.display(),
            FLEET
        );
        Ok(Self {
            path: place.clone(),
            place,
            is_kept: true,
        })
    }

    /// Returns the present or future path of the folder.
    pub(super) fn final_path(&self) -> &Path {
        &self.place
    }

    pub(super) fn fleet(&self) -> anyhow::Result<Fleet> {
        let path = self.place.join(FLEET);
        let fleet: Fleet = serde_json::from_str(&self.read(FLEET)?)
            .with_context(|| format!("failed to parse {}", path.display()))?;
        ensure!(
            fleet.format == layout::FORMAT && !fleet.master.addresses.is_empty(),
            "{} was written by another version of meseta: use that version",
            path.display()
        );
        Ok(fleet)
    }

    pub(super) fn read(&self, path: impl AsRef<Path>) -> anyhow::Result<String> {
        let path = self.path.join(path);
        std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
    }

    /// Writes complete files, in place of existing ones.
    pub(super) fn write(&self, files: &[File]) -> anyhow::Result<()> {
        for file in files {
            let path = self.path.join(&file.path);
            self.make_parents(&file.path)?;
            write_whole(&path, file)
                .with_context(|| format!("failed to write {}", path.display()))?;
        }
        Ok(())
    }

    fn make_parents(&self, file: &Path) -> anyhow::Result<()> {
        let mut made = self.path.clone();
        let parents: Vec<_> = file
            .parent()
            .into_iter()
            .flat_map(Path::components)
            .collect();
        for (depth, name) in parents.iter().enumerate() {
            made.push(name);
            let is_machine = depth == 1 && file.starts_with(MACHINES);
            make_dir(&made, if is_machine { MACHINE_MODE } else { DIR_MODE })?;
        }
        Ok(())
    }

    /// Moves a new folder to its final path.
    pub(super) fn keep(mut self) -> anyhow::Result<()> {
        refuse_existing(&self.place)?;
        // The rename replaces a folder only if that is empty.
        std::fs::rename(&self.path, &self.place)
            .with_context(|| format!("failed to make {}", self.place.display()))?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.is_kept {
            // The failure has been reported; the name of a remaining folder shows its state.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

fn refuse_existing(dir: &Path) -> anyhow::Result<()> {
    match std::fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("failed to list {}", dir.display())),
        Ok(mut entries) => {
            if entries.next().is_some() {
                bail!(
                    "{dir} exists already and nothing in it is overwritten: give another --dir, or add to it with \
                     `meseta tls add --dir={dir} --agent=NAME=ADDRESS`",
                    dir = dir.display()
                );
            }
            Ok(())
        }
    }
}

/// Creates a folder of this mode; an existing folder keeps its mode.
fn make_dir(path: &Path, mode: u32) -> anyhow::Result<()> {
    let made = DirBuilder::new().mode(mode).create(path);
    match made {
        Ok(()) => std::fs::set_permissions(path, Permissions::from_mode(mode)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
    .with_context(|| format!("failed to create {}", path.display()))
}

fn write_whole(path: &Path, file: &File) -> std::io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    let fresh = path.with_file_name(name);
    let _left_by_another_run = std::fs::remove_file(&fresh);
    let mut open = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(file.mode())
        .open(&fresh)?;
    open.set_permissions(Permissions::from_mode(file.mode()))?;
    open.write_all(file.text.as_bytes())?;
    std::fs::rename(&fresh, path)
}
