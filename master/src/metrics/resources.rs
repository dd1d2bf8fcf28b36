//! Total resources of all agents, and the actual usage of their containers, for Prometheus.
//!
//! Entered through [`families`] and [`in_use`]; the sums come from `resource_sums`. Invariant: memory and disk are in
//! bytes.

use super::resource_sums::Sums;
use super::{Families, RESOURCES, labelled, one, to_f64};
use crate::core::{Snapshot, Usage};

pub(super) fn families(
    families: &mut Families,
    snapshot: &Snapshot,
) -> Result<(), prometheus::Error> {
    let sums = Sums::from_snapshot(snapshot);
    let kinds = [
        ("total", &sums.total),
        ("used", &sums.used),
        ("offered", &sums.offered),
    ];
    let amounts = RESOURCES.iter().flat_map(|(name, _, scale)| {
        kinds.iter().flat_map(move |(kind, resources)| {
            [("false", false), ("true", true)].map(|(label, revocable)| {
                let labels = [*name, kind, label].map(str::to_owned).to_vec();
                (labels, resources.get(name, revocable) * scale)
            })
        })
    });
    families.gauge(
        "meseta_master_resource_amount",
        "Resources of all registered agents, by kind: total, used or offered; memory and disk in bytes.",
        &["resource", "kind", "revocable"],
        amounts.collect::<Vec<_>>(),
    )?;
    for (name, unit, scale) in RESOURCES {
        let what = match unit {
            "mem_bytes" | "disk_bytes" => format!("{name} in bytes"),
            _ => name.to_owned(),
        };
        for (kind, resources) in [
            ("total", &sums.total),
            ("used", &sums.used),
            ("offered", &sums.offered),
        ] {
            let values = [
                ("false", resources.get(name, false)),
                ("true", resources.get(name, true)),
            ];
            families.gauge(
                &format!("meseta_master_resources_{kind}_{unit}"),
                &format!(
                    "Deprecated: meseta_master_resource_amount. Sum over all registered agents of {what}: {kind}."
                ),
                &["revocable"],
                labelled(values.map(|(label, value)| (label, value * scale))),
            )?;
        }
    }
    Ok(())
}

pub(super) fn in_use(families: &mut Families, usage: Usage) -> Result<(), prometheus::Error> {
    families.gauge(
        "meseta_master_usage_cpus",
        "CPUs that the containers of all connected agents really use, as the agents measure it.",
        &[],
        one(usage.cpus),
    )?;
    families.gauge(
        "meseta_master_usage_mem_bytes",
        "Memory that the containers of all connected agents really use, as the agents measure it.",
        &[],
        one(to_f64(usage.mem_bytes)),
    )
}
