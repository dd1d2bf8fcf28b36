//! The scheduler in the box: services, batch and cron jobs from a file, as an ordinary framework of the v1 API.
//!
//! [`spec`] is what a job is, which [`file`](mod@file) reads; [`core`] decides, [`placement`] says where tasks go and
//! [`task_info`] what is launched there. Invariant: nothing here knows a master or an agent but by what any framework
//! may send and see.

pub mod core;
pub mod file;
pub mod placement;
pub mod spec;
pub mod task_info;
