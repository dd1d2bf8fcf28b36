//! RecordIO: the framing of every Mesos stream, `<decimal length>\n<bytes>` over and over.
//!
//! Chunk boundaries of the transport mean nothing here. After a bad header the stream is lost, since the start of the next
//! record is unknown: the decoder fails once and for all.

use bytes::{Buf, Bytes, BytesMut};

/// The digits of `u64::MAX`: a longer header without a newline is invalid.
const HEADER_MAX_DIGITS: usize = 20;

/// Encodes a record with its header, in one buffer: real clients need both in the same HTTP chunk.
#[must_use]
pub fn encode(record: &[u8]) -> Bytes {
    let header = format!("{}\n", record.len());
    let mut out = BytesMut::with_capacity(header.len() + record.len());
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(record);
    out.freeze()
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("failed to decode a RecordIO stream: {header:?} is not a length")]
    Header { header: String },
    #[error(
        "failed to decode a RecordIO stream: a record of {length} bytes, at most {max} allowed"
    )]
    TooLong { length: u64, max: usize },
    #[error("failed to decode a RecordIO stream: it ended within a record")]
    Truncated,
}

/// Takes bytes as they arrive and returns whole records.
#[derive(Debug)]
pub struct Decoder {
    max_record_bytes: usize,
    buffer: BytesMut,
    state: State,
}

#[derive(Debug)]
enum State {
    Header,
    Record { length: usize },
    Failed(Error),
}

impl Decoder {
    /// A decoder that refuses a record longer than `max_record_bytes` before it allocates anything for it.
    #[must_use]
    pub fn new(max_record_bytes: usize) -> Self {
        Self {
            max_record_bytes,
            buffer: BytesMut::new(),
            state: State::Header,
        }
    }

    /// Adds bytes; [`Self::next_record`] then returns records.
    pub fn push(&mut self, bytes: &[u8]) {
        if !matches!(self.state, State::Failed(_)) {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// The next whole record, or `None` until more bytes are pushed. An error repeats for ever.
    pub fn next_record(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            match &self.state {
                State::Failed(error) => return Err(error.clone()),
                State::Header => match self.header() {
                    Ok(Some(length)) => self.state = State::Record { length },
                    Ok(None) => return Ok(None),
                    Err(error) => {
                        self.buffer = BytesMut::new();
                        self.state = State::Failed(error);
                    }
                },
                State::Record { length } => {
                    let length = *length;
                    if self.buffer.len() < length {
                        self.buffer.reserve(length - self.buffer.len());
                        return Ok(None);
                    }
                    self.state = State::Header;
                    return Ok(Some(self.buffer.split_to(length).freeze()));
                }
            }
        }
    }

    /// The pushed bytes that are not in a record yet.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Ends the stream: an error unless it ended between records.
    pub fn finish(&self) -> Result<(), Error> {
        match &self.state {
            State::Failed(error) => Err(error.clone()),
            State::Header if self.buffer.is_empty() => Ok(()),
            State::Header | State::Record { .. } => Err(Error::Truncated),
        }
    }

    fn header(&mut self) -> Result<Option<usize>, Error> {
        let Some(end) = self
            .buffer
            .iter()
            .take(HEADER_MAX_DIGITS + 1)
            .position(|b| *b == b'\n')
        else {
            // A header with anything but digits is invalid, regardless of later bytes.
            let digits = self.buffer.iter().all(u8::is_ascii_digit);
            return if digits && self.buffer.len() <= HEADER_MAX_DIGITS {
                Ok(None)
            } else {
                Err(self.bad_header(HEADER_MAX_DIGITS))
            };
        };
        let header = self.buffer.get(..end).unwrap_or_default();
        let length = Some(header)
            .filter(|header| !header.is_empty() && header.iter().all(u8::is_ascii_digit))
            .and_then(|header| std::str::from_utf8(header).ok()?.parse::<u64>().ok())
            .ok_or_else(|| self.bad_header(end))?;
        match usize::try_from(length) {
            Ok(fits) if fits <= self.max_record_bytes => {
                self.buffer.advance(end + 1);
                Ok(Some(fits))
            }
            _ => Err(Error::TooLong {
                length,
                max: self.max_record_bytes,
            }),
        }
    }

    fn bad_header(&self, len: usize) -> Error {
        let shown = self.buffer.get(..len).unwrap_or(&self.buffer);
        Error::Header {
            header: String::from_utf8_lossy(shown).into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(chunks: &[&[u8]]) -> Result<Vec<Vec<u8>>, Error> {
        let mut decoder = Decoder::new(100);
        let mut records = Vec::new();
        for chunk in chunks {
            decoder.push(chunk);
            while let Some(record) = decoder.next_record()? {
                records.push(record.to_vec());
            }
        }
        decoder.finish()?;
        Ok(records)
    }

    #[test]
    fn any_chunking_gives_same_records() {
        let records: [&[u8]; 4] = [b"{\"a\":1}", b"", b"12\n34\n", b"0123456789"];
        let stream: Vec<u8> = records.iter().flat_map(|record| encode(record)).collect();
        let expected: Vec<Vec<u8>> = records.iter().map(|record| record.to_vec()).collect();
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                let chunks = [&stream[..first], &stream[first..second], &stream[second..]];
                assert_eq!(decode(&chunks).unwrap(), expected, "{first} {second}");
            }
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(decode(&bytes).unwrap(), expected);
    }

    #[test]
    fn encode_writes_header_before_record() {
        assert_eq!(
            &encode(b"{\"type\":\"HEARTBEAT\"}")[..],
            b"20\n{\"type\":\"HEARTBEAT\"}"
        );
        assert_eq!(&encode(b"")[..], b"0\n");
    }

    #[test]
    fn a_bad_header_fails_for_ever() {
        for header in [
            "-1\n",
            "+1\n",
            "\n",
            "x\n",
            "1 \n",
            "1\r\n",
            "0x5\n",
            "184467440737095516160",
        ] {
            let mut decoder = Decoder::new(100);
            decoder.push(header.as_bytes());
            let error = decoder.next_record().unwrap_err();
            assert!(matches!(error, Error::Header { .. }), "{header:?}: {error}");
            decoder.push(b"1\na");
            assert_eq!(decoder.next_record(), Err(error.clone()));
            assert_eq!(decoder.finish(), Err(error));
        }
        // Refused at once, not only at the newline.
        let mut decoder = Decoder::new(100);
        decoder.push(b"<html>");
        assert!(decoder.next_record().is_err());
    }

    #[test]
    fn oversized_record_is_refused_by_header() {
        for (header, length) in [("101\n", 101), ("18446744073709551615\n", u64::MAX)] {
            let error = decode(&[header.as_bytes()]).unwrap_err();
            assert_eq!(error, Error::TooLong { length, max: 100 });
        }
        let full = encode(&[7; 100]);
        assert_eq!(decode(&[&full]).unwrap(), [vec![7; 100]]);
    }

    #[test]
    fn truncated_record_is_reported() {
        for stream in ["5", "5\n", "5\nabcd"] {
            assert_eq!(
                decode(&[stream.as_bytes()]),
                Err(Error::Truncated),
                "{stream}"
            );
        }
        assert_eq!(decode(&[]).unwrap(), Vec::<Vec<u8>>::new());
    }
}
