//! Frameworks: streams and failover, whose ids are, and what they may do.

pub(super) mod authorization;
mod ownership;
pub(super) mod subscriptions;

use super::*;
