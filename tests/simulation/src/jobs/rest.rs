//! The checks of the job scheduler once all faults have ended.

use std::collections::BTreeSet;
use std::time::Duration;

use meseta_jobs::core::{Quotas, Request, State};
use meseta_jobs::spec::JobSpec;

use super::Jobs;
use super::promises::{UNBLOCKED, seconds_since};
use super::specs::{
    COUNT, FRONT, FRONT_COUNT, MAX_UNAVAILABLE, SERVICE, SURGE, batch, roles, small,
};
use crate::checks::{Broken, Violation};
use crate::cluster::{Cluster, SECOND};
use crate::plan::Feature;

/// The spans with one absent agent and no other fault.
const AWAY_SPANS: usize = 10;
/// The spans in which no container ends by itself.
const CALM_SPANS: usize = 6;
/// The time within which each schedule starts a run: they run every minute.
const SCHEDULE_PATIENCE: u64 = 150;
/// The longest wait of a schedule for a clock that was set back, and for the next whole minute.
const WAITS_FOR_CLOCK: Duration = Duration::from_secs(3 * 3600 + SCHEDULE_PATIENCE);
/// The time within which a task with room starts, in any role.
const START_SECONDS: u64 = 8;
/// The first number of probe jobs, above those of clients' small jobs.
const PROBES: u64 = 1_000;
/// The size of a planned batch: more tasks than the cluster has room for.
const PLANNED: u32 = 100;

impl Cluster {
    fn jobs_at(&self) -> Option<usize> {
        let at = self.frameworks.iter().position(|one| one.jobs.is_some())?;
        let framework = &self.frameworks[at];
        // A restored registry may have the framework's earlier state.
        (!framework.is_over && self.registry.rollbacks == 0).then_some(at)
    }

    fn jobs(&self) -> Option<&Jobs> {
        self.frameworks[self.jobs_at()?].jobs.as_deref()
    }

    /// Mends all faults of the scheduler and its users.
    pub(crate) fn heal_jobs(&mut self) {
        for framework in &mut self.frameworks {
            framework.takeovers = 0;
            if let Some(jobs) = &mut framework.jobs {
                jobs.withdrawn.clear();
                jobs.ill_version = None;
            }
        }
    }

    /// Checks that schedules start their runs while an agent with tasks stays away, and that plans do not name that agent.
    pub(crate) fn check_beside_absence(&mut self) -> Result<(), Violation> {
        // After this no agent is drained: the other agents have room while one agent is away.
        self.undo();
        self.drain_queues()?;
        for framework in self.frameworks.iter_mut().filter(|one| one.jobs.is_none()) {
            framework.is_idle = true;
        }
        let at = self.rng.usize(..self.agents.len());
        if self.agents[at].is_up() {
            let until = self.time + (AWAY_SPANS as u64 + 1) * crate::rest::SPAN;
            self.agents[at].paused = Some((self.time, until));
        }
        for _ in 0..AWAY_SPANS {
            self.pass()?;
        }
        self.drain_queues()?;
        if let Some(broken) = self.gone_in_plan() {
            return Err(self.violation(broken));
        }
        let Some(jobs) = self.jobs() else {
            return Ok(());
        };
        let late = UNBLOCKED.into_iter().find(|name| {
            let since = seconds_since(self.time, jobs.promises.last_launch(name));
            jobs.is_schedule_due(name) && since > SCHEDULE_PATIENCE
        });
        let Some(name) = late else {
            return Ok(());
        };
        let job = jobs.state.job(name);
        let why = job.map(|job| (job.state, job.why, job.tasks));
        let what = format!("no run of {name} started for {SCHEDULE_PATIENCE} seconds: {why:?}");
        Err(self.violation(Broken::new("J11", what)))
    }

    /// Checks that services are up in one version, that scheduler and master agree, and that submitted jobs start.
    pub(crate) fn check_jobs_at_rest(&mut self) -> Result<(), Violation> {
        self.is_calm = true;
        for _ in 0..CALM_SPANS {
            self.pass()?;
        }
        self.drain_queues()?;
        let broken = self.disagreement().or_else(|| self.unfinished_update());
        let broken = broken.or_else(|| self.gone_in_plan());
        if let Some(broken) = broken {
            return Err(self.violation(broken));
        }
        let all: Vec<_> = roles().collect();
        let chosen = all[self.rng.usize(..all.len())];
        // The master offers an agent to one role at a time.
        self.check_starts([
            (PROBES, chosen),
            (PROBES + 1, "unused"),
            (PROBES + 2, "ads/unused"),
        ])?;
        // The framework requested new roles, in a call that replaces all roles at the master.
        self.pass()?;
        self.drain_queues()?;
        if let Some(broken) = self.disagreement() {
            return Err(self.violation(broken));
        }
        if self.has(Feature::WithdrawnRoles) {
            self.check_beside_refusal()?;
        }
        self.is_calm = false;
        Ok(())
    }

    /// Checks that jobs start in new roles although the master withdrew a present role of the framework.
    fn check_beside_refusal(&mut self) -> Result<(), Violation> {
        let Some(jobs) = self.jobs() else {
            return Ok(());
        };
        let taken = jobs.state.roles();
        let taken: Vec<_> = roles().filter(|role| taken.contains(*role)).collect();
        let withdrawn = taken.get(self.rng.usize(..taken.len().max(1))).copied();
        for jobs in self
            .frameworks
            .iter_mut()
            .filter_map(|one| one.jobs.as_mut())
        {
            jobs.withdrawn.extend(withdrawn);
        }
        self.check_starts([(PROBES + 3, "fresh"), (PROBES + 4, "ads/fresh")])?;
        self.heal_jobs();
        Ok(())
    }

    /// Checks that the master's roles of the framework are those that the scheduler believes in.
    fn disagreement(&mut self) -> Option<Broken> {
        let at = self.jobs_at()?;
        let framework = &self.frameworks[at];
        if framework.copy.is_some() {
            let what = "a scheduler does not end that another one has taken over from";
            return Some(Broken::new("J12", what));
        }
        let id = framework.id.clone()?;
        let jobs = framework.jobs.as_deref()?;
        let (own, idle) = (jobs.state.roles(), jobs.state.idle_roles());
        let names = jobs.names.iter();
        let wanted: BTreeSet<_> = names.filter_map(|name| jobs.state.role_of(name)).collect();
        let wanted: BTreeSet<_> = wanted.into_iter().map(str::to_owned).collect();
        if let Some(role) = wanted.difference(&own).next() {
            let what = format!("the framework has not the role {role}, which nobody refuses");
            return Some(Broken::new("J4", what));
        }
        let leader = self.leader();
        let snapshot = self.master(leader)?.core.snapshot();
        let mut known = snapshot.frameworks.iter();
        let view = known.find(|view| view.id.as_str() == id)?;
        let texts = |roles: &BTreeSet<meseta_resources::Role>| -> BTreeSet<String> {
            roles.iter().map(ToString::to_string).collect()
        };
        let (roles, suppressed) = (texts(&view.roles), texts(&view.suppressed));
        // The next call removes a role without jobs from the master. Until then the master suppresses offers to this role.
        let is_left = |role: &String| !own.contains(role) && suppressed.contains(role);
        let (left, used): (BTreeSet<_>, _) = roles.iter().cloned().partition(is_left);
        let used_suppressed: BTreeSet<_> = suppressed.difference(&left).cloned().collect();
        if used != own || used_suppressed != idle {
            let what = format!(
                "the master has roles {roles:?}, suppressed {suppressed:?}; the scheduler {own:?}, idle {idle:?}"
            );
            return Some(Broken::new("J4", what));
        }
        None
    }

    fn unfinished_update(&self) -> Option<Broken> {
        let jobs = self.jobs()?;
        for (name, count) in [(SERVICE, COUNT), (FRONT, FRONT_COUNT)] {
            let Some(job) = jobs.state.job(name) else {
                continue;
            };
            let tasks = job.tasks.unwrap_or_default();
            let versions: BTreeSet<u64> = tasks.iter().map(|task| task.version).collect();
            let is_whole = job.healthy == count as usize && versions.len() == 1;
            // An update that has failed or cannot be placed may leave the allowed number of instances missing. Old instances
            // that ended by themselves are also missing: their replacements wait, as many as an update starts at once.
            let least = (count - MAX_UNAVAILABLE - SURGE) as usize;
            let has_run = jobs.has_been_healthy(name);
            let is_kept = job.update.is_some() && (job.healthy >= least || !has_run);
            if !is_whole && !is_kept && has_run {
                let what = format!(
                    "{name} is {}, {} of {count} healthy in versions {versions:?}: {}",
                    job.state, job.healthy, job.why
                );
                return Some(Broken::new("J10", what));
            }
        }
        None
    }

    /// Checks that plans name only existing agents.
    fn gone_in_plan(&mut self) -> Option<Broken> {
        let at = self.jobs_at()?;
        let jobs = self.frameworks[at].jobs.as_deref()?;
        let plans = roles().map(|role| {
            // The plan names each agent that seems to have room.
            let spec = JobSpec {
                role: role.to_owned(),
                ..batch("planned", PLANNED)
            };
            jobs.state.plan(&spec.name, &spec, &Quotas::default())
        });
        let places: BTreeSet<_> = plans
            .flat_map(|plan| plan.places)
            .map(|one| one.agent_id)
            .collect();
        let leader = self.leader();
        let snapshot = self.master(leader)?.core.snapshot();
        let is_there = |id: &str| {
            snapshot
                .agents
                .iter()
                .any(|agent| agent.id().as_str() == id)
        };
        let gone = places.into_iter().find(|id| !is_there(id))?;
        let what = format!("a plan names agent {gone}, which is gone");
        Some(Broken::new("J13", what))
    }

    /// Checks that a task in each of some roles starts soon, because there is room.
    fn check_starts<const N: usize>(&mut self, tasks: [(u64, &str); N]) -> Result<(), Violation> {
        let Some(at) = self
            .jobs_at()
            .filter(|at| self.frameworks[*at].is_subscribed())
        else {
            return Ok(());
        };
        let time = self.time;
        let mut names = Vec::new();
        for (number, role) in tasks {
            let spec = small(role, number);
            let Some(jobs) = &mut self.frameworks[at].jobs else {
                return Ok(());
            };
            names.push(spec.name.clone());
            jobs.request(time, Request::Submit(Box::new(spec)));
        }
        self.take_jobs_calls(at);
        for _ in 0..START_SECONDS {
            self.drain_queues()?;
            self.advance(SECOND);
        }
        self.drain_queues()?;
        let Some(jobs) = self.jobs() else {
            return Ok(());
        };
        let late = names
            .iter()
            .find(|name| jobs.promises.last_launch(name).is_none());
        let Some(name) = late else {
            return Ok(());
        };
        let why = jobs
            .state
            .job(name)
            .map(|job| (job.role, job.state, job.why));
        let what = format!("{name} does not start within {START_SECONDS} seconds: {why:?}");
        Err(self.violation(Broken::new("J11", what)))
    }
}

impl Jobs {
    /// Whether a schedule must start runs that fit on an agent. After the clock was set back by less than three hours, no
    /// schedule starts a run until the clock shows its latest earlier time again.
    fn is_schedule_due(&self, name: &str) -> bool {
        let job = self.state.job(name);
        let fits = job.is_some_and(|job| job.version > 1 || name != super::specs::ALLOWING);
        let now = self.clock.now(self.time).unix;
        fits && !self.promises.was_ahead(now, WAITS_FOR_CLOCK)
    }

    /// Whether any version of a service was healthy.
    fn has_been_healthy(&self, name: &str) -> bool {
        has_stable(&self.state, name)
    }
}

fn has_stable(state: &State, name: &str) -> bool {
    let history = state.history(name);
    let versions = history.map(|history| history.versions).unwrap_or_default();
    versions.iter().any(|version| version.stable)
}
