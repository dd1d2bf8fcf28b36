//! The directory of a zip archive, which the library holds in memory as a whole: bounded beforehand.
//!
//! [`check`] refuses what claims more entries than it may, for which memory would be reserved at once;
//! [`Bounded`] ends the reading of a directory that is too large, whatever it claims. Invariant: the
//! memory that a directory takes does not grow with the archive.

use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};

use zip::read::{ArchiveOffset, Config};

use super::{Step, StepError};

/// Enough for some 150,000 entries with names of the usual length. In memory it takes several times as much.
pub(super) const DIRECTORY_BYTES_MAX: u64 = 16 << 20;
/// Where the last records are looked for: a comment of 64 KiB, and then some.
const TAIL_BYTES: u64 = 128 * 1024;

const LOCATOR: &[u8] = b"PK\x06\x07";
const LOCATOR_BYTES: usize = 20;
const ZIP64_END: &[u8] = b"PK\x06\x06";
const ZIP64_END_BYTES: u64 = 56;
/// What a record of that length gives as its size.
const ZIP64_END_SIZE: u64 = 44;

/// An archive whose last records claim no more than they may.
#[derive(Debug)]
pub(super) struct Checked {
    /// How it is to be opened.
    pub(super) config: Config,
    /// Bytes of the whole archive.
    pub(super) length: u64,
}

/// Checks what the archive claims of its directory. Without zip64 that is 65,535 entries at most.
///
/// Which of several records the library takes is for it to decide, so each of them has to be good.
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
        // With this the library takes the record that was looked at here, and searches for no other.
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
            return Err("the archive holds more entries than it may".into());
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

/// How much of an archive may still be read, and what it means when that is used up.
#[derive(Debug)]
pub(super) struct Allowance {
    left: Cell<u64>,
    refusal: Cell<&'static str>,
}

impl Allowance {
    /// While it is opened.
    pub(super) fn of_directory() -> Self {
        Self {
            left: Cell::new(DIRECTORY_BYTES_MAX),
            refusal: Cell::new("the archive's directory is larger than 16 MiB"),
        }
    }

    /// Once it is open: each byte once, for entries that do not overlap are not longer together.
    pub(super) fn extend_to_entries(&self, length: u64) {
        self.left.set(length);
        self.refusal.set("entries of the archive overlap");
    }
}

/// Reads as much as is allowed.
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

    /// One stored file, and a directory with so many entries for it, each with a comment of this length.
    fn archive(content: &[u8], entries: u16, comment: u16) -> Vec<u8> {
        let length = |bytes: usize| u32::try_from(bytes).expect("small").to_le_bytes();
        let mut crc = flate2::Crc::new();
        crc.update(content);
        let size = length(content.len());
        // Version, flags, method, time and date; then what is in it, and the lengths of its names.
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

    /// The same with a record of zip64 that claims so many entries, and to be of this size.
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
    fn archives_made_by_hand_are_whole_with_and_without_zip64() {
        for archive in [
            archive(b"text", 1, 9),
            with_zip64(archive(b"text", 1, 9), 1, 44),
        ] {
            assert_eq!(unpacked(&archive).expect("whole").read("f0000"), "text");
        }
        // What comes before an archive without zip64, such as a program that unpacks it, is skipped.
        let archive = [&[b'#'; 1000], &archive(b"text", 1, 9)[..]].concat();
        assert_eq!(unpacked(&archive).expect("whole").read("f0000"), "text");
    }

    /// Found by reading: the library holds the whole directory in memory before any limit was looked at.
    #[test]
    fn a_directory_that_would_take_much_memory_is_refused() {
        let refused = |archive: &[u8]| unpacked(archive).map(drop).expect_err("refused");
        let error = refused(&archive(&[0; 1 << 16], 99, 0));
        assert!(error.contains("overlap"), "{error}");
        let error = refused(&archive(b"text", 300, u16::MAX));
        assert!(error.contains("directory is larger"), "{error}");
        let error = refused(&with_zip64(archive(b"text", 1, 0), 101, 44));
        assert!(error.contains("more entries"), "{error}");
        let error = refused(&with_zip64(archive(b"text", 1, 0), u64::MAX, 44));
        assert!(error.contains("more entries"), "{error}");
        let error = refused(&with_zip64(archive(b"text", 1, 0), 1, 1 << 40));
        assert!(error.contains("too long"), "{error}");
    }
}
