//! A small language for the allocator's tests: short forms of resources, and commands that make transcripts.

pub(crate) mod resources;
pub(crate) mod script;
