//! `meseta images`: the image store of this machine.
//!
//! `pull` and `prune` open the store for themselves; `list`, `inspect` and `usage` also read a store that an agent has open.

use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueHint};
use meseta_images::config::ImageConfig;
use meseta_images::credentials::{Credentials, DockerConfig};
use meseta_images::manifest::Platform;
use meseta_images::pull::{PullOptions, PullRequest, Puller};
use meseta_images::registry::{RegistryClient, RegistryOptions};
use meseta_images::settings::{ImageFlags, ImageSettings};
use meseta_images::store::{self, ImageRecord, Policy, Store, StoreOptions, Unpacker};
use meseta_images::wait::SystemClock;
use serde_json::{Value, json};

use super::table;
use crate::terminal;

/// Downloads at a time.
const DOWNLOADS: usize = 6;
/// The time between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// Files that are deleted between two looks at the store.
const SWEEP_FILES: u64 = 10_000;

/// The action on the store.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,

    /// Directory of the image store.
    #[arg(
        long = "docker_store_dir",
        alias = "docker-store-dir",
        value_name = "DIR",
        global = true,
        default_value = "/var/lib/meseta/images",
        value_hint = ValueHint::DirPath
    )]
    docker_store_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Download images into the store.
    Pull(Box<Pull>),
    /// List the images in the store.
    List(List),
    /// Print all details of one image as JSON.
    Inspect(Inspect),
    /// Show the space that the store takes.
    Usage(List),
    /// Remove the images that no container uses.
    Prune(Prune),
}

#[derive(Debug, Args)]
struct Pull {
    /// Names of the images, e.g. `busybox`, `ghcr.io/ann/app:1.2` or `app@sha256:...`.
    #[arg(required = true)]
    names: Vec<String>,

    #[command(flatten)]
    registry: RegistryFlags,

    /// Docker configuration with the credentials of registries [default: ~/.docker/config.json, if it exists].
    #[arg(long = "docker_config", alias = "docker-config", value_name = "FILE", value_hint = ValueHint::FilePath)]
    docker_config: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct RegistryFlags {
    /// Registry of names without a registry, as a URL; or a directory of image archives in place of all registries.
    #[arg(
        long = "docker_registry",
        alias = "docker-registry",
        value_name = "URL|DIR",
        default_value = "https://registry-1.docker.io"
    )]
    docker_registry: String,

    /// Mirror of a registry, e.g. `docker.io=https://mirror.example`. Repeat the flag for more mirrors.
    #[arg(
        long = "docker_mirror",
        alias = "docker-mirror",
        value_name = "REGISTRY=URL"
    )]
    docker_mirror: Vec<String>,

    /// Registries that use http instead of https, e.g. `10.0.0.1:5000`. Loopback addresses do so in any case.
    #[arg(
        long = "docker_plain_http",
        alias = "docker-plain-http",
        value_name = "HOST",
        value_delimiter = ','
    )]
    docker_plain_http: Vec<String>,

    /// Hosts of token services outside of their registry's domain.
    #[arg(
        long = "docker_registry_realms",
        alias = "docker-registry-realms",
        value_name = "HOST",
        value_delimiter = ','
    )]
    docker_registry_realms: Vec<String>,
}

#[derive(Debug, Args)]
struct List {
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Inspect {
    /// Name of the image.
    name: String,

    #[command(flatten)]
    registry: RegistryFlags,
}

#[derive(Debug, Args)]
struct Prune {
    /// Name of an image to keep, as `meseta images list` shows it. Repeat the flag for more images.
    #[arg(long, value_name = "NAME")]
    exclude: Vec<String>,
}

impl RegistryFlags {
    fn settings(&self) -> anyhow::Result<ImageSettings> {
        Ok(ImageSettings::parse(&ImageFlags {
            docker_registry: self.docker_registry.clone(),
            plain_http: self.docker_plain_http.clone(),
            mirrors: self.docker_mirror.clone(),
            realms: self.docker_registry_realms.clone(),
        })?)
    }
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    match &options.action {
        Action::Pull(flags) => pull(options, flags),
        Action::List(flags) => list(options, flags),
        Action::Inspect(flags) => inspect(options, flags),
        Action::Usage(flags) => usage(options, flags),
        Action::Prune(flags) => prune(options, flags),
    }
}

fn open(options: &Options) -> anyhow::Result<Store> {
    Ok(Store::open(&StoreOptions {
        root: options.docker_store_dir.clone(),
        unpacker: Unpacker::Child,
    })?)
}

fn images(options: &Options) -> anyhow::Result<Vec<ImageRecord>> {
    let root = &options.docker_store_dir;
    if !root.is_dir() {
        anyhow::bail!(
            "no image store in {}: set --docker_store_dir, or fill one with `meseta images pull`",
            root.display()
        );
    }
    Ok(store::read_images(root)?)
}

/// Reads the file of `--docker_config`, or the user's own if there is one.
fn credentials(flags: &Pull) -> anyhow::Result<Credentials> {
    let path = match (&flags.docker_config, std::env::home_dir()) {
        (Some(path), _) => path.clone(),
        (None, Some(home)) => {
            let path = home.join(".docker/config.json");
            if !path.is_file() {
                return Ok(Credentials::default());
            }
            path
        }
        (None, None) => return Ok(Credentials::default()),
    };
    Ok(Credentials::new(
        None,
        Some(Arc::new(DockerConfig::read(&path)?)),
    ))
}

fn pull(options: &Options, flags: &Pull) -> anyhow::Result<()> {
    let settings = flags.registry.settings()?;
    let credentials = credentials(flags)?;
    let references = flags.names.iter().map(|name| settings.reference(name));
    let references = references.collect::<Result<Vec<_>, _>>()?;
    let clock = Arc::new(SystemClock);
    let registry = RegistryOptions {
        settings: settings.registries.clone(),
        ..RegistryOptions::default()
    };
    let client = Arc::new(RegistryClient::new(registry, clock.clone())?);
    let pull = PullOptions {
        source: settings.source.clone(),
        platform: Platform::for_this_machine(),
        downloads: DOWNLOADS,
    };
    let puller = Puller::new(client, Arc::new(open(options)?), pull, clock);
    let mut pulls = Vec::new();
    for reference in references {
        let name = reference.to_string();
        pulls.push((
            name,
            puller.pull(PullRequest {
                reference,
                credentials: credentials.clone(),
                framework: String::new(),
                is_forced: true,
            })?,
        ));
    }
    let shows_progress = std::io::stderr().is_terminal();
    let mut failure = None;
    for (name, pull) in &pulls {
        let outcome = loop {
            if let Some(outcome) = pull.wait_for(PROGRESS_INTERVAL) {
                break outcome;
            }
            if shows_progress {
                terminal::note!("{name}: {}", pull.progress());
            }
        };
        match outcome {
            Ok(image) => {
                let done = if image.was_stored {
                    "is up to date"
                } else {
                    "pulled"
                };
                terminal::say(&format!("{name} {done} ({})", image.digest));
            }
            // The other images are pulled all the same; the last failure is the verb's.
            Err(error) => {
                if let Some(earlier) = failure.replace(error) {
                    let earlier = anyhow::Error::from(earlier);
                    terminal::note!("meseta: {earlier:#}");
                }
            }
        }
    }
    match failure {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

fn list(options: &Options, flags: &List) -> anyhow::Result<()> {
    let images = images(options)?;
    if flags.json {
        let images = images.iter().map(summarize);
        return terminal::print_json(&Value::Array(images.collect()));
    }
    let now = SystemTime::now();
    let rows = images.iter().map(|image| {
        let age = now.duration_since(image.pulled_at).unwrap_or_default();
        vec![
            image.name.clone(),
            image.manifest_digest.hex().chars().take(12).collect(),
            image.layers.len().to_string(),
            in_megabytes(blob_bytes(image)),
            in_words(age),
        ]
    });
    table::print(
        &["NAME", "DIGEST", "LAYERS", "DOWNLOAD MB", "PULLED"],
        rows.collect(),
    );
    Ok(())
}

fn blob_bytes(image: &ImageRecord) -> u64 {
    image.layers.iter().map(|layer| layer.blob_bytes).sum()
}

fn summarize(image: &ImageRecord) -> Value {
    let pulled_at = image.pulled_at.duration_since(SystemTime::UNIX_EPOCH);
    json!({
        "name": image.name,
        "digest": image.manifest_digest.to_string(),
        "pulled_at": pulled_at.unwrap_or_default().as_secs(),
        "layers": image.layers.iter().map(|layer| json!({
            "diff_id": layer.diff_id.to_string(),
            "digest": layer.blob.to_string(),
            "size": layer.blob_bytes,
        })).collect::<Vec<_>>(),
    })
}

fn inspect(options: &Options, flags: &Inspect) -> anyhow::Result<()> {
    let name = flags
        .registry
        .settings()?
        .reference(&flags.name)?
        .to_string();
    let images = images(options)?;
    let image = images.iter().find(|image| image.name == name);
    let image = image.with_context(|| {
        format!(
            "image {name} is not in the store: pull it with `meseta images pull {}`",
            flags.name
        )
    })?;
    ImageConfig::parse(image.config.as_bytes())?;
    let mut details = summarize(image);
    if let Some(details) = details.as_object_mut() {
        details.insert("config".to_owned(), serde_json::from_str(&image.config)?);
    }
    terminal::print_json(&details)
}

fn usage(options: &Options, flags: &List) -> anyhow::Result<()> {
    images(options)?;
    let usage = store::read_store_usage(&options.docker_store_dir)?;
    if flags.json {
        return terminal::print_json(&json!({
            "images": usage.images,
            "layers": usage.layers,
            "layer_bytes": usage.layer_bytes,
            "unneeded_bytes": usage.unneeded_bytes,
            "trash": usage.trash,
            "disk_bytes": usage.disk_bytes,
            "free_bytes": usage.free_bytes,
        }));
    }
    let line = |name: &str, text: String| terminal::say(&format!("{name:<9} {text}"));
    line("store", options.docker_store_dir.display().to_string());
    line("images", usage.images.to_string());
    line(
        "layers",
        format!("{}, {} MB", usage.layers, in_megabytes(usage.layer_bytes)),
    );
    line(
        "unneeded",
        format!(
            "{} MB in layers that no image needs",
            in_megabytes(usage.unneeded_bytes)
        ),
    );
    line(
        "trash",
        format!("{} files and folders that are being deleted", usage.trash),
    );
    let (free, disk) = (
        in_megabytes(usage.free_bytes),
        in_megabytes(usage.disk_bytes),
    );
    line("disk", format!("{free} MB of {disk} MB free"));
    Ok(())
}

fn prune(options: &Options, flags: &Prune) -> anyhow::Result<()> {
    images(options)?;
    let store = open(options)?;
    let excluded = flags.exclude.iter().cloned().collect::<BTreeSet<_>>();
    let removal = store.remove(&Policy::remove_all_unused(excluded), SystemTime::now())?;
    for name in &removal.images {
        terminal::say(&format!("removed {name}"));
    }
    while !store.sweep_trash(SWEEP_FILES)? {}
    let (images, layers) = (removal.images.len(), removal.layers.len());
    let freed = in_megabytes(removal.freed_bytes);
    terminal::say(&format!(
        "{images} images and {layers} layers removed, {freed} MB freed"
    ));
    Ok(())
}

fn in_megabytes(bytes: u64) -> String {
    format!("{}.{}", bytes / 1_000_000, bytes / 100_000 % 10)
}

/// An age in its largest unit.
fn in_words(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_sizes_are_short() {
        assert_eq!(in_words(Duration::from_secs(59)), "59 s ago");
        assert_eq!(in_words(Duration::from_secs(7200)), "2 h ago");
        assert_eq!(in_words(Duration::from_secs(200_000)), "2 days ago");
        assert_eq!(in_megabytes(1_234_567), "1.2");
    }
}
