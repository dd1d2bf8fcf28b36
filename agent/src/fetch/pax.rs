//! The records of an extended header of a tar archive (POSIX pax): `<length> <key>=<value>\n`, again and again.
//!
//! Values are bytes of any length: attributes of files above all. Only of the keys that are understood is the value read.

use std::io::{self, BufRead as _, BufReader, Read};

use super::unpack::{NAME_BYTES_MAX, broken, text};
use super::{Step, StepError};

const CHUNK_BYTES: usize = 4096;
/// Those of the largest length that there can be, and the blank behind them.
const LENGTH_BYTES_MAX: u64 = 21;

/// What is told of an entry before its own header.
#[derive(Debug, Default)]
pub(super) struct Extended {
    pub(super) name: Option<String>,
    /// Where a link leads.
    pub(super) link: Option<String>,
    /// In place of the size in its header, where one of 8 GiB finds no room.
    pub(super) size: Option<u64>,
    /// Whether its data is a map of what is there and that.
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
        let is_of_sparse = key.starts_with(b"GNU.sparse.");
        self.is_sparse |= is_of_sparse;
        let mut value = records.take(length);
        match key {
            b"path" | b"GNU.sparse.name" => self.name = read_text(&mut value)?,
            b"linkpath" => self.link = read_text(&mut value)?,
            b"size" => {
                let size = read_text(&mut value)?;
                let size = size.map(|size| number(size.as_bytes()).ok_or_else(malformed));
                self.size = size.transpose()?;
            }
            _ => {
                io::copy(&mut value, &mut io::sink()).map_err(broken)?;
            }
        }
        Ok(())
    }
}

/// How much of a record follows its length; none behind the last one.
fn read_length(records: &mut impl io::BufRead) -> Step<Option<u64>> {
    let mut length = Vec::new();
    let mut start = records.take(LENGTH_BYTES_MAX);
    start.read_until(b' ', &mut length).map_err(broken)?;
    // Some fill the header up.
    if matches!(length.first(), None | Some(0)) {
        return Ok(None);
    }
    let left = length.strip_suffix(b" ").and_then(number);
    let left = left.and_then(|all| all.checked_sub(length_of(&length)));
    left.ok_or_else(malformed).map(Some)
}

/// None for a value that is empty, which takes back what an earlier record said.
fn read_text(value: &mut impl Read) -> Step<Option<String>> {
    let mut bytes = Vec::new();
    let mut limited = value.take(NAME_BYTES_MAX + 1);
    limited.read_to_end(&mut bytes).map_err(broken)?;
    if length_of(&bytes) > NAME_BYTES_MAX {
        return Err("a name in the archive is too long".into());
    }
    let text = text(&bytes)?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

fn number(digits: &[u8]) -> Option<u64> {
    let is_number = digits.iter().all(u8::is_ascii_digit);
    let digits = str::from_utf8(digits).ok().filter(|_| is_number);
    digits?.parse().ok()
}

fn length_of(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn malformed() -> StepError {
    "the archive is damaged: an extended header holds something else than records".into()
}
