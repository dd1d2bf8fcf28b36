//! Changes by operators, and their answers.

mod drains;
mod events;
pub(super) mod maintenance;
mod operations;
mod quota;
mod weights;

use super::*;
