//! How much a resource may say of itself.
//!
//! A reservation or a volume is kept by its agent, by every master, and in every offer: whoever may reserve a thousandth
//! of a cpu must not fill them with its labels. Invariant: nothing here depends on the cluster.

use meseta_resources::{
    Disk, DiskSource, ID_BYTES_MAX, Labels, Reservation, ReservationKind, Resource,
};

/// Longest name of a resource, and longest principal, in bytes, as of an id.
const NAME_BYTES_MAX: usize = ID_BYTES_MAX;
/// Longest role of a reservation, in bytes: many components, each of which has a bound of its own.
const ROLE_BYTES_MAX: usize = 4096;
/// Longest path, in bytes: the longest that Linux takes.
const PATH_BYTES_MAX: usize = 4096;
/// What the labels of one reservation, keys and values together, may take, in bytes.
const LABELS_BYTES_MAX: usize = 4096;
/// What vendor, id, profile and metadata of a disk's source may take together, in bytes.
const SOURCE_BYTES_MAX: usize = 4096;

/// Refuses resources that are to be reserved, or volumes that are to be made, with too much text.
pub(super) fn check_texts<'a>(
    resources: impl IntoIterator<Item = &'a Resource>,
) -> Result<(), String> {
    let mut resources = resources.into_iter();
    resources
        .try_for_each(check)
        .map_err(|text| format!("Invalid resources: {text}"))
}

/// Static reservations are the agent's own word, and bounded with its description.
fn check(resource: &Resource) -> Result<(), String> {
    check_length(
        "name of a resource",
        resource.name().as_str().len(),
        NAME_BYTES_MAX,
    )?;
    let dynamic = |one: &&Reservation| one.kind == ReservationKind::Dynamic;
    for reservation in resource.reservations().iter().filter(dynamic) {
        check_reservation(reservation)?;
    }
    resource.disk().map_or(Ok(()), check_disk)
}

fn check_reservation(reservation: &Reservation) -> Result<(), String> {
    let role = reservation.role.as_str();
    check_length("role of a reservation", role.len(), ROLE_BYTES_MAX)?;
    let principal = length(reservation.principal.as_deref());
    check_length("principal of a reservation", principal, NAME_BYTES_MAX)?;
    let labels = labels_bytes(&reservation.labels);
    check_length("text of a reservation's labels", labels, LABELS_BYTES_MAX)
}

/// The id of a volume is a directory's name, and bounded as such wherever it comes from.
fn check_disk(disk: &Disk) -> Result<(), String> {
    if let Some(persistence) = &disk.persistence {
        let principal = length(persistence.principal.as_deref());
        check_length("principal of a volume", principal, NAME_BYTES_MAX)?;
    }
    if let Some(volume) = &disk.volume {
        let host_path = length(volume.host_path.as_deref());
        check_length(
            "container_path of a volume",
            volume.container_path.len(),
            PATH_BYTES_MAX,
        )?;
        check_length("host_path of a volume", host_path, PATH_BYTES_MAX)?;
    }
    if let Some(source) = &disk.source {
        let root = length(source.root.as_deref());
        check_length("root of a disk's source", root, PATH_BYTES_MAX)?;
        let text = source_bytes(source);
        check_length("text of a disk's source", text, SOURCE_BYTES_MAX)?;
    }
    Ok(())
}

fn check_length(what: &str, bytes: usize, max: usize) -> Result<(), String> {
    if bytes <= max {
        return Ok(());
    }
    Err(format!("The {what} takes {bytes} bytes, of at most {max}"))
}

fn length(text: Option<&str>) -> usize {
    text.map_or(0, str::len)
}

/// Keys and values together.
fn labels_bytes(labels: &Labels) -> usize {
    let one = |label: &meseta_resources::Label| label.key.len() + length(label.value.as_deref());
    labels.iter().map(one).sum()
}

/// Everything but the root.
fn source_bytes(source: &DiskSource) -> usize {
    let texts = [&source.vendor, &source.id, &source.profile];
    let texts = texts.into_iter().map(|text| length(text.as_deref()));
    texts.sum::<usize>() + labels_bytes(&source.metadata)
}

#[cfg(test)]
mod tests {
    use meseta_resources::{
        Label, Persistence, ResourceName, ResourceParts, Role, Scalar, Value, Volume, VolumeMode,
    };

    use super::*;

    fn reserved(principal: usize, label: usize) -> Resource {
        let name = "x".repeat(principal);
        let role = Role::new("dev").unwrap();
        let mut reservation = Reservation::dynamic(role, Some(&name));
        reservation.labels = Labels::new(vec![Label {
            key: "k".to_owned(),
            value: Some("v".repeat(label)),
        }]);
        let cpus = Resource::cpus(Scalar::from_millis(1));
        cpus.push_reservation(reservation).unwrap()
    }

    fn volume(principal: usize, path: usize) -> Resource {
        Resource::new(ResourceParts {
            reservations: reserved(1, 1).reservations().to_vec(),
            disk: Some(Disk {
                persistence: Some(Persistence {
                    id: "data".into(),
                    principal: Some("x".repeat(principal).into()),
                }),
                volume: Some(Volume {
                    container_path: "p".repeat(path),
                    host_path: None,
                    mode: VolumeMode::ReadWrite,
                }),
                source: None,
            }),
            ..ResourceParts::plain(
                ResourceName::disk(),
                Value::Scalar(Scalar::from_millis(1000)),
            )
        })
        .unwrap()
    }

    #[test]
    fn what_a_reservation_or_volume_says_is_bounded() {
        for short in [reserved(255, 4095), volume(255, 4096)] {
            assert_eq!(check_texts([&short]), Ok(()));
        }
        for (long, what) in [
            (reserved(256, 1), "principal"),
            (reserved(1, 4096), "labels"),
            (volume(256, 1), "principal of a volume"),
            (volume(1, 4097), "container_path"),
        ] {
            let text = check_texts([&long]).unwrap_err();
            assert!(text.contains(what) && text.contains("of at most"), "{text}");
        }
    }
}
