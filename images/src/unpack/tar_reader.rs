//! The entries of a tar archive: ustar, pax and GNU headers.
//!
//! [`TarReader::next_entry`] reads the header of the next entry, and [`TarReader::read_data`] its data. Invariant: a header takes a
//! bounded number of bytes of memory, whatever the archive says, and the data of an entry ends where its header says.

use std::io::Read;

use super::content::Content;
use super::sparse::{self, SparseMap};
use super::{Refusal, path};
use crate::descriptor::Digest;

const BLOCK_BYTES: usize = 512;
/// The longest pax header or GNU long name, as in Go's `archive/tar`, by which Docker reads.
const EXTENSION_BYTES_MAX: u64 = 1 << 20;
/// The longest target of a link that the kernel takes.
const LINK_BYTES_MAX: usize = 4095;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    File,
    HardLink,
    Symlink,
    Character,
    Block,
    Folder,
    Fifo,
}

/// An entry of the archive, without its data.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    /// A clean path.
    pub(super) path: Vec<u8>,
    /// The target of a link as the archive spells it; not empty for links.
    pub(super) link: Vec<u8>,
    /// Permissions with setuid, setgid and sticky.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Seconds and nanoseconds since 1970.
    pub(super) modified: (i64, u32),
    /// Major and minor number of a device.
    pub(super) device: (u32, u32),
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The parts of a sparse file that are data.
    pub(super) sparse: Option<SparseMap>,
}

/// The entries of an archive, in order.
pub(super) struct TarReader<R: Read> {
    content: Content<R>,
    /// Unread data of the entry.
    data: u64,
    /// Bytes between the data and the next header.
    padding: u64,
    headers: u64,
    headers_max: u64,
}

/// Fields that precede a header, of this entry alone.
#[derive(Debug, Default)]
struct Extension {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    modified: Option<(i64, u32)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    sparse: sparse::PaxFields,
    is_present: bool,
}

impl<R: Read> TarReader<R> {
    pub(super) fn new(content: Content<R>, headers_max: u64) -> Self {
        Self {
            content,
            data: 0,
            padding: 0,
            headers: 0,
            headers_max,
        }
    }

    /// Skips the rest of this entry and reads the header of the next one. Volume labels and global pax headers are skipped, as by
    /// Docker.
    pub(super) fn next_entry(&mut self) -> Result<Option<Entry>, Refusal> {
        let mut extension = Extension::default();
        loop {
            self.skip_rest()?;
            let Some(header) = self.read_header()? else {
                if extension.is_present {
                    return Err(Refusal::malformed("ends after an extension header"));
                }
                return Ok(None);
            };
            let size = number(&header[124..136], "size")?;
            match header[156] {
                b'x' | b'X' => {
                    let records = self.read_extension(size)?;
                    extension.read_records(&records)?;
                }
                b'L' => extension.path = Some(self.read_long_name(size)?),
                b'K' => extension.link = Some(self.read_long_name(size)?),
                b'g' | b'V' => {
                    self.begin_data(size);
                    continue;
                }
                _ => return self.read_entry(&header, size, extension).map(Some),
            }
            extension.is_present = true;
        }
    }

    /// Returns unread data of the entry; only its end has none. The data of a sparse file are its parts without the holes.
    pub(super) fn read_data(&mut self) -> Result<&[u8], Refusal> {
        if self.data == 0 {
            return Ok(&[]);
        }
        let filled = self.content.fill()?;
        if filled.is_empty() {
            return Err(Refusal::malformed("ends in the middle of a file"));
        }
        let most = usize::try_from(self.data).unwrap_or(usize::MAX);
        Ok(&filled[..filled.len().min(most)])
    }

    /// Marks bytes of the last [`TarReader::read_data`] as read.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.data = self.data.saturating_sub(bytes as u64);
        self.content.consume(bytes);
    }

    /// Reads the archive to its end, with everything behind its end marker, and returns the digest and size of the content.
    pub(super) fn finish(self) -> Result<(Digest, u64), Refusal> {
        self.content.finish()
    }

    fn skip_rest(&mut self) -> Result<(), Refusal> {
        while self.data > 0 {
            let count = self.read_data()?.len();
            self.consume(count);
        }
        // The padding of the last file may be missing: umoci 0.4 leaves it out, and Docker accepts such layers.
        let padding = usize::try_from(std::mem::take(&mut self.padding)).unwrap_or_default();
        let mut skipped = [0; BLOCK_BYTES];
        if let Some(skipped) = skipped.get_mut(..padding) {
            self.content.read_up_to(skipped)?;
        }
        Ok(())
    }

    fn begin_data(&mut self, size: u64) {
        self.data = size;
        self.padding = size.wrapping_neg() % BLOCK_BYTES as u64;
    }

    /// Reads a header block. Absent at the end marker, and at the end of the content.
    fn read_header(&mut self) -> Result<Option<[u8; BLOCK_BYTES]>, Refusal> {
        let mut block = [0; BLOCK_BYTES];
        let read = self.content.read_up_to(&mut block)?;
        if read == 0 || (read == BLOCK_BYTES && block == [0; BLOCK_BYTES]) {
            return Ok(None);
        }
        if read < BLOCK_BYTES {
            return Err(Refusal::malformed("ends in the middle of a header"));
        }
        if !has_valid_checksum(&block) {
            return Err(Refusal::malformed("has a header with a wrong checksum"));
        }
        self.headers += 1;
        if self.headers > self.headers_max {
            return Err(Refusal::TooManyEntries {
                entries_max: self.headers_max,
            });
        }
        Ok(Some(block))
    }

    fn read_extension(&mut self, size: u64) -> Result<Vec<u8>, Refusal> {
        if size > EXTENSION_BYTES_MAX {
            return Err(Refusal::malformed(
                "has an extension header of more than 1 MiB",
            ));
        }
        self.begin_data(size);
        let mut bytes = Vec::new();
        while self.data > 0 {
            let chunk = self.read_data()?;
            bytes.extend_from_slice(chunk);
            let count = chunk.len();
            self.consume(count);
        }
        Ok(bytes)
    }

    fn read_long_name(&mut self, size: u64) -> Result<Vec<u8>, Refusal> {
        let mut name = self.read_extension(size)?;
        let end = name.iter().position(|byte| *byte == 0);
        name.truncate(end.unwrap_or(name.len()));
        Ok(name)
    }

    fn read_entry(
        &mut self,
        header: &[u8; BLOCK_BYTES],
        size: u64,
        extension: Extension,
    ) -> Result<Entry, Refusal> {
        let size = extension.size.unwrap_or(size);
        let name = extension
            .sparse
            .name
            .clone()
            .or(extension.path)
            .unwrap_or_else(|| read_name(header));
        let kind = match header[156] {
            0 | b'0' if name.ends_with(b"/") => Kind::Folder,
            0 | b'0' | b'7' | b'S' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' => Kind::Character,
            b'4' => Kind::Block,
            b'5' | b'D' => Kind::Folder,
            b'6' => Kind::Fifo,
            other => {
                let problem = format!("has the unknown type {:?}", char::from(other));
                return Err(Refusal::for_path(&problem, &name));
            }
        };
        // Some writers give a link the size of its target, without data.
        let has_data = matches!(header[156], 0 | b'0' | b'7' | b'S' | b'D');
        self.begin_data(if has_data { size } else { 0 });
        let sparse = self.read_sparse_map(header, kind, size, extension.sparse)?;
        let link = extension
            .link
            .unwrap_or_else(|| until_zero(&header[157..257]).to_vec());
        if matches!(kind, Kind::HardLink | Kind::Symlink)
            && (link.is_empty() || link.len() > LINK_BYTES_MAX || link.contains(&0))
        {
            return Err(Refusal::for_path("is a link with an invalid target", &name));
        }
        let owner = |given: Option<u64>, field: &[u8], what| -> Result<u32, Refusal> {
            let id = given.map_or_else(|| number(field, what), Ok)?;
            // The largest number means "unchanged" to the kernel.
            u32::try_from(id)
                .ok()
                .filter(|id| *id != u32::MAX)
                .ok_or_else(|| Refusal::for_path("has an owner beyond 32 bits", &name))
        };
        Ok(Entry {
            kind,
            path: path::clean(&name)?,
            mode: u32::try_from(number(&header[100..108], "mode")? & 0o7777).unwrap_or_default(),
            uid: owner(extension.uid, &header[108..116], "owner")?,
            gid: owner(extension.gid, &header[116..124], "group")?,
            modified: extension.modified.map_or_else(
                || signed(&header[136..148], "time").map(|time| (time, 0)),
                Ok,
            )?,
            device: match kind {
                Kind::Character | Kind::Block => read_device(header, &name)?,
                _ => (0, 0),
            },
            link,
            xattrs: extension.xattrs,
            sparse,
        })
    }

    /// Reads the map of a sparse file in any of its four forms.
    fn read_sparse_map(
        &mut self,
        header: &[u8; BLOCK_BYTES],
        kind: Kind,
        size: u64,
        fields: sparse::PaxFields,
    ) -> Result<Option<SparseMap>, Refusal> {
        let mut data = size;
        let map = if header[156] == b'S' {
            self.read_old_sparse_map(header)?
        } else if kind != Kind::File {
            return Ok(None);
        } else if fields.is_map_in_data() {
            let (map, map_bytes) = self.read_sparse_map_in_data(&fields)?;
            data = data.saturating_sub(map_bytes);
            map
        } else if let Some(map) = fields.into_map()? {
            map
        } else {
            return Ok(None);
        };
        map.check(data)?;
        Ok(Some(map))
    }

    /// The GNU form: four parts in the header, and blocks with 21 parts each behind it, which are not part of the size.
    fn read_old_sparse_map(&mut self, header: &[u8; BLOCK_BYTES]) -> Result<SparseMap, Refusal> {
        let mut map = SparseMap::new(number(&header[483..495], "real size")?);
        let mut goes_on = map.add_parts(&header[386..482])? && header[482] != 0;
        while goes_on {
            let mut block = [0; BLOCK_BYTES];
            if self.content.read_up_to(&mut block)? < BLOCK_BYTES {
                return Err(Refusal::malformed("ends in the middle of a sparse map"));
            }
            goes_on = map.add_parts(&block[..504])? && block[504] != 0;
        }
        Ok(map)
    }

    /// Version 1.0 of pax: lines of numbers at the beginning of the data, filled up to whole blocks.
    fn read_sparse_map_in_data(
        &mut self,
        fields: &sparse::PaxFields,
    ) -> Result<(SparseMap, u64), Refusal> {
        let mut lines = fields.begin_map();
        let mut bytes = 0;
        while !lines.is_complete() {
            let mut block = [0; BLOCK_BYTES];
            if self.data < BLOCK_BYTES as u64 || self.content.read_up_to(&mut block)? < BLOCK_BYTES
            {
                return Err(Refusal::malformed("ends in the middle of a sparse map"));
            }
            self.data -= BLOCK_BYTES as u64;
            bytes += BLOCK_BYTES as u64;
            lines.read(&block)?;
        }
        Ok((lines.into_map(), bytes))
    }
}

impl Extension {
    /// Reads the records `length key=value\n` of a pax header.
    fn read_records(&mut self, mut records: &[u8]) -> Result<(), Refusal> {
        let invalid = || Refusal::malformed("has an invalid pax header");
        while !records.is_empty() && records != vec![0; records.len()] {
            let space = records.iter().position(|byte| *byte == b' ');
            let space = space.ok_or_else(invalid)?;
            let length = decimal(&records[..space]).and_then(|length| usize::try_from(length).ok());
            let length = length
                .filter(|length| *length > space + 1)
                .ok_or_else(invalid)?;
            let record = records.get(space + 1..length).ok_or_else(invalid)?;
            let record = record.strip_suffix(b"\n").ok_or_else(invalid)?;
            let equals = record.iter().position(|byte| *byte == b'=');
            let equals = equals.ok_or_else(invalid)?;
            self.read_record(&record[..equals], &record[equals + 1..])
                .ok_or_else(invalid)?;
            records = &records[length..];
        }
        Ok(())
    }

    /// Returns nothing if the value is invalid. An empty value means the header's own one.
    fn read_record(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        const XATTR: &[u8] = b"SCHILY.xattr.";
        let given = (!value.is_empty()).then_some(value);
        match key {
            b"path" => self.path = given.map(<[u8]>::to_vec),
            b"linkpath" => self.link = given.map(<[u8]>::to_vec),
            b"size" => self.size = read_optional(given, decimal)?,
            b"uid" => self.uid = read_optional(given, decimal)?,
            b"gid" => self.gid = read_optional(given, decimal)?,
            b"mtime" => self.modified = read_optional(given, decimal_time)?,
            _ if key.starts_with(b"GNU.sparse.") => self.sparse.read(key, value)?,
            _ => {
                if let Some(name) = key.strip_prefix(XATTR) {
                    if name.is_empty() || name.contains(&0) {
                        return None;
                    }
                    self.xattrs.retain(|(earlier, _)| earlier != name);
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Some(())
    }
}

/// The outer value is absent for an invalid text, and the inner one for a missing text.
fn read_optional<T>(
    text: Option<&[u8]>,
    read: impl FnOnce(&[u8]) -> Option<T>,
) -> Option<Option<T>> {
    text.map_or(Some(None), |text| read(text).map(Some))
}

fn read_name(header: &[u8; BLOCK_BYTES]) -> Vec<u8> {
    let name = until_zero(&header[..100]);
    // GNU headers have times in the place of the prefix, and those of star a shorter prefix.
    let prefix = match (&header[257..263], &header[508..512]) {
        (b"ustar\0", b"tar\0") => until_zero(&header[345..476]),
        (b"ustar\0", _) => until_zero(&header[345..500]),
        _ => b"",
    };
    path::join(prefix, name)
}

fn read_device(header: &[u8; BLOCK_BYTES], name: &[u8]) -> Result<(u32, u32), Refusal> {
    // The kernel has 12 bits for the major number and 20 for the minor number.
    let read = |field: &[u8], max: u64| {
        let number = number(field, "device number")?;
        u32::try_from(number)
            .ok()
            .filter(|_| number <= max)
            .ok_or_else(|| Refusal::for_path("has an invalid device number", name))
    };
    Ok((
        read(&header[329..337], 0xfff)?,
        read(&header[337..345], 0xf_ffff)?,
    ))
}

fn until_zero(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0);
    &field[..end.unwrap_or(field.len())]
}

/// Old writers summed up signed bytes.
fn has_valid_checksum(block: &[u8; BLOCK_BYTES]) -> bool {
    const FIELD: std::ops::Range<usize> = 148..156;
    let Ok(expected) = signed(&block[FIELD], "checksum") else {
        return false;
    };
    let bytes = block
        .iter()
        .enumerate()
        .map(|(at, byte)| if FIELD.contains(&at) { b' ' } else { *byte });
    let unsigned: i64 = bytes.clone().map(i64::from).sum();
    let signed: i64 = bytes.map(|byte| i64::from(byte.cast_signed())).sum();
    expected == unsigned || expected == signed
}

/// Reads a number field that must not be negative.
pub(super) fn number(field: &[u8], what: &str) -> Result<u64, Refusal> {
    let value = signed(field, what)?;
    u64::try_from(value).map_err(|_| invalid_field(what))
}

/// Reads a number field: octal digits, or base 256 if the first bit is set.
fn signed(field: &[u8], what: &str) -> Result<i64, Refusal> {
    if let Some((first, rest)) = field.split_first().filter(|(first, _)| **first & 0x80 != 0) {
        let is_negative = first & 0x40 != 0;
        let head = i128::from(first & 0x7f) - if is_negative { 0x80 } else { 0 };
        // Twelve bytes at most, so the value fits.
        let value = rest
            .iter()
            .take(11)
            .fold(head, |value, byte| (value << 8) | i128::from(*byte));
        return i64::try_from(value).map_err(|_| invalid_field(what));
    }
    let is_filler = |byte: &u8| matches!(byte, b' ' | 0);
    let start = field.iter().position(|byte| !is_filler(byte));
    let digits = &field[start.unwrap_or(field.len())..];
    let end = digits.iter().position(is_filler).unwrap_or(digits.len());
    let mut value: i64 = 0;
    for digit in &digits[..end] {
        if !(b'0'..=b'7').contains(digit) {
            return Err(invalid_field(what));
        }
        // Twelve digits at most, of three bits each.
        value = (value << 3) | i64::from(digit - b'0');
    }
    Ok(value)
}

fn invalid_field(what: &str) -> Refusal {
    Refusal::malformed(&format!("has a header with an invalid {what}"))
}

/// Reads a decimal number that fits into a signed one, as all sizes do.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = std::str::from_utf8(text).ok()?.parse().ok()?;
    i64::try_from(number).ok().map(|_| number)
}

/// Reads seconds with a sign and a fraction of any length.
fn decimal_time(text: &[u8]) -> Option<(i64, u32)> {
    let (is_negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let point = text
        .iter()
        .position(|byte| *byte == b'.')
        .unwrap_or(text.len());
    let seconds = i64::try_from(decimal(&text[..point])?).ok()?;
    let fraction = text.get(point + 1..).unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0'));
    let nanoseconds = digits
        .take(9)
        .fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    Some(match (is_negative, nanoseconds) {
        (false, _) => (seconds, nanoseconds),
        (true, 0) => (-seconds, 0),
        (true, _) => (-seconds - 1, 1_000_000_000 - nanoseconds),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_fields_are_octal_or_binary() {
        assert_eq!(number(b"0000644\0", "mode").expect("valid"), 0o644);
        assert_eq!(number(b"   644 \0", "mode").expect("valid"), 0o644);
        assert_eq!(number(b"\0\0\0\0", "mode").expect("valid"), 0);
        assert_eq!(
            number(b"777777777777", "size").expect("valid"),
            (1 << 36) - 1
        );
        let binary = [0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1];
        assert_eq!(number(&binary, "size").expect("valid"), (2 << 32) + 1);
        assert_eq!(signed(&[0xff; 12], "time").expect("valid"), -1);
        assert!(number(&[0xff; 12], "size").is_err());
        assert!(signed(&[0xbf; 12], "size").is_err());
        assert!(number(b"0009", "mode").is_err());
        assert!(number(b"-1", "mode").is_err());
    }

    #[test]
    fn pax_times_have_fractions() {
        assert_eq!(decimal_time(b"12"), Some((12, 0)));
        assert_eq!(decimal_time(b"12.5"), Some((12, 500_000_000)));
        assert_eq!(decimal_time(b"12.0000000019"), Some((12, 1)));
        assert_eq!(decimal_time(b"-1.5"), Some((-2, 500_000_000)));
        assert_eq!(decimal_time(b"-1"), Some((-1, 0)));
        for invalid in ["", "-", "1.x", "1e5", "99999999999999999999"] {
            assert_eq!(decimal_time(invalid.as_bytes()), None, "{invalid}");
        }
    }

    #[test]
    fn invalid_pax_records_are_refused() {
        let read = |records: &[u8]| Extension::default().read_records(records);
        assert!(read(b"12 path=abc\n").is_ok());
        for invalid in [
            &b"13 path=abc\n"[..],
            b"11 path=abc\n",
            b"2 ",
            b"0 path=abc\n",
            b"99999999999999999999 path=abc\n",
            b"path=abc\n",
            b"9 pathabc\n",
            b"11 size=-1\n",
            b"18 SCHILY.xattr.=\n",
        ] {
            assert!(
                read(invalid).is_err(),
                "{:?}",
                String::from_utf8_lossy(invalid)
            );
        }
    }
}
