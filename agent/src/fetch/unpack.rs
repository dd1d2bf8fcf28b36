//! Unpacks archives entry by entry, without trusting them. As in Mesos, the end of the name identifies an archive.
//!
//! The result equals that of `tar -xpf` and `unzip` for the same user: modes regardless of the umask, times, pipes;
//! folders get theirs at the end. Names that lead out, devices and entries that go through a link end the fetch. Owners
//! are ignored: everything belongs to the task.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read, Seek};
use std::sync::Arc;

use super::beneath::{Attributes, Folder, FolderAttributes};
use super::source::{copy, copy_paid};
use super::tar_entries::{TarEntries, TarEntry, not_unpacked};
use super::zip_directory::{Allowance, Bounded, check};
use super::{Budget, Cancel, Step, StepError};

/// The memory limit of decompression, in KiB; xz's largest preset takes 65 MB.
const XZ_MEMORY_KIB: u32 = 128 * 1024;
/// The longest name of an entry; longer names are errors.
pub(super) const NAME_BYTES_MAX: u64 = 64 * 1024;

/// Unpacks a file if its name is that of an archive.
pub(super) fn unpack(name: &str, file: &File, sandbox: &Folder, budget: &mut Budget) -> Step<()> {
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    let mut file = file.try_clone().map_err(|error| error.to_string())?;
    file.rewind().map_err(|error| error.to_string())?;
    let reader = BufReader::new(Stoppable {
        file,
        cancel: budget.cancel.clone(),
    });
    if ends(&TAR_ENDINGS) {
        unpack_compressed_tar(reader, sandbox, budget)
    } else if ends(&[".zip"]) {
        unpack_zip(reader, sandbox, budget)
    } else if let Some(plain) = name.strip_suffix(".gz") {
        let mut to = sandbox.create(plain, 0o644)?;
        let mut from = flate2::bufread::MultiGzDecoder::new(reader);
        copy(&mut from, &mut to, budget)
    } else {
        Ok(())
    }
}

/// The first bytes of the compressed formats that tar knows, and whether this module decompresses them.
const MAGIC_NUMBERS: [(&[u8], Compression); 8] = [
    (&[0x1f, 0x8b], Compression::Gzip),
    (b"BZh", Compression::Bzip2),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], Compression::Xz),
    (&[0x28, 0xb5, 0x2f, 0xfd], Compression::Unknown("zstd")),
    (&[0x5d, 0, 0], Compression::Unknown("lzma")),
    (b"LZIP", Compression::Unknown("lzip")),
    (&[0x89, b'L', b'Z', b'O'], Compression::Unknown("lzop")),
    (&[0x1f, 0x9d], Compression::Unknown("compress")),
];
/// The type of the entry that has the label of the archive, in GNU's dialect.
const LABEL: u8 = b'V';
const TAR_ENDINGS: [&str; 7] = [
    ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz",
];

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Compression {
    Gzip,
    Bzip2,
    Xz,
    Unknown(&'static str),
}

/// Unpacks according to the content of the file, as tar does: its name may be wrong.
fn unpack_compressed_tar(
    mut reader: BufReader<Stoppable>,
    sandbox: &Folder,
    budget: &mut Budget,
) -> Step<()> {
    let start = reader.fill_buf().map_err(broken)?;
    let found = MAGIC_NUMBERS
        .iter()
        .find(|(magic, _)| start.starts_with(magic));
    match found.map(|(_, compression)| *compression) {
        None => unpack_tar(reader, sandbox, budget),
        Some(Compression::Gzip) => {
            let gz = flate2::bufread::MultiGzDecoder::new(reader);
            unpack_tar(gz, sandbox, budget)
        }
        Some(Compression::Bzip2) => {
            unpack_tar(bzip2::bufread::MultiBzDecoder::new(reader), sandbox, budget)
        }
        Some(Compression::Xz) => {
            let xz = lzma_rust2::XzReader::new_mem_limit(reader, true, XZ_MEMORY_KIB);
            unpack_tar(xz, sandbox, budget)
        }
        Some(Compression::Unknown(program)) => Err(format!(
            "the archive is compressed with {program}: compress it with gzip, bzip2 or xz"
        )
        .into()),
    }
}

/// A file that can be read until the fetch is cancelled. Compressed data may be long and have no output, so that
/// nothing of it is ever charged.
struct Stoppable {
    file: File,
    cancel: Arc<Cancel>,
}

impl Read for Stoppable {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.cancel.check().map_err(io::Error::other)?;
        self.file.read(buffer)
    }
}

impl Seek for Stoppable {
    fn seek(&mut self, position: io::SeekFrom) -> io::Result<u64> {
        self.file.seek(position)
    }
}

/// The reason why an archive cannot be read further: a limit, or damage.
pub(super) fn broken(error: io::Error) -> StepError {
    match error.downcast() {
        Ok(limit) => limit,
        Err(error) => format!("the archive is damaged: {error}").into(),
    }
}

pub(super) fn unpack_tar(reader: impl Read, sandbox: &Folder, budget: &mut Budget) -> Step<()> {
    use tar::EntryType as Kind;
    let budget = RefCell::new(budget);
    let mut entries = TarEntries::new(reader, &budget);
    let mut folders = FolderAttributes::default();
    while let Some(TarEntry {
        kind,
        name,
        link,
        attributes,
    }) = entries.next_entry()?
    {
        let is_folder = matches!(kind, Kind::Regular | Kind::Continuous) && name.ends_with('/');
        match (kind, link) {
            (Kind::Directory, _) => {
                sandbox.make_folder(&name)?;
                folders.add(&name, attributes)?;
            }
            (Kind::Symlink, Some(target)) => sandbox.symlink(&name, &target, attributes)?,
            (Kind::Link, Some(target)) => sandbox.hard_link(&name, &target)?,
            (Kind::Fifo, _) => sandbox.make_pipe(&name, attributes)?,
            // The label of the archive itself.
            _ if kind.as_byte() == LABEL => {}
            _ if is_folder => {
                sandbox.make_folder(&name)?;
                folders.add(&name, attributes)?;
            }
            (Kind::Regular | Kind::Continuous, _) => {
                let mut to = sandbox.create(&name, 0o600)?;
                copy_paid(&mut entries, &mut to, &budget)?;
                Folder::finish(&to, attributes)?;
            }
            (other, _) => return Err(not_unpacked(&name, other)),
        }
    }
    folders.apply(sandbox)
}

pub(super) fn text(bytes: &[u8]) -> Step<String> {
    let text = str::from_utf8(bytes).map_err(|_| "a name in the archive is not UTF-8");
    Ok(text?.trim_end_matches('\0').to_owned())
}

pub(super) fn read_name(entry: &mut impl Read) -> Step<String> {
    let mut bytes = Vec::new();
    let mut limited = entry.take(NAME_BYTES_MAX + 1);
    limited.read_to_end(&mut bytes).map_err(broken)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > NAME_BYTES_MAX {
        return Err("a name in the archive is too long".into());
    }
    text(&bytes)
}

const KIND_BITS: u32 = 0o170_000;
const LINK_BITS: u32 = 0o120_000;

fn unpack_zip(mut reader: BufReader<Stoppable>, sandbox: &Folder, budget: &mut Budget) -> Step<()> {
    let broken = |error| match error {
        zip::result::ZipError::Io(error) => broken(error),
        error => format!("the archive is damaged: {error}").into(),
    };
    let checked = check(&mut reader, budget.limits.entries)?;
    let allowance = Allowance::of_directory();
    let bounded = Bounded::new(reader, &allowance);
    let mut archive = zip::ZipArchive::with_config(checked.config, bounded).map_err(broken)?;
    allowance.extend_to_entries(checked.length);
    let mut folders = FolderAttributes::default();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(broken)?;
        budget.spend_entry()?;
        let name = entry.name().map_err(broken)?.into_owned();
        let mode = entry.unix_mode();
        let attributes = Attributes {
            // As unzip, which clears set-id and sticky bits.
            mode: mode.map(|mode| mode & 0o777),
            modified: modified(&entry),
        };
        if entry.is_dir() {
            sandbox.make_folder(&name)?;
            folders.add(&name, attributes)?;
        } else if mode.is_some_and(|mode| mode & KIND_BITS == LINK_BITS) {
            let target = read_name(&mut entry)?;
            sandbox.symlink(&name, &target, Attributes::default())?;
        } else {
            let mut to = sandbox.create(&name, 0o644)?;
            copy(&mut entry, &mut to, budget)?;
            Folder::finish(&to, attributes)?;
        }
    }
    folders.apply(sandbox)
}

/// The time of an entry's last change: from its extra field, or else from its header, which has no time zone.
fn modified<R: Read>(entry: &zip::read::ZipFile<'_, R>) -> Option<(i64, u32)> {
    let exact = entry.extra_data_fields().find_map(|field| match field {
        zip::extra_fields::ExtraField::ExtendedTimestamp(times) => times.mod_time(),
        _ => None,
    });
    // The seconds have 32 bits with a sign.
    let exact = exact.map(|seconds| i64::from(seconds.cast_signed()));
    let listed = || {
        let time = entry.last_modified()?;
        let date = (time.year().into(), time.month().into(), time.day().into());
        let clock = [time.hour(), time.minute(), time.second()].map(i64::from);
        Some(days_since_1970(date) * 86_400 + clock[0] * 3_600 + clock[1] * 60 + clock[2])
    };
    exact.or_else(listed).map(|seconds| (seconds, 0))
}

/// The days from the first of January 1970 to a later date of the Gregorian calendar.
fn days_since_1970((year, month, day): (i64, i64, i64)) -> i64 {
    // In years that begin in March, the leap day comes last.
    let (year, month) = match month {
        ..=2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    let days_before_month = (153 * month + 2) / 5;
    year * 365 + leap_days + days_before_month + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

    use tar::EntryType as Kind;

    use super::days_since_1970;
    use crate::fetch::tests::{Fixture, header, pax_record};

    /// An archive of entries without data, each with its mode.
    fn archive(entries: &[(Kind, &str, u32)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, name, mode) in entries {
            let mut header = header(*kind, name, 0);
            header.set_mode(*mode);
            header.set_mtime(1_000_000_000);
            header.set_cksum();
            bytes.extend(header.as_bytes());
        }
        bytes.extend([0; 1024]);
        bytes
    }

    fn metadata(fixture: &Fixture, name: &str) -> std::fs::Metadata {
        std::fs::symlink_metadata(fixture.sandbox().join(name)).expect(name)
    }

    #[test]
    fn modes_and_times_match_archive() {
        let fixture = Fixture::new();
        let entries = [
            (Kind::Directory, "closed/", 0o500),
            (Kind::Regular, "closed/file", 0o640),
            (Kind::Directory, "closed/inner/", 0o700),
            (Kind::Regular, "closed/inner/file", 0o604),
            (Kind::Directory, "shared", 0o1777),
            (Kind::Regular, "runs", 0o4755),
            (Kind::Fifo, "pipe", 0o622),
            (Kind::new(super::LABEL), "a label", 0o0),
            (Kind::Directory, "./", 0o777),
        ];
        let before = metadata(&fixture, "").mode();
        fixture
            .fetch(fixture.give("a.tar", &archive(&entries)))
            .expect("fetched");
        for (kind, name, mode) in entries.into_iter().take(7) {
            let found = metadata(&fixture, name);
            assert_eq!(found.mode() & 0o7777, mode, "{name}");
            assert_eq!(found.mtime(), 1_000_000_000, "{name}");
            assert_eq!(found.file_type().is_fifo(), kind == Kind::Fifo, "{name}");
        }
        assert!(!fixture.sandbox().join("a label").exists());
        assert_eq!(
            metadata(&fixture, "").mode(),
            before,
            "the sandbox is the agent's"
        );
    }

    #[test]
    fn archives_are_detected_by_content() {
        use std::io::Write as _;
        let tar = archive(&[(Kind::Regular, "file", 0o644)]);
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&tar).expect("compressed");
        let gz = gz.finish().expect("compressed");
        for (name, bytes) in [
            ("a.tar", &gz),
            ("a.tar.gz", &tar),
            ("a.tar.xz", &gz),
            ("a.tbz2", &tar),
        ] {
            let fixture = Fixture::new();
            fixture.fetch(fixture.give(name, bytes)).expect(name);
            assert!(fixture.sandbox().join("file").exists(), "{name}");
        }
        let fixture = Fixture::new();
        let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0, 0];
        let error = fixture
            .fetch(fixture.give("a.tar", &zstd))
            .expect_err("unknown");
        assert!(error.contains("zstd"), "{error}");
    }

    #[test]
    fn times_of_extended_headers_come_first() {
        let records = pax_record("mtime", b"1234567890.25");
        let mut extended = header(Kind::XHeader, "pax", records.len());
        extended.set_cksum();
        let mut bytes = extended.as_bytes().to_vec();
        bytes.extend(&records);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes.extend(archive(&[(Kind::Regular, "file", 0o644)]));
        let fixture = Fixture::new();
        fixture
            .fetch(fixture.give("a.tar", &bytes))
            .expect("fetched");
        let found = metadata(&fixture, "file");
        assert_eq!(
            (found.mtime(), found.mtime_nsec()),
            (1_234_567_890, 250_000_000)
        );
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (date, days) in [
            ((1970, 1, 1), 0),
            ((1980, 1, 1), 3_652),
            ((2000, 2, 29), 11_016),
            ((2000, 3, 1), 11_017),
            ((2107, 12, 31), 50_402),
        ] {
            assert_eq!(days_since_1970(date), days, "{date:?}");
        }
    }
}
