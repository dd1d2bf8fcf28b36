//! The common parts of the daemons: server and client, TLS, authentication, admission, outbox, log level.
//!
//! The daemons, the command line and the tests share one [`server`] with [`authentication`] and one [`client`], with or
//! without [`tls`]. Both are independent of message contents: the daemons own the handlers, in a table of [`routes`], and
//! [`meseta_proto::media`] the messages.
//!
//! - [`outbox`]: effects that wait until they are durable; [`fair_semaphore`]: a limit shared among peers.
//! - [`work_dir`]: a private directory; [`database_file`]: the inspection of a database before it is changed;
//!   [`disk_pulse`]: the silence of a disk.
//! - [`compression`]: the choice of compressed answers; [`untrusted`]: foreign text made safe for a log or a terminal.
//! - [`clock`]: the time for a core; [`hostname`]: the name of a daemon; [`advertised`]: its address; [`user`]: its user;
//!   [`build_info`]: its build; [`descriptors`]: its open files; [`flag_error`]: an error in a flag.
//!
//! Invariant: no handler runs before its request is authenticated, and no part of a request is read without a bound.

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
