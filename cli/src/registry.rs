//! `meseta registry`: what the registry of a master that does not run holds, and whether a master would take it.
//!
//! Invariant: nothing is changed, whatever state the file is in.

use std::io::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use meseta_master::registry;

/// What to do with it.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Read all of it and say whether a master would start with it.
    Check(RegistryLocation),
    /// Print all that is in it as JSON.
    Export(RegistryLocation),
}

#[derive(Debug, Args)]
struct RegistryLocation {
    /// The master's work directory.
    #[arg(
        long = "work_dir",
        alias = "work-dir",
        value_name = "DIR",
        default_value = "/var/lib/meseta/master",
        value_hint = ValueHint::DirPath
    )]
    work_dir: PathBuf,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let (Action::Check(location) | Action::Export(location)) = &options.action;
    let path = registry::registry_path(&location.work_dir);
    if !path.exists() {
        let dir = location.work_dir.display();
        anyhow::bail!("there is no registry in {dir}; --work_dir=DIR says where its master works");
    }
    // What a file is damaged by may be a defect of the store's reader, which is told as damage.
    std::panic::set_hook(Box::new(|_| ()));
    let found = registry::inspect(&location.work_dir)?;
    let mut out = std::io::stdout().lock();
    match &options.action {
        Action::Check(_) => {
            let recovered = &found.recovered;
            writeln!(out, "registry      {}", path.display())?;
            writeln!(
                out,
                "id            {}",
                found.id.as_deref().unwrap_or("none")
            )?;
            writeln!(out, "epoch         {}", recovered.epoch)?;
            writeln!(out, "records       {}", found.records)?;
            writeln!(
                out,
                "agents        {} ({} unreachable, {} gone)",
                recovered.agents.len(),
                recovered.unreachable.len(),
                recovered.gone.len()
            )?;
            writeln!(out, "frameworks    {}", recovered.frameworks.len())?;
            writeln!(out, "quotas        {}", recovered.quotas.len())?;
        }
        Action::Export(_) => writeln!(out, "{:#}", found.to_json())?,
    }
    match found.damage {
        Some(damage) => Err(damage.into()),
        None => Ok(()),
    }
}
