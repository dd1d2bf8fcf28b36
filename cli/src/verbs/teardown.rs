//! `meseta teardown`: the end of a framework and of all that it runs.

use std::process::ExitCode;

use clap::Args;
use meseta_proto::mesos::v1::FrameworkId;
use meseta_proto::mesos::v1::master::{Call, call};

use super::{MasterFlag, server, table};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The framework's id (see `meseta frameworks`).
    framework: String,
    #[command(flatten)]
    master: MasterFlag,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let framework_id = FrameworkId {
        value: options.framework.clone(),
    };
    let call = Call {
        r#type: Some(call::Type::Teardown.into()),
        teardown: Some(call::Teardown { framework_id }),
        ..Call::default()
    };
    server::operate(&options.master.master, &call)?;
    table::say(&format!("framework {} torn down", options.framework));
    Ok(ExitCode::SUCCESS)
}
