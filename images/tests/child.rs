//! The unpacking child, started by this executable, and its folders under overlayfs.
//!
//! Needs root. A test that cannot run here prints the reason and is listed as ignored.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use libtest_mimic::{Arguments, Failed, Trial};
use meseta_images::descriptor::{Algorithm, BlobDescriptor, Compression, Digest, LayerDescriptor};
use meseta_images::store::{NewImage, Store, StoreError, StoreOptions, Unpacker};
use meseta_images::unpack::{ChildError, Limits, unpack_in_child};

const LIMITS: Limits = Limits {
    content_bytes: 64 << 20,
    entries: 10_000,
    path_bytes: 1 << 20,
};

type Test = (&'static str, fn() -> Result<(), Failed>);

const TESTS: &[Test] = &[
    (
        "layer_is_unpacked_in_confinement",
        layer_is_unpacked_in_confinement,
    ),
    ("refusal_has_its_reason", refusal_has_its_reason),
    ("cut_blob_is_an_error", cut_blob_is_an_error),
    ("bomb_stops_the_reader", bomb_stops_the_reader),
    ("image_is_stored_by_children", image_is_stored_by_children),
    (
        "merged_image_equals_applied_layers",
        merged_image_equals_applied_layers,
    ),
];

fn main() -> ExitCode {
    if let Some(code) = meseta_images::unpack::run_if_requested() {
        return code;
    }
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("not run: only root may give files to other users");
    }
    let trials = TESTS
        .iter()
        .map(|(name, test)| Trial::test(*name, *test).with_ignored_flag(!is_root));
    let mut arguments = Arguments::from_args();
    // Each test starts processes.
    arguments.test_threads.get_or_insert(2);
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// An archive with these files and contents.
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, data) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        header.set_uid(7);
        header.set_gid(8);
        builder
            .append_data(&mut header, path, *data)
            .expect("appended");
    }
    builder.into_inner().expect("finished")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::read::GzEncoder::new(bytes, flate2::Compression::fast());
    let mut compressed = Vec::new();
    encoder.read_to_end(&mut compressed).expect("compressed");
    compressed
}

fn describe(blob: &[u8], content: &[u8]) -> LayerDescriptor {
    LayerDescriptor {
        compression: Compression::Gzip,
        blob: BlobDescriptor {
            digest: Digest::from_content(blob),
            size: blob.len() as u64,
            urls: Vec::new(),
        },
        diff_id: Digest::from_content(content),
    }
}

fn layer_is_unpacked_in_confinement() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let content = archive(&[("a/b", &[7; 300_000]), ("c", b"")]);
    let blob = gzip(&content);
    let (report, confinement) = unpack_in_child(
        &mut blob.as_slice(),
        folder.path(),
        Algorithm::Sha256,
        &LIMITS,
    )?;
    assert_eq!(report.diff_id, Some(Digest::from_content(&content)));
    assert_eq!(fs::read(folder.path().join("a/b"))?, [7; 300_000]);
    assert_eq!(fs::metadata(folder.path().join("c"))?.uid(), 7);
    assert!(confinement.own_root && confinement.own_network && confinement.fewer_capabilities);
    if confinement.landlock == 0 {
        eprintln!("not run: this kernel has no landlock");
    }
    Ok(())
}

fn refusal_has_its_reason() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let unpack = |blob: &[u8], limits: &Limits| {
        unpack_in_child(&mut { blob }, folder.path(), Algorithm::Sha256, limits)
    };
    let few = Limits {
        entries: 1,
        ..LIMITS
    };
    let blob = archive(&[("a", b""), ("b", b"")]);
    let refused = unpack(&blob, &few).expect_err("too many");
    assert!(matches!(refused, ChildError::Refused { .. }), "{refused}");
    assert!(
        refused.to_string().contains("more than 1 files"),
        "{refused}"
    );
    let refused = unpack(
        b"no archive, but long enough for a header"
            .repeat(20)
            .as_slice(),
        &LIMITS,
    );
    assert!(
        refused
            .expect_err("damaged")
            .to_string()
            .contains("checksum")
    );
    Ok(())
}

/// A blob whose connection breaks behind its last byte, as if its digest were wrong.
struct Cut<'a>(&'a [u8]);

impl Read for Cut<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self.0.read(to)? {
            0 => Err(io::Error::other("cut")),
            count => Ok(count),
        }
    }
}

fn cut_blob_is_an_error() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let blob = archive(&[("a", b"x")]);
    let cut = unpack_in_child(&mut Cut(&blob), folder.path(), Algorithm::Sha256, &LIMITS);
    assert!(matches!(cut, Err(ChildError::Blob(_))), "{cut:?}");
    Ok(())
}

/// A blob without end.
struct Endless(u64);

impl Read for Endless {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        to.fill(1);
        self.0 += to.len() as u64;
        Ok(to.len())
    }
}

fn bomb_stops_the_reader() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let mut header = tar::Header::new_ustar();
    header.set_path("endless")?;
    header.set_size(1 << 32);
    header.set_cksum();
    let mut endless = Endless(0);
    let mut blob = header.as_bytes().as_slice().chain(&mut endless);
    let stopped = unpack_in_child(&mut blob, folder.path(), Algorithm::Sha256, &LIMITS);
    assert!(
        matches!(stopped, Err(ChildError::Refused { .. })),
        "{stopped:?}"
    );
    // The limit, and the buffers between.
    assert!(
        endless.0 < LIMITS.content_bytes + (8 << 20),
        "{}",
        endless.0
    );
    Ok(())
}

fn open(root: &Path) -> Result<Store, StoreError> {
    Store::open(&StoreOptions {
        root: root.to_owned(),
        unpacker: Unpacker::default(),
    })
}

fn pull(
    store: &Store,
    name: &str,
    layers: &[Vec<u8>],
) -> Result<meseta_images::store::ImageRecord, StoreError> {
    let staging = store.begin_image();
    let mut descriptors = Vec::new();
    for content in layers {
        let blob = gzip(content);
        let layer = describe(&blob, content);
        staging.unpack_layer(&layer, &mut blob.as_slice())?;
        descriptors.push(layer);
    }
    let image = NewImage {
        name: name.to_owned(),
        manifest_digest: Digest::from_content(b"manifest"),
        config: b"{}".to_vec(),
        layers: descriptors,
    };
    staging.commit(image, SystemTime::now())
}

fn image_is_stored_by_children() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let store = open(folder.path())?;
    let image = pull(
        &store,
        "a",
        &[archive(&[("x", b"1")]), archive(&[("y", b"2")])],
    )?;
    assert_eq!(store.find("a")?, Some(image.clone()));
    let folders = store.lower_folders(&image)?;
    assert_eq!(fs::read(folders[0].join("y"))?, b"2");
    assert_eq!(fs::read(folders[1].join("x"))?, b"1");
    Ok(())
}

/// Mounts folders, uppermost first, as a container's root file system is mounted.
fn mount(folders: &[std::path::PathBuf], target: &Path) -> rustix::io::Result<()> {
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create,
        fsconfig_set_string, fsmount, fsopen, move_mount,
    };
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for folder in folders {
        let folder = folder.to_str().unwrap_or_default();
        fsconfig_set_string(&context, "lowerdir+", folder)?;
    }
    fsconfig_create(&context)?;
    let mount = fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::MOUNT_ATTR_RDONLY,
    )?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&mount, "", rustix::fs::CWD, target, flags)
}

fn merged_image_equals_applied_layers() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let store = open(&folder.path().join("store"))?;
    let mut base = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_size(0);
    header.set_mode(0o1777);
    base.append_data(&mut header, "tmp", io::empty())?;
    let mut header = tar::Header::new_ustar();
    header.set_size(4);
    header.set_mode(0o755);
    for path in ["bin/tool", "bin/other", "etc/old/x", "etc/kept/x"] {
        base.append_data(&mut header, path, &b"text"[..])?;
    }
    let base = base.into_inner()?;
    let mut bytes = archive(&[
        ("tmp/x", b"new"),
        ("bin/.wh.other", b""),
        ("etc/old/.wh..wh..opq", b""),
        ("etc/old/y", b"new"),
    ]);
    // Without the end marker, so that more entries can follow.
    bytes.truncate(bytes.len() - 1024);
    let mut top = tar::Builder::new(bytes);
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Link);
    header.set_size(0);
    top.append_link(&mut header, "sbin/tool", "bin/tool")?;
    let image = pull(&store, "a", &[base, top.into_inner()?])?;
    let target = folder.path().join("merged");
    fs::create_dir(&target)?;
    if let Err(error) = mount(&store.lower_folders(&image)?, &target) {
        eprintln!("not run: this kernel does not stack the folders: {error}");
        return Ok(());
    }
    let checked = check_merged(&target);
    rustix::mount::unmount(&target, rustix::mount::UnmountFlags::DETACH)?;
    checked
}

fn check_merged(root: &Path) -> Result<(), Failed> {
    assert_eq!(fs::metadata(root.join("tmp"))?.mode() & 0o7777, 0o1777);
    assert_eq!(fs::read(root.join("tmp/x"))?, b"new");
    assert_eq!(fs::read(root.join("sbin/tool"))?, b"text");
    assert_eq!(fs::metadata(root.join("sbin/tool"))?.mode() & 0o777, 0o755);
    let names = |path: &str| -> io::Result<Vec<_>> {
        let mut names = fs::read_dir(root.join(path))?
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    };
    assert_eq!(names("bin")?, ["tool"]);
    assert_eq!(names("etc/old")?, ["y"]);
    assert_eq!(names("etc/kept")?, ["x"]);
    Ok(())
}
