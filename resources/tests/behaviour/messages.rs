//! Validation of the contents of messages: every rule, in both reservation formats.

use meseta_resources::{
    DiskSourceKind, Persistence, RawDisk, RawDiskSource, RawReservation, RawReservationKind,
    RawResource, Resource, Resources, ValueKind,
};

use crate::given::{all, dynamic, labels, one, reserved, role};

fn cpus() -> RawResource {
    RawResource {
        name: "cpus".into(),
        kind: Some(ValueKind::Scalar),
        scalar: Some(8.0),
        ..RawResource::default()
    }
}

fn disk(raw: RawDisk) -> RawResource {
    RawResource {
        name: "disk".into(),
        disk: Some(raw),
        ..cpus()
    }
}

fn entry(kind: RawReservationKind, role: &str) -> RawReservation {
    RawReservation {
        kind: Some(kind),
        role: Some(role.into()),
        ..RawReservation::default()
    }
}

fn principal(name: &str) -> RawReservation {
    RawReservation {
        principal: Some(name.into()),
        ..RawReservation::default()
    }
}

fn accept(raw: RawResource) -> Resource {
    Resource::try_from(raw).unwrap_or_else(|error| panic!("{error}"))
}

type Change = fn(&mut RawResource);

fn with(mut raw: RawResource, change: impl FnOnce(&mut RawResource)) -> RawResource {
    change(&mut raw);
    raw
}

#[track_caller]
fn refuse(raw: RawResource, expected: &str) {
    let text = format!("{raw:?}");
    let error = Resource::try_from(raw).expect_err(&text).to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn value_must_fit_its_type() {
    assert_eq!(accept(cpus()), one("cpus:8"));
    let scalar = "Invalid scalar resource";
    let changes: [(Change, &str); 7] = [
        (|raw| raw.name.clear(), "Empty resource name"),
        (|raw| raw.kind = None, "Invalid resource type"),
        (
            |raw| raw.kind = Some(ValueKind::Text),
            "Unsupported resource type",
        ),
        (|raw| raw.scalar = None, scalar),
        (|raw| raw.set = Some(Vec::new()), scalar),
        (
            |raw| raw.kind = Some(ValueKind::Ranges),
            "Invalid ranges resource",
        ),
        (
            |raw| raw.kind = Some(ValueKind::Set),
            "Invalid set resource",
        ),
    ];
    for (change, expected) in changes {
        refuse(with(cpus(), change), expected);
    }
}

#[test]
fn invalid_scalars_are_refused() {
    let with = |value| RawResource {
        scalar: Some(value),
        ..cpus()
    };
    assert!(accept(with(0.0)).is_empty());
    refuse(with(-1.0), "Invalid scalar resource: value < 0");
    refuse(with(0.0001), "Invalid scalar resource: value <= 0");
    refuse(with(f64::NAN), "not a finite number");
    refuse(with(f64::INFINITY), "not a finite number");
    refuse(with(1e300), "out of range");
}

#[test]
fn overlapping_ranges_duplicate_items_are_refused() {
    let ranges = |ranges: &[(u64, u64)]| RawResource {
        name: "ports".into(),
        kind: Some(ValueKind::Ranges),
        scalar: None,
        ranges: Some(ranges.to_vec()),
        ..cpus()
    };
    assert_eq!(
        accept(ranges(&[(7, 9), (1, 3), (4, 4)])),
        one("ports:[1-4,7-9]")
    );
    refuse(ranges(&[(1, 3), (9, 7)]), "begin > end");
    refuse(
        ranges(&[(1, 9), (20, 30), (3, 4)]),
        "overlapping ranges: 1-9 and 3-4",
    );
    refuse(ranges(&[(1, 3), (3, 4)]), "overlapping ranges");
    let set = |items: &[&str]| RawResource {
        name: "disks".into(),
        kind: Some(ValueKind::Set),
        scalar: None,
        set: Some(items.iter().map(|item| (*item).into()).collect()),
        ..cpus()
    };
    assert_eq!(accept(set(&["b", "a"])), one("disks:{a,b}"));
    refuse(set(&["b", "a", "b"]), "duplicated elements: 'b'");
}

#[test]
fn disk_info_is_for_disks() {
    refuse(
        with(cpus(), |raw| raw.disk = Some(RawDisk::default())),
        "DiskInfo should not be set for cpus resource",
    );
    let source = |kind, path, mount| {
        let source = RawDiskSource {
            kind,
            path,
            mount,
            ..RawDiskSource::default()
        };
        disk(RawDisk {
            source: Some(source),
            ..RawDisk::default()
        })
    };
    let root = || Some(Some("/mnt".to_owned()));
    refuse(
        source(None, None, None),
        "Unsupported 'DiskInfo.Source.Type'",
    );
    for (kind, name) in [
        (DiskSourceKind::Block, "BLOCK"),
        (DiskSourceKind::Raw, "RAW"),
    ] {
        refuse(
            source(Some(kind), None, Some(None)),
            "Mount should not be set for",
        );
        refuse(
            source(Some(kind), root(), None),
            &format!("Path should not be set for {name}"),
        );
    }
    let mount = accept(source(Some(DiskSourceKind::Mount), None, root()));
    assert_eq!(mount.to_string(), "disk[MOUNT:/mnt]:8");
    let persistence = |id: &str| {
        let persistence = Persistence {
            id: id.into(),
            principal: None,
        };
        disk(RawDisk {
            persistence: Some(persistence),
            ..RawDisk::default()
        })
    };
    refuse(
        persistence("../../etc"),
        "contains invalid characters: '/' at byte 2",
    );
    refuse(persistence(""), "Persistence ID must not be empty");
    assert!(accept(persistence("data")).is_persistent_volume());
    let shared = |raw| with(raw, |raw| raw.shared = true);
    refuse(shared(cpus()), "Resource cpus cannot be shared");
    refuse(
        shared(disk(RawDisk::default())),
        "Only persistent volumes can be shared",
    );
    assert!(accept(shared(persistence("data"))).is_shared());
}

#[test]
fn resource_format_pre_reservation_refinement() {
    let with = |role: Option<&str>, reservation| RawResource {
        role: role.map(Into::into),
        reservation,
        ..cpus()
    };
    assert_eq!(accept(with(None, None)), one("cpus:8"));
    assert_eq!(accept(with(Some("*"), None)), one("cpus:8"));
    assert_eq!(accept(with(Some("a"), None)), one("cpus(a):8"));
    assert_eq!(
        accept(with(Some("a"), Some(principal("p")))),
        reserved("cpus:8", &dynamic("a", "p"))
    );
    refuse(with(Some("a//b"), None), "two adjacent slashes");
    refuse(
        with(None, Some(principal("p"))),
        "Invalid reservation: role \"*\" cannot be dynamically reserved",
    );
    refuse(
        with(Some("a"), Some(entry(RawReservationKind::Dynamic, "a"))),
        "'Resource.ReservationInfo.type' must not be set",
    );
    let only_role = RawReservation {
        kind: None,
        ..entry(RawReservationKind::Dynamic, "a")
    };
    refuse(
        with(Some("a"), Some(only_role)),
        "'Resource.ReservationInfo.role' must not be set",
    );
}

#[test]
fn resource_format_post_reservation_refinement() {
    use RawReservationKind::{Dynamic, Static, Unknown};
    let with = |reservations: &[RawReservation]| RawResource {
        reservations: reservations.to_vec(),
        ..cpus()
    };
    assert_eq!(accept(with(&[entry(Static, "a")])), one("cpus(a):8"));
    let refined = accept(with(&[entry(Static, "a"), entry(Dynamic, "a/b")]));
    assert_eq!(refined.reservation_role(), Some(&role("a/b")));
    refuse(
        with(&[RawReservation {
            kind: None,
            ..entry(Static, "a")
        }]),
        "'Resource.ReservationInfo.type' field must be set.",
    );
    refuse(
        with(&[RawReservation {
            role: None,
            ..entry(Static, "a")
        }]),
        "'Resource.ReservationInfo.role' field must be set.",
    );
    refuse(
        with(&[entry(Unknown, "a")]),
        "Unsupported 'Resource.ReservationInfo.Type'",
    );
    refuse(
        with(&[entry(Static, "*")]),
        "Invalid reservation: role \"*\" cannot be reserved",
    );
    refuse(with(&[entry(Static, "/a")]), "cannot start with a slash");
    refuse(
        with(&[entry(Dynamic, "a"), entry(Static, "a/b")]),
        "A refined reservation cannot be STATIC",
    );
    refuse(
        with(&[entry(Dynamic, "a"), entry(Dynamic, "b")]),
        "role 'b' is not a refinement of 'a'",
    );
    refuse(
        with(&[entry(Dynamic, "a"), entry(Dynamic, "a")]),
        "is not a refinement of",
    );
}

#[test]
fn endpoint_formats_must_agree() {
    use RawReservationKind::{Dynamic, Static};
    let both = |role: Option<&str>, reservation, reservations: &[RawReservation]| RawResource {
        role: role.map(Into::into),
        reservation,
        reservations: reservations.to_vec(),
        ..cpus()
    };
    let by_p = RawReservation {
        principal: Some("p".into()),
        ..entry(Dynamic, "a")
    };
    let expected = reserved("cpus:8", &dynamic("a", "p"));
    assert_eq!(
        accept(both(
            Some("a"),
            Some(principal("p")),
            std::slice::from_ref(&by_p)
        )),
        expected
    );
    assert_eq!(
        accept(both(None, None, std::slice::from_ref(&by_p))),
        expected
    );
    assert_eq!(
        accept(both(Some("a"), None, &[entry(Static, "a")])),
        one("cpus(a):8")
    );
    refuse(
        both(Some("b"), None, &[entry(Static, "a")]),
        "does not match the role 'a'",
    );
    refuse(
        both(Some("a"), Some(principal("p")), &[entry(Static, "a")]),
        "must not be set if the single reservation in 'Resource.reservations' is STATIC",
    );
    refuse(
        both(Some("a"), None, std::slice::from_ref(&by_p)),
        "must either be both set or both not set",
    );
    refuse(
        both(None, Some(principal("p")), std::slice::from_ref(&by_p)),
        "must either be both set",
    );
    refuse(
        both(Some("a"), Some(principal("q")), std::slice::from_ref(&by_p)),
        "'Resource.reservation.principal' field does not match",
    );
    let labelled = RawReservation {
        labels: labels(&[("k", "v")]),
        ..principal("p")
    };
    refuse(
        both(Some("a"), Some(labelled), std::slice::from_ref(&by_p)),
        "'Resource.reservation.labels'",
    );
    let stack = [by_p, entry(Dynamic, "a/b")];
    refuse(
        both(Some("a"), None, &stack),
        "'Resource.role' must not be set",
    );
    refuse(
        both(None, Some(principal("p")), &stack),
        "'Resource.reservation' must not be set",
    );
}

#[test]
fn default_role_keeps_explicit_role() {
    let mut raw = cpus();
    raw.set_default_role(&role("a"));
    assert_eq!(accept(raw.clone()), one("cpus(a):8"));
    raw.set_default_role(&role("b"));
    assert_eq!(accept(raw), one("cpus(a):8"));
    let mut stacked = RawResource {
        reservations: vec![entry(RawReservationKind::Static, "c")],
        ..cpus()
    };
    stacked.set_default_role(&role("a"));
    assert_eq!(Resources::from(accept(stacked)), all("cpus(c):8"));
}

#[test]
fn allocation_and_provider_are_validated() {
    let allocated = RawResource {
        allocation_role: Some("a/b".into()),
        ..cpus()
    };
    assert_eq!(accept(allocated).allocation_role(), Some(&role("a/b")));
    refuse(
        RawResource {
            allocation_role: Some("a b".into()),
            ..cpus()
        },
        "whitespace",
    );
    refuse(
        RawResource {
            provider_id: Some("a/b".into()),
            ..cpus()
        },
        "Resource provider ID",
    );
}
