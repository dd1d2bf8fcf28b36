//! Objects built from parts that are text already, so that completing a large answer needs no parsing.

use super::write;
use crate::schema::WireMessage;

/// A message as an object with its empty lists too, each as `[]` at the end: by name whether a list is empty, and so
/// not written by itself. Mesos writes them in answers of the operator API, and clients index them without asking.
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

/// An object of the parts that are there, by name; each is JSON.
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

/// A response of the operator API: its type, and in the field of that name its part, which is JSON.
#[must_use]
pub fn response(kind: &str, part: &[u8]) -> Vec<u8> {
    let field = kind.to_lowercase();
    let mut body = format!("{{\"type\":\"{kind}\",\"{field}\":").into_bytes();
    body.extend_from_slice(part);
    body.push(b'}');
    body
}
