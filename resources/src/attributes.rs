//! Attributes: an operator's description of a node, passed on to frameworks.
//!
//! A number, ranges or a text; never a set. Names may repeat, and equality ignores order.

use std::fmt;
use std::str::FromStr;

use crate::text::{ParseError, ParseReason, WrittenValue, each_piece, parse_value};
use crate::{EmptyName, Ranges, Scalar};

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Attribute {
    name: String,
    value: AttributeValue,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AttributeValue {
    Scalar(Scalar),
    Ranges(Ranges),
    Text(String),
}

impl Attribute {
    /// # Errors
    /// When the name is empty.
    pub fn new(name: &str, value: AttributeValue) -> Result<Self, EmptyName> {
        if name.is_empty() {
            Err(EmptyName)
        } else {
            Ok(Self {
                name: name.into(),
                value,
            })
        }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub const fn value(&self) -> &AttributeValue {
        &self.value
    }

    /// Parses `name:value`, split at the first colon: a text may have more of them.
    fn parse(piece: &str) -> Result<Self, ParseReason> {
        let (name, written) = piece.split_once(':').ok_or(ParseReason::Attribute)?;
        let name = name.trim();
        if name.is_empty() || written.is_empty() {
            return Err(ParseReason::Attribute);
        }
        let value = parse_value(written).map_err(|error| ParseReason::Value {
            name: name.into(),
            error,
        })?;
        let value = match value {
            // A number too large to be exact is more likely a serial number than a quantity.
            WrittenValue::Number(number) => match Scalar::from_f64(number) {
                Ok(scalar) => AttributeValue::Scalar(scalar),
                Err(_) => AttributeValue::Text(written.replace(' ', "")),
            },
            WrittenValue::Ranges(ranges) => AttributeValue::Ranges(ranges),
            WrittenValue::Text(text) => AttributeValue::Text(text),
            WrittenValue::Set(_) => return Err(ParseReason::SetAttribute(name.into())),
        };
        Ok(Self {
            name: name.into(),
            value,
        })
    }
}

/// A list of attributes in the given order.
#[derive(Clone, Eq, Debug, Default)]
pub struct Attributes(Vec<Attribute>);

impl Attributes {
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Attribute> {
        self.0.iter()
    }

    #[must_use]
    pub fn contains(&self, attribute: &Attribute) -> bool {
        self.0.contains(attribute)
    }

    /// All values of a name, in the given order.
    pub fn get<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a AttributeValue> {
        self.0
            .iter()
            .filter(move |attribute| attribute.name == name)
            .map(Attribute::value)
    }

    fn sorted(&self) -> Vec<&Attribute> {
        let mut sorted: Vec<&Attribute> = self.0.iter().collect();
        sorted.sort_unstable();
        sorted
    }
}

impl PartialEq for Attributes {
    fn eq(&self, that: &Self) -> bool {
        self.len() == that.len() && self.sorted() == that.sorted()
    }
}

impl FromStr for Attributes {
    type Err = ParseError;
    /// Parses `name:value;...`; a line feed also separates.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        each_piece(text, &[';', '\n'], Attribute::parse).map(Self)
    }
}

impl FromIterator<Attribute> for Attributes {
    fn from_iter<I: IntoIterator<Item = Attribute>>(attributes: I) -> Self {
        Self(attributes.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a Attributes {
    type Item = &'a Attribute;
    type IntoIter = std::slice::Iter<'a, Attribute>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for AttributeValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scalar(scalar) => write!(f, "{scalar}"),
            Self::Ranges(ranges) => write!(f, "{ranges}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

impl fmt::Display for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::display::separated(f, self.iter(), "; ")
    }
}
