//! Helpers that read single fields of Mesos messages.

use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_resources::{Now, Resources, Role};

/// The user of a task: from its command, or else from its framework.
pub(super) fn user_of(command: Option<&pb::CommandInfo>, framework: &pb::FrameworkInfo) -> String {
    command
        .and_then(|command| command.user.clone())
        .unwrap_or_else(|| framework.user.clone())
}

/// The persistent volumes among resources.
pub(crate) fn volumes_among<'a>(
    resources: impl IntoIterator<Item = &'a pb::Resource>,
) -> Vec<pb::Resource> {
    let is_volume = |resource: &&pb::Resource| {
        let disk = resource.disk.as_ref();
        disk.is_some_and(|disk| disk.persistence.is_some())
    };
    resources.into_iter().filter(is_volume).cloned().collect()
}

/// The role to which the resources are allocated.
pub(super) fn role_of(resources: &Resources) -> Option<Role> {
    resources
        .iter()
        .find_map(|resource| resource.allocation_role().cloned())
}

/// Converts a duration; Mesos's durations may be negative, which counts as zero.
pub(super) fn duration(info: &pb::DurationInfo) -> Duration {
    Duration::from_nanos(u64::try_from(info.nanoseconds).unwrap_or(0))
}

pub(super) fn unix_ns(now: Now) -> u64 {
    u64::try_from(now.unix.as_nanos()).unwrap_or(u64::MAX)
}
