//! Values of files that an operator may change while the daemon runs.
//!
//! [`Reloaded::get`] returns them. Invariant: an unusable value never replaces a usable one.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use meseta_daemon::flag_error::FlagError;

type Read<T> = dyn Fn() -> Result<T, FlagError> + Send + Sync;

/// A value that is read at each use. Clones share it.
#[derive(Clone)]
pub struct Reloaded<T> {
    read: Arc<Read<T>>,
    /// The last usable value.
    last: Arc<Mutex<T>>,
}

impl<T> fmt::Debug for Reloaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloaded").finish_non_exhaustive()
    }
}

impl<T: Clone> Reloaded<T> {
    /// Reads the value for the first time.
    pub fn new(
        read: impl Fn() -> Result<T, FlagError> + Send + Sync + 'static,
    ) -> Result<Self, FlagError> {
        let first = read()?;
        Ok(Self {
            read: Arc::new(read),
            last: Arc::new(Mutex::new(first)),
        })
    }

    /// Returns the current value, or the last usable value while the current one is unusable.
    #[must_use]
    pub fn get(&self) -> T {
        let read = (self.read)();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(now) => *last = now,
            Err(error) => tracing::warn!(%error, "using the previous contents"),
        }
        last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_file_keeps_the_old_value() {
        let file = Arc::new(Mutex::new(Ok(1)));
        let given = file.clone();
        let read = move || {
            let found = *given.lock().unwrap();
            found.map_err(|reason: &str| FlagError::new("file", "/path", reason))
        };
        let value = Reloaded::new(read.clone()).unwrap();
        for (now, expected) in [(Ok(2), 2), (Err("broken"), 2), (Ok(3), 3)] {
            *file.lock().unwrap() = now;
            assert_eq!(value.get(), expected);
        }
        *file.lock().unwrap() = Err("broken");
        let refused = Reloaded::new(read).unwrap_err();
        assert_eq!(refused.to_string(), "--file=/path: broken");
    }
}
