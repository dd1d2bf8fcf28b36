//! Archives, read entry by entry and never trusted: by their name's ending, as Mesos knows them.
//!
//! Names that lead out, special files and entries that go through a link end the fetch. Permissions
//! are kept but for set-id bits; owners are not, everything is the task's.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::sync::Arc;

use super::beneath::Folder;
use super::metered::Paid;
use super::source::{copy, copy_paid};
use super::zip_directory::{Allowance, Bounded, check};
use super::{Budget, Cancel, Step, StepError};

/// What decompressing may take, in KiB; xz's largest preset takes 65 MB.
const XZ_MEMORY_KIB: u32 = 128 * 1024;
/// A name longer than this is nobody's.
const NAME_BYTES_MAX: u64 = 64 * 1024;

/// Unpacks a file if its name is that of an archive.
pub(super) fn unpack(name: &str, file: &File, sandbox: &Folder, budget: &mut Budget) -> Step<()> {
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    let mut file = file.try_clone().map_err(|error| error.to_string())?;
    file.rewind().map_err(|error| error.to_string())?;
    let reader = BufReader::new(Stoppable {
        file,
        cancel: budget.cancel.clone(),
    });
    if ends(&[".tar.gz", ".tgz"]) {
        unpack_tar(
            flate2::bufread::MultiGzDecoder::new(reader),
            sandbox,
            budget,
        )
    } else if ends(&[".tar.bz2", ".tbz2"]) {
        unpack_tar(bzip2::bufread::MultiBzDecoder::new(reader), sandbox, budget)
    } else if ends(&[".tar.xz", ".txz"]) {
        let xz = lzma_rust2::XzReader::new_mem_limit(reader, true, XZ_MEMORY_KIB);
        unpack_tar(xz, sandbox, budget)
    } else if ends(&[".tar"]) {
        unpack_tar(reader, sandbox, budget)
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

/// A file that can be read until the fetch is not wanted any more: what is compressed may be long and yield nothing, so
/// that nothing of it is ever paid for.
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

/// Names too long for a header, which come before their entry.
#[derive(Default)]
struct Long {
    name: Option<String>,
    link: Option<String>,
}

/// Why an archive cannot be read on: a limit, or that it is damaged.
fn broken(error: io::Error) -> StepError {
    match error.downcast() {
        Ok(limit) => limit,
        Err(error) => format!("the archive is damaged: {error}").into(),
    }
}

pub(super) fn unpack_tar(reader: impl Read, sandbox: &Folder, budget: &mut Budget) -> Step<()> {
    use tar::EntryType as Kind;
    let budget = RefCell::new(budget);
    // Paid for here, so that what is skipped costs the same as what is written.
    let mut archive = tar::Archive::new(Paid::new(reader, &budget));
    let mut long = Long::default();
    // Raw, so that a long name is read by us, and to a limit.
    for entry in archive.entries().map_err(broken)?.raw(true) {
        let mut entry = entry.map_err(broken)?;
        budget.borrow_mut().spend_entry()?;
        let kind = entry.header().entry_type();
        match kind {
            Kind::GNULongName => {
                long.name = Some(read_name(&mut entry)?);
                continue;
            }
            Kind::GNULongLink => {
                long.link = Some(read_name(&mut entry)?);
                continue;
            }
            Kind::XHeader => {
                read_pax(&read_name(&mut entry)?, &mut long);
                continue;
            }
            Kind::XGlobalHeader => continue,
            _ => {}
        }
        let Long { name, link } = std::mem::take(&mut long);
        let name = match name {
            Some(name) => name,
            None => text(&entry.header().path_bytes())?,
        };
        let link = match (link, entry.header().link_name_bytes()) {
            (Some(link), _) => Some(link),
            (None, Some(bytes)) => Some(text(&bytes)?),
            (None, None) => None,
        };
        let mode = entry.header().mode().unwrap_or(0o644);
        match (kind, link) {
            (Kind::Directory, _) => sandbox.make_folder(&name)?,
            (Kind::Symlink, Some(target)) => sandbox.symlink(&name, &target)?,
            (Kind::Link, Some(target)) => sandbox.hard_link(&name, &target)?,
            (Kind::Regular | Kind::Continuous, _) if name.ends_with('/') => {
                sandbox.make_folder(&name)?;
            }
            (Kind::Regular | Kind::Continuous, _) => {
                let mut to = sandbox.create(&name, mode)?;
                copy_paid(&mut entry, &mut to, &budget)?;
            }
            (other, _) => {
                return Err(
                    format!("{name:?} is of a kind that is not unpacked: {other:?}").into(),
                );
            }
        }
    }
    Ok(())
}

fn text(bytes: &[u8]) -> Step<String> {
    let text = str::from_utf8(bytes).map_err(|_| "a name in the archive is not UTF-8");
    Ok(text?.trim_end_matches('\0').to_owned())
}

fn read_name(entry: &mut impl Read) -> Step<String> {
    let mut bytes = Vec::new();
    let mut limited = entry.take(NAME_BYTES_MAX + 1);
    limited.read_to_end(&mut bytes).map_err(broken)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > NAME_BYTES_MAX {
        return Err("a name in the archive is too long".into());
    }
    text(&bytes)
}

/// `<length> <key>=<value>\n`, again and again.
fn read_pax(records: &str, long: &mut Long) {
    let mut rest = records;
    while let Some((length, _)) = rest.split_once(' ') {
        let length = length.parse().unwrap_or(0);
        let Some(record) = rest.get(..length).filter(|_| length > 0) else {
            return;
        };
        rest = rest.get(length..).unwrap_or_default();
        let pair = record
            .split_once(' ')
            .and_then(|(_, pair)| pair.split_once('='));
        match pair.map(|(key, value)| (key, value.trim_end_matches('\n'))) {
            Some(("path", value)) => long.name = Some(value.to_owned()),
            Some(("linkpath", value)) => long.link = Some(value.to_owned()),
            _ => {}
        }
    }
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
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(broken)?;
        budget.spend_entry()?;
        let name = entry.name().map_err(broken)?.into_owned();
        let mode = entry.unix_mode();
        if entry.is_dir() {
            sandbox.make_folder(&name)?;
        } else if mode.is_some_and(|mode| mode & KIND_BITS == LINK_BITS) {
            let target = read_name(&mut entry)?;
            sandbox.symlink(&name, &target)?;
        } else {
            let mut to = sandbox.create(&name, mode.unwrap_or(0o644))?;
            copy(&mut entry, &mut to, budget)?;
        }
    }
    Ok(())
}
