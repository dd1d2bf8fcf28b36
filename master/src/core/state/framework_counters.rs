//! Counters of each framework by their Mesos names, for metrics. They only grow.

use meseta_proto::mesos::v1::TaskState;
use meseta_proto::mesos::v1::offer::operation;
use meseta_proto::mesos::v1::scheduler::event;

use super::names::{operation_name, state_name};

/// Counters of a closed list of names.
#[derive(Clone, Debug)]
pub struct Named<const N: usize> {
    names: &'static [&'static str; N],
    counts: [u64; N],
}

impl<const N: usize> Named<N> {
    const fn new(names: &'static [&'static str; N]) -> Self {
        Self {
            names,
            counts: [0; N],
        }
    }

    fn add(&mut self, name: &str) {
        let index = self.names.iter().position(|known| *known == name);
        if let Some(count) = index.and_then(|index| self.counts.get_mut(index)) {
            *count += 1;
        }
    }

    /// Every name with its count, in alphabetical order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.names.iter().copied().zip(self.counts)
    }

    /// The sum over all names.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

const CALLS: [&str; 17] = [
    "accept",
    "accept_inverse_offers",
    "acknowledge",
    "acknowledge_operation_status",
    "decline",
    "decline_inverse_offers",
    "kill",
    "message",
    "reconcile",
    "reconcile_operations",
    "request",
    "revive",
    "shutdown",
    "subscribe",
    "suppress",
    "teardown",
    "update_framework",
];

const EVENTS: [&str; 11] = [
    "error",
    "failure",
    "heartbeat",
    "inverse_offers",
    "message",
    "offers",
    "rescind",
    "rescind_inverse_offer",
    "subscribed",
    "update",
    "update_operation_status",
];

const OPERATIONS: [&str; 10] = [
    "create",
    "create_disk",
    "destroy",
    "destroy_disk",
    "grow_volume",
    "launch",
    "launch_group",
    "reserve",
    "shrink_volume",
    "unreserve",
];

const TERMINAL: [&str; 8] = [
    "task_dropped",
    "task_error",
    "task_failed",
    "task_finished",
    "task_gone",
    "task_gone_by_operator",
    "task_killed",
    "task_lost",
];

#[derive(Clone, Debug)]
pub struct FrameworkCounters {
    pub calls: Named<17>,
    pub events: Named<11>,
    /// The number of operations requested in accepted offers, by kind.
    pub operations: Named<10>,
    /// Terminal states sent to the framework.
    pub terminal: Named<8>,
    pub offers_sent: u64,
    pub offers_accepted: u64,
    pub offers_declined: u64,
    pub offers_rescinded: u64,
}

impl Default for FrameworkCounters {
    fn default() -> Self {
        Self {
            calls: Named::new(&CALLS),
            events: Named::new(&EVENTS),
            operations: Named::new(&OPERATIONS),
            terminal: Named::new(&TERMINAL),
            offers_sent: 0,
            offers_accepted: 0,
            offers_declined: 0,
            offers_rescinded: 0,
        }
    }
}

impl FrameworkCounters {
    pub(in crate::core) fn call(&mut self, name: &str) {
        self.calls.add(name);
    }

    pub(in crate::core) fn event(&mut self, kind: event::Type) {
        self.events.add(match kind {
            event::Type::Unknown => return,
            event::Type::Subscribed => "subscribed",
            event::Type::Offers => "offers",
            event::Type::InverseOffers => "inverse_offers",
            event::Type::Rescind => "rescind",
            event::Type::RescindInverseOffer => "rescind_inverse_offer",
            event::Type::Update => "update",
            event::Type::UpdateOperationStatus => "update_operation_status",
            event::Type::Message => "message",
            event::Type::Failure => "failure",
            event::Type::Error => "error",
            event::Type::Heartbeat => "heartbeat",
        });
    }

    pub(in crate::core) fn operation(&mut self, kind: operation::Type) {
        if let Some(name) = operation_name(kind) {
            self.operations.add(name);
        }
    }

    pub(in crate::core) fn terminal(&mut self, state: TaskState) {
        if let Some(name) = state_name(state) {
            self.terminal.add(name);
        }
    }
}
