//! What the fuzz targets run, and tests may run too: bodies that take bytes.
//!
//! A body panics when what it was given breaks a promise; refusing it is no such thing.

pub mod doors;
pub mod master_core;
pub mod mutate;
pub mod parsers;
pub mod specs;
