//! Manifests and indexes of images, of OCI and of Docker's second schema.
//!
//! [`Document::parse`] reads the bytes that a registry sends, [`Index::choose`] selects the manifest for a platform, and
//! [`Manifest::layers`] joins the layers with the content digests of the configuration. Pure. Invariant: the number of
//! layers, their types and their digests are checked before anything is downloaded.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::descriptor::{BlobDescriptor, Compression, Digest, LayerDescriptor};

/// Bytes of a manifest or an index: the limit that the distribution specification asks of registries.
pub const MANIFEST_BYTES_MAX: u64 = 4 << 20;
/// Layers of an image: the kernel's limit of lower folders of an overlay.
pub const LAYERS_MAX: usize = 500;
/// Addresses of a layer that are tried.
const URLS_MAX: usize = 8;

pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
/// A registry answers 404 for an index if the client does not accept indexes, so a client always sends all four.
pub const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// The rejection of a manifest, an index or a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("the manifest is not valid JSON of an image")]
    Json(#[source] serde_json::Error),
    #[error(
        "the manifest has Docker's schema 1, which is obsolete: push the image again with a current tool"
    )]
    SchemaOne,
    #[error("the manifest says it has type {inside}, but its source says {outside}")]
    TypeDiffers { inside: String, outside: String },
    #[error("{0:?} is not a type of an image's manifest")]
    UnknownType(String),
    #[error("the manifest is an index and an image at once")]
    Ambiguous,
    #[error("not an image but an artifact: its configuration has type {0:?}")]
    Artifact(String),
    #[error("layer {digest} has the unsupported type {media_type:?}")]
    LayerType { digest: Digest, media_type: String },
    #[error("the image has {0} layers: the limit is {LAYERS_MAX}")]
    TooManyLayers(usize),
    #[error("the manifest has {layers} layers, and the configuration has {diff_ids}")]
    LayersDiffer { layers: usize, diff_ids: usize },
    #[error("the image is not available for {wanted}, only for {available}")]
    NoPlatform { wanted: Platform, available: String },
}

/// A descriptor in a manifest or an index.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default, deserialize_with = "null_as_default")]
    urls: Vec<String>,
    #[serde(default)]
    platform: Option<DescribedPlatform>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    pub fn blob(&self) -> BlobDescriptor {
        BlobDescriptor {
            digest: self.digest.clone(),
            size: self.size,
            urls: self.urls.iter().take(URLS_MAX).cloned().collect(),
        }
    }
}

/// The platform of an entry of an index, as its author wrote it.
#[derive(Clone, Debug, Default, Deserialize)]
struct DescribedPlatform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default, deserialize_with = "null_as_default")]
    variant: String,
}

/// A parsed manifest or index.
#[derive(Clone, Debug)]
pub enum Document {
    Index(Index),
    Manifest(Manifest),
}

/// The manifests of an image for several platforms.
#[derive(Clone, Debug, Deserialize)]
pub struct Index {
    #[serde(default, deserialize_with = "null_as_default")]
    pub manifests: Vec<Descriptor>,
}

/// The configuration and the layers of an image.
#[derive(Clone, Debug, Deserialize)]
pub struct Manifest {
    pub config: Descriptor,
    #[serde(default, deserialize_with = "null_as_default")]
    layers: Vec<Descriptor>,
}

/// The parts of a document that tell its kind.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    #[serde(default)]
    schema_version: Option<u64>,
    #[serde(default, deserialize_with = "null_as_default")]
    media_type: String,
    #[serde(default)]
    manifests: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    layers: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    fs_layers: Option<serde::de::IgnoredAny>,
}

impl Document {
    /// Reads a document. `outside` is the type that its source gave (a Content-Type or a descriptor), or empty.
    pub fn parse(bytes: &[u8], outside: &str) -> Result<Self, ManifestError> {
        let outside = outside.split(';').next().unwrap_or_default().trim();
        let outside = outside.to_ascii_lowercase();
        let outside = match outside.as_str() {
            // Servers of plain files know no better.
            "application/json" | "application/octet-stream" | "text/plain" => "",
            known => known,
        };
        let kind: Kind = serde_json::from_slice(bytes).map_err(ManifestError::Json)?;
        if kind.fs_layers.is_some() || kind.schema_version == Some(1) {
            return Err(ManifestError::SchemaOne);
        }
        let inside = kind.media_type.to_ascii_lowercase();
        if !inside.is_empty() && !outside.is_empty() && inside != outside {
            return Err(ManifestError::TypeDiffers {
                inside: kind.media_type,
                outside: outside.to_owned(),
            });
        }
        if kind.manifests.is_some() && kind.layers.is_some() {
            return Err(ManifestError::Ambiguous);
        }
        let media_type = if inside.is_empty() { outside } else { &inside };
        let is_index = match media_type {
            OCI_INDEX | DOCKER_LIST => true,
            OCI_MANIFEST | DOCKER_MANIFEST => false,
            "" => kind.manifests.is_some(),
            other => return Err(ManifestError::UnknownType(other.to_owned())),
        };
        Ok(match is_index {
            true => Self::Index(serde_json::from_slice(bytes).map_err(ManifestError::Json)?),
            false => Self::Manifest(serde_json::from_slice(bytes).map_err(ManifestError::Json)?),
        })
    }
}

impl Index {
    /// Returns the first entry for a platform. An entry without a platform is the last resort.
    pub fn choose(&self, platform: &Platform) -> Result<&Descriptor, ManifestError> {
        let usable = |entry: &&Descriptor| {
            let types = [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST, ""];
            types.contains(&entry.media_type.as_str())
        };
        let entries = || self.manifests.iter().filter(usable);
        let matching = entries().find(|entry| {
            let described = entry.platform.as_ref();
            described.is_some_and(|described| platform.accepts(described))
        });
        let silent = || entries().find(|entry| entry.platform.is_none());
        matching.or_else(silent).ok_or_else(|| {
            let names = entries().filter_map(|entry| entry.platform.as_ref());
            let mut names = names
                .filter(|one| one.os != "unknown")
                .map(|one| [&*one.os, "/", &one.architecture].concat())
                .take(20)
                .collect::<Vec<_>>();
            names.dedup();
            ManifestError::NoPlatform {
                wanted: platform.clone(),
                available: match names.is_empty() {
                    true => "no platform".to_owned(),
                    false => names.join(", "),
                },
            }
        })
    }
}

impl Manifest {
    /// Returns the layers, bottom first. `diff_ids` are the content digests of the configuration.
    pub fn layers(&self, diff_ids: &[Digest]) -> Result<Vec<LayerDescriptor>, ManifestError> {
        if self.layers.len() > LAYERS_MAX {
            return Err(ManifestError::TooManyLayers(self.layers.len()));
        }
        if self.layers.len() != diff_ids.len() {
            return Err(ManifestError::LayersDiffer {
                layers: self.layers.len(),
                diff_ids: diff_ids.len(),
            });
        }
        let layers = self.layers.iter().zip(diff_ids).map(|(layer, diff_id)| {
            Ok(LayerDescriptor {
                compression: compression(layer)?,
                blob: layer.blob(),
                diff_id: diff_id.clone(),
            })
        });
        layers.collect()
    }

    /// Checks that the manifest describes an image and not another artifact.
    pub fn check_config_type(&self) -> Result<(), ManifestError> {
        match self.config.media_type.as_str() {
            OCI_CONFIG | DOCKER_CONFIG | "" => Ok(()),
            other => Err(ManifestError::Artifact(other.to_owned())),
        }
    }
}

fn compression(layer: &Descriptor) -> Result<Compression, ManifestError> {
    let media_type = layer.media_type.to_ascii_lowercase();
    let kind = [
        "application/vnd.oci.image.layer.v1.",
        "application/vnd.oci.image.layer.nondistributable.v1.",
    ]
    .iter()
    .chain(&[
        "application/vnd.docker.image.rootfs.diff.",
        "application/vnd.docker.image.rootfs.foreign.diff.",
    ])
    .find_map(|prefix| media_type.strip_prefix(prefix));
    match kind {
        Some("tar") => Ok(Compression::Plain),
        Some("tar+gzip" | "tar.gzip") => Ok(Compression::Gzip),
        Some("tar+zstd" | "tar.zstd") => Ok(Compression::Zstd),
        _ => Err(ManifestError::LayerType {
            digest: layer.digest.clone(),
            media_type: layer.media_type.chars().take(200).collect(),
        }),
    }
}

/// The platform of this machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Platform {
    os: &'static str,
    architecture: String,
    /// The level of x86-64, or the version of ARM: programs for lower levels also run.
    level: u32,
}

impl Platform {
    pub fn for_this_machine() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Self {
            os: "linux",
            architecture: architecture.to_owned(),
            level: level_of_this_machine(),
        }
    }

    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    fn accepts(&self, described: &DescribedPlatform) -> bool {
        if described.os != self.os || described.architecture != self.architecture {
            return false;
        }
        let lowest = if self.architecture == "arm64" { 8 } else { 1 };
        let level = match described.variant.as_str() {
            "" => Some(lowest),
            variant => variant
                .strip_prefix('v')
                .and_then(|level| level.split('.').next()?.parse().ok()),
        };
        level.is_some_and(|level: u32| level <= self.level)
    }

    /// Whether an image with this configuration runs here. An empty architecture is of an image made by hand.
    pub fn check(&self, os: &str, architecture: &str) -> Result<(), ManifestError> {
        let os_fits = os.is_empty() || os == self.os;
        let architecture_fits = architecture.is_empty() || architecture == self.architecture;
        match os_fits && architecture_fits {
            true => Ok(()),
            false => Err(ManifestError::NoPlatform {
                wanted: self.clone(),
                available: format!("{os}/{architecture}"),
            }),
        }
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{}/{}", self.os, self.architecture)
    }
}

#[cfg(target_arch = "x86_64")]
fn level_of_this_machine() -> u32 {
    let second = is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("popcnt");
    let third = second
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("movbe");
    let fourth = third
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    1 + u32::from(second) + u32::from(third) + u32::from(fourth)
}

#[cfg(not(target_arch = "x86_64"))]
fn level_of_this_machine() -> u32 {
    // Version 8 of ARM is what every kernel for arm64 needs; later ones are not told apart.
    8
}

/// Writers of JSON in Go write `null` for an empty list.
pub(crate) fn null_as_default<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(name: &str) -> Digest {
        Digest::from_content(name.as_bytes())
    }

    fn machine(architecture: &str, level: u32) -> Platform {
        Platform {
            os: "linux",
            architecture: architecture.to_owned(),
            level,
        }
    }

    fn entry(name: &str, platform: &str) -> String {
        let platform = match platform {
            "" => String::new(),
            platform => {
                let mut parts = platform.split('/');
                let mut part = || parts.next().unwrap_or_default().to_owned();
                let (os, architecture, variant) = (part(), part(), part());
                format!(
                    r#","platform":{{"os":"{os}","architecture":"{architecture}","variant":"{variant}"}}"#
                )
            }
        };
        format!(
            r#"{{"mediaType":"{OCI_MANIFEST}","digest":"{}","size":7{platform}}}"#,
            digest(name)
        )
    }

    fn choose(entries: &[String], platform: &Platform) -> Result<Digest, ManifestError> {
        let text = format!(
            r#"{{"schemaVersion":2,"mediaType":"{OCI_INDEX}","manifests":[{}]}}"#,
            entries.join(",")
        );
        match Document::parse(text.as_bytes(), OCI_INDEX).expect("an index") {
            Document::Index(index) => Ok(index.choose(platform)?.digest.clone()),
            Document::Manifest(_) => panic!("not an index"),
        }
    }

    #[test]
    fn first_matching_platform_wins() {
        let entries = [
            entry("attestation", "unknown/unknown"),
            entry("windows", "windows/amd64"),
            entry("fast", "linux/amd64/v4"),
            entry("first", "linux/amd64"),
            entry("second", "linux/amd64"),
            entry("arm", "linux/arm64/v8"),
        ];
        let chosen = |platform| choose(&entries, &platform).expect("one matches");
        assert_eq!(chosen(machine("amd64", 2)), digest("first"));
        assert_eq!(chosen(machine("amd64", 4)), digest("fast"));
        assert_eq!(chosen(machine("arm64", 8)), digest("arm"));
        let error = choose(&entries, &machine("riscv64", 8)).expect_err("none");
        assert_eq!(
            error.to_string(),
            "the image is not available for linux/riscv64, only for windows/amd64, linux/amd64, linux/arm64"
        );
    }

    #[test]
    fn arm64_without_variant_means_v8() {
        let entries = [entry("v9", "linux/arm64/v9"), entry("plain", "linux/arm64")];
        let chosen = choose(&entries, &machine("arm64", 8)).expect("one matches");
        assert_eq!(chosen, digest("plain"));
    }

    #[test]
    fn entry_without_platform_is_last_resort() {
        let entries = [entry("silent", ""), entry("right", "linux/amd64")];
        let chosen = |platform| choose(&entries, &platform).expect("one matches");
        assert_eq!(chosen(machine("amd64", 1)), digest("right"));
        assert_eq!(chosen(machine("s390x", 1)), digest("silent"));
    }

    #[test]
    fn empty_index_has_no_platform() {
        let error = choose(&[], &machine("amd64", 1)).expect_err("empty");
        assert!(error.to_string().contains("only for no platform"));
    }

    fn manifest(layers: &[(&str, &str)]) -> Manifest {
        let layers = layers.iter().map(|(name, media_type)| {
            let digest = digest(name);
            format!(r#"{{"mediaType":"{media_type}","digest":"{digest}","size":3}}"#)
        });
        let text = format!(
            r#"{{"schemaVersion":2,"config":{{"mediaType":"{OCI_CONFIG}","digest":"{}","size":2}},"layers":[{}]}}"#,
            digest("config"),
            layers.collect::<Vec<_>>().join(",")
        );
        match Document::parse(text.as_bytes(), OCI_MANIFEST).expect("a manifest") {
            Document::Manifest(manifest) => manifest,
            Document::Index(_) => panic!("not a manifest"),
        }
    }

    #[test]
    fn layer_types_name_the_compression() {
        use Compression::{Gzip, Plain, Zstd};
        for (media_type, expected) in [
            ("application/vnd.oci.image.layer.v1.tar", Plain),
            ("application/vnd.oci.image.layer.v1.tar+gzip", Gzip),
            ("application/vnd.oci.image.layer.v1.tar+zstd", Zstd),
            (
                "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
                Gzip,
            ),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", Gzip),
            ("application/vnd.docker.image.rootfs.diff.tar", Plain),
            (
                "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
                Gzip,
            ),
        ] {
            let layers = manifest(&[("l", media_type)]).layers(&[digest("d")]);
            assert_eq!(layers.expect(media_type)[0].compression, expected);
        }
        for unknown in [
            "",
            "application/vnd.oci.image.layer.v1.tar+gzip+encrypted",
            "x",
        ] {
            let layers = manifest(&[("l", unknown)]).layers(&[digest("d")]);
            assert!(matches!(layers, Err(ManifestError::LayerType { .. })));
        }
    }

    #[test]
    fn layers_must_match_the_configuration() {
        const PLAIN: &str = "application/vnd.oci.image.layer.v1.tar";
        let manifest_of_two = manifest(&[("a", PLAIN), ("b", PLAIN)]);
        let layers = manifest_of_two
            .layers(&[digest("da"), digest("db")])
            .expect("two");
        assert_eq!(layers[1].diff_id, digest("db"));
        assert_eq!(layers[1].blob.digest, digest("b"));
        let error = manifest_of_two
            .layers(&[digest("da")])
            .expect_err("one is missing");
        assert!(matches!(
            error,
            ManifestError::LayersDiffer {
                layers: 2,
                diff_ids: 1
            }
        ));
        let many = vec![("a", PLAIN); LAYERS_MAX + 1];
        let ids = vec![digest("d"); LAYERS_MAX + 1];
        let error = manifest(&many).layers(&ids).expect_err("too many");
        assert!(matches!(error, ManifestError::TooManyLayers(501)));
    }

    #[test]
    fn odd_documents_are_refused() {
        let parse = |text: &str, outside: &str| {
            Document::parse(text.as_bytes(), outside)
                .expect_err("refused")
                .to_string()
        };
        assert!(parse("[", "").contains("not valid JSON"));
        assert!(parse(r#"{"schemaVersion":1,"fsLayers":[]}"#, "").contains("schema 1"));
        let docker = format!(r#"{{"mediaType":"{DOCKER_MANIFEST}"}}"#);
        assert!(parse(&docker, OCI_MANIFEST).contains("but its source says"));
        assert!(parse(r#"{"manifests":[],"layers":[]}"#, "").contains("at once"));
        assert!(parse("{}", "text/html").contains("not a type"));
        let escaping =
            r#"{"config":{"mediaType":"","digest":"sha256:../../x","size":1},"layers":[]}"#;
        assert!(parse(escaping, OCI_MANIFEST).contains("not valid JSON"));
    }

    #[test]
    fn content_type_parameters_are_ignored() {
        let text = format!(r#"{{"mediaType":"{OCI_INDEX}","manifests":null}}"#);
        let parsed = Document::parse(text.as_bytes(), &format!("{OCI_INDEX}; charset=utf-8"));
        assert!(matches!(parsed, Ok(Document::Index(index)) if index.manifests.is_empty()));
    }

    #[test]
    fn artifacts_are_not_images() {
        let mut artifact = manifest(&[]);
        artifact.config.media_type = "application/vnd.cncf.helm.config.v1+json".to_owned();
        let error = artifact.check_config_type().expect_err("no image");
        assert!(error.to_string().contains("helm"));
    }
}
