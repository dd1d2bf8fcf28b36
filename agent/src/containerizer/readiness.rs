//! Descriptors of the kernel's that become readable, waited for without a thread.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

use rustix::io::retry_on_intr;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits for one of the descriptors and takes what it has to say, so that it can speak again. One that has nothing to say,
/// although it was readable when it was looked at last, is waited for again.
pub(crate) async fn any_event(events: &[AsyncFd<OwnedFd>]) -> io::Result<()> {
    std::future::poll_fn(|context| {
        for event in events {
            if let Poll::Ready(taken) = poll_event(event, context) {
                return Poll::Ready(taken);
            }
        }
        Poll::Pending
    })
    .await
}

fn poll_event(event: &AsyncFd<OwnedFd>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
    let mut text = [0; 4096];
    loop {
        let mut ready = match event.poll_read_ready(context) {
            Poll::Ready(ready) => ready?,
            Poll::Pending => return Poll::Pending,
        };
        let mut read = || retry_on_intr(|| rustix::io::read(event.get_ref(), &mut text));
        // Says by an error that there is nothing, and is not ready then any more.
        if let Ok(taken) = ready.try_io(|_| Ok(read()?)) {
            return Poll::Ready(taken.map(drop));
        }
    }
}

pub(crate) fn register(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register_for(descriptor, Interest::READABLE)
}

#[expect(
    unsafe_code,
    reason = "tokio has no safe way to wait for a descriptor of another kind"
)]
pub(crate) fn register_for(
    descriptor: OwnedFd,
    interest: Interest,
) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names one open descriptor for as long as it lives, and it is moved in.
    let registered = unsafe { AsyncFd::register_with_interest(descriptor, interest) }?;
    Ok(registered)
}

pub(crate) async fn readable(pidfd: OwnedFd) -> io::Result<()> {
    let _ = register(pidfd)?.readable().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// The event was noted before the one before it was read, and with it this one.
    #[tokio::test]
    async fn an_event_that_was_taken_already_is_no_end_of_the_events() {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor = eventfd(0, flags).expect("made");
        let other = descriptor.try_clone().expect("a copy");
        let tell = || rustix::io::write(&other, &1_u64.to_ne_bytes()).expect("told");
        let events = [register(descriptor).expect("registered")];
        tell();
        drop(events[0].readable().await.expect("noted"));
        rustix::io::read(&other, &mut [0; 8]).expect("taken");
        let mut waiting = std::pin::pin!(any_event(&events));
        let is_pending = std::future::poll_fn(|context| {
            Poll::Ready(waiting.as_mut().poll(context).is_pending())
        });
        assert!(is_pending.await);
        tell();
        waiting.await.expect("told again");
    }
}
