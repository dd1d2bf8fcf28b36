//! The core of the scheduler: one synchronous state machine from inputs to effects.
//!
//! Entered through [`State::step`].
//! - [`input`]: inputs and effects; [`records`]: the durable state; [`versions`]: the specifications, which can be large.
//! - [`commands`]: requests of clients, limited by [`room`]; [`names`]: names of jobs, unique in a role; [`changes`]:
//!   changes that concern running instances.
//! - [`updates`]: status updates of tasks; [`failure`]: one failure as a line; [`kills`]: the order of kills.
//! - [`runs`]: the start and end of batches; [`waiting`]: their waiting indexes; [`dealt`]: the times of a schedule that
//!   are dealt with.
//! - [`service`]: the plan of a service; [`decide`]: its execution; [`promotion`]: canaries.
//! - [`demand`]: the tasks of a job that want offers; [`offer_demand`]: those of all [`jobs`]; [`roles`]: the roles whose offers the framework requests; [`launch`]: answers
//!   to offers out of a [`pool`], with the [`next_ports`] of each agent; [`spread`]: agents that are not offered;
//!   [`give_way`]: offers that a gang gives back for jobs of other tenants.
//! - [`seen_offers`]: remembered offers for a [`plan`]; [`why_not`] and [`quotas`]: the reasons why a job waits.
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
mod dealt;
mod decide;
mod demand;
mod discovery;
mod failure;
mod gangs;
mod give_way;
mod input;
mod job;
mod jobs;
mod kills;
mod launch;
mod lists;
mod names;
mod next_ports;
mod offer_demand;
mod open_offers;
mod outbox;
mod plan;
mod pool;
mod promotion;
mod quotas;
mod records;
mod roles;
mod room;
mod runs;
mod seen_offers;
mod service;
mod sizes;
mod spread;
mod state;
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
