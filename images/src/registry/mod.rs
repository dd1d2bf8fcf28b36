//! The client of registries: manifests and blobs over https.
//!
//! A [`RegistryClient`] serves all pulls. Its [`RegistryClient::repository`] is the view of one pull: one repository, one set of
//! credentials, one cancellation. Invariant: every wait, body and number of attempts has a limit, and a password is sent only to
//! the registry that it belongs to, or to that registry's token service.
//!
//! - `endpoint`: the servers of a registry, mirrors first, and the check of redirects
//! - `challenge`: `WWW-Authenticate`, the check of token services, their answers
//! - `retry`: the decision to repeat a request
//! - `error`: failures of requests
//! - `client`: requests, authentication, manifests
//! - `blob`: the download of a blob, which continues after a cut

mod blob;
mod challenge;
mod client;
mod endpoint;
mod error;
mod retry;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use blob::BlobReader;
pub use client::{FetchedManifest, RegistryClient, RegistryOptions, Repository, Timeouts};
pub use endpoint::RegistrySettings;
pub use error::{Cause, RegistryError};
