//! The contract of the crate, by subject: values, collections, reservations, disks, operations, text.
//!
//! Tests named after a Mesos suite (`values_`, `resources_`, `reserved_`, ...) state the behaviour that the suite of that
//! name asserts there, in our words.

mod allocated;
mod attributes;
mod collections;
mod disks;
mod given;
mod messages;
mod operations;
mod parsing;
mod properties;
mod reserved;
mod roles_and_ids;
mod shared;
mod units;
mod values;
