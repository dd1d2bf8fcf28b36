//! Meseta's kernel side: cgroups, namespaces, launcher, supervisor.
//!
//! The entry points are [`Containers`], which an agent opens once and then uses to launch, resize, sample, kill, destroy and
//! recover containers; and [`launcher::run_if_requested`], the first statement of any `main` that links this crate.
//! Everything here is blocking: call it from a thread that may block. Knows nothing of protobuf, HTTP or async runtimes.
//!
//! ```text
//!  agent thread ── Containers ── isolators: pure plans (Vec<KnobWrite>) ── cgroup: the trees
//!                      │
//!                      └── Launcher ══ socketpair ══ sealed launcher process (one thread, memfd)
//!                                                      └─ clone ─ supervisor (one per container)
//!                                                                   └─ clone + exec ─ the task
//! ```
//!
//! Invariants: nothing outside `<hierarchy>/<cgroups root>/<instance>` is ever changed, except that missing parents of that
//! folder are created and, on cgroup v2, controllers are enabled on the way to it, or systemd creates a scope on request; the
//! agent's own process never forks with work in the child; an exit that nobody saw is reported as unknown, never as success.

pub mod beneath;
pub mod cgroup;
pub mod containers;
mod demand;
mod device_rule;
mod identity;
pub mod isolator;
mod launch_step;
pub mod launcher;
mod limit_event;
pub mod mount_table;
mod process_tree;
mod shortage;
mod status;
mod sys;
mod usage;

pub use cgroup::{
    Controller, DestroyOptions, DetectError, Drift, DriftKind, Host, KnobError, KnobWrite,
    LayoutError, Mode, ScopeError, Unified, UnusableCause, UnusableTree, V1Hierarchy, task_scope,
};
pub use containers::{
    ContainerError, Containers, DestroyError, Interference, KillOutcome, KillRequest, Limitation,
    OpenError, Options, Outside, Recovered, SLOW_EVERY, Sampler, Shrink, Socket, living_containers,
};
pub use demand::{Demand, Limit};
pub use identity::{
    BootId, CONTAINER_NAME_BYTES_MAX, ContainerName, ContainerNameError, ProcessIdentity,
};
pub use isolator::{
    Breach, CAPABILITIES, CapabilityCondition, CapabilityEntry, CapabilityRequest, CapabilitySet,
    ContainerSpec, DeviceKind, DeviceRule, DiskArea, DiskUsage, Inside, Inspected, Inspection,
    Isolation, IsolationError, Isolator, Listeners, NodeOptions, PortInspection, PortRange, Reach,
    SeccompAction, SeccompArgument, SeccompChoice, SeccompComparison, SeccompError, SeccompProfile,
    TaskIsolation,
};
pub use launch_step::LaunchStep;
pub use launcher::{
    CapabilitySets, Command, Credentials, CredentialsError, Destination, LaunchError,
    LaunchIsolation, LaunchSpec, Launched, Launcher, LauncherOptions, LogFile, MountAction,
    MountSource, MountStep, Rlimit, SeccompProgram,
};
pub use limit_event::LimitEvent;
pub use shortage::{again, is_device_failure, is_disk_full, is_shortage, note_repeated, repeated};
pub use status::{ExitCause, ExitRecord, StatusError};
pub use usage::{ContainerUsage, CpuUsage, IoUsage, MemoryUsage, PidsUsage, PressureUsage};
