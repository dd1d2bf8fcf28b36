//! The one thread that makes the core's writes durable.
//!
//! It takes all that has gathered, commits it at once and says how far it is. A disk that is full is
//! waited for; a disk that cannot say whether it holds what was written ends the process, because
//! nothing could be promised any more.

use std::io;
use std::time::Duration;

use meseta_daemon::error_chain::chain;
use tokio::sync::{mpsc, watch};
use tracing::error;

use super::{Lsn, Store, StoreError, Write};

/// Writes committed at once, so that a long queue does not hold the first one up.
const BATCH_MAX: usize = 512;
/// Pause before a write that failed for want of space is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Writer {
    /// Bounded by whoever writes, see [`super::pending_writes::PendingWrites`].
    queue: mpsc::UnboundedSender<(Lsn, Write)>,
    durable: watch::Receiver<Lsn>,
}

/// Starts the thread, which makes what the start found necessary durable before anything else.
pub(crate) fn start(store: Store, first: Vec<Write>) -> io::Result<Writer> {
    #[expect(
        clippy::disallowed_methods,
        reason = "bounded by whoever writes, who must not wait here: `PendingWrites`"
    )]
    let (queue, writes) = mpsc::unbounded_channel();
    let (done, durable) = watch::channel(Lsn::default());
    let first: Vec<_> = first
        .into_iter()
        .map(|write| (Lsn::default(), write))
        .collect();
    std::thread::Builder::new()
        .name("checkpoints".to_owned())
        .spawn(move || {
            commit(&store, &first);
            drop(first);
            run(&store, writes, &done);
        })?;
    Ok(Writer { queue, durable })
}

impl Writer {
    /// Hands a write over, waiting for nothing. `false` if the thread is gone.
    pub(crate) fn write(&self, lsn: Lsn, write: Write) -> bool {
        self.queue.send((lsn, write)).is_ok()
    }

    /// How far everything is durable.
    pub(crate) fn durable(&mut self) -> Lsn {
        *self.durable.borrow_and_update()
    }

    /// Waits until more is.
    pub(crate) async fn progress(&mut self) {
        if self.durable.changed().await.is_err() {
            // The thread is gone: nothing will ever be durable again.
            std::future::pending::<()>().await;
        }
    }
}

fn run(
    store: &Store,
    mut writes: mpsc::UnboundedReceiver<(Lsn, Write)>,
    done: &watch::Sender<Lsn>,
) {
    let mut batch = Vec::new();
    while let Some(first) = writes.blocking_recv() {
        batch.push(first);
        while batch.len() < BATCH_MAX
            && let Ok(next) = writes.try_recv()
        {
            batch.push(next);
        }
        commit(store, &batch);
        if let Some((lsn, _)) = batch.last() {
            done.send_replace(*lsn);
        }
        batch.clear();
    }
}

/// Commits, however long it takes; after a failure it goes on where it stopped.
fn commit(store: &Store, batch: &[(Lsn, Write)]) {
    let mut commit = store.begin(batch.iter().map(|(_, write)| write));
    loop {
        match commit.resume() {
            Ok(()) => return,
            Err(error @ StoreError::Sync { .. }) => {
                let source = chain(&error);
                error!(%source, "checkpoints cannot be made durable; ending at once, tasks go on");
                std::process::abort();
            }
            Err(error) => {
                let source = chain(&error);
                error!(%source, "checkpoints cannot be written; nothing new is done until they can");
                std::thread::sleep(RETRY_PAUSE);
            }
        }
    }
}
