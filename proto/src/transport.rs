//! HTTP, in the clear or over TLS: one server with authentication and one client, for both daemons, the command line and the tests.
//!
//! Neither knows what is spoken over it: routes are the daemons', messages are in [`crate::media`].

pub mod authentication;
pub mod body;
pub mod client;
pub mod files;
pub mod messages;
pub mod owner;
pub mod request;
pub mod server;
pub mod tls;
mod watched;

#[cfg(test)]
mod tests;
