//! Archives, read entry by entry and never trusted: by their name's ending, as Mesos knows them.
//!
//! Names that lead out, special files and entries that go through a link end the fetch. Permissions
//! are kept but for set-id bits; owners are not, everything is the task's.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::sync::Arc;

use super::beneath::Folder;
use super::source::{copy, copy_paid};
use super::tar_entries::{TarEntries, TarEntry, not_unpacked};
use super::zip_directory::{Allowance, Bounded, check};
use super::{Budget, Cancel, Step, StepError};

/// What decompressing may take, in KiB; xz's largest preset takes 65 MB.
const XZ_MEMORY_KIB: u32 = 128 * 1024;
/// A name longer than this is nobody's.
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

/// Why an archive cannot be read on: a limit, or that it is damaged.
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
    while let Some(TarEntry {
        kind,
        name,
        link,
        mode,
    }) = entries.next_entry()?
    {
        match (kind, link) {
            (Kind::Directory, _) => sandbox.make_folder(&name)?,
            (Kind::Symlink, Some(target)) => sandbox.symlink(&name, &target)?,
            (Kind::Link, Some(target)) => sandbox.hard_link(&name, &target)?,
            (Kind::Regular | Kind::Continuous, _) if name.ends_with('/') => {
                sandbox.make_folder(&name)?;
            }
            (Kind::Regular | Kind::Continuous, _) => {
                let mut to = sandbox.create(&name, mode)?;
                copy_paid(&mut entries, &mut to, &budget)?;
            }
            (other, _) => return Err(not_unpacked(&name, other)),
        }
    }
    Ok(())
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
