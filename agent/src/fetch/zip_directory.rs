//! Bounds the directory of a zip archive, since the library holds the whole directory in memory.
//!
//! [`check`] refuses an archive that claims too many entries, for which memory would be reserved at once. [`Bounded`]
//! stops reading a directory that is too large, whatever it claims. Invariant: the memory for a directory does not grow
//! with the archive.

use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};

use zip::read::{ArchiveOffset, Config};

use super::{Step, StepError};

/// The limit of a directory: enough for some 150,000 entries with names of the usual length. In memory a directory
/// takes several times as much.
pub(super) const DIRECTORY_BYTES_MAX: u64 = 16 << 20;
/// The part of the file in which the last records are searched: a comment of 64 KiB, and a margin.
const TAIL_BYTES: u64 = 128 * 1024;

const LOCATOR: &[u8] = b"PK\x06\x07";
const LOCATOR_BYTES: usize = 20;
const ZIP64_END: &[u8] = b"PK\x06\x06";
const ZIP64_END_BYTES: u64 = 56;
/// The size field of a record with this length.
const ZIP64_END_SIZE: u64 = 44;

/// An archive whose last records are within the limits.
#[derive(Debug)]
pub(super) struct Checked {
    /// The configuration with which to open it.
    pub(super) config: Config,
    /// Bytes of the whole archive.
    pub(super) length: u64,
}

/// Checks the claims of the archive about its directory. Without zip64 a directory has at most 65,535 entries.
///
/// The library chooses among several records, so each of them must be valid.
pub(super) fn check(archive: &mut (impl Read + Seek), entries_max: u64) -> Step<Checked> {
    let failed = |error: io::Error| StepError(format!("failed to read: {error}"));
    let length = archive.seek(SeekFrom::End(0)).map_err(failed)?;
    let tail = length.saturating_sub(TAIL_BYTES);
    let tail = read_at(archive, tail, TAIL_BYTES).map_err(failed)?;
    let mut config = Config::default();
    for locator in tail.windows(LOCATOR_BYTES) {
        let Some(offset) = number(locator, 8).filter(|_| locator.starts_with(LOCATOR)) else {
            continue;
        };
        // With this offset the library uses the checked record, and searches for no other.
        config.archive_offset = ArchiveOffset::Known(0);
        if offset >= length {
            continue;
        }
        let record = read_at(archive, offset, ZIP64_END_BYTES).map_err(failed)?;
        if !record.starts_with(ZIP64_END) {
            continue;
        }
        if number(&record, 4).is_none_or(|size| size > ZIP64_END_SIZE) {
            return Err("the archive is damaged: its last record is too long".into());
        }
        if number(&record, 32).is_none_or(|entries| entries > entries_max) {
            return Err("the archive has too many entries".into());
        }
    }
    Ok(Checked { config, length })
}

fn read_at(archive: &mut (impl Read + Seek), at: u64, bytes_max: u64) -> io::Result<Vec<u8>> {
    archive.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::new();
    archive.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn number(record: &[u8], at: usize) -> Option<u64> {
    let bytes = record.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

/// The number of bytes that may still be read, and the error when they are used up.
#[derive(Debug)]
pub(super) struct Allowance {
    left: Cell<u64>,
    refusal: Cell<&'static str>,
}

impl Allowance {
    /// The allowance while the archive is opened.
    pub(super) fn of_directory() -> Self {
        Self {
            left: Cell::new(DIRECTORY_BYTES_MAX),
            refusal: Cell::new("the archive's directory is larger than 16 MiB"),
        }
    }

    /// Changes the allowance to that of an open archive: each byte once, since entries that do not overlap have at most
    /// this total length.
    pub(super) fn extend_to_entries(&self, length: u64) {
        self.left.set(length);
        self.refusal.set("entries of the archive overlap");
    }
}

/// A reader of at most the allowed number of bytes.
#[derive(Debug)]
pub(super) struct Bounded<'a, R> {
    reader: R,
    allowance: &'a Allowance,
}

impl<'a, R> Bounded<'a, R> {
    pub(super) fn new(reader: R, allowance: &'a Allowance) -> Self {
        Self { reader, allowance }
    }
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        let left = u64::try_from(count)
            .ok()
            .and_then(|count| self.allowance.left.get().checked_sub(count));
        let refused = || io::Error::other(StepError::from(self.allowance.refusal.get()));
        self.allowance.left.set(left.ok_or_else(refused)?);
        Ok(count)
    }
}

impl<R: Seek> Seek for Bounded<'_, R> {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.reader.seek(position)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Limits;
    use super::super::tests::Fixture;

    /// The last record of an archive without a comment.
    const END_BYTES: usize = 22;

    /// A stored file, and a directory with this number of entries for it, each with a comment of this length.
    fn archive(content: &[u8], entries: u16, comment: u16) -> Vec<u8> {
        let length = |bytes: usize| u32::try_from(bytes).expect("small").to_le_bytes();
        let mut crc = flate2::Crc::new();
        crc.update(content);
        let size = length(content.len());
        // Version, flags, method, time and date; then the contents, and the lengths of its names.
        let about = [20, 0, 0, 0, 0, 0, 0, 0, 0x21, 0];
        let sum = crc.sum().to_le_bytes();
        let about = [&about[..], &sum, &size, &size, &[5, 0, 0, 0]].concat();
        let mut archive = [b"PK\x03\x04", &about[..], b"local", content].concat();
        let start = archive.len();
        for number in 0..entries {
            let name = format!("f{number:04}");
            let head = [b"PK\x01\x02", &[20, 0][..], &about, &comment.to_le_bytes()].concat();
            archive.extend([&head[..], &[0; 12], name.as_bytes()].concat());
            archive.resize(archive.len() + usize::from(comment), 0);
        }
        let (size, start) = (length(archive.len() - start), length(start));
        let count = entries.to_le_bytes();
        archive.extend(
            [
                b"PK\x05\x06",
                &[0; 4][..],
                &count,
                &count,
                &size,
                &start,
                &[0; 2],
            ]
            .concat(),
        );
        archive
    }

    /// Adds a record of zip64 that claims this number of entries and this size.
    fn with_zip64(mut archive: Vec<u8>, entries: u64, size: u64) -> Vec<u8> {
        let end = archive.split_off(archive.len() - END_BYTES);
        let at = archive.len();
        let of_directory = [&end[12..16], &[0; 4], &end[16..20], &[0; 4]].concat();
        let (size, count) = (size.to_le_bytes(), entries.to_le_bytes());
        let versions = [45, 0, 45, 0];
        let record = [
            b"PK\x06\x06",
            &size[..],
            &versions,
            &[0; 8],
            &count,
            &count,
            &of_directory,
        ];
        archive.extend(record.concat());
        let at = u64::try_from(at).expect("small").to_le_bytes();
        archive.extend([b"PK\x06\x07", &[0; 4][..], &at, &[1, 0, 0, 0]].concat());
        let everywhere = [&end[..8], &[0xff; 12], &end[20..]].concat();
        archive.extend(everywhere);
        archive
    }

    fn unpacked(archive: &[u8]) -> Result<Fixture, String> {
        let fixture = Fixture::new();
        let limits = Limits {
            entries: 100,
            ..Limits::default()
        };
        fixture.fetch_within(fixture.give("a.zip", archive), limits)?;
        Ok(fixture)
    }

    #[test]
    fn handmade_zips_work_with_zip64() {
        for archive in [
            archive(b"text", 1, 9),
            with_zip64(archive(b"text", 1, 9), 1, 44),
        ] {
            assert_eq!(unpacked(&archive).expect("whole").read("f0000"), "text");
        }
        // Data before an archive without zip64, such as a program that unpacks it, is skipped.
        let archive = [&[b'#'; 1000], &archive(b"text", 1, 9)[..]].concat();
        assert_eq!(unpacked(&archive).expect("whole").read("f0000"), "text");
    }

    /// Regression: the library loaded the whole directory into memory before any limit was checked.
    #[test]
    fn oversized_zip_directory_is_refused() {
        let refused = |archive: &[u8]| unpacked(archive).map(drop).expect_err("refused");
        let error = refused(&archive(&[0; 1 << 16], 99, 0));
        assert!(error.contains("overlap"), "{error}");
        let error = refused(&archive(b"text", 300, u16::MAX));
        assert!(error.contains("directory is larger"), "{error}");
        let error = refused(&with_zip64(archive(b"text", 1, 0), 101, 44));
        assert!(error.contains("too many entries"), "{error}");
        let error = refused(&with_zip64(archive(b"text", 1, 0), u64::MAX, 44));
        assert!(error.contains("too many entries"), "{error}");
        let error = refused(&with_zip64(archive(b"text", 1, 0), 1, 1 << 40));
        assert!(error.contains("too long"), "{error}");
    }
}
