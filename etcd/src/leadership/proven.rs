//! The leader to which clients may be sent: any writer of etcd can name a leader, and a certificate proves it.
//!
//! The servers ask [`ProvenLeader`], while a task requests the certificate of each new leader. Invariant: where a proof is
//! required, no address counts before a handshake with it has succeeded for this very record in etcd.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use meseta_daemon::tls::{DaemonKind, Served, ServerProof};
use tokio::sync::watch;

use super::{Leader, Role, tell};

/// The pause between two attempts to prove a leader.
const PAUSE: Duration = Duration::from_secs(2);

/// The proof that daemons of a kind owe before clients are sent to them. A daemon that serves no TLS, or that lets anyone in
/// (`is_insecure`), requires none.
#[must_use]
pub fn required_proof(
    kind: DaemonKind,
    served: Option<&Arc<Served>>,
    is_insecure: bool,
) -> Option<ServerProof> {
    let served = served.filter(|_| !is_insecure)?.clone();
    Some(ServerProof { kind, served })
}

/// The proof of a leader, if one is required.
#[derive(Clone, Debug, Default)]
pub struct ProvenLeader(Option<watch::Receiver<Option<Leader>>>);

impl ProvenLeader {
    /// Accepts any leader: for daemons without TLS, which cannot prove anything.
    #[must_use]
    pub fn any() -> Self {
        Self::default()
    }

    /// A leader counts once it has given this proof, which a task of the runtime asks it for as long as there is a role. Without a
    /// proof any leader counts.
    #[must_use]
    pub fn by_certificate(proof: Option<ServerProof>, role: &watch::Receiver<Role>) -> Self {
        let Some(proof) = proof else {
            return Self::any();
        };
        let (sender, proven) = watch::channel(None);
        let role = role.clone();
        let judge = move |leader: Leader| {
            let proof = proof.clone();
            async move { proof.prove(&leader.address, &leader.hostname).await }
        };
        tokio::spawn(prove(judge, role, sender));
        Self(Some(proven))
    }

    pub(super) fn is(&self, leader: &Leader) -> bool {
        self.0
            .as_ref()
            .is_none_or(|proven| proven.borrow().as_ref() == Some(leader))
    }
}

/// Proves each leader that this daemon follows, for as long as there is a role.
async fn prove<F: Future<Output = Result<(), String>>>(
    judge: impl Fn(Leader) -> F,
    mut role: watch::Receiver<Role>,
    proven: watch::Sender<Option<Leader>>,
) {
    loop {
        let leader = match &*role.borrow_and_update() {
            Role::Following(leader) => leader.clone(),
            Role::Recovering | Role::Leading | Role::Suspended { .. } => None,
        };
        tell(&proven, None);
        let changed = tokio::select! {
            changed = role.changed() => changed,
            never = until_proven(&judge, leader, &proven) => match never {},
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Repeats the proof until it succeeds, and then waits.
async fn until_proven<F: Future<Output = Result<(), String>>>(
    judge: &impl Fn(Leader) -> F,
    leader: Option<Leader>,
    proven: &watch::Sender<Option<Leader>>,
) -> Infallible {
    if let Some(leader) = leader {
        let mut last = String::new();
        loop {
            match judge(leader.clone()).await {
                Ok(()) => break,
                Err(error) if error == last => {}
                Err(error) => {
                    tracing::warn!(
                        address = ?leader.address,
                        %error,
                        "the certificate of the leader in etcd does not prove its identity; not \
                         redirecting clients to it"
                    );
                    last = error;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        tell(proven, Some(leader));
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::{Elsewhere, Fence, Standing};
    use super::*;

    fn at(address: &str) -> Leader {
        Leader {
            address: address.to_owned(),
            ..Leader::default()
        }
    }

    /// Regression: a follower sent browsers and foreign clients to any address in etcd.
    #[tokio::test(start_paused = true)]
    async fn follower_redirects_to_proven_leader_only() {
        let good = Mutex::new(vec!["m1:5050"]);
        let judge = async |leader: Leader| {
            let is_good = good.lock().unwrap().contains(&leader.address.as_str());
            is_good.then_some(()).ok_or_else(|| "an agent's".to_owned())
        };
        let (role, told) = watch::channel(Role::Following(Some(at("m1:5050"))));
        let (sender, mut proven) = watch::channel(None);
        let standing = Standing {
            role: told.clone(),
            fence: Fence::closed(),
            proven: ProvenLeader(Some(proven.clone())),
        };
        assert_eq!(standing.elsewhere(), Some(Elsewhere::Unproven));
        assert_eq!(standing.leader("me:1"), None);
        let steps = async {
            proven.wait_for(Option::is_some).await.unwrap();
            let there = Elsewhere::Leader("m1:5050".to_owned());
            assert_eq!(standing.elsewhere(), Some(there));
            assert_eq!(standing.leader("me:1").as_deref(), Some("m1:5050"));
            // The next leader does not inherit the proof.
            role.send_replace(Role::Following(Some(at("node7:5051"))));
            assert_eq!(standing.elsewhere(), Some(Elsewhere::Unproven));
            tokio::time::sleep(10 * PAUSE).await;
            assert_eq!(standing.elsewhere(), Some(Elsewhere::Unproven));
            assert_eq!(standing.leader("me:1"), None);
            // Another start at the same address is not proven either.
            good.lock().unwrap().push("node7:5051");
            proven.wait_for(Option::is_some).await.unwrap();
            role.send_replace(Role::Following(Some(Leader {
                id: "2".to_owned(),
                ..at("node7:5051")
            })));
            assert_eq!(standing.elsewhere(), Some(Elsewhere::Unproven));
            role.send_replace(Role::Leading);
            drop(role);
        };
        tokio::join!(steps, prove(judge, told, sender));
    }
}
