//! The operator's settings of images, as flags give them.
//!
//! [`ImageSettings::parse`] checks the texts of all flags. Pure. Invariant: an unusable setting is an error that names its flag.

use std::path::PathBuf;

use ureq::http::Uri;

use crate::archive::ArchiveFolder;
use crate::pull::Source;
use crate::reference::{DOCKER_HUB, InvalidReference, Reference};
use crate::registry::RegistrySettings;

/// The texts of the flags.
#[derive(Clone, Debug, Default)]
pub struct ImageFlags {
    /// `--docker_registry`: a URL, or the path of a folder.
    pub docker_registry: String,
    /// `--docker_plain_http`: hosts.
    pub plain_http: Vec<String>,
    /// `--docker_mirror`: `REGISTRY=URL` each.
    pub mirrors: Vec<String>,
    /// `--docker_registry_realms`: hosts.
    pub realms: Vec<String>,
}

/// The checked settings.
#[derive(Clone, Debug)]
pub struct ImageSettings {
    pub source: Source,
    /// The registry of names without one.
    pub default_registry: String,
    pub registries: RegistrySettings,
}

/// The rejection of a flag.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("invalid --{flag}={value}: {reason}")]
pub struct InvalidSetting {
    flag: &'static str,
    value: String,
    reason: String,
}

impl ImageSettings {
    pub fn parse(flags: &ImageFlags) -> Result<Self, InvalidSetting> {
        let mut registries = RegistrySettings {
            plain_http: flags.plain_http.clone(),
            realms: flags.realms.clone(),
            ..RegistrySettings::default()
        };
        for mirror in &flags.mirrors {
            let invalid = |reason: &str| InvalidSetting {
                flag: "docker_mirror",
                value: mirror.clone(),
                reason: reason.to_owned(),
            };
            let pair = mirror.split_once('=');
            let (registry, url) = pair.ok_or_else(|| invalid("expected REGISTRY=URL"))?;
            let mirrors = registries
                .mirrors
                .entry(registry.to_ascii_lowercase())
                .or_default();
            mirrors.push(url.to_owned());
            let checked = registries.endpoints(&registry.to_ascii_lowercase());
            checked.map_err(|reason| invalid(&reason))?;
        }
        let text = flags.docker_registry.trim();
        if let Some(path) = folder(text) {
            return Ok(Self {
                source: Source::Archives(ArchiveFolder::new(path)),
                default_registry: DOCKER_HUB.to_owned(),
                registries,
            });
        }
        let invalid = || {
            InvalidSetting {
            flag: "docker_registry",
            value: text.to_owned(),
            reason: "expected https://HOST[:PORT], http://HOST[:PORT], or the absolute path of a folder of archives"
                .to_owned(),
        }
        };
        let url = match text.contains("://") {
            true => text.to_owned(),
            false => format!("https://{text}"),
        };
        let uri = url.parse::<Uri>().map_err(|_| invalid())?;
        let host = uri
            .authority()
            .map(|it| it.as_str().to_owned())
            .ok_or_else(invalid)?;
        // Completes the host's other names, and checks it.
        let registry = Reference::parse(&format!("{host}/x"), &host).map_err(|_| invalid())?;
        let default_registry = match registry.registry() {
            parsed if parsed == DOCKER_HUB => DOCKER_HUB.to_owned(),
            _ => host.to_ascii_lowercase(),
        };
        match uri.scheme_str() {
            Some("http") => registries.plain_http.push(default_registry.clone()),
            Some("https") => {}
            _ => return Err(invalid()),
        }
        if !matches!(uri.path(), "/" | "") || uri.query().is_some() {
            return Err(invalid());
        }
        Ok(Self {
            source: Source::Registries,
            default_registry,
            registries,
        })
    }

    /// Reads the name of an image and completes it.
    pub fn reference(&self, name: &str) -> Result<Reference, InvalidReference> {
        Reference::parse(name, &self.default_registry)
    }
}

fn folder(text: &str) -> Option<PathBuf> {
    let path = text.strip_prefix("file://").unwrap_or(text);
    path.starts_with('/').then(|| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(registry: &str) -> Result<ImageSettings, InvalidSetting> {
        let docker_registry = registry.to_owned();
        ImageSettings::parse(&ImageFlags {
            docker_registry,
            ..ImageFlags::default()
        })
    }

    fn full_name(registry: &str, name: &str) -> String {
        let settings = parse(registry).expect("valid");
        settings.reference(name).expect("valid").to_string()
    }

    #[test]
    fn default_registry_completes_names() {
        for (registry, full) in [
            (
                "https://registry-1.docker.io",
                "docker.io/library/app:latest",
            ),
            ("docker.io", "docker.io/library/app:latest"),
            ("https://r.example", "r.example/app:latest"),
            ("http://10.0.0.1:5000/", "10.0.0.1:5000/app:latest"),
            ("/srv/images", "docker.io/library/app:latest"),
        ] {
            assert_eq!(full_name(registry, "app"), full, "{registry}");
        }
    }

    #[test]
    fn http_url_permits_plain_http() {
        let settings = parse("http://10.0.0.1:5000").expect("valid");
        assert_eq!(settings.registries.plain_http, ["10.0.0.1:5000"]);
        assert!(
            parse("https://10.0.0.1:5000")
                .expect("valid")
                .registries
                .plain_http
                .is_empty()
        );
    }

    #[test]
    fn folder_is_recognised_by_its_path() {
        for path in ["/srv/images", "file:///srv/images"] {
            assert!(matches!(
                parse(path).expect("valid").source,
                Source::Archives(_)
            ));
        }
    }

    #[test]
    fn invalid_settings_name_their_flag() {
        for registry in [
            "",
            "ftp://r.io",
            "https://r.io/path",
            "https://ann:pw@r.io",
            "images/x",
            "http://",
        ] {
            let error = parse(registry).expect_err(registry).to_string();
            assert!(error.starts_with("invalid --docker_registry="), "{error}");
        }
        for mirror in ["r.io", "r.io=m", "r.io=https://m/path"] {
            let flags = ImageFlags {
                docker_registry: DOCKER_HUB.to_owned(),
                mirrors: vec![mirror.to_owned()],
                ..ImageFlags::default()
            };
            let error = ImageSettings::parse(&flags).expect_err(mirror).to_string();
            assert!(error.starts_with("invalid --docker_mirror="), "{error}");
        }
    }
}
