//! `meseta registry`: reads, copies and moves the registry of stopped masters, in a file or in etcd.
//!
//! Invariant: only `import` and `migrate` write, and they replace no data.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueHint};
use meseta_master::EtcdFlags;
use meseta_master::registry::{Image, Inspected, Store};

use crate::terminal;

/// The largest imported file, in bytes: that of about 50,000 agents.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The action on the registry.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Read the whole registry and check that a master can start with it.
    Check(Location),
    /// Print the registry as JSON, for `import`.
    Export(Location),
    /// Fill an empty registry with the output of `export`.
    Import(Import),
    /// Copy a registry to an empty store of another kind.
    Migrate(Migration),
}

#[derive(Debug, Args)]
struct Location {
    /// Storage of the registry: `embedded` or `etcd`.
    #[arg(long, default_value = "embedded", value_name = "KIND")]
    registry: String,

    #[command(flatten)]
    stores: Stores,
}

#[derive(Debug, Args)]
struct Import {
    /// Output of `meseta registry export`.
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    #[command(flatten)]
    location: Location,
}

#[derive(Debug, Args)]
struct Migration {
    /// Present storage of the registry: `embedded` or `etcd`.
    #[arg(long, value_name = "KIND")]
    from: String,

    /// New storage of the registry: `etcd` or `embedded`.
    #[arg(long, value_name = "KIND")]
    to: String,

    #[command(flatten)]
    stores: Stores,
}

#[derive(Debug, Args)]
struct Stores {
    /// The master's work directory, for `embedded`.
    #[arg(
        long = "work_dir",
        alias = "work-dir",
        value_name = "DIR",
        default_value = "/var/lib/meseta/master",
        value_hint = ValueHint::DirPath
    )]
    work_dir: PathBuf,

    /// Name of the cluster, as in the flags of its masters; a registry in etcd stores the name.
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,

    #[command(flatten)]
    etcd: EtcdFlags,

    /// Allow an etcd without TLS and authentication on an address other than loopback: everyone on its network can
    /// write to it.
    #[arg(long)]
    insecure: bool,
}

impl Stores {
    fn store(&self, kind: &str) -> anyhow::Result<Store> {
        if kind == "embedded" {
            // A damaged file may reveal a defect of the store's reader; it is reported as damage.
            std::panic::set_hook(Box::new(|_| ()));
        }
        let (work_dir, cluster) = (self.work_dir.clone(), self.cluster.clone());
        let etcd = &self.etcd;
        Ok(Store::new(kind, work_dir, etcd, cluster, self.insecure)?)
    }
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match &options.action {
            Action::Check(location) => check(location).await,
            Action::Export(location) => export(location).await,
            Action::Import(options) => import(options).await,
            Action::Migrate(options) => migrate(options).await,
        }
    })
}

async fn check(location: &Location) -> anyhow::Result<()> {
    let store = location.stores.store(&location.registry)?;
    let found = store.read().await?;
    print_summary(&store, &found);
    sound(found).map(drop)
}

/// Returns the image that a master would start with; fails if it would not start.
fn sound(found: Inspected) -> anyhow::Result<Image> {
    if !found.damaged.is_empty() {
        anyhow::bail!(
            "{} of {} records are damaged: restore a copy of the registry",
            found.damaged.len(),
            found.image.records.len()
        );
    }
    match found.damage {
        Some(damage) => Err(damage.into()),
        None => Ok(found.image),
    }
}

fn print_summary(store: &Store, found: &Inspected) {
    let image = &found.image;
    let (recovered, _) = image.recovered();
    let line = |name: &str, text: String| terminal::say(&format!("{name:<13} {text}"));
    line("registry", store.place());
    line("id", image.id.clone().unwrap_or_else(|| "none".to_owned()));
    if let Store::Etcd(_) = store {
        line("cluster", image.cluster.clone().unwrap_or_default());
        line(
            "leader",
            found.leader.clone().unwrap_or_else(|| "none".to_owned()),
        );
    }
    line("epoch", image.epoch.to_string());
    line("records", image.records.len().to_string());
    let (unreachable, gone) = (recovered.unreachable.len(), recovered.gone.len());
    let agents = recovered.agents.len();
    line(
        "agents",
        format!("{agents} ({unreachable} unreachable, {gone} gone)"),
    );
    line("deactivated", recovered.deactivations.len().to_string());
    let removed = recovered.removed_frameworks.len();
    let deadlines = recovered.deadlines.len();
    let frameworks = recovered.frameworks.len();
    line(
        "frameworks",
        format!("{frameworks} ({removed} removed, {deadlines} away)"),
    );
    line("quotas", recovered.quotas.len().to_string());
    line(
        "weights",
        recovered
            .weights
            .map_or(0, |weights| weights.len())
            .to_string(),
    );
    let windows = recovered.maintenance.schedule.windows.len();
    let down = recovered.maintenance.down.len();
    line(
        "maintenance",
        format!("{windows} windows, {down} machines down"),
    );
    if image.unknown() > 0 {
        let unknown = image.unknown();
        line(
            "unknown",
            format!("{unknown} records of kinds that this version does not know"),
        );
    }
    if let Some(unfinished) = &found.unfinished {
        line("unfinished", unfinished.clone());
    }
    for damaged in &found.damaged {
        line("damaged", format!("{:?}: {}", damaged.key, damaged.source));
    }
}

async fn export(location: &Location) -> anyhow::Result<()> {
    let found = location.stores.store(&location.registry)?.read().await?;
    terminal::print_json(&found.image.to_json())?;
    sound(found).map(drop)
}

async fn import(options: &Import) -> anyhow::Result<()> {
    let path = options.file.display();
    let image = Image::parse(&read(&options.file)?);
    let image = image.with_context(|| format!("failed to import {path}"))?;
    let store = options.location.stores.store(&options.location.registry)?;
    store.fill(&image).await?;
    say_filled(&store, &image);
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let failed = || format!("failed to read {}", path.display());
    let length = std::fs::metadata(path).with_context(failed)?.len();
    if length > FILE_BYTES_MAX {
        anyhow::bail!(
            "{} has {length} bytes, and an exported registry has at most {FILE_BYTES_MAX} bytes",
            path.display()
        );
    }
    std::fs::read(path).with_context(failed)
}

async fn migrate(options: &Migration) -> anyhow::Result<()> {
    if options.from == options.to {
        anyhow::bail!("--from and --to are the same: give embedded for one and etcd for the other");
    }
    let from = options.stores.store(&options.from)?;
    let to = options.stores.store(&options.to)?;
    let found = from.read().await?;
    if let Some(leader) = &found.leader {
        anyhow::bail!("{leader} leads: stop all masters of this cluster first");
    }
    let mut image = sound(found)?;
    // Higher than the epoch that a master reaches when it is started with the former registry by mistake.
    image.epoch += 1;
    to.fill(&image).await?;
    say_filled(&to, &image);
    let place = from.place();
    terminal::say(&format!(
        "{place} is unchanged: start no master with it, and delete it once the new registry is \
        in use"
    ));
    Ok(())
}

fn say_filled(store: &Store, image: &Image) {
    let place = store.place();
    let (records, epoch) = (image.records.len(), image.epoch);
    terminal::say(&format!(
        "{place} has {records} records now, of epoch {epoch}"
    ));
}
