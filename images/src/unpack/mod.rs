//! Unpacking of layers: the stream of a blob becomes one folder in the form that overlayfs stacks.
//!
//! Entered through [`unpack_in_child`], which runs the work in a process of its own, without network and with access to the
//! layer's folder alone. That process is this executable again, so `main` calls [`run_if_requested`] first. The parent
//! passes the blob through a pipe and checks its digest; the child decompresses, hashes the content and writes the files.
//!
//! A layer's folder knows only its own layer. The [`Report`] lists the folders that the layer implies without an entry, and
//! hard links to files of lower layers; `store/completion.rs` completes them for each image.
//!
//! - `content`: decompression and the digest of the content.
//! - `tar_reader`, `sparse`: the headers of an archive.
//! - `path`: names of an archive as paths below the folder.
//! - `tree`: the entries as files, relative to open folders.
//! - `report`: the result of a child, as text for its parent.
//! - `deferred`: device files and opaque marks, which the parent makes.
//! - `child`: both sides of the process boundary.
//! - `confinement`: the limits of the child's access.
//!
//! Invariant: whatever a layer contains, nothing outside its folder is read or changed.

mod child;
mod confinement;
mod content;
mod deferred;
mod path;
mod report;
mod sparse;
mod tar_reader;
mod tree;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::descriptor::Algorithm;

pub use child::{ChildError, run_if_requested, unpack_in_child};
pub(crate) use deferred::apply_deferred;
pub(crate) use path::{clean, split};
pub(crate) use report::unescape;
pub use report::{Confinement, Device, Report};

/// Limits of one layer.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes of the decompressed archive, and bytes of its files with holes filled.
    pub content_bytes: u64,
    /// Entries of the archive, and folders that it implies.
    pub entries: u64,
    /// Bytes of memory for paths of folders, whiteouts and links.
    pub path_bytes: u64,
}

impl Limits {
    /// A compressed layer of common files has a ratio of 2 to 5, and one of zeros 1000. Beyond [`Self::FREE_BYTES`] the ratio
    /// separates a bomb from a layer.
    const RATIO_MAX: u64 = 100;
    /// Content that any layer may have.
    const FREE_BYTES: u64 = 256 << 20;
    /// The largest layer, uncompressed: images with models and data sets have some of 50 GiB.
    const LAYER_BYTES_MAX: u64 = 256 << 30;
    /// Real layers have at most some 200,000 entries. A million empty files take 256 MiB of inodes.
    const ENTRIES_MAX: u64 = 1_000_000;
    /// A folder's path takes some 100 bytes, so this is enough for 300,000 folders.
    const PATH_BYTES_MAX: u64 = 32 << 20;

    /// The limits of a layer with this blob, where so many bytes are free on the disk.
    pub fn for_layer(blob_bytes: u64, free_bytes: u64) -> Self {
        let by_ratio = blob_bytes.saturating_mul(Self::RATIO_MAX);
        let content_bytes = by_ratio.clamp(Self::FREE_BYTES, Self::LAYER_BYTES_MAX);
        Self {
            content_bytes: content_bytes.min(free_bytes),
            entries: Self::ENTRIES_MAX,
            path_bytes: Self::PATH_BYTES_MAX,
        }
    }
}

/// The reason for which a layer is not unpacked: the layer is damaged, hostile or of an unknown form. Another attempt with the
/// same blob has the same result.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Refusal {
    #[error("the layer cannot be decompressed: {cause}")]
    Undecodable { cause: String },
    #[error(
        "the layer has more than {bytes_max} bytes of content: a bomb, or more than the disk has free; remove images with \
         `meseta images prune`, or free disk space"
    )]
    ContentTooLarge { bytes_max: u64 },
    #[error("the layer has more than {entries_max} files")]
    TooManyEntries { entries_max: u64 },
    #[error(
        "the layer has more folders, whiteouts and links than {bytes_max} bytes of memory hold"
    )]
    TooManyPaths { bytes_max: u64 },
    #[error("the layer's archive {problem}")]
    Malformed { problem: String },
    #[error("the entry {path:?} of the layer {problem}")]
    Entry { path: String, problem: String },
}

impl Refusal {
    fn malformed(problem: &str) -> Self {
        Self::Malformed {
            problem: problem.to_owned(),
        }
    }

    /// Refuses the entry with this path, of which the message has the beginning.
    fn for_path(problem: &str, path: &[u8]) -> Self {
        /// Enough to find the entry in a listing.
        const BYTES_MAX: usize = 200;
        let shown = &path[..path.len().min(BYTES_MAX)];
        Self::Entry {
            path: String::from_utf8_lossy(shown).into_owned(),
            problem: problem.to_owned(),
        }
    }
}

/// Errors of unpacking.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The file system refused a call.
    #[error("failed to {operation} {path:?} of a layer")]
    System {
        operation: &'static str,
        path: String,
        #[source]
        source: io::Error,
    },
}

impl UnpackError {
    fn system(operation: &'static str, path: &[u8], source: impl Into<io::Error>) -> Self {
        Self::System {
            operation,
            path: String::from_utf8_lossy(path).into_owned(),
            source: source.into(),
        }
    }
}

/// Unpacks a blob into an empty folder, in this process. Device files and opaque marks are left to [`apply_deferred`].
pub(crate) fn unpack(
    blob: impl Read,
    folder: OwnedFd,
    algorithm: Algorithm,
    limits: &Limits,
) -> Result<Report, UnpackError> {
    let content = content::Content::new(blob, algorithm, limits.content_bytes)?;
    let mut archive = tar_reader::TarReader::new(content, limits.entries);
    let mut tree = tree::Tree::new(folder, limits);
    while let Some(entry) = archive.next_entry()? {
        tree.add(&entry, &mut archive)?;
    }
    let mut report = tree.finish()?;
    let (diff_id, content_bytes) = archive.finish()?;
    report.diff_id = Some(diff_id);
    report.content_bytes = content_bytes;
    Ok(report)
}
