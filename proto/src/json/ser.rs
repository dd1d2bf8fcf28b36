//! Writing of values for which serde's own way is not the dialect's.

use std::marker::PhantomData;

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};

use crate::schema::WireMessage;

/// The names of an enum, both ways.
pub trait EnumName {
    fn number_of(name: &str) -> Option<i32>;
    fn name_of(number: i32) -> Option<&'static str>;
}

/// A list of bytes, each as [`Bytes`].
pub(crate) struct ManyBytes<'a>(pub(crate) &'a [Vec<u8>]);

impl Serialize for ManyBytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|bytes| Bytes(bytes)))
    }
}

/// Bytes: base64 with padding.
#[derive(Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(self.0, &STANDARD))
    }
}

/// A double; JSON has no infinite numbers, which are written as strings and read back from them.
#[derive(Debug)]
pub(crate) struct Double(pub(crate) f64);

impl Serialize for Double {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() {
            serializer.serialize_f64(self.0)
        } else if self.0.is_nan() {
            serializer.serialize_str("NaN")
        } else if self.0 > 0.0 {
            serializer.serialize_str("Infinity")
        } else {
            serializer.serialize_str("-Infinity")
        }
    }
}

/// Messages that stay encoded; an unreadable one is left out.
pub(crate) struct ManyEncoded<'a, T>(&'a [Vec<u8>], PhantomData<T>);

impl<'a, T> ManyEncoded<'a, T> {
    pub(crate) fn new(messages: &'a [Vec<u8>]) -> Self {
        Self(messages, PhantomData)
    }
}

impl<T: WireMessage> Serialize for ManyEncoded<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let messages = self.0.iter();
        serializer.collect_seq(messages.filter_map(|one| T::decode(one.as_slice()).ok()))
    }
}

#[derive(Debug)]
pub(crate) struct ManyEnums<'a, E>(&'a [i32], PhantomData<E>);

impl<'a, E> ManyEnums<'a, E> {
    pub(crate) fn new(numbers: &'a [i32]) -> Self {
        Self(numbers, PhantomData)
    }
}

impl<E: EnumName> Serialize for ManyEnums<'_, E> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().filter_map(|number| E::name_of(*number)))
    }
}
