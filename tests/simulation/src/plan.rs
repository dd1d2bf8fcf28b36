//! The parameters of a run: its seed, its length, and the parts left out.
//!
//! Each step draws from a generator of its own, so that a run without some of its steps, or without a kind of fault, is
//! otherwise the same. This makes it possible to shorten a story: see [`crate::shrink`].

use std::collections::BTreeSet;
use std::ops::Range;

/// The optional parts of a run beside frameworks that launch tasks: each seed has some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    AgentCrash,
    MasterCrash,
    Takeover,
    Rollback,
    Cut,
    Stall,
    StreamCut,
    SlowReader,
    FrameworkRestart,
    Pause,
    WallClock,
    Drift,
    Reboot,
    LateWrites,
    TornWrite,
    DiskFull,
    DiskFailure,
    LaunchFailure,
    StuckContainer,
    OutOfMemory,
    Groups,
    Executors,
    Reservations,
    Volumes,
    Revocable,
    Malicious,
    Jobs,
    Quota,
    Weights,
    OperatorReservations,
    Drain,
    Gone,
    Maintenance,
    Teardown,
    LargeTasks,
    /// Tasks with checks and health checks.
    Checks,
    /// Messages of schedulers and executors.
    Messages,
    /// Frameworks that shut executors down.
    Shutdowns,
    /// Executors that get more than one task or group.
    SharedExecutors,
    /// Some dozens of tasks with long labels on one agent, which then comes back in parts.
    Crowd,
    /// A registry that keeps few unreachable or gone agents.
    Pruning,
    /// Frameworks with principals, which the registry keeps.
    Principals,
    /// Frameworks that repeat calls.
    Repeats,
    /// An agent registers without waiting for the master's epoch, as earlier releases did: its frameworks may, very
    /// rarely, get LOST after FINISHED (I18).
    OlderAgents,
    /// The clock of the job scheduler's machine is set, and the scheduler moves to machines with different clocks.
    SchedulerClock,
    /// Older copies of the job scheduler's store that are restored.
    SchedulerBackups,
    /// A second job scheduler that is started on a copy of the store.
    SchedulerCopies,
    /// Roles that are withdrawn from the job scheduler, and returned.
    WithdrawnRoles,
    /// An agent that stays away for long without any other fault.
    LongAbsence,
    /// The disk of an agent answers nothing for a while, as on a frozen file system.
    DiskSilent,
}

impl Feature {
    /// All features, in the order of their declaration.
    pub const ALL: [Self; 50] = [
        Self::AgentCrash,
        Self::MasterCrash,
        Self::Takeover,
        Self::Rollback,
        Self::Cut,
        Self::Stall,
        Self::StreamCut,
        Self::SlowReader,
        Self::FrameworkRestart,
        Self::Pause,
        Self::WallClock,
        Self::Drift,
        Self::Reboot,
        Self::LateWrites,
        Self::TornWrite,
        Self::DiskFull,
        Self::DiskFailure,
        Self::LaunchFailure,
        Self::StuckContainer,
        Self::OutOfMemory,
        Self::Groups,
        Self::Executors,
        Self::Reservations,
        Self::Volumes,
        Self::Revocable,
        Self::Malicious,
        Self::Jobs,
        Self::Quota,
        Self::Weights,
        Self::OperatorReservations,
        Self::Drain,
        Self::Gone,
        Self::Maintenance,
        Self::Teardown,
        Self::LargeTasks,
        Self::Checks,
        Self::Messages,
        Self::Shutdowns,
        Self::SharedExecutors,
        Self::Crowd,
        Self::Pruning,
        Self::Principals,
        Self::Repeats,
        Self::OlderAgents,
        Self::SchedulerClock,
        Self::SchedulerBackups,
        Self::SchedulerCopies,
        Self::WithdrawnRoles,
        Self::LongAbsence,
        Self::DiskSilent,
    ];

    /// The faults of the job scheduler itself.
    const OF_JOBS: [Self; 5] = [
        Self::SchedulerClock,
        Self::SchedulerBackups,
        Self::SchedulerCopies,
        Self::WithdrawnRoles,
        Self::LongAbsence,
    ];

    /// The faults of the cluster that a job scheduler can notice.
    const BESIDE_JOBS: [Self; 16] = [
        Self::AgentCrash,
        Self::MasterCrash,
        Self::Takeover,
        Self::Cut,
        Self::StreamCut,
        Self::SlowReader,
        Self::FrameworkRestart,
        Self::Pause,
        Self::Drift,
        Self::Reboot,
        Self::LateWrites,
        Self::LaunchFailure,
        Self::StuckContainer,
        Self::OutOfMemory,
        Self::Drain,
        Self::Gone,
    ];

    /// Returns how many of a hundred seeds have the feature. Features that end agents or frameworks for good leave little
    /// for the rest.
    fn percent(self) -> u32 {
        match self {
            // Slow features are rare.
            Self::Crowd => 8,
            Self::OlderAgents | Self::Rollback | Self::Gone | Self::Teardown => 15,
            Self::Maintenance | Self::Takeover | Self::Reboot | Self::Pruning => 40,
            _ => 65,
        }
    }
}

impl std::str::FromStr for Feature {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        let found = all.find(|one| format!("{one:?}").eq_ignore_ascii_case(text));
        found.ok_or_else(|| format!("{text:?} is no feature of a run; they are {:?}", Self::ALL))
    }
}

/// A repeatable run of the simulation.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Whether the run is of the job scheduler: its cluster is small, and its users have many jobs in many roles.
    pub is_of_jobs: bool,
    /// The steps with faults; the steps to rest follow.
    pub steps: u64,
    /// The seed's features that this run leaves out.
    pub without: BTreeSet<Feature>,
    /// Steps that are skipped.
    pub skipped: Vec<Range<u64>>,
    /// Whether the last steps are described in words, which is slow.
    pub is_told: bool,
    /// Only steps that mention this text are described.
    pub about: String,
}

impl Plan {
    #[must_use]
    pub fn new(seed: u64, steps: u64) -> Self {
        Self {
            seed,
            is_of_jobs: false,
            steps,
            without: BTreeSet::new(),
            skipped: Vec::new(),
            is_told: false,
            about: String::new(),
        }
    }

    /// Returns a run of the job scheduler.
    #[must_use]
    pub fn of_jobs(seed: u64, steps: u64) -> Self {
        Self {
            is_of_jobs: true,
            ..Self::new(seed, steps)
        }
    }

    /// Returns the features of this run.
    #[must_use]
    pub fn features(&self) -> BTreeSet<Feature> {
        let mut rng = fastrand::Rng::with_seed(self.seed ^ 0x5eed);
        let drawn = Feature::ALL.into_iter();
        let drawn = drawn.filter(|feature| rng.u32(..100) < feature.percent());
        let drawn: BTreeSet<_> = drawn.collect();
        let jobs = Feature::OF_JOBS;
        let drawn: BTreeSet<_> = match self.is_of_jobs {
            true => {
                let allowed = jobs.into_iter().chain(Feature::BESIDE_JOBS);
                let drawn = allowed.filter(|feature| drawn.contains(feature));
                drawn.chain([Feature::Jobs]).collect()
            }
            false => drawn
                .into_iter()
                .filter(|one| !jobs.contains(one))
                .collect(),
        };
        drawn
            .into_iter()
            .filter(|feature| !self.without.contains(feature))
            .collect()
    }

    pub(crate) fn is_skipped(&self, step: u64) -> bool {
        self.skipped.iter().any(|range| range.contains(&step))
    }

    /// Returns the generator of one step.
    pub(crate) fn chance(&self, step: u64) -> fastrand::Rng {
        let mixed = (self.seed ^ step.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        fastrand::Rng::with_seed(mixed ^ (mixed >> 29))
    }
}
