//! A leader's role while it acts: by its fence, and by the state of the writer.

use tokio::sync::watch;

use super::Writing;
use crate::leadership::{Fence, Role, tell};

/// Updates the role until the writer ends for good; returns the reason.
pub async fn keep_role(
    role: &watch::Sender<Role>,
    fence: &Fence,
    mut writing: watch::Receiver<Writing>,
) -> String {
    loop {
        let is_open = fence.is_open();
        let new = match &*writing.borrow_and_update() {
            Writing::Ended(reason) => return reason.clone(),
            _ if !is_open => Role::fenced(),
            Writing::Stalled(reason) => suspended(reason),
            Writing::Works => Role::Leading,
        };
        if tell(role, new) {
            tracing::info!(role = role.borrow().name(), "role changed");
        }
        let fence_turned = async {
            if is_open {
                fence.ended().await;
            } else {
                fence.opened().await;
            }
        };
        let writing_changed = async {
            // A writer that has finished ends before the core does.
            if writing.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = fence_turned => {}
            () = writing_changed => {}
        }
    }
}

fn suspended(reason: &str) -> Role {
    Role::Suspended {
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::leadership::fence::BootTime;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn role_follows_fence_and_writer() {
        let fence = Fence::closed_by(BootTime::of_runtime);
        let (written, writing) = watch::channel(Writing::default());
        let role = watch::Sender::new(Role::Recovering);
        let mut told = role.subscribe();
        let keeping = tokio::spawn({
            let fence = fence.clone();
            async move { keep_role(&role, &fence, writing).await }
        });
        let begun = Instant::now();
        let lease = suspended("failed to renew its lease in etcd");
        let mut next = async |expected: Role| {
            let changed = tokio::time::timeout(SECOND * 60, told.changed()).await;
            changed.expect("the role changes").expect("it is kept");
            assert_eq!(*told.borrow_and_update(), expected);
        };
        next(lease.clone()).await;
        fence.extend(BootTime::of_runtime().after(8 * SECOND));
        next(Role::Leading).await;
        written.send_replace(Writing::Stalled("no space".to_owned()));
        next(suspended("no space")).await;
        written.send_replace(Writing::Works);
        next(Role::Leading).await;
        assert_eq!(begun.elapsed(), Duration::ZERO, "without waiting");
        next(lease.clone()).await;
        let open_for = begun.elapsed();
        assert!(
            open_for >= 8 * SECOND && open_for < 8 * SECOND + SECOND / 10,
            "{open_for:?}"
        );
        fence.extend(BootTime::of_runtime().after(8 * SECOND));
        next(Role::Leading).await;
        written.send_replace(Writing::Ended("another leads".to_owned()));
        assert_eq!(keeping.await.unwrap(), "another leads");
    }

    #[tokio::test(start_paused = true)]
    async fn finished_writer_keeps_the_role() {
        let fence = Fence::never();
        let (written, writing) = watch::channel(Writing::default());
        let role = watch::Sender::new(Role::Recovering);
        drop(written);
        let keeping = keep_role(&role, &fence, writing);
        let ended = tokio::time::timeout(SECOND * 60, keeping).await;
        assert!(ended.is_err());
        assert_eq!(*role.borrow(), Role::Leading);
    }
}
