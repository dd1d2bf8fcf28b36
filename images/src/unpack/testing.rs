//! Layers for tests, built entry by entry, with headers that no honest writer makes.

use tar::{EntryType, Header};

/// A tar archive in the making. The last entry can be changed by the methods that return it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layer {
    bytes: Vec<u8>,
    /// Mode, user and group of the entries that follow.
    mode: Option<u32>,
    owner: (u64, u64),
    time: u64,
    records: Vec<(String, Vec<u8>)>,
}

impl Layer {
    pub(crate) fn new() -> Self {
        Self {
            time: 1_000_000_000,
            ..Self::default()
        }
    }

    pub(crate) fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    pub(crate) fn owner(mut self, uid: u64, gid: u64) -> Self {
        self.owner = (uid, gid);
        self
    }

    /// Adds a pax record to the next entry.
    pub(crate) fn pax(mut self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.records.push((key.to_owned(), value.as_ref().to_vec()));
        self
    }

    pub(crate) fn file(self, path: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Self {
        self.entry(EntryType::Regular, path.as_ref(), b"", data.as_ref())
    }

    pub(crate) fn folder(self, path: impl AsRef<[u8]>) -> Self {
        self.entry(EntryType::Directory, path.as_ref(), b"", b"")
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, path.as_bytes(), target.as_bytes(), b"")
    }

    pub(crate) fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Link, path.as_bytes(), target.as_bytes(), b"")
    }

    pub(crate) fn fifo(self, path: &str) -> Self {
        self.entry(EntryType::Fifo, path.as_bytes(), b"", b"")
    }

    pub(crate) fn device(mut self, kind: EntryType, path: &str, major: u32, minor: u32) -> Self {
        let mut header = self.header(kind, path.as_bytes(), b"", 0);
        header.set_device_major(major).expect("ustar");
        header.set_device_minor(minor).expect("ustar");
        self.append(&mut header, b"");
        self
    }

    /// Adds an entry of any type.
    pub(crate) fn entry(mut self, kind: EntryType, path: &[u8], link: &[u8], data: &[u8]) -> Self {
        let mut header = self.header(kind, path, link, data.len() as u64);
        self.append(&mut header, data);
        self
    }

    /// Adds bytes as they are.
    pub(crate) fn raw(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.bytes.extend_from_slice(bytes.as_ref());
        self
    }

    /// The archive with its end marker.
    pub(crate) fn build(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 1024, 0);
        self.bytes
    }

    pub(crate) fn without_end(self) -> Vec<u8> {
        self.bytes
    }

    fn header(&self, kind: EntryType, path: &[u8], link: &[u8], size: u64) -> Header {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        let mode = if kind.is_dir() { 0o755 } else { 0o644 };
        header.set_mode(self.mode.unwrap_or(mode));
        header.set_uid(self.owner.0);
        header.set_gid(self.owner.1);
        header.set_mtime(self.time);
        header.set_size(size);
        let bytes = header.as_mut_bytes();
        bytes[..path.len()].copy_from_slice(path);
        bytes[157..157 + link.len()].copy_from_slice(link);
        header
    }

    fn append(&mut self, header: &mut Header, data: &[u8]) {
        let mut records = Vec::new();
        for (key, value) in std::mem::take(&mut self.records) {
            let rest = [b" ", key.as_bytes(), b"=", &value, b"\n"].concat();
            let mut length = rest.len();
            while length != rest.len() + length.to_string().len() {
                length = rest.len() + length.to_string().len();
            }
            records.extend_from_slice(length.to_string().as_bytes());
            records.extend_from_slice(&rest);
        }
        if !records.is_empty() {
            let size = records.len() as u64;
            let mut extension = self.header(EntryType::XHeader, b"pax", b"", size);
            self.append(&mut extension, &records);
        }
        header.set_cksum();
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(data);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
    }
}

/// Whether this process may make files of other users. Prints the reason why the test does not run.
pub(crate) fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("not run: only root may give files to other users");
    }
    is_root
}
