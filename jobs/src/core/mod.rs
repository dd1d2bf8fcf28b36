//! The core of the scheduler: one synchronous state machine from inputs to effects.
//!
//! Entered through [`State::step`] in [`step`], which hands each input to the owners of the [`state`] and carries out the
//! [`consequence`]s of changes of jobs.
//! - [`input`]: inputs and effects; [`records`]: the durable state; [`versions`]: the specifications, which can be large.
//! - Owners of state: [`jobs`] with the [`offer_demand`] of all jobs; [`released_volumes`]; [`connection`] to the master;
//!   [`clock`]; [`roles`] whose offers the framework requests; [`open_offers`] and [`seen_offers`]; [`gangs`] that keep
//!   offers back, and [`give_way`]: offers that a gang gives back for jobs of other tenants; [`spread`]: agents that are
//!   not offered; [`kills`]: their order; [`next_ports`] of each agent; [`outbox`]: effects that wait for a write;
//!   [`totals`]: counters.
//! - [`commands`]: requests of clients, limited by [`job_limits`] and [`sizes`]; [`names`]: names of jobs, unique in a
//!   role; [`changes`]: changes that concern running instances.
//! - [`updates`]: status updates of tasks; [`failure`]: one failure as a line.
//! - [`runs`]: the start and end of batches; [`waiting`]: their waiting indexes; [`dealt_times`]: the times of a schedule
//!   that are dealt with.
//! - [`service`]: the plan of a service; [`decide`]: its execution; [`promotion`]: canaries.
//! - [`demand`]: the tasks of a job that want offers; [`launch`]: answers to offers out of an [`offer_pool`].
//! - [`why_not`], [`quotas`] and [`plan`]: the reasons why a job waits, and the room for a new one.
//! - [`view`]: jobs for readers; [`lists`]: all jobs, one page at a time; [`tasks`]: the tasks of a job in two orders;
//!   [`discovery`]: their addresses.
//! - [`volume`]: a volume of an instance; [`volumes`]: placement on volumes; [`volume_operations`]: operations on their
//!   agents; [`volume_updates`]: the results of operations, and the release.
//!
//! Invariants: a launch is durable before ACCEPT leaves, and the end of a task before its acknowledgement; nothing here
//! reads a clock.

mod changes;
mod clock;
mod commands;
mod connection;
mod consequence;
mod dealt_times;
mod decide;
mod demand;
mod discovery;
mod failure;
mod gangs;
mod give_way;
mod input;
mod job;
mod job_limits;
mod jobs;
mod kills;
mod launch;
mod lists;
mod names;
mod next_ports;
mod offer_demand;
mod offer_pool;
mod open_offers;
mod outbox;
mod plan;
mod promotion;
mod quotas;
mod records;
mod released_volumes;
mod roles;
mod runs;
mod seen_offers;
mod service;
mod sizes;
mod spread;
mod state;
mod step;
mod task_name;
mod tasks;
mod totals;
mod updates;
mod versions;
mod view;
mod volume;
mod volume_operations;
mod volume_updates;
mod volumes;
mod waiting;
mod why_not;

#[cfg(test)]
mod tests;

pub use discovery::Discovered;
pub use input::{
    Accept, Accepted, Effect, Event, Input, Launch, NamedOperation, Record, Refusal, RefusedAccept,
    Request,
};
pub use lists::{DiscoveredPlace, Tally, VolumeParts, VolumePlace};
pub use names::{JobName, NamedJob};
pub use plan::{PlaceView, PlanView};
pub use quotas::{Quotas, RoleQuota};
pub use records::RestoreError;
pub(crate) use records::{META_KEY, cluster_in};
pub use roles::RoleSet;
pub use state::{Options, State};
pub use task_name::TaskName;
pub use tasks::{NoPlace, TaskOrder};
pub use totals::{JobFailures, QUEUE_BOUNDS, Queue, Totals};
pub use view::{
    Authorities, Authority, FailedUpdateView, FailureView, History, JobView, MayRun, TaskView,
    UpdateView, VersionView, VolumeView,
};
