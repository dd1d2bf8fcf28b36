//! Disks: sources, volumes, and indivisible resources.

use meseta_resources::{
    Disk, DiskSource, DiskSourceKind, Label, Reservation, Resource, ResourceError, Resources,
    Volume, VolumeMode,
};

use crate::given::{
    all, disk, disk_parts, one, role, shared_volume, sum, volume, volume_disk, volume_on,
};

fn some(resource: &Resource) -> Resources {
    resource.clone().into()
}

#[test]
fn disk_resources_source_identity() {
    for kind in [
        DiskSourceKind::Path,
        DiskSourceKind::Mount,
        DiskSourceKind::Block,
        DiskSourceKind::Raw,
    ] {
        for id in [None, Some("id".to_owned())] {
            let whole = match kind {
                DiskSourceKind::Path => false,
                DiskSourceKind::Mount | DiskSourceKind::Block => true,
                DiskSourceKind::Raw => id.is_some(),
            };
            let source = DiskSource {
                id,
                ..DiskSource::new(kind, None)
            };
            let small = disk(1.0, "*", Some(source.clone()));
            let large = disk(2.0, "*", Some(source));
            assert!(some(&small).contains_resource(&small));
            assert_eq!(some(&large).contains_resource(&small), !whole, "{large}");
            let twice = sum(&[&small, &small]);
            assert_eq!(twice == some(&large), !whole);
            assert_eq!(twice.len(), if whole { 2 } else { 1 });
            assert_eq!(twice.disk(), large.scalar());
        }
    }
}

#[test]
fn disk_source_fields_tell_disks_apart() {
    let plain = DiskSource::mount(None);
    let text = |field: &str| Some(field.to_owned());
    let label = Label {
        key: "k".into(),
        value: None,
    };
    let different = [
        plain.clone(),
        DiskSource::path(None),
        DiskSource::mount(Some("/mnt")),
        DiskSource {
            vendor: text("v"),
            ..plain.clone()
        },
        DiskSource {
            id: text("i"),
            ..plain.clone()
        },
        DiskSource {
            profile: text("p"),
            ..plain.clone()
        },
        DiskSource {
            metadata: [label].into_iter().collect(),
            ..plain
        },
    ];
    for (i, left) in different.iter().enumerate() {
        for (j, right) in different.iter().enumerate() {
            let [left, right] = [left, right].map(|source| disk(1.0, "*", Some(source.clone())));
            assert_eq!(left == right, i == j);
        }
    }
}

#[test]
fn disk_resources_addition() {
    let mount = |path| DiskSource::path(Some(path));
    let plain = disk(10.0, "role", None);
    assert_eq!(sum(&[&plain, &plain]), some(&disk(20.0, "role", None)));
    let (first, second) = (
        volume(10.0, "role", "1", "path"),
        volume(10.0, "role", "2", "path"),
    );
    let both = sum(&[&first, &second]);
    assert!(both.contains_resource(&first) && both.contains_resource(&second));
    assert!(!both.contains_resource(&volume(20.0, "role", "1", "path")));
    let apart = sum(&[
        &disk(10.0, "role", Some(mount("a"))),
        &disk(10.0, "role", Some(mount("b"))),
    ]);
    assert_eq!(apart.len(), 2);
}

#[test]
fn disk_volume_subtraction_is_exact() {
    let (first, second) = (
        volume(10.0, "role", "1", "path"),
        volume(10.0, "role", "2", "path"),
    );
    assert_eq!(some(&first) - &second, some(&first));
    assert!((some(&first) - &first).is_empty());
    // The mount point of a volume does not distinguish it.
    assert!((some(&second) - &volume(10.0, "role", "2", "elsewhere")).is_empty());
    assert_eq!(
        some(&first) - &volume(5.0, "role", "1", "path"),
        some(&first)
    );

    let mount = |megabytes| disk(megabytes, "role", Some(DiskSource::mount(Some("mnt"))));
    assert_eq!(some(&mount(20.0)) - &mount(10.0), some(&mount(20.0)));
    assert!((some(&mount(20.0)) - &mount(20.0)).is_empty());
    let path = |megabytes| disk(megabytes, "role", Some(DiskSource::path(Some("mnt"))));
    assert_eq!(some(&path(20.0)) - &path(10.0), some(&path(10.0)));
    assert_eq!(some(&path(20.0)) - &mount(20.0), some(&path(20.0)));
}

#[test]
fn disk_containment_counts_volume_copies() {
    let volume1 = volume(10.0, "role", "1", "path");
    let twice = sum(&[&volume1, &volume1]);
    assert!(!some(&volume1).contains(&twice));
    assert!(twice.contains(&twice));
    assert!(twice.checked_sub(&some(&volume1)).unwrap() == some(&volume1));
    let mount = disk(10.0, "role", Some(DiskSource::mount(Some("mnt"))));
    let mounts = sum(&[&mount, &mount]);
    assert!(!some(&mount).contains(&mounts) && mounts.contains(&some(&mount)));
    let other = volume(20.0, "role", "2", "path");
    let both = sum(&[&volume1, &other]);
    assert!(both.contains_resource(&volume1) && both.contains_resource(&other));
    let on_mount = |megabytes| {
        volume_on(
            megabytes,
            "role",
            "1",
            "path",
            Some(DiskSource::mount(Some("mnt"))),
        )
    };
    assert!(!some(&on_mount(20.0)).contains_resource(&on_mount(10.0)));
}

#[test]
fn disk_resources_filter_persistent_volumes() {
    let kept = volume(10.0, "role1", "1", "path");
    let resources = all("cpus:1;mem:512;disk:1000") + &sum(&[&kept, &disk(20.0, "role2", None)]);
    assert_eq!(resources.persistent_volumes(), some(&kept));
}

#[test]
fn disk_resources_validation() {
    let mut parts = one("cpus:1").into_parts();
    parts.disk = Some(Disk::default());
    assert!(matches!(
        Resource::new(parts.clone()),
        Err(ResourceError::DiskInfoOnOther(_))
    ));
    parts.disk = None;
    parts.shared = true;
    assert!(matches!(
        Resource::new(parts),
        Err(ResourceError::CannotBeShared(_))
    ));
    let mut parts = disk_parts(1.0, "role", None);
    parts.shared = true;
    assert_eq!(
        Resource::new(parts),
        Err(ResourceError::SharedNotPersistent)
    );
    for kind in [DiskSourceKind::Block, DiskSourceKind::Raw] {
        let source = DiskSource::new(kind, Some("/dev"));
        let parts = disk_parts(
            1.0,
            "*",
            Some(Disk {
                source: Some(source),
                ..Disk::default()
            }),
        );
        assert!(matches!(
            Resource::new(parts),
            Err(ResourceError::RootOnDevice { .. })
        ));
    }
}

#[test]
fn resources_printing_extended_attributes() {
    let base = one("disk(alice):1");
    assert_eq!(base.to_string(), "disk(reservations: [(STATIC,alice)]):1");
    assert_eq!(
        base.clone().with_allocation(Some(role("role"))).to_string(),
        "disk(allocated: role)(reservations: [(STATIC,alice)]):1"
    );
    assert_eq!(
        base.with_revocable(true).to_string(),
        "disk(reservations: [(STATIC,alice)]){REV}:1"
    );
    let hadoop = volume(1.0, "alice", "hadoop", "/data");
    assert_eq!(
        hadoop.to_string(),
        "disk(reservations: [(STATIC,alice)])[hadoop:/data]:1"
    );
    assert_eq!(
        hadoop.with_revocable(true).to_string(),
        "disk(reservations: [(STATIC,alice)])[hadoop:/data]{REV}:1"
    );
    let print = |source: Option<DiskSource>, refined: Option<Reservation>| {
        let mut disk = volume_disk("hadoop", "/data", source);
        disk.volume = Some(Volume {
            container_path: "/data".into(),
            host_path: Some("/hdfs".into()),
            mode: VolumeMode::ReadWrite,
        });
        let mut parts = disk_parts(1.0, "alice", Some(disk));
        parts.reservations.extend(refined);
        Resource::new(parts).unwrap().to_string()
    };
    let alice = "disk(reservations: [(STATIC,alice)])";
    assert_eq!(
        print(None, None),
        format!("{alice}[hadoop:/hdfs:/data:rw]:1")
    );
    assert_eq!(
        print(Some(DiskSource::mount(Some("/mnt1"))), None),
        format!("{alice}[MOUNT:/mnt1,hadoop:/hdfs:/data:rw]:1")
    );
    assert_eq!(
        print(Some(DiskSource::path(Some("/mnt2"))), None),
        format!("{alice}[PATH:/mnt2,hadoop:/hdfs:/data:rw]:1")
    );
    let refined = Reservation {
        labels: [
            Label {
                key: "foo".into(),
                value: Some("bar".into()),
            },
            Label {
                key: "foo".into(),
                value: None,
            },
        ]
        .into_iter()
        .collect(),
        ..Reservation::dynamic(role("alice/refined"), Some("hdfs-p"))
    };
    assert_eq!(
        print(None, Some(refined)),
        "disk(reservations: [(STATIC,alice),(DYNAMIC,alice/refined,hdfs-p,{foo: bar, foo})])\
         [hadoop:/hdfs:/data:rw]:1"
    );
    let csi = DiskSource {
        id: Some("i".into()),
        ..DiskSource::new(DiskSourceKind::Raw, None)
    };
    assert_eq!(disk(1.0, "*", Some(csi)).to_string(), "disk[RAW(,i,)]:1");
    let shared = shared_volume(64.0, "role1", "id1", "path1");
    assert_eq!(
        sum(&[&shared, &shared]).to_string(),
        "disk(reservations: [(STATIC,role1)])[id1:path1]<SHARED>:64<2>"
    );
}
