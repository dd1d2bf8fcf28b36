//! Subscriptions, calls, ownership of ids, and the end of frameworks.
//!
//! - `calls`: the calls of a subscribed scheduler
//! - `ownership`: the owners of framework ids
//! - `subscribe`: subscriptions: new, repeated, or in place of another scheduler
//! - `teardown`: the end of a framework

pub(super) mod calls;
pub(super) mod ownership;
pub(super) mod subscribe;
pub(super) mod teardown;
