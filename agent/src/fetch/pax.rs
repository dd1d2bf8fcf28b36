//! The records of an extended header of a tar archive (POSIX pax): `<length> <key>=<value>\n`, repeated.
//!
//! Values are bytes of any length, mostly attributes of files. Only the values of known keys are read.

use std::io::{self, BufRead as _, BufReader, Read};

use super::unpack::{NAME_BYTES_MAX, broken, read_name};
use super::{Step, StepError};

const CHUNK_BYTES: usize = 4096;
/// The digits of the largest possible length, and the following blank.
const LENGTH_BYTES_MAX: u64 = 21;

/// The fields that precede an entry's own header.
#[derive(Debug, Default)]
pub(super) struct Extended {
    pub(super) name: Option<String>,
    /// The target of a link.
    pub(super) link: Option<String>,
    /// The size, which replaces that of the header: a size of 8 GiB does not fit there.
    pub(super) size: Option<u64>,
    /// The time of the last change: seconds since 1970, and nanoseconds.
    pub(super) modified: Option<(i64, u32)>,
    /// Whether the data is that of a sparse file, which begins with a map.
    pub(super) is_sparse: bool,
}

impl Extended {
    /// Reads all records of one extended header.
    pub(super) fn read(&mut self, records: impl Read) -> Step<()> {
        let mut records = BufReader::with_capacity(CHUNK_BYTES, records);
        while let Some(left) = read_length(&mut records)? {
            let mut key = Vec::new();
            let mut start = records.by_ref().take(left.min(NAME_BYTES_MAX));
            start.read_until(b'=', &mut key).map_err(broken)?;
            let left = left
                .checked_sub(length_of(&key))
                .and_then(|left| left.checked_sub(1));
            let (Some(b'='), Some(left)) = (key.pop(), left) else {
                return Err(malformed());
            };
            self.read_value(&key, left, &mut records)?;
            let mut end = [0];
            records.read_exact(&mut end).map_err(broken)?;
            if end != *b"\n" {
                return Err(malformed());
            }
        }
        Ok(())
    }

    fn read_value(&mut self, key: &[u8], length: u64, records: &mut impl Read) -> Step<()> {
        self.is_sparse |= key.starts_with(b"GNU.sparse.");
        let mut value = records.take(length);
        match key {
            b"path" | b"GNU.sparse.name" => self.name = read_text(&mut value)?,
            b"linkpath" => self.link = read_text(&mut value)?,
            b"size" => {
                let size = read_text(&mut value)?;
                let size = size.map(|size| number(size.as_bytes()).ok_or_else(malformed));
                self.size = size.transpose()?;
            }
            b"mtime" => {
                let time = read_text(&mut value)?;
                let time = time.map(|time| moment(&time).ok_or_else(malformed));
                self.modified = time.transpose()?;
            }
            _ => {
                io::copy(&mut value, &mut io::sink()).map_err(broken)?;
            }
        }
        Ok(())
    }
}

/// The number of bytes that follow the length of a record; `None` after the last record.
fn read_length(records: &mut impl io::BufRead) -> Step<Option<u64>> {
    let mut length = Vec::new();
    let mut start = records.take(LENGTH_BYTES_MAX);
    start.read_until(b' ', &mut length).map_err(broken)?;
    // Some programs pad the header.
    if matches!(length.first(), None | Some(0)) {
        return Ok(None);
    }
    let left = length.strip_suffix(b" ").and_then(number);
    let left = left.and_then(|all| all.checked_sub(length_of(&length)));
    left.ok_or_else(malformed).map(Some)
}

/// Reads a text. `None` for an empty value, which revokes that of an earlier record.
fn read_text(value: &mut impl Read) -> Step<Option<String>> {
    let text = read_name(value)?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

fn number(digits: &[u8]) -> Option<u64> {
    let is_number = digits.iter().all(u8::is_ascii_digit);
    let digits = str::from_utf8(digits).ok().filter(|_| is_number);
    digits?.parse().ok()
}

/// Parses seconds since 1970, with an optional sign and fraction; digits beyond nanoseconds are ignored.
fn moment(text: &str) -> Option<(i64, u32)> {
    let (is_before, text) = match text.strip_prefix('-') {
        Some(text) => (true, text),
        None => (false, text),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole = i64::try_from(number(whole.as_bytes())?).ok()?;
    let digits = fraction
        .bytes()
        .chain(std::iter::repeat(b'0'))
        .take(9)
        .collect::<Vec<_>>();
    let nanoseconds = u32::try_from(number(&digits)?).ok()?;
    match (is_before, nanoseconds) {
        (false, _) => Some((whole, nanoseconds)),
        (true, 0) => Some((-whole, 0)),
        // The fraction counts upwards.
        (true, _) => Some((-whole - 1, 1_000_000_000 - nanoseconds)),
    }
}

fn length_of(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn malformed() -> StepError {
    "the archive is damaged: an extended header has invalid records".into()
}

#[cfg(test)]
mod tests {
    use tar::EntryType::Regular;

    use super::super::tests::{Fixture, header, pax_record, tar_of};

    /// A file behind an extended header of these bytes; its own header contains this size.
    fn behind_pax(records: &[u8], name: &str, content: &str, size: usize) -> Vec<u8> {
        let padded = |bytes: &[u8]| {
            let mut padded = bytes.to_vec();
            padded.resize(bytes.len().next_multiple_of(512), 0);
            padded
        };
        let parts = [
            padded(header(tar::EntryType::XHeader, "pax", records.len()).as_bytes()),
            padded(records),
            padded(header(Regular, name, size).as_bytes()),
            padded(content.as_bytes()),
        ];
        parts.concat()
    }

    /// Files of 8 GiB and more have such headers. Regression: these files were extracted empty, and the later entries
    /// not at all.
    #[test]
    fn extended_header_size_counts() {
        let fixture = Fixture::new();
        let first = behind_pax(&pax_record("size", b"5"), "first", "zeros", 0);
        let archive = [first, tar_of(&[(Regular, "second", "text")])].concat();
        fixture
            .fetch(fixture.give("a.tar", &archive))
            .expect("fetched");
        assert_eq!(fixture.read("first"), "zeros");
        assert_eq!(fixture.read("second"), "text");
    }

    /// Extended attributes, which tar writes with `--xattrs`, and the tar of macOS always.
    #[test]
    fn unknown_records_hold_any_bytes() {
        let attributes = [
            pax_record("SCHILY.xattr.user.b", b"\xff\n=\xfe\0 12 path=x\n"),
            pax_record("SCHILY.xattr.user.long", &vec![0xfe; 70_000]),
            pax_record("path", "ähm".as_bytes()),
            pax_record("mtime", b"1.5"),
            // Some programs pad it.
            vec![0; 100],
        ];
        let fixture = Fixture::new();
        let archive = behind_pax(&attributes.concat(), "short", "text", 4);
        fixture
            .fetch(fixture.give("a.tar", &archive))
            .expect("fetched");
        assert_eq!(fixture.read("ähm"), "text");
    }

    /// The data of a sparse file begins with a map, and its real name is in a record.
    #[test]
    fn sparse_files_are_refused() {
        let records = [
            pax_record("GNU.sparse.major", b"1"),
            pax_record("GNU.sparse.name", b"disk.img"),
            pax_record("GNU.sparse.realsize", b"20971524"),
        ];
        let posix = behind_pax(&records.concat(), "GNUSparseFile.1/disk.img", "1\n0\n", 4);
        let gnu = tar_of(&[(tar::EntryType::GNUSparse, "disk.img", "")]);
        for archive in [posix, gnu] {
            let fixture = Fixture::new();
            let error = fixture.fetch(fixture.give("a.tar", &archive));
            let expected = r#""disk.img" has an unsupported kind: GNUSparse"#;
            assert!(error.expect_err("refused").contains(expected));
        }
    }

    #[test]
    fn invalid_extended_headers_are_damage() {
        let long = pax_record("path", "n".repeat(70_000).as_bytes());
        for (records, expected) in [
            (&b"x path=y\n"[..], "invalid records"),
            (b"9999999999999999999999 path=y\n", "invalid records"),
            (b"2 path=y\n", "invalid records"),
            (b"9 path=yy\n", "invalid records"),
            (b"9 pathyy\n", "invalid records"),
            (b"900 path=y\n", "damaged"),
            (b"11 size=-1\n", "invalid records"),
            (b"11 path=\xff\xfe\n", "not UTF-8"),
            (&long, "too long"),
        ] {
            let fixture = Fixture::new();
            let archive = behind_pax(records, "file", "text", 4);
            let error = fixture.fetch(fixture.give("a.tar", &archive));
            let error = error.expect_err("refused");
            assert!(error.contains(expected), "{error}");
        }
        // The archive may end anywhere.
        let whole = behind_pax(&pax_record("path", b"name"), "file", "text", 4);
        for end in (1..whole.len()).step_by(97) {
            let fixture = Fixture::new();
            let refused = fixture.fetch(fixture.give("a.tar", &whole[..end]));
            assert!(refused.is_err() || end == 1024, "{end}");
        }
    }

    #[test]
    fn timestamps_keep_sign_and_fraction() {
        for (text, moment) in [
            ("0", Some((0, 0))),
            ("12.5", Some((12, 500_000_000))),
            ("1.0000000009", Some((1, 0))),
            ("-1.25", Some((-2, 750_000_000))),
            ("-3", Some((-3, 0))),
            ("1.x", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(super::moment(text), moment, "{text}");
        }
    }
}
