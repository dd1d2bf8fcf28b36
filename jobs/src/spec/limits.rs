//! Limits in their stored form: JSON has no number for infinity.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number, or `"unlimited"` for infinity.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Limit {
    Amount(f64),
    Word(Unlimited),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Unlimited {
    Unlimited,
}

pub(super) fn serialize<S: Serializer>(
    limits: &BTreeMap<String, f64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let worded = |amount: f64| match amount.is_finite() {
        true => Limit::Amount(amount),
        false => Limit::Word(Unlimited::Unlimited),
    };
    serializer.collect_map(limits.iter().map(|(name, amount)| (name, worded(*amount))))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, f64>, D::Error> {
    let limits = BTreeMap::<String, Limit>::deserialize(deserializer)?;
    let amount = |limit| match limit {
        Limit::Amount(amount) => amount,
        Limit::Word(Unlimited::Unlimited) => f64::INFINITY,
    };
    Ok(limits
        .into_iter()
        .map(|(name, limit)| (name, amount(limit)))
        .collect())
}
