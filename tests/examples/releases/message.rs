//! The part of HTTP/1.1 that the instances, the proxy and the client need: one request per connection.

use std::io::{self, Read};

/// The maximum size of a head.
const HEAD_BYTES_MAX: usize = 8 << 10;

pub(crate) fn request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n").into_bytes()
}

pub(crate) fn response(status: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").into_bytes()
}

/// Reads the head of a request or a response, up to the empty line.
pub(crate) fn read_head(stream: &mut impl Read) -> io::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= HEAD_BYTES_MAX {
            return Err(io::Error::other("the head is too long"));
        }
        stream.read_exact(&mut byte)?;
        head.extend_from_slice(&byte);
    }
    String::from_utf8(head).map_err(io::Error::other)
}

/// Returns the status of a response.
pub(crate) fn status(head: &str) -> Option<u16> {
    let status = head.strip_prefix("HTTP/1.1 ")?;
    status.get(..3)?.parse().ok()
}
