//! The execution of transactions, in order, each until it is confirmed.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::plan::{Operation, Planner, Transaction};
use super::{Keys, OnDurable, StoreError, Write, Writing};
use crate::api::{RequestOp, ResponseOp, TxnRequest, response_op};
use crate::leadership::failures::Failures;
use crate::leadership::{Fence, tell};
use crate::{Client, Error, operation};

/// The number of changes planned at once, so that a long queue still reports progress.
const BATCH_MAX: usize = 1_024;

/// The first and the longest pause between two attempts of a transaction.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The time without a success after which the writer reports a stall.
const STALLED_AFTER: Duration = Duration::from_secs(5);

/// The task that writes changes.
pub(crate) struct Writer<C> {
    pub(crate) client: Client,
    pub(crate) keys: Keys,
    /// The revision at which this leader's key was created.
    pub(crate) leader_created: i64,
    pub(crate) fence: Fence,
    pub(crate) planner: Planner,
    pub(crate) waiting: mpsc::UnboundedReceiver<(u64, C)>,
    /// The records that a change touches.
    pub(crate) writes: fn(&C) -> Vec<Write>,
    pub(crate) told: watch::Sender<Writing>,
}

impl<C> Writer<C> {
    /// Ends when the queue is closed and empty, or when writing has failed for good.
    pub(crate) async fn run(mut self, unfinished: Vec<Transaction>, on_durable: OnDurable) {
        if let Err(error) = self.write_all(unfinished, on_durable).await {
            tracing::error!(%error, "etcd takes no more changes");
            let _former = self.told.send_replace(Writing::Ended(error.to_string()));
        }
    }

    /// Finishes the unfinished transactions, then writes queued changes until the queue is closed.
    pub(crate) async fn write_all(
        &mut self,
        unfinished: Vec<Transaction>,
        on_durable: OnDurable,
    ) -> Result<(), StoreError> {
        for transaction in &unfinished {
            self.commit(transaction).await?;
        }
        let mut batch = Vec::new();
        while self.waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let changes = batch.drain(..);
            let writes = changes.map(|(number, change)| (number, (self.writes)(&change)));
            for transaction in self.planner.plan(writes.collect()) {
                self.commit(&transaction).await?;
                if let Some(number) = transaction.durable {
                    on_durable(number);
                }
            }
        }
        Ok(())
    }

    /// Sends a transaction until it is confirmed. The number in etcd shows that an earlier attempt succeeded: only this leader
    /// could have written it.
    async fn commit(&mut self, transaction: &Transaction) -> Result<(), StoreError> {
        let request = self.request(transaction);
        let begun = Instant::now();
        let mut pause = RETRY.0;
        let mut failures = Failures::default();
        loop {
            self.until_open(begun).await;
            match self.client.txn(request.clone()).await {
                Ok(answer) if answer.succeeded => break,
                Ok(answer) => {
                    self.check_done(answer.responses, transaction)?;
                    break;
                }
                Err(error) if error.is_passing() => self.passing(&error, begun, &mut failures),
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(pause).await;
            pause = RETRY.1.min(pause * 2);
        }
        self.tell(Writing::Works);
        Ok(())
    }

    fn request(&self, transaction: &Transaction) -> TxnRequest {
        let before = transaction.sequence - 1;
        let mut success: Vec<_> = transaction.operations.iter().map(request_op).collect();
        let number = transaction.sequence.to_string();
        success.push(operation::put(self.keys.sequence(), number));
        TxnRequest {
            compare: vec![
                operation::created_at(self.keys.leader(), self.leader_created),
                operation::has_value(self.keys.sequence(), before.to_string()),
            ],
            success,
            failure: vec![
                operation::get(self.keys.leader()),
                operation::get(self.keys.sequence()),
            ],
        }
    }

    /// Checks by the present values that an earlier attempt, whose answer was lost, did the transaction.
    fn check_done(
        &self,
        responses: Vec<ResponseOp>,
        transaction: &Transaction,
    ) -> Result<(), StoreError> {
        let mut values = responses
            .into_iter()
            .map(|response| match response.response {
                Some(response_op::Response::ResponseRange(range)) => range.kvs.into_iter().next(),
                _ => None,
            });
        let (leader, sequence) = (values.next().flatten(), values.next().flatten());
        if leader.is_none_or(|leader| leader.create_revision != self.leader_created) {
            return Err(StoreError::LeadershipLost);
        }
        let number = transaction.sequence.to_string();
        if sequence.is_some_and(|found| found.value == number.as_bytes()) {
            return Ok(());
        }
        Err(StoreError::Interfered)
    }

    /// Waits while this leader may not act.
    async fn until_open(&self, begun: Instant) {
        let stalled = tokio::time::sleep_until(begun + STALLED_AFTER);
        tokio::select! {
            biased;
            () = self.fence.opened() => return,
            () = stalled => {}
        }
        self.tell(Writing::Stalled("its lease is not renewed".to_owned()));
        self.fence.opened().await;
    }

    fn passing(&self, error: &Error, begun: Instant, failures: &mut Failures) {
        if failures.is_worth_a_line(error, Instant::now()) {
            tracing::warn!(%error, "failed to write to etcd; retrying");
        }
        if begun.elapsed() > STALLED_AFTER || *error == Error::OutOfSpace {
            self.tell(Writing::Stalled(error.to_string()));
        }
    }

    fn tell(&self, writing: Writing) {
        tell(&self.told, writing);
    }
}

fn request_op(of: &Operation) -> RequestOp {
    match of {
        Operation::Put { key, value } => operation::put(key.clone(), value.clone()),
        Operation::Delete { key } => operation::delete(key.clone()),
        Operation::DeletePrefix { prefix } => operation::delete_prefix(prefix),
    }
}
