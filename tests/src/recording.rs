//! Recordings of a genuine Mesos (`tests/golden`), and the comparison with ours.
//!
//! A value's shape is every path to a value in it with the value's type: ids, times and amounts are another cluster's, keys
//! and types are not.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Returns the path of a recording.
pub fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(file)
}

/// Returns the text of a recording.
pub fn text(file: &str) -> String {
    let path = path(file);
    std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// Returns the values of a file of JSON, one per line.
pub fn lines(file: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).expect("JSON");
    text(file).lines().map(parse).collect()
}

/// Returns the info of the recorded framework.
pub fn framework_info() -> Value {
    json!({"user": "root", "name": "golden", "roles": ["dev"],
        "capabilities": [{"type": "MULTI_ROLE"}, {"type": "RESERVATION_REFINEMENT"}],
        "failover_timeout": 0, "checkpoint": true})
}

/// Returns every path to a value with the value's type; differences between elements of a list are united.
pub fn shape(value: &Value) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    add_shape(value, "", &mut paths);
    paths
}

fn add_shape(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(all) => {
            for one in all {
                add_shape(one, &format!("{path}[]"), into);
            }
            "list"
        }
        Value::Object(all) => {
            for (key, one) in all {
                add_shape(one, &format!("{path}.{key}"), into);
            }
            "object"
        }
    };
    into.insert(format!("{path}: {kind}"));
}

/// Returns the difference of the shapes, except for paths that `is_incidental` accepts. Fields of a container network do
/// not apply to the host's network.
pub fn difference(
    theirs: &Value,
    ours: &Value,
    is_incidental: &dyn Fn(&str) -> bool,
) -> Option<String> {
    let of = |value: &Value| {
        let mut paths = shape(value);
        paths.retain(|path| {
            !path.contains(".network_infos")
                && !path.contains("executor_pid")
                && !is_incidental(path)
        });
        paths
    };
    let (theirs, ours) = (of(theirs), of(ours));
    let missing: Vec<_> = theirs.difference(&ours).collect();
    let added: Vec<_> = ours.difference(&theirs).collect();
    let same = missing.is_empty() && added.is_empty();
    (!same).then(|| format!("missing {missing:#?}, added {added:#?}"))
}

/// The recorded events with one name.
#[derive(Debug)]
pub struct Events(Vec<Value>);

impl Events {
    pub fn read(file: &str) -> Self {
        Self(lines(file))
    }

    pub fn event(&self, name: &str) -> &Value {
        let found = self.0.iter().find(|line| line["name"] == name);
        &found.unwrap_or_else(|| panic!("nothing recorded as {name:?}"))["event"]
    }

    /// Compares the shape, and these texts exactly.
    pub fn compare(&self, name: &str, ours: &Value, texts: &[&str]) {
        let theirs = self.event(name);
        if let Some(difference) = difference(theirs, ours, &|_| false) {
            panic!("{name}: {difference}");
        }
        for pointer in texts {
            let (theirs, ours) = (theirs.pointer(pointer), ours.pointer(pointer));
            assert_eq!(theirs, ours, "{name} {pointer}");
        }
    }
}
