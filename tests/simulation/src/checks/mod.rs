//! The checks after each step, of the changes in it.
//!
//! Agents and the network find many errors where they happen, see [`crate::agent`] and [`crate::outputs`]; this module
//! checks the masters' own views. `docs/testing.md` lists the place of each invariant's check.

mod masters;

use std::fmt;

pub(crate) use masters::Checks;

use crate::cluster::Cluster;

/// A broken promise: its number in the table of invariants, and the event.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    rule: &'static str,
    what: String,
}

impl Broken {
    pub(crate) fn new(rule: &'static str, what: impl Into<String>) -> Self {
        let what = what.into();
        Self { rule, what }
    }
}

/// The end of a run with a broken promise.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The number of the broken invariant.
    pub rule: &'static str,
    pub what: String,
    pub seed: u64,
    /// The step in which it was found.
    pub step: u64,
    /// The steps before, if they were described.
    pub last: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rule,
            what,
            seed,
            step,
            last,
        } = self;
        write!(f, "{rule}: {what}\nseed {seed}, step {step}")?;
        if !last.is_empty() {
            write!(f, "; the last steps:\n{last}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Violation {}

impl Cluster {
    pub(crate) fn violation(&self, broken: Broken) -> Violation {
        Violation {
            rule: broken.rule,
            what: broken.what,
            seed: self.plan.seed,
            step: self.steps,
            last: self.story.last_steps(),
        }
    }

    /// Checks every promise in this step.
    pub(crate) fn check(&mut self) -> Result<(), Violation> {
        for agent in &mut self.agents {
            self.broken.append(&mut agent.broken);
            self.broken.append(&mut agent.executors.broken);
            for words in agent.words.drain(..) {
                let number = agent.number;
                self.story
                    .tell(|| format!("agent {number} asks for {words}"));
            }
            agent
                .counted
                .drain(..)
                .for_each(|what| self.story.count(what));
        }
        for framework in &mut self.frameworks {
            self.broken.append(&mut framework.broken);
            if let Some(jobs) = &mut framework.jobs {
                self.broken.append(&mut jobs.take_broken());
            }
        }
        self.check_masters();
        match self.broken.is_empty() {
            true => Ok(()),
            false => {
                let first = self.broken.remove(0);
                Err(self.violation(first))
            }
        }
    }

    /// Checks that no job has more tasks than permitted.
    pub(crate) fn check_jobs(&mut self) {
        let mut frameworks = self.frameworks.iter();
        let jobs = frameworks.find(|one| one.jobs.is_some());
        let Some(id) = jobs.and_then(|one| one.id.as_deref()) else {
            return;
        };
        // A restored registry may not know agents and their tasks.
        if self.registry.rollbacks > 0 {
            return;
        }
        let mut living = Vec::new();
        for agent in &self.agents {
            let running = agent.machine.running.iter();
            let running = running.map(|(id, process)| (id, &process.plan));
            for (container, plan) in running.chain(&agent.machine.launching) {
                if let Some((framework, task)) = crate::machine::task_of(plan)
                    && framework == id
                    // Tasks that run on after their agent was given up belong to no one.
                    && !jobs.is_some_and(|jobs| jobs.tasks.get(task).is_some_and(|task| task.is_forgotten || task.is_given_up(&self.given_up)))
                    && !agent.machine.killed.contains(container)
                {
                    living.push(task.to_owned());
                }
            }
        }
        if let Some(what) = crate::jobs::too_many(&living) {
            self.broken.push(Broken::new("J1", what));
        }
    }
}
