//! The query part of a URL, decoded.

/// Name and value pairs, in order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads `a=b&c=d`; what cannot be decoded is taken as it is.
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(name), decode(value))
                })
                .collect(),
        )
    }

    /// The first value of a name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let mut pairs = self.0.iter();
        pairs
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let escaped = (*byte == b'%')
            .then(|| bytes.get(at + 1..at + 3))
            .flatten()
            .and_then(|digits| str::from_utf8(digits).ok())
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (escaped, byte) {
            (Some(decoded), _) => {
                out.push(decoded);
                at += 3;
            }
            (None, b'+') => {
                out.push(b' ');
                at += 1;
            }
            (None, byte) => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::Query;

    #[test]
    fn values_are_decoded_once() {
        let query = Query::parse("path=%2Fa%20b%252e+c&offset=-1&flag&bad=%zz%4");
        assert_eq!(query.get("path"), Some("/a b%2e c"));
        assert_eq!(query.get("offset"), Some("-1"));
        assert_eq!(query.get("flag"), Some(""));
        assert_eq!(query.get("bad"), Some("%zz%4"));
        assert_eq!(query.get("none"), None);
    }
}
