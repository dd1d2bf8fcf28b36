//! HTTP: one server and one client, for both daemons, the command line and the tests.
//!
//! Neither knows what is spoken over it: routes are the daemons', messages are in [`crate::media`].

pub mod client;
pub mod server;

#[cfg(test)]
mod tests;
