//! The files that the master shows: its own log, if the configuration names it.
//!
//! The names of files are not paths of the machine. Invariant: no other file has a name here.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use meseta_proto::mesos::v1::{FileInfo, TimeInfo};

/// The largest result of one read in bytes.
const READ_BYTES_MAX: u64 = 16 * 4_096;

/// The name of the log.
const LOG: &str = "/master/log";

/// The files with their names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    log: Option<PathBuf>,
}

/// The reason for refusing a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilesError {
    #[error("the file does not exist")]
    NotFound,
    #[error("failed to read {name}")]
    Read {
        name: String,
        #[source]
        source: io::Error,
    },
}

/// A part of a file.
#[derive(Debug)]
pub(crate) struct Part {
    /// The size of the whole file in bytes.
    pub(crate) size: u64,
    pub(crate) data: Vec<u8>,
}

impl Files {
    pub(crate) fn new(log: Option<PathBuf>) -> Self {
        Self { log }
    }

    /// The names with their paths, for `/files/debug`.
    pub(crate) fn all(&self) -> Vec<(&'static str, &Path)> {
        self.log.iter().map(|log| (LOG, log.as_path())).collect()
    }

    /// The path of a file.
    pub(crate) fn path_of(&self, name: &str) -> Result<&Path, FilesError> {
        let log = self.log.as_deref();
        log.filter(|_| name.trim_end_matches('/') == LOG)
            .ok_or(FilesError::NotFound)
    }

    /// The file behind a name.
    pub(crate) fn list(&self, name: &str) -> Result<Vec<FileInfo>, FilesError> {
        let metadata =
            std::fs::metadata(self.path_of(name)?).map_err(|error| failed(name, error))?;
        Ok(vec![FileInfo {
            path: LOG.to_owned(),
            nlink: i32::try_from(metadata.nlink()).ok(),
            size: Some(metadata.size()),
            mtime: Some(TimeInfo {
                nanoseconds: metadata.mtime().saturating_mul(1_000_000_000),
            }),
            mode: Some(metadata.mode()),
            uid: Some(metadata.uid().to_string()),
            gid: Some(metadata.gid().to_string()),
        }])
    }

    /// Reads from an offset on; returns less than requested at the end, and nothing beyond it.
    pub(crate) fn read(
        &self,
        name: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<Part, FilesError> {
        let mut file = File::open(self.path_of(name)?).map_err(|error| failed(name, error))?;
        let mut read = || {
            let size = file.metadata()?.len();
            file.seek(SeekFrom::Start(offset.min(size)))?;
            let mut data = Vec::new();
            let length = length.unwrap_or(READ_BYTES_MAX).min(READ_BYTES_MAX);
            file.by_ref().take(length).read_to_end(&mut data)?;
            Ok(Part { size, data })
        };
        read().map_err(|error| failed(name, error))
    }
}

pub(crate) fn failed(name: &str, source: io::Error) -> FilesError {
    if source.kind() == io::ErrorKind::NotFound {
        return FilesError::NotFound;
    }
    FilesError::Read {
        name: name.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_log_is_listed() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        std::fs::write(&log, "0123456789").unwrap();
        let files = Files::new(Some(log.clone()));
        let part = files.read(LOG, 3, Some(4)).unwrap();
        assert_eq!((part.size, part.data.as_slice()), (10, &b"3456"[..]));
        assert_eq!(files.read(LOG, 99, None).unwrap().data, b"");
        assert_eq!(files.read(LOG, 8, Some(u64::MAX)).unwrap().data, b"89");
        assert_eq!(files.list("/master/log/").unwrap()[0].size, Some(10));
        let other = log.to_str().unwrap();
        for name in ["", "/", "/master", "/master/log/..", "/etc/passwd", other] {
            assert!(matches!(
                files.read(name, 0, None),
                Err(FilesError::NotFound)
            ));
        }
        assert!(Files::default().list(LOG).is_err());
        std::fs::remove_file(&log).unwrap();
        assert!(matches!(files.list(LOG), Err(FilesError::NotFound)));
    }
}
