//! Operations on reservations and volumes: carried out, made durable, and reported until acknowledged.
//!
//! The master has validated and applied an operation before it sends it. Here the operation is applied to the agent's
//! own total, which is authoritative. [`Operations`] owns the total and the results. Invariants: an operation reported as
//! FINISHED is in the checkpoints, and the directories of its volumes exist; an operation is carried out once, even if it
//! arrives repeatedly.

use std::collections::VecDeque;
use std::sync::Arc;

use meseta_proto::convert::{self, Format};
use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as ToMaster;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::OperationState;
use meseta_resources::{Change, Moment, Operation, Resource, Resources};
use tracing::{error, info, warn};

use super::Step;
use super::operation_updates::{OperationUpdates, OperationUuid};
use crate::checkpoint::{Holdings, Lsn, ResourcesRecord, Write, check_place};

/// Durable view of reservations and operations. Readers see only state that would survive a crash, since operators use
/// it to decide whether an operation was carried out.
#[derive(Debug, Default)]
struct DurableView {
    resources: Resources,
    operations: Vec<Arc<pb::Operation>>,
    /// The later states in order, each shown once its write is durable.
    next: VecDeque<PendingView>,
}

/// The state that is shown once the log is durable up to this position.
type PendingView = (Lsn, Resources, Vec<Arc<pb::Operation>>);

impl DurableView {
    fn new(resources: Resources) -> Self {
        Self {
            resources,
            ..Self::default()
        }
    }

    /// Queues a state. If too many states wait, it replaces the last one.
    fn follow(&mut self, next: PendingView) {
        if self.next.len() >= STATES_WAITING_MAX {
            self.next.pop_back();
        }
        self.next.push_back(next);
    }

    /// Shows the states whose writes are durable up to `lsn`. Returns the number of changes.
    fn show_durable(&mut self, lsn: Lsn) -> u64 {
        let mut changes = 0;
        while let Some((_, resources, operations)) = self.next.pop_front_if(|(at, ..)| *at <= lsn) {
            self.resources = resources;
            self.operations = operations;
            changes += 1;
        }
        changes
    }
}

/// States that wait for their writes: each holds all resources of the agent.
const STATES_WAITING_MAX: usize = 8;

/// Ended operations with an unacknowledged result; further operations are dropped. The master's limit is the same.
const UNACKNOWLEDGED_OPERATIONS_MAX: usize = 20_000;

/// The reason why an operation was not carried out.
enum OperationFailure {
    /// The operation can never be carried out.
    Failed(String),
    /// The operation does not fit the agent's resources.
    Dropped(String),
}

impl From<String> for OperationFailure {
    fn from(reason: String) -> Self {
        Self::Dropped(reason)
    }
}

/// The agent's reservations and volumes, and the results of the operations on them.
#[derive(Debug)]
pub(super) struct Operations {
    /// The agent's total, including reservations and volumes.
    total: Resources,
    /// Recovered reservations and volumes that do not fit `--resources`: they are recorded but not used.
    set_aside: Resources,
    results: OperationUpdates,
    durable: DurableView,
}

impl Operations {
    /// Creates the state of an agent with these configured resources.
    pub(super) fn new(configured: &Resources) -> Self {
        Self {
            total: configured.clone(),
            set_aside: Resources::new(),
            results: OperationUpdates::default(),
            durable: DurableView::new(configured.clone()),
        }
    }

    /// The durable total, for readers.
    pub(super) fn durable_total(&self) -> &Resources {
        &self.durable.resources
    }

    /// The durable unacknowledged results, for readers.
    pub(super) fn durable_results(&self) -> &[Arc<pb::Operation>] {
        &self.durable.operations
    }

    /// Shows readers the states whose writes are durable up to `lsn`. Returns the number of changes.
    pub(super) fn show_durable(&mut self, lsn: Lsn) -> u64 {
        self.durable.show_durable(lsn)
    }

    /// The reservations and volumes that a master must know.
    pub(super) fn to_checkpoint(&self) -> Resources {
        self.total.to_checkpoint()
    }

    /// The unacknowledged results.
    pub(super) fn results(&self) -> impl Iterator<Item = &Arc<pb::Operation>> {
        self.results.all()
    }

    /// The next time when [`Operations::repeat_due`] sends results.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.results.next_due()
    }

    /// Sends the results again whose pause is over.
    pub(super) fn repeat_due(&mut self, step: &mut Step<'_>) {
        for uuid in self.results.due(step.now.moment) {
            self.send_result(step, &uuid);
        }
    }

    /// Stops sending: the master is gone.
    pub(super) fn pause(&mut self) {
        self.results.pause();
    }

    /// Sends all results to a new master, and an answer for each operation that the master awaits in vain.
    pub(super) fn resume(&mut self, step: &mut Step<'_>, unknown: Vec<pb::Uuid>) {
        for uuid in self.results.resume(step.now.moment) {
            self.send_result(step, &uuid);
        }
        for uuid in unknown {
            self.answer_unknown(step, uuid);
        }
    }

    /// Carries out an operation and reports the result. `used` returns the resources in use.
    pub(super) fn apply(
        &mut self,
        step: &mut Step<'_>,
        apply: wire::ApplyOperation,
        used: impl FnOnce() -> Resources,
    ) {
        let Some(uuid) = uuid_of(&apply.operation_uuid) else {
            warn!("dropped an operation with an invalid uuid");
            return;
        };
        if self.results.get(&uuid).is_some() {
            self.send_result(step, &uuid);
            return;
        }
        let done = if self.results.len() >= UNACKNOWLEDGED_OPERATIONS_MAX {
            Err(OperationFailure::Dropped(format!(
                "{UNACKNOWLEDGED_OPERATIONS_MAX} operations wait for their acknowledgement"
            )))
        } else if self.results.bytes() >= step.options.operations_bytes_max {
            // A single checkpoint holds all of them.
            Err(OperationFailure::Dropped(format!(
                "operations of {} bytes wait for their acknowledgement: raise the agent's --memory_budget",
                step.options.operations_bytes_max
            )))
        } else {
            self.carry_out(&apply.operation, used)
        };
        let name = apply.operation.r#type().as_str_name();
        let uuid_text = uuid::Uuid::from_bytes(uuid);
        match done {
            Ok((operation, produced)) => {
                info!(operation = name, uuid = %uuid_text, resources = %produced, "operation done");
                let mut status = operation_status(step, OperationState::OperationFinished);
                status.operation_id.clone_from(&apply.operation.id);
                status.converted_resources =
                    convert::to_resources(&produced, Format::PostRefinement).unwrap_or_default();
                let message = operation_message(apply, status);
                let tell = self
                    .results
                    .push(step.now.moment, uuid, Arc::new(message), true);
                let created = operation.created().to_vec();
                let destroyed = operation.destroyed().to_vec();
                self.persist_holdings(step, created, destroyed);
                if tell {
                    self.send_result(step, &uuid);
                }
            }
            Err(not_done) => {
                let (state, reason) = match not_done {
                    OperationFailure::Failed(reason) => (OperationState::OperationFailed, reason),
                    OperationFailure::Dropped(reason) => (OperationState::OperationDropped, reason),
                };
                error!(operation = name, uuid = %uuid_text, ?state, reason, "operation not done");
                let mut status = operation_status(step, state);
                status.operation_id.clone_from(&apply.operation.id);
                status.message = Some(reason);
                let message = operation_message(apply, status);
                if self
                    .results
                    .push(step.now.moment, uuid, Arc::new(message), false)
                {
                    self.send_result(step, &uuid);
                }
            }
        }
    }

    /// Applies an operation to the total. After a failure the total is unchanged.
    fn carry_out(
        &mut self,
        message: &pb::offer::Operation,
        used: impl FnOnce() -> Resources,
    ) -> Result<(Operation, Resources), OperationFailure> {
        let operation = convert::operation(message).map_err(|error| error.to_string())?;
        let operation = operation.unallocate();
        for volume in operation.created() {
            check_place(volume).map_err(|why| OperationFailure::Failed(why.into()))?;
        }
        let used = used().unallocate();
        if let Some(volume) = operation
            .destroyed()
            .iter()
            .find(|volume| used.contains_resource(volume))
        {
            return Err(OperationFailure::Dropped(format!("{volume} is in use")));
        }
        let conversions = operation.conversions().map_err(|error| error.to_string())?;
        let change = Change::from_conversions(&conversions, &self.total)
            .map_err(|error| error.to_string())?;
        let made_of =
            |part: &Resources| part.iter().map(Resource::configured).collect::<Resources>();
        let (before, after) = (made_of(change.before()), made_of(change.after()));
        if before != after {
            return Err(OperationFailure::Dropped(format!(
                "this would be made of {} instead of {}, which the agent's own --resources give",
                after.excerpt(),
                before.excerpt()
            )));
        }
        change.apply_to(&mut self.total);
        let produced = conversions.iter().map(|step| step.produced()).sum();
        Ok((operation, produced))
    }

    /// Makes the agent's holdings and unacknowledged operations durable.
    fn persist_holdings(
        &mut self,
        step: &mut Step<'_>,
        created: Vec<Resource>,
        destroyed: Vec<Resource>,
    ) {
        let holdings = Arc::new(Holdings {
            resources: self.total.to_checkpoint() + &self.set_aside,
            operations: self.results.kept(),
        });
        let operations = holdings.operations.clone();
        step.persist(Write::Resources {
            holdings,
            created,
            destroyed,
        });
        self.durable
            .follow((step.lsn(), self.total.clone(), operations));
    }

    fn send_result(&mut self, step: &mut Step<'_>, uuid: &OperationUuid) {
        let Some(operation) = self.results.get(uuid) else {
            return debug_assert!(false, "only stored results are sent");
        };
        let update = wire::OperationUpdate {
            framework_id: operation.framework_id.clone(),
            status: operation.latest_status.clone(),
            operation_uuid: operation.uuid.clone(),
        };
        step.send(ToMaster::OperationUpdate(update));
    }

    /// Removes an acknowledged result.
    pub(super) fn acknowledge(
        &mut self,
        step: &mut Step<'_>,
        message: &wire::AcknowledgeOperation,
    ) {
        let uuid = uuid_of(&message.operation_uuid);
        let kept = uuid.and_then(|uuid| self.results.acknowledge(&uuid, &message.status_uuid));
        match kept {
            Some(true) => self.persist_holdings(step, Vec::new(), Vec::new()),
            Some(false) => {}
            None => warn!("ignored an acknowledgement of an operation's status"),
        }
    }

    /// Answers for an operation from the master that never arrived: it was not carried out.
    fn answer_unknown(&mut self, step: &mut Step<'_>, uuid: pb::Uuid) {
        let Some(key) = uuid_of(&uuid) else { return };
        if self.results.get(&key).is_some() {
            return;
        }
        let mut status = operation_status(step, OperationState::OperationDropped);
        status.message = Some("Reconciliation: the operation is unknown to the agent".to_owned());
        let message = pb::Operation {
            latest_status: status.clone(),
            statuses: vec![status],
            uuid,
            ..pb::Operation::default()
        };
        if self
            .results
            .push(step.now.moment, key, Arc::new(message), false)
        {
            self.send_result(step, &key);
        }
    }

    /// Restores the checkpointed holdings.
    pub(super) fn recover(&mut self, step: &mut Step<'_>, record: ResourcesRecord) {
        let checkpointed = match convert::resources(&record.resources) {
            Ok(checkpointed) => checkpointed,
            Err(error) => {
                error!(%error, "the checkpointed reservations make no sense");
                step.counters.recovery_errors += 1;
                return;
            }
        };
        let (total, others) = step.options.resources.with_fitting(&checkpointed);
        self.durable.resources.clone_from(&total);
        self.total = total;
        if !others.is_empty() {
            error!(
                resources = %others,
                "checkpointed reservations or volumes are not made of what --resources gives; they are \
                 set aside, with their data, until it does"
            );
            step.counters.recovery_errors += 1;
        }
        self.set_aside = others;
        for operation in record.operations {
            if let Some(uuid) = uuid_of(&operation.uuid) {
                self.results
                    .push(step.now.moment, uuid, Arc::new(operation), true);
            }
        }
        self.durable.operations = self.results.kept();
        if !checkpointed.is_empty() {
            info!(resources = %checkpointed, "recovered reservations and volumes");
        }
    }

    /// A resource of a task that is missing here although this agent should have made it.
    pub(super) fn unknown_resource<'a>(&self, resources: &'a Resources) -> Option<&'a Resource> {
        resources
            .iter()
            .filter(|resource| resource.needs_checkpoint())
            .find(|resource| {
                let bare = (*resource).clone().with_allocation(None);
                !self.total.contains_resource(&bare)
            })
    }
}

fn operation_status(step: &mut Step<'_>, state: OperationState) -> pb::OperationStatus {
    pb::OperationStatus {
        state: state.into(),
        uuid: Some(pb::Uuid {
            value: step.new_uuid().into_bytes().to_vec(),
        }),
        agent_id: step.agent_id_message(),
        ..pb::OperationStatus::default()
    }
}

fn operation_message(apply: wire::ApplyOperation, status: pb::OperationStatus) -> pb::Operation {
    pb::Operation {
        framework_id: apply.framework_id,
        agent_id: status.agent_id.clone(),
        info: apply.operation,
        statuses: vec![status.clone()],
        latest_status: status,
        uuid: apply.operation_uuid,
    }
}

fn uuid_of(message: &pb::Uuid) -> Option<OperationUuid> {
    message.value.as_slice().try_into().ok()
}
