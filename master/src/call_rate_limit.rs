//! The rate limit of framework calls.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use meseta_access::rate_limits::{Limiter, RateLimits};
use meseta_daemon::authentication::Caller;
use tokio::time::Instant;

use crate::handle::Handle;

/// The rate limit of framework calls: `--rate_limits`.
#[derive(Debug, Default)]
pub(crate) struct CallRateLimit(Option<Limits>);

#[derive(Debug)]
struct Limits {
    limiter: Mutex<Limiter>,
    begin: Instant,
}

impl CallRateLimit {
    pub(crate) fn new(limits: Option<&RateLimits>) -> Self {
        Self(limits.map(|limits| Limits {
            limiter: Mutex::new(Limiter::new(limits)),
            begin: Instant::now(),
        }))
    }

    /// Takes one call of a framework, or returns the time until the next. The framework is identified by its proven
    /// principal or, without authentication, by the given one.
    pub(crate) async fn take(
        &self,
        handle: &Handle,
        framework_id: &str,
        caller: &Caller,
    ) -> Result<(), Duration> {
        let Some(limits) = &self.0 else {
            return Ok(());
        };
        let principal = match caller.owned_principal() {
            Some(principal) => Some(principal),
            None => handle.principal_of(framework_id).await.unwrap_or_default(),
        };
        let now = limits.begin.elapsed();
        let mut limiter = limits
            .limiter
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        limiter.take(principal.as_deref(), now)
    }
}
