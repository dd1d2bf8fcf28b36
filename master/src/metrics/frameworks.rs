//! The metrics of each framework and principal, under their Mesos names.
//!
//! There may be ten thousand frameworks with seventy keys each: functions pass a key in parts, so that each format
//! joins them as necessary, and nothing is stored.

use std::collections::BTreeMap;

use meseta_proto::mesos::v1::TaskState;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::mesos::MetricWriter;
use super::to_f64;
use crate::core::{FrameworkView, Snapshot};

/// The number of live tasks, in the order of [`ACTIVE`].
type Active = [u64; ACTIVE.len()];

const ACTIVE: [(&str, TaskState); 6] = [
    ("task_killing", TaskState::TaskKilling),
    ("task_running", TaskState::TaskRunning),
    ("task_staging", TaskState::TaskStaging),
    ("task_starting", TaskState::TaskStarting),
    ("task_unknown", TaskState::TaskUnknown),
    ("task_unreachable", TaskState::TaskUnreachable),
];

/// Passes a framework's keys as texts.
pub(super) fn visit(
    snapshot: &Snapshot,
    framework: &FrameworkView,
    visit: &mut dyn FnMut(&str, f64),
) {
    let mut key = prefix(framework);
    let begin = key.len();
    each(snapshot, framework, &mut |group, name, value| {
        key.truncate(begin);
        key.push_str(group);
        key.push_str(name);
        visit(&key, to_f64(value));
    });
}

/// The prefix of all keys of a framework.
pub(super) fn prefix(framework: &FrameworkView) -> String {
    let mut prefix = String::from("master/frameworks/");
    percent_encode(&mut prefix, &framework.info.name);
    prefix.push('/');
    prefix.push_str(framework.id.as_str());
    prefix.push('/');
    prefix
}

fn active(snapshot: &Snapshot, framework: &FrameworkView) -> Active {
    let mut active = Active::default();
    let counts = snapshot.states().get(&framework.id);
    let states = counts.into_iter().flat_map(|counts| counts.iter());
    let lost = u64::try_from(framework.unreachable.len()).unwrap_or(u64::MAX);
    for (state, number) in states.chain([(TaskState::TaskUnreachable, lost)]) {
        let mut kinds = ACTIVE.iter().zip(&mut active);
        if let Some((_, count)) = kinds.find(|((_, known), _)| *known == state) {
            *count += number;
        }
    }
    active
}

/// Passes the rest of each key in two parts: a group and a name in it.
pub(super) fn each(
    snapshot: &Snapshot,
    framework: &FrameworkView,
    put: &mut impl FnMut(&str, &str, u64),
) {
    let counters = &framework.counters;
    put("subscribed", "", u64::from(framework.connected));
    put("calls", "", counters.calls.total());
    for (name, count) in counters.calls.iter() {
        put("calls/", name, count);
    }
    put("events", "", counters.events.total());
    for (name, count) in counters.events.iter() {
        put("events/", name, count);
    }
    put("operations", "", counters.operations.total());
    for (name, count) in counters.operations.iter() {
        put("operations/", name, count);
    }
    for ((name, _), count) in ACTIVE.iter().zip(active(snapshot, framework)) {
        put("tasks/active/", name, count);
    }
    for (name, count) in counters.terminal.iter() {
        put("tasks/terminal/", name, count);
    }
    put("offers/", "sent", counters.offers_sent);
    put("offers/", "accepted", counters.offers_accepted);
    put("offers/", "declined", counters.offers_declined);
    put("offers/", "rescinded", counters.offers_rescinded);
    let roles = framework.roles.iter();
    for role in roles.filter(|role| snapshot.viewer_may_view_role(role)) {
        let is_suppressed = framework.suppressed.contains(role);
        let name = format!("{role}/suppressed");
        put("roles/", &name, u64::from(is_suppressed));
    }
}

/// Passes the calls of all frameworks of a principal; each call is processed before it is counted.
pub(super) fn principals(out: &mut MetricWriter<'_>, snapshot: &Snapshot) {
    let mut calls: BTreeMap<&str, u64> = BTreeMap::new();
    for framework in snapshot.frameworks.iter() {
        if let Some(principal) = &framework.info.principal {
            *calls.entry(principal).or_default() += framework.counters.calls.total();
        }
    }
    for (principal, count) in calls {
        out.counter(&format!("frameworks/{principal}/messages_received"), count);
        out.counter(&format!("frameworks/{principal}/messages_processed"), count);
    }
}

/// The characters that stay unchanged besides letters and digits; the rest becomes `%2F` and so on.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn percent_encode(out: &mut String, text: &str) {
    out.extend(utf8_percent_encode(text, PLAIN));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_byte_by_byte() {
        let mut key = String::from("x/");
        percent_encode(&mut key, "my job/€-1.~_");
        assert_eq!(key, "x/my%20job%2F%E2%82%AC-1.~_");
    }
}
