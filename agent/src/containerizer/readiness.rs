//! Waits without a thread for kernel descriptors to become readable.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::task::Poll;

use meseta_isolators::LimitEvent;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A [`LimitEvent`] that the runtime watches.
#[derive(Debug)]
pub(crate) struct RegisteredEvent {
    event: AsyncFd<LimitEvent>,
    interest: Interest,
}

impl RegisteredEvent {
    pub(crate) fn new(event: LimitEvent) -> io::Result<Self> {
        let interest = match event.is_priority() {
            true => Interest::PRIORITY,
            false => Interest::READABLE,
        };
        let event = watch(event, interest)?;
        Ok(Self { event, interest })
    }

    /// Waits for the event and takes it. Continues to wait if the event was taken after the runtime noted it.
    async fn next(&self) -> io::Result<()> {
        loop {
            let mut ready = self.event.ready(self.interest).await?;
            if self.interest.is_priority() {
                // Cleared before the event is taken: a later event is then noted again.
                ready.clear_ready();
                return self.event.get_ref().take();
            }
            if let Ok(taken) = ready.try_io(|event| event.get_ref().take()) {
                return taken;
            }
        }
    }
}

/// Waits for one of the events and takes it from the kernel, so that the kernel can report the event again.
pub(crate) async fn any_event(events: &[RegisteredEvent]) -> io::Result<()> {
    let mut waits: Vec<_> = events.iter().map(|one| Box::pin(one.next())).collect();
    std::future::poll_fn(|context| {
        let mut polled = waits.iter_mut().map(|wait| wait.as_mut().poll(context));
        polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}

pub(crate) fn register(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register_for(descriptor, Interest::READABLE)
}

pub(crate) fn register_for(
    descriptor: OwnedFd,
    interest: Interest,
) -> io::Result<AsyncFd<OwnedFd>> {
    watch(descriptor, interest)
}

#[expect(
    unsafe_code,
    reason = "tokio has no safe way to wait for a descriptor of another kind"
)]
fn watch<T: AsRawFd + AsFd>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: both types passed here own one open descriptor for as long as they live, and are moved in.
    let registered = unsafe { AsyncFd::register_with_interest(owner, interest) }?;
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

    /// Regression: the runtime noted the event before the test read the previous event, and with it this event.
    #[tokio::test]
    async fn consumed_event_keeps_the_watch() {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor = eventfd(0, flags).expect("made");
        let other = descriptor.try_clone().expect("a copy");
        let tell = || rustix::io::write(&other, &1_u64.to_ne_bytes()).expect("told");
        let event = LimitEvent::Count(descriptor);
        let events = [RegisteredEvent::new(event).expect("registered")];
        tell();
        drop(events[0].event.readable().await.expect("noted"));
        rustix::io::read(&other, &mut [0; 8]).expect("taken");
        let mut waiting = std::pin::pin!(any_event(&events));
        let is_pending = std::future::poll_fn(|context| {
            Poll::Ready(waiting.as_mut().poll(context).is_pending())
        });
        assert!(is_pending.await);
        tell();
        waiting.await.expect("told again");
    }

    /// Returns whether an event is reported now.
    async fn is_reported(events: &[RegisteredEvent]) -> bool {
        let wait = any_event(events);
        let long = std::time::Duration::from_secs(10);
        tokio::time::timeout(long, wait).await.is_ok()
    }

    /// A group of cgroup v2 for the test; `None` without root or without v2.
    fn v2_group() -> Option<std::path::PathBuf> {
        let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
        let mut mounts = mounts.lines().map(|line| line.split(' '));
        let mount = mounts.find_map(|mut fields| {
            let dir = fields.nth(1)?;
            (fields.next()? == "cgroup2").then_some(dir)
        })?;
        let name = format!("meseta-test-events-{}", std::process::id());
        let group = std::path::Path::new(mount).join(name);
        std::fs::create_dir(&group).ok()?;
        Some(group)
    }

    /// `cgroup.events` reports changes as `memory.events` does, and exists beside version 1 too.
    #[tokio::test]
    #[expect(clippy::print_stdout, reason = "a test that is not run says why")]
    async fn file_of_v2_reports_each_change() {
        let Some(group) = v2_group() else {
            println!("not run: no cgroup v2 tree in which this user may make a group");
            return;
        };
        let file = std::fs::File::open(group.join("cgroup.events")).expect("opened");
        let event = LimitEvent::File(file);
        event.take().expect("read");
        let events = [RegisteredEvent::new(event).expect("registered")];
        let mut reported = Vec::new();
        for value in ["1", "0", "1"] {
            let mut waiting = std::pin::pin!(any_event(&events));
            let is_pending = std::future::poll_fn(|context| {
                Poll::Ready(waiting.as_mut().poll(context).is_pending())
            });
            let is_quiet = is_pending.await;
            std::fs::write(group.join("cgroup.freeze"), value).expect("written");
            reported.push((is_quiet, is_reported(&events).await));
        }
        std::fs::remove_dir(&group).expect("removed");
        assert_eq!(reported, [(true, true); 3]);
    }
}
