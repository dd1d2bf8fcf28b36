//! Validation of the container and the id of a task or executor by themselves; [`meseta_proto::task_parts`] validates
//! the command and the checks.
//!
//! The rules and messages are those of Mesos. Invariant: no function here depends on the cluster.

use meseta_proto::mesos::v1::{self, ContainerInfo, container_info, volume};
use meseta_proto::{Invalid, invalid};
use meseta_resources::IdError;

pub(super) fn check_container(container: &ContainerInfo) -> Result<(), Invalid> {
    for volume in &container.volumes {
        check_volume(volume).map_err(Invalid::within("Invalid volume"))?;
    }
    if container.r#type == i32::from(container_info::Type::Docker) {
        let missing = "DockerInfo 'docker' is not set for DOCKER typed ContainerInfo";
        let docker = container.docker.as_ref().ok_or(missing)?;
        if docker.parameters.iter().any(|one| one.key == "name") {
            return Err(invalid!("Parameter in DockerInfo must not be 'name'"));
        }
    }
    Ok(())
}

fn check_volume(volume: &v1::Volume) -> Result<(), Invalid> {
    use volume::source::Type;
    let given = [
        volume.host_path.is_some(),
        volume.image.is_some(),
        volume.source.is_some(),
    ];
    if given.into_iter().filter(|given| *given).count() != 1 {
        return Err(invalid!(
            "Only one of them should be set: 'host_path', 'image' and 'source'"
        ));
    }
    let Some(source) = &volume.source else {
        return Ok(());
    };
    let missing = match source.r#type.and_then(|kind| Type::try_from(kind).ok()) {
        Some(Type::DockerVolume) if source.docker_volume.is_none() => {
            "'source.docker_volume' is not set for DOCKER_VOLUME volume"
        }
        Some(Type::HostPath) if source.host_path.is_none() => {
            "'source.host_path' is not set for HOST_PATH volume"
        }
        Some(Type::SandboxPath) if source.sandbox_path.is_none() => {
            "'source.sandbox_path' is not set for SANDBOX_PATH volume"
        }
        Some(Type::Secret) if source.secret.is_none() => {
            "'source.secret' is not set for SECRET volume"
        }
        Some(Type::CsiVolume) => match &source.csi_volume {
            None => "'source.csi_volume' is not set for CSI volume",
            Some(csi) if csi.static_provisioning.is_none() => {
                "'source.csi_volume.static_provisioning' is not set for CSI volume"
            }
            Some(_) => return Ok(()),
        },
        Some(Type::Unknown) | None => "'source.type' is unknown",
        Some(Type::DockerVolume | Type::HostPath | Type::SandboxPath | Type::Secret) => {
            return Ok(());
        }
    };
    Err(missing.into())
}

/// Whether the tasks of a container share its cgroups, which is the default.
pub(in crate::core) fn shares_groups(container: Option<&v1::ContainerInfo>) -> bool {
    container
        .and_then(|container| container.linux_info.as_ref())
        .and_then(|linux| linux.share_cgroups)
        .unwrap_or(true)
}

/// The message of Mesos for an invalid id.
pub(super) fn id_text(error: &IdError) -> String {
    match error {
        IdError::Empty { .. } => "ID must not be empty".to_owned(),
        IdError::TooLong { max, .. } => format!("ID must not be greater than {max} characters"),
        IdError::Disallowed { id, .. } => format!("'{id}' is disallowed"),
        IdError::InvalidCharacter { id, .. } => {
            format!("'{}' contains invalid characters", id.escape_debug())
        }
    }
}
