//! The jobs that clients submit, and their later requests.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_jobs::core::Request;
use meseta_jobs::spec::{
    Backoff, Batch, Command, Cron, Gang, JobSpec, Kind, Overlap, Service, TaskTemplate, Update,
};

/// A service whose versions are all good.
pub(super) const SERVICE: &str = "web";
/// A service with versions that fail, are too large or are in another role.
pub(super) const FRONT: &str = "front";
/// The service that starts as a whole.
pub(super) const MESH: &str = "mesh";
pub(super) const BATCH: &str = "array";
pub(super) const GANG: &str = "gang";
/// A batch whose tasks may run for [`TIMEOUT`].
const ARCHIVE: &str = "archive";
/// The schedule that skips a time during a run. Its tasks may run for [`TIMEOUT`].
pub(super) const CRON: &str = "nightly";
/// The jobs with tasks that may run for [`TIMEOUT`].
pub(super) const TIMED: [&str; 2] = [ARCHIVE, CRON];
/// A schedule whose next run replaces the one before.
pub(super) const REPLACING: &str = "often";
/// A schedule with overlapping runs. Its first version fits on no agent.
pub(super) const ALLOWING: &str = "allowed";

/// The instances of the service, and the surge of an update.
pub(super) const COUNT: u32 = 2;
pub(super) const SURGE: u32 = 1;
/// The number of instances of [`FRONT`], and the number that may be missing.
pub(super) const FRONT_COUNT: u32 = 3;
pub(super) const MAX_UNAVAILABLE: u32 = 1;
pub(super) const MESH_COUNT: u32 = 2;
pub(super) const TIMEOUT: Duration = Duration::from_secs(240);
/// More than any agent has.
const HUGE_CPUS: f64 = 64.0;

/// Roles of small batches, which are idle most of the time.
const SMALL_ROLES: [&str; 5] = ["r0", "r1", "r2", "ads/r3", "ads/r4"];
/// Roles of [`FRONT`], which a version may change.
const FRONT_ROLES: [&str; 2] = ["ads/front", "ads/other"];
const ROLE: &str = "jobs";

/// Returns the roles of all jobs.
pub(super) fn roles() -> impl Iterator<Item = &'static str> {
    let others = FRONT_ROLES.into_iter().chain([ROLE]);
    SMALL_ROLES.into_iter().chain(others)
}

const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(8),
    reset_after: Duration::from_secs(60),
};

/// The clients of the scheduler, with the number of their requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clients {
    pub(super) requests: u64,
    /// The number of versions, which makes each different.
    versions: u64,
    small: u64,
    /// Whether jobs of all kinds are submitted, not only the first few.
    is_wide: bool,
}

impl Clients {
    pub(super) fn new(is_wide: bool) -> Self {
        Self {
            is_wide,
            ..Self::default()
        }
    }

    /// Returns the next request, if there is one.
    pub(super) fn ask(&mut self, rng: &mut fastrand::Rng) -> Option<Request> {
        let submit = |spec| Some(Request::Submit(Box::new(spec)));
        let chosen = rng.u32(..60);
        match (self.requests, self.is_wide) {
            (0, _) => return submit(service(0)),
            (1, _) => return submit(batch(BATCH, 4)),
            (2, false) => return submit(cron(CRON, Overlap::Skip)),
            (2, true) => return submit(with_timeout(cron(CRON, Overlap::Skip))),
            (3, _) => return submit(gang()),
            (4, true) => return submit(front(0)),
            (5, true) => return submit(mesh()),
            (6, true) => return submit(with_timeout(batch(ARCHIVE, 2))),
            (7, true) => return submit(cron(REPLACING, Overlap::Replace)),
            (8, true) => return submit(sized(cron(ALLOWING, Overlap::Allow), HUGE_CPUS)),
            (9, true) => return submit(cron(ALLOWING, Overlap::Allow)),
            _ => {}
        }
        let restart = |name: &str| {
            let name = name.to_owned();
            Some(Request::Restart { name })
        };
        self.versions += 1;
        match (chosen, self.is_wide) {
            (0, _) | (16, true) => submit(service(self.versions)),
            (1, _) | (17..20, true) => restart(SERVICE),
            (2, true) => restart(BATCH),
            (3 | 20, true) => restart(MESH),
            (4, true) => submit(sized(front(self.versions), HUGE_CPUS)),
            (5, true) => submit(moved(front(self.versions), rng)),
            (6 | 7, true) => Some(Request::Revert {
                name: FRONT.to_owned(),
                version: None,
            }),
            (8 | 9, true) => submit(front(self.versions)),
            (10..16, true) => {
                self.small += 1;
                submit(small(
                    SMALL_ROLES[rng.usize(..SMALL_ROLES.len())],
                    self.small % 12,
                ))
            }
            _ => None,
        }
    }
}

fn job(name: &str, count: u32, kind: Kind) -> JobSpec {
    JobSpec {
        name: name.to_owned(),
        kind,
        role: ROLE.to_owned(),
        count,
        priority: 50,
        task: TaskTemplate {
            command: Command::Shell("true".to_owned()),
            user: None,
            env: BTreeMap::new(),
            uris: Vec::new(),
            requests: BTreeMap::from([("cpus".to_owned(), 0.5), ("mem".to_owned(), 32.0)]),
            limits: BTreeMap::new(),
            ports: Vec::new(),
            check: None,
            kill_grace: Duration::from_secs(5),
        },
        constraints: Vec::new(),
        after: Vec::new(),
        gang: None,
        best_effort: false,
        volume: None,
        labels: BTreeMap::new(),
    }
}

fn service_kind(healthy_after: Duration, auto_revert: bool) -> Kind {
    Kind::Service(Service {
        restart: BACKOFF,
        update: Update {
            max_unavailable: MAX_UNAVAILABLE,
            max_surge: SURGE,
            canary: 0,
            pause: Duration::ZERO,
            healthy_after,
            progress_deadline: Duration::from_secs(600),
            auto_revert,
        },
    })
}

/// Returns a job in another version.
fn with_version(mut spec: JobSpec, version: u64) -> JobSpec {
    spec.task.command = Command::Shell(format!("true {version}"));
    spec
}

fn service(version: u64) -> JobSpec {
    let kind = service_kind(Duration::from_secs(1), false);
    with_version(job(SERVICE, COUNT, kind), version)
}

fn front(version: u64) -> JobSpec {
    let kind = service_kind(Duration::from_secs(2), version.is_multiple_of(2));
    let spec = with_version(job(FRONT, FRONT_COUNT, kind), version);
    JobSpec {
        role: FRONT_ROLES[0].to_owned(),
        ..spec
    }
}

fn moved(spec: JobSpec, rng: &mut fastrand::Rng) -> JobSpec {
    let role = FRONT_ROLES[1].to_owned();
    let cpus = if rng.bool() { HUGE_CPUS } else { 0.5 };
    sized(JobSpec { role, ..spec }, cpus)
}

fn sized(mut spec: JobSpec, cpus: f64) -> JobSpec {
    spec.task.requests.insert("cpus".to_owned(), cpus);
    spec
}

fn mesh() -> JobSpec {
    let kind = service_kind(Duration::from_secs(1), false);
    JobSpec {
        gang: Some(held_for(20)),
        ..job(MESH, MESH_COUNT, kind)
    }
}

fn batch_kind() -> Batch {
    Batch {
        retries: 100_000,
        backoff: BACKOFF,
        timeout: None,
    }
}

pub(super) fn batch(name: &str, count: u32) -> JobSpec {
    job(name, count, Kind::Batch(batch_kind()))
}

fn with_timeout(mut spec: JobSpec) -> JobSpec {
    if let Kind::Batch(batch) | Kind::Cron(Cron { batch, .. }) = &mut spec.kind {
        batch.timeout = Some(TIMEOUT);
    }
    spec
}

/// Returns a job with the only task of its role.
pub(super) fn small(role: &str, number: u64) -> JobSpec {
    JobSpec {
        role: role.to_owned(),
        ..batch(&format!("small-{number}"), 1)
    }
}

fn cron(name: &str, overlap: Overlap) -> JobSpec {
    let cron = Cron {
        batch: batch_kind(),
        schedule: "* * * * *".to_owned(),
        time_zone: "UTC".to_owned(),
        overlap,
        start_within: Duration::from_secs(30),
    };
    job(name, 1, Kind::Cron(cron))
}

fn held_for(seconds: u64) -> Gang {
    Gang {
        hold_at_most: Duration::from_secs(seconds),
    }
}

fn gang() -> JobSpec {
    JobSpec {
        gang: Some(held_for(20)),
        ..batch(GANG, 2)
    }
}
