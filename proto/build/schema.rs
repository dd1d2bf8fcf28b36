//! The descriptors in the shape that the generators walk, and the tables for the check of `required` at run time.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write as _;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};

use crate::names;

#[derive(Debug)]
pub(crate) struct Message {
    /// The name in the descriptors, `.mesos.v1.Offer.Operation`.
    pub(crate) full_name: String,
    pub(crate) rust: String,
    pub(crate) fields: Vec<Field>,
    pub(crate) is_map_entry: bool,
}

#[derive(Debug)]
pub(crate) struct Enum {
    pub(crate) rust: String,
    pub(crate) values: Vec<(String, i32)>,
}

#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) rust: String,
    pub(crate) number: i32,
    pub(crate) label: Label,
    pub(crate) ty: Type,
    /// The name of an enum or a message type.
    pub(crate) type_name: String,
    pub(crate) default: Option<String>,
    pub(crate) deprecated: bool,
    /// Whether the field stays encoded in Rust.
    pub(crate) encoded: bool,
    /// Whether this is a proto3 scalar: unset is its zero, and there is no `Option` in Rust.
    pub(crate) implicit: bool,
    pub(crate) oneof: Option<Oneof>,
}

/// The field of the Rust struct for a `oneof`, and the variant of one member.
#[derive(Debug)]
pub(crate) struct Oneof {
    pub(crate) rust_field: String,
    pub(crate) variant: String,
}

#[derive(Copy, Clone)]
struct Scope<'a> {
    package: &'a str,
    proto3: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Types {
    pub(crate) messages: BTreeMap<String, Message>,
    pub(crate) enums: BTreeMap<String, Enum>,
}

impl Types {
    pub(crate) fn collect(set: &FileDescriptorSet) -> Result<Self, Box<dyn Error>> {
        let mut types = Self::default();
        for file in &set.file {
            let package = file.package();
            let scope = Scope {
                package,
                proto3: file.syntax() == "proto3",
            };
            for message in &file.message_type {
                types.add_message(scope, &[], message)?;
            }
            for item in &file.enum_type {
                types.add_enum(package, &[], item);
            }
        }
        Ok(types)
    }

    fn add_message(
        &mut self,
        scope: Scope<'_>,
        parents: &[String],
        message: &DescriptorProto,
    ) -> Result<(), Box<dyn Error>> {
        let package = scope.package;
        let rust = names::path(package, parents, message.name());
        let mut inner = parents.to_vec();
        inner.push(message.name().to_owned());
        for nested in &message.nested_type {
            self.add_message(scope, &inner, nested)?;
        }
        for nested in &message.enum_type {
            self.add_enum(package, &inner, nested);
        }
        let fields = message
            .field
            .iter()
            .map(|field| {
                let oneof = match field.oneof_index {
                    Some(index) => {
                        let oneof = message.oneof_decl.get(usize::try_from(index)?);
                        let name = oneof.ok_or("oneof index out of range")?.name();
                        let path = names::path(package, &inner, name);
                        Some(Oneof {
                            rust_field: names::field(name),
                            variant: format!("{path}::{}", names::camel(field.name())),
                        })
                    }
                    None => None,
                };
                let mut new = new_field(field, oneof, scope.proto3);
                new.encoded = crate::ENCODED.contains(&(message.name(), field.name()));
                Ok(new)
            })
            .collect::<Result<_, Box<dyn Error>>>()?;
        let full_name = full_name(package, parents, message.name());
        let is_map_entry = message
            .options
            .as_ref()
            .is_some_and(|options| options.map_entry());
        self.messages.insert(
            full_name.clone(),
            Message {
                full_name,
                rust,
                fields,
                is_map_entry,
            },
        );
        Ok(())
    }

    fn add_enum(&mut self, package: &str, parents: &[String], item: &EnumDescriptorProto) {
        let values = item
            .value
            .iter()
            .map(|value| (value.name().to_owned(), value.number()))
            .collect();
        let rust = names::path(package, parents, item.name());
        self.enums.insert(
            full_name(package, parents, item.name()),
            Enum { rust, values },
        );
    }

    /// The two fields of the map's entry, when the field is a map.
    pub(crate) fn map_entry(&self, field: &Field) -> Option<(&Field, &Field)> {
        let entry = self
            .messages
            .get(&field.type_name)
            .filter(|entry| entry.is_map_entry)?;
        Some((entry.fields.first()?, entry.fields.get(1)?))
    }

    /// The messages with a required field, or with a submessage that has one.
    fn with_required(&self) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        loop {
            let before = found.len();
            for (name, message) in &self.messages {
                let has = message.fields.iter().any(|field| {
                    field.label == Label::Required || found.contains(field.type_name.as_str())
                });
                if has {
                    found.insert(name.as_str());
                }
            }
            if found.len() == before {
                return found;
            }
        }
    }
}

fn full_name(package: &str, parents: &[String], name: &str) -> String {
    let mut out = format!(".{package}");
    for parent in parents {
        out.push('.');
        out.push_str(parent);
    }
    out.push('.');
    out.push_str(name);
    out
}

fn new_field(field: &FieldDescriptorProto, oneof: Option<Oneof>, proto3: bool) -> Field {
    let plain = field.label() == Label::Optional && field.r#type() != Type::Message;
    Field {
        implicit: proto3 && plain && oneof.is_none(),
        name: field.name().to_owned(),
        rust: names::field(field.name()),
        number: field.number(),
        label: field.label(),
        ty: field.r#type(),
        type_name: field.type_name().to_owned(),
        default: field.default_value.clone(),
        deprecated: field
            .options
            .as_ref()
            .is_some_and(|options| options.deprecated()),
        encoded: false,
        oneof,
    }
}

/// The name of a message's table.
pub(crate) fn table(full_name: &str) -> String {
    full_name
        .trim_start_matches('.')
        .replace('.', "_")
        .to_uppercase()
}

/// The size of a message in memory without its heap data, as an expression.
fn bytes_of(types: &Types, message: &Message) -> String {
    if !message.is_map_entry {
        return format!("size_of::<{}>()", message.rust);
    }
    // The size of an entry in a tree: its key, its value, and its part of a node.
    let value = message.fields.get(1);
    let value = value.and_then(|value| types.messages.get(&value.type_name));
    match value {
        Some(value) => format!("64 + size_of::<{}>()", value.rust),
        None => "64".to_owned(),
    }
}

pub(crate) fn generate(types: &Types) -> String {
    let with_required = types.with_required();
    let mut out = String::new();
    for (name, message) in &types.messages {
        let mut by_number: Vec<usize> = (0..message.fields.len()).collect();
        by_number.sort_by_key(|index| message.fields[*index].number);
        let _ = writeln!(
            out,
            "pub(crate) static {}: Message = Message {{ name: {:?}, has_required: {}, bytes: {}, by_number: &{by_number:?}, fields: &[",
            table(name),
            message.full_name.trim_start_matches('.'),
            with_required.contains(name.as_str()),
            bytes_of(types, message),
        );
        for field in &message.fields {
            let label = match (field.label, types.map_entry(field)) {
                (_, Some(_)) => "Map",
                (Label::Required, None) => "Required",
                (Label::Repeated, None) => "Repeated",
                (Label::Optional, None) => "Optional",
            };
            let kind = match field.ty {
                Type::Message => format!("Kind::Message(&{})", table(&field.type_name)),
                Type::Enum => {
                    let values = types
                        .enums
                        .get(&field.type_name)
                        .map(|e| e.values.as_slice());
                    let mut numbers: Vec<i32> = values
                        .unwrap_or_default()
                        .iter()
                        .map(|(_, number)| *number)
                        .collect();
                    numbers.sort_unstable();
                    format!("Kind::Enum(&{numbers:?})")
                }
                _ => "Kind::Scalar".to_owned(),
            };
            let _ = writeln!(
                out,
                "    Field {{ name: {:?}, number: {}, label: Label::{label}, kind: {kind} }},",
                field.name, field.number,
            );
        }
        out.push_str("] };\n");
    }
    out
}
