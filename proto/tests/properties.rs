//! Random messages: JSON and binary agree, and prost-reflect agrees with both.

use meseta_proto::meseta::v1::agent_frame;
use meseta_proto::mesos::v1::{self, agent, executor, master, scheduler};
use meseta_proto::{FILE_DESCRIPTOR_SET, WireMessage, json, meseta, protobuf, recordio};
use proptest::prelude::*;
use prost::Message as _;
use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor,
    ReflectMessage as _, SerializeOptions, Value,
};
use std::collections::HashMap;
use std::sync::LazyLock;

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap());

/// The depth below which messages get only their required fields.
const DEPTH: u32 = 5;

/// Decisions, drawn from bytes so that proptest can shrink them; after the last byte all are zero.
struct Source<'a> {
    bytes: std::slice::Iter<'a, u8>,
    /// Whether required fields may be left out.
    careless: bool,
}

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        self.bytes.next().copied().unwrap_or_default()
    }

    fn below(&mut self, end: u8) -> u8 {
        self.byte() % end
    }

    fn long(&mut self) -> u64 {
        // Small and huge numbers both matter.
        match self.below(3) {
            0 => u64::from(self.byte()),
            1 => u64::MAX - u64::from(self.byte()),
            _ => (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte())),
        }
    }

    fn double(&mut self) -> f64 {
        match self.below(5) {
            0 => f64::from(self.byte()),
            1 => f64::from(self.byte()) / 1000.0,
            2 => f64::INFINITY,
            3 => -1.5e300,
            _ => Some(f64::from_bits(self.long()))
                .filter(|x| !x.is_nan())
                .unwrap_or(0.1),
        }
    }

    fn text(&mut self) -> String {
        const CHARACTERS: [char; 12] = [
            'a', 'B', '0', '"', '\\', '/', '\n', '\0', '\u{7f}', 'é', '\u{2028}', '😀',
        ];
        let len = self.below(6);
        let character = |source: &mut Self| CHARACTERS[usize::from(source.below(12))];
        (0..len).map(|_| character(self)).collect()
    }

    fn message(&mut self, descriptor: &MessageDescriptor, depth: u32) -> DynamicMessage {
        let mut out = DynamicMessage::new(descriptor.clone());
        for field in descriptor.fields() {
            let is_required = field.cardinality() == Cardinality::Required;
            let chance = self.byte();
            if (is_required && !(self.careless && chance > 250)) || (depth > 0 && chance % 2 == 1) {
                let value = self.field(&field, depth.saturating_sub(1));
                out.set_field(&field, value);
            }
        }
        out
    }

    fn field(&mut self, field: &FieldDescriptor, depth: u32) -> Value {
        if field.is_map() {
            let kind = field.kind();
            let entry = kind.as_message().unwrap();
            let value = entry.map_entry_value_field();
            let entries: HashMap<MapKey, Value> = (0..1 + self.below(3))
                .map(|_| (MapKey::String(self.text()), self.value(&value, depth)))
                .collect();
            return Value::Map(entries);
        }
        if field.is_list() {
            return Value::List(
                (0..1 + self.below(3))
                    .map(|_| self.value(field, depth))
                    .collect(),
            );
        }
        self.value(field, depth)
    }

    #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
    fn value(&mut self, field: &FieldDescriptor, depth: u32) -> Value {
        match field.kind() {
            Kind::Double => Value::F64(self.double()),
            Kind::Int32 => Value::I32((self.long() as u32).cast_signed()),
            Kind::Int64 => Value::I64(self.long().cast_signed()),
            Kind::Uint32 => Value::U32(self.long() as u32),
            Kind::Uint64 => Value::U64(self.long()),
            Kind::Bool => Value::Bool(self.below(2) == 1),
            Kind::String => Value::String(self.text()),
            Kind::Bytes => Value::Bytes((0..self.below(6)).map(|_| self.byte()).collect()),
            Kind::Message(message) => Value::Message(self.message(&message, depth)),
            Kind::Enum(kind) => {
                let count = kind.values().len();
                let value = kind.values().nth(usize::from(self.byte()) % count).unwrap();
                Value::EnumNumber(value.number())
            }
            other => panic!("no such field in any message: {other:?}"),
        }
    }
}

fn random<T: WireMessage>(bytes: &[u8], careless: bool) -> DynamicMessage {
    let descriptor = POOL.get_message_by_name(T::SCHEMA.name).unwrap();
    Source {
        bytes: bytes.iter(),
        careless,
    }
    .message(&descriptor, DEPTH)
}

/// The output of prost-reflect, with our names and numbers.
fn canonical(message: &DynamicMessage) -> Vec<u8> {
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false)
        .use_enum_numbers(false);
    let mut out = serde_json::Serializer::new(Vec::new());
    message.serialize_with_options(&mut out, &options).unwrap();
    out.into_inner()
}

fn agree<T: WireMessage + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    agree_on::<T>(bytes, |message| message);
}

/// Encodes the tasks as our writer does: another writer may use another order of fields.
fn as_we_write_tasks(mut frame: meseta::v1::AgentFrame) -> meseta::v1::AgentFrame {
    let tasks = match &mut frame.message {
        Some(agent_frame::Message::Reregister(report)) => &mut report.tasks,
        Some(agent_frame::Message::ReregisterPart(part)) => &mut part.tasks,
        _ => return frame,
    };
    for task in tasks {
        *task = v1::Task::decode(task.as_slice()).unwrap().encode_to_vec();
    }
    frame
}

/// Compares messages after `normal`.
fn agree_on<T: WireMessage + PartialEq + std::fmt::Debug>(bytes: &[u8], normal: fn(T) -> T) {
    let dynamic = random::<T>(bytes, false);
    let wire = dynamic.encode_to_vec();
    let message: T = normal(protobuf::from_slice(&wire).unwrap());
    assert_eq!(
        protobuf::from_slice::<T>(&protobuf::to_vec(&message)).unwrap(),
        message
    );

    // We can read the output of another writer.
    let read: T = json::from_slice(&canonical(&dynamic)).unwrap();
    assert_eq!(read, message);

    // Both we and another reader can read our output.
    let written = json::to_vec(&message);
    let read: T = json::from_slice(&written).unwrap();
    assert_eq!(json::to_vec(&read), written);
    let mut source = serde_json::Deserializer::from_slice(&written);
    let other = DynamicMessage::deserialize(dynamic.descriptor(), &mut source).unwrap();
    let other = T::decode(&other.encode_to_vec()[..]).unwrap();
    assert_eq!(normal(other), read);
}

/// Both encodings lack the same required fields.
fn agree_on_what_is_missing<T: WireMessage>(bytes: &[u8]) {
    let dynamic = random::<T>(bytes, true);
    let in_wire = protobuf::missing_required::<T>(&dynamic.encode_to_vec());
    let in_json = match json::from_slice::<T>(&canonical(&dynamic)) {
        Ok(_) => Vec::new(),
        Err(json::Error::Convert { reason, .. }) => {
            let paths = reason.strip_prefix("Missing required fields: ").unwrap();
            vec![paths.to_owned()]
        }
        Err(other) => panic!("{other}"),
    };
    let mut in_wire = in_wire.join(", ");
    let mut in_json = in_json.concat();
    // The entries of a map have no order.
    if in_wire.contains('"') {
        let sorted = |paths: &str| {
            let mut paths: Vec<&str> = paths.split(", ").collect();
            paths.sort_unstable();
            paths.join(", ")
        };
        (in_wire, in_json) = (sorted(&in_wire), sorted(&in_json));
    }
    assert_eq!(in_wire, in_json);
}

macro_rules! each_root {
    ($function:ident($bytes:expr)) => {
        $function::<scheduler::Call>($bytes);
        $function::<scheduler::Event>($bytes);
        $function::<executor::Call>($bytes);
        $function::<executor::Event>($bytes);
        $function::<agent::Call>($bytes);
        $function::<agent::Response>($bytes);
        $function::<master::Response>($bytes);
        $function::<master::Event>($bytes);
        $function::<v1::TaskInfo>($bytes);
        $function::<v1::Task>($bytes);
        $function::<v1::Resource>($bytes);
        $function::<v1::TaskStatus>($bytes);
        $function::<v1::ResourceUsage>($bytes);
        $function::<scheduler::OfferConstraints>($bytes);
    };
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn json_and_binary_agree(bytes in prop::collection::vec(any::<u8>(), 0..6000)) {
        each_root!(agree(&bytes));
        agree_on::<meseta::v1::AgentFrame>(&bytes, as_we_write_tasks);
    }

    #[test]
    fn json_and_protobuf_miss_same_fields(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        each_root!(agree_on_what_is_missing(&bytes));
        agree_on_what_is_missing::<meseta::v1::AgentFrame>(&bytes);
    }

    #[test]
    fn any_json_parses_or_fails(text in "[\\[\\]{}:,\"a-z0-9_.eE+ \\\\-]{0,60}") {
        let _ = json::from_slice::<scheduler::Call>(text.as_bytes());
    }

    #[test]
    fn cut_or_changed_messages_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..500),
        at in any::<prop::sample::Index>(),
        change in any::<u8>(),
    ) {
        let dynamic = random::<scheduler::Call>(&bytes, false);
        for mut encoded in [dynamic.encode_to_vec(), canonical(&dynamic)] {
            if let Some(byte) = (!encoded.is_empty()).then(|| at.index(encoded.len())) {
                let _ = protobuf::from_slice::<scheduler::Call>(&encoded[..byte]);
                let _ = protobuf::missing_required::<scheduler::Call>(&encoded[..byte]);
                let _ = json::from_slice::<scheduler::Call>(&encoded[..byte]);
                encoded[byte] ^= change;
            }
            let _ = protobuf::from_slice::<scheduler::Call>(&encoded);
            let _ = protobuf::missing_required::<scheduler::Call>(&encoded);
            let _ = json::from_slice::<scheduler::Call>(&encoded);
        }
    }

    #[test]
    fn chunks_make_no_difference(
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let stream: Vec<u8> = records.iter().flat_map(|record| recordio::encode(record)).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.push(stream.len());
        cuts.sort_unstable();
        let mut decoder = recordio::Decoder::new(300);
        let mut decoded = Vec::new();
        let mut begin = 0;
        for end in cuts {
            decoder.push(&stream[begin..end]);
            begin = end;
            while let Some(record) = decoder.next_record().unwrap() {
                decoded.push(record.to_vec());
            }
        }
        prop_assert!(decoder.finish().is_ok());
        prop_assert_eq!(decoded, records);
    }
}
