//! Tables of the messages' fields, and the check for missing `required` fields that uses them.
//!
//! prost decodes a missing required field as an empty one, so code that reads messages from outside calls this check first.
//! Enums are closed: an unknown number counts as absent. The walk is over wire bytes or parsed JSON, never over decoded
//! messages, which have lost that information.

use serde::Serialize;
use serde::de::MapAccess;

/// A message of the wire; each has generated code.
pub trait WireMessage: prost::Message + Default + Serialize {
    const SCHEMA: &'static Message;

    /// Reads the message from a JSON object in the Mesos dialect.
    fn from_map<'de, A: MapAccess<'de>>(map: A) -> Result<Self, A::Error>;
}

impl<T: WireMessage> WireMessage for Box<T> {
    const SCHEMA: &'static Message = T::SCHEMA;

    fn from_map<'de, A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        T::from_map(map).map(Self::new)
    }
}

#[derive(Debug)]
pub struct Message {
    /// The name with its package: `mesos.v1.scheduler.Call`.
    pub name: &'static str,
    /// Whether the message, or a message inside it, has a required field.
    pub has_required: bool,
    /// The size of a decoded message in memory, without its heap data.
    pub bytes: usize,
    /// The fields in the order of declaration.
    pub fields: &'static [Field],
    /// Indices into `fields`, in the order of field numbers.
    pub by_number: &'static [usize],
}

#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    pub number: u32,
    pub label: Label,
    pub kind: Kind,
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Label {
    Optional,
    Required,
    Repeated,
    Map,
}

#[derive(Debug)]
pub enum Kind {
    Scalar,
    /// An enum with its valid numbers, sorted.
    Enum(&'static [i32]),
    Message(&'static Message),
}

impl Message {
    /// The name without its package and the messages around its declaration: `Call`.
    #[must_use]
    pub fn short_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }

    /// The value's message, if this is a map's entry whose value is a message.
    fn map_value(&self) -> Option<&'static Self> {
        match self.fields.get(1)?.kind {
            Kind::Message(value) => Some(value),
            Kind::Scalar | Kind::Enum(_) => None,
        }
    }

    fn by_number(&self, number: u32) -> Option<(usize, &'static Field)> {
        let fields = self.fields;
        let at = self
            .by_number
            .binary_search_by_key(&number, |index| fields.get(*index).map_or(0, |f| f.number))
            .ok()?;
        let index = *self.by_number.get(at)?;
        Some((index, fields.get(index)?))
    }
}

/// The approximate decoded size of an encoded message: lists of small messages take many times their size on the wire.
///
/// A walk without allocation. Malformed bytes count as far as they are well-formed, and levels that prost refuses do not
/// count.
#[must_use]
pub fn decoded_bytes(schema: &'static Message, bytes: &[u8]) -> usize {
    schema.bytes.saturating_add(pointed_to(schema, bytes, 0))
}

/// The approximate size of a decoded message.
#[must_use]
pub fn bytes_of<T: WireMessage>(message: &T) -> usize {
    decoded_bytes(T::SCHEMA, &message.encode_to_vec())
}

/// The size of a message's heap data: texts, and the elements of lists and maps.
fn pointed_to(schema: &'static Message, bytes: &[u8], depth: usize) -> usize {
    /// The size of a text in a list, or of a number with the spare room of lists.
    const ELEMENT: usize = 24;
    let mut sum = 0usize;
    if depth > DEPTH_MAX {
        return sum;
    }
    for (number, value) in (Wire { rest: bytes }) {
        let Some((_, field)) = schema.by_number(number) else {
            continue;
        };
        let is_many = matches!(field.label, Label::Repeated | Label::Map);
        let more = match (&field.kind, value) {
            (Kind::Message(inner), Value::Bytes(bytes)) => {
                let own = if is_many { inner.bytes } else { 0 };
                own.saturating_add(pointed_to(inner, bytes, depth + 1))
            }
            (_, Value::Bytes(bytes)) if is_many => bytes.len().saturating_add(ELEMENT),
            (_, Value::Bytes(bytes)) => bytes.len(),
            (_, Value::Varint(_) | Value::Fixed) if is_many => 8,
            (_, Value::Varint(_) | Value::Fixed) => 0,
        };
        sum = sum.saturating_add(more);
    }
    sum
}

/// The limit of prost on the depth.
const DEPTH_MAX: usize = 100;

/// The maximum number of paths in an answer; a body that lacks more is a program's mistake, and further paths look alike.
const MISSING_MAX: usize = 100;

/// The paths of the required fields that an encoded message lacks, such as `subscribe.framework_info.user`, and the
/// paths of fields that are nested deeper than prost accepts.
///
/// The bytes must be well-formed: call this function after decoding.
#[must_use]
pub fn missing_in_wire(schema: &'static Message, bytes: &[u8]) -> Vec<String> {
    let mut missing = Vec::new();
    if !is_complete(schema, bytes, 0) {
        collect_wire(schema, &[bytes], "", 0, &mut missing);
    }
    missing
}

/// The paths of the required fields that a JSON object lacks.
#[must_use]
pub fn missing_in_json(schema: &'static Message, value: &serde_json::Value) -> Vec<String> {
    let mut missing = Vec::new();
    collect_json(schema, value, "", &mut missing);
    missing
}

/// Checks for all required fields in one pass without allocation. May return false for a message field in several pieces that
/// are complete together; never returns true wrongly.
fn is_complete(schema: &'static Message, bytes: &[u8], depth: usize) -> bool {
    if depth > DEPTH_MAX {
        return false;
    }
    if !schema.has_required {
        return true;
    }
    let mut seen = 0u64;
    for (number, value) in (Wire { rest: bytes }) {
        let Some((index, field)) = schema.by_number(number) else {
            continue;
        };
        match (&field.kind, value) {
            (Kind::Message(inner), Value::Bytes(bytes))
                if !is_complete(inner, bytes, depth + 1) =>
            {
                return false;
            }
            // The last of several values counts.
            (Kind::Enum(numbers), Value::Varint(number)) if !is_known(numbers, number) => {
                seen &= !bit(index);
                continue;
            }
            _ => {}
        }
        seen |= bit(index);
    }
    schema.fields.iter().enumerate().all(|(index, field)| {
        field.label != Label::Required || (index < 64 && seen & (1 << index) != 0)
    })
}

/// The bit of a field; zero beyond the 64th.
fn bit(index: usize) -> u64 {
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    1u64.checked_shl(index).unwrap_or(0)
}

fn is_known(numbers: &[i32], varint: u64) -> bool {
    // A negative enum number is sign-extended to 64 bits on the wire.
    i32::try_from(varint.cast_signed()).is_ok_and(|n| numbers.binary_search(&n).is_ok())
}

/// Collects from `pieces`, the occurrences of one message, which together make it up.
fn collect_wire(
    schema: &'static Message,
    pieces: &[&[u8]],
    prefix: &str,
    depth: usize,
    missing: &mut Vec<String>,
) {
    if depth > DEPTH_MAX {
        if missing.len() < MISSING_MAX {
            missing.push(format!(
                "{prefix} (it is nested more than {DEPTH_MAX} levels deep)"
            ));
        }
        return;
    }
    let depth = depth + 1;
    let mut found: Vec<Vec<&[u8]>> = schema.fields.iter().map(|_| Vec::new()).collect();
    for (number, value) in pieces.iter().flat_map(|piece| Wire { rest: piece }) {
        let Some((index, field)) = schema.by_number(number) else {
            continue;
        };
        let Some(found) = found.get_mut(index) else {
            continue;
        };
        match (&field.kind, value) {
            (_, Value::Bytes(bytes)) => found.push(bytes),
            (Kind::Enum(numbers), Value::Varint(number)) if !is_known(numbers, number) => {
                found.clear();
            }
            _ => found.push(&[]),
        }
    }
    for (field, found) in schema.fields.iter().zip(&found) {
        if field.label == Label::Required && found.is_empty() && missing.len() < MISSING_MAX {
            missing.push(format!("{prefix}{}", field.name));
        }
    }
    for index in schema.by_number {
        let (Some(field), Some(found)) = (schema.fields.get(*index), found.get(*index)) else {
            continue;
        };
        let Kind::Message(inner) = field.kind else {
            continue;
        };
        if field.label == Label::Map {
            let Some(value) = inner.map_value() else {
                continue;
            };
            for entry in found {
                let (key, pieces) = map_entry(entry);
                let prefix = format!("{prefix}{}[{key:?}].", field.name);
                collect_wire(value, &pieces, &prefix, depth, missing);
            }
        } else if field.label == Label::Repeated {
            for (at, piece) in found.iter().enumerate() {
                let prefix = format!("{prefix}{}[{at}].", field.name);
                collect_wire(inner, &[piece], &prefix, depth, missing);
            }
        } else if !found.is_empty() {
            collect_wire(
                inner,
                found,
                &format!("{prefix}{}.", field.name),
                depth,
                missing,
            );
        }
    }
}

/// The key of an encoded map entry, and the pieces of its value.
fn map_entry(entry: &[u8]) -> (String, Vec<&[u8]>) {
    let mut key = String::new();
    let mut pieces = Vec::new();
    for (number, value) in (Wire { rest: entry }) {
        match (number, value) {
            (1, Value::Bytes(bytes)) => key = String::from_utf8_lossy(bytes).into_owned(),
            (2, Value::Bytes(bytes)) => pieces.push(bytes),
            _ => {}
        }
    }
    (key, pieces)
}

fn collect_json(
    schema: &'static Message,
    value: &serde_json::Value,
    prefix: &str,
    missing: &mut Vec<String>,
) {
    let get = |field: &Field| value.get(field.name).filter(|value| !value.is_null());
    for field in schema.fields {
        if field.label == Label::Required && get(field).is_none() && missing.len() < MISSING_MAX {
            missing.push(format!("{prefix}{}", field.name));
        }
    }
    for index in schema.by_number {
        let Some(field) = schema.fields.get(*index) else {
            continue;
        };
        let (Kind::Message(inner), Some(value)) = (&field.kind, get(field)) else {
            continue;
        };
        match (field.label, value) {
            (Label::Repeated, serde_json::Value::Array(items)) => {
                for (at, item) in items.iter().filter(|item| !item.is_null()).enumerate() {
                    let prefix = format!("{prefix}{}[{at}].", field.name);
                    collect_json(inner, item, &prefix, missing);
                }
            }
            (Label::Repeated, item) => {
                collect_json(inner, item, &format!("{prefix}{}[0].", field.name), missing);
            }
            (Label::Map, serde_json::Value::Object(entries)) => {
                let Some(inner) = inner.map_value() else {
                    continue;
                };
                for (key, item) in entries.iter().filter(|(_, item)| !item.is_null()) {
                    let prefix = format!("{prefix}{}[{key:?}].", field.name);
                    collect_json(inner, item, &prefix, missing);
                }
            }
            (_, item) => collect_json(inner, item, &format!("{prefix}{}.", field.name), missing),
        }
    }
}

/// The fields of an encoded message, one after the other; ends at the first malformed one.
struct Wire<'a> {
    rest: &'a [u8],
}

enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed,
}

impl<'a> Wire<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut out = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            out |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(out);
            }
        }
        None
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u32, Value<'a>)> {
        // Groups are always unknown fields, so they are skipped at any depth.
        let mut group_depth = 0u32;
        loop {
            let key = u32::try_from(self.varint()?).ok()?;
            let value = match key & 7 {
                0 => Value::Varint(self.varint()?),
                1 => self.take(8).map(|_| Value::Fixed)?,
                2 => {
                    let len = usize::try_from(self.varint()?).ok()?;
                    Value::Bytes(self.take(len)?)
                }
                3 => {
                    group_depth = group_depth.checked_add(1)?;
                    continue;
                }
                4 => {
                    group_depth = group_depth.checked_sub(1)?;
                    continue;
                }
                5 => self.take(4).map(|_| Value::Fixed)?,
                _ => return None,
            };
            if group_depth == 0 {
                return Some((key >> 3, value));
            }
        }
    }
}

impl<'a> Iterator for Wire<'a> {
    type Item = (u32, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        self.field()
    }
}

pub(crate) mod tables {
    //! Generated tables, one for each message.

    use super::{Field, Kind, Label, Message};

    include!(concat!(env!("OUT_DIR"), "/schema.rs"));
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::meseta::v1::Reregister;
    use crate::mesos::v1::scheduler::{Call, call};
    use crate::mesos::v1::{self, FrameworkInfo, TaskInfo, TaskStatus};
    use crate::protobuf;

    fn missing<T: WireMessage>(bytes: &[u8]) -> Vec<String> {
        protobuf::missing_required::<T>(bytes)
    }

    /// A field of wire type 2.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
        out.extend_from_slice(bytes);
        out
    }

    fn long_field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2];
        prost::encoding::encode_varint(bytes.len() as u64, &mut out);
        out.extend_from_slice(bytes);
        out
    }

    /// Regression, found by libFuzzer: an accepted message was unreadable after writing, because the last of two states is kept.
    #[test]
    fn last_duplicate_required_enum_wins() {
        let id = field(1, &field(1, b"t"));
        for (states, expected) in [
            (&[0x10, 1][..], &[][..]),
            (&[0x10, 61, 0x10, 1], &[]),
            (&[0x10, 1, 0x10, 61], &["state"]),
        ] {
            let status = [&id, states].concat();
            assert_eq!(missing::<TaskStatus>(&status), expected, "{states:?}");
        }
    }

    #[test]
    fn missing_fields_are_listed_by_path() {
        let mut call = Call {
            subscribe: Some(call::Subscribe::default()),
            ..Default::default()
        };
        // prost writes required fields even if they are empty, so this is complete.
        assert!(missing::<Call>(&call.encode_to_vec()).is_empty());
        call.subscribe = None;
        assert!(missing::<Call>(&call.encode_to_vec()).is_empty());
        assert_eq!(missing::<FrameworkInfo>(b""), ["user", "name"]);
        let info = field(3, &field(1, &field(2, b"name")));
        assert_eq!(missing::<Call>(&info), ["subscribe.framework_info.user"]);
        let error = protobuf::from_slice::<Call>(&info).unwrap_err().to_string();
        assert_eq!(
            error,
            "Failed to parse body into Call protobuf: \
             Missing required fields: subscribe.framework_info.user"
        );
        // limits["cpus"] without its value; two tasks of which the second has nothing.
        let limits = field(15, &[field(1, b"cpus"), field(2, b"")].concat());
        assert_eq!(
            missing::<TaskInfo>(&limits),
            ["name", "task_id", "agent_id", "limits[\"cpus\"].value"]
        );
        let offers = [field(1, &field(1, b"o")), field(1, b"")].concat();
        assert_eq!(
            missing::<Call>(&field(5, &offers)),
            ["decline.offer_ids[1].value"]
        );
    }

    #[test]
    fn raw_encoded_parts_are_also_checked() {
        // A task without its state, and an endlessly nested one.
        let id = field(1, b"x");
        let task = [field(1, b"x"), field(2, &id), field(3, &id), field(5, &id)].concat();
        let report = field(2, &task);
        let lacks = missing::<Reregister>(&report);
        assert_eq!(lacks, ["register", "tasks[0].state"]);
        let mut deep = field(1, b"x");
        for _ in 0..DEPTH_MAX + 50 {
            deep = long_field(2, &[deep, field(1, b"x")].concat());
        }
        let status = long_field(8, &long_field(13, &long_field(4, &deep)));
        let paths = missing::<Reregister>(&long_field(2, &[task, status].concat()));
        assert!(paths.iter().any(|path| path.contains("levels deep")));
        let task = v1::Task::default();
        let report = Reregister {
            tasks: vec![task.encode_to_vec()],
            ..Reregister::default()
        };
        assert!(missing::<Reregister>(&report.encode_to_vec()).is_empty());
        let counted = decoded_bytes(Reregister::SCHEMA, &report.encode_to_vec());
        assert!(counted > size_of::<v1::Task>(), "as if it were decoded");
    }

    #[test]
    fn split_message_is_complete_when_merged() {
        let pieces = [
            field(3, &field(1, &field(1, b"user"))),
            field(3, &field(1, &field(2, b"name"))),
        ];
        assert!(missing::<Call>(&pieces.concat()).is_empty());
        let call: Call = protobuf::from_slice(&pieces.concat()).unwrap();
        assert_eq!(call.subscribe.unwrap().framework_info.user, "user");
    }

    #[test]
    fn unknown_required_enum_is_absent() {
        let id = field(1, &field(1, b"t"));
        let with_state = |state: &[u8]| [id.clone(), vec![2 << 3], state.to_vec()].concat();
        assert!(missing::<TaskStatus>(&with_state(&[13])).is_empty());
        assert_eq!(missing::<TaskStatus>(&with_state(&[99])), ["state"]);
        let minus_one = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(missing::<TaskStatus>(&with_state(&minus_one)), ["state"]);
    }

    #[test]
    fn unknown_fields_and_groups_are_skipped() {
        // A fixed64 of number 100, then a group of number 101 that holds a varint.
        let mut bytes = vec![0xa1, 0x06, 1, 2, 3, 4, 5, 6, 7, 8];
        let group = [0xab, 0x06, 0x08, 0x01, 0xac, 0x06];
        bytes.extend_from_slice(&group);
        bytes.extend_from_slice(&field(1, b"user"));
        assert_eq!(missing::<FrameworkInfo>(&bytes), ["name"]);
    }

    #[test]
    fn hostile_bytes_are_errors() {
        let deep = (0..10_000).fold(Vec::new(), |inner: Vec<u8>, _| {
            let mut out = vec![0x12];
            prost::encoding::encode_varint(u64::try_from(inner.len()).unwrap(), &mut out);
            out.extend_from_slice(&inner);
            out
        });
        assert!(protobuf::from_slice::<crate::mesos::v1::ContainerId>(&deep).is_err());
        let groups = [[0xab, 0x06].repeat(100_000), [0xac, 0x06].repeat(100_000)].concat();
        assert!(protobuf::from_slice::<Call>(&groups).is_err());
        for bytes in [
            &b"\xff"[..],
            b"\x0a\x05ab",
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
            b"{}",
        ] {
            assert!(protobuf::from_slice::<Call>(bytes).is_err(), "{bytes:?}");
            // The walk must also survive malformed bytes.
            let _ = missing::<Call>(bytes);
        }
    }
}
