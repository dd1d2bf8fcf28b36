//! Text of other parties, made safe for a log or a terminal: names of frameworks and tasks, messages, responses of servers.
//!
//! Entered through [`escaped`], which both the command line and the log of the daemons use, and [`Untrusted`]. Invariant:
//! the resulting text contains no character that starts a line, moves the cursor, changes the direction of text or is
//! invisible, unless the caller keeps that character by name.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// The longest text of other parties in a line of the log, in bytes. A name or a message is recognizable from less.
pub const TEXT_BYTES_MAX: usize = 256;

/// Bytes that stay at the end of a cut text: the cause stands at the end of an error.
const TAIL_BYTES: usize = 64;

/// Whether a terminal shows this character in its place, and as itself alone. Control characters (C0, DEL and C1),
/// separators of lines, marks that change the direction of text, and invisible marks are harmful. The joiners of emoji and
/// of Persian (U+200C, U+200D) are harmless.
#[must_use]
pub fn is_harmless(letter: char) -> bool {
    !letter.is_control()
        && !matches!(
            letter,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{200e}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Returns the text with each harmful character escaped, such as `\u{1b}`, except for those to keep.
#[must_use]
pub fn escaped<'a>(text: &'a str, kept: &[char]) -> Cow<'a, str> {
    let is_kept = |letter: char| is_harmless(letter) || kept.contains(&letter);
    if text.chars().all(is_kept) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match is_kept(letter) {
            true => escaped.push(letter),
            false => escaped.extend(letter.escape_default()),
        }
    }
    Cow::Owned(escaped)
}

/// Returns JSON with each harmful character in its texts escaped, such as `\u202e`: the same value, safe for a terminal. A
/// line feed between values stays.
#[must_use]
pub fn escaped_json(json: &str) -> Cow<'_, str> {
    let is_kept = |letter: char| is_harmless(letter) || letter == '\n';
    if json.chars().all(is_kept) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len());
    for letter in json.chars() {
        if is_kept(letter) {
            escaped.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    Cow::Owned(escaped)
}

/// A foreign text on one line: escaped, and cut to [`TEXT_BYTES_MAX`].
#[derive(Clone, Copy, Debug)]
pub struct Untrusted<'a>(pub &'a str);

impl fmt::Display for Untrusted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut excerpt = Excerpt::new(TEXT_BYTES_MAX);
        excerpt.write_str(self.0)?;
        f.write_str(&escaped(&excerpt.into_text(), &[]))
    }
}

/// The beginning and the end of a written text. The memory stays bounded by the result, however much is written.
#[derive(Debug)]
pub struct Excerpt {
    bytes_max: usize,
    head: String,
    is_head_full: bool,
    tail: String,
    /// The number of omitted bytes between head and tail.
    left_out: usize,
}

impl Excerpt {
    /// Returns an empty excerpt of at most `bytes_max` bytes, plus the note about the missing part.
    #[must_use]
    pub const fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            head: String::new(),
            is_head_full: false,
            tail: String::new(),
            left_out: 0,
        }
    }

    /// Returns the text if it is short enough; otherwise its beginning, the number of missing bytes, and its end.
    #[must_use]
    pub fn into_text(mut self) -> String {
        self.trim_tail();
        match self.left_out {
            0 => self.head + &self.tail,
            left_out => format!("{}[... {left_out} bytes ...]{}", self.head, self.tail),
        }
    }

    fn trim_tail(&mut self) {
        let room = self.bytes_max.saturating_sub(self.head.len());
        if self.left_out == 0 && self.tail.len() <= room {
            return;
        }
        let from = self.tail.len().saturating_sub(room.min(TAIL_BYTES));
        let from = ceil_char_boundary(&self.tail, from);
        self.tail.drain(..from);
        self.left_out += from;
    }
}

impl fmt::Write for Excerpt {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        if !self.is_head_full {
            let room = self.bytes_max.saturating_sub(TAIL_BYTES) - self.head.len();
            let (kept, more) = text.split_at(floor_char_boundary(text, room));
            self.head.push_str(kept);
            self.is_head_full = !more.is_empty();
            rest = more;
        }
        // Only the end of a long piece can stay; one byte more than fits shows that the text is too long.
        let from = rest.len().saturating_sub(self.bytes_max);
        let (passed, end) = rest.split_at(ceil_char_boundary(rest, from));
        if !passed.is_empty() {
            self.left_out += self.tail.len() + passed.len();
            self.tail.clear();
        }
        self.tail.push_str(end);
        if self.left_out > 0 || self.tail.len() > self.bytes_max {
            self.trim_tail();
        }
        Ok(())
    }
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or_default()
}

fn ceil_char_boundary(text: &str, at: usize) -> usize {
    (at..text.len())
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmful_characters_are_written_out() {
        for (text, expected) in [
            ("a\nb\r\t", r"a\nb\r\t"),
            ("\u{1b}[31m\u{9b}K\u{7f}", r"\u{1b}[31m\u{9b}K\u{7f}"),
            ("abc\u{202e}txt\u{2066}", r"abc\u{202e}txt\u{2066}"),
            ("a\u{2028}b\u{200b}\u{feff}", r"a\u{2028}b\u{200b}\u{feff}"),
            (
                "Jörg 日本 e\u{301} 👩\u{200d}🚀",
                "Jörg 日本 e\u{301} 👩\u{200d}🚀",
            ),
        ] {
            assert_eq!(escaped(text, &[]), expected);
            assert_eq!(Untrusted(text).to_string(), expected);
        }
        assert_eq!(escaped("one\n\ttwo\r", &['\n', '\t']), "one\n\ttwo\\r");
        assert!(matches!(escaped("plain", &[]), Cow::Borrowed(_)));
    }

    #[test]
    fn json_keeps_its_value() {
        let text = "a\u{9b}\u{202e}\u{e0041}\u{7f}é";
        let json = format!("{{\n  \"name\": {:?}\n}}", "x").replace('x', text);
        let told = escaped_json(&json);
        assert_eq!(
            told,
            "{\n  \"name\": \"a\\u009b\\u202e\\udb40\\udc41\\u007fé\"\n}"
        );
        let value: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        assert_eq!(value["name"], text);
    }

    #[test]
    fn long_text_keeps_both_ends() {
        let text = format!("begin{}end", "é".repeat(1 << 20));
        let told = Untrusted(&text).to_string();
        assert!(
            told.starts_with("beginé") && told.ends_with("éend"),
            "{told}"
        );
        assert!(told.contains("bytes ...]"), "{told}");
        assert!(told.len() <= TEXT_BYTES_MAX + 32, "{}", told.len());
        let fits = "x".repeat(TEXT_BYTES_MAX);
        assert_eq!(Untrusted(&fits).to_string(), fits);
    }

    /// The excerpt must not depend on the lengths of the pieces in which formatting writes.
    #[test]
    fn excerpt_ignores_how_text_is_split() {
        for length in [0, 1, 191, 192, 193, 255, 256, 257, 300, 511, 512, 513, 5000] {
            let text: String = ('a'..='z').cycle().take(length).collect();
            let excerpt = |piece: usize| {
                let mut excerpt = Excerpt::new(TEXT_BYTES_MAX);
                for piece in text.as_bytes().chunks(piece) {
                    let piece = std::str::from_utf8(piece).expect("ASCII");
                    excerpt.write_str(piece).expect("written");
                    assert!(excerpt.tail.len() <= 2 * TEXT_BYTES_MAX);
                }
                excerpt.into_text()
            };
            let whole = excerpt(5000);
            assert_eq!(whole == text, length <= TEXT_BYTES_MAX, "{length}");
            for piece in [1, 7, 64, 255, 256, 257, 300] {
                assert_eq!(excerpt(piece), whole, "{length} in pieces of {piece}");
            }
        }
    }
}
