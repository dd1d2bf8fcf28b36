//! Objects built from parts that are text already, so that completing a large answer needs no parsing.

use super::write;
use crate::schema::WireMessage;

/// Writes a message as an object with its empty lists too, each as `[]` at the end. `lists` gives each name and whether its
/// list is empty, and so missing from the message's own output. Mesos writes them in answers of the operator API, and clients
/// index them without a check.
#[must_use]
pub fn object_with_lists<T: WireMessage>(message: &T, lists: &[(&str, bool)]) -> Vec<u8> {
    let mut body = Vec::new();
    write(message, &mut body);
    for (name, is_empty) in lists {
        if *is_empty && body.pop() == Some(b'}') {
            if body.len() > 1 {
                body.push(b',');
            }
            body.extend_from_slice(format!("\"{name}\":[]}}").as_bytes());
        }
    }
    body
}

/// Builds an object from the present parts, by name; each part is JSON.
#[must_use]
pub fn object_of_parts<const N: usize>(parts: [(&str, Option<Vec<u8>>); N]) -> Vec<u8> {
    let mut body = b"{".to_vec();
    for (name, part) in parts {
        let Some(part) = part else { continue };
        if body.len() > 1 {
            body.push(b',');
        }
        body.extend_from_slice(format!("\"{name}\":").as_bytes());
        body.extend_from_slice(&part);
    }
    body.push(b'}');
    body
}

/// Builds a response of the operator API: its type, and its part, which is JSON, in the field of that name.
#[must_use]
pub fn response(kind: &str, part: &[u8]) -> Vec<u8> {
    let field = kind.to_lowercase();
    let mut body = format!("{{\"type\":\"{kind}\",\"{field}\":").into_bytes();
    body.extend_from_slice(part);
    body.push(b'}');
    body
}
