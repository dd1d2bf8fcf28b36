//! cgroups/perf_event: a group for counting the container's events. No limits, no figures.

use super::Isolator;
use crate::cgroup::Controller;

#[derive(Debug)]
pub(super) struct PerfEvent;

impl Isolator for PerfEvent {
    fn name(&self) -> &'static str {
        "cgroups/perf_event"
    }

    fn controllers(&self) -> &'static [Controller] {
        &[Controller::PerfEvent, Controller::Freezer]
    }
}
