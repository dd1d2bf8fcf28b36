//! Size limits of a resource's texts, and the size of one agent's reservations and volumes.
//!
//! The agent, every master and every offer store a reservation or a volume. Whoever may reserve a thousandth of a cpu
//! must not fill their memory with labels. Invariant: no function here depends on the cluster.

use meseta_proto::mesos::v1;
use meseta_proto::schema::WireMessage as _;
use meseta_proto::{Invalid, invalid};
use meseta_resources::{
    Disk, DiskSource, ID_BYTES_MAX, Labels, Operation, Reservation, ReservationKind, Resource,
    Resources, Value,
};

/// The longest name of a resource, and the longest principal, in bytes: the limit of an id.
const NAME_BYTES_MAX: usize = ID_BYTES_MAX;
/// The longest role of a reservation in bytes: many components, each with a limit of its own.
const ROLE_BYTES_MAX: usize = 4096;
/// The longest path in bytes, as in Linux.
const PATH_BYTES_MAX: usize = 4096;
/// The limit in bytes for the labels of one reservation, keys and values together.
const LABELS_BYTES_MAX: usize = 4096;
/// The limit in bytes for vendor, id, profile and metadata of a disk's source together.
const SOURCE_BYTES_MAX: usize = 4096;
/// The limit in encoded bytes for the reservations and volumes of one agent. An agent sends them all in one undivided
/// frame when it reregisters (`divide` in the agent's `reregistration.rs`): they have to fit into a frame of 4 MiB
/// together with its description.
pub(super) const RESERVED_BYTES_MAX: usize = 1 << 20;

/// Refuses resources to reserve, or volumes to create, with too much text.
pub(in crate::core) fn check_texts<'a>(
    resources: impl IntoIterator<Item = &'a Resource>,
) -> Result<(), Invalid> {
    let mut resources = resources.into_iter();
    resources
        .try_for_each(check)
        .map_err(Invalid::within("Invalid resources"))
}

/// Checks the reservations that operations make. Static reservations come from the agent, and the limit of its
/// description covers them.
fn check(resource: &Resource) -> Result<(), Invalid> {
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

fn check_reservation(reservation: &Reservation) -> Result<(), Invalid> {
    let role = reservation.role.as_str();
    check_length("role of a reservation", role.len(), ROLE_BYTES_MAX)?;
    let principal = length(reservation.principal.as_deref());
    check_length("principal of a reservation", principal, NAME_BYTES_MAX)?;
    let labels = labels_bytes(&reservation.labels);
    check_length("text of a reservation's labels", labels, LABELS_BYTES_MAX)
}

/// Checks the texts of a volume. Its id is a directory's name, and is limited as such in every source.
fn check_disk(disk: &Disk) -> Result<(), Invalid> {
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

fn check_length(what: &str, bytes: usize, max: usize) -> Result<(), Invalid> {
    if bytes <= max {
        return Ok(());
    }
    Err(invalid!("The {what} takes {bytes} bytes, of at most {max}"))
}

fn length(text: Option<&str>) -> usize {
    text.map_or(0, str::len)
}

/// The size of keys and values together; a label without either still counts.
fn labels_bytes(labels: &Labels) -> usize {
    let text = |label: &meseta_resources::Label| label.key.len() + length(label.value.as_deref());
    let one = |label| text(label).max(1);
    labels.iter().map(one).sum()
}

/// The size of all texts of a source except the root.
fn source_bytes(source: &DiskSource) -> usize {
    let texts = [&source.vendor, &source.id, &source.profile];
    let texts = texts.into_iter().map(|text| length(text.as_deref()));
    texts.sum::<usize>() + labels_bytes(&source.metadata)
}

/// Refuses an operation that exceeds the limit of one agent's reservations and volumes; `before` and `after` are the
/// [`reserved_bytes`] of all the agent's resources. An operation that makes room is never refused.
pub(in crate::core) fn check_growth(
    operation: &Operation,
    before: usize,
    after: usize,
) -> Result<(), Invalid> {
    if after <= RESERVED_BYTES_MAX || after <= before || frees_resources(operation) {
        return Ok(());
    }
    Err(invalid!(
        "the reservations and volumes of the agent would take {after} bytes, of at most \
         {RESERVED_BYTES_MAX}: unreserve or destroy some, or give them fewer labels"
    ))
}

pub(in crate::core) fn frees_resources(operation: &Operation) -> bool {
    matches!(operation, Operation::Unreserve(_) | Operation::Destroy(_))
}

/// The upper limit of the memory for the decoded reservations and volumes among an agent's resources, in bytes.
pub(in crate::core) fn decoded_bytes(total: &Resources) -> usize {
    let of_labels = |labels: &Labels| labels.iter().len() * v1::Label::SCHEMA.bytes;
    let decoded = |resource: &Resource| {
        let reservations = resource.reservations().iter();
        let reservations = reservations.map(|reservation| {
            v1::resource::ReservationInfo::SCHEMA.bytes + of_labels(&reservation.labels)
        });
        let source = resource.disk().and_then(|disk| disk.source.as_ref());
        let metadata = source.map_or(0, |source| of_labels(&source.metadata));
        let schemas = v1::Resource::SCHEMA.bytes + reservations.sum::<usize>() + metadata;
        encoded_bytes(resource) + schemas
    };
    let reserved = total.iter().filter(|one| one.needs_checkpoint());
    reserved.map(decoded).sum()
}

/// The upper limit of the encoded size of the reservations and volumes among an agent's resources, in bytes.
pub(in crate::core) fn reserved_bytes(total: &Resources) -> usize {
    let reserved = total.iter().filter(|one| one.needs_checkpoint());
    reserved.map(encoded_bytes).sum()
}

/// Computes the encoded size without encoding the resource, because every operation needs it.
fn encoded_bytes(resource: &Resource) -> usize {
    /// The size of keys and lengths of the fields, the kind of the value, and a scalar.
    const ENTRY: usize = 128;
    let reservations = resource.reservations().iter().map(reservation_bytes);
    let disk = resource.disk().map_or(0, disk_bytes);
    let provider = resource.provider_id().map_or(0, |id| id.as_str().len());
    ENTRY
        + provider
        + resource.name().as_str().len()
        + value_bytes(resource.value())
        + reservations.sum::<usize>()
        + disk
}

fn value_bytes(value: &Value) -> usize {
    /// The size of two numbers, or of the key and length of a text.
    const ELEMENT: usize = 24;
    match value {
        Value::Scalar(_) => 0,
        Value::Ranges(ranges) => ranges.as_slice().len() * ELEMENT,
        Value::Set(items) => items.iter().map(|item| item.len() + ELEMENT).sum(),
    }
}

fn reservation_bytes(reservation: &Reservation) -> usize {
    const FIELDS: usize = 32;
    let principal = length(reservation.principal.as_deref());
    FIELDS + reservation.role.as_str().len() + principal + list_bytes(&reservation.labels)
}

fn disk_bytes(disk: &Disk) -> usize {
    const FIELDS: usize = 64;
    let persistence = disk.persistence.as_ref();
    let persistence = persistence.map_or(0, |one| one.id.len() + length(one.principal.as_deref()));
    let volume = disk.volume.as_ref();
    let volume = volume.map_or(0, |volume| {
        volume.container_path.len() + length(volume.host_path.as_deref())
    });
    let source = disk.source.as_ref().map_or(0, |source| {
        length(source.root.as_deref()) + source_bytes(source) + fields_bytes(&source.metadata)
    });
    FIELDS + persistence + volume + source
}

fn list_bytes(labels: &Labels) -> usize {
    labels_bytes(labels) + fields_bytes(labels)
}

/// The encoded size of labels without their keys and values.
fn fields_bytes(labels: &Labels) -> usize {
    const LABEL: usize = 16;
    labels.iter().len() * LABEL
}

#[cfg(test)]
mod tests {
    use meseta_proto::{convert, schema};
    use meseta_resources::{
        Label, Persistence, ResourceName, ResourceParts, Role, Scalar, Volume, VolumeMode,
    };
    use prost::Message as _;

    use super::*;

    fn reserved(principal: usize, label: usize) -> Resource {
        let name = "x".repeat(principal);
        let role = Role::new("dev").unwrap();
        let mut reservation = Reservation::dynamic(role, Some(name.as_str()));
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
    fn counted_bytes_cover_encoded_bytes() {
        let labelled = reserved(200, 4000);
        let ports = Resources::parse("ports(dev):[1-2,4-5,7000-8000];sets:{a,b}", &Role::star());
        let ports = ports.unwrap();
        for resource in ports.iter().chain([&labelled, &volume(200, 4000)]) {
            let message = convert::to_resource(resource, convert::Format::PostRefinement);
            let message = message.unwrap();
            let sent = message.encoded_len();
            let counted = encoded_bytes(resource);
            let alone = Resources::from(resource.clone());
            if resource.needs_checkpoint() {
                let decoded = schema::bytes_of(&message);
                assert!(decoded <= decoded_bytes(&alone), "{decoded}");
            }
            assert!((sent..sent + 300).contains(&counted), "{sent} {counted}");
        }
    }

    #[test]
    fn reservation_bytes_are_limited_except_reductions() {
        let labelled = |number: usize| {
            let plain = reserved(1, 4000).pop_reservation().unwrap();
            let mut reservation = Reservation::dynamic(Role::new("dev").unwrap(), None);
            reservation.labels = Labels::new(vec![Label {
                key: format!("{number:04}"),
                value: Some("v".repeat(4000)),
            }]);
            plain.push_reservation(reservation).unwrap()
        };
        let of = |count: usize| (0..count).map(labelled).collect::<Resources>();
        let of = |count: usize| reserved_bytes(&of(count));
        let (few, many) = (of(200), of(300));
        let operation = Operation::Reserve {
            source: Vec::new(),
            resources: vec![labelled(0)],
        };
        assert_eq!(check_growth(&operation, 0, few), Ok(()));
        let text = check_growth(&operation, few, many).unwrap_err();
        assert!(text.as_str().contains("1048576"), "{text}");
        assert_eq!(check_growth(&operation, of(301), many), Ok(()));
        let operation = Operation::Unreserve(vec![labelled(0)]);
        assert_eq!(check_growth(&operation, few, many), Ok(()));
    }

    /// A label without a text used to count zero toward the limit of a reservation, and took sixteen bytes of each
    /// offer.
    #[test]
    fn labels_without_text_are_limited() {
        let labelled = |number: usize| {
            let without_text = Label {
                key: String::new(),
                value: None,
            };
            let role = Role::new("dev").unwrap();
            let mut reservation = Reservation::dynamic(role, None);
            reservation.labels = Labels::new(vec![without_text.clone(); number]);
            let cpus = Resource::cpus(Scalar::from_millis(1));
            cpus.push_reservation(reservation).unwrap()
        };
        assert_eq!(check_texts([&labelled(LABELS_BYTES_MAX)]), Ok(()));
        let text = check_texts([&labelled(LABELS_BYTES_MAX + 1)]).unwrap_err();
        assert!(text.as_str().contains("labels"), "{text}");
    }

    #[test]
    fn reservation_and_volume_texts_are_limited() {
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
            assert!(
                text.as_str().contains(what) && text.as_str().contains("of at most"),
                "{text}"
            );
        }
    }
}
