//! The generator of the code that reads and writes each message as JSON in the Mesos dialect.
//!
//! Output: fields in the order of declaration; an unset field is written if it has a default and is not deprecated. Input:
//! the readers of `src/json/de.rs`, chosen by the field's type.

use std::error::Error;
use std::fmt::Write as _;

use prost_types::field_descriptor_proto::{Label, Type};

use crate::schema::{Field, Message, Types, table};

pub(crate) fn generate(types: &Types) -> Result<String, Box<dyn Error>> {
    let mut out = String::new();
    for item in types.enums.values() {
        let _ = write!(
            out,
            "impl EnumName for {0} {{
    fn number_of(name: &str) -> Option<i32> {{ Self::from_str_name(name).map(i32::from) }}
    fn name_of(number: i32) -> Option<&'static str> {{
        Self::try_from(number).ok().map(|value| value.as_str_name())
    }}
}}
",
            item.rust
        );
    }
    for message in types
        .messages
        .values()
        .filter(|message| !message.is_map_entry)
    {
        write_message(&mut out, types, message)
            .map_err(|error| format!("{}: {error}", message.full_name))?;
    }
    Ok(out)
}

fn write_message(out: &mut String, types: &Types, message: &Message) -> Result<(), Box<dyn Error>> {
    let rust = &message.rust;
    let read = reader(types, message)?;
    let write = writer(types, message)?;
    let _ = write!(
        out,
        "impl WireMessage for {rust} {{
    const SCHEMA: &'static schema::Message = &tables::{};
    fn from_map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {{
{read}    }}
}}
impl<'de> Deserialize<'de> for {rust} {{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {{
        de::Root::new().deserialize(deserializer)
    }}
}}
impl Serialize for {rust} {{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {{
{write}    }}
}}
",
        table(&message.full_name),
    );
    Ok(())
}

fn reader(types: &Types, message: &Message) -> Result<String, Box<dyn Error>> {
    let mut out = String::new();
    if message.fields.is_empty() {
        out.push_str("        de::skip_all(&mut map)?;\n        Ok(Self::default())\n");
        return Ok(out);
    }
    let required = message
        .fields
        .iter()
        .filter(|field| field.label == Label::Required)
        .count();
    if required > 32 {
        return Err("more required fields than bits".into());
    }
    out.push_str("        let mut out = Self::default();\n");
    if required > 0 {
        out.push_str("        let mut seen = 0u32;\n");
    }
    out.push_str("        let keys = |key: &str| match key {\n");
    for (index, field) in message.fields.iter().enumerate() {
        let _ = writeln!(out, "            {:?} => {index},", field.name);
    }
    out.push_str("            _ => u8::MAX,\n        };\n");
    out.push_str("        while let Some(key) = map.next_key_seed(de::Key(keys))? {\n");
    out.push_str("            match key {\n");
    let mut bit = 0;
    for (index, field) in message.fields.iter().enumerate() {
        let seed = seed(types, field)?;
        let rust = &field.rust;
        let value = format!("map.next_value_seed({seed})?");
        let _ = match (&field.oneof, field.label) {
            (Some(oneof), _) => writeln!(
                out,
                "                {index} => if let Some(value) = {value} {{ out.{} = Some({}(value)); }},",
                oneof.rust_field, oneof.variant
            ),
            (None, Label::Required) => {
                let mask = 1u32 << bit;
                bit += 1;
                writeln!(
                    out,
                    "                {index} => if let Some(value) = {value} {{ out.{rust} = value; seen |= {mask}; }},"
                )
            }
            (None, _) if field.implicit => writeln!(
                out,
                "                {index} => if let Some(value) = {value} {{ out.{rust} = value; }},"
            ),
            (None, Label::Optional | Label::Repeated) => {
                writeln!(out, "                {index} => out.{rust} = {value},")
            }
        };
    }
    out.push_str(
        "                _ => map.next_value_seed(de::Skip)?,\n            }\n        }\n",
    );
    if required > 0 {
        let all = u32::MAX >> (32 - required);
        let _ = writeln!(out, "        de::require(seen == {all})?;");
    }
    out.push_str("        Ok(out)\n");
    Ok(out)
}

/// The expression that reads the field's value.
fn seed(types: &Types, field: &Field) -> Result<String, Box<dyn Error>> {
    if let Some((key, value)) = types.map_entry(field) {
        if key.ty != Type::String {
            return Err("only strings can be keys of a map".into());
        }
        return Ok(format!(
            "de::Map({}, {:?})",
            element_seed(types, value, &field.name)?,
            field.name
        ));
    }
    let element = element_seed(types, field, &field.name)?;
    Ok(match field.label {
        Label::Repeated => format!("de::Many({element})"),
        Label::Required | Label::Optional => element,
    })
}

fn element_seed(types: &Types, field: &Field, name: &str) -> Result<String, Box<dyn Error>> {
    let required = field.label == Label::Required;
    Ok(match field.ty {
        Type::Double => format!("de::Double({name:?})"),
        Type::Int64 => format!("de::Int64({name:?})"),
        Type::Uint64 => format!("de::Uint64({name:?})"),
        Type::Int32 => format!("de::Int32({name:?})"),
        Type::Uint32 => format!("de::Uint32({name:?})"),
        Type::Bool => format!("de::Bool({name:?})"),
        Type::String => format!("de::Text({name:?})"),
        Type::Bytes => format!("de::Bytes({name:?})"),
        Type::Enum => {
            let rust = enum_rust(types, field)?;
            format!("de::Enum::<{rust}>::new({name:?}, {required})")
        }
        Type::Message if field.encoded => {
            format!(
                "de::Encoded::<{}>::new({name:?})",
                message_rust(types, field)?
            )
        }
        Type::Message => format!("de::Submessage::new({name:?})"),
        other => return Err(format!("{name}: no JSON for {other:?}").into()),
    })
}

fn writer(types: &Types, message: &Message) -> Result<String, Box<dyn Error>> {
    if message.fields.is_empty() {
        return Ok("        serializer.serialize_map(Some(0))?.end()\n".to_owned());
    }
    let mut out = "        let mut out = serializer.serialize_map(None)?;\n".to_owned();
    for field in &message.fields {
        let rust = &field.rust;
        let line = if let Some(oneof) = &field.oneof {
            let entry = entry(types, field, Place::Reference)?;
            format!(
                "if let Some({}(value)) = &self.{} {{ {entry} }}",
                oneof.variant, oneof.rust_field
            )
        } else {
            match field.label {
                Label::Required => entry(types, field, Place::OfSelf)?,
                Label::Repeated => {
                    let name = &field.name;
                    let list = list(types, field, &format!("self.{rust}"))?;
                    format!(
                        "if !self.{rust}.is_empty() {{ out.serialize_entry({name:?}, {list})?; }}"
                    )
                }
                Label::Optional if field.implicit => {
                    let entry = entry(types, field, Place::OfSelf)?;
                    format!("if self.{rust} != Self::default().{rust} {{ {entry} }}")
                }
                Label::Optional => optional(types, field)?,
            }
        };
        let _ = writeln!(out, "        {line}");
    }
    out.push_str("        out.end()\n");
    Ok(out)
}

fn optional(types: &Types, field: &Field) -> Result<String, Box<dyn Error>> {
    let (name, rust) = (&field.name, &field.rust);
    let mut out = if field.ty == Type::Enum {
        let of = enum_rust(types, field)?;
        format!(
            "if let Some(name) = self.{rust}.and_then({of}::name_of) {{ \
             out.serialize_entry({name:?}, name)?; }}"
        )
    } else {
        let entry = entry(types, field, Place::Reference)?;
        format!("if let Some(value) = &self.{rust} {{ {entry} }}")
    };
    if let Some(default) = field.default.as_ref().filter(|_| !field.deprecated) {
        let literal = literal(field, default)?;
        let _ = write!(
            out,
            " else {{ out.serialize_entry({name:?}, {literal})?; }}"
        );
    }
    Ok(out)
}

/// The place of the value that the generated code writes.
#[derive(Copy, Clone)]
enum Place {
    /// The value is in the field itself.
    OfSelf,
    /// The value is behind a reference named `value`.
    Reference,
}

/// The statement that writes one value.
fn entry(types: &Types, field: &Field, place: Place) -> Result<String, Box<dyn Error>> {
    let name = &field.name;
    let (reference, copy) = match place {
        Place::OfSelf => (
            format!("&self.{}", field.rust),
            format!("self.{}", field.rust),
        ),
        Place::Reference => ("value".to_owned(), "*value".to_owned()),
    };
    Ok(match field.ty {
        Type::Bytes => format!("out.serialize_entry({name:?}, &ser::Bytes({reference}))?;"),
        Type::Double => format!("out.serialize_entry({name:?}, &ser::Double({copy}))?;"),
        Type::Enum => format!(
            "if let Some(name) = {}::name_of({copy}) {{ out.serialize_entry({name:?}, name)?; }}",
            enum_rust(types, field)?
        ),
        _ => format!("out.serialize_entry({name:?}, {reference})?;"),
    })
}

/// The expression that writes all values of a repeated field or a map.
fn list(types: &Types, field: &Field, value: &str) -> Result<String, Box<dyn Error>> {
    if let Some((_, element)) = types.map_entry(field) {
        return match element.ty {
            Type::Message | Type::String => Ok(format!("&{value}")),
            other => Err(format!("{}: no JSON for a map to {other:?}", field.name).into()),
        };
    }
    Ok(match field.ty {
        Type::Bytes => format!("&ser::ManyBytes(&{value})"),
        Type::Double => {
            return Err(format!("{}: no JSON for a list of {:?}", field.name, field.ty).into());
        }
        Type::Message if field.encoded => {
            format!(
                "&ser::ManyEncoded::<{}>::new(&{value})",
                message_rust(types, field)?
            )
        }
        Type::Enum => format!(
            "&ser::ManyEnums::<{}>::new(&{value})",
            enum_rust(types, field)?
        ),
        _ => format!("&{value}"),
    })
}

fn message_rust<'a>(types: &'a Types, field: &Field) -> Result<&'a str, Box<dyn Error>> {
    let message = types.messages.get(&field.type_name);
    Ok(message.ok_or("unknown message")?.rust.as_str())
}

fn enum_rust<'a>(types: &'a Types, field: &Field) -> Result<&'a str, Box<dyn Error>> {
    Ok(types
        .enums
        .get(&field.type_name)
        .ok_or("unknown enum")?
        .rust
        .as_str())
}

fn literal(field: &Field, default: &str) -> Result<String, Box<dyn Error>> {
    Ok(match field.ty {
        Type::String | Type::Enum => format!("{default:?}"),
        Type::Bool | Type::Int32 | Type::Uint32 | Type::Int64 | Type::Uint64 => {
            format!("&{default}")
        }
        Type::Double => format!("&{:?}", default.parse::<f64>()?),
        other => return Err(format!("{}: no default for {other:?}", field.name).into()),
    })
}
