//! The error in the value of a flag.

/// The error of an invalid flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("--{flag}={value}: {reason}")]
pub struct FlagError {
    pub flag: &'static str,
    pub value: String,
    pub reason: String,
}

impl FlagError {
    pub fn new(flag: &'static str, value: &str, reason: impl ToString) -> Self {
        Self {
            flag,
            value: value.to_owned(),
            reason: reason.to_string(),
        }
    }
}
