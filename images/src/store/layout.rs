//! The folders and files of a store.
//!
//! ```text
//! <root>/lock                         held by the process that changes the store
//! <root>/layers/sha256-<hex>/fs       a layer, as overlayfs stacks it; never changed
//! <root>/layers/sha256-<hex>/record.json
//! <root>/completions/<hex>/fs         folders and links that the layers of an image lack, above all of them
//! <root>/images/<hex>.json            an image under its name; its time is the last use
//! <root>/in-use/<user>                the layers that a container uses
//! <root>/staging/<name>               a layer or completion in the making
//! <root>/trash/<number>               anything that is being deleted
//! ```
//!
//! Invariant: only root enters the store. Its files keep their owners and setuid bits, so no user of the host may reach one.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::StoreError;
use crate::descriptor::Digest;

/// The paths of a store.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    root: PathBuf,
}

impl Layout {
    pub(super) fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Makes the folders that are missing.
    pub(super) fn create(&self) -> Result<(), StoreError> {
        let folders = [
            "layers",
            "completions",
            "images",
            "in-use",
            "staging",
            "trash",
        ];
        for path in folders.map(|name| self.root.join(name)) {
            let mut builder = DirBuilder::new();
            builder
                .recursive(true)
                .mode(0o700)
                .create(&path)
                .map_err(|source| StoreError::new("create", &path, source))?;
        }
        let owner_only = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(&self.root, owner_only)
            .map_err(|source| StoreError::new("set the mode of", &self.root, source))
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    pub(super) fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    pub(super) fn layer(&self, diff_id: &Digest) -> PathBuf {
        self.layers().join(layer_name(diff_id))
    }

    pub(super) fn completions(&self) -> PathBuf {
        self.root.join("completions")
    }

    pub(super) fn completion(&self, key: &str) -> PathBuf {
        self.completions().join(key)
    }

    pub(super) fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    /// The record of an image. Names have slashes and any length, so the file has the name's digest.
    pub(super) fn image(&self, name: &str) -> PathBuf {
        let digest = Digest::from_content(name.as_bytes());
        self.images().join(format!("{}.json", digest.hex()))
    }

    pub(super) fn users(&self) -> PathBuf {
        self.root.join("in-use")
    }

    pub(super) fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }

    pub(super) fn staged_layer(&self, diff_id: &Digest) -> PathBuf {
        self.staging().join(layer_name(diff_id))
    }

    pub(super) fn staged_completion(&self, key: &str) -> PathBuf {
        self.staging().join(format!("completion-{key}"))
    }

    pub(super) fn trash(&self) -> PathBuf {
        self.root.join("trash")
    }

    /// Moves a file or folder to the trash, which takes no time, whatever its size. A missing path is fine.
    pub(super) fn discard(&self, path: &Path) -> Result<(), StoreError> {
        for number in 0_u64.. {
            let target = self.trash().join(number.to_string());
            let flags = rustix::fs::RenameFlags::NOREPLACE;
            let cwd = rustix::fs::CWD;
            match rustix::fs::renameat_with(cwd, path, cwd, &target, flags) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => return Ok(()),
                Err(rustix::io::Errno::EXIST) => {}
                Err(errno) => return Err(StoreError::new("discard", path, errno.into())),
            }
        }
        Ok(())
    }
}

/// The folder of a layer: its digest without the colon, which separates the layers in an overlay's options.
fn layer_name(diff_id: &Digest) -> String {
    format!("{}-{}", diff_id.algorithm().name(), diff_id.hex())
}

/// The digest of a layer's folder.
pub(super) fn parse_layer_name(name: &str) -> Option<Digest> {
    Digest::parse(&name.replacen('-', ":", 1)).ok()
}

/// The folder of the files of a layer or completion.
pub(super) fn files_in(folder: &Path) -> PathBuf {
    folder.join("fs")
}

/// The record of a layer or completion.
pub(super) fn record_in(folder: &Path) -> PathBuf {
    folder.join("record.json")
}

/// Returns the names in a folder. Names that are no UTF-8 are not ours and left out.
pub(super) fn names_in(folder: &Path) -> Result<Vec<String>, StoreError> {
    let failed = |source| StoreError::new("list", folder, source);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Makes the entries of a folder durable.
pub(super) fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|source| StoreError::new("sync", folder, source))
}

/// Writes a file whole or not at all, durably: beside its place, then renamed.
pub(super) fn write_durably(staging: &Path, path: &Path, content: &[u8]) -> Result<(), StoreError> {
    let name = path.file_name().unwrap_or_default();
    let beside = staging.join(name);
    let write = || -> io::Result<()> {
        let mut file = File::create(&beside)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|source| StoreError::new("write", path, source))?;
    sync_folder(path.parent().unwrap_or(Path::new("/")))
}
