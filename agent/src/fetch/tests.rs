//! Archives of every kind, and all the attacks of a hostile archive.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use meseta_isolators::Credentials;
use meseta_proto::mesos::v1::command_info::Uri;

use super::{Limits, Request, fetch};
use crate::host_paths::HostPaths;

pub(super) struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("sandbox")).expect("made");
        Self { dir }
    }

    pub(super) fn sandbox(&self) -> std::path::PathBuf {
        self.dir.path().join("sandbox")
    }

    pub(super) fn give(&self, name: &str, bytes: &[u8]) -> Uri {
        let path = self.dir.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        Uri {
            value: path.display().to_string(),
            ..Uri::default()
        }
    }

    pub(super) fn fetch(&self, uri: Uri) -> Result<(), String> {
        self.fetch_within(uri, Limits::default())
    }

    pub(super) fn fetch_within(&self, uri: Uri, limits: Limits) -> Result<(), String> {
        let request = Request {
            limits,
            ..self.request(uri)
        };
        fetch(request).map_err(|error| error.to_string())
    }

    pub(super) fn request(&self, uri: Uri) -> Request {
        Request {
            uris: vec![uri],
            outer: self.sandbox(),
            sandbox: PathBuf::new(),
            owner: None,
            limits: Limits::default(),
            host_paths: Arc::default(),
            proxies: super::Proxies::default(),
            cancel: Arc::default(),
        }
    }

    pub(super) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.sandbox().join(name)).unwrap_or_default()
    }

    /// Lists the entries beside the sandbox that the test did not create.
    fn outside(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).expect("a folder");
        let mut names: Vec<_> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

pub(super) fn header(kind: tar::EntryType, name: &str, size: usize) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    let bytes = header.as_mut_bytes();
    // Set by hand: the library refuses to write the tested names.
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_size(u64::try_from(size).expect("small"));
    header.set_mode(0o4755);
    header.set_cksum();
    header
}

pub(super) fn tar_of(entries: &[(tar::EntryType, &str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (kind, name, content) in entries {
        let is_link = matches!(kind, tar::EntryType::Symlink | tar::EntryType::Link);
        let mut header = header(*kind, name, if is_link { 0 } else { content.len() });
        if is_link {
            let bytes = header.as_mut_bytes();
            bytes[157..157 + content.len()].copy_from_slice(content.as_bytes());
            header.set_cksum();
            builder.append(&header, std::io::empty()).expect("written");
        } else {
            builder
                .append(&header, content.as_bytes())
                .expect("written");
        }
    }
    builder.into_inner().expect("an archive")
}

pub(super) fn pax_record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
    let length = (rest.len()..).find(|n| rest.len() + n.to_string().len() == *n);
    let length = length.expect("a length").to_string();
    [length.into_bytes(), rest].concat()
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("written");
    encoder.finish().expect("an archive")
}

use tar::EntryType::{Directory, Link, Regular, Symlink};

#[test]
fn tar_keeps_folders_links_permissions() {
    let fixture = Fixture::new();
    let long = format!("{}/file", "d".repeat(90));
    let archive = tar_of(&[
        (Directory, "bin/", ""),
        (Regular, "./bin/tool", "#!/bin/sh"),
        (Symlink, "bin/alias", "tool"),
        (Link, "bin/same", "bin/tool"),
        (Regular, &long, "deep"),
    ]);
    let uri = fixture.give("a.tgz", &gz(&archive));
    fixture.fetch(uri).expect("fetched");
    assert_eq!(fixture.read("bin/alias"), "#!/bin/sh");
    assert_eq!(fixture.read("bin/same"), "#!/bin/sh");
    assert_eq!(fixture.read(&long), "deep");
    let mode = std::fs::metadata(fixture.sandbox().join("bin/tool")).expect("there");
    // Set-id bits are removed.
    let mode = std::os::unix::fs::PermissionsExt::mode(&mode.permissions());
    assert_eq!(mode & 0o7777, 0o4755);
    // Mesos leaves the archive there too.
    assert!(fixture.sandbox().join("a.tgz").exists());
}

#[test]
fn long_names_work_in_both_dialects() {
    for pax in [false, true] {
        let fixture = Fixture::new();
        let name = format!("{}/{}", "a".repeat(120), "b".repeat(120));
        let mut builder = tar::Builder::new(Vec::new());
        if pax {
            let record = pax_record("path", name.as_bytes());
            let header = header(tar::EntryType::XHeader, "pax", record.len());
            builder.append(&header, &record[..]).expect("written");
        } else {
            let header = header(tar::EntryType::GNULongName, "././@LongLink", name.len());
            builder.append(&header, name.as_bytes()).expect("written");
        }
        builder
            .append(&header(Regular, "short", 4), "text".as_bytes())
            .expect("written");
        let uri = fixture.give("a.tar", &builder.into_inner().expect("an archive"));
        fixture.fetch(uri).expect("fetched");
        assert_eq!(fixture.read(&name), "text");
        assert!(!fixture.sandbox().join("short").exists());
    }
}

#[test]
fn zip_and_gz_are_unpacked() {
    let fixture = Fixture::new();
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().unix_permissions(0o700);
    zip.start_file("dir/run.sh", options).expect("begun");
    zip.write_all(b"run").expect("written");
    zip.add_symlink("link", "dir/run.sh", options)
        .expect("linked");
    let bytes = zip.finish().expect("an archive").into_inner();
    fixture
        .fetch(fixture.give("a.zip", &bytes))
        .expect("fetched");
    assert_eq!(fixture.read("dir/run.sh"), "run");
    assert_eq!(fixture.read("link"), "run");
    fixture
        .fetch(fixture.give("text.gz", &gz(b"plain")))
        .expect("fetched");
    assert_eq!(fixture.read("text"), "plain");
}

#[test]
fn tar_escaping_the_sandbox_is_refused() {
    let outside = "/tmp/meseta-fetch-test-escape";
    for entries in [
        vec![(Regular, "../escaped", "x")],
        vec![(Regular, "a/../../escaped", "x")],
        vec![(Regular, outside, "x")],
        vec![(Directory, "../escaped", "")],
        vec![(Symlink, "out", ".."), (Regular, "out/escaped", "x")],
        vec![
            (Symlink, "out", "/tmp"),
            (Regular, "out/meseta-fetch-test-escape", "x"),
        ],
        vec![(Symlink, "../escaped", "x")],
        vec![(Link, "in", "../a.tar")],
        vec![(Symlink, "out", ".."), (Link, "in", "out/a.tar")],
    ] {
        let fixture = Fixture::new();
        let uri = fixture.give("a.tar", &tar_of(&entries));
        let refused = fixture.fetch(uri);
        assert!(refused.is_err(), "{entries:?}");
        assert_eq!(fixture.outside(), ["a.tar", "sandbox"], "{entries:?}");
        assert!(!Path::new(outside).exists(), "{entries:?}");
    }
    // A link that leads out is only a link: nothing is written through it, including its last component.
    let fixture = Fixture::new();
    let entries = [
        (Symlink, "stdout", "../precious"),
        (Regular, "stdout", "mine"),
    ];
    std::fs::write(fixture.dir.path().join("precious"), "precious").expect("written");
    fixture
        .fetch(fixture.give("a.tar", &tar_of(&entries)))
        .expect("fetched");
    let precious = std::fs::read_to_string(fixture.dir.path().join("precious"));
    assert_eq!(precious.expect("there"), "precious");
    assert_eq!(fixture.read("stdout"), "mine");
}

#[test]
fn zip_escaping_the_sandbox_is_refused() {
    for name in [
        "../escaped",
        "/tmp/meseta-fetch-test-escape",
        "a/../../escaped",
    ] {
        let fixture = Fixture::new();
        let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        let options = zip::write::SimpleFileOptions::default();
        // The writer normalizes names, so a name of the same length is replaced afterwards.
        let stand_in = "x".repeat(name.len());
        zip.start_file(stand_in.as_str(), options).expect("begun");
        zip.write_all(b"text").expect("written");
        let mut bytes = zip.finish().expect("an archive").into_inner();
        for at in 0..bytes.len() - name.len() {
            if bytes[at..].starts_with(stand_in.as_bytes()) {
                bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
            }
        }
        assert!(
            fixture.fetch(fixture.give("a.zip", &bytes)).is_err(),
            "{name}"
        );
        assert_eq!(fixture.outside(), ["a.zip", "sandbox"], "{name}");
    }
}

#[test]
fn bombs_end_at_their_limits() {
    let bytes = Limits {
        bytes: 1 << 20,
        entries: 1000,
        ..Limits::default()
    };
    let fixture = Fixture::new();
    let bomb = gz(&vec![0; 64 << 20]);
    assert!(bomb.len() < 1 << 19);
    let error = fixture.fetch_within(fixture.give("bomb.gz", &bomb), bytes);
    assert!(
        error
            .expect_err("refused")
            .contains("exceeds the fetch limit")
    );
    let written = std::fs::metadata(fixture.sandbox().join("bomb"))
        .expect("begun")
        .len();
    assert!(written <= 1 << 20, "{written}");

    let fixture = Fixture::new();
    let names: Vec<_> = (0..2000).map(|number| format!("f{number}")).collect();
    let entries: Vec<_> = names
        .iter()
        .map(|name| (Regular, name.as_str(), ""))
        .collect();
    let error = fixture.fetch_within(fixture.give("many.tgz", &gz(&tar_of(&entries))), bytes);
    assert!(error.expect_err("refused").contains("too many entries"));

    // A name as large as a disk must not be read into memory.
    let fixture = Fixture::new();
    let name = "n".repeat(1 << 20);
    let mut builder = tar::Builder::new(Vec::new());
    let header = header(tar::EntryType::GNULongName, "././@LongLink", name.len());
    builder.append(&header, name.as_bytes()).expect("written");
    let archive = builder.into_inner().expect("an archive");
    let error = fixture.fetch(fixture.give("name.tgz", &gz(&archive)));
    assert!(error.expect_err("refused").contains("too long"));
}

/// Regression: a source without an end filled the node's disk, beyond the task's disk limit.
#[test]
fn fetch_ends_at_containers_disk_limit() {
    let limits = Limits {
        disk: Some(1 << 20),
        ..Limits::default()
    };
    let zeros = vec![0; 3 << 19];
    let packed = tar_of(&[(Regular, "f", &"x".repeat(3 << 19))]);
    for (name, bytes, written) in [
        ("plain", zeros.as_slice(), "plain"),
        ("bomb.gz", &gz(&zeros), "bomb"),
        ("bomb.tgz", &gz(&packed), "f"),
    ] {
        let fixture = Fixture::new();
        let error = fixture.fetch_within(fixture.give(name, bytes), limits);
        let error = error.expect_err("refused");
        let expected =
            "the disk of their container, 1048576 bytes (--enforce_container_disk_quota)";
        assert!(error.contains(expected), "{error}");
        let file = std::fs::metadata(fixture.sandbox().join(written)).expect("begun");
        assert!(file.len() <= 1 << 20, "{}", file.len());
    }
    // Skipped contents of an archive are not on the disk, and each URI counts.
    let fixture = Fixture::new();
    let mut header = header(tar::EntryType::XGlobalHeader, "skipped", 8 << 20);
    header.set_cksum();
    let skipped = [header.as_bytes().as_slice(), &vec![0; 8 << 20]].concat();
    let uri = fixture.give("skipped.tgz", &gz(&skipped));
    assert_eq!(fixture.fetch_within(uri, limits), Ok(()));
    let half = fixture.give("half", &vec![0; 600 << 10]);
    let again = Uri {
        output_file: Some("again".to_owned()),
        ..half.clone()
    };
    let request = Request {
        uris: vec![half, again],
        limits,
        ..fixture.request(Uri::default())
    };
    let error = fetch(request).expect_err("refused").to_string();
    assert!(error.contains("the disk of their container"), "{error}");
}

/// Regression: bytes skipped by the library neither counted nor ended when the container was killed.
#[test]
fn bombs_in_skipped_entries_are_limited() {
    let limits = Limits {
        bytes: 1 << 20,
        ..Limits::default()
    };
    for kind in [tar::EntryType::XGlobalHeader, Directory, Symlink, Link] {
        let fixture = Fixture::new();
        let mut header = header(kind, "skipped", 8 << 20);
        header.as_mut_bytes()[157] = b'x';
        header.set_cksum();
        let archive = [header.as_bytes().as_slice(), &vec![0; 8 << 20]].concat();
        std::fs::write(fixture.sandbox().join("x"), "").expect("written");
        let error = fixture.fetch_within(fixture.give("bomb.tgz", &gz(&archive)), limits);
        assert!(
            error
                .expect_err("refused")
                .contains("exceeds the fetch limit")
        );
    }
}

/// A global header of zeros as large as a disk; the container is killed after a megabyte was read.
struct KilledMeanwhile {
    header: std::io::Cursor<Vec<u8>>,
    skipped: usize,
    cancel: Arc<super::Cancel>,
}

impl std::io::Read for KilledMeanwhile {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.header.read(buffer)?;
        if count > 0 {
            return Ok(count);
        }
        self.skipped += buffer.len();
        if self.skipped > 1 << 20 {
            self.cancel.cancel();
        }
        // Gives up in the end, so that the test fails instead of running for ever.
        if self.skipped > 64 << 20 {
            return Ok(0);
        }
        buffer.fill(0);
        Ok(buffer.len())
    }
}

#[test]
fn kill_ends_skipped_entries() {
    let fixture = Fixture::new();
    let header = header(tar::EntryType::XGlobalHeader, "skipped", 1 << 50);
    let mut budget = super::Budget {
        disk: None,
        limits: Limits::default(),
        cancel: Arc::default(),
    };
    let reader = KilledMeanwhile {
        header: std::io::Cursor::new(header.as_bytes().to_vec()),
        skipped: 0,
        cancel: budget.cancel.clone(),
    };
    let sandbox = super::Folder::open(&fixture.sandbox(), Path::new("")).expect("a folder");
    let error = super::unpack::unpack_tar(reader, &sandbox, &mut budget).expect_err("stopped");
    assert!(error.to_string().contains("no longer needed"), "{error}");
}

/// Regression: compressed data without any output was never charged, and was read to its end after a kill.
#[test]
fn kill_ends_empty_compressed_streams() {
    let fixture = Fixture::new();
    let sandbox = super::Folder::open(&fixture.sandbox(), Path::new("")).expect("a folder");
    let nothing = fixture.give("nothing", &gz(b"").repeat(1_000));
    let file = std::fs::File::open(nothing.value).expect("opened");
    for name in ["a.gz", "a.tgz"] {
        let mut budget = super::Budget {
            disk: None,
            limits: Limits::default(),
            cancel: Arc::default(),
        };
        super::unpack::unpack(name, &file, &sandbox, &mut budget).expect("an empty one");
        budget.cancel.cancel();
        let error = super::unpack::unpack(name, &file, &sandbox, &mut budget).expect_err("stopped");
        assert!(error.to_string().contains("no longer needed"), "{error}");
    }
}

#[test]
fn damaged_archives_are_refused_without_panic() {
    let archive = gz(&tar_of(&[(Regular, "file", "text")]));
    for end in [0, 5, archive.len() / 2, archive.len() - 1] {
        for name in ["a.tgz", "a.zip", "a.txz", "a.tbz2"] {
            let fixture = Fixture::new();
            let _ = fixture.fetch(fixture.give(name, &archive[..end]));
            assert_eq!(fixture.outside(), [name, "sandbox"]);
        }
    }
}

#[test]
fn executables_stay_packed_under_chosen_name() {
    let fixture = Fixture::new();
    let archive = gz(&tar_of(&[(Regular, "file", "text")]));
    let executable = Uri {
        executable: Some(true),
        output_file: Some("sub/run.tgz".to_owned()),
        ..fixture.give("a.tgz", &archive)
    };
    fixture.fetch(executable).expect("fetched");
    assert!(!fixture.sandbox().join("file").exists());
    let mode = std::fs::metadata(fixture.sandbox().join("sub/run.tgz")).expect("there");
    let mode = std::os::unix::fs::PermissionsExt::mode(&mode.permissions());
    assert_eq!(mode & 0o777, 0o755);
    let plain = Uri {
        extract: Some(false),
        ..fixture.give("a.tgz", &archive)
    };
    fixture.fetch(plain).expect("fetched");
    assert!(!fixture.sandbox().join("file").exists());
}

#[test]
fn invalid_sources_are_refused() {
    let fixture = Fixture::new();
    let folder = fixture.dir.path().display().to_string();
    for (value, why) in [
        ("relative/path".to_owned(), "a relative path"),
        ("hdfs://host/file".to_owned(), "'hdfs' is not supported"),
        ("http://host".to_owned(), "names no file"),
        ("/no/such/file".to_owned(), "failed to read /no/such/file"),
        (
            "file:///no/such/file".to_owned(),
            "failed to read /no/such/file",
        ),
        (folder, "is not a regular file"),
        ("http://127.0.0.1:1/file".to_owned(), "127.0.0.1"),
    ] {
        let uri = Uri {
            value: value.clone(),
            ..Uri::default()
        };
        let error = fixture.fetch(uri).expect_err("refused");
        assert!(error.starts_with("Failed to fetch"), "{error}");
        assert!(error.contains(why), "{value}: {error} lacks {why}");
    }
    let out = Uri {
        output_file: Some("../out".to_owned()),
        ..fixture.give("a", b"text")
    };
    assert!(fixture.fetch(out).is_err());
}

#[test]
fn abandoned_fetch_stops() {
    let fixture = Fixture::new();
    let request = fixture.request(fixture.give("a", b"text"));
    request.cancel.cancel();
    assert!(fetch(request).is_err());
}

/// Accepts connections, sends this text on each of them, and then nothing; the connections are returned to the test.
fn silent_after(sent: &'static str) -> (Uri, std::sync::mpsc::Receiver<std::net::TcpStream>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let value = format!("http://{}/file", listener.local_addr().expect("an address"));
    let (told, taken) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(sent.as_bytes());
            if told.send(stream).is_err() {
                return;
            }
        }
    });
    let uri = Uri {
        value,
        ..Uri::default()
    };
    (uri, taken)
}

const NOTHING: &str = "";
const HALF_A_FILE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf";

#[test]
fn silent_source_ends_the_fetch() {
    for sent in [NOTHING, HALF_A_FILE] {
        let fixture = Fixture::new();
        let (uri, _taken) = silent_after(sent);
        let limits = Limits {
            stall: Duration::from_millis(200),
            ..Limits::default()
        };
        let error = fixture.fetch_within(uri, limits).expect_err("it stalls");
        assert!(error.contains("sent nothing for 200ms"), "{error}");
        assert!(error.contains("--fetcher_stall_timeout"), "{error}");
    }
}

#[test]
fn fetch_awaiting_source_stops_at_once() {
    // The last answer has no length: the end of the connection must not count as the end of the file.
    let endless = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhalf";
    for sent in [NOTHING, HALF_A_FILE, endless] {
        let fixture = Fixture::new();
        let (uri, taken) = silent_after(sent);
        let request = Request {
            limits: Limits {
                stall: Duration::from_secs(3_600),
                ..Limits::default()
            },
            ..fixture.request(uri)
        };
        let cancel = request.cancel.clone();
        let (ends, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || ends.send(fetch(request)));
        let _connection = taken.recv().expect("it connects");
        cancel.cancel();
        // Long before the stall timeout.
        let fetched = ended.recv_timeout(Duration::from_secs(30));
        let error = fetched.expect("it ends").expect_err("stopped");
        assert!(error.to_string().contains("no longer needed"), "{error}");
    }
}

#[test]
fn agents_own_files_are_not_fetched() {
    use std::os::fd::AsRawFd as _;
    let fixture = Fixture::new();
    let own = fixture.dir.path().join("own");
    std::fs::create_dir(&own).expect("made");
    std::fs::write(own.join("file"), "secret").expect("written");
    let opened = std::fs::File::open(own.join("file")).expect("opened");
    let fd = opened.as_raw_fd();
    let pid = std::process::id();
    let link = |name: &str, target: &str| {
        let path = fixture.dir.path().join(name);
        std::os::unix::fs::symlink(target, &path).expect("linked");
        path.display().to_string()
    };
    for path in [
        format!("/proc/self/fd/{fd}"),
        format!("file:///proc/{pid}/fd/{fd}"),
        format!("/proc/thread-self/fd/{fd}"),
        format!("/dev/fd/{fd}"),
        "/proc/self/status".to_owned(),
        "/proc/self/root/etc/passwd".to_owned(),
        "/sys/kernel/uevent_seqnum".to_owned(),
        "/dev/zero".to_owned(),
        link("to-status", "/proc/self/status"),
        link("to-fd", &format!("/proc/self/fd/{fd}")),
        link("to-own", "own/file"),
        own.join("file").display().to_string(),
    ] {
        let uri = Uri {
            value: path.clone(),
            output_file: Some("fetched".to_owned()),
            ..Uri::default()
        };
        let request = Request {
            host_paths: Arc::new(HostPaths::new(None, vec![own.clone()])),
            ..fixture.request(uri)
        };
        assert!(fetch(request).is_err(), "{path}");
        assert_eq!(fixture.read("fetched"), "", "{path}");
    }
}

/// Runs as root only: other users cannot switch users.
#[test]
fn local_files_are_read_as_owner() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    if !rustix::process::geteuid().is_root() {
        return;
    }
    const USER: u32 = 65534;
    const GROUP: u32 = 4242;
    let fixture = Fixture::new();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(fixture.dir.path(), open).expect("permissions");
    chown(fixture.sandbox(), Some(USER), Some(USER)).expect("given away");
    let folder = fixture.dir.path().join("groups");
    std::fs::create_dir(&folder).expect("made");
    std::fs::write(folder.join("file"), "text").expect("written");
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o750)).expect("set");
    chown(&folder, Some(0), Some(GROUP)).expect("given away");
    let fetch_with = |groups: Vec<u32>| {
        let uri = Uri {
            value: folder.join("file").display().to_string(),
            ..Uri::default()
        };
        let owner = Some(Credentials {
            uid: USER,
            gid: USER,
            groups,
        });
        fetch(Request {
            owner,
            ..fixture.request(uri)
        })
    };
    let error = fetch_with(Vec::new()).expect_err("not in the group");
    assert!(error.to_string().contains("ermission denied"), "{error}");
    fetch_with(vec![GROUP]).expect("in the group");
    assert_eq!(fixture.read("file"), "text");
}
