//! The entries of a tar archive in order, each with the fields of the extended headers before it.
//!
//! The library reads the fields of a header. This module assigns the bytes to the entries, because the size of an entry
//! may be only in an extended header. Invariant: memory does not grow with the contents of an extended header.

use std::cell::RefCell;
use std::io::{self, Read};

use tar::{EntryType as Kind, Header};

use super::beneath::Attributes;
use super::metered::Paid;
use super::pax::Extended;
use super::unpack::{broken, read_name, text};
use super::{Budget, Step, StepError};

const BLOCK_BYTES: u64 = 512;

/// An entry; its data is read from [`TarEntries`].
#[derive(Debug)]
pub(super) struct TarEntry {
    pub(super) kind: Kind,
    pub(super) name: String,
    /// The target of a link.
    pub(super) link: Option<String>,
    pub(super) attributes: Attributes,
}

/// An archive whose every byte is charged, so that skipped bytes cost the same as written ones. As a reader it returns
/// the data of the current entry.
pub(super) struct TarEntries<'cell, 'budget, R> {
    reader: Paid<'cell, 'budget, R>,
    budget: &'cell RefCell<&'budget mut Budget>,
    /// Unread bytes of the current entry.
    data: u64,
    /// The padding between the data and the next header.
    padding: u64,
}

impl<'cell, 'budget, R: Read> TarEntries<'cell, 'budget, R> {
    pub(super) fn new(reader: R, budget: &'cell RefCell<&'budget mut Budget>) -> Self {
        Self {
            reader: Paid::new(reader, budget),
            budget,
            data: 0,
            padding: 0,
        }
    }

    /// Returns the next entry, and skips the rest of the current one; `None` at the end.
    pub(super) fn next_entry(&mut self) -> Step<Option<TarEntry>> {
        let mut extended = Extended::default();
        while let Some(header) = self.next_header()? {
            self.budget.borrow_mut().spend_entry()?;
            let kind = header.entry_type();
            let is_extension = matches!(
                kind,
                Kind::GNULongName | Kind::GNULongLink | Kind::XHeader | Kind::XGlobalHeader
            );
            let size = match extended.size.filter(|_| !is_extension) {
                Some(size) => size,
                None => header.entry_size().map_err(broken)?,
            };
            self.data = size;
            self.padding = size.wrapping_neg() % BLOCK_BYTES;
            match kind {
                Kind::GNULongName => extended.name = Some(read_name(self)?),
                Kind::GNULongLink => extended.link = Some(read_name(self)?),
                Kind::XHeader => extended.read(&mut *self)?,
                Kind::XGlobalHeader => {}
                kind => return entry_of(&header, kind, extended).map(Some),
            }
        }
        Ok(None)
    }

    fn next_header(&mut self) -> Step<Option<Header>> {
        let unread = self.data.saturating_add(self.padding);
        let mut rest = self.reader.by_ref().take(unread);
        if io::copy(&mut rest, &mut io::sink()).map_err(broken)? < unread {
            return Err(ends_early().into());
        }
        (self.data, self.padding) = (0, 0);
        let mut header = Header::new_old();
        let mut block = Vec::with_capacity(header.as_bytes().len());
        let mut next = self.reader.by_ref().take(BLOCK_BYTES);
        next.read_to_end(&mut block).map_err(broken)?;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if block.len() < header.as_bytes().len() {
            return Err(ends_early().into());
        }
        header.as_mut_bytes().copy_from_slice(&block);
        let mut summed = header.clone();
        summed.set_cksum();
        match header.cksum().map_err(broken)? == summed.cksum().map_err(broken)? {
            true => Ok(Some(header)),
            false => Err("the archive is damaged: the checksum of a header is wrong".into()),
        }
    }
}

fn entry_of(header: &Header, kind: Kind, extended: Extended) -> Step<TarEntry> {
    let name = match extended.name {
        Some(name) => name,
        None => text(&header.path_bytes())?,
    };
    if extended.is_sparse {
        return Err(not_unpacked(&name, Kind::GNUSparse));
    }
    let link = match (extended.link, header.link_name_bytes()) {
        (Some(link), _) => Some(link),
        (None, Some(bytes)) => Some(text(&bytes)?),
        (None, None) => None,
    };
    Ok(TarEntry {
        kind,
        name,
        link,
        attributes: Attributes {
            mode: Some(header.mode().unwrap_or(0o644)),
            modified: extended.modified.or_else(|| modified_of(header)),
        },
    })
}

fn modified_of(header: &Header) -> Option<(i64, u32)> {
    let seconds = header.mtime().ok()?;
    Some((i64::try_from(seconds).ok()?, 0))
}

pub(super) fn not_unpacked(name: &str, kind: Kind) -> StepError {
    format!("{name:?} has an unsupported kind: {kind:?}").into()
}

fn ends_early() -> &'static str {
    "the archive is damaged: it ends within an entry"
}

impl<R: Read> Read for TarEntries<'_, '_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.data == 0 || buffer.is_empty() {
            return Ok(0);
        }
        let count = self.reader.by_ref().take(self.data).read(buffer)?;
        if count == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the archive ends within it",
            ));
        }
        self.data = self
            .data
            .saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
        Ok(count)
    }
}
