//! Names of images: `[REGISTRY/]REPOSITORY[:TAG][@DIGEST]`.
//!
//! [`Reference::parse`] completes a short name as Docker and Mesos do: the default registry, `library/` for a single name
//! on Docker Hub, and the tag `latest`. Pure. Invariant: every part of a reference is safe in a URL and, without `/`, as a
//! file name.

use std::fmt;

use crate::descriptor::Digest;

/// The name of Docker Hub in references. Its API has another host.
pub const DOCKER_HUB: &str = "docker.io";
/// Characters of a registry, and of a repository: the limits of registries.
const NAME_CHARS_MAX: usize = 255;
const TAG_CHARS_MAX: usize = 128;

/// The complete name of an image.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// The rejection of a text that names no image.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("invalid image name {text:?}: {reason}")]
pub struct InvalidReference {
    text: String,
    reason: String,
}

impl Reference {
    /// Reads a name. `default_registry` completes names without a registry, for example `docker.io`.
    pub fn parse(text: &str, default_registry: &str) -> Result<Self, InvalidReference> {
        Self::parse_parts(text, default_registry).map_err(|reason| InvalidReference {
            text: text.chars().take(NAME_CHARS_MAX).collect(),
            reason,
        })
    }

    fn parse_parts(text: &str, default_registry: &str) -> Result<Self, String> {
        if let Some((scheme, rest)) = text.split_once("://") {
            return Err(format!("drop '{scheme}://' and write {rest}"));
        }
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => {
                let digest = Digest::parse(digest).map_err(|error| error.to_string())?;
                (name, Some(digest))
            }
            None => (text, None),
        };
        let (registry, rest) = match name.split_once('/') {
            Some((first, rest)) if is_registry(first) => (normalize(first), rest),
            _ => (normalize(default_registry), name),
        };
        check_registry(&registry)?;
        let (repository, tag) = match rest.rsplit_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (rest, None),
        };
        let repository = match registry == DOCKER_HUB && !repository.contains('/') {
            true => format!("library/{repository}"),
            false => repository.to_owned(),
        };
        check_repository(&repository)?;
        tag.map_or(Ok(()), check_tag)?;
        let tag = match (tag, &digest) {
            (Some(tag), _) => Some(tag.to_owned()),
            (None, None) => Some("latest".to_owned()),
            (None, Some(_)) => None,
        };
        Ok(Self {
            registry,
            repository,
            tag,
            digest,
        })
    }

    /// The host of the registry, with its port if it is unusual.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    pub fn repository(&self) -> &str {
        &self.repository
    }

    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The part of a URL that selects the manifest: the digest, or else the tag.
    pub fn selector(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => "latest".to_owned(),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(to, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(to, "@{digest}")?;
        }
        Ok(())
    }
}

/// Whether the part before the first slash names a registry and not a user of the default registry.
fn is_registry(part: &str) -> bool {
    part.contains(['.', ':']) || part == "localhost"
}

/// Docker Hub has several names.
fn normalize(registry: &str) -> String {
    let registry = registry.to_ascii_lowercase();
    match registry.as_str() {
        "index.docker.io" | "registry-1.docker.io" | "registry.hub.docker.com" => {
            DOCKER_HUB.to_owned()
        }
        _ => registry,
    }
}

fn check_registry(registry: &str) -> Result<(), String> {
    let invalid = || {
        Err(format!(
            "'{registry}' is not a registry's HOST or HOST:PORT"
        ))
    };
    let (host, port) = match registry.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, port)) => {
                let is_address = host.parse::<std::net::Ipv6Addr>().is_ok();
                if !is_address {
                    return invalid();
                }
                (
                    "v6",
                    port.strip_prefix(':').or(port.is_empty().then_some("1")),
                )
            }
            None => return invalid(),
        },
        None => match registry.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (registry, Some("1")),
        },
    };
    let is_port = port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    let is_label = |label: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && label.bytes().all(is_allowed)
    };
    if !is_port || registry.len() > NAME_CHARS_MAX || !host.split('.').all(is_label) {
        return invalid();
    }
    Ok(())
}

fn check_repository(repository: &str) -> Result<(), String> {
    if repository.len() > NAME_CHARS_MAX {
        return Err(format!(
            "a repository has at most {NAME_CHARS_MAX} characters"
        ));
    }
    if repository.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(format!(
            "the repository '{repository}' must be in lower case"
        ));
    }
    match repository.split('/').all(is_component) {
        true => Ok(()),
        false => Err(format!(
            "'{repository}' is not a repository: each part has lower-case letters and digits, separated by '.', '_', \
             '__' or '-'"
        )),
    }
}

/// Letters and digits in groups, with one separator between two groups.
fn is_component(component: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_separator =
        |text: &str| matches!(text, "." | "_" | "__") || text.bytes().all(|byte| byte == b'-');
    let mut rest = component;
    loop {
        let group = rest
            .bytes()
            .take_while(|byte| is_alphanumeric(*byte))
            .count();
        if group == 0 {
            return false;
        }
        rest = rest.get(group..).unwrap_or_default();
        let length = rest
            .bytes()
            .take_while(|byte| !is_alphanumeric(*byte))
            .count();
        if length == 0 {
            return rest.is_empty();
        }
        match rest.get(..length) {
            Some(separator) if is_separator(separator) => {}
            _ => return false,
        }
        rest = rest.get(length..).unwrap_or_default();
    }
}

fn check_tag(tag: &str) -> Result<(), String> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_allowed = |byte: u8| is_word(byte) || byte == b'.' || byte == b'-';
    let starts_well = tag.bytes().next().is_some_and(is_word);
    match starts_well && tag.len() <= TAG_CHARS_MAX && tag.bytes().all(is_allowed) {
        true => Ok(()),
        false => Err(format!(
            "'{tag}' is not a tag: up to {TAG_CHARS_MAX} letters, digits, '_', '.' and '-'"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn short_names_are_completed() {
        for (text, full) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("ann/app", "docker.io/ann/app:latest"),
            (
                "index.docker.io/busybox",
                "docker.io/library/busybox:latest",
            ),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/app:1", "localhost:5000/app:1"),
            ("HOST.example/app", "host.example/app:latest"),
            ("[::1]:5000/app", "[::1]:5000/app:latest"),
            ("[::1]/app", "[::1]/app:latest"),
            (
                "host.example/a/b/c__d-e.f:V_1",
                "host.example/a/b/c__d-e.f:V_1",
            ),
            ("10.0.0.1:80/app", "10.0.0.1:80/app:latest"),
        ] {
            let reference = Reference::parse(text, DOCKER_HUB).expect(text);
            assert_eq!(reference.to_string(), full);
            let again = Reference::parse(full, DOCKER_HUB).expect(full);
            assert_eq!(again, reference);
        }
    }

    #[test]
    fn own_default_registry_gets_no_library() {
        let reference = Reference::parse("app", "10.0.0.1:5000").expect("valid");
        assert_eq!(reference.to_string(), "10.0.0.1:5000/app:latest");
    }

    #[test]
    fn digest_wins_over_tag() {
        let text = format!("app:1@sha256:{HEX}");
        let reference = Reference::parse(&text, DOCKER_HUB).expect("valid");
        assert_eq!(reference.selector(), format!("sha256:{HEX}"));
        assert_eq!(reference.tag(), Some("1"));
        let untagged = Reference::parse(&format!("app@sha256:{HEX}"), DOCKER_HUB).expect("valid");
        assert_eq!(untagged.tag(), None);
        assert_eq!(
            untagged.to_string(),
            format!("docker.io/library/app@sha256:{HEX}")
        );
    }

    #[test]
    fn invalid_names_are_refused() {
        for text in [
            "",
            ":",
            "@",
            "a:",
            "App",
            "a//b",
            "/a",
            "a/",
            "a b",
            "../etc/passwd",
            "a/../b",
            "a:tag:other",
            "a:.x",
            "a:-x",
            "a:x/y",
            "a@sha256:12",
            "https://host.example/a",
            "host.example:port/a",
            "host.example:0/a",
            "host.example:99999/a",
            "ho%st.example/a",
            "[::1/a",
            "[x]:1/a",
            "a___b",
            "a..b",
            "a._b",
            "_a",
            "a_",
            "é",
            &"a".repeat(256),
            &format!("a:{}", "t".repeat(129)),
        ] {
            assert!(Reference::parse(text, DOCKER_HUB).is_err(), "{text:?}");
        }
    }

    #[test]
    fn refusal_names_the_remedy() {
        let error = |text| {
            Reference::parse(text, DOCKER_HUB)
                .expect_err(text)
                .to_string()
        };
        assert!(error("https://h.example/a").contains("drop 'https://'"));
        assert!(error("h.example/App").contains("lower case"));
    }
}
