//! Which master leads, and how long this one may act as the leader.
//!
//! - [`role`]: what a master is at the moment, which the servers watch;
//! - [`fence`]: until when it may show anything, by a clock that runs on while the machine sleeps;
//! - [`election`]: becoming and staying the leader by a lease and a key in etcd;
//! - [`presence`]: which masters there are, for people;
//! - [`failures`]: what is logged of calls to etcd that fail again and again.

pub(crate) mod election;
pub(crate) mod failures;
pub(crate) mod fence;
pub(crate) mod presence;
pub(crate) mod role;

use tokio::sync::watch;

pub(crate) use fence::Fence;
pub(crate) use role::{Leader, Role};

/// Tells those who watch a value, if it is another one; says whether it is.
pub(crate) fn tell<T: PartialEq>(told: &watch::Sender<T>, new: T) -> bool {
    told.send_if_modified(|told| {
        let is_new = *told != new;
        *told = new;
        is_new
    })
}
