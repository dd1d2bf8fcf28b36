//! The `meseta names` verb: ids and roles, one per line, for the completions of shells.

use clap::{Args, ValueEnum};

use super::{MasterFlag, items, server, text};
use crate::terminal;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The kind of names.
    kind: Kind,
    #[command(flatten)]
    master: MasterFlag,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Agents,
    Frameworks,
    Tasks,
    Roles,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let (path, list, key) = match options.kind {
        Kind::Agents => ("/slaves", "slaves", "id"),
        Kind::Frameworks => ("/frameworks", "frameworks", "id"),
        Kind::Tasks => ("/tasks?limit=1000", "tasks", "id"),
        Kind::Roles => ("/roles", "roles", "name"),
    };
    let body = server::get_json(&options.master.master, path)?;
    for one in items(&body, list) {
        terminal::say(&text(one, key));
    }
    Ok(())
}
