//! A folder of image archives in place of a registry, for clusters without one.
//!
//! [`ArchiveFolder::find`] looks for an image as `NAME:TAG.tar` (the output of `docker save`, or an OCI layout in a tar file) or as a
//! folder `NAME:TAG` or `NAME` with an OCI layout. Layers are read from their place in the archive: nothing is copied. Invariant:
//! only files of the folder are opened, and names inside an archive never become paths.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::config::{CONFIG_BYTES_MAX, ConfigError, ImageConfig};
use crate::descriptor::{Algorithm, BlobDescriptor, Compression, Digest, Hasher, LayerDescriptor};
use crate::manifest::{Document, Index, MANIFEST_BYTES_MAX, ManifestError};
use crate::origin::ResolvedImage;
use crate::reference::{DOCKER_HUB, Reference};
use crate::registry::FetchedManifest;

/// Entries of an archive: a layer has up to three.
const ENTRIES_MAX: usize = 20_000;
/// Links that lead to links: older `docker save` links equal layers.
const LINKS_MAX: usize = 8;
/// Images that a message lists.
const NAMES_SHOWN_MAX: usize = 20;
const REF_NAME: &str = "org.opencontainers.image.ref.name";
const CONTAINERD_NAME: &str = "io.containerd.image.name";

/// The failure to use an archive.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error(
        "no archive of {image} in {folder}: expected {expected} (docker save) or an OCI layout in a folder of that name"
    )]
    NotFound {
        image: String,
        folder: PathBuf,
        expected: String,
    },
    #[error("failed to read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is not an image: it has neither index.json nor manifest.json")]
    NoImage { path: PathBuf },
    #[error("{path} has no file {name}")]
    Missing { path: PathBuf, name: String },
    #[error("{name} in {path} is larger than {limit} bytes")]
    TooLarge {
        path: PathBuf,
        name: String,
        limit: u64,
    },
    #[error("{name} in {path} has digest {actual}: the archive is damaged")]
    Damaged {
        path: PathBuf,
        name: String,
        actual: Digest,
    },
    #[error("{path} has more than {ENTRIES_MAX} entries")]
    TooManyEntries { path: PathBuf },
    #[error("{name} in {path} is not valid JSON")]
    Json {
        path: PathBuf,
        name: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("cannot use the manifest in {path}")]
    Manifest {
        path: PathBuf,
        #[source]
        source: ManifestError,
    },
    #[error("cannot use the configuration in {path}")]
    Config {
        path: PathBuf,
        #[source]
        source: ConfigError,
    },
    #[error("{path} has several images and none is {image}: it has {names}")]
    OtherImages {
        path: PathBuf,
        image: String,
        names: String,
    },
    #[error("{path} has digest {actual}, not {expected}")]
    OtherDigest {
        path: PathBuf,
        expected: Digest,
        actual: Digest,
    },
}

/// A folder that stands in for a registry.
#[derive(Clone, Debug)]
pub struct ArchiveFolder {
    path: PathBuf,
}

impl ArchiveFolder {
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Opens the archive of an image and reads its table of contents.
    pub fn find(&self, reference: &Reference) -> Result<ArchiveImage, ArchiveError> {
        let names = file_names(reference);
        for name in &names {
            let layout = self.path.join(name);
            if layout.join("index.json").is_file() {
                return ArchiveImage::from_content(Content::Folder { path: layout }, reference);
            }
            let tar = self.path.join(format!("{name}.tar"));
            if tar.is_file() {
                return ArchiveImage::from_content(Content::read_tar(tar)?, reference);
            }
        }
        Err(ArchiveError::NotFound {
            image: reference.to_string(),
            folder: self.path.clone(),
            expected: names
                .first()
                .map_or_else(String::new, |name| format!("{name}.tar")),
        })
    }
}

/// Returns the names under which an image may lie in a folder, the shortest first.
fn file_names(reference: &Reference) -> Vec<String> {
    let repository = reference.repository();
    let short = match reference.registry() {
        DOCKER_HUB => repository.strip_prefix("library/"),
        _ => None,
    };
    let long = format!("{}/{repository}", reference.registry());
    let bases = short.into_iter().chain([repository, &long]);
    let tagged = |base: &str| reference.tag().map(|tag| format!("{base}:{tag}"));
    let bases = bases.collect::<Vec<_>>();
    let with_tag = bases.iter().filter_map(|base| tagged(base));
    let without = bases.iter().map(|base| (*base).to_owned());
    with_tag.chain(without).collect()
}

/// The files of an archive.
#[derive(Debug)]
enum Content {
    Folder {
        path: PathBuf,
    },
    Tar {
        path: PathBuf,
        entries: HashMap<String, Entry>,
    },
}

#[derive(Clone, Debug)]
enum Entry {
    File {
        offset: u64,
        size: u64,
    },
    /// The name of another entry.
    Link(String),
}

impl Content {
    fn path(&self) -> &Path {
        match self {
            Self::Folder { path } | Self::Tar { path, .. } => path,
        }
    }

    /// Reads the table of contents of a tar file, without the contents.
    fn read_tar(path: PathBuf) -> Result<Self, ArchiveError> {
        let failed = |source| ArchiveError::Read {
            path: path.clone(),
            source,
        };
        let mut entries = HashMap::new();
        let file = File::open(&path).map_err(failed)?;
        let mut archive = tar::Archive::new(file);
        for entry in archive.entries_with_seek().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = clean_name(&String::from_utf8_lossy(&entry.path_bytes()));
            let kind = entry.header().entry_type();
            let found = if kind.is_file() {
                Entry::File {
                    offset: entry.raw_file_position(),
                    size: entry.size(),
                }
            } else if kind.is_symlink() || kind.is_hard_link() {
                let target = entry.link_name_bytes().unwrap_or_default();
                let target = String::from_utf8_lossy(&target).into_owned();
                Entry::Link(match kind.is_symlink() {
                    true => resolve_link(&name, &target),
                    false => clean_name(&target),
                })
            } else {
                continue;
            };
            entries.insert(name, found);
            if entries.len() > ENTRIES_MAX {
                return Err(ArchiveError::TooManyEntries { path });
            }
        }
        Ok(Self::Tar { path, entries })
    }

    /// Opens a file of the archive. `None` if the archive has no such file.
    fn open(&self, name: &str) -> Result<Option<(io::Take<File>, u64)>, ArchiveError> {
        let failed = |source| ArchiveError::Read {
            path: self.path().to_owned(),
            source,
        };
        match self {
            Self::Folder { path } => match File::open(path.join(name)) {
                Ok(file) => {
                    let size = file.metadata().map_err(failed)?.len();
                    Ok(Some((file.take(size), size)))
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(failed(error)),
            },
            Self::Tar { path, entries } => {
                let mut name = name;
                for _ in 0..=LINKS_MAX {
                    match entries.get(name) {
                        Some(Entry::Link(target)) => name = target,
                        Some(Entry::File { offset, size }) => {
                            let mut file = File::open(path).map_err(failed)?;
                            file.seek(SeekFrom::Start(*offset)).map_err(failed)?;
                            return Ok(Some((file.take(*size), *size)));
                        }
                        None => return Ok(None),
                    }
                }
                Ok(None)
            }
        }
    }

    fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>, ArchiveError> {
        let Some((mut file, size)) = self.open(name)? else {
            return Err(ArchiveError::Missing {
                path: self.path().to_owned(),
                name: name.to_owned(),
            });
        };
        if size > limit {
            return Err(ArchiveError::TooLarge {
                path: self.path().to_owned(),
                name: name.to_owned(),
                limit,
            });
        }
        let mut bytes = Vec::new();
        let read = file.read_to_end(&mut bytes);
        read.map_err(|source| ArchiveError::Read {
            path: self.path().to_owned(),
            source,
        })?;
        Ok(bytes)
    }

    fn read_json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<T, ArchiveError> {
        let bytes = self.read(name, MANIFEST_BYTES_MAX)?;
        serde_json::from_slice(&bytes).map_err(|source| ArchiveError::Json {
            path: self.path().to_owned(),
            name: name.to_owned(),
            source,
        })
    }

    fn contains(&self, name: &str) -> bool {
        match self {
            Self::Folder { path } => path.join(name).is_file(),
            Self::Tar { entries, .. } => entries.contains_key(name),
        }
    }
}

/// The name of an entry without `./` and empty parts.
fn clean_name(name: &str) -> String {
    let parts = name
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".");
    parts.collect::<Vec<_>>().join("/")
}

/// The name to which a symbolic link leads inside its archive.
fn resolve_link(name: &str, target: &str) -> String {
    let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts = Vec::new();
    for part in folder.split('/').chain(target.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// An image in an archive.
#[derive(Debug)]
pub struct ArchiveImage {
    content: Content,
    name: String,
    digest: Digest,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// An OCI layout: blobs by digest.
    Layout { media_type: String },
    /// The output of `docker save`, with the name of the file of each layer.
    Saved {
        image: ResolvedImage,
        files: HashMap<Digest, String>,
    },
}

/// An entry of `manifest.json` of `docker save`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SavedImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Vec<String>,
}

impl ArchiveImage {
    fn from_content(content: Content, reference: &Reference) -> Result<Self, ArchiveError> {
        let image = if content.contains("index.json") {
            Self::open_layout(content, reference)?
        } else if content.contains("manifest.json") {
            Self::open_saved(content, reference)?
        } else {
            return Err(ArchiveError::NoImage {
                path: content.path().to_owned(),
            });
        };
        match reference.digest() {
            Some(expected) if *expected != image.digest => Err(ArchiveError::OtherDigest {
                path: image.content.path().to_owned(),
                expected: expected.clone(),
                actual: image.digest,
            }),
            _ => Ok(image),
        }
    }

    fn open_layout(content: Content, reference: &Reference) -> Result<Self, ArchiveError> {
        let index = content.read_json::<Index>("index.json")?;
        let full = reference.to_string();
        let is_named = |name: &&String| {
            Some(name.as_str()) == reference.tag() || is_same_image(name, &full, reference)
        };
        let names = |key: &str| {
            index
                .manifests
                .iter()
                .filter_map(|one| one.annotations.get(key))
                .cloned()
                .collect::<Vec<_>>()
        };
        let named = index.manifests.iter().find(|one| {
            let mut names = [CONTAINERD_NAME, REF_NAME]
                .into_iter()
                .filter_map(|key| one.annotations.get(key));
            let is_digest = reference.digest() == Some(&one.digest);
            is_digest || names.any(|name| is_named(&name))
        });
        let chosen = match (named, index.manifests.as_slice()) {
            (Some(named), _) => named,
            (None, [only]) => only,
            (None, []) => {
                return Err(ArchiveError::NoImage {
                    path: content.path().to_owned(),
                });
            }
            (None, _) => return Err(other_images(&content, reference, names(REF_NAME))),
        };
        Ok(Self {
            name: full.clone(),
            digest: chosen.digest.clone(),
            kind: Kind::Layout {
                media_type: chosen.media_type.clone(),
            },
            content,
        })
    }

    fn open_saved(content: Content, reference: &Reference) -> Result<Self, ArchiveError> {
        let images = content.read_json::<Vec<SavedImage>>("manifest.json")?;
        let full = reference.to_string();
        let named = images.iter().find(|image| {
            let mut tags = image.repo_tags.iter().flatten();
            tags.any(|tag| is_same_image(tag, &full, reference))
        });
        let chosen = match (named, images.as_slice()) {
            (Some(named), _) => named,
            (None, [only]) => only,
            (None, []) => {
                return Err(ArchiveError::NoImage {
                    path: content.path().to_owned(),
                });
            }
            (None, several) => {
                let tags = several
                    .iter()
                    .flat_map(|image| image.repo_tags.iter().flatten());
                return Err(other_images(&content, reference, tags.cloned().collect()));
            }
        };
        let path = || content.path().to_owned();
        let config = content.read(&clean_name(&chosen.config), CONFIG_BYTES_MAX)?;
        let parsed = ImageConfig::parse(&config);
        let parsed = parsed.map_err(|source| ArchiveError::Config {
            path: path(),
            source,
        })?;
        if parsed.diff_ids().len() != chosen.layers.len() {
            let source = ManifestError::LayersDiffer {
                layers: chosen.layers.len(),
                diff_ids: parsed.diff_ids().len(),
            };
            return Err(ArchiveError::Manifest {
                path: path(),
                source,
            });
        }
        let mut files = HashMap::new();
        let mut layers = Vec::new();
        for (file, diff_id) in chosen.layers.iter().zip(parsed.diff_ids()) {
            let name = clean_name(file);
            let layer = describe_layer(&content, &name, diff_id)?;
            files.insert(layer.blob.digest.clone(), name);
            layers.push(layer);
        }
        let digest = Digest::from_content(&config);
        Ok(Self {
            name: full,
            digest: digest.clone(),
            kind: Kind::Saved {
                image: ResolvedImage {
                    digest,
                    config,
                    layers,
                },
                files,
            },
            content,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The complete description, if the archive is not an OCI layout.
    pub(crate) fn saved(&self) -> Option<&ResolvedImage> {
        match &self.kind {
            Kind::Saved { image, .. } => Some(image),
            Kind::Layout { .. } => None,
        }
    }

    /// Reads a manifest or an index of an OCI layout.
    pub(crate) fn manifest(
        &self,
        digest: Option<&Digest>,
    ) -> Result<FetchedManifest, ArchiveError> {
        let digest = digest.unwrap_or(&self.digest);
        let bytes = self.document(digest, MANIFEST_BYTES_MAX)?;
        let media_type = match &self.kind {
            Kind::Layout { media_type } if *digest == self.digest => media_type.clone(),
            _ => String::new(),
        };
        // Reports a bad document with the path of the archive.
        Document::parse(&bytes, &media_type).map_err(|source| ArchiveError::Manifest {
            path: self.content.path().to_owned(),
            source,
        })?;
        Ok(FetchedManifest {
            bytes,
            media_type,
            digest: digest.clone(),
        })
    }

    pub(crate) fn document(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, ArchiveError> {
        let name = self.file_of(digest);
        let bytes = self.content.read(&name, limit)?;
        let mut hasher = Hasher::new(digest.algorithm());
        hasher.update(&bytes);
        let actual = hasher.finish();
        match actual == *digest {
            true => Ok(bytes),
            false => Err(ArchiveError::Damaged {
                path: self.content.path().to_owned(),
                name,
                actual,
            }),
        }
    }

    /// Opens the bytes of a layer, unchecked.
    pub(crate) fn open(&self, digest: &Digest) -> Result<Box<dyn Read + Send>, ArchiveError> {
        let name = self.file_of(digest);
        let path = || self.content.path().to_owned();
        let (file, _) = self
            .content
            .open(&name)?
            .ok_or_else(|| ArchiveError::Missing {
                path: path(),
                name: name.clone(),
            })?;
        Ok(Box::new(file))
    }

    fn file_of(&self, digest: &Digest) -> String {
        let saved = match &self.kind {
            Kind::Saved { files, .. } => files.get(digest),
            Kind::Layout { .. } => None,
        };
        let blob = || format!("blobs/{}/{}", digest.algorithm().name(), digest.hex());
        saved.cloned().unwrap_or_else(blob)
    }
}

/// Whether a name in an archive, perhaps short, is the name of the image.
fn is_same_image(name: &str, full: &str, reference: &Reference) -> bool {
    let parsed = Reference::parse(name, reference.registry());
    let on_hub = Reference::parse(name, DOCKER_HUB);
    let matches = |one: &Reference| {
        one.to_string() == full
            || (one.repository() == reference.repository()
                && one.tag() == reference.tag()
                && one.registry() == reference.registry())
    };
    parsed.as_ref().is_ok_and(matches) || on_hub.as_ref().is_ok_and(matches)
}

fn other_images(content: &Content, reference: &Reference, mut names: Vec<String>) -> ArchiveError {
    names.truncate(NAMES_SHOWN_MAX);
    ArchiveError::OtherImages {
        path: content.path().to_owned(),
        image: reference.to_string(),
        names: names.join(", "),
    }
}

/// Describes a layer of `docker save`, whose manifest gives no digests. A plain layer has the digest of its content; another is
/// read once for its digest.
fn describe_layer(
    content: &Content,
    name: &str,
    diff_id: &Digest,
) -> Result<LayerDescriptor, ArchiveError> {
    let path = || content.path().to_owned();
    let failed = |source| ArchiveError::Read {
        path: path(),
        source,
    };
    let opened = content.open(name)?;
    let (mut file, size) = opened.ok_or_else(|| ArchiveError::Missing {
        path: path(),
        name: name.to_owned(),
    })?;
    let mut start = Vec::new();
    (&mut file)
        .take(4)
        .read_to_end(&mut start)
        .map_err(failed)?;
    let compression = match start.as_slice() {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd] => Compression::Zstd,
        _ => Compression::Plain,
    };
    let digest = match compression {
        Compression::Plain => diff_id.clone(),
        Compression::Gzip | Compression::Zstd => {
            let mut hasher = Hasher::new(Algorithm::Sha256);
            hasher.update(&start);
            let mut buffer = vec![0; 64 << 10];
            loop {
                let count = file.read(&mut buffer).map_err(failed)?;
                if count == 0 {
                    break;
                }
                hasher.update(buffer.get(..count).unwrap_or_default());
            }
            hasher.finish()
        }
    };
    Ok(LayerDescriptor {
        compression,
        blob: BlobDescriptor {
            digest,
            size,
            urls: Vec::new(),
        },
        diff_id: diff_id.clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::activity::Activity;
    use crate::manifest::{OCI_INDEX, OCI_MANIFEST, Platform};
    use crate::origin::{Origin, OriginError};
    use crate::registry::testing::TestImage;

    fn reference(text: &str) -> Reference {
        Reference::parse(text, DOCKER_HUB).expect("valid")
    }

    fn write_tar(path: &Path, files: &[(&str, &[u8])], links: &[(&str, &str)]) {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        let mut builder = tar::Builder::new(File::create(path).expect("created"));
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            builder
                .append_data(&mut header, name, *bytes)
                .expect("added");
        }
        for (name, target) in links {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            builder
                .append_link(&mut header, name, target)
                .expect("added");
        }
        builder.finish().expect("finished");
    }

    /// Resolves an image and returns the bytes of its layers.
    fn read_image(folder: &Path, name: &str) -> Result<(ResolvedImage, Vec<Vec<u8>>), OriginError> {
        let archive = ArchiveFolder::new(folder.to_owned()).find(&reference(name))?;
        let origin = Origin::Archive(Arc::new(archive));
        let activity = Arc::new(Activity::new());
        let image = origin.resolve(&Platform::for_this_machine(), &activity)?;
        let layers = image.layers.iter().map(|layer| {
            let mut bytes = Vec::new();
            origin
                .open(layer, &activity)
                .read_to_end(&mut bytes)
                .expect("readable");
            bytes
        });
        let layers = layers.collect();
        Ok((image, layers))
    }

    fn saved(image: &TestImage, tags: &str) -> String {
        let config = Digest::from_content(&image.config);
        let layers = (0..image.layers.len()).map(|index| format!("\"{index}/layer.tar\""));
        let layers = layers.collect::<Vec<_>>().join(",");
        format!(
            r#"[{{"Config":"{}.json","RepoTags":[{tags}],"Layers":[{layers}]}}]"#,
            config.hex()
        )
    }

    #[test]
    fn docker_save_is_read_in_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let image = TestImage::new(&[b"bottom", b"top"]);
        let config = format!("{}.json", Digest::from_content(&image.config).hex());
        let manifest = saved(&image, "\"app:1\"");
        write_tar(
            &folder.path().join("app:1.tar"),
            &[
                ("./0/layer.tar", b"bottom"),
                ("other/layer.tar", b"top"),
                (&config, &image.config),
                ("manifest.json", manifest.as_bytes()),
            ],
            &[("1/layer.tar", "../other/layer.tar")],
        );
        let (resolved, layers) = read_image(folder.path(), "app:1").expect("read");
        assert_eq!(layers, [b"bottom".to_vec(), b"top".to_vec()]);
        assert_eq!(resolved.digest, Digest::from_content(&image.config));
        assert_eq!(resolved.config, image.config);
    }

    #[test]
    fn compressed_layers_get_their_own_digest() {
        let folder = tempfile::tempdir().expect("a folder");
        let layer = [&[0x1f, 0x8b][..], &[7; 100_000]].concat();
        let image = TestImage::new(&[&layer]);
        let config = format!("{}.json", Digest::from_content(&image.config).hex());
        let manifest = saved(&image, "");
        let files: &[(&str, &[u8])] = &[
            ("0/layer.tar", &layer),
            (&config, &image.config),
            ("manifest.json", manifest.as_bytes()),
        ];
        write_tar(&folder.path().join("ann/app:latest.tar"), files, &[]);
        let (resolved, layers) = read_image(folder.path(), "ann/app").expect("read");
        assert_eq!(layers, std::slice::from_ref(&layer));
        assert_eq!(resolved.layers[0].compression, Compression::Gzip);
        assert_eq!(resolved.layers[0].blob.digest, Digest::from_content(&layer));
    }

    /// Writes an OCI layout with an index of images under these names.
    fn write_layout(folder: &Path, images: &[(&str, &TestImage)]) {
        let blobs = folder.join("blobs/sha256");
        std::fs::create_dir_all(&blobs).expect("made");
        let write = |bytes: &[u8]| {
            std::fs::write(blobs.join(Digest::from_content(bytes).hex()), bytes).expect("written");
        };
        let mut entries = Vec::new();
        for (name, image) in images {
            image.layers.iter().for_each(|layer| write(layer));
            write(&image.config);
            write(&image.manifest);
            let (digest, size) = (Digest::from_content(&image.manifest), image.manifest.len());
            entries.push(format!(
                r#"{{"mediaType":"{OCI_MANIFEST}","digest":"{digest}","size":{size},"annotations":{{"{REF_NAME}":"{name}"}}}}"#
            ));
        }
        let index = format!(
            r#"{{"schemaVersion":2,"mediaType":"{OCI_INDEX}","manifests":[{}]}}"#,
            entries.join(",")
        );
        std::fs::write(folder.join("index.json"), index).expect("written");
    }

    #[test]
    fn layout_is_chosen_by_tag() {
        let folder = tempfile::tempdir().expect("a folder");
        let (first, second) = (TestImage::new(&[b"first"]), TestImage::new(&[b"second"]));
        write_layout(&folder.path().join("app"), &[("1", &first), ("2", &second)]);
        let (resolved, layers) = read_image(folder.path(), "app:2").expect("read");
        assert_eq!(layers, [b"second".to_vec()]);
        assert_eq!(resolved.digest, Digest::from_content(&second.manifest));
        let error = read_image(folder.path(), "app:3").expect_err("missing");
        assert!(error.to_string().ends_with("it has 1, 2"), "{error}");
    }

    #[test]
    fn digest_must_match_the_archive() {
        let folder = tempfile::tempdir().expect("a folder");
        let image = TestImage::new(&[b"layer"]);
        write_layout(&folder.path().join("app:1"), &[("1", &image)]);
        let digest = Digest::from_content(&image.manifest);
        assert!(read_image(folder.path(), &format!("app:1@{digest}")).is_ok());
        let other = Digest::from_content(b"other");
        let error = read_image(folder.path(), &format!("app:1@{other}")).expect_err("differs");
        assert!(
            matches!(
                error,
                OriginError::Archive(ArchiveError::OtherDigest { .. })
            ),
            "{error}"
        );
    }

    #[test]
    fn damaged_archives_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let image = TestImage::new(&[b"layer"]);
        let layout = folder.path().join("app:1");
        write_layout(&layout, &[("1", &image)]);
        let config = layout
            .join("blobs/sha256")
            .join(Digest::from_content(&image.config).hex());
        std::fs::write(&config, b"{}").expect("written");
        let error = read_image(folder.path(), "app:1").expect_err("damaged");
        assert!(
            matches!(error, OriginError::Archive(ArchiveError::Damaged { .. })),
            "{error}"
        );
        std::fs::write(layout.join("index.json"), b"{").expect("written");
        let error = read_image(folder.path(), "app:1").expect_err("damaged");
        assert!(
            matches!(error, OriginError::Archive(ArchiveError::Json { .. })),
            "{error}"
        );
        write_tar(&folder.path().join("empty:1.tar"), &[], &[]);
        let error = read_image(folder.path(), "empty:1").expect_err("empty");
        assert!(
            matches!(error, OriginError::Archive(ArchiveError::NoImage { .. })),
            "{error}"
        );
    }

    #[test]
    fn missing_archive_names_the_expected_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = read_image(folder.path(), "app:1").expect_err("missing");
        assert!(
            error
                .to_string()
                .contains("expected app:1.tar (docker save)"),
            "{error}"
        );
    }

    #[test]
    fn names_in_archives_stay_inside() {
        let folder = tempfile::tempdir().expect("a folder");
        let secret = folder.path().join("secret");
        std::fs::write(&secret, b"secret").expect("written");
        let image = TestImage::new(&[b"secret"]);
        let config = format!("{}.json", Digest::from_content(&image.config).hex());
        let path = secret.display();
        let manifest =
            format!(r#"[{{"Config":"{config}","RepoTags":null,"Layers":["../../..{path}"]}}]"#);
        let files: &[(&str, &[u8])] = &[
            (&config, &image.config),
            ("manifest.json", manifest.as_bytes()),
        ];
        write_tar(&folder.path().join("app:1.tar"), files, &[("loop", "loop")]);
        let error = read_image(folder.path(), "app:1").expect_err("missing");
        assert!(
            matches!(error, OriginError::Archive(ArchiveError::Missing { .. })),
            "{error}"
        );
        assert_eq!(resolve_link("a/b", "../../../etc/x"), "etc/x");
    }
}
