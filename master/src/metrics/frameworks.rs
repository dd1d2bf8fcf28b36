//! The metrics of each framework and principal, under Mesos's names.
//!
//! There may be ten thousand frameworks of seventy keys: a key is put together in one buffer, and nothing is
//! kept.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use meseta_proto::mesos::v1::TaskState;
use meseta_resources::FrameworkId;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::mesos::Out;
use super::to_f64;
use crate::core::{FrameworkView, Snapshot, is_terminal};

/// Live tasks in the order of [`ACTIVE`].
type Active = [u64; 6];

const ACTIVE: [(&str, TaskState); 6] = [
    ("task_killing", TaskState::TaskKilling),
    ("task_running", TaskState::TaskRunning),
    ("task_staging", TaskState::TaskStaging),
    ("task_starting", TaskState::TaskStarting),
    ("task_unknown", TaskState::TaskUnknown),
    ("task_unreachable", TaskState::TaskUnreachable),
];

pub(super) fn visit(out: &mut Out<'_>, snapshot: &Snapshot) {
    let active = active(snapshot);
    let mut key = String::new();
    for framework in &snapshot.frameworks {
        let mut active = active.get(&framework.id).copied().unwrap_or_default();
        let lost = u64::try_from(framework.unreachable.len()).unwrap_or(u64::MAX);
        if let Some(unreachable) = active.last_mut() {
            *unreachable += lost;
        }
        one(out, &mut key, framework, active);
    }
    principals(out, snapshot);
}

fn active(snapshot: &Snapshot) -> HashMap<&FrameworkId, Active> {
    let mut counts: HashMap<&FrameworkId, Active> = HashMap::new();
    for agent in &snapshot.agents {
        for ((framework, _), task) in agent.tasks.iter() {
            let place = ACTIVE.iter().position(|(_, state)| *state == task.state);
            if let Some(place) = place.filter(|_| !is_terminal(task.state)) {
                let counts = counts.entry(framework).or_default();
                if let Some(count) = counts.get_mut(place) {
                    *count += 1;
                }
            }
        }
    }
    counts
}

fn one(out: &mut Out<'_>, key: &mut String, framework: &FrameworkView, active: Active) {
    key.clear();
    key.push_str("master/frameworks/");
    percent_encode(key, &framework.info.name);
    key.push('/');
    key.push_str(framework.id.as_str());
    key.push('/');
    let prefix = key.len();
    let mut put = |group: &str, name: &str, value: u64| {
        key.truncate(prefix);
        key.push_str(group);
        key.push_str(name);
        out.put(key, to_f64(value));
    };
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
    for ((name, _), count) in ACTIVE.iter().zip(active) {
        put("tasks/active/", name, count);
    }
    for (name, count) in counters.terminal.iter() {
        put("tasks/terminal/", name, count);
    }
    put("offers/", "sent", counters.offers_sent);
    put("offers/", "accepted", counters.offers_accepted);
    put("offers/", "declined", counters.offers_declined);
    put("offers/", "rescinded", counters.offers_rescinded);
    for role in &framework.roles {
        let is_suppressed = framework.suppressed.contains(role);
        key.truncate(prefix);
        // Writing to a string does not fail.
        let _ = write!(key, "roles/{role}/suppressed");
        out.put(key, to_f64(u64::from(is_suppressed)));
    }
}

/// Calls of all frameworks of a principal; each is processed before it is counted.
fn principals(out: &mut Out<'_>, snapshot: &Snapshot) {
    let mut calls: BTreeMap<&str, u64> = BTreeMap::new();
    for framework in &snapshot.frameworks {
        if let Some(principal) = &framework.info.principal {
            *calls.entry(principal).or_default() += framework.counters.calls.total();
        }
    }
    for (principal, count) in calls {
        out.counter(&format!("frameworks/{principal}/messages_received"), count);
        out.counter(&format!("frameworks/{principal}/messages_processed"), count);
    }
}

/// Letters, digits and these stay as they are; the rest becomes `%2F` and the like.
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
