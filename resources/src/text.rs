//! The parser of operators' texts: `--resources`, and the values inside it and `--attributes`.
//!
//! The format is `name(role):value;name:value`, where a value is a number, `[ranges]` or `{a,set}`. Every error gives the
//! position, the mistake and the correct form. JSON is not read here.

use crate::command_line::TypeConflict;
use crate::{
    EmptyName, InvertedRange, ItemSet, Range, Ranges, Reservation, Resource, ResourceError,
    ResourceName, ResourceParts, ResourceQuantities, Resources, Role, RoleError, Scalar,
    ScalarError, Value, ValueKind,
};

/// The error of parsing a list.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("'{piece}' at byte {offset}: {reason}")]
pub struct ParseError {
    /// The start of the piece in the text.
    pub offset: usize,
    /// The invalid piece of the list.
    pub piece: String,
    pub reason: ParseReason,
}

/// The mistake in a piece.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ParseReason {
    #[error("missing or extra ':'; write name:value or name(role):value, with ';' between")]
    Colons,
    #[error("mismatched parentheses; write name(role):value")]
    Parentheses,
    #[error("unexpected '{0}' between the role and ':'; write name(role):value")]
    AfterRole(String),
    #[error(transparent)]
    Name(#[from] EmptyName),
    #[error(transparent)]
    Role(#[from] RoleError),
    #[error("bad value for {name}: {error}")]
    Value { name: String, error: ValueError },
    #[error(
        "Bad type for resource {name} value {value} type TEXT; it must be a number that is not \
         negative, ranges like [1-5,8-9] or a set like {{a,b}}"
    )]
    TextResource { name: String, value: String },
    #[error("bad value for {name}: {error}")]
    Scalar { name: String, error: ScalarError },
    #[error("Invalid set resource: duplicated elements: '{0}' is there twice")]
    DuplicateItem(String),
    #[error(transparent)]
    Resource(#[from] ResourceError),
    #[error(transparent)]
    TypeConflict(#[from] TypeConflict),
    #[error("only scalar values are allowed for {0}; write a number that is not negative")]
    NotScalar(String),
    #[error("invalid attribute; write name:value, neither of them empty, with ';' between")]
    Attribute,
    #[error("Bad type for attribute {0}: sets are not supported; write a number, ranges or text")]
    SetAttribute(String),
}

/// The error of parsing a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    #[error("Expecting non-empty string")]
    Empty,
    #[error("Mismatched brackets: each of (, [, {{ needs its own ), ], }} after it")]
    MismatchedBrackets,
    #[error("Expecting one or more \"ranges\", as in [1-5,8-9]: there is an odd number of bounds")]
    OddBounds,
    #[error("Expecting non-negative integers in '{0}', up to 18446744073709551615")]
    Bound(String),
    #[error("Invalid ranges resource: {0}")]
    Inverted(#[from] InvertedRange),
    #[error("Unexpected '{0}' found; it can only begin a value")]
    UnexpectedBracket(char),
    #[error("Subnormal values not supported: {0} is too close to zero")]
    Subnormal(String),
}

/// A value as written; the caller decides which kinds of text are acceptable.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum WrittenValue {
    Number(f64),
    Ranges(Ranges),
    /// The items as written: in order, with repetitions.
    Set(Vec<String>),
    Text(String),
}

/// Parses a value; spaces are ignored everywhere.
pub(crate) fn parse_value(text: &str) -> Result<WrittenValue, ValueError> {
    let text = text.replace(' ', "");
    if text.is_empty() {
        return Err(ValueError::Empty);
    }
    if ![('{', '}'), ('[', ']'), ('(', ')')]
        .iter()
        .all(|pair| is_balanced(&text, *pair))
    {
        return Err(ValueError::MismatchedBrackets);
    }
    if text.starts_with('[') {
        return parse_ranges(&text).map(WrittenValue::Ranges);
    }
    if text.contains('[') {
        return Err(ValueError::UnexpectedBracket('['));
    }
    if text.starts_with('{') {
        let items = tokens(&text, &['{', '}', ',', '\n']).map(Into::into);
        return Ok(WrittenValue::Set(items.collect()));
    }
    if text.contains('{') {
        return Err(ValueError::UnexpectedBracket('{'));
    }
    match parse_number(&text) {
        Some(number) if number.is_subnormal() => Err(ValueError::Subnormal(text)),
        Some(number) if number.is_finite() && number >= 0.0 => Ok(WrittenValue::Number(number)),
        _ => Ok(WrittenValue::Text(text)),
    }
}

fn is_balanced(text: &str, (open, close): (char, char)) -> bool {
    let mut depth = 0_usize;
    for c in text.chars() {
        if c == open {
            depth += 1;
        } else if c == close {
            match depth.checked_sub(1) {
                Some(less) => depth = less,
                None => return false,
            }
        }
    }
    depth == 0
}

fn tokens<'a>(text: &'a str, separators: &'a [char]) -> impl Iterator<Item = &'a str> {
    text.split(separators).filter(|token| !token.is_empty())
}

fn parse_ranges(text: &str) -> Result<Ranges, ValueError> {
    let bounds: Vec<&str> = tokens(text, &['[', ']', '-', ',', '\n']).collect();
    let (pairs, rest) = bounds.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(ValueError::OddBounds);
    }
    pairs
        .iter()
        .map(|[begin, end]| Ok(Range::new(parse_bound(begin)?, parse_bound(end)?)?))
        .collect()
}

fn parse_bound(text: &str) -> Result<u64, ValueError> {
    let number = match hexadecimal(text) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| ValueError::Bound(text.into()))
}

fn parse_number(text: &str) -> Option<f64> {
    match hexadecimal(text) {
        #[expect(
            clippy::cast_precision_loss,
            reason = "as any number written with many digits"
        )]
        Some(digits) => u64::from_str_radix(digits, 16)
            .ok()
            .map(|number| number as f64),
        None => text.parse().ok(),
    }
}

fn hexadecimal(text: &str) -> Option<&str> {
    text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))
}

/// The pieces between the separators with their offsets; empty pieces are skipped.
pub(crate) fn pieces<'a>(
    text: &'a str,
    separators: &'a [char],
) -> impl Iterator<Item = (usize, &'a str)> {
    let mut offset = 0;
    text.split(separators)
        .map(move |piece| {
            let start = offset;
            offset += piece.len() + 1;
            (start, piece)
        })
        .filter(|(_, piece)| !piece.is_empty())
}

pub(crate) fn each_piece<T>(
    text: &str,
    separators: &[char],
    mut read: impl FnMut(&str) -> Result<T, ParseReason>,
) -> Result<Vec<T>, ParseError> {
    pieces(text, separators)
        .map(|(offset, piece)| {
            read(piece).map_err(|reason| ParseError {
                offset,
                piece: piece.into(),
                reason,
            })
        })
        .collect()
}

fn name_and_value(piece: &str) -> Result<(&str, &str), ParseReason> {
    let (name, value) = piece.split_once(':').ok_or(ParseReason::Colons)?;
    if value.contains(':') {
        Err(ParseReason::Colons)
    } else {
        Ok((name, value))
    }
}

impl Resources {
    /// Parses `name(role):value;...`. A resource without a role is reserved, statically, to `default_role`, or unreserved if that
    /// is `*`.
    ///
    /// # Errors
    /// When a piece is malformed, is not a valid resource, or gives a name a second type.
    pub fn parse(text: &str, default_role: &Role) -> Result<Self, ParseError> {
        let mut seen: Vec<(ResourceName, ValueKind)> = Vec::new();
        let resources = each_piece(text, &[';'], |piece| {
            let resource = parse_resource(piece, default_role)?;
            resource.check_gpus()?;
            TypeConflict::check(&mut seen, &resource)?;
            Ok(resource)
        })?;
        Ok(resources.into_iter().collect())
    }
}

fn parse_resource(piece: &str, default_role: &Role) -> Result<Resource, ParseReason> {
    let (label, written) = name_and_value(piece)?;
    let (name, role) = parse_label(label, default_role)?;
    let value = resource_value(name.as_str(), written)?;
    let mut parts = ResourceParts::plain(name, value);
    if !role.is_star() {
        parts.reservations.push(Reservation::fixed(role));
    }
    Ok(Resource::new(parts)?)
}

/// Parses a label, `name` or `name(role)`.
fn parse_label(label: &str, default_role: &Role) -> Result<(ResourceName, Role), ParseReason> {
    if !is_balanced(label, ('(', ')')) {
        return Err(ParseReason::Parentheses);
    }
    let Some((name, rest)) = label.split_once('(') else {
        return Ok((ResourceName::new(label.trim())?, default_role.clone()));
    };
    let (role, after) = rest.split_once(')').ok_or(ParseReason::Parentheses)?;
    if !after.trim().is_empty() {
        return Err(ParseReason::AfterRole(after.trim().into()));
    }
    Ok((ResourceName::new(name.trim())?, Role::new(role.trim())?))
}

fn resource_value(name: &str, written: &str) -> Result<Value, ParseReason> {
    let value = parse_value(written).map_err(|error| ParseReason::Value {
        name: name.into(),
        error,
    })?;
    match value {
        WrittenValue::Number(number) => Scalar::quantity_from_f64(number)
            .map(Value::Scalar)
            .map_err(|error| ParseReason::Scalar {
                name: name.into(),
                error,
            }),
        WrittenValue::Ranges(ranges) => Ok(Value::Ranges(ranges)),
        WrittenValue::Set(items) => match repeated(&items) {
            Some(item) => Err(ParseReason::DuplicateItem(item.into())),
            None => Ok(Value::Set(items.into_iter().collect::<ItemSet>())),
        },
        WrittenValue::Text(value) => Err(ParseReason::TextResource {
            name: name.into(),
            value,
        }),
    }
}

/// The first duplicate item.
pub(crate) fn repeated(items: &[String]) -> Option<&str> {
    let mut seen = std::collections::BTreeSet::new();
    items
        .iter()
        .find(|item| !seen.insert(item.as_str()))
        .map(String::as_str)
}

fn parse_amount(piece: &str) -> Result<(ResourceName, Scalar), ParseReason> {
    let (label, written) = name_and_value(piece)?;
    let name = ResourceName::new(label.trim())?;
    let not_scalar = || ParseReason::NotScalar(name.to_string());
    let value = parse_value(written).map_err(|error| ParseReason::Value {
        name: name.to_string(),
        error,
    })?;
    let WrittenValue::Number(number) = value else {
        return Err(not_scalar());
    };
    let amount = Scalar::quantity_from_f64(number).map_err(|error| ParseReason::Scalar {
        name: name.to_string(),
        error,
    })?;
    Ok((name, amount))
}

impl std::str::FromStr for ResourceQuantities {
    type Err = ParseError;
    /// Parses `name:number;...`, or `{}` for nothing; duplicate names add up, zero is dropped.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        if text == "{}" {
            return Ok(Self::new());
        }
        Ok(each_piece(text, &[';'], parse_amount)?
            .into_iter()
            .collect())
    }
}
