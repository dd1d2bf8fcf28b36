//! Bytes that an earlier version sent or stored (`tests/recorded`), which this version must accept.
//!
//! Each line is a name and hexadecimal digits. `MESETA_BLESS=1` adds missing lines. Invariant: a present line never
//! changes, because another version has written it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Returns all lines of a file by name, after comparing the messages of this version with those of the same name.
pub fn recorded(file: &str, written_now: &[(String, Vec<u8>)]) -> BTreeMap<String, Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("recorded")
        .join(file);
    let mut lines = read(&std::fs::read_to_string(&path).unwrap_or_default());
    if std::env::var_os("MESETA_BLESS").is_some() {
        for (name, bytes) in written_now {
            lines.entry(name.clone()).or_insert_with(|| bytes.clone());
        }
        std::fs::write(&path, text(&lines)).expect("the file is written");
    }
    for (name, bytes) in written_now {
        let before = lines.get(name).unwrap_or_else(|| {
            panic!("{file} has no {name}: run this test with MESETA_BLESS=1, which adds it")
        });
        assert_eq!(
            hex(before),
            hex(bytes),
            "an earlier version wrote {name} of {file} in another way"
        );
    }
    lines
}

/// Returns the message as a later version may write it: with unknown fields.
pub fn with_unknown_fields(bytes: &[u8]) -> Vec<u8> {
    /// The unknown fields: 15000 with a number, and 15001 with five bytes.
    const UNKNOWN: [u8; 14] = [
        0xc0, 0xa9, 0x07, 0x96, 0x01, 0xca, 0xa9, 0x07, 0x05, b'l', b'a', b't', b'e', b'r',
    ];
    [bytes, &UNKNOWN].concat()
}

fn read(text: &str) -> BTreeMap<String, Vec<u8>> {
    let line = |line: &str| {
        let (name, digits) = line.split_once(' ').expect("a name and digits");
        let byte = |place: usize| digits.get(place..place + 2);
        let bytes = (0..digits.len()).step_by(2).map(|place| {
            let byte = byte(place).and_then(|byte| u8::from_str_radix(byte, 16).ok());
            byte.expect("two hexadecimal digits")
        });
        (name.to_owned(), bytes.collect())
    };
    text.lines().map(line).collect()
}

fn text(lines: &BTreeMap<String, Vec<u8>>) -> String {
    let lines = lines.iter();
    lines
        .map(|(name, bytes)| format!("{name} {}\n", hex(bytes)))
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes it");
        text
    })
}
