//! How frameworks come, what they call, to whom their ids belong, and how they end.
//!
//! - `calls`: the calls of a subscribed scheduler
//! - `deadlines`: until when frameworks may be away
//! - `ownership`: to whom framework ids belong
//! - `subscribe`: subscriptions: new, again, in another's place
//! - `teardown`: the end of a framework

pub(super) mod calls;
pub(super) mod deadlines;
pub(super) mod ownership;
pub(super) mod subscribe;
pub(super) mod teardown;
