//! The record of reservations and volumes, and its copy: damage to either of them loses nothing.

use std::fs;

use proptest::prelude::*;

use super::super::{Image, Repair, Store, Write, read};
use super::*;

/// The kind of disk that holds a volume.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(in crate::checkpoint) enum Disk {
    Path,
    Mount,
}

impl Disk {
    fn source(self, root: &Path) -> pb::resource::disk_info::Source {
        use pb::resource::disk_info::{Source, source};
        let root = Some(root.display().to_string());
        match self {
            Self::Path => Source {
                r#type: source::Type::Path.into(),
                path: Some(source::Path { root }),
                ..Source::default()
            },
            Self::Mount => Source {
                r#type: source::Type::Mount.into(),
                mount: Some(source::Mount { root }),
                ..Source::default()
            },
        }
    }
}

fn volume_of(role: &str, source: Option<pb::resource::disk_info::Source>) -> Resource {
    let volume = pb::Resource {
        name: "disk".to_owned(),
        r#type: pb::value::Type::Scalar.into(),
        scalar: Some(pb::value::Scalar { value: 10.0 }),
        reservations: vec![pb::resource::ReservationInfo {
            r#type: Some(pb::resource::reservation_info::Type::Dynamic.into()),
            role: Some(role.to_owned()),
            ..pb::resource::ReservationInfo::default()
        }],
        disk: Some(Box::new(pb::resource::DiskInfo {
            persistence: Some(pb::resource::disk_info::Persistence {
                id: "v".to_owned(),
                principal: None,
            }),
            volume: Some(pb::Volume {
                container_path: "data".to_owned(),
                mode: pb::volume::Mode::Rw.into(),
                ..pb::Volume::default()
            }),
            source,
        })),
        ..pb::Resource::default()
    };
    convert::resource(&volume).expect("a volume")
}

/// A volume of this role on a disk of its own.
pub(in crate::checkpoint) fn volume_on(disk: Disk, root: &Path, role: &str) -> Resource {
    volume_of(role, Some(disk.source(root)))
}

/// A record of these volumes.
pub(in crate::checkpoint) fn holdings_of(
    holds: &[&Resource],
    created: &[&Resource],
    destroyed: &[&Resource],
) -> Write {
    let all = |volumes: &[&Resource]| volumes.iter().copied().cloned().collect();
    Write::Resources {
        holdings: Arc::new(Holdings {
            resources: holds.iter().copied().cloned().collect(),
            operations: Vec::new(),
        }),
        created: all(created),
        destroyed: all(destroyed),
    }
}

/// A record with one new volume of this role.
pub(in crate::checkpoint) fn holdings_with(role: &str) -> Write {
    let volume = volume_of(role, None);
    holdings_of(&[&volume], &[&volume], &[])
}

/// The kind of damage to a file.
#[derive(Clone, Debug)]
enum Harm {
    Removed,
    /// Cut off at this position, in thousandths of the length.
    Cut(usize),
    /// A flipped bit in the byte at this position, in thousandths of the length.
    Flipped(usize, u8),
    Zeroes,
    /// The version of the file this many records ago.
    Older(usize),
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        Just(Harm::Removed),
        (0..1_000_usize).prop_map(Harm::Cut),
        (0..1_000_usize, 0..8_u8).prop_map(|(at, bit)| Harm::Flipped(at, bit)),
        Just(Harm::Zeroes),
        (1..4_usize).prop_map(Harm::Older),
    ]
}

impl Harm {
    fn apply(&self, path: &Path, earlier: &[Vec<u8>]) {
        let mut bytes = fs::read(path).expect("there");
        let at = |part: usize| part * bytes.len() / 1_000;
        match self {
            Self::Removed => return fs::remove_file(path).expect("removed"),
            Self::Cut(part) => {
                let at = at(*part);
                bytes.truncate(at);
            }
            Self::Flipped(part, bit) => {
                let at = at(*part);
                bytes[at] ^= 1 << bit;
            }
            Self::Zeroes => bytes.fill(0),
            Self::Older(records) => match earlier.iter().rev().nth(*records) {
                Some(older) => bytes.clone_from(older),
                None => return fs::remove_file(path).expect("removed"),
            },
        }
        fs::write(path, bytes).expect("written");
    }
}

/// The roles of the recorded volumes.
fn roles(image: &Image) -> Vec<String> {
    let record = image.holdings.as_ref().expect("a record");
    let reservations = record.resources.iter().flat_map(|it| &it.reservations);
    reservations.filter_map(|it| it.role.clone()).collect()
}

fn has_damage_of(image: &Image, path: &Path) -> bool {
    image.damages.iter().any(|damage| damage.path == path)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn newest_record_survives_damaged_copy(
        records in 1..5_usize,
        harm in harm(),
        is_copy in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(dir.path());
        let store = Store::open(layout.clone());
        let path = if is_copy { layout.holdings_copy() } else { layout.holdings() };
        let mut earlier = Vec::new();
        for record in 0..records {
            store.commit(&[holdings_with(&format!("r{record}"))]).expect("written");
            earlier.push(fs::read(&path).expect("there"));
        }
        let newest = vec![format!("r{}", records - 1)];
        harm.apply(&path, &earlier);
        let is_harmed = fs::read(&path).ok().as_ref() != earlier.last();
        let image = read(&layout).expect("readable");
        prop_assert_eq!(roles(&image), newest.clone());
        // A missing or older copy may also be the result of a crash, so the agent does not report it.
        let is_named = !is_copy || !matches!(harm, Harm::Removed | Harm::Older(_));
        // The checksum of the record does not cover the version; 0 is read as 1.
        let is_readable = fs::read(&path).is_ok_and(|bytes| super::super::frame::decode_file(&bytes).is_ok());
        let is_same = is_readable && !matches!(harm, Harm::Older(_));
        prop_assert_eq!(has_damage_of(&image, &path), is_harmed && is_named && !is_same, "{:?}", image.damages);
        let repairs = image.repairs.clone();
        let store = Store::open(layout.clone()).after(&image);
        store.commit(&[Write::Repair { repairs }]).expect("repaired");
        let again = read(&layout).expect("readable");
        prop_assert_eq!(roles(&again), newest);
        prop_assert!(again.damages.is_empty() && again.repairs.is_empty());
        // The next record is newer than both.
        store.commit(&[holdings_with("next")]).expect("written");
        Harm::Removed.apply(&path, &earlier);
        prop_assert_eq!(roles(&read(&layout).expect("readable")), ["next"]);
        // A record of an earlier agent process, restored by a disk, is older.
        fs::write(&path, earlier.last().expect("a record")).expect("written");
        prop_assert_eq!(roles(&read(&layout).expect("readable")), ["next"]);
    }
}

/// An earlier agent left the record without a copy.
#[test]
fn missing_copy_is_written_without_damage() {
    let dir = tempfile::tempdir().expect("a directory");
    let layout = Layout::new(dir.path());
    let store = Store::open(layout.clone());
    store.commit(&[holdings_with("r")]).expect("written");
    fs::remove_file(layout.holdings_copy()).expect("removed");
    let image = read(&layout).expect("readable");
    assert!(image.damages.is_empty());
    assert!(matches!(image.repairs[..], [Repair::WriteHoldings { .. }]));
    let repairs = image.repairs;
    store
        .commit(&[Write::Repair { repairs }])
        .expect("repaired");
    let of = |path: PathBuf| fs::read(path).expect("there");
    assert_eq!(of(layout.holdings()), of(layout.holdings_copy()));
}
