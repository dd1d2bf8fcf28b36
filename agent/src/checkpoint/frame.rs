//! Encodes bytes so that a torn or damaged file is noticed: one frame per file, or many in a log.
//!
//! A file: magic, version, length, checksum, body. A log: a header, then length, checksum and body per record. Pure:
//! values to values. Invariant: decoding returns the encoded bytes exactly; a log cut anywhere yields a prefix of its
//! records.

/// First bytes of a whole-file record.
const FILE_MAGIC: [u8; 4] = *b"MSTR";
/// First bytes of an append-only log.
const LOG_MAGIC: [u8; 4] = *b"MSTL";
/// The version that the agent writes. It reads older versions and refuses newer ones without changing them. From
/// version 2 on, the checksum of a file covers the version too, and the header of a log ends with a checksum: this
/// distinguishes a later version from a flipped bit.
pub(super) const VERSION: u32 = 1;
/// Magic 4, version 4, length 4 and checksum 4 bytes.
const FILE_HEADER_BYTES: usize = 16;
/// Magic 4 and version 4 bytes.
pub(super) const LOG_HEADER_BYTES: usize = 8;
/// Length 4 and checksum 4 bytes.
const RECORD_HEADER_BYTES: usize = 8;
/// No checkpoint comes near this size; a greater length is damage.
pub(super) const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The reason why bytes are not a valid record.
#[derive(Debug, thiserror::Error, Eq, PartialEq)]
pub enum FrameError {
    /// The bytes are shorter than the header or than the recorded length.
    #[error("it is cut short")]
    Short,
    /// There are bytes after the end.
    #[error("it has bytes after its end")]
    Long,
    /// The file has another magic number.
    #[error("it does not begin with the mark of a record")]
    Magic,
    /// Written by a later version.
    #[error("it has version {0}, and this agent reads up to {VERSION}")]
    Newer(u32),
    /// The body differs from the written body.
    #[error("its checksum does not match")]
    Checksum,
    /// The body is too long for a record.
    #[error("its body is longer than {BODY_BYTES_MAX} bytes")]
    TooLong,
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(field.try_into().ok()?))
}

fn checksum(length: u32, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

/// Whether the bytes really have the later version that they claim: the checksum covers the version and the rest.
fn is_of_version(version: u32, rest: &[&[u8]], sum: u32) -> bool {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&version.to_le_bytes());
    rest.iter().for_each(|part| hasher.update(part));
    hasher.finalize() == sum
}

fn body_length(body: &[u8]) -> Result<u32, FrameError> {
    if body.len() > BODY_BYTES_MAX {
        return Err(FrameError::TooLong);
    }
    u32::try_from(body.len()).map_err(|_| FrameError::TooLong)
}

/// Returns the bytes of a file that holds `body`.
pub(super) fn encode_file(body: &[u8]) -> Result<Vec<u8>, FrameError> {
    let length = body_length(body)?;
    let mut file = Vec::with_capacity(FILE_HEADER_BYTES + body.len());
    file.extend_from_slice(&FILE_MAGIC);
    file.extend_from_slice(&VERSION.to_le_bytes());
    file.extend_from_slice(&length.to_le_bytes());
    file.extend_from_slice(&checksum(length, body).to_le_bytes());
    file.extend_from_slice(body);
    Ok(file)
}

/// Returns the body of a file.
pub(super) fn decode_file(file: &[u8]) -> Result<&[u8], FrameError> {
    let header = file.get(..FILE_HEADER_BYTES).ok_or(FrameError::Short)?;
    if !header.starts_with(&FILE_MAGIC) {
        return Err(FrameError::Magic);
    }
    let version = read_u32(header, 4).ok_or(FrameError::Short)?;
    let length = read_u32(header, 8).ok_or(FrameError::Short)?;
    let sum = read_u32(header, 12).ok_or(FrameError::Short)?;
    let body = file.get(FILE_HEADER_BYTES..).ok_or(FrameError::Short)?;
    if version > VERSION {
        let is_newer = is_of_version(version, &[&length.to_le_bytes(), body], sum);
        return Err(match is_newer {
            true => FrameError::Newer(version),
            false => FrameError::Checksum,
        });
    }
    let length_bytes = usize::try_from(length).map_err(|_| FrameError::TooLong)?;
    match body.len().cmp(&length_bytes) {
        std::cmp::Ordering::Less => Err(FrameError::Short),
        std::cmp::Ordering::Greater => Err(FrameError::Long),
        std::cmp::Ordering::Equal if checksum(length, body) != sum => Err(FrameError::Checksum),
        std::cmp::Ordering::Equal => Ok(body),
    }
}

/// The beginning of every log.
pub(super) fn log_header() -> [u8; LOG_HEADER_BYTES] {
    let mut header = [0; LOG_HEADER_BYTES];
    let (magic, version) = header.split_at_mut(4);
    magic.copy_from_slice(&LOG_MAGIC);
    version.copy_from_slice(&VERSION.to_le_bytes());
    header
}

/// Appends one record to `out`.
pub(super) fn encode_record(body: &[u8], out: &mut Vec<u8>) -> Result<(), FrameError> {
    let length = body_length(body)?;
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&checksum(length, body).to_le_bytes());
    out.extend_from_slice(body);
    Ok(())
}

/// The contents of a log.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct LogContents<'a> {
    /// The whole records, in order.
    pub(super) bodies: Vec<&'a [u8]>,
    /// The length of the header, the whole records and the damage together; the rest is a torn tail.
    pub(super) valid_bytes: usize,
    /// The damaged bytes, if whole records follow them.
    pub(super) hole: Option<Hole>,
}

/// Bytes of a log that are not records.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Hole {
    /// The position in the file.
    pub(super) bytes: std::ops::Range<usize>,
    /// The number of whole records before the hole.
    pub(super) records_before: usize,
}

/// Reads a log. Invalid bytes followed by valid records up to the end are a hole, which costs only itself. Otherwise
/// the log ends before the invalid bytes, torn. The header of a log is synced before the log gets its name: a truncated
/// or zeroed header is damage.
pub(super) fn decode_log(log: &[u8]) -> Result<LogContents<'_>, FrameError> {
    let header = log.get(..LOG_HEADER_BYTES).ok_or(FrameError::Short)?;
    let version = read_u32(header, 4).ok_or(FrameError::Short)?;
    let is_ours = header.starts_with(&LOG_MAGIC) && version <= VERSION;
    if !is_ours && header.starts_with(&LOG_MAGIC) {
        let sum = read_u32(log, LOG_HEADER_BYTES);
        if sum.is_some_and(|sum| is_of_version(version, &[], sum)) {
            return Err(FrameError::Newer(version));
        }
    }
    let mut contents = LogContents {
        valid_bytes: LOG_HEADER_BYTES,
        ..LogContents::default()
    };
    if is_ours {
        contents.take_records(log);
    } else {
        contents.valid_bytes = 0;
    }
    if contents.valid_bytes < log.len() {
        match records_behind(log, contents.valid_bytes) {
            Some(next) => {
                contents.hole = Some(Hole {
                    bytes: contents.valid_bytes..next,
                    records_before: contents.bodies.len(),
                });
                contents.valid_bytes = next;
                contents.take_records(log);
            }
            None if !is_ours => return Err(FrameError::Magic),
            None => {}
        }
    }
    Ok(contents)
}

impl<'a> LogContents<'a> {
    fn take_records(&mut self, log: &'a [u8]) {
        while let Some(body) = next_record(log, self.valid_bytes) {
            self.valid_bytes += RECORD_HEADER_BYTES + body.len();
            self.bodies.push(body);
        }
    }
}

/// The most bytes to checksum during the search for the end of a hole.
const SEARCH_BYTES_MAX: usize = 256 << 20;

/// Returns the position, behind an invalid record, from which valid records follow each other up to the end.
fn records_behind(log: &[u8], bad: usize) -> Option<usize> {
    let mut left = SEARCH_BYTES_MAX;
    let is_chain = |from: usize, left: &mut usize| {
        let mut at = from;
        while at < log.len() {
            let length = read_u32(log, at).and_then(|length| usize::try_from(length).ok());
            let length = length.filter(|length| *length > 0 && *length <= log.len())?;
            *left = left.checked_sub(length)?;
            at += RECORD_HEADER_BYTES + next_record(log, at)?.len();
        }
        Some(())
    };
    let mut starts = bad.saturating_add(1)..log.len().saturating_sub(RECORD_HEADER_BYTES);
    starts.find(|start| is_chain(*start, &mut left).is_some())
}

fn next_record(log: &[u8], at: usize) -> Option<&[u8]> {
    let length = read_u32(log, at)?;
    let sum = read_u32(log, at.checked_add(4)?)?;
    let begin = at.checked_add(RECORD_HEADER_BYTES)?;
    let length_bytes = usize::try_from(length).ok()?;
    if length_bytes > BODY_BYTES_MAX {
        return None;
    }
    let body = log.get(begin..begin.checked_add(length_bytes)?)?;
    (checksum(length, body) == sum).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_or_changed_file_is_noticed() {
        let file = encode_file(b"what matters").expect("encodes");
        assert_eq!(decode_file(&file), Ok(&b"what matters"[..]));
        for cut in 0..file.len() {
            assert!(decode_file(&file[..cut]).is_err(), "cut at {cut}");
        }
        for at in 0..file.len() {
            let mut rotten = file.clone();
            rotten[at] ^= 0x10;
            assert!(decode_file(&rotten).is_err(), "changed at {at}");
        }
        let mut long = file.clone();
        long.push(0);
        assert_eq!(decode_file(&long), Err(FrameError::Long));
    }

    #[test]
    fn later_version_differs_from_damage() {
        let mut file = encode_file(b"x").expect("encodes");
        file[4..8].copy_from_slice(&9_u32.to_le_bytes());
        assert_eq!(decode_file(&file), Err(FrameError::Checksum));
        let sum = crc32fast::hash(&[&file[4..12], b"x"].concat());
        file[12..16].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(decode_file(&file), Err(FrameError::Newer(9)));
        let mut log = log_of(&[b"one", b"two"]);
        log[4..8].copy_from_slice(&9_u32.to_le_bytes());
        let damaged = decode_log(&log).expect("its records are ours");
        assert_eq!(damaged.bodies, [b"one", b"two"]);
        let sum = crc32fast::hash(&log[4..8]);
        log[8..12].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(decode_log(&log), Err(FrameError::Newer(9)));
    }

    fn log_of(bodies: &[&[u8]]) -> Vec<u8> {
        let mut log = log_header().to_vec();
        for body in bodies {
            encode_record(body, &mut log).expect("encodes");
        }
        log
    }

    #[test]
    fn truncated_log_yields_a_prefix() {
        let bodies: [&[u8]; 4] = [b"one", b"", b"three", b"four four"];
        let log = log_of(&bodies);
        let whole = decode_log(&log).expect("decodes");
        assert_eq!(whole.bodies, bodies);
        assert_eq!(whole.valid_bytes, log.len());
        let mut longest = 0;
        for cut in LOG_HEADER_BYTES..log.len() {
            let contents = decode_log(&log[..cut]).expect("a torn log still decodes");
            assert!(contents.valid_bytes <= cut);
            assert_eq!(contents.bodies, bodies[..contents.bodies.len()]);
            assert!(
                contents.bodies.len() >= longest,
                "a longer log lost a record"
            );
            longest = contents.bodies.len();
        }
    }

    #[test]
    fn log_without_beginning_is_damaged() {
        for length in 0..LOG_HEADER_BYTES {
            assert_eq!(
                decode_log(&log_of(&[b"one"])[..length]),
                Err(FrameError::Short)
            );
        }
        // A bad sector.
        for length in [LOG_HEADER_BYTES, 4096] {
            assert_eq!(decode_log(&vec![0; length]), Err(FrameError::Magic));
        }
    }

    #[test]
    fn damaged_record_spares_later_records() {
        let bodies: [&[u8]; 5] = [b"one", b"two", b"three", b"four", b"five"];
        let log = log_of(&bodies);
        let second = LOG_HEADER_BYTES + RECORD_HEADER_BYTES + 3;
        let third = second + RECORD_HEADER_BYTES + 3;
        for at in second..third {
            for bit in [0x01, 0x80, 0xff] {
                let mut rotten = log.clone();
                rotten[at] ^= bit;
                let contents = decode_log(&rotten).expect("decodes");
                assert_eq!(contents.valid_bytes, log.len());
                assert_eq!(
                    contents.bodies,
                    [bodies[0], bodies[2], bodies[3], bodies[4]]
                );
                let hole = Hole {
                    bytes: second..third,
                    records_before: 1,
                };
                assert_eq!(contents.hole, Some(hole), "changed at {at}");
            }
        }
        // Overwrites a sector of the record, whatever it held.
        let mut rotten = log.clone();
        rotten[second + 2..third + 5].fill(0);
        let contents = decode_log(&rotten).expect("decodes");
        assert_eq!(contents.bodies, [bodies[0], bodies[3], bodies[4]]);
        // Damages the header alone, and then the last record, which may also count as torn.
        let mut rotten = log.clone();
        rotten[0] ^= 0x01;
        assert_eq!(decode_log(&rotten).expect("decodes").bodies, bodies);
        let mut rotten = log.clone();
        rotten[log.len() - 1] ^= 0x01;
        let contents = decode_log(&rotten).expect("decodes");
        assert_eq!(contents.bodies, bodies[..4]);
        assert_eq!(contents.hole, None);
    }
}
