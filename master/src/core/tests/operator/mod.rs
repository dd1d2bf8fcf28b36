//! What operators change, and what they are told.

mod events;
pub(super) mod maintenance;
mod operations;
mod quota;
mod weights;

use super::*;
