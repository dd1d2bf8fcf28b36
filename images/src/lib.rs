//! Container images: pulled from registries and folders, unpacked layer by layer, and stored by content.
//!
//! A pull asks a registry for the manifest of a [`reference`], streams the missing layers through an unpacking child
//! process into the store, and records the image when all layers are on disk. The crate has no async runtime; a pull
//! runs on threads of its own. Invariant: no byte of an image becomes visible under its name before its digest, size and
//! content digest are checked, and no password reaches a host to which it does not belong.
//!
//! In order of dependence:
//!
//! - `descriptor`: digests, and the description of blobs and layers
//! - `reference`: names of images
//! - `manifest`, `config`: the documents that describe an image, and the choice of a platform
//! - `wait`, `activity`: time, cancellation and the visible progress of a download
//! - `credentials`: passwords of registries
//! - `registry`: the client of registries
//! - `archive`: a folder of archives in place of a registry
//! - `origin`: from the name of an image to its layers
//! - `unpack`: layers as folders, written by a confined child process
//! - `store`: layers and images on disk, and their removal
//! - `user`, `command`: the user and the command of an image's tasks
//! - `pull`: which downloads run when, shared among all that wait for an image
//! - `settings`: the operator's settings, as flags give them

pub mod activity;
pub mod archive;
pub mod command;
pub mod config;
pub mod credentials;
pub mod descriptor;
pub mod manifest;
pub mod origin;
pub mod pull;
pub mod reference;
pub mod registry;
pub mod settings;
pub mod store;
mod sys;
pub mod unpack;
pub mod user;
pub mod wait;
