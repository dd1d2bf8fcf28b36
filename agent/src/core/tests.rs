//! The core in virtual time, against a simulated machine and master.

mod checking;
mod custom;
mod delivering;
mod draining;
mod endings;
mod executor_kills;
mod groups;
mod hung_disk;
mod limits;
mod lost_records;
mod messages;
mod operations;
mod order;
mod oversubscribing;
mod pausing;
mod preempting;
mod recovering;
mod registering;
mod retiring;
mod shutting_down;
mod simulation;
mod streams;
