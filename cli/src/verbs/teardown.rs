//! `meseta teardown`: the end of a framework and of all that it runs.

use std::process::ExitCode;

use clap::Args;
use meseta_proto::mesos::v1::FrameworkId;
use meseta_proto::mesos::v1::master::{Call, call};

use super::{MasterFlag, ids, items, server, table};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The framework's id, or as much of it as tells it from others (see `meseta frameworks`).
    framework: String,
    #[command(flatten)]
    master: MasterFlag,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let master = &options.master.master;
    let body = server::get_json(master, "/frameworks")?;
    let ids = items(&body, "frameworks").iter();
    let ids = ids.filter_map(|framework| framework.get("id")?.as_str());
    // One that is not listed may be there all the same: the master knows.
    let found = ids::resolve(ids, &options.framework, "frameworks")?;
    let framework = found.unwrap_or_else(|| options.framework.clone());
    let framework_id = FrameworkId {
        value: framework.clone(),
    };
    let call = Call {
        r#type: Some(call::Type::Teardown.into()),
        teardown: Some(call::Teardown { framework_id }),
        ..Call::default()
    };
    server::operate(master, &call)?;
    table::say(&format!("framework {framework} torn down"));
    Ok(ExitCode::SUCCESS)
}
