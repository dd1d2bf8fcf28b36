//! Invalid calls, refused before anything changes.

mod tasks;

use super::*;
