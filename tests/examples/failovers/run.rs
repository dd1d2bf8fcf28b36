//! The course of each fault: inject it, wait for a serving master, mend it, and wait until the cluster is whole.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use meseta_tests::dice::Dice;
use meseta_tests::{http, kernel};
use nix::sys::signal::Signal;

use crate::audit::{self, Recovery};
use crate::board::{Board, Term};
use crate::cluster::Cluster;
use crate::fault::Fault;
use crate::ledger::Ledger;
use crate::options::Options;
use crate::pulse::Pulse;
use crate::scheduler::Desk;

/// The longest time until the cluster is whole again.
const WHOLE_LIMIT: Duration = Duration::from_secs(120);
/// The longest wait for a serving master.
const SERVED_LIMIT: Duration = Duration::from_secs(60);
/// The pause between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// The time after an unnoticed fault for delayed effects.
const AFTERWARDS: Duration = Duration::from_secs(5);

/// The outcome of a fault.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) fault: Fault,
    /// The time until a change was acknowledged again.
    pub(crate) served: Option<Duration>,
    pub(crate) recovery: Recovery,
    /// A further remark about the fault.
    pub(crate) remark: String,
    pub(crate) wrong: Vec<String>,
}

pub(crate) struct Run<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) board: &'a Board,
    pub(crate) pulse: &'a Pulse,
    pub(crate) desk: &'a Desk,
    pub(crate) options: &'a Options,
    pub(crate) ledger: &'a Ledger,
    pub(crate) dice: Dice,
    pub(crate) processes: BTreeMap<usize, (i32, u64)>,
}

impl Run<'_> {
    /// Waits until all long tasks of the cluster run.
    pub(crate) fn settle(&mut self) -> anyhow::Result<()> {
        let mut recovery = Recovery::default();
        let missing = self.until_whole(Instant::now(), &mut recovery)?;
        ensure!(missing.is_none(), "it did not start: {missing:?}");
        self.processes = self.cluster.long_processes();
        let (found, long) = (self.processes.len(), self.options.tasks);
        ensure!(found == long, "{found} processes of {long} long tasks");
        Ok(())
    }

    /// Sleeps a little, unless the run is over, and restarts ended masters meanwhile.
    fn pause(&mut self) -> anyhow::Result<()> {
        ensure!(!self.board.is_over(), "interrupted");
        self.cluster.tend(self.board);
        std::thread::sleep(LOOK);
        Ok(())
    }

    fn pause_for(&mut self, time: Duration) -> anyhow::Result<()> {
        let since = Instant::now();
        while since.elapsed() < time {
            self.pause()?;
        }
        Ok(())
    }

    /// Returns the leading term, once known.
    fn until_led(&mut self) -> anyhow::Result<Term> {
        let since = Instant::now();
        loop {
            if let Some(leader) = self.board.leader() {
                return Ok(leader);
            }
            ensure!(since.elapsed() < SERVED_LIMIT, "no master leads");
            self.pause()?;
        }
    }

    /// Waits until everything is restored, or returns the missing part when time is up.
    fn until_whole(
        &mut self,
        since: Instant,
        recovery: &mut Recovery,
    ) -> anyhow::Result<Option<String>> {
        let (agents, long) = (self.cluster.agents.len(), self.options.tasks);
        let begun = Instant::now();
        loop {
            match recovery.look(since, self.board, self.desk, agents, long) {
                Ok(()) => return Ok(None),
                Err(missing) if begun.elapsed() > WHOLE_LIMIT => return Ok(Some(missing)),
                Err(_) => self.pause()?,
            }
        }
    }

    /// Waits until another term than the ended one has acknowledged a change; returns `None` if that took too long.
    fn until_served(
        &mut self,
        since: Instant,
        recovery: &mut Recovery,
    ) -> anyhow::Result<Option<Duration>> {
        loop {
            if let Some(first) = self.pulse.first_after(since, recovery.not) {
                return Ok(Some(first.at.duration_since(since)));
            }
            if since.elapsed() > SERVED_LIMIT {
                return Ok(None);
            }
            let (agents, long) = (self.cluster.agents.len(), self.options.tasks);
            let _missing = recovery.look(since, self.board, self.desk, agents, long);
            self.pause()?;
        }
    }

    /// Keeps a fault up until this time since its start, and checks the progress of the cluster meanwhile.
    fn hold(
        &mut self,
        since: Instant,
        time: Duration,
        recovery: &mut Recovery,
    ) -> anyhow::Result<()> {
        let (agents, long) = (self.cluster.agents.len(), self.options.tasks);
        while since.elapsed() < time {
            let _missing = recovery.look(since, self.board, self.desk, agents, long);
            self.pause()?;
        }
        Ok(())
    }

    /// Plays one fault from the beginning to the end, and audits the consequences.
    pub(crate) fn one(&mut self, fault: Fault) -> anyhow::Result<Outcome> {
        let pause = Duration::from_millis(self.dice.roll(2_000));
        self.pause_for(pause)?;
        let leader = self.until_led()?;
        let mut outcome = Outcome {
            fault,
            served: None,
            recovery: Recovery {
                not: Some(leader).filter(|_| fault.deposes()),
                ..Recovery::default()
            },
            remark: String::new(),
            wrong: Vec::new(),
        };
        let since = match fault.deposes() {
            true => self.depose(leader, &mut outcome)?,
            false => self.trouble_etcd(leader, &mut outcome)?,
        };
        if let Some(missing) = self.until_whole(since, &mut outcome.recovery)? {
            let wrong = format!("not whole within {WHOLE_LIMIT:?}: {missing}");
            outcome.wrong.push(wrong);
        }
        let wrong = &mut outcome.wrong;
        wrong.extend(self.ledger.check(self.board).err());
        let now = self.cluster.long_processes();
        wrong.extend(audit::restarted(&self.processes, &now));
        outcome.wrong.extend(self.board.take_wrong());
        Ok(outcome)
    }

    /// Injects a fault after which another start of a master leads, and returns its time.
    fn depose(&mut self, leader: Term, outcome: &mut Outcome) -> anyhow::Result<Instant> {
        let pid = self.cluster.masters[leader.master].daemon.pid();
        let lease = match outcome.fault {
            Fault::LeaseRevoked => self.cluster.etcd.leaders_lease()?,
            _ => String::new(),
        };
        let since = Instant::now();
        let master = &self.cluster.masters[leader.master].host;
        match outcome.fault {
            Fault::LeaderKilled => kernel::kill(pid, Signal::SIGKILL),
            Fault::LeaderShutDown => kernel::kill(pid, Signal::SIGTERM),
            Fault::LeaderStopped => kernel::kill(pid, Signal::SIGSTOP),
            Fault::LeaderIsolated => {
                self.board.cuts_off(leader);
                master.isolate()?;
            }
            Fault::LeaseRevoked => drop(self.cluster.etcd.ctl(&["lease", "revoke", &lease])?),
            Fault::LostToEtcd => {
                for etcd in self.cluster.etcd.hosts() {
                    master.lose_to(etcd.address)?;
                }
            }
            Fault::LostFromEtcd => {
                for etcd in self.cluster.etcd.hosts() {
                    etcd.lose_to(master.address)?;
                }
            }
            other => bail!("{} deposes nobody", other.name()),
        }
        let recovery = &mut outcome.recovery;
        outcome.served = self.until_served(since, recovery)?;
        let bar = match outcome.fault {
            Fault::LeaderShutDown => self.options.bar.min(Duration::from_secs(3)),
            _ => self.options.bar,
        };
        match outcome.served {
            None => outcome
                .wrong
                .push(format!("nobody served within {SERVED_LIMIT:?}")),
            Some(served) if served > bar => {
                outcome
                    .wrong
                    .push(format!("served after {served:?}, above {bar:?}"));
            }
            Some(_) => {}
        }
        match outcome.fault {
            Fault::LeaderStopped => {
                self.hold(since, self.options.stop, &mut outcome.recovery)?;
                kernel::kill(pid, Signal::SIGCONT);
            }
            Fault::LeaderIsolated | Fault::LostToEtcd | Fault::LostFromEtcd => {
                self.hold(since, self.options.hold, &mut outcome.recovery)?;
                self.mend(outcome.fault, leader)?;
            }
            _ => {}
        }
        Ok(since)
    }

    fn mend(&self, fault: Fault, leader: Term) -> anyhow::Result<()> {
        let master = &self.cluster.masters[leader.master].host;
        match fault {
            Fault::LeaderIsolated => master.rejoin()?,
            Fault::LostToEtcd => {
                for etcd in self.cluster.etcd.hosts() {
                    master.find_again(etcd.address)?;
                }
            }
            _ => {
                for etcd in self.cluster.etcd.hosts() {
                    etcd.find_again(master.address)?;
                }
            }
        }
        Ok(())
    }

    /// Plays a fault of etcd; returns the time of its end.
    fn trouble_etcd(&mut self, leader: Term, outcome: &mut Outcome) -> anyhow::Result<Instant> {
        let begun = Instant::now();
        match outcome.fault {
            Fault::EtcdMemberKilled => {
                let member = self.cluster.etcd.leading_member()?;
                self.cluster.etcd.kill(member);
                self.pause_for(AFTERWARDS)?;
                self.cluster.etcd.start_member(member)?;
                self.cluster.etcd.wait()?;
            }
            Fault::EtcdAway => {
                self.cluster.etcd.kill_all();
                self.without_writes(leader, self.options.away, outcome)?;
                self.cluster.etcd.start_all()?;
            }
            Fault::EtcdFull => {
                self.cluster.etcd.fill()?;
                self.without_writes(leader, self.options.hold, outcome)?;
                self.cluster.etcd.make_room()?;
            }
            Fault::EtcdCompacted => self.cluster.etcd.compact()?,
            _ => {
                self.cluster.etcd.save()?;
                self.depose_often()?;
                self.ledger.retire();
                self.cluster.etcd.kill_all();
                self.pause_for(AFTERWARDS)?;
                self.pulse.forget();
                self.cluster.etcd.restore()?;
            }
        }
        let well = Instant::now();
        outcome.served = self.until_served(well, &mut outcome.recovery)?;
        if outcome.served.is_none() {
            outcome
                .wrong
                .push(format!("nobody served within {SERVED_LIMIT:?}"));
        }
        self.pause_for(AFTERWARDS)?;
        let (gap, _) = self.pulse.longest_gap_after(begun);
        outcome.remark += &format!("; {:.1} s without a write", gap.as_secs_f64());
        Ok(well)
    }

    /// Raises the registry's epoch, so that a restored state has an earlier one.
    fn depose_often(&mut self) -> anyhow::Result<()> {
        for _ in 0..2 {
            let leader = self.until_led()?;
            let pid = self.cluster.masters[leader.master].daemon.pid();
            kernel::kill(pid, Signal::SIGTERM);
            let since = Instant::now();
            let mut recovery = Recovery {
                not: Some(leader),
                ..Recovery::default()
            };
            self.until_served(since, &mut recovery)?;
            self.until_whole(since, &mut recovery)?;
        }
        Ok(())
    }

    /// Checks the time without writes: writes fail clearly, and reads are marked.
    fn without_writes(
        &mut self,
        leader: Term,
        time: Duration,
        outcome: &mut Outcome,
    ) -> anyhow::Result<()> {
        let since = Instant::now();
        let url = format!("{}/weights", self.board.urls[leader.master]);
        let limit = Duration::from_secs(3);
        let (mut read, mut refused) = (None, None);
        let mut unlike = String::new();
        while since.elapsed() < time {
            if let Ok(answer) = http::get_within(limit, &url)
                && answer.status == 200
                && answer.header("meseta-stale").is_some()
            {
                read.get_or_insert(since.elapsed());
            }
            let body = r#"[{"role": "pulse-none", "weight": 1.0}]"#;
            match http::put_within(limit, &url, body) {
                Ok(answer) if answer.status == 503 => {
                    refused.get_or_insert(since.elapsed());
                }
                Ok(answer) => unlike = format!("a write was answered {}", answer.status),
                Err(error) => unlike = format!("a write was not answered: {error}"),
            }
            self.pause()?;
        }
        for (what, since) in [("reads marked", read), ("writes refused", refused)] {
            match since {
                Some(since) => {
                    outcome.remark += &format!("; {what} after {:.1} s", since.as_secs_f64());
                }
                None => outcome.wrong.push(format!("not seen: {what}; {unlike}")),
            }
        }
        Ok(())
    }

    /// Stops the short tasks, and compares the knowledge of all parties.
    pub(crate) fn finish(&mut self) -> anyhow::Result<Vec<String>> {
        self.desk.rest();
        let since = Instant::now();
        let mut wrong = loop {
            match audit::disagreements(self.cluster, self.board, self.desk) {
                Ok(()) => break Vec::new(),
                Err(_) if since.elapsed() < WHOLE_LIMIT => self.pause()?,
                Err(differs) => break vec![differs],
            }
        };
        let marks = self.cluster.marks();
        for (id, told) in self.desk.tasks().iter().filter(|(_, told)| !told.is_long) {
            let did = std::fs::read_to_string(marks.join(id)).unwrap_or_default();
            wrong.extend(audit::wrong_short(id, told, &did));
        }
        let now = self.cluster.long_processes();
        wrong.extend(audit::restarted(&self.processes, &now));
        wrong.extend(self.board.take_wrong());
        Ok(wrong)
    }
}
