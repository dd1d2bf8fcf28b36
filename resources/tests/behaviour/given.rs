//! Short constructors for the values of the tests.

use meseta_resources::{
    Disk, DiskSource, Label, Labels, Persistence, Ranges, Reservation, Resource, ResourceName,
    ResourceParts, ResourceQuantities, Resources, Role, Scalar, Value, Volume, VolumeMode,
};

pub(crate) fn role(text: &str) -> Role {
    Role::new(text).unwrap()
}

pub(crate) fn all(text: &str) -> Resources {
    Resources::parse(text, &Role::star()).unwrap_or_else(|error| panic!("{error}"))
}

/// The single resource that the text describes.
pub(crate) fn one(text: &str) -> Resource {
    let resources = all(text);
    assert_eq!(resources.len(), 1, "{text}");
    resources.iter().next().unwrap().clone()
}

pub(crate) fn refused(text: &str) -> String {
    Resources::parse(text, &Role::star())
        .expect_err(text)
        .to_string()
}

pub(crate) fn ranges(text: &str) -> Ranges {
    all(&format!("ports:{text}")).ports().unwrap_or_default()
}

pub(crate) fn scalar(value: f64) -> Scalar {
    Scalar::from_f64(value).unwrap()
}

pub(crate) fn name(text: &str) -> ResourceName {
    ResourceName::new(text).unwrap()
}

pub(crate) fn quantities(text: &str) -> ResourceQuantities {
    text.parse().unwrap()
}

pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
    let label = |(key, value): &(&str, &str)| Label {
        key: (*key).into(),
        value: Some((*value).into()),
    };
    pairs.iter().map(label).collect()
}

pub(crate) fn dynamic(to: &str, principal: &str) -> Reservation {
    Reservation::dynamic(role(to), Some(principal))
}

pub(crate) fn labelled(to: &str, principal: &str, pairs: &[(&str, &str)]) -> Reservation {
    Reservation {
        labels: labels(pairs),
        ..dynamic(to, principal)
    }
}

pub(crate) fn reserved(text: &str, reservation: &Reservation) -> Resource {
    one(text).push_reservation(reservation.clone()).unwrap()
}

pub(crate) fn revocable(text: &str) -> Resources {
    all(text).with_revocable(true)
}

pub(crate) fn disk_parts(megabytes: f64, to: &str, disk: Option<Disk>) -> ResourceParts {
    let reservations = match role(to) {
        star if star.is_star() => Vec::new(),
        other => vec![Reservation::fixed(other)],
    };
    ResourceParts {
        reservations,
        disk,
        ..ResourceParts::plain(ResourceName::disk(), Value::Scalar(scalar(megabytes)))
    }
}

pub(crate) fn disk(megabytes: f64, to: &str, source: Option<DiskSource>) -> Resource {
    let disk = Disk {
        source,
        ..Disk::default()
    };
    Resource::new(disk_parts(megabytes, to, Some(disk))).unwrap()
}

pub(crate) fn volume_disk(id: &str, path: &str, source: Option<DiskSource>) -> Disk {
    Disk {
        persistence: Some(Persistence {
            id: id.into(),
            principal: None,
        }),
        volume: Some(Volume {
            container_path: path.into(),
            host_path: None,
            mode: VolumeMode::ReadWrite,
        }),
        source,
    }
}

pub(crate) fn volume(megabytes: f64, to: &str, id: &str, path: &str) -> Resource {
    volume_on(megabytes, to, id, path, None)
}

pub(crate) fn volume_on(
    megabytes: f64,
    to: &str,
    id: &str,
    path: &str,
    source: Option<DiskSource>,
) -> Resource {
    Resource::new(disk_parts(
        megabytes,
        to,
        Some(volume_disk(id, path, source)),
    ))
    .unwrap()
}

pub(crate) fn shared_volume(megabytes: f64, to: &str, id: &str, path: &str) -> Resource {
    let parts = volume(megabytes, to, id, path).into_parts();
    Resource::new(ResourceParts {
        shared: true,
        ..parts
    })
    .unwrap()
}

pub(crate) fn sum(resources: &[&Resource]) -> Resources {
    resources
        .iter()
        .map(|resource| (*resource).clone())
        .collect()
}
