//! Whole values: skipped values, and standalone messages.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::Key;
use crate::json::session;
use crate::schema::WireMessage;

/// A value of any type, read and discarded.
#[derive(Copy, Clone)]
pub(crate) struct Skip;

impl<'de> DeserializeSeed<'de> for Skip {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<(), D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Skip {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }
    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Self)?.is_some() {}
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        skip_all(&mut map)
    }
}

pub(crate) fn skip_all<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    while map.next_key_seed(Key(|_: &str| 0))?.is_some() {
        map.next_value_seed(Skip)?;
    }
    Ok(())
}

/// A whole message on its own.
pub(crate) struct Root<T>(PhantomData<T>);

impl<T> Root<T> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<'de, T: WireMessage> DeserializeSeed<'de> for Root<T> {
    type Value = T;
    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<T, D::Error> {
        source.deserialize_any(self)
    }
}

macro_rules! not_an_object {
    ($($method:ident: $value:ty),*) => {
        $(fn $method<E: Error>(self, _: $value) -> Result<T, E> {
            Err(E::custom(NOT_AN_OBJECT))
        })*
    };
}

const NOT_AN_OBJECT: &str = "Expecting a JSON object";

impl<'de, T: WireMessage> Visitor<'de> for Root<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::from_map(map)
    }
    fn visit_unit<E: Error>(self) -> Result<T, E> {
        Err(E::custom(NOT_AN_OBJECT))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<T, A::Error> {
        Err(A::Error::custom(NOT_AN_OBJECT))
    }
    not_an_object!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);
}

/// An array of messages on its own.
pub(crate) struct RootArray<T>(PhantomData<T>);

impl<T> RootArray<T> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<'de, T: WireMessage> DeserializeSeed<'de> for RootArray<T> {
    type Value = Vec<T>;
    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Vec<T>, D::Error> {
        source.deserialize_seq(self)
    }
}

impl<'de, T: WireMessage> Visitor<'de> for RootArray<T> {
    type Value = Vec<T>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON array")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut out = Vec::new();
        while let Some(item) = items.next_element_seed(Root::new())? {
            session::add_element(size_of::<T>())?;
            out.push(item);
        }
        Ok(out)
    }
}
