//! A small language for the allocator's tests: resources in short, and commands that make transcripts.

pub(crate) mod resources;
pub(crate) mod script;
