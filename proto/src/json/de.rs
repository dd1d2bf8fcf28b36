//! Reading of values: one seed per type of field, each knowing the field's name for its errors.
//!
//! Every seed yields `None` for `null`. Deep nesting ends in serde_json's recursion limit, also within skipped values,
//! because skipping recurses through the same counter.

mod whole;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::de::value::MapAccessDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};

use super::ser::EnumName;
use super::session;
use crate::schema::WireMessage;

pub(crate) use whole::{Root, RootArray, Skip, skip_all};

/// The decoding of Mesos: padding may be missing, and trailing bits are ignored.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

fn unexpected<E: Error>(what: &str, field: &str) -> E {
    E::custom(format_args!(
        "Not expecting a JSON {what} for field '{field}'"
    ))
}

fn not_parsed<E: Error>(text: &str, what: &str, field: &str) -> E {
    E::custom(format_args!(
        "Failed to parse '{text}' as a JSON {what} for field '{field}'"
    ))
}

fn out_of_range<E: Error>(value: impl fmt::Display, field: &str) -> E {
    E::custom(format_args!(
        "The number {value} is out of range for field '{field}'"
    ))
}

/// Called at the end of each message that has required fields.
pub(crate) fn require<E: Error>(complete: bool) -> Result<(), E> {
    if complete || session::note_missing() {
        Ok(())
    } else {
        Err(E::custom("Missing required fields"))
    }
}

/// Generates the visitor methods of the kinds of JSON value that a field refuses.
macro_rules! refuse {
    ($($kind:ident)*) => { $(refuse!(@$kind);)* };
    (@boolean) => {
        fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
            Err(unexpected("boolean", self.name()))
        }
    };
    (@number) => {
        fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
            Err(unexpected("number", self.name()))
        }
        fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
            Err(unexpected("number", self.name()))
        }
        fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
            Err(unexpected("number", self.name()))
        }
    };
    (@string) => {
        fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
            Err(unexpected("string", self.name()))
        }
    };
    (@array) => {
        fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
            Err(unexpected("array", self.name()))
        }
    };
    (@object) => {
        fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
            Err(unexpected("object", self.name()))
        }
    };
}

/// The common part of the visitors of single values: the expectation, and `null` as absence.
macro_rules! single {
    () => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a value of field '{}'", self.name())
        }
        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
    };
}

/// Generates a seed that is its own visitor.
macro_rules! seed {
    ([$($generics:tt)*] $seed:ty => $value:ty) => {
        impl<'de, $($generics)*> DeserializeSeed<'de> for $seed {
            type Value = $value;
            fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<$value, D::Error> {
                source.deserialize_any(self)
            }
        }
    };
}

/// A single value's seed, which knows its field.
pub(crate) trait Named: Copy {
    fn name(&self) -> &'static str;
}

macro_rules! named {
    ($($seed:ident)*) => {
        $(
            #[derive(Copy, Clone)]
            pub(crate) struct $seed(pub(crate) &'static str);
            impl Named for $seed {
                fn name(&self) -> &'static str {
                    self.0
                }
            }
        )*
    };
}

named! { Text Bytes Bool Double Int64 Uint64 Int32 Uint32 }

seed!([] Text => Option<String>);
impl<'de> Visitor<'de> for Text {
    type Value = Option<String>;
    single!();
    refuse!(boolean number array object);
    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(text.to_owned()))
    }
    fn visit_string<E: Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(Some(text))
    }
}

seed!([] Bytes => Option<Vec<u8>>);
impl<'de> Visitor<'de> for Bytes {
    type Value = Option<Vec<u8>>;
    single!();
    refuse!(boolean number array object);
    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        let decoded = if text.bytes().any(|byte| byte.is_ascii_whitespace()) {
            BASE64.decode(text.split_ascii_whitespace().collect::<String>())
        } else {
            BASE64.decode(text)
        };
        decoded.map(Some).map_err(|error| {
            E::custom(format_args!(
                "Failed to base64 decode bytes field '{}': {error}",
                self.name()
            ))
        })
    }
}

seed!([] Bool => Option<bool>);
impl<'de> Visitor<'de> for Bool {
    type Value = Option<bool>;
    single!();
    refuse!(number array object);
    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Some(value))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        match text.trim_ascii() {
            "true" => Ok(Some(true)),
            "false" => Ok(Some(false)),
            _ => Err(not_parsed(text, "boolean", self.name())),
        }
    }
}

seed!([] Double => Option<f64>);
impl<'de> Visitor<'de> for Double {
    type Value = Option<f64>;
    single!();
    refuse!(boolean array object);
    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        // Minus zero becomes zero: protobuf does not distinguish them in a map.
        Ok(Some(value + 0.0))
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Some(value as f64))
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Some(value as f64))
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        match text {
            "Infinity" => return Ok(Some(f64::INFINITY)),
            "-Infinity" => return Ok(Some(f64::NEG_INFINITY)),
            _ => {}
        }
        let number: serde_json::Number = text
            .parse()
            .map_err(|_| not_parsed(text, "number", self.name()))?;
        Ok(number.as_f64().map(|value| value + 0.0))
    }
}

/// Generates the seed of whole numbers: also from a string, and from a double by truncation.
macro_rules! integer {
    ($seed:ident, $int:ty) => {
        seed!([] $seed => Option<$int>);
        impl<'de> Visitor<'de> for $seed {
            type Value = Option<$int>;
            single!();
            refuse!(boolean array object);
            fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
                <$int>::try_from(value).map(Some).map_err(|_| out_of_range(value, self.name()))
            }
            fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
                <$int>::try_from(value).map(Some).map_err(|_| out_of_range(value, self.name()))
            }
            fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
                let whole = whole(value).ok_or_else(|| out_of_range(value, self.name()))?;
                <$int>::try_from(whole).map(Some).map_err(|_| out_of_range(value, self.name()))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                let number: serde_json::Number =
                    text.parse().map_err(|_| not_parsed(text, "number", self.name()))?;
                if let Some(value) = number.as_u64() {
                    self.visit_u64(value)
                } else if let Some(value) = number.as_i64() {
                    self.visit_i64(value)
                } else {
                    self.visit_f64(number.as_f64().unwrap_or(f64::NAN))
                }
            }
        }
    };
}

integer!(Int64, i64);
integer!(Uint64, u64);
integer!(Int32, i32);
integer!(Uint32, u32);

/// The integer part of a double, if it fits into a signed or unsigned 64-bit integer.
fn whole(value: f64) -> Option<i128> {
    const BOUND: f64 = 1.9e19;
    if value.is_finite() && value.abs() < BOUND {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "bounded above; cuts the fraction"
        )]
        Some(value as i128)
    } else {
        None
    }
}

/// An enum, by name only. An unknown name counts as absent, unless the field is required.
pub(crate) struct Enum<E> {
    field: &'static str,
    required: bool,
    of: PhantomData<E>,
}

impl<E> Enum<E> {
    pub(crate) fn new(field: &'static str, required: bool) -> Self {
        Self {
            field,
            required,
            of: PhantomData,
        }
    }
}

impl<E> Copy for Enum<E> {}
impl<E> Clone for Enum<E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Named for Enum<E> {
    fn name(&self) -> &'static str {
        self.field
    }
}

seed!([N: EnumName] Enum<N> => Option<i32>);
impl<'de, N: EnumName> Visitor<'de> for Enum<N> {
    type Value = Option<i32>;
    single!();
    refuse!(boolean number array object);
    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        let number = N::number_of(text);
        if number.is_none() && self.required {
            return Err(E::custom(format_args!("Failed to find enum for '{text}'")));
        }
        Ok(number)
    }
}

/// A message inside a message.
pub(crate) struct Submessage<T> {
    field: &'static str,
    of: PhantomData<T>,
}

impl<T> Submessage<T> {
    pub(crate) fn new(field: &'static str) -> Self {
        Self {
            field,
            of: PhantomData,
        }
    }
}

impl<T> Copy for Submessage<T> {}
impl<T> Clone for Submessage<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Named for Submessage<T> {
    fn name(&self) -> &'static str {
        self.field
    }
}

seed!([T: WireMessage] Submessage<T> => Option<T>);
impl<'de, T: WireMessage> Visitor<'de> for Submessage<T> {
    type Value = Option<T>;
    single!();
    refuse!(boolean number string array);
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::from_map(map).map(Some)
    }
}

/// A message that stays encoded.
pub(crate) struct Encoded<T>(Submessage<T>);

impl<T> Encoded<T> {
    pub(crate) fn new(field: &'static str) -> Self {
        Self(Submessage::new(field))
    }
}

impl<T> Copy for Encoded<T> {}
impl<T> Clone for Encoded<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Named for Encoded<T> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
}

impl<'de, T: WireMessage> DeserializeSeed<'de> for Encoded<T> {
    type Value = Option<Vec<u8>>;
    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        let message = self.0.deserialize(source)?;
        Ok(message.map(|message| message.encode_to_vec()))
    }
}

/// A repeated field: an array, or a single value in place of an array of one. `null`s are dropped.
#[derive(Copy, Clone)]
pub(crate) struct Many<S>(pub(crate) S);

impl<'de, S, T> DeserializeSeed<'de> for Many<S>
where
    S: Named + DeserializeSeed<'de, Value = Option<T>>,
{
    type Value = Vec<T>;
    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Vec<T>, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de, S, T> Visitor<'de> for Many<S>
where
    S: Named + DeserializeSeed<'de, Value = Option<T>>,
{
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "values of field '{}'", self.0.name())
    }
    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut out = Vec::new();
        while let Some(item) = items.next_element_seed(self.0)? {
            session::add_element(size_of::<T>())?;
            out.extend(item);
        }
        Ok(out)
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        Ok(self
            .0
            .deserialize(MapAccessDeserializer::new(map))?
            .into_iter()
            .collect())
    }
    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(self
            .0
            .deserialize(value.into_deserializer())?
            .into_iter()
            .collect())
    }
    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(self
            .0
            .deserialize(value.into_deserializer())?
            .into_iter()
            .collect())
    }
    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(self
            .0
            .deserialize(value.into_deserializer())?
            .into_iter()
            .collect())
    }
    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(self
            .0
            .deserialize(value.into_deserializer())?
            .into_iter()
            .collect())
    }
    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        Ok(self
            .0
            .deserialize(value.into_deserializer())?
            .into_iter()
            .collect())
    }
}

/// A map from strings: an object. Entries with `null` are dropped.
#[derive(Copy, Clone)]
pub(crate) struct Map<S>(pub(crate) S, pub(crate) &'static str);

impl<S: Copy> Named for Map<S> {
    fn name(&self) -> &'static str {
        self.1
    }
}

impl<'de, S, T> DeserializeSeed<'de> for Map<S>
where
    S: Copy + DeserializeSeed<'de, Value = Option<T>>,
{
    type Value = BTreeMap<String, T>;
    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de, S, T> Visitor<'de> for Map<S>
where
    S: Copy + DeserializeSeed<'de, Value = Option<T>>,
{
    type Value = BTreeMap<String, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the map of field '{}'", self.1)
    }
    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }
    refuse!(boolean number string array);
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut out = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            if let Some(value) = map.next_value_seed(self.0)? {
                session::add_element(size_of::<(String, T)>())?;
                out.insert(key, value);
            }
        }
        Ok(out)
    }
}

/// A key, turned into its number in the generated match.
pub(crate) struct Key<F>(pub(crate) F);

impl<'de, F: Fn(&str) -> u8> DeserializeSeed<'de> for Key<F> {
    type Value = u8;
    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<u8, D::Error> {
        source.deserialize_identifier(self)
    }
}

impl<F: Fn(&str) -> u8> Visitor<'_> for Key<F> {
    type Value = u8;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }
    fn visit_str<E: Error>(self, key: &str) -> Result<u8, E> {
        Ok((self.0)(key))
    }
}
