//! `meseta explain`: why a framework or role gets no offer of an agent.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::{MasterFlag, items, server, table, text};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The framework's id.
    #[arg(long, required_unless_present = "role")]
    framework: Option<String>,
    /// A role: all its frameworks are explained.
    #[arg(long)]
    role: Option<String>,
    /// The agent's id. Default: every agent.
    #[arg(long)]
    agent: Option<String>,
    #[command(flatten)]
    master: MasterFlag,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let given = [
        ("framework_id", &options.framework),
        ("role", &options.role),
        ("slave_id", &options.agent),
    ];
    let query: Vec<String> = given
        .iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", server::encoded(value.as_ref()?))))
        .collect();
    let path = format!("/explain?{}", query.join("&"));
    let body = server::get_json(&options.master.master, &path)?;
    if options.json {
        table::print_json(&body)?;
    } else {
        let rows: Vec<_> = items(&body, "explanations").iter().map(row).collect();
        if rows.is_empty() {
            table::say(
                "no subscribed framework to explain: `meseta frameworks` lists them, `meseta agents` the agents",
            );
            return Ok(ExitCode::SUCCESS);
        }
        table::print(
            &["FRAMEWORK", "ROLE", "AGENT", "WOULD BE OFFERED", "BECAUSE"],
            rows,
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn row(explanation: &Value) -> Vec<String> {
    vec![
        text(explanation, "framework_id"),
        text(explanation, "role"),
        text(explanation, "slave_id"),
        text(explanation, "offer"),
        text(explanation, "reason"),
    ]
}
