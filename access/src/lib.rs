//! Authentication and authorization rules: credentials, ACLs, rate limits.
//!
//! The entry points are [`Authorizer::allows`], [`Credentials::find`] and [`exposure::check`]. Values in, decisions out: no
//! socket, no file, no clock. Invariant: unknown input is refused, and no secret is kept or shown, only its hash.

pub mod acl;
pub mod action;
pub mod authorizer;
pub mod basic;
pub mod browser;
pub mod credentials;
pub mod executor_token;
pub mod exposure;
pub mod rate_limits;
mod unique_keys;

pub use acl::{AclError, Acls};
pub use action::{Action, PATHS};
pub use authorizer::{Approver, Authorizer, Extent, Forbidden};
pub use credentials::{Credential, CredentialError, Credentials, SecretHash};
pub use executor_token::{Claims, TokenKey};
