//! The parameters of a URL or a form, decoded.

use std::collections::HashSet;

use percent_encoding::percent_decode_str;

/// Parameters of one text; further ones are ignored.
const PARAMETERS_MAX: usize = 64;

/// Name and value pairs, in order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Parses `a=b&c=d`; text with invalid encoding stays as it is.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let decoded = pairs.take(PARAMETERS_MAX).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        });
        Self(decoded.collect())
    }

    /// Reads the parameters of a request's URL.
    #[must_use]
    pub fn from_uri(uri: &http::Uri) -> Self {
        Self::parse(uri.query().unwrap_or_default())
    }

    /// Returns the value of a parameter; of a repeated one the first.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut pairs = self.0.iter();
        let found = pairs.find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns a parameter that is given more than once.
    #[must_use]
    pub fn repeated(&self) -> Option<&str> {
        let mut seen = HashSet::new();
        let mut names = self.0.iter().map(|(name, _)| name.as_str());
        names.find(|name| !seen.insert(*name))
    }
}

/// Decodes percent-encoding, and plus signs as spaces, as in forms.
#[must_use]
pub fn decode(text: &str) -> String {
    let text = text.replace('+', " ");
    percent_decode_str(&text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_once() {
        let text = "path=%2Fa%20b%252e+c&offset=-1&flag&bad=%zz%4&a=1&a=2&e=%e2%82%ac&cut=%2";
        let query = Query::parse(text);
        for (name, expected) in [
            ("path", Some("/a b%2e c")),
            ("offset", Some("-1")),
            ("flag", Some("")),
            ("bad", Some("%zz%4")),
            ("a", Some("1")),
            ("e", Some("€")),
            ("cut", Some("%2")),
            ("none", None),
        ] {
            assert_eq!(query.get(name), expected, "{name}");
        }
        assert_eq!(query.repeated(), Some("a"));
        assert_eq!(Query::parse("&&"), Query::default());
    }
}
