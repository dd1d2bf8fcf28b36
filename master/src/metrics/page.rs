//! `/metrics/snapshot`: a single object, written while it is made, because there may be a million keys.

use std::ops::Range;
use std::sync::Arc;

use super::mesos::MetricWriter;
use super::{Measured, Metrics, frameworks, mesos, to_f64};
use crate::chunked_response::{Document, Items, Row, once, text};
use crate::core::{FrameworkView, Snapshot};
use crate::views::{write, write_text};

/// The approximate size of the master's own keys, in bytes.
const MASTER_BYTES: usize = 16 * 1024;
/// The approximate size of a framework's keys, in bytes.
const FRAMEWORK_BYTES: usize = 6 * 1024;

pub(super) fn document(
    metrics: Arc<Metrics>,
    measured: Measured,
    has_frameworks: bool,
) -> Document {
    let snapshot = measured.seen.clone();
    let first = once(MASTER_BYTES, move |out| {
        let mut separator = "{";
        mesos::visit(&metrics, &measured, &mut |key, value| {
            out.extend_from_slice(separator.as_bytes());
            put(out, key, value);
            separator = ",";
        });
    });
    if !has_frameworks {
        return Document::from_first(vec![first, text("}")]);
    }
    let rest = move || {
        // Computed here, on a thread that may take its time.
        snapshot.states();
        let frameworks: Row = Arc::new(Frameworks(snapshot.clone()));
        let principals = once(1, move |out| {
            let mut visit = |key: &str, value: f64| {
                out.push(b',');
                put(out, key, value);
            };
            frameworks::principals(&mut MetricWriter(&mut visit), &snapshot);
        });
        vec![frameworks, principals, text("}")]
    };
    Document {
        first: vec![first],
        rest: Some(Box::new(rest)),
    }
}

struct Frameworks(Arc<Snapshot>);

impl Items for Frameworks {
    fn len(&self) -> usize {
        self.0.frameworks.len()
    }

    fn bytes_each(&self) -> usize {
        FRAMEWORK_BYTES
    }

    fn render(&self, range: Range<usize>, out: &mut Vec<u8>) {
        for framework in self.0.frameworks.get(range).unwrap_or_default() {
            self.write(framework, out);
        }
    }
}

impl Frameworks {
    fn write(&self, framework: &FrameworkView, out: &mut Vec<u8>) {
        // The common part of all keys in the page: `,"master/frameworks/name/id/`.
        let mut prefix = b",".to_vec();
        write(&mut prefix, &frameworks::prefix(framework));
        prefix.pop();
        frameworks::each(&self.0, framework, &mut |group, name, value| {
            out.extend_from_slice(&prefix);
            out.extend_from_slice(group.as_bytes());
            // The prefix already contains the opening quote.
            let quote = out.len();
            write_text(out, name);
            out.remove(quote);
            put_value(out, to_f64(value));
        });
    }
}

fn put(out: &mut Vec<u8>, key: &str, value: f64) {
    write_text(out, key);
    put_value(out, value);
}

fn put_value(out: &mut Vec<u8>, value: f64) {
    if value == 0.0 {
        // Most values are zero.
        out.extend_from_slice(b":0.0");
    } else {
        out.push(b':');
        write(out, &value);
    }
}
