//! Leadership: the leading daemon, and the time for which this daemon may act as the leader.
//!
//! - [`standing`]: the present rights of this daemon, for code that answers requests;
//! - [`role`]: the present role of a daemon, which the servers watch;
//! - [`fence`]: the deadline of every answer, by a clock that runs on while the machine sleeps;
//! - [`election`]: becoming and staying the leader by a lease and a key in etcd;
//! - [`proven`]: proof that the leader named by etcd is a leader, for code that sends clients to it;
//! - [`presence`]: the list of daemons, for people;
//! - [`failures`]: the logging of calls to etcd that fail again and again.

pub mod election;
pub mod failures;
pub mod fence;
pub mod presence;
pub mod proven;
pub mod role;
pub mod standing;

use tokio::sync::watch;

pub use fence::Fence;
pub use proven::{ProvenLeader, required_proof};
pub use role::{Leader, Role};
pub use standing::{Elsewhere, STALE_HEADER, Standing};

/// Sends a value to its watchers if it differs from the last one; returns whether it does.
pub fn tell<T: PartialEq>(told: &watch::Sender<T>, new: T) -> bool {
    told.send_if_modified(|told| {
        let is_new = *told != new;
        *told = new;
        is_new
    })
}
