//! Attributes of agents.

use meseta_resources as res;
use meseta_resources::{AttributeValue, EmptyName, InvertedRange, ScalarError};

use super::resource::{ranges, to_ranges};
use crate::mesos::v1;
use crate::mesos::v1::value;

/// Errors of converting a message to an attribute.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AttributeError {
    #[error("invalid attribute: {0}")]
    Name(EmptyName),
    #[error("invalid attribute {name}: exactly the field of its type must be set")]
    WrongField { name: String },
    #[error("invalid attribute {name}: sets are not supported")]
    Set { name: String },
    #[error("invalid attribute {name}: {reason}")]
    Scalar { name: String, reason: ScalarError },
    #[error("invalid attribute {name}: {reason}")]
    Ranges { name: String, reason: InvertedRange },
}

pub fn attributes(messages: &[v1::Attribute]) -> Result<res::Attributes, AttributeError> {
    messages.iter().map(attribute).collect()
}

fn attribute(message: &v1::Attribute) -> Result<res::Attribute, AttributeError> {
    let name = || message.name.clone();
    let value = match (
        message.r#type(),
        &message.scalar,
        &message.ranges,
        &message.text,
    ) {
        (value::Type::Set, ..) => return Err(AttributeError::Set { name: name() }),
        (value::Type::Scalar, Some(scalar), None, None) => {
            let scalar =
                res::Scalar::from_f64(scalar.value).map_err(|reason| AttributeError::Scalar {
                    name: name(),
                    reason,
                })?;
            AttributeValue::Scalar(scalar)
        }
        (value::Type::Ranges, None, Some(given), None) => {
            let ranges = ranges(given).map_err(|reason| AttributeError::Ranges {
                name: name(),
                reason,
            })?;
            AttributeValue::Ranges(ranges)
        }
        (value::Type::Text, None, None, Some(text)) => AttributeValue::Text(text.value.clone()),
        _ => return Err(AttributeError::WrongField { name: name() }),
    };
    res::Attribute::new(&message.name, value).map_err(AttributeError::Name)
}

#[must_use]
pub fn to_attributes(attributes: &res::Attributes) -> Vec<v1::Attribute> {
    attributes.iter().map(to_attribute).collect()
}

fn to_attribute(attribute: &res::Attribute) -> v1::Attribute {
    let mut out = v1::Attribute {
        name: attribute.name().to_owned(),
        ..Default::default()
    };
    match attribute.value() {
        AttributeValue::Scalar(scalar) => {
            out.set_type(value::Type::Scalar);
            out.scalar = Some(value::Scalar {
                value: scalar.to_f64(),
            });
        }
        AttributeValue::Ranges(ranges) => {
            out.set_type(value::Type::Ranges);
            out.ranges = Some(to_ranges(ranges));
        }
        AttributeValue::Text(text) => {
            out.set_type(value::Type::Text);
            out.text = Some(value::Text {
                value: text.clone(),
            });
        }
    }
    out
}
