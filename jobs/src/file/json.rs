//! JSON as a tree of values, each with its place in the text.
//!
//! `serde_json` validates the text first, including its depth, so the walk sees only valid JSON. A repeated key is kept
//! twice, so that the check of fields can report it.

use super::tree::{Entry, Node, Value};

/// Parses JSON; for an invalid text, returns the byte and the message of the parser.
pub(super) fn from_json(text: &str) -> Result<Node, (usize, String)> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|error| {
        let words = error.to_string();
        let words = words.split(" at line ").next().unwrap_or_default();
        (
            byte_of(text, error.line(), error.column()),
            words.to_owned(),
        )
    })?;
    let mut walk = Walk {
        text,
        at: 0,
        wrong: None,
    };
    let tree = walk.value();
    walk.wrong.map_or(Ok(tree), Err)
}

/// Converts a line from 1 and a column, which `serde_json` counts in bytes from 1, to a byte.
fn byte_of(text: &str, line: usize, column: usize) -> usize {
    let lines = text.split_inclusive('\n').take(line.saturating_sub(1));
    // The parser reports a word before a line break as column 0 of the next line.
    (lines.map(str::len).sum::<usize>() + column).saturating_sub(1)
}

/// A place in a text that is known to be JSON.
struct Walk<'a> {
    text: &'a str,
    at: usize,
    /// The first invalid text: half a character, as `"\ud800"`.
    wrong: Option<(usize, String)>,
}

impl Walk<'_> {
    fn value(&mut self) -> Node {
        self.skip_space();
        let at = self.at;
        let value = match self.peek() {
            Some(b'{') => Value::Table(self.entries()),
            Some(b'[') => Value::Array(self.items()),
            Some(b'"') => Value::Text(self.string()),
            _ => self.word(),
        };
        Node { at, value }
    }

    fn entries(&mut self) -> Vec<Entry> {
        let mut entries = Vec::new();
        self.at += 1;
        while self.goes_on(b'}') {
            let at = self.at;
            let name = self.string();
            self.skip_space();
            self.at += 1;
            let node = self.value();
            entries.push(Entry { name, at, node });
        }
        entries
    }

    fn items(&mut self) -> Vec<Node> {
        let mut items = Vec::new();
        self.at += 1;
        while self.goes_on(b']') {
            items.push(self.value());
        }
        items
    }

    /// Skips a comma and returns true, or returns false at the end of the list or object.
    fn goes_on(&mut self, end: u8) -> bool {
        self.skip_space();
        if self.peek() == Some(b',') {
            self.at += 1;
            self.skip_space();
        }
        let is_end = self.peek().is_none_or(|byte| byte == end);
        self.at += usize::from(is_end);
        !is_end
    }

    fn string(&mut self) -> String {
        let bytes = self.text.as_bytes();
        let mut end = self.at + 1;
        while let Some(byte) = bytes.get(end).filter(|byte| **byte != b'"') {
            end += if *byte == b'\\' { 2 } else { 1 };
        }
        let end = (end + 1).min(bytes.len());
        let literal = self.text.get(self.at..end).unwrap_or_default();
        let at = std::mem::replace(&mut self.at, end);
        serde_json::from_str(literal).unwrap_or_else(|error| {
            let words = error.to_string();
            let words = words.split(" at line ").next().unwrap_or_default();
            let within = error.column().saturating_sub(1).min(literal.len());
            let wrong = (at + within, words.to_owned());
            self.wrong.get_or_insert(wrong);
            String::new()
        })
    }

    /// Reads a number, `true`, `false` or `null`.
    fn word(&mut self) -> Value {
        let rest = &self.text[self.at..];
        let is_end = |c: char| c.is_ascii_whitespace() || matches!(c, ',' | ']' | '}');
        let word = &rest[..rest.find(is_end).unwrap_or(rest.len())];
        self.at += word.len();
        match word {
            "true" => Value::Flag(true),
            "false" => Value::Flag(false),
            "null" => Value::Other("null"),
            word => match (word.parse(), word.parse()) {
                (Ok(number), _) => Value::Integer(number),
                (_, Ok(number)) => Value::Float(number),
                _ => Value::Other("a number out of range"),
            },
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_its_position() {
        let text = "{ \"a\\\"\" : [1, 2.5 , true,null],\n \"b\": {\"c\": \"\\u00fc\"}, \"d\": {}, \"e\": []}";
        let tree = from_json(text).expect("JSON");
        let a = tree.get("a\"").expect("a key with a quote");
        let places: Vec<_> = a
            .items()
            .iter()
            .map(|node| &text[node.at..=node.at])
            .collect();
        assert_eq!(places, ["1", "2", "t", "n"]);
        let c = tree.get("b").and_then(|b| b.get("c")).expect("a table");
        assert_eq!((c.text(), &text[c.at..=c.at]), (Some("ü"), "\""));
        assert_eq!(tree.entries().len(), 4);
    }

    /// Regression: the reader treated such a text as empty and reported it as missing.
    #[test]
    fn half_a_character_names_its_position() {
        let text = "{\n \"a\": \"x\\ud800y\" }";
        let (at, words) = from_json(text).expect_err("no text");
        assert!(text[at..].len() <= 6 && at > 7, "{at}");
        assert!(
            words.contains("surrogate") || words.contains("escape"),
            "{words}"
        );
    }

    #[test]
    fn invalid_json_names_its_position() {
        let (at, words) = from_json("{\n  \"a\": tru\n}").expect_err("no JSON");
        assert_eq!((at, words.as_str()), (12, "expected ident"));
        assert!(from_json(&"[".repeat(1000)).is_err());
    }
}
