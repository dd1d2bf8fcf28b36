//! What the daemons are made of: server and client, TLS, authentication, admission, outbox, log level.
//!
//! One [`server`] with [`authentication`] and one [`client`], over HTTP in the clear or over [`tls`], for both daemons,
//! the command line and the tests. Neither knows what is spoken over it: handlers are the daemons', in a table of
//! [`routes`]; messages are in [`meseta_proto::media`]. [`outbox`] holds effects back until they are durable,
//! [`fair_semaphore`] shares a limit among peers, [`work_dir`] keeps a directory from others, [`database_file`] reads a
//! database before it is changed, [`compression`] says which answers are worth it, [`disk_pulse`] tells whether a disk answers, [`clock`] reads the time
//! for a core, [`hostname`] is what a daemon is called, [`advertised`] where others reach it, [`user`] who runs it, [`build_info`] says which
//! program runs, [`descriptors`] how many files it has open, [`flag_error`] what is wrong with a flag, [`untrusted`] makes the text of
//! others fit for a log or a terminal. Invariant: no handler runs before its request is authenticated, and no part of a
//! request is read without a bound.

pub mod advertised;
pub mod authentication;
pub mod background;
pub mod body;
pub mod build_info;
pub mod calendar;
pub mod client;
pub mod clock;
pub mod compression;
pub mod database_file;
pub mod descriptors;
pub mod disk_pulse;
pub mod error_chain;
pub mod fair_semaphore;
pub mod files;
pub mod flag_error;
pub mod hostname;
pub mod leader;
pub mod messages;
pub mod outbox;
pub mod owner;
pub mod page;
pub mod query;
pub mod request;
pub mod routes;
pub mod server;
pub mod task_sockets;
pub mod tls;
pub mod untrusted;
pub mod user;
pub mod verbosity;
mod watched;
pub mod work_dir;

#[cfg(test)]
mod tests;
