//! Resources and attributes in the format of the v0 endpoints of both daemons.
//!
//! Each type borrows its data and is `Serialize`, for use in a view struct of a daemon.

use std::borrow::Cow;
use std::collections::BTreeMap;

use meseta_resources::{AttributeValue, Attributes, ResourceQuantities, Resources, Value};
use serde::{Serialize, Serializer};

use crate::convert::{Format, to_resource};

/// Names that are shown even with an amount of zero.
const ALWAYS: [&str; 4] = ["cpus", "gpus", "mem", "disk"];

/// A limit of a task; JSON has no infinity, and Mesos writes it as a text.
#[derive(Copy, Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Limit {
    Finite(f64),
    Infinite(&'static str),
}

impl From<f64> for Limit {
    fn from(limit: f64) -> Self {
        if limit.is_finite() {
            Self::Finite(limit)
        } else {
            Self::Infinite("Infinity")
        }
    }
}

/// The total of each name: `{"cpus":4.0,"gpus":0.0,"mem":0.0,"disk":0.0,"ports":"[1-2]"}`, and revocable resources
/// separately, as `cpus_revocable`.
#[derive(Copy, Clone, Debug)]
pub struct Summary<'a>(pub &'a Resources);

impl Serialize for Summary<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut sums: BTreeMap<(bool, &str), Cow<'_, Value>> = BTreeMap::new();
        for resource in self.0 {
            let key = (resource.is_revocable(), resource.name().as_str());
            // A shared volume counts as one volume, regardless of its holders.
            let value = Cow::Borrowed(resource.value());
            let sum = sums
                .remove(&key)
                .map_or(value.clone(), |sum| add(sum, value));
            sums.insert(key, sum);
        }
        let fixed = ALWAYS.iter().map(|name| {
            let shown = sums
                .get(&(false, *name))
                .map_or(NumberOrText::Number(0.0), |sum| number_or_text(sum));
            (Cow::Borrowed(*name), shown)
        });
        let others = sums
            .iter()
            .filter(|((revocable, name), _)| *revocable || !ALWAYS.contains(name))
            .map(|((revocable, name), sum)| {
                let name = if *revocable {
                    Cow::Owned(format!("{name}_revocable"))
                } else {
                    Cow::Borrowed(*name)
                };
                (name, number_or_text(sum))
            });
        serializer.collect_map(fixed.chain(others))
    }
}

/// Adds two values; for different kinds under one name the later value wins.
fn add<'a>(sum: Cow<'a, Value>, value: Cow<'a, Value>) -> Cow<'a, Value> {
    match (&*sum, &*value) {
        (Value::Scalar(a), Value::Scalar(b)) => Cow::Owned(Value::Scalar(*a + *b)),
        (Value::Ranges(a), Value::Ranges(b)) => Cow::Owned(Value::Ranges(a.union(b))),
        (Value::Set(a), Value::Set(b)) => Cow::Owned(Value::Set(a.union(b))),
        _ => value,
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(f64),
    Text(String),
}

fn number_or_text(value: &Value) -> NumberOrText {
    match value {
        Value::Scalar(scalar) => NumberOrText::Number(scalar.to_f64()),
        Value::Ranges(_) | Value::Set(_) => NumberOrText::Text(value.to_string()),
    }
}

/// `reserved_resources`: the [`Summary`] of the resources reserved to each role.
#[derive(Copy, Clone, Debug)]
pub struct Reserved<'a>(pub &'a Resources);

impl Serialize for Reserved<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let reservations = self.0.reservations();
        let entries = reservations
            .iter()
            .map(|(role, resources)| (role.as_str(), Summary(resources)));
        serializer.collect_map(entries)
    }
}

/// `*_resources_full`: the resources themselves, in the format that has both kinds of reservation.
#[derive(Copy, Clone, Debug)]
pub struct Full<'a>(pub &'a Resources);

impl Serialize for Full<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let messages = self.0.iter().flat_map(|resource| {
            let copies = if resource.is_shared() {
                self.0.count(resource)
            } else {
                1
            };
            // Only the format before refinement can fail.
            let message = to_resource(resource, Format::Endpoint).ok();
            (0..copies).filter_map(move |_| message.clone())
        });
        serializer.collect_seq(messages)
    }
}

/// `reserved_resources_full`: [`Full`] of the resources reserved to each role.
#[derive(Copy, Clone, Debug)]
pub struct ReservedFull<'a>(pub &'a Resources);

impl Serialize for ReservedFull<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let reservations = self.0.reservations();
        let entries = reservations
            .iter()
            .map(|(role, resources)| (role.as_str(), Full(resources)));
        serializer.collect_map(entries)
    }
}

/// Amounts alone, in the format of `/roles`: ports are counted.
#[derive(Copy, Clone, Debug)]
pub struct Quantities<'a>(pub &'a ResourceQuantities);

impl Serialize for Quantities<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(
            self.0
                .iter()
                .map(|(name, amount)| (name.as_str(), amount.to_f64())),
        )
    }
}

/// Attributes as `{"rack":"a","level":2.0,"slots":"[1-3]"}`; the last of several with one name counts.
#[derive(Copy, Clone, Debug)]
pub struct AttributesView<'a>(pub &'a Attributes);

impl Serialize for AttributesView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let shown: BTreeMap<&str, NumberOrText> = self
            .0
            .iter()
            .map(|attribute| {
                let shown = match attribute.value() {
                    AttributeValue::Scalar(scalar) => NumberOrText::Number(scalar.to_f64()),
                    AttributeValue::Ranges(ranges) => NumberOrText::Text(ranges.to_string()),
                    AttributeValue::Text(text) => NumberOrText::Text(text.clone()),
                };
                (attribute.name(), shown)
            })
            .collect();
        shown.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use meseta_resources::Role;
    use serde_json::json;

    use super::*;
    use crate::convert::parse_resources;

    fn parsed(text: &str) -> Resources {
        parse_resources(text, &Role::star()).unwrap()
    }

    fn value(view: impl Serialize) -> serde_json::Value {
        serde_json::to_value(view).unwrap()
    }

    #[test]
    fn summary_adds_resources_of_equal_name() {
        let resources = parsed(
            "cpus:1.5;cpus(a):2;mem:64;ports:[5-6];ports(a):[1-2];ports(b):[3-4];tags:{a,b}",
        );
        let expected = json!({"cpus": 3.5, "gpus": 0.0, "mem": 64.0, "disk": 0.0,
            "ports": "[1-6]", "tags": "{a, b}"});
        assert_eq!(value(Summary(&resources)), expected);
        let written = serde_json::to_string(&Summary(&Resources::new())).unwrap();
        assert_eq!(written, r#"{"cpus":0.0,"gpus":0.0,"mem":0.0,"disk":0.0}"#);
        assert_eq!(
            value(Summary(&parsed("ports:[1-2,4-5]")))["ports"],
            "[1-2, 4-5]"
        );
    }

    #[test]
    fn revocable_resources_stand_apart() {
        let resources = parsed("cpus:8") + parsed("cpus:4").with_revocable(true);
        let shown = value(Summary(&resources));
        assert_eq!(
            (&shown["cpus"], &shown["cpus_revocable"]),
            (&json!(8.0), &json!(4.0))
        );
        let full = value(Full(&resources.revocable()));
        assert_eq!(
            full,
            json!([{"name": "cpus", "type": "SCALAR", "scalar": {"value": 4.0}, "role": "*",
                "revocable": {}}])
        );
    }

    #[test]
    fn reservations_are_shown_by_role() {
        let resources = parsed("cpus:7;mem(b):64")
            + parsed(
                r#"[{"name":"cpus","type":"SCALAR","scalar":{"value":1},"reservations":[
                {"type":"DYNAMIC","role":"dev","principal":"ops"}]}]"#,
            );
        let reserved = value(Reserved(&resources));
        assert_eq!(
            reserved["dev"],
            json!({"cpus": 1.0, "gpus": 0.0, "mem": 0.0, "disk": 0.0})
        );
        assert_eq!(reserved["b"]["mem"], 64.0);
        assert_eq!(reserved.as_object().unwrap().len(), 2);
        assert_eq!(
            value(ReservedFull(&resources))["dev"],
            json!([{"name": "cpus", "type": "SCALAR", "scalar": {"value": 1.0}, "role": "dev",
                "reservation": {"principal": "ops"},
                "reservations": [{"type": "DYNAMIC", "role": "dev", "principal": "ops"}]}])
        );
        assert_eq!(
            value(Full(&parsed("cpus:7"))),
            json!([{"name": "cpus", "type": "SCALAR", "scalar": {"value": 7.0}, "role": "*"}])
        );
    }

    #[test]
    fn amounts_count_ports() {
        let resources = parsed("cpus:0.5;mem:64;ports:[31000-31001]");
        assert_eq!(
            value(Quantities(&resources.quantities())),
            json!({"cpus": 0.5, "mem": 64.0, "ports": 2.0})
        );
    }

    #[test]
    fn attributes_are_numbers_ranges_or_text() {
        let attributes: Attributes = "rack:a;level:2;slots:[1-3];rack:b".parse().unwrap();
        let expected = json!({"rack": "b", "level": 2.0, "slots": "[1-3]"});
        assert_eq!(value(AttributesView(&attributes)), expected);
    }
}
