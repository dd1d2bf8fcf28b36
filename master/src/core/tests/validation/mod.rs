//! What is refused before anything changes.

mod tasks;

use super::*;
