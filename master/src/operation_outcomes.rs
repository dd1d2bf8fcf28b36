//! Outcomes of operators' operations, for waiting callers and for a while after.
//!
//! The shell owns the outcomes. Invariants: the table is bounded; the oldest outcome is forgotten first, and a caller
//! that waits for an unknown operation gets an error. An operation is unknown to callers that neither requested it
//! nor may see all its roles, and such callers use no place among the waiting ones.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use meseta_access::Approver;
use meseta_proto::mesos::v1::OperationStatus;
use meseta_proto::mesos::v1::offer::Operation;
use meseta_resources::Role;
use tokio::sync::oneshot;

use crate::core::{OperationUuid, roles_of};
use crate::view_filter::may_view_roles;

/// The number of stored outcomes.
const KEPT_MAX: usize = 10_000;
/// The number of operations that callers wait for.
const AWAITED_MAX: usize = 10_000;

/// The known state of an operation.
#[derive(Debug)]
pub(crate) enum OperationOutcome {
    Over(Box<OperationStatus>),
    /// Receives the final status; closed without a value if the master ends first.
    Pending(oneshot::Receiver<OperationStatus>),
    /// Unknown, forgotten, or hidden from the caller.
    Unknown,
    /// Too many requests wait already.
    Full,
}

/// The callers that may learn an operation's outcome.
#[derive(Debug)]
struct Readers {
    /// The requesting principal; `None` for a request without a principal, or one to an earlier master.
    principal: Option<String>,
    /// The roles that other callers must be allowed to see; `None` if unknown.
    roles: Option<BTreeSet<Role>>,
}

impl Readers {
    fn new(principal: Option<String>, operation: &Operation) -> Self {
        let roles = roles_of(operation);
        Self { principal, roles }
    }

    fn include(&self, approver: &Approver) -> bool {
        let asked = self.principal.is_some() && self.principal.as_deref() == approver.principal();
        let roles = self.roles.as_ref();
        asked || roles.is_some_and(|roles| may_view_roles(approver, roles))
    }
}

/// An operation without a final status yet.
#[derive(Debug)]
struct Pending {
    readers: Readers,
    waiting: Vec<oneshot::Sender<OperationStatus>>,
}

#[derive(Debug, Default)]
pub(crate) struct OperationOutcomes {
    over: BTreeMap<OperationUuid, (Readers, OperationStatus)>,
    /// The ended operations, in the order of their end.
    order: VecDeque<OperationUuid>,
    pending: BTreeMap<OperationUuid, Pending>,
    awaited: usize,
}

impl OperationOutcomes {
    /// Records an accepted operation with its requesting principal.
    pub(crate) fn begin(
        &mut self,
        uuid: OperationUuid,
        principal: Option<String>,
        operation: &Operation,
    ) {
        if self.pending.len() < AWAITED_MAX && !self.over.contains_key(&uuid) {
            let pending = Pending {
                readers: Readers::new(principal, operation),
                waiting: Vec::new(),
            };
            self.pending.entry(uuid).or_insert(pending);
        }
    }

    /// Records the end of an operation.
    pub(crate) fn end(
        &mut self,
        uuid: OperationUuid,
        operation: &Operation,
        status: OperationStatus,
    ) {
        let readers = match self.pending.remove(&uuid) {
            Some(Pending { readers, waiting }) => {
                self.awaited -= waiting.len();
                for waiter in waiting {
                    // The waiting caller may have left.
                    let _unsent = waiter.send(status.clone());
                }
                readers
            }
            None => Readers::new(None, operation),
        };
        if self.over.insert(uuid, (readers, status)).is_none() {
            self.order.push_back(uuid);
        }
        if self.order.len() > KEPT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.over.remove(&oldest);
        }
    }

    /// The state of an operation as far as this caller may learn it.
    pub(crate) fn outcome_for(
        &mut self,
        uuid: OperationUuid,
        approver: &Approver,
    ) -> OperationOutcome {
        if let Some((readers, status)) = self.over.get(&uuid) {
            return match readers.include(approver) {
                true => OperationOutcome::Over(Box::new(status.clone())),
                false => OperationOutcome::Unknown,
            };
        }
        let pending = self.pending.get_mut(&uuid);
        let pending = pending.filter(|pending| pending.readers.include(approver));
        let Some(Pending { waiting, .. }) = pending else {
            return OperationOutcome::Unknown;
        };
        let before = waiting.len();
        waiting.retain(|waiter| !waiter.is_closed());
        self.awaited -= before - waiting.len();
        if self.awaited >= AWAITED_MAX {
            return OperationOutcome::Full;
        }
        let (waiter, finished) = oneshot::channel();
        waiting.push(waiter);
        self.awaited += 1;
        OperationOutcome::Pending(finished)
    }
}

#[cfg(test)]
mod tests {
    use meseta_access::{Acls, Authorizer};
    use meseta_proto::convert;
    use meseta_resources::{Reservation, Resources};

    use super::*;

    fn status(message: &str) -> OperationStatus {
        OperationStatus {
            message: Some(message.to_owned()),
            ..OperationStatus::default()
        }
    }

    /// The reservation of a cpu for the role `ads`.
    fn reserve() -> Operation {
        let cpus = Resources::parse("cpus:1", &Role::star()).unwrap();
        let ads = Reservation::dynamic(Role::new("ads").unwrap(), None);
        let reserved = cpus.push_reservation(&ads).unwrap();
        convert::to_operation(&meseta_resources::Operation::Reserve {
            source: Vec::new(),
            resources: reserved.iter().cloned().collect(),
        })
    }

    /// A caller that sees only the role `www` or, as `admin`, all roles.
    fn caller(principal: Option<&str>) -> Approver {
        let acls = r#"{"permissive":false,"view_roles":[
            {"principals":{"values":["admin"]},"roles":{"type":"ANY"}},
            {"principals":{"type":"ANY"},"roles":{"values":["www"]}}]}"#;
        let authorizer = Authorizer::new(Acls::parse(acls).unwrap(), false);
        authorizer.approver(principal.map(str::to_owned))
    }

    #[test]
    fn early_and_late_waiters_get_outcome() {
        let (mut outcomes, all) = (OperationOutcomes::default(), Approver::default());
        let unknown = outcomes.outcome_for([1; 16], &all);
        assert!(matches!(unknown, OperationOutcome::Unknown));
        outcomes.begin([1; 16], None, &reserve());
        let OperationOutcome::Pending(mut first) = outcomes.outcome_for([1; 16], &all) else {
            panic!("it is under way");
        };
        drop(outcomes.outcome_for([1; 16], &all));
        outcomes.end([1; 16], &reserve(), status("done"));
        assert_eq!(first.try_recv().unwrap(), status("done"));
        let late = outcomes.outcome_for([1; 16], &all);
        assert!(matches!(late, OperationOutcome::Over(_)));
        assert_eq!(outcomes.awaited, 0);
        for number in 0..u64::try_from(KEPT_MAX).unwrap() {
            let mut uuid = [2; 16];
            uuid[..8].copy_from_slice(&number.to_le_bytes());
            outcomes.end(uuid, &reserve(), status("another"));
        }
        let forgotten = outcomes.outcome_for([1; 16], &all);
        assert!(matches!(forgotten, OperationOutcome::Unknown));
        assert_eq!(outcomes.over.len(), KEPT_MAX);
    }

    /// The uuids of operations are not secret.
    #[test]
    fn operation_is_unknown_to_unauthorized_reader() {
        let mut outcomes = OperationOutcomes::default();
        let by_ada = Some("ada".to_owned());
        outcomes.begin([1; 16], by_ada, &reserve());
        outcomes.begin([2; 16], None, &reserve());
        fn known(outcomes: &mut OperationOutcomes, uuid: u8, who: Option<&str>) -> bool {
            let outcome = outcomes.outcome_for([uuid; 16], &caller(who));
            !matches!(outcome, OperationOutcome::Unknown)
        }
        let check = |outcomes: &mut OperationOutcomes| {
            for (uuid, who) in [(1, Some("bob")), (1, None), (2, Some("ada")), (2, None)] {
                assert!(!known(outcomes, uuid, who), "{uuid} {who:?}");
            }
            assert_eq!(outcomes.awaited, 0, "they take no place");
            for (uuid, who) in [(1, "ada"), (1, "admin"), (2, "admin")] {
                assert!(known(outcomes, uuid, Some(who)), "{uuid} {who}");
            }
        };
        check(&mut outcomes);
        // An earlier master got the request for the last one.
        for uuid in 1..=3 {
            outcomes.end([uuid; 16], &reserve(), status("done"));
        }
        check(&mut outcomes);
        let mut known = |who| known(&mut outcomes, 3, Some(who));
        assert!(known("admin") && !known("ada"));
    }
}
