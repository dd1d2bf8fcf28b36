//! The core in virtual time, against a machine and a master made of values.

mod endings;
mod order;
mod recovering;
mod registering;
mod simulation;
mod streams;
