//! The disk of one agent that answers nothing for a while, as on a frozen file system, when all else is well.
//!
//! Entered through [`Cluster::check_silent_disk`]. The checks that follow at rest say whether anything was lost.

use meseta_agent::checkpoint::DiskCondition;

use crate::checks::{Broken, Violation};
use crate::cluster::Cluster;
use crate::framework::kill;
use crate::rest::KILL_SPANS;

/// Spans until the master knows of the disk: two pings pass, and a broken connection is made again.
const NOTICE_SPANS: usize = 3;
/// Spans until the agent stops answering its master, which marks it unreachable.
const ABSENCE_SPANS: usize = 30;

impl Cluster {
    /// Checks that nothing is offered of an agent whose disk does not answer, and that its tasks can be killed.
    pub(crate) fn check_silent_disk(&mut self) -> Result<(), Violation> {
        let at = self.rng.usize(..self.agents.len());
        if !self.agents[at].is_up() {
            return Ok(());
        }
        self.told("silent disk", at as u64);
        self.agents[at].disk.condition = DiskCondition::Silent;
        self.tell_disk(at);
        if self.rng.u32(..3) == 0 {
            for connection in self.network.connections.values_mut() {
                connection.cut(&mut self.rng);
            }
        }
        for _ in 0..NOTICE_SPANS {
            self.pass()?;
        }
        self.check_nothing_offered(at)?;
        self.is_calm = true;
        self.kill_all();
        for _ in 0..KILL_SPANS {
            self.pass()?;
        }
        self.drain_queues()?;
        self.is_calm = false;
        if let Some((rule, what)) = self.unheard_kill() {
            let what = format!("{what}, beside the silent disk of agent {at}");
            return Err(self.violation(Broken::new(rule, what)));
        }
        self.check_nothing_offered(at)?;
        if self.rng.bool() {
            for _ in 0..ABSENCE_SPANS {
                self.pass()?;
            }
        }
        self.agents[at].disk.end_silence();
        if self.agents[at].is_up() {
            self.tell_disk(at);
        }
        self.check()
    }

    fn check_nothing_offered(&mut self, at: usize) -> Result<(), Violation> {
        let id = self.agents[at].core.snapshot().agent_id.clone();
        let leader = self.leader();
        let Some((id, master)) = id.zip(self.master(leader)) else {
            return Ok(());
        };
        let snapshot = master.core.snapshot();
        let mut offers = snapshot.offers.iter();
        let Some(offer) = offers.find(|offer| offer.agent_id == id) else {
            return Ok(());
        };
        let what = format!(
            "offer {} of agent {at}, whose disk has been silent for long",
            offer.id
        );
        Err(self.violation(Broken::new("I17", what)))
    }

    /// Frameworks kill what they take to live.
    fn kill_all(&mut self) {
        for at in (0..self.frameworks.len())
            .filter(|at| self.is_served(*at))
            .collect::<Vec<_>>()
        {
            let framework = &self.frameworks[at];
            let Some(stream) = framework.stream.filter(|_| framework.is_subscribed()) else {
                continue;
            };
            let open = framework.tasks.iter().filter(|(_, task)| !task.is_over());
            let open: Vec<_> = open.map(|(id, _)| id.clone()).collect();
            for id in open {
                self.make_call(at, stream, kill(&id));
            }
        }
    }
}
