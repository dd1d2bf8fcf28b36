//! The `meseta roles` and `meseta weights` verbs: the roles that share the cluster, and their proportions.

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use meseta_proto::mesos::v1::WeightInfo;
use meseta_proto::mesos::v1::master::{Call, call};
use serde_json::Value;

use super::{ListOptions, MasterFlag, amount, call_of, items, list_all, server, show, text};
use crate::terminal;

pub(crate) fn run(options: &ListOptions) -> anyhow::Result<()> {
    let headings = [
        "ROLE",
        "WEIGHT",
        "FRAMEWORKS",
        "CPUS",
        "MEM MB",
        "RESERVED CPUS",
        "RESERVED MEM MB",
    ];
    show(options, "/roles", "roles", &headings, row)
}

fn row(role: &Value) -> Vec<String> {
    vec![
        text(role, "name"),
        text(role, "weight"),
        items(role, "frameworks").len().to_string(),
        amount(role, "allocated", "cpus"),
        amount(role, "allocated", "mem"),
        amount(role, "reserved", "cpus"),
        amount(role, "reserved", "mem"),
    ]
}

/// Without an action: a table of all weights that were set.
#[derive(Debug, Args)]
pub(crate) struct WeightOptions {
    #[command(subcommand)]
    action: Option<WeightAction>,
    #[command(flatten)]
    master: MasterFlag,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum WeightAction {
    /// Set weights. The default weight of a role is 1.
    Set {
        /// The weights, each as `role=weight`.
        #[arg(required = true, value_name = "ROLE=WEIGHT")]
        weights: Vec<String>,
    },
}

pub(crate) fn weights(options: &WeightOptions) -> anyhow::Result<()> {
    let master = &options.master.master;
    if let Some(WeightAction::Set { weights }) = &options.action {
        let weight_infos = weights
            .iter()
            .map(|text| weight(text))
            .collect::<Result<_, _>>()?;
        let call = Call {
            update_weights: Some(call::UpdateWeights { weight_infos }),
            ..call_of(call::Type::UpdateWeights)
        };
        server::operate(master, &call)?;
        terminal::say("weights set");
        return Ok(());
    }
    let body = server::get_json(master, "/weights")?;
    if options.json {
        // The check covers any body: one that is no list is not shown as an empty list.
        return terminal::print_json(&body);
    }
    let weights = body.as_array().map_or(&[][..], Vec::as_slice);
    let row = |weight: &Value| vec![text(weight, "role"), text(weight, "weight")];
    list_all(false, &["ROLE", "WEIGHT"], weights, row)
}

fn weight(text: &str) -> anyhow::Result<WeightInfo> {
    let Some((role, weight)) = text.rsplit_once('=') else {
        bail!("{text:?} is not of the form ROLE=WEIGHT");
    };
    let weight = weight
        .parse()
        .with_context(|| format!("{weight:?}, the weight of '{role}', is not a number"))?;
    Ok(WeightInfo {
        weight,
        role: Some(role.to_owned()),
    })
}
