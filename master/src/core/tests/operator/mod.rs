//! What operators change, and what they are told.

mod events;
pub(super) mod maintenance;
mod operations;
pub(super) mod quota;
mod weights;

use super::*;
