//! Control files that stay open from one sample to the next.
//!
//! A read through an open descriptor costs a tenth of one that opens the file first. [`Files`] keeps
//! those of one container, by folder and name, and the counters of the kernel's memory pressure events
//! (v1). Invariant: what cannot be read is absent. A file that was never there is not looked for again;
//! one that fails is closed, and opened anew the next time.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Longest control file that is read; `io.stat` of a machine with hundreds of disks fits.
const FILE_BYTES_MAX: usize = 256 << 10;
/// What a buffer holds before it is found to be too small.
const BUFFER_BYTES: usize = 8 << 10;

/// How many more descriptors may be kept; shared by all containers of a sampler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget(Arc<AtomicUsize>);

impl Budget {
    pub(crate) fn new(descriptors: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(descriptors)))
    }

    fn take(&self) -> bool {
        let less = |left: usize| left.checked_sub(1);
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.is_ok()
    }

    fn give_back(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The control files of one container, as samples read them.
#[derive(Debug, Default)]
pub struct Files {
    inner: RefCell<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// `None` opens and closes for each read.
    budget: Option<Budget>,
    kept: Vec<Kept>,
    /// Where the next file is looked for first: they are asked for in the same order each time.
    next: usize,
    buffer: Vec<u8>,
    /// Whether anything could be read since [`Files::begin`].
    any: bool,
}

#[derive(Debug)]
struct Kept {
    /// Shared by the files of one folder: a thousand containers have twenty thousand files.
    dir: Arc<Path>,
    file: &'static str,
    state: State,
}

#[derive(Debug)]
enum State {
    Open(File),
    /// The kernel has no such file here.
    Absent,
    /// Counts events of a kind, so far.
    Events(EventFd, u64),
}

impl Files {
    /// Nothing is kept: each read opens its file.
    pub fn passing() -> Self {
        Self::default()
    }

    /// Descriptors are kept as far as the budget goes.
    pub(crate) fn keeping(budget: Budget) -> Self {
        let files = Self::default();
        files.inner.borrow_mut().budget = Some(budget);
        files
    }

    /// Begins a sample, with a buffer to use for it.
    pub(crate) fn begin(&self, buffer: Vec<u8>) {
        let mut inner = self.inner.borrow_mut();
        inner.buffer = buffer;
        inner.any = false;
    }

    /// Ends it: the buffer, for the next container, and whether anything could be read.
    pub(crate) fn end(&self) -> (Vec<u8>, bool) {
        let mut inner = self.inner.borrow_mut();
        (std::mem::take(&mut inner.buffer), inner.any)
    }

    /// What `parse` makes of a control file; `None` if it is not there, cannot be read, or is no text.
    pub fn read<T>(
        &self,
        dir: &Path,
        file: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let mut inner = self.inner.borrow_mut();
        let length = inner.fill(dir, file)?;
        inner.any = true;
        parse(str::from_utf8(inner.buffer.get(..length)?).ok()?)
    }

    /// A control file that holds one number; `max` and what is no number are `None`.
    pub fn number(&self, dir: &Path, file: &'static str) -> Option<u64> {
        self.read(dir, file, |text| text.trim_ascii_end().parse().ok())
    }

    /// How often the kernel told of this level of memory pressure in the group since it was first
    /// asked for (v1's `memory.pressure_level`); only where descriptors are kept.
    pub fn pressure_events(&self, dir: &Path, level: &'static str) -> Option<u64> {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let budget = inner.budget.as_ref()?;
        if let Some(kept) = inner.kept.iter_mut().find(|kept| kept.is(dir, level)) {
            return kept.state.events();
        }
        let state = match watch(dir, level) {
            Ok(event) if budget.take() => State::Events(event, 0),
            Ok(_) => return None,
            Err(_) => State::Absent,
        };
        inner.keep(dir, level, state);
        inner.kept.last_mut().and_then(|kept| kept.state.events())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            let open = |kept: &&Kept| !matches!(kept.state, State::Absent);
            self.kept
                .iter()
                .filter(open)
                .for_each(|_| budget.give_back());
        }
    }
}

impl Inner {
    /// The file into the buffer; its length.
    fn fill(&mut self, dir: &Path, file: &'static str) -> Option<usize> {
        let Some(position) = self.find(dir, file) else {
            return self.fill_anew(dir, file);
        };
        let State::Open(open) = &self.kept.get(position)?.state else {
            return None;
        };
        match read_whole(open, &mut self.buffer) {
            Ok(length) => Some(length),
            Err(_) => {
                // The group is gone, as a rule.
                self.kept.swap_remove(position);
                if let Some(budget) = &self.budget {
                    budget.give_back();
                }
                None
            }
        }
    }

    fn find(&mut self, dir: &Path, file: &str) -> Option<usize> {
        let (before, after) = self.kept.split_at(self.next.min(self.kept.len()));
        let is_it = |kept: &Kept| kept.is(dir, file);
        let found = match after.iter().position(is_it) {
            Some(at) => before.len() + at,
            None => before.iter().position(is_it)?,
        };
        self.next = found + 1;
        Some(found)
    }

    fn fill_anew(&mut self, dir: &Path, file: &'static str) -> Option<usize> {
        let opened = File::open(dir.join(file));
        let keeps = self.budget.is_some();
        let open = match opened {
            Ok(open) => open,
            Err(error) => {
                // A group that is not there may yet come; a file that a group lacks will not.
                if keeps && error.kind() == io::ErrorKind::NotFound && dir.exists() {
                    self.keep(dir, file, State::Absent);
                }
                return None;
            }
        };
        let length = read_whole(&open, &mut self.buffer).ok();
        if length.is_some() && self.budget.as_ref().is_some_and(Budget::take) {
            self.keep(dir, file, State::Open(open));
        }
        length
    }

    fn keep(&mut self, dir: &Path, file: &'static str, state: State) {
        let same = self.kept.iter().find(|kept| kept.is_in(dir));
        let dir = same.map_or_else(|| dir.into(), |kept| kept.dir.clone());
        self.kept.push(Kept { dir, file, state });
    }
}

impl Kept {
    fn is(&self, dir: &Path, file: &str) -> bool {
        self.file == file && self.is_in(dir)
    }

    fn is_in(&self, dir: &Path) -> bool {
        self.dir.as_os_str() == dir.as_os_str()
    }
}

impl State {
    /// Adds what happened since it was last asked.
    fn events(&mut self) -> Option<u64> {
        let Self::Events(event, so_far) = self else {
            return None;
        };
        // Not ready means that nothing happened.
        if let Ok(more) = event.read() {
            *so_far = so_far.saturating_add(more);
        }
        Some(*so_far)
    }
}

/// All of it, from the beginning; the buffer grows as needed and never shrinks.
fn read_whole(file: &File, buffer: &mut Vec<u8>) -> io::Result<usize> {
    let mut length = 0;
    loop {
        if buffer.len() < length + BUFFER_BYTES / 2 {
            if buffer.len() >= FILE_BYTES_MAX {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            buffer.resize((buffer.len() * 2).max(BUFFER_BYTES), 0);
        }
        let free = buffer.get_mut(length..).unwrap_or_default();
        let room = free.len();
        let offset = u64::try_from(length).unwrap_or(u64::MAX);
        match file.read_at(free, offset) {
            Ok(0) => return Ok(length),
            // Control files come whole when there is room, so that no second read is needed.
            Ok(more) if more < room / 2 => return Ok(length + more),
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Has the kernel signal an event of `level` in the group's `memory.pressure_level` (v1).
fn watch(dir: &Path, level: &str) -> io::Result<EventFd> {
    let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let source = File::open(dir.join("memory.pressure_level"))?;
    let line = format!(
        "{} {} {level}",
        event.as_fd().as_raw_fd(),
        source.as_raw_fd()
    );
    std::fs::write(dir.join("cgroup.event_control"), line)?;
    Ok(event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn keeping(descriptors: usize) -> (Files, Budget) {
        let budget = Budget::new(descriptors);
        (Files::keeping(budget.clone()), budget)
    }

    fn left(budget: &Budget) -> usize {
        budget.0.load(Ordering::Relaxed)
    }

    #[test]
    fn a_kept_file_is_read_anew_each_time() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (files, budget) = keeping(8);
        fs::write(dir.path().join("pids.current"), "7\n").expect("written");
        assert_eq!(files.number(dir.path(), "pids.current"), Some(7));
        fs::write(dir.path().join("pids.current"), "12\n").expect("written");
        assert_eq!(files.number(dir.path(), "pids.current"), Some(12));
        assert_eq!(left(&budget), 7);
        drop(files);
        assert_eq!(left(&budget), 8);
    }

    #[test]
    fn garbage_is_absent_and_does_not_stay() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (files, _) = keeping(8);
        let file = dir.path().join("memory.current");
        for (text, number) in [
            (&b"12 potatoes\n"[..], None),
            (b"\xff\xfe", None),
            (b"", None),
            (b"-5\n", None),
            (b"99999999999999999999999\n", None),
            (b"4096\n", Some(4096)),
        ] {
            fs::write(&file, text).expect("written");
            assert_eq!(files.number(dir.path(), "memory.current"), number);
        }
    }

    #[test]
    fn without_budget_files_are_opened_each_time() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (files, budget) = keeping(1);
        for name in ["a", "b", "c"] {
            fs::write(dir.path().join(name), "1\n").expect("written");
        }
        for _ in 0..2 {
            for name in ["a", "b", "c"] {
                assert_eq!(files.number(dir.path(), name), Some(1));
            }
        }
        assert_eq!(left(&budget), 0);
        assert_eq!(files.inner.borrow().kept.len(), 1);
    }

    #[test]
    fn what_a_group_lacks_is_not_looked_for_again_but_a_missing_group_is() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (files, _) = keeping(8);
        assert_eq!(files.number(dir.path(), "cpu.pressure"), None);
        fs::write(dir.path().join("cpu.pressure"), "1").expect("written");
        assert_eq!(files.number(dir.path(), "cpu.pressure"), None);
        let group = dir.path().join("later");
        assert_eq!(files.number(&group, "pids.current"), None);
        fs::create_dir(&group).expect("made");
        fs::write(group.join("pids.current"), "1").expect("written");
        assert_eq!(files.number(&group, "pids.current"), Some(1));
    }

    #[test]
    fn a_file_longer_than_the_buffer_is_read_whole_and_an_endless_one_refused() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (files, _) = keeping(8);
        let long = "some-word 1\n".repeat(5000);
        fs::write(dir.path().join("memory.stat"), &long).expect("written");
        let length = files.read(dir.path(), "memory.stat", |text| Some(text.len()));
        assert_eq!(length, Some(long.len()));
        let endless = Path::new("/dev");
        assert_eq!(files.read(endless, "zero", |text| Some(text.len())), None);
    }
}
