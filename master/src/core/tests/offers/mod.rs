//! Offers: what is asked of frameworks before maintenance.

mod inverse;

use super::*;
