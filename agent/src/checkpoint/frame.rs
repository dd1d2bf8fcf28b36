//! How bytes are kept so that a torn or rotten file is noticed: one frame per file, or many in a log.
//!
//! A file: magic, version, length, checksum, body. A log: a header, then length, checksum and body per
//! record. Pure: values to values. Invariant: what decodes is what was encoded, byte for byte; a log
//! cut anywhere yields a prefix of its records.

/// First bytes of a whole-file record.
const FILE_MAGIC: [u8; 4] = *b"MSTR";
/// First bytes of an append-only log.
const LOG_MAGIC: [u8; 4] = *b"MSTL";
/// The version written; older ones are read, newer ones refused untouched.
pub(super) const VERSION: u32 = 1;
/// magic 4, version 4, length 4, checksum 4.
const FILE_HEADER_BYTES: usize = 16;
/// magic 4, version 4.
pub(super) const LOG_HEADER_BYTES: usize = 8;
/// length 4, checksum 4.
const RECORD_HEADER_BYTES: usize = 8;
/// Nothing that is checkpointed comes near this; a greater length is damage, not data.
pub(super) const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Why bytes are no record of ours.
#[derive(Debug, thiserror::Error, Eq, PartialEq)]
pub enum FrameError {
    /// Shorter than its header or than its own length says.
    #[error("it is cut short")]
    Short,
    /// Bytes after the end.
    #[error("it has bytes after its end")]
    Long,
    /// The file has another magic number.
    #[error("it does not begin as a record does")]
    Magic,
    /// Written by a later version.
    #[error("it is of version {0}, and this agent reads up to {VERSION}")]
    Newer(u32),
    /// The body is not what was written.
    #[error("its checksum does not match")]
    Checksum,
    /// The body is too long to be one.
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

fn body_length(body: &[u8]) -> Result<u32, FrameError> {
    if body.len() > BODY_BYTES_MAX {
        return Err(FrameError::TooLong);
    }
    u32::try_from(body.len()).map_err(|_| FrameError::TooLong)
}

/// The bytes of a file that holds `body`.
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

/// The body of a file.
pub(super) fn decode_file(file: &[u8]) -> Result<&[u8], FrameError> {
    let header = file.get(..FILE_HEADER_BYTES).ok_or(FrameError::Short)?;
    if !header.starts_with(&FILE_MAGIC) {
        return Err(FrameError::Magic);
    }
    let version = read_u32(header, 4).ok_or(FrameError::Short)?;
    if version > VERSION {
        return Err(FrameError::Newer(version));
    }
    let length = read_u32(header, 8).ok_or(FrameError::Short)?;
    let sum = read_u32(header, 12).ok_or(FrameError::Short)?;
    let body = file.get(FILE_HEADER_BYTES..).ok_or(FrameError::Short)?;
    let length_bytes = usize::try_from(length).map_err(|_| FrameError::TooLong)?;
    match body.len().cmp(&length_bytes) {
        std::cmp::Ordering::Less => Err(FrameError::Short),
        std::cmp::Ordering::Greater => Err(FrameError::Long),
        std::cmp::Ordering::Equal if checksum(length, body) != sum => Err(FrameError::Checksum),
        std::cmp::Ordering::Equal => Ok(body),
    }
}

/// What every log begins with.
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

/// What a log holds.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct LogContents<'a> {
    /// The whole records, in order.
    pub(super) bodies: Vec<&'a [u8]>,
    /// How many bytes of the file they and the header take; what follows is a torn tail.
    pub(super) valid_bytes: usize,
}

/// Reads a log up to its first bad record. A file shorter than the header is an empty log, torn at
/// its creation.
pub(super) fn decode_log(log: &[u8]) -> Result<LogContents<'_>, FrameError> {
    let Some(header) = log.get(..LOG_HEADER_BYTES) else {
        return Ok(LogContents::default());
    };
    if !header.starts_with(&LOG_MAGIC) {
        return Err(FrameError::Magic);
    }
    let version = read_u32(header, 4).ok_or(FrameError::Short)?;
    if version > VERSION {
        return Err(FrameError::Newer(version));
    }
    let mut contents = LogContents {
        bodies: Vec::new(),
        valid_bytes: LOG_HEADER_BYTES,
    };
    while let Some(body) = next_record(log, contents.valid_bytes) {
        contents.valid_bytes += RECORD_HEADER_BYTES + body.len();
        contents.bodies.push(body);
    }
    Ok(contents)
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
    fn a_file_cut_or_changed_anywhere_is_noticed() {
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
    fn a_file_of_a_later_version_is_told_apart_from_damage() {
        let mut file = encode_file(b"x").expect("encodes");
        file[4..8].copy_from_slice(&9_u32.to_le_bytes());
        assert_eq!(decode_file(&file), Err(FrameError::Newer(9)));
    }

    fn log_of(bodies: &[&[u8]]) -> Vec<u8> {
        let mut log = log_header().to_vec();
        for body in bodies {
            encode_record(body, &mut log).expect("encodes");
        }
        log
    }

    #[test]
    fn a_log_cut_at_any_byte_yields_a_prefix() {
        let bodies: [&[u8]; 4] = [b"one", b"", b"three", b"four four"];
        let log = log_of(&bodies);
        let whole = decode_log(&log).expect("decodes");
        assert_eq!(whole.bodies, bodies);
        assert_eq!(whole.valid_bytes, log.len());
        let mut longest = 0;
        for cut in 0..log.len() {
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
    fn a_log_with_a_rotten_record_ends_before_it() {
        let log = log_of(&[b"one", b"two", b"three"]);
        let second = LOG_HEADER_BYTES + RECORD_HEADER_BYTES + 3;
        for at in second..second + RECORD_HEADER_BYTES + 3 {
            let mut rotten = log.clone();
            rotten[at] ^= 0x01;
            let contents = decode_log(&rotten).expect("decodes");
            assert_eq!(contents.bodies, [&b"one"[..]], "changed at {at}");
        }
    }
}
