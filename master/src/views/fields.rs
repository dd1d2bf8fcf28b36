//! The fields of an encoded message, one after another, without decoding it.
//!
//! Useful for fields read very often from messages that stay encoded. Invariant: nothing is copied.

use prost::encoding::{WireType, decode_key, decode_varint};

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Field<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Fixed32([u8; 4]),
    Bytes(&'a [u8]),
}

/// The rest of a message.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    /// Returns the next field's number and value; `Some(None)` at the end, `None` if it is unreadable.
    pub(super) fn take_field(&mut self) -> Option<Option<(u32, Field<'a>)>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let (number, kind) = decode_key(&mut self.0).ok()?;
        let field = match kind {
            WireType::Varint => Field::Varint(decode_varint(&mut self.0).ok()?),
            WireType::SixtyFourBit => Field::Fixed64(self.take_array()?),
            WireType::ThirtyTwoBit => Field::Fixed32(self.take_array()?),
            WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(&mut self.0).ok()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                Field::Bytes(bytes)
            }
            WireType::StartGroup | WireType::EndGroup => return None,
        };
        Some(Some((number, field)))
    }

    fn take_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn fields_decode_individually_and_reject_truncation() {
        #[derive(Clone, PartialEq, prost::Message)]
        struct Sample {
            #[prost(uint64, tag = "1")]
            number: u64,
            #[prost(double, tag = "2")]
            amount: f64,
            #[prost(float, tag = "3")]
            small: f32,
            #[prost(string, tag = "40")]
            text: String,
        }
        let message = Sample {
            number: 300,
            amount: 1.0,
            small: 2.0,
            text: "text".to_owned(),
        };
        let encoded = message.encode_to_vec();
        let mut fields = Fields(&encoded);
        for requested in [
            (1, Field::Varint(300)),
            (2, Field::Fixed64(1.0_f64.to_le_bytes())),
            (3, Field::Fixed32(2.0_f32.to_le_bytes())),
            (40, Field::Bytes(b"text")),
        ] {
            assert_eq!(fields.take_field(), Some(Some(requested)));
        }
        assert_eq!(fields.take_field(), Some(None));
        let mut cut = Fields(&encoded[..encoded.len() - 1]);
        while let Some(Some(_)) = cut.take_field() {}
        assert_eq!(cut.take_field(), None);
    }
}
