//! Changes by operators, and their answers.

mod events;
pub(super) mod maintenance;
mod operations;
mod quota;
mod weights;

use super::*;
