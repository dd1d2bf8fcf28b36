//! SIGINT and SIGTERM end a suite regularly, so that it removes its files and groups.

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

/// Runs `act` at the first SIGINT or SIGTERM, on a thread of its own; child processes get both as usual.
pub fn on_interrupt(act: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (mut interrupts, mut ends) = {
        let _entered = runtime.enter();
        (
            signal(SignalKind::interrupt()).context("failed to listen for SIGINT")?,
            signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?,
        )
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupts.recv() => {}
                _ = ends.recv() => {}
            }
        });
        act();
    });
    Ok(())
}
