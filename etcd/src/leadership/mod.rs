//! Which daemon leads, and how long this one may act as the leader.
//!
//! - [`standing`]: what it may do at the moment, for those who answer requests;
//! - [`role`]: what a daemon is at the moment, which the servers watch;
//! - [`fence`]: until when it may show anything, by a clock that runs on while the machine sleeps;
//! - [`election`]: becoming and staying the leader by a lease and a key in etcd;
//! - [`proven`]: whether the leader that etcd names is one, for those who send clients to it;
//! - [`presence`]: which daemons there are, for people;
//! - [`failures`]: what is logged of calls to etcd that fail again and again.

pub mod election;
pub mod failures;
pub mod fence;
pub mod presence;
pub mod proven;
pub mod role;
pub mod standing;

use tokio::sync::watch;

pub use fence::Fence;
pub use proven::ProvenLeader;
pub use role::{Leader, Role};
pub use standing::{Elsewhere, STALE_HEADER, Standing};

/// Tells those who watch a value, if it is another one; says whether it is.
pub fn tell<T: PartialEq>(told: &watch::Sender<T>, new: T) -> bool {
    told.send_if_modified(|told| {
        let is_new = *told != new;
        *told = new;
        is_new
    })
}
