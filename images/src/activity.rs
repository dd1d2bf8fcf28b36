//! The visible activity of a download: bytes, and the reason of a wait.
//!
//! Threads of a pull write to an [`Activity`]; readers take a copy at any time. Invariant: no method blocks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Characters of the reason of a wait.
const REASON_CHARS_MAX: usize = 300;

/// The progress of one download.
#[derive(Debug, Default)]
pub struct Activity {
    received: AtomicU64,
    wait: Mutex<Option<String>>,
}

impl Activity {
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that arrived so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// The reason why the download waits, for example "the registry asks to wait for 30 s".
    pub fn wait_reason(&self) -> Option<String> {
        self.wait
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn record_bytes(&self, count: u64) {
        self.received.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn set_wait(&self, reason: Option<String>) {
        let reason = reason.map(|reason| reason.chars().take(REASON_CHARS_MAX).collect());
        *self.wait.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }
}
