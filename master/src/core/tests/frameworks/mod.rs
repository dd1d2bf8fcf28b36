//! Frameworks: streams and failover, the owners of ids, and rights.

pub(super) mod authorization;
mod ownership;
pub(super) mod subscriptions;

use super::*;
