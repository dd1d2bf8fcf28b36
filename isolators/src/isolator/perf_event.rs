//! cgroups/perf_event: a group by which the container's events can be counted. No limits, no figures.

use super::Isolator;
use crate::cgroup::Controller;

pub(super) const CONTROLLERS: [Controller; 2] = [Controller::PerfEvent, Controller::Freezer];

#[derive(Debug)]
pub(super) struct PerfEvent;

impl Isolator for PerfEvent {
    fn name(&self) -> &'static str {
        "cgroups/perf_event"
    }

    fn controllers(&self) -> &'static [Controller] {
        &CONTROLLERS
    }
}
