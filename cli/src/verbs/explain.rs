//! `meseta explain`: why a framework or role gets no offer of an agent.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use serde_json::Value;

use super::{MasterFlag, items, server, table, text};

/// Frameworks that are named to somebody who named none.
const LISTED_MAX: usize = 10;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The framework's id. Default: the only framework that is subscribed, unless a role is given.
    #[arg(long)]
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
    let framework = match (&options.framework, &options.role) {
        (None, None) => Some(only_framework(&options.master.master)?),
        (framework, _) => framework.clone(),
    };
    let given = [
        ("framework_id", &framework),
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

/// The framework that is meant when none is named.
fn only_framework(master: &str) -> anyhow::Result<String> {
    let body = server::get_json(master, "/frameworks")?;
    match items(&body, "frameworks") {
        [] => bail!("no framework is subscribed, so nobody waits for an offer"),
        [one] => Ok(text(one, "id")),
        several => {
            let list = several.iter().take(LISTED_MAX);
            let list = list.map(|one| {
                format!(
                    "\n  --framework={} ({})",
                    text(one, "id"),
                    text(one, "name")
                )
            });
            bail!(
                "{} frameworks are subscribed: say which one with --framework, or all of a role with --role \
                 (`meseta roles`){}",
                several.len(),
                list.collect::<String>()
            )
        }
    }
}

fn row(explanation: &Value) -> Vec<String> {
    vec![
        text(explanation, "framework_id"),
        text(explanation, "role"),
        text(explanation, "slave_id"),
        match text(explanation, "offer").as_str() {
            "{}" => "-".to_owned(),
            offer => offer.to_owned(),
        },
        text(explanation, "reason"),
    ]
}
