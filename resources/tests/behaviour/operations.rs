//! RESERVE, UNRESERVE, CREATE, DESTROY, GROW_VOLUME, SHRINK_VOLUME.

use meseta_resources::{
    Conversion, ConversionError, DiskSource, Resource, ResourceParts, Resources, VolumeMode,
};

use crate::given::{
    all, disk, dynamic, one, reserved, scalar, shared_volume, sum, volume, volume_on,
};

fn apply(
    resources: &Resources,
    conversion: Result<Conversion, ConversionError>,
) -> Option<Resources> {
    conversion.unwrap().apply(resources).ok()
}

#[test]
fn operation_reserve() {
    let unreserved = all("cpus:1;mem:512");
    let target = Resources::from(reserved("cpus:1", &dynamic("role", "principal")));
    let expected = all("mem:512") + &target;
    assert_eq!(
        apply(&unreserved, Conversion::reserve(&target)),
        Some(expected)
    );
    let more = Resources::from(reserved("cpus:2", &dynamic("role", "principal")));
    let error = Conversion::reserve(&more)
        .unwrap()
        .apply(&unreserved)
        .unwrap_err();
    assert!(matches!(error, ConversionError::NotContained(_)));
    assert!(
        error
            .to_string()
            .contains("cpus:1; mem:512 does not contain cpus:2"),
        "{error}"
    );
}

#[test]
fn operation_reserve_refines() {
    let fixed = all("cpus(a):4");
    let target = Resources::from(reserved("cpus(a):1", &dynamic("a/b", "p")));
    let result = apply(&fixed, Conversion::reserve(&target)).unwrap();
    assert_eq!(result, all("cpus(a):3") + &target);
    assert_eq!(apply(&result, Conversion::unreserve(&target)), Some(fixed));
}

#[test]
fn reserve_requires_dynamic_nonrevocable_resources() {
    assert!(matches!(
        Conversion::reserve(&all("cpus(role):1")),
        Err(ConversionError::Reservation(_))
    ));
    assert!(matches!(
        Conversion::unreserve(&all("cpus:1")),
        Err(ConversionError::Reservation(_))
    ));
    let oversubscribed = reserved("cpus:1", &dynamic("role", "p")).with_revocable(true);
    assert!(matches!(
        Conversion::reserve(&oversubscribed.into()),
        Err(ConversionError::Revocable(_))
    ));
}

#[test]
fn operation_reserve_from_a_source() {
    let to = |role: &str| {
        all("cpus:2;mem:4")
            .push_reservation(&dynamic(role, "p"))
            .unwrap()
    };
    let total = to("a") + &all("disk:1");
    let expected = to("b") + &all("disk:1");
    assert_eq!(
        apply(&total, Conversion::rereserve(&to("a"), &to("b"))),
        Some(expected)
    );
    let more = all("cpus:3").push_reservation(&dynamic("b", "p")).unwrap();
    assert!(matches!(
        Conversion::rereserve(&to("a"), &more),
        Err(ConversionError::QuantitiesDiffer { .. })
    ));
    let mixed = all("cpus:2").push_reservation(&dynamic("b", "p")).unwrap()
        + &all("mem:4").push_reservation(&dynamic("c", "p")).unwrap();
    assert!(matches!(
        Conversion::rereserve(&to("a"), &mixed),
        Err(ConversionError::StacksDiffer(..))
    ));
}

#[test]
fn operation_unreserve() {
    let cpus = Resources::from(reserved("cpus:1", &dynamic("role", "p")));
    let mem = Resources::from(reserved("mem:512", &dynamic("role", "p")));
    let total = &cpus + &mem;
    assert_eq!(
        apply(&total, Conversion::unreserve(&cpus)),
        Some(all("cpus:1") + &mem)
    );
    let part = Resources::from(reserved("mem:12", &dynamic("role", "p")));
    let rest = Resources::from(reserved("mem:500", &dynamic("role", "p")));
    assert_eq!(
        apply(&total, Conversion::unreserve(&part)),
        Some(cpus + &all("mem:12") + &rest)
    );
    let more = Resources::from(reserved("cpus:2", &dynamic("role", "p")));
    assert_eq!(apply(&total, Conversion::unreserve(&more)), None);
    let mut parts = volume(1.0, "*", "1", "path").into_parts();
    parts.reservations = vec![dynamic("role", "p")];
    let kept = Resource::new(parts).unwrap();
    assert!(matches!(
        Conversion::unreserve(&kept.into()),
        Err(ConversionError::VolumePresent(_))
    ));
}

#[test]
fn operation_create_and_destroy() {
    let total = all("cpus:1;mem:512;disk(role):1000");
    for made in [
        volume(200.0, "role", "1", "path"),
        shared_volume(200.0, "role", "1", "path"),
    ] {
        let created = apply(&total, Conversion::create(&made)).unwrap();
        assert_eq!(
            created,
            all("cpus:1;mem:512;disk(role):800") + &sum(&[&made])
        );
        assert_eq!(
            apply(&created, Conversion::destroy(&made)),
            Some(total.clone())
        );
        assert_eq!(apply(&total, Conversion::destroy(&made)), None);
    }
    assert_eq!(
        apply(
            &total,
            Conversion::create(&volume(2000.0, "role", "1", "path"))
        ),
        None
    );
    assert_eq!(
        apply(
            &total,
            Conversion::create(&volume(1.0, "other", "1", "path"))
        ),
        None
    );
}

#[test]
fn create_consumes_whole_mount_disk() {
    let source = || Some(DiskSource::mount(Some("mnt")));
    let total = Resources::from(disk(200.0, "role", source()));
    let whole = volume_on(200.0, "role", "1", "path", source());
    assert_eq!(
        apply(&total, Conversion::create(&whole)),
        Some(sum(&[&whole]))
    );
    let part = volume_on(50.0, "role", "1", "path", source());
    assert_eq!(apply(&total, Conversion::create(&part)), None);
}

#[test]
fn operation_create_validates_the_volume() {
    let change = |change: &dyn Fn(&mut ResourceParts)| {
        let mut parts = volume(1.0, "role", "1", "path").into_parts();
        change(&mut parts);
        Conversion::create(&Resource::new(parts).unwrap())
    };
    let mode = |parts: &mut ResourceParts| {
        let volume = parts.disk.as_mut().unwrap().volume.as_mut().unwrap();
        volume.mode = VolumeMode::ReadOnly;
    };
    let host = |parts: &mut ResourceParts| {
        let volume = parts.disk.as_mut().unwrap().volume.as_mut().unwrap();
        volume.host_path = Some("/etc".into());
    };
    assert!(change(&|_| {}).is_ok());
    assert!(matches!(change(&mode), Err(ConversionError::ReadOnly(_))));
    assert!(matches!(change(&host), Err(ConversionError::HostPath(_))));
    assert!(matches!(
        change(&|parts| parts.disk.as_mut().unwrap().volume = None),
        Err(ConversionError::NoVolume(_))
    ));
    assert!(matches!(
        change(&|parts| parts.disk.as_mut().unwrap().persistence = None),
        Err(ConversionError::NotPersistent(_))
    ));
    assert!(matches!(
        change(&|parts| parts.reservations.clear()),
        Err(ConversionError::NotReserved(_))
    ));
    assert!(matches!(
        change(&|parts| parts.revocable = true),
        Err(ConversionError::Revocable(_))
    ));
    assert!(matches!(
        Conversion::destroy(&one("disk:1")),
        Err(ConversionError::NotPersistent(_))
    ));
}

#[test]
fn operation_destroy_refuses_while_copies_remain() {
    let shared = shared_volume(200.0, "role", "1", "path");
    let total = all("disk(role):800") + &sum(&[&shared, &shared]);
    let error = Conversion::destroy(&shared)
        .unwrap()
        .apply(&total)
        .unwrap_err();
    assert!(matches!(error, ConversionError::CopiesRemain(_)));
}

#[test]
fn operation_grow_and_shrink() {
    let small = volume(100.0, "role", "1", "path");
    let large = volume(150.0, "role", "1", "path");
    let total = all("disk(role):80") + &sum(&[&small]);
    let grown = apply(&total, Conversion::grow(&small, &one("disk(role):50"))).unwrap();
    assert_eq!(grown, all("disk(role):30") + &sum(&[&large]));
    assert_eq!(
        apply(&grown, Conversion::shrink(&large, scalar(50.0))),
        Some(total)
    );

    for wrong in [one("disk:50"), one("disk(other):50"), one("mem(role):50")] {
        assert!(matches!(
            Conversion::grow(&small, &wrong),
            Err(ConversionError::Addition { .. })
        ));
    }
    for wrong in [0.0, -1.0, 100.0, 101.0] {
        assert!(matches!(
            Conversion::shrink(&small, scalar(wrong)),
            Err(ConversionError::Subtract { .. })
        ));
    }
    let shared = shared_volume(100.0, "role", "1", "path");
    assert!(matches!(
        Conversion::shrink(&shared, scalar(1.0)),
        Err(ConversionError::Shared(_))
    ));
    let mount = volume_on(9.0, "role", "1", "path", Some(DiskSource::mount(None)));
    assert!(matches!(
        Conversion::shrink(&mount, scalar(1.0)),
        Err(ConversionError::Indivisible(_))
    ));
}

#[test]
fn operations_keep_quantities() {
    let target = Resources::from(reserved("cpus:1", &dynamic("role", "principal")));
    let made = volume(200.0, "role", "1", "path");
    let large = volume(150.0, "role", "1", "path");
    for conversion in [
        Conversion::reserve(&target),
        Conversion::unreserve(&target),
        Conversion::create(&made),
        Conversion::destroy(&made),
        Conversion::grow(&made, &one("disk(role):3")),
        Conversion::shrink(&large, scalar(3.5)),
    ] {
        let conversion = conversion.unwrap();
        assert_eq!(
            conversion.consumed().quantities(),
            conversion.produced().quantities()
        );
    }
}
