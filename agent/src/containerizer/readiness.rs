//! Descriptors of the kernel's that become readable, waited for without a thread.

use std::os::fd::OwnedFd;
use std::task::Poll;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits for one of the descriptors and takes what it has to say, so that it can speak again.
pub(crate) async fn any_event(events: &[AsyncFd<OwnedFd>]) -> std::io::Result<()> {
    std::future::poll_fn(|context| {
        for event in events {
            if let Poll::Ready(ready) = event.poll_read_ready(context) {
                let mut text = [0; 4096];
                let taken = ready.and_then(|mut ready| {
                    ready.clear_ready();
                    Ok(rustix::io::read(event.get_ref(), &mut text)?)
                });
                return Poll::Ready(taken.map(drop));
            }
        }
        Poll::Pending
    })
    .await
}

pub(crate) fn register(descriptor: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    register_for(descriptor, Interest::READABLE)
}

#[expect(
    unsafe_code,
    reason = "tokio has no safe way to wait for a descriptor of another kind"
)]
pub(crate) fn register_for(
    descriptor: OwnedFd,
    interest: Interest,
) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names one open descriptor for as long as it lives, and it is moved in.
    let registered = unsafe { AsyncFd::register_with_interest(descriptor, interest) }?;
    Ok(registered)
}

pub(crate) async fn readable(pidfd: OwnedFd) -> std::io::Result<()> {
    let _ = register(pidfd)?.readable().await?;
    Ok(())
}
