//! Sparse files in an archive: the parts that are data, in the forms of GNU tar.
//!
//! Pure. Invariant: the parts of a checked [`SparseMap`] are in order, do not overlap, lie within the file's size, and have
//! as many bytes as the entry has data.

use super::Refusal;
use super::tar_reader::{decimal, number};

/// The number of parts of a sparse file; a real one has some thousands.
const PARTS_MAX: usize = 100_000;

/// The parts of a sparse file that are data.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct SparseMap {
    /// Size of the file, with its holes.
    size: u64,
    /// Offset and length of each part.
    parts: Vec<(u64, u64)>,
}

impl SparseMap {
    pub(super) fn new(size: u64) -> Self {
        Self {
            size,
            parts: Vec::new(),
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn parts(&self) -> &[(u64, u64)] {
        &self.parts
    }

    /// Adds the parts of a header, 24 bytes each. Returns whether all of them are in use, so that more may follow.
    pub(super) fn add_parts(&mut self, table: &[u8]) -> Result<bool, Refusal> {
        for part in table.chunks_exact(24) {
            let (offset, length) = part.split_at(12);
            if offset.first() == Some(&0) && length.first() == Some(&0) {
                return Ok(false);
            }
            self.add(number(offset, "offset")?, number(length, "length")?)?;
        }
        Ok(true)
    }

    fn add(&mut self, offset: u64, length: u64) -> Result<(), Refusal> {
        if self.parts.len() == PARTS_MAX {
            return Err(Refusal::malformed(
                "has a sparse file of more than 100000 parts",
            ));
        }
        self.parts.push((offset, length));
        Ok(())
    }

    /// Checks the parts against the number of bytes of data.
    pub(super) fn check(&self, data: u64) -> Result<(), Refusal> {
        let (mut end, mut sum) = (0_u64, 0_u64);
        for (offset, length) in &self.parts {
            let next = offset.checked_add(*length);
            let Some(next) = next.filter(|next| *offset >= end && *next <= self.size) else {
                return Err(Refusal::malformed("has a sparse file with invalid parts"));
            };
            (end, sum) = (next, sum + length);
        }
        if sum != data {
            return Err(Refusal::malformed(
                "has a sparse file whose parts are not its data",
            ));
        }
        Ok(())
    }
}

/// The fields `GNU.sparse.*` of a pax header.
#[derive(Debug, Default)]
pub(super) struct PaxFields {
    /// The name of the file; the header has a made-up one.
    pub(super) name: Option<Vec<u8>>,
    size: Option<u64>,
    is_version_1: bool,
    /// The numbers of the versions 0.0 and 0.1, in the order in which they came.
    numbers: Option<Vec<u64>>,
}

impl PaxFields {
    /// Reads a field. Returns nothing if its value is invalid.
    pub(super) fn read(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"GNU.sparse.name" => self.name = Some(value.to_vec()),
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => self.size = Some(decimal(value)?),
            b"GNU.sparse.major" => self.is_version_1 = decimal(value)? == 1,
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                self.numbers.get_or_insert_default().push(decimal(value)?);
            }
            b"GNU.sparse.map" => {
                let numbers = value.split(|byte| *byte == b',').map(decimal);
                let is_empty = value.is_empty();
                let numbers = if is_empty {
                    Some(Vec::new())
                } else {
                    numbers.collect()
                };
                self.numbers = Some(numbers?);
            }
            _ => {}
        }
        Some(())
    }

    /// Whether the data begin with the map.
    pub(super) fn is_map_in_data(&self) -> bool {
        self.is_version_1 && self.size.is_some()
    }

    /// The map of the versions 0.0 and 0.1; absent for a file that is not sparse.
    pub(super) fn into_map(self) -> Result<Option<SparseMap>, Refusal> {
        let (Some(size), Some(numbers)) = (self.size, self.numbers) else {
            return Ok(None);
        };
        let mut map = SparseMap::new(size);
        for part in numbers.chunks(2) {
            let [offset, length] = part else {
                return Err(Refusal::malformed("has an invalid sparse map"));
            };
            map.add(*offset, *length)?;
        }
        Ok(Some(map))
    }

    /// Begins to read the map of version 1.0.
    pub(super) fn begin_map(&self) -> MapLines {
        MapLines {
            map: SparseMap::new(self.size.unwrap_or_default()),
            digits: Vec::new(),
            count: None,
            offset: None,
        }
    }
}

/// The map of version 1.0: a number of parts, then offset and length of each, a number a line.
#[derive(Debug)]
pub(super) struct MapLines {
    map: SparseMap,
    /// The digits of an incomplete line.
    digits: Vec<u8>,
    count: Option<u64>,
    offset: Option<u64>,
}

impl MapLines {
    pub(super) fn is_complete(&self) -> bool {
        self.count == Some(self.map.parts.len() as u64)
    }

    pub(super) fn into_map(self) -> SparseMap {
        self.map
    }

    /// Reads a block; bytes behind the last line are filler.
    pub(super) fn read(&mut self, block: &[u8]) -> Result<(), Refusal> {
        let invalid = || Refusal::malformed("has an invalid sparse map");
        for byte in block {
            if *byte != b'\n' {
                self.digits.push(*byte);
                // A number has 19 digits at most.
                if self.digits.len() > 19 {
                    return Err(invalid());
                }
                continue;
            }
            let value = decimal(&self.digits).ok_or_else(invalid)?;
            self.digits.clear();
            match (self.count, self.offset.take()) {
                (None, _) => self.count = Some(value),
                (_, None) => self.offset = Some(value),
                (_, Some(offset)) => self.map.add(offset, value)?,
            }
            if self.is_complete() {
                return Ok(());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_must_fit_file_and_data() {
        let map = |size, parts: &[(u64, u64)]| SparseMap {
            size,
            parts: parts.to_vec(),
        };
        assert!(map(100, &[(0, 10), (50, 50)]).check(60).is_ok());
        assert!(map(100, &[(100, 0)]).check(0).is_ok());
        assert!(map(100, &[(0, 10), (50, 50)]).check(61).is_err());
        assert!(map(100, &[(50, 10), (0, 10)]).check(20).is_err());
        assert!(map(100, &[(0, 10), (5, 10)]).check(20).is_err());
        assert!(map(100, &[(95, 10)]).check(10).is_err());
        assert!(map(100, &[(u64::MAX, 10)]).check(10).is_err());
    }

    #[test]
    fn map_lines_end_with_last_part() {
        let mut fields = PaxFields::default();
        for (key, value) in [("major", "1"), ("minor", "0"), ("realsize", "1000")] {
            let key = format!("GNU.sparse.{key}");
            assert!(fields.read(key.as_bytes(), value.as_bytes()).is_some());
        }
        assert!(fields.is_map_in_data());
        let mut lines = fields.begin_map();
        lines.read(b"2\n0\n5\n9").expect("valid");
        assert!(!lines.is_complete());
        lines.read(b"90\n10\nfiller\n").expect("valid");
        assert!(lines.is_complete());
        assert_eq!(lines.into_map().parts(), [(0, 5), (990, 10)]);
    }
}
