//! `meseta teardown`: the end of a framework and all its tasks.

use clap::Args;
use meseta_proto::mesos::v1::FrameworkId;
use meseta_proto::mesos::v1::master::{Call, call};

use super::{MasterFlag, call_of, framework, server};
use crate::terminal;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The framework's id, or a unique part of the id (see `meseta frameworks`).
    framework: String,
    #[command(flatten)]
    master: MasterFlag,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let master = &options.master.master;
    let framework = framework(master, &options.framework)?;
    end(master, &framework)?;
    terminal::say(&format!("framework {framework} torn down"));
    Ok(())
}

/// Ends a framework and all its tasks.
pub(super) fn end(master: &str, framework: &str) -> anyhow::Result<()> {
    let framework_id = FrameworkId {
        value: framework.to_owned(),
    };
    let call = Call {
        teardown: Some(call::Teardown { framework_id }),
        ..call_of(call::Type::Teardown)
    };
    server::operate(master, &call).map(drop)
}
