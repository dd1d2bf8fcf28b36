//! The result of unpacking a layer, as the child writes it for its parent and as the store keeps it.
//!
//! Invariant: a path in a report is text that [`unescape`] turns back into the same bytes; a reader of a report validates
//! each path before use, because the child may have been taken over by a hostile layer.

use serde::{Deserialize, Serialize};

use crate::descriptor::Digest;

/// The result of unpacking a layer. Paths are escaped, relative to the layer's folder.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The digest of the content. Always present after success.
    pub diff_id: Option<Digest>,
    /// Bytes of the decompressed archive.
    pub content_bytes: u64,
    /// Bytes that the files take on disk, in whole blocks.
    pub disk_bytes: u64,
    pub entries: u64,
    /// Folders without an entry of their own, in order. Their mode and owner come from a lower layer.
    pub implied: Vec<String>,
    /// Folders that hide the folders of lower layers. The empty path hides all lower layers.
    pub opaque: Vec<String>,
    /// Paths of hard links to files that are in lower layers alone, each with its target.
    pub links: Vec<(String, String)>,
    pub devices: Vec<Device>,
    /// The extended attributes that were left out because the file system has none of this kind.
    pub skipped_xattrs: u64,
}

/// A device file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    pub path: String,
    pub is_block: bool,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub major: u32,
    pub minor: u32,
    pub modified: (i64, u32),
}

/// The limits of a child's access that this kernel supports.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Confinement {
    /// The version of landlock; 0 if the kernel has none, or one that cannot permit links between folders.
    pub landlock: u32,
    pub own_network: bool,
    pub own_root: bool,
    pub fewer_capabilities: bool,
}

/// Writes a path as text: `%` and bytes that are no UTF-8 become `%` and two hexadecimal digits.
pub(crate) fn escape(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for (at, part) in chunk.valid().split('%').enumerate() {
            if at > 0 {
                text.push_str("%25");
            }
            text.push_str(part);
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("%{byte:02x}"));
        }
    }
    text
}

/// Reads the text of [`escape`]. Returns nothing for another text.
pub(crate) fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut path = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        path.push(u8::from_str_radix(digits, 16).ok()?);
        path.extend_from_slice(rest.as_bytes());
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_paths_survive_a_round_trip() {
        for path in [
            &b""[..],
            b"a/b",
            b"100%",
            b"%%41",
            "\u{e4}/b".as_bytes(),
            b"\xff/\xe4b%",
        ] {
            let text = escape(path);
            assert_eq!(unescape(&text).as_deref(), Some(path), "{text}");
        }
        assert_eq!(escape(b"a\xff%"), "a%ff%25");
    }

    #[test]
    fn invalid_escapes_are_refused() {
        for text in ["%", "%2", "%zz", "%+1", "a%\u{e4}"] {
            assert_eq!(unescape(text), None, "{text}");
        }
    }
}
