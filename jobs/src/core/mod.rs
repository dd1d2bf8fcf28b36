//! The core of the scheduler: one synchronous state machine, from what happened to what is to be done.
//!
//! Entered through [`State::step`]. [`input`] has what it is told and asks for, [`records`] what it keeps durable, of which
//! [`versions`] can be large; [`commands`] takes requests as far as there is [`room`], [`updates`] the states of tasks, [`runs`] starts and ends batches,
//! of which some indexes are [`waiting`] and some times of a schedule are [`dealt`] with, [`service`] plans services, [`decide`] carries that out, of which [`kills`] leave in
//! turn, [`names`] are unique in a role, [`roles`] asks for offers of what is in [`demand`], [`launch`] answers them out of a [`pool`] with the [`next_ports`] of each agent, [`seen_offers`] remembers them for a [`plan`], [`view`] shows it, with the [`quotas`] that are in the way, [`lists`] a part of all jobs at a
//! time, [`discovery`] where it is. [`spread`] knows the agents that are not offered. The [`tasks`] of a job are in two orders. A [`failure`]
//! is one line, and [`why_not`] says what is in the way. [`changes`] concern running instances or not; [`promotion`] is of canaries.
//! Of instances with a [`volume`]: [`volumes`] places them, [`volume_operations`] is what is done on their agents, and
//! [`volume_updates`] what is told of that, and the release.
//! Invariants: a launch is durable before ACCEPT leaves, and the end of a task before it is acknowledged; nothing here reads a clock.

mod changes;
mod clock;
mod commands;
mod dealt;
mod decide;
mod demand;
mod discovery;
mod failure;
mod input;
mod job;
mod kills;
mod launch;
mod lists;
mod names;
mod next_ports;
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
pub use roles::RoleSet;
pub use state::{Options, State};
pub use task_name::TaskName;
pub use tasks::{NoPlace, TaskOrder};
pub use totals::{JobFailures, QUEUE_BOUNDS, Queue, Totals};
pub use view::{
    Authorities, Authority, FailedUpdateView, FailureView, History, JobView, MayRun, TaskView,
    UpdateView, VersionView, VolumeView,
};
