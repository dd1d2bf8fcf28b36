//! Small pieces of output and input: answers that are values, query strings.

use std::collections::BTreeMap;

use axum::response::{IntoResponse, Response};
use http::header;

/// Parameters taken from one query; more are ignored.
const PARAMETERS_MAX: usize = 64;

/// A small answer, as a call of the query's `jsonp` if it has one.
pub(super) fn value(query: &BTreeMap<String, String>, value: &serde_json::Value) -> Response {
    let (kind, body) = match query.get("jsonp") {
        Some(callback) => ("text/javascript", format!("{callback}({value})")),
        None => ("application/json", value.to_string()),
    };
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}

/// The parameters of a query or form; of a repeated one the first.
pub(super) fn collect_query(text: &str) -> BTreeMap<String, String> {
    let mut parameters = BTreeMap::new();
    for pair in text
        .split('&')
        .filter(|pair| !pair.is_empty())
        .take(PARAMETERS_MAX)
    {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        parameters
            .entry(decode(name))
            .or_insert_with(|| decode(value));
    }
    parameters
}

/// A parameter that a form gives more than once.
pub(super) fn repeated_parameter(text: &str) -> Option<String> {
    let mut seen = std::collections::BTreeSet::new();
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .take(PARAMETERS_MAX)
        .map(|pair| decode(pair.split_once('=').map_or(pair, |(name, _)| name)))
        .find(|name| !seen.insert(name.clone()))
}

/// Undoes percent-encoding; what is not encoded properly stays as it is.
pub(super) fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
                match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                    Some(decoded) => {
                        bytes.push(decoded);
                        rest = tail.get(2..).unwrap_or_default();
                    }
                    None => bytes.push(byte),
                }
            }
            _ => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let query = collect_query("a=1&b=x%20y+z&c&a=2&bad=%zz&e=%e2%82%ac&cut=%2");
        let get = |name: &str| query.get(name).map(String::as_str);
        assert_eq!(get("a"), Some("1"));
        assert_eq!(get("b"), Some("x y z"));
        assert_eq!(get("c"), Some(""));
        assert_eq!(get("bad"), Some("%zz"));
        assert_eq!(get("e"), Some("€"));
        assert_eq!(get("cut"), Some("%2"));
        assert!(collect_query("").is_empty());
    }
}
