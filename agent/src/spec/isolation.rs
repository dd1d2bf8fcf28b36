//! Translates a task's ContainerInfo into isolation settings.
//!
//! Pure. A request that the node does not allow or cannot fulfil refuses the launch: a task that requested fewer rights
//! must not run with more.

use meseta_isolators::{CapabilityRequest, SeccompChoice, TaskIsolation};
use meseta_proto::Invalid;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::linux_info::IpcMode;

use crate::configuration::isolation::{TaskRights, capability_set};
use crate::core::{LaunchPlan, Subject};

const BYTES_PER_MEGABYTE: u64 = 1 << 20;

/// The isolation that a container requests, or the reason why it is refused.
pub(crate) fn task_isolation(
    rights: &TaskRights,
    plan: &LaunchPlan,
) -> Result<TaskIsolation, Invalid> {
    let is_nested = matches!(plan.subject, Subject::Nested(_));
    let mut isolation = requested(rights, plan.container_info(), is_nested)?;
    isolation.capabilities.granted = rights.grants.granted_to(&plan.user, plan.role.as_ref());
    Ok(isolation)
}

fn requested(
    rights: &TaskRights,
    container: Option<&pb::ContainerInfo>,
    is_nested: bool,
) -> Result<TaskIsolation, Invalid> {
    let Some(linux) = container.and_then(|container| container.linux_info.as_ref()) else {
        return Ok(TaskIsolation::default());
    };
    let (share_ipc_namespace, shm_bytes) = ipc(rights, linux)?;
    if linux.share_pid_namespace() && !rights.share_pid {
        return Err(
            "sharing the agent's pid namespace is not allowed here; its operator can allow it \
             (--disallow_sharing_agent_pid_namespace=false)"
                .into(),
        );
    }
    for (asked, namespace) in [
        (linux.share_pid_namespace(), "pid"),
        (share_ipc_namespace, "ipc"),
    ] {
        // The request means the namespace of the parent container, but the container would share the agent's.
        if asked && is_nested {
            return Err(format!(
                "a nested container cannot share the {namespace} namespace of its parent: leave \
                 the setting out, and it gets a private namespace"
            )
            .into());
        }
    }
    Ok(TaskIsolation {
        seccomp: seccomp(rights, linux.seccomp.as_ref())?,
        capabilities: capabilities(rights, linux)?,
        shm_bytes,
        share_pid_namespace: linux.share_pid_namespace(),
        share_ipc_namespace,
        own_limits: !linux.share_cgroups(),
        ..TaskIsolation::default()
    })
}

fn seccomp(rights: &TaskRights, asked: Option<&pb::SeccompInfo>) -> Result<SeccompChoice, Invalid> {
    let Some(asked) = asked else {
        return Ok(SeccompChoice::Node);
    };
    match (&asked.profile_name, asked.unconfined()) {
        (Some(_), true) => {
            Err("an unconfined container cannot have a seccomp profile".into())
        }
        (None, true) if rights.seccomp && !rights.unconfined => Err("the task asks to run without a system call filter, but this agent does not allow that; its operator can allow it with --allow_unconfined_seccomp".into()),
        (None, true) => Ok(SeccompChoice::Unconfined),
        (None, false) => Ok(SeccompChoice::Node),
        (Some(name), false) if !rights.seccomp => Err(format!(
            "the seccomp profile {name:?} was requested, but this agent's isolation lacks linux/seccomp"
        ).into()),
        (Some(name), false) => match rights.profiles.get(name) {
            Some(profile) => Ok(SeccompChoice::Profile(profile.clone())),
            None => Err(format!("this agent has no seccomp profile {name:?}").into()),
        },
    }
}

fn capabilities(rights: &TaskRights, linux: &pb::LinuxInfo) -> Result<CapabilityRequest, Invalid> {
    // Older frameworks use this field.
    let older = linux.capability_info.as_ref();
    let effective = match (older, &linux.effective_capabilities) {
        (Some(_), Some(_)) => {
            return Err(
                "only one of 'capability_info' and 'effective_capabilities' may be set".into(),
            );
        }
        (one, other) => one.or(other.as_ref()),
    };
    let bounding = linux.bounding_capabilities.as_ref();
    if (effective.is_some() || bounding.is_some()) && !rights.capabilities {
        return Err(
            "capabilities were requested, but this agent's isolation lacks linux/capabilities"
                .into(),
        );
    }
    Ok(CapabilityRequest {
        bounding: bounding.map(capability_set).transpose()?,
        effective: effective.map(capability_set).transpose()?,
        ..CapabilityRequest::default()
    })
}

/// Whether the container shares the host's objects, and the size of its `/dev/shm`.
fn ipc(rights: &TaskRights, linux: &pb::LinuxInfo) -> Result<(bool, Option<u64>), Invalid> {
    let mode = linux.ipc_mode();
    let share = mode == IpcMode::ShareParent;
    if share && !rights.share_ipc {
        return Err(
            "sharing the agent's ipc namespace is not allowed here; its operator can allow it \
             (--disallow_sharing_agent_ipc_namespace=false)"
                .into(),
        );
    }
    if mode == IpcMode::Private && !rights.ipc {
        return Err("a private ipc namespace was requested, but this agent's isolation lacks namespaces/ipc".into());
    }
    let Some(megabytes) = linux.shm_size else {
        return Ok((share, None));
    };
    if mode != IpcMode::Private {
        return Err("'shm_size' can be set only with 'ipc_mode' PRIVATE".into());
    }
    if !rights.shm {
        return Err("'shm_size' was set, and this agent's isolation has no filesystem/shm".into());
    }
    Ok((false, Some(u64::from(megabytes) * BYTES_PER_MEGABYTE)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use meseta_isolators::{SeccompAction, SeccompProfile};
    use meseta_proto::mesos::v1::capability_info::Capability;

    use super::*;

    fn all_rights() -> TaskRights {
        let profile = SeccompProfile::from_otherwise(SeccompAction::Allow);
        TaskRights {
            profiles: Arc::new(BTreeMap::from([("open.json".to_owned(), profile)])),
            share_pid: true,
            share_ipc: true,
            capabilities: true,
            seccomp: true,
            unconfined: true,
            shm: true,
            ipc: true,
            mounts: true,
            ..TaskRights::default()
        }
    }

    fn asked(rights: &TaskRights, linux: pb::LinuxInfo) -> Result<TaskIsolation, Invalid> {
        let container = pb::ContainerInfo {
            r#type: pb::container_info::Type::Mesos.into(),
            linux_info: Some(linux),
            ..pb::ContainerInfo::default()
        };
        requested(rights, Some(&container), false)
    }

    fn capability(one: Capability) -> Option<pb::CapabilityInfo> {
        let capabilities = vec![one.into()];
        Some(pb::CapabilityInfo { capabilities })
    }

    #[test]
    fn requests_are_passed_on() {
        let rights = all_rights();
        let nothing = requested(&rights, None, false);
        assert_eq!(nothing, Ok(TaskIsolation::default()));
        let all = asked(
            &rights,
            pb::LinuxInfo {
                effective_capabilities: capability(Capability::Kill),
                share_pid_namespace: Some(true),
                seccomp: Some(pb::SeccompInfo {
                    profile_name: Some("open.json".to_owned()),
                    unconfined: None,
                }),
                ipc_mode: Some(IpcMode::Private.into()),
                shm_size: Some(8),
                ..pb::LinuxInfo::default()
            },
        );
        let all = all.expect("allowed");
        assert!(all.share_pid_namespace && !all.share_ipc_namespace);
        assert_eq!(all.shm_bytes, Some(8 << 20));
        assert!(
            all.capabilities
                .effective
                .is_some_and(|set| set.has("KILL"))
        );
        assert!(matches!(all.seccomp, SeccompChoice::Profile(_)));
    }

    #[test]
    fn nested_container_gets_own_namespaces() {
        for (linux, namespace) in [
            (
                pb::LinuxInfo {
                    share_pid_namespace: Some(true),
                    ..pb::LinuxInfo::default()
                },
                "pid namespace",
            ),
            (
                pb::LinuxInfo {
                    ipc_mode: Some(IpcMode::ShareParent.into()),
                    ..pb::LinuxInfo::default()
                },
                "ipc namespace",
            ),
        ] {
            assert!(asked(&all_rights(), linux.clone()).is_ok());
            let container = pb::ContainerInfo {
                linux_info: Some(linux),
                ..pb::ContainerInfo::default()
            };
            let error = requested(&all_rights(), Some(&container), true).expect_err(namespace);
            assert!(error.to_string().contains(namespace), "{error}");
        }
    }

    #[test]
    fn invalid_isolation_is_refused() {
        let seccomp = |name: Option<&str>, unconfined| pb::LinuxInfo {
            seccomp: Some(pb::SeccompInfo {
                profile_name: name.map(str::to_owned),
                unconfined: Some(unconfined),
            }),
            ..pb::LinuxInfo::default()
        };
        let ipc = |mode: IpcMode, shm_size| pb::LinuxInfo {
            ipc_mode: Some(mode.into()),
            shm_size,
            ..pb::LinuxInfo::default()
        };
        let shared = pb::LinuxInfo {
            share_pid_namespace: Some(true),
            ..pb::LinuxInfo::default()
        };
        let less = pb::LinuxInfo {
            bounding_capabilities: capability(Capability::Kill),
            ..pb::LinuxInfo::default()
        };
        let none = TaskRights::default();
        let free = pb::LinuxInfo {
            seccomp: Some(pb::SeccompInfo {
                profile_name: None,
                unconfined: Some(true),
            }),
            ..pb::LinuxInfo::default()
        };
        let confined = TaskRights {
            unconfined: false,
            ..all_rights()
        };
        let allowed = asked(&all_rights(), free.clone()).expect("allowed");
        assert_eq!(allowed.seccomp, SeccompChoice::Unconfined);
        for (rights, linux, complaint) in [
            (confined, free, "--allow_unconfined_seccomp"),
            (all_rights(), seccomp(Some("open.json"), true), "unconfined"),
            (
                all_rights(),
                seccomp(Some("../x"), false),
                "no seccomp profile",
            ),
            (
                none.clone(),
                seccomp(Some("x"), false),
                "lacks linux/seccomp",
            ),
            (none.clone(), shared, "pid namespace is not allowed"),
            (
                none.clone(),
                ipc(IpcMode::ShareParent, None),
                "ipc namespace is not allowed",
            ),
            (
                all_rights(),
                ipc(IpcMode::ShareParent, Some(1)),
                "only with 'ipc_mode' PRIVATE",
            ),
            (
                none.clone(),
                ipc(IpcMode::Private, None),
                "lacks namespaces/ipc",
            ),
            (none, less, "lacks linux/capabilities"),
        ] {
            let error = asked(&rights, linux).expect_err(complaint);
            assert!(error.to_string().contains(complaint), "{error}");
        }
    }
}
