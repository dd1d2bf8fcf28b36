//! Layers of every kind, unpacked in this process.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use tar::EntryType;
use tempfile::TempDir;

use super::testing::{Layer, is_root};
use super::*;
use crate::descriptor::Digest;

const LIMITS: Limits = Limits {
    content_bytes: 10 << 20,
    entries: 1000,
    path_bytes: 100_000,
};

/// A layer that was unpacked into a temporary folder.
struct Unpacked {
    folder: TempDir,
    report: Report,
}

impl Unpacked {
    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn mode(&self, path: &str) -> u32 {
        self.metadata(path).mode() & 0o7777
    }

    fn metadata(&self, path: &str) -> fs::Metadata {
        let metadata = fs::symlink_metadata(self.path(path));
        metadata.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn is_whiteout(&self, path: &str) -> bool {
        let metadata = self.metadata(path);
        metadata.file_type().is_char_device() && metadata.rdev() == 0
    }

    fn exists(&self, path: &str) -> bool {
        fs::symlink_metadata(self.path(path)).is_ok()
    }
}

fn try_unpack(blob: &[u8], limits: &Limits) -> Result<Unpacked, UnpackError> {
    let folder = tempfile::tempdir().expect("a folder");
    let files = folder.path().join("fs");
    fs::create_dir(&files).expect("created");
    let open = || OwnedFd::from(File::open(&files).expect("opened"));
    let report = unpack(blob, open(), Algorithm::Sha256, limits)?;
    apply_deferred(&open(), &report)?;
    assert_eq!(
        fs::read_dir(folder.path()).expect("listed").count(),
        1,
        "beside the folder"
    );
    let moved = tempfile::tempdir().expect("a folder");
    fs::remove_dir(moved.path()).expect("removed");
    fs::rename(&files, moved.path()).expect("renamed");
    Ok(Unpacked {
        folder: moved,
        report,
    })
}

fn unpack_layer(layer: Layer) -> Unpacked {
    try_unpack(&layer.build(), &LIMITS).unwrap_or_else(|error| panic!("{error}"))
}

fn refuse(layer: Layer) -> String {
    match try_unpack(&layer.build(), &LIMITS) {
        Err(UnpackError::Refused(refusal)) => refusal.to_string(),
        Err(error) => panic!("no refusal: {error}"),
        Ok(_) => panic!("unpacked"),
    }
}

#[test]
fn common_entries_become_files() {
    if !is_root() {
        return;
    }
    let layer = Layer::new()
        .owner(12, 34)
        .folder("etc/")
        .mode(0o640)
        .file("etc/conf", "text")
        .symlink("etc/link", "/outside/../conf")
        .hard_link("etc/hard", "etc/conf")
        .fifo("etc/pipe");
    let blob = layer.clone().build();
    let unpacked = unpack_layer(layer);
    assert_eq!(unpacked.text("etc/conf"), "text");
    let metadata = unpacked.metadata("etc/conf");
    assert_eq!(
        (metadata.uid(), metadata.gid(), metadata.mtime()),
        (12, 34, 1_000_000_000)
    );
    assert_eq!(unpacked.mode("etc/conf"), 0o640);
    assert_eq!(unpacked.metadata("etc/hard").ino(), metadata.ino());
    let link = fs::read_link(unpacked.path("etc/link")).expect("a link");
    assert_eq!(link, PathBuf::from("/outside/../conf"));
    assert_eq!(unpacked.metadata("etc/link").uid(), 12);
    assert!(unpacked.metadata("etc/pipe").file_type().is_fifo());
    assert_eq!(unpacked.mode("etc/pipe"), 0o640);
    assert_eq!(unpacked.metadata("etc").mtime(), 1_000_000_000);
    assert_eq!(unpacked.report.diff_id, Some(Digest::from_content(&blob)));
    assert_eq!(unpacked.report.content_bytes, blob.len() as u64);
    assert_eq!(unpacked.report.implied, [""]);
}

#[test]
fn own_files_survive_own_whiteouts() {
    if !is_root() {
        return;
    }
    let unpacked = unpack_layer(
        Layer::new()
            .file("before", "x")
            .file(".wh.before", "")
            .file(".wh.after", "")
            .file("after", "x")
            .file(".wh.gone", ""),
    );
    assert_eq!(unpacked.text("before"), "x");
    assert_eq!(unpacked.text("after"), "x");
    assert!(unpacked.is_whiteout("gone"));
}

#[test]
fn whiteout_makes_own_folder_opaque() {
    if !is_root() {
        return;
    }
    let layer = Layer::new()
        .folder("a")
        .file("a/x", "")
        .file(".wh.a", "")
        .file("b/x", "")
        .file(".wh.b", "");
    let unpacked = unpack_layer(layer);
    assert_eq!(unpacked.report.opaque, ["a", "b"]);
    // The lower folder is gone, so its mode does not count.
    assert_eq!(unpacked.report.implied, [""]);
    let mut value = [0; 8];
    let length = rustix::fs::getxattr(
        unpacked.path("a"),
        "trusted.overlay.opaque",
        value.as_mut_slice(),
    );
    assert_eq!(length, Ok(1));
    assert_eq!(&value[..1], b"y");
}

#[test]
fn opaque_marker_counts_after_siblings() {
    if !is_root() {
        return;
    }
    let layer = Layer::new()
        .folder("a")
        .file("a/x", "x")
        .file("a/.wh..wh..opq", "");
    let unpacked = unpack_layer(layer);
    assert_eq!(unpacked.report.opaque, ["a"]);
    assert_eq!(unpacked.text("a/x"), "x");
    assert!(!unpacked.exists("a/.wh..wh..opq"));
    let root = unpack_layer(Layer::new().file(".wh..wh..opq", ""));
    assert_eq!(root.report.opaque, [""]);
    assert!(hides_no_folder(&root));
}

fn hides_no_folder(unpacked: &Unpacked) -> bool {
    let path = unpacked.path("");
    rustix::fs::getxattr(path, "trusted.overlay.opaque", [0; 8].as_mut_slice()).is_err()
}

#[test]
fn nameless_whiteouts_are_refused() {
    if !is_root() {
        return;
    }
    for name in ["a/.wh.", "a/.wh..", "a/.wh..."] {
        assert!(
            refuse(Layer::new().file(name, "")).contains("without a name"),
            "{name}"
        );
    }
    assert!(refuse(Layer::new().file(".wh.a/b", "")).contains("below a whiteout"));
    // The records of AUFS are no files.
    let unpacked = unpack_layer(
        Layer::new()
            .folder(".wh..wh.plnk")
            .file(".wh..wh.plnk/1.2", ""),
    );
    assert!(!unpacked.exists(".wh..wh.plnk"));
}

#[test]
fn implied_folders_are_reported() {
    if !is_root() {
        return;
    }
    let unpacked = unpack_layer(
        Layer::new()
            .file("tmp/x", "")
            .file("a/b/c/d", "")
            .mode(0o1777)
            .folder("a/b"),
    );
    assert_eq!(unpacked.report.implied, ["", "a", "a/b/c", "tmp"]);
    assert_eq!(unpacked.mode("tmp"), 0o755);
    assert_eq!(unpacked.mode("a/b"), 0o1777);
}

#[test]
fn names_stay_below_the_folder() {
    if !is_root() {
        return;
    }
    let unpacked = unpack_layer(
        Layer::new()
            .file("../../esc", "1")
            .file("/abs", "2")
            .file("./a/.././b", "3")
            .hard_link("link", "../../../abs"),
    );
    for (path, text) in [("esc", "1"), ("abs", "2"), ("b", "3"), ("link", "2")] {
        assert_eq!(unpacked.text(path), text);
    }
}

#[test]
fn links_lead_nowhere_outside() {
    if !is_root() {
        return;
    }
    let outside = tempfile::tempdir().expect("a folder");
    let target = outside.path().to_str().expect("UTF-8").to_owned();
    let unpacked = unpack_layer(
        Layer::new()
            .symlink("out", &target)
            .file("out/x", "inside")
            .symlink("up", "../../..")
            .file("up/y", "inside")
            .folder("usr/lib")
            .symlink("lib", "usr/lib")
            .file("lib/z", "inside")
            .symlink("out2", &target)
            .file("out2", "replaced"),
    );
    assert_eq!(fs::read_dir(outside.path()).expect("listed").count(), 0);
    let inside = format!("{}/x", target.trim_start_matches('/'));
    assert_eq!(unpacked.text(&inside), "inside");
    assert_eq!(unpacked.text("y"), "inside");
    assert_eq!(unpacked.text("usr/lib/z"), "inside");
    assert_eq!(unpacked.text("out2"), "replaced");
    let looped = Layer::new()
        .symlink("a", "b")
        .symlink("b", "a")
        .file("a/x", "");
    assert!(refuse(looped).contains("loop"));
    assert!(refuse(Layer::new().file("a", "").file("a/x", "")).contains("below a file"));
}

#[test]
fn last_entry_of_a_path_wins() {
    if !is_root() {
        return;
    }
    let unpacked = unpack_layer(
        Layer::new()
            .file("file", "one")
            .file("file", "two")
            .file("to-folder", "")
            .folder("to-folder")
            .file("to-folder/x", "")
            .folder("to-file/a/b")
            .file("to-file/a/b/c", "")
            .file("to-file", "file")
            .folder("kept")
            .file("kept/x", "x")
            .mode(0o700)
            .folder("kept")
            .symlink("link", "nowhere")
            .mode(0o600)
            .file("link", "file"),
    );
    assert_eq!(unpacked.text("file"), "two");
    assert!(unpacked.exists("to-folder/x"));
    assert_eq!(unpacked.text("to-file"), "file");
    assert_eq!(unpacked.text("kept/x"), "x");
    assert_eq!(unpacked.mode("kept"), 0o700);
    assert_eq!(unpacked.text("link"), "file");
    assert_eq!(unpacked.report.implied, [""]);
}

#[test]
fn links_to_lower_files_are_reported() {
    if !is_root() {
        return;
    }
    let unpacked = unpack_layer(
        Layer::new()
            .hard_link("bin/late", "late")
            .hard_link("bin/lower", "bin/tool")
            .hard_link("replaced", "bin/tool")
            .file("late", "x")
            .file("replaced", "file"),
    );
    let links = [("bin/lower".to_owned(), "bin/tool".to_owned())];
    assert_eq!(unpacked.report.links, links);
    assert_eq!(unpacked.text("bin/late"), "x");
    assert_eq!(unpacked.text("replaced"), "file");
    assert!(!unpacked.exists("bin/lower"));
    assert!(refuse(Layer::new().folder("a").hard_link("b", "a")).contains("to a folder"));
    assert!(refuse(Layer::new().hard_link("b", "..")).contains("to a folder"));
}

#[test]
fn devices_are_made_except_whiteouts() {
    if !is_root() {
        return;
    }
    let unpacked = unpack_layer(
        Layer::new()
            .folder("dev")
            .owner(1, 2)
            .mode(0o620)
            .device(EntryType::Char, "dev/null", 1, 3)
            .device(EntryType::Block, "dev/disk", 8, 1)
            .hard_link("dev/same", "dev/null")
            .device(EntryType::Char, "dev/gone", 1, 5)
            .file("dev/gone", "file"),
    );
    let null = unpacked.metadata("dev/null");
    assert!(null.file_type().is_char_device());
    assert_eq!(
        (null.rdev(), null.uid(), null.gid()),
        (rustix::fs::makedev(1, 3), 1, 2)
    );
    assert_eq!(unpacked.mode("dev/null"), 0o620);
    assert!(unpacked.metadata("dev/disk").file_type().is_block_device());
    assert!(unpacked.metadata("dev/same").file_type().is_char_device());
    assert_eq!(unpacked.text("dev/gone"), "file");
    assert_eq!(unpacked.metadata("dev").mtime(), 1_000_000_000);
    let hiding = Layer::new().device(EntryType::Char, "x", 0, 0);
    assert!(refuse(hiding).contains("0:0"));
}

#[test]
fn hostile_reports_stay_below_the_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink("/tmp", folder.path().join("link")).expect("linked");
    let device = |path: &str| Device {
        path: path.to_owned(),
        is_block: false,
        mode: 0o666,
        uid: 0,
        gid: 0,
        major: 1,
        minor: 3,
        modified: (0, 0),
    };
    for path in ["../x", "/x", "link/x", "a/../x", "", "%zz"] {
        let root = File::open(folder.path()).expect("opened").into();
        let report = Report {
            devices: vec![device(path)],
            ..Report::default()
        };
        assert!(apply_deferred(&root, &report).is_err(), "{path}");
        let report = Report {
            opaque: vec![format!("{path}/x")],
            ..Report::default()
        };
        assert!(apply_deferred(&root, &report).is_err(), "{path}");
    }
}

#[test]
fn harmless_xattrs_are_kept() {
    if !is_root() {
        return;
    }
    // cap_net_bind_service, as the kernel stores it.
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let unpacked = unpack_layer(
        Layer::new()
            .owner(5, 5)
            .mode(0o4755)
            .pax("SCHILY.xattr.security.capability", capability)
            .pax("SCHILY.xattr.security.selinux", "label")
            .pax("SCHILY.xattr.trusted.other", "x")
            .pax("SCHILY.xattr.user.note", "a\nb=c")
            .file("tool", "x"),
    );
    let read = |name: &str| {
        let mut value = [0; 64];
        let length = rustix::fs::getxattr(unpacked.path("tool"), name, value.as_mut_slice());
        length.map(|length| value[..length].to_vec())
    };
    assert_eq!(read("security.capability"), Ok(capability.to_vec()));
    assert!(read("security.selinux").is_err());
    assert!(read("trusted.other").is_err());
    // Kernels before 6.6 have no attributes of users on tmpfs.
    if unpacked.report.skipped_xattrs == 0 {
        assert_eq!(read("user.note"), Ok(b"a\nb=c".to_vec()));
    }
    // A change of owner clears setuid bits, so the mode comes afterwards.
    assert_eq!(unpacked.mode("tool"), 0o4755);
    for name in ["trusted.overlay.opaque", "user.overlay.redirect"] {
        let key = format!("SCHILY.xattr.{name}");
        for layer in [
            Layer::new().pax(&key, "y").folder("a"),
            Layer::new().pax(&key, "y").symlink("a", "b"),
        ] {
            assert!(refuse(layer).contains("overlayfs"));
        }
    }
}

#[test]
fn pax_fields_replace_those_of_headers() {
    if !is_root() {
        return;
    }
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(250));
    let unpacked = unpack_layer(
        Layer::new()
            .pax("path", &long)
            .pax("uid", "3000000000")
            .pax("mtime", "1234567890.25")
            .pax("hdrcharset", "BINARY")
            .file("short", "long name")
            .pax("linkpath", "t".repeat(300))
            .symlink("link", "x")
            .pax("path", b"\xff\xfe")
            .file("x", "no UTF-8"),
    );
    assert_eq!(unpacked.text(&long), "long name");
    let metadata = unpacked.metadata(&long);
    assert_eq!(metadata.uid(), 3_000_000_000);
    assert_eq!(
        (metadata.mtime(), metadata.mtime_nsec()),
        (1_234_567_890, 250_000_000)
    );
    let link = fs::read_link(unpacked.path("link")).expect("a link");
    assert_eq!(link.as_os_str().len(), 300);
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    assert!(unpacked.folder.path().join(name).exists());
    let unchanged = Layer::new().pax("uid", "4294967295").file("x", "");
    assert!(refuse(unchanged).contains("owner"));
}

#[test]
fn foreign_writers_archives_are_read() {
    if !is_root() {
        return;
    }
    let mut builder = tar::Builder::new(Vec::new());
    let long = format!("{}/{}", "d".repeat(150), "f".repeat(150));
    let mut header = Header::new_gnu();
    header.set_size(4);
    header.set_mode(0o600);
    header.set_entry_type(EntryType::Regular);
    builder
        .append_data(&mut header, &long, &b"text"[..])
        .expect("appended");
    let mut header = Header::new_gnu();
    header.set_size(0);
    header.set_mode(0o777);
    header.set_entry_type(EntryType::Symlink);
    builder
        .append_link(&mut header, "link", "t".repeat(200))
        .expect("appended");
    let blob = builder.into_inner().expect("finished");
    let unpacked = try_unpack(&blob, &LIMITS).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(unpacked.text(&long), "text");
    let link = fs::read_link(unpacked.path("link")).expect("a link");
    assert_eq!(link.as_os_str().len(), 200);
}

use tar::Header;

#[test]
fn sparse_files_have_holes() {
    if !is_root() {
        return;
    }
    let block = |text: &str| {
        let mut block = text.as_bytes().to_vec();
        block.resize(512, 0);
        block
    };
    // Version 1.0: the map is at the beginning of the data.
    let data = [block("2\n0\n3\n1000000\n3\n"), b"abcxyz".to_vec()].concat();
    let unpacked = unpack_layer(
        Layer::new()
            .pax("GNU.sparse.major", "1")
            .pax("GNU.sparse.minor", "0")
            .pax("GNU.sparse.name", "one")
            .pax("GNU.sparse.realsize", "2000000")
            .file("GNUSparseFile.0/one", data)
            .pax("GNU.sparse.size", "10")
            .pax("GNU.sparse.numblocks", "1")
            .pax("GNU.sparse.map", "4,3")
            .file("two", "abc")
            .file("three", "after"),
    );
    let one = fs::read(unpacked.path("one")).expect("read");
    assert_eq!(one.len(), 2_000_000);
    assert_eq!(
        (&one[..3], &one[1_000_000..1_000_003]),
        (&b"abc"[..], &b"xyz"[..])
    );
    assert!(unpacked.metadata("one").blocks() < 100);
    assert_eq!(unpacked.text("two"), "\0\0\0\0abc\0\0\0");
    assert_eq!(unpacked.text("three"), "after");
    let huge = Layer::new()
        .pax("GNU.sparse.size", "9000000000000000000")
        .pax("GNU.sparse.map", "0,3")
        .file("huge", "abc");
    assert!(refuse(huge).contains("content"));
}

#[test]
fn old_gnu_sparse_files_are_read() {
    if !is_root() {
        return;
    }
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_size(3);
    header.set_mode(0o600);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    let bytes = header.as_mut_bytes();
    bytes[..4].copy_from_slice(b"file");
    bytes[386..410].copy_from_slice(b"00000000005\x0000000000003\x00");
    bytes[483..495].copy_from_slice(b"00000000012\x00");
    header.set_cksum();
    let layer = Layer::new()
        .raw(header.as_bytes())
        .raw("abc")
        .raw([0; 509])
        .file("next", "x");
    let unpacked = unpack_layer(layer);
    assert_eq!(unpacked.text("file"), "\0\0\0\0\0abc\0\0");
    assert_eq!(unpacked.text("next"), "x");
}

#[test]
fn bytes_behind_the_end_are_hashed() {
    let mut blob = Layer::new().build();
    blob.extend_from_slice(&[0; 9000]);
    blob.extend_from_slice(b"garbage");
    for blob in [blob, Vec::new(), Layer::new().build()] {
        let unpacked = try_unpack(&blob, &LIMITS).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(unpacked.report.diff_id, Some(Digest::from_content(&blob)));
    }
}

#[test]
fn last_padding_may_be_missing() {
    if !is_root() {
        return;
    }
    let mut blob = Layer::new().file("a", "text").without_end();
    blob.truncate(512 + 4);
    let unpacked = try_unpack(&blob, &LIMITS).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(unpacked.text("a"), "text");
}

#[test]
fn truncated_archives_are_refused() {
    if !is_root() {
        return;
    }
    let whole = Layer::new()
        .pax("uid", "7")
        .file("a", [1; 2000])
        .without_end();
    for length in [1, 511, 600, 1024, 1100, 1536, 1600, 3000, 3535] {
        let refused = try_unpack(&whole[..length], &LIMITS);
        assert!(
            matches!(
                refused,
                Err(UnpackError::Refused(Refusal::Malformed { .. }))
            ),
            "{length}"
        );
    }
    // Without the end marker alone, or the last padding, the archive is whole.
    assert!(try_unpack(&whole, &LIMITS).is_ok());
    let mut damaged = whole;
    damaged[100] ^= 1;
    assert!(try_unpack(&damaged, &LIMITS).is_err());
}

#[test]
fn limits_end_the_work() {
    if !is_root() {
        return;
    }
    let many = (0..20).fold(Layer::new(), |layer, at| layer.file(format!("f{at}"), ""));
    let deep = Layer::new().file(vec!["d"; 45].join("/"), "");
    let limit = |entries, path_bytes| Limits {
        content_bytes: 1 << 20,
        entries,
        path_bytes,
    };
    let refused = |layer: &Layer, limits: Limits| match try_unpack(&layer.clone().build(), &limits)
    {
        Err(UnpackError::Refused(refusal)) => refusal,
        _ => panic!("no refusal"),
    };
    assert_eq!(
        refused(&many, limit(10, 10_000)),
        Refusal::TooManyEntries { entries_max: 10 }
    );
    assert_eq!(
        refused(&deep, limit(30, 100_000)),
        Refusal::TooManyEntries { entries_max: 30 }
    );
    assert_eq!(
        refused(&deep, limit(100, 2000)),
        Refusal::TooManyPaths { bytes_max: 2000 }
    );
    assert!(try_unpack(&deep.build(), &limit(100, 100_000)).is_ok());
    let large = Layer::new().file("a", vec![0; 2 << 20]).build();
    assert!(matches!(
        try_unpack(&large, &limit(10, 1000)),
        Err(UnpackError::Refused(Refusal::ContentTooLarge { .. }))
    ));
    assert!(refuse(Layer::new().pax("path", "n".repeat(300)).file("x", "")).contains("255"));
    assert!(refuse(Layer::new().pax("path", "d/".repeat(300)).folder("x")).contains("nested"));
}

#[test]
fn limits_follow_blob_and_disk() {
    let free = 1 << 40;
    assert_eq!(Limits::for_layer(100, free).content_bytes, 256 << 20);
    assert_eq!(Limits::for_layer(1 << 30, free).content_bytes, 100 << 30);
    assert_eq!(Limits::for_layer(u64::MAX, free).content_bytes, 256 << 30);
    assert_eq!(Limits::for_layer(1 << 30, 5000).content_bytes, 5000);
}
