//! References `${...}` in the values of a task's environment: the known names, and their values.
//!
//! `$${` stands for a plain `${`; a `$` before any other character is itself.

use std::collections::BTreeMap;

/// A reference that a value may contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// `${index}`, the number of the instance or array task, from 0.
    Index,
    /// `${attempt}`, the run of this instance or task, from 1.
    Attempt,
    /// `${hostname}` of the agent.
    Hostname,
    /// `${port.NAME}`, the number of a port.
    Port(String),
}

impl Reference {
    fn named(name: &str) -> Option<Self> {
        match name {
            "index" => Some(Self::Index),
            "attempt" => Some(Self::Attempt),
            "hostname" => Some(Self::Hostname),
            name => name
                .strip_prefix("port.")
                .map(|port| Self::Port(port.to_owned())),
        }
    }

    /// Returns the port's name, if the reference is a port.
    #[must_use]
    pub fn port(&self) -> Option<&str> {
        match self {
            Self::Port(port) => Some(port),
            _ => None,
        }
    }
}

/// The values of one task's references.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    pub index: u32,
    pub attempt: u32,
    pub hostname: &'a str,
    pub ports: &'a BTreeMap<String, u16>,
}

impl Values<'_> {
    /// Returns the value of a reference; empty for a port that the task does not have.
    fn resolve(&self, reference: &Reference) -> String {
        match reference {
            Reference::Index => self.index.to_string(),
            Reference::Attempt => self.attempt.to_string(),
            Reference::Hostname => self.hostname.to_owned(),
            Reference::Port(port) => self.ports.get(port).map(u16::to_string).unwrap_or_default(),
        }
    }
}

enum Part<'a> {
    Plain(&'a str),
    Reference(Reference),
}

/// Returns the references of the text, in order.
///
/// # Errors
///
/// The whole of the first `${...}` that is unknown or has no end.
pub fn references(text: &str) -> Result<Vec<Reference>, String> {
    let parts = parts(text)?.into_iter();
    let references = parts.filter_map(|part| match part {
        Part::Reference(reference) => Some(reference),
        Part::Plain(_) => None,
    });
    Ok(references.collect())
}

/// Returns the text with its references filled in. An IPv6 address before a colon gets brackets. Returns the text itself if
/// [`references`] finds an unknown reference in it.
#[must_use]
pub fn filled(text: &str, values: &Values<'_>) -> String {
    let Ok(parts) = parts(text) else {
        return text.to_owned();
    };
    let mut out = String::with_capacity(text.len());
    for (at, part) in parts.iter().enumerate() {
        let value = match part {
            Part::Plain(plain) => (*plain).to_owned(),
            Part::Reference(reference) => values.resolve(reference),
        };
        let is_before_port =
            matches!(parts.get(at + 1), Some(Part::Plain(next)) if next.starts_with(':'));
        let is_bare = matches!(part, Part::Reference(Reference::Hostname)) && !out.ends_with('[');
        // The name of an agent without a hostname is its address.
        match is_before_port && is_bare && value.contains(':') {
            true => out.extend(["[", &value, "]"]),
            false => out.push_str(&value),
        }
    }
    out
}

fn parts(text: &str) -> Result<Vec<Part<'_>>, String> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            parts.extend([Part::Plain(before), Part::Plain("${")]);
            rest = &from[2..];
            continue;
        }
        let end = from.find('}').ok_or_else(|| from.to_owned())?;
        let reference = Reference::named(&from[2..end]).ok_or_else(|| from[..=end].to_owned())?;
        parts.extend([Part::Plain(before), Part::Reference(reference)]);
        rest = &from[end + 1..];
    }
    parts.push(Part::Plain(rest));
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_filled_in() {
        let ports = BTreeMap::from([("http".to_owned(), 31000)]);
        let values = Values {
            index: 2,
            attempt: 1,
            hostname: "n1",
            ports: &ports,
        };
        for (text, expected) in [
            ("plain $HOME", "plain $HOME"),
            ("${index}/${attempt}", "2/1"),
            ("http://${hostname}:${port.http}/", "http://n1:31000/"),
            ("$${index} is ${index}", "${index} is 2"),
            ("${port.other}", ""),
        ] {
            assert_eq!(filled(text, &values), expected, "{text}");
        }
    }

    #[test]
    fn ipv6_host_before_port_has_brackets() {
        let ports = BTreeMap::from([("http".to_owned(), 31000)]);
        let values = Values {
            index: 2,
            attempt: 1,
            hostname: "fd00::7",
            ports: &ports,
        };
        for (text, expected) in [
            (
                "http://${hostname}:${port.http}/",
                "http://[fd00::7]:31000/",
            ),
            ("[${hostname}]:${port.http}", "[fd00::7]:31000"),
            ("${hostname}:80,${hostname}:81", "[fd00::7]:80,[fd00::7]:81"),
            ("${hostname}", "fd00::7"),
            ("${hostname} ${index}:", "fd00::7 2:"),
        ] {
            assert_eq!(filled(text, &values), expected, "{text}");
        }
    }

    #[test]
    fn unknown_variable_is_named() {
        assert_eq!(references("a ${nidex} b"), Err("${nidex}".to_owned()));
        assert_eq!(references("a ${index"), Err("${index".to_owned()));
        assert_eq!(references("${port.a}").map(|all| all.len()), Ok(1));
    }
}
