//! Control files that stay open from one sample to the next.
//!
//! A read through an open descriptor costs a tenth of one that opens the file first. [`Files`] keeps those of one container,
//! by folder and name, and the counters of the kernel's memory pressure events (v1). Where descriptors are few, files of
//! every sweep have them before rarely read ones ([`Budget`]). Invariant: an unreadable file is absent. A file that never
//! existed is not opened again; a file that fails is closed, and opened again the next time.

mod anchors;
mod budget;

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};

pub(crate) use anchors::Anchors;
pub(crate) use budget::Budget;
use budget::Pace;

use crate::shortage::{is_device_failure, is_shortage};

/// The longest readable control file; `io.stat` of a machine with hundreds of disks fits.
const FILE_BYTES_MAX: usize = 256 << 10;
/// The initial size of a buffer, which grows when it is too small.
const BUFFER_BYTES: usize = 8 << 10;

/// The control files of one container, as samples read them.
#[derive(Debug, Default)]
pub struct Files {
    inner: RefCell<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The budget; with `None` each read opens and closes its file.
    budget: Option<Budget>,
    anchors: Arc<Anchors>,
    kept: Vec<OpenFile>,
    /// The position where the next search begins: readers ask for the files in the same order each time.
    next: usize,
    buffer: Vec<u8>,
    /// The pace of the current reads.
    pace: Pace,
    /// Whether any file was readable since [`Files::begin`].
    any: bool,
    /// A read since then that failed because the agent was short of resources or a device failed: the state of the file is
    /// unknown.
    shortage: Option<io::Error>,
}

#[derive(Debug)]
struct OpenFile {
    /// The folder, shared by its files: a thousand containers have twenty thousand files.
    dir: Arc<Path>,
    file: &'static str,
    state: State,
}

#[derive(Debug)]
enum State {
    Open(File, Pace),
    /// The kernel does not have this file here.
    Absent,
    /// A counter of events of a kind, and the events so far.
    Events(EventFd, u64),
}

impl Files {
    /// Keeps no file open: each read opens its file.
    pub fn passing() -> Self {
        Self::default()
    }

    /// Keeps descriptors as far as the budget goes; files below one of the anchors are opened from there.
    pub(crate) fn keeping(budget: Budget, anchors: Arc<Anchors>) -> Self {
        let files = Self::default();
        let mut inner = files.inner.borrow_mut();
        inner.budget = Some(budget);
        inner.anchors = anchors;
        drop(inner);
        files
    }

    /// Begins a sample of `all` files, or of those read in every sweep, with a buffer.
    pub(crate) fn begin(&self, all: bool, buffer: Vec<u8>) {
        let mut inner = self.inner.borrow_mut();
        inner.buffer = buffer;
        // Frequently read files show themselves in sweeps that skip the other files.
        inner.pace = if all { Pace::Seldom } else { Pace::Often };
        inner.any = false;
        inner.shortage = None;
    }

    /// Ends a sample; returns the buffer, for the next container, and whether any file was readable.
    pub(crate) fn end(&self) -> (Vec<u8>, bool) {
        let mut inner = self.inner.borrow_mut();
        (std::mem::take(&mut inner.buffer), inner.any)
    }

    /// Takes the error that prevented the read of a possibly existing file since the beginning or since the last call: a lack of
    /// descriptors or memory, or a failed device.
    pub(crate) fn take_shortage(&self) -> Option<io::Error> {
        self.inner.borrow_mut().shortage.take()
    }

    /// The result of `parse` on a control file; `None` if the file is missing, unreadable or not text.
    pub fn read<T>(
        &self,
        dir: &Arc<Path>,
        file: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let mut inner = self.inner.borrow_mut();
        let length = inner.fill(dir, file)?;
        inner.any = true;
        parse(str::from_utf8(inner.buffer.get(..length)?).ok()?)
    }

    /// The number in a control file; `None` for `max` and for everything that is not a number.
    pub fn number(&self, dir: &Arc<Path>, file: &'static str) -> Option<u64> {
        self.read(dir, file, |text| text.trim_ascii_end().parse().ok())
    }

    /// The number of events of this level of memory pressure in the group since the first call (v1's `memory.pressure_level`);
    /// only where descriptors are kept.
    pub fn pressure_events(&self, dir: &Arc<Path>, level: &'static str) -> Option<u64> {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let budget = inner.budget.as_ref()?;
        if let Some(kept) = inner.kept.iter_mut().find(|kept| kept.is(dir, level)) {
            return kept.state.events();
        }
        if !budget.take(Pace::Seldom) {
            return None;
        }
        let state = match watch(dir, level) {
            Ok(event) => State::Events(event, 0),
            Err(error) => {
                budget.give_back();
                if is_shortage(&error) {
                    return None;
                }
                State::Absent
            }
        };
        inner.keep(dir, level, state);
        inner.kept.last_mut().and_then(|kept| kept.state.events())
    }

    /// Forgets a removed group and its events. A group that is made in its place is watched from its beginning, and may have
    /// files that the old group lacked.
    pub(crate) fn forget_events(&self, dir: &Arc<Path>) {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let mut watched = 0;
        inner.kept.retain(|kept| {
            let is_event = matches!(kept.state, State::Events(..));
            let is_gone = kept.is_in(dir) && (is_event || matches!(kept.state, State::Absent));
            watched += usize::from(is_gone && is_event);
            !is_gone
        });
        if let Some(budget) = &inner.budget {
            (0..watched).for_each(|_| budget.give_back());
        }
    }

    /// The number of open files.
    #[cfg(test)]
    fn open(&self) -> usize {
        let kept = &self.inner.borrow().kept;
        let is_open = |kept: &&OpenFile| matches!(kept.state, State::Open(..));
        kept.iter().filter(is_open).count()
    }

    /// Closes up to `count` rarely read files; returns the number of closed files.
    fn close_seldom_read(&self, count: usize) -> usize {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let mut closed = 0;
        inner.kept.retain(|kept| {
            let closes = closed < count && matches!(kept.state, State::Open(_, Pace::Seldom));
            closed += usize::from(closes);
            !closes
        });
        if let Some(budget) = &inner.budget {
            (0..closed).for_each(|_| budget.give_back());
        }
        closed
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            let open = |kept: &&OpenFile| !matches!(kept.state, State::Absent);
            self.kept
                .iter()
                .filter(open)
                .for_each(|_| budget.give_back());
        }
    }
}

impl Inner {
    /// Reads the file into the buffer; returns its length.
    fn fill(&mut self, dir: &Arc<Path>, file: &'static str) -> Option<usize> {
        let Some(position) = self.find(dir, file) else {
            return self.fill_anew(dir, file);
        };
        let State::Open(open, pace) = &mut self.kept.get_mut(position)?.state else {
            return None;
        };
        if self.pace == Pace::Often {
            *pace = Pace::Often;
        }
        match read_whole(open, &mut self.buffer) {
            Ok(length) => Some(length),
            Err(error) => {
                self.note(error);
                // Usually the group is gone.
                self.kept.swap_remove(position);
                if let Some(budget) = &self.budget {
                    budget.give_back();
                }
                None
            }
        }
    }

    fn find(&mut self, dir: &Arc<Path>, file: &str) -> Option<usize> {
        let (before, after) = self.kept.split_at(self.next.min(self.kept.len()));
        let is_it = |kept: &OpenFile| kept.is(dir, file);
        let found = match after.iter().position(is_it) {
            Some(at) => before.len() + at,
            None => before.iter().position(is_it)?,
        };
        self.next = found + 1;
        Some(found)
    }

    fn fill_anew(&mut self, dir: &Arc<Path>, file: &'static str) -> Option<usize> {
        let opened = self.anchors.open(dir, file);
        let keeps = self.budget.is_some();
        let open = match opened {
            Ok(open) => open,
            Err(error) => {
                // A missing group may still be made; a file that a group lacks will not appear.
                if keeps && error.kind() == io::ErrorKind::NotFound && dir.exists() {
                    self.keep(dir, file, State::Absent);
                }
                self.note(error);
                return None;
            }
        };
        let read = read_whole(&open, &mut self.buffer);
        let length = read.map_err(|error| self.note(error)).ok();
        let pace = self.pace;
        if length.is_some() && self.budget.as_ref().is_some_and(|left| left.take(pace)) {
            self.keep(dir, file, State::Open(open, pace));
        }
        length
    }

    fn note(&mut self, error: io::Error) {
        if is_shortage(&error) || is_device_failure(&error) {
            self.shortage = Some(error);
        }
    }

    fn keep(&mut self, dir: &Arc<Path>, file: &'static str, state: State) {
        let same = self.kept.iter().find(|kept| kept.is_in(dir));
        let dir = same.map_or(dir, |kept| &kept.dir).clone();
        // A container's files are soon all known: spare room would be wasted a thousand times.
        self.kept.reserve_exact(1);
        self.kept.push(OpenFile { dir, file, state });
    }
}

impl OpenFile {
    fn is(&self, dir: &Arc<Path>, file: &str) -> bool {
        self.file == file && self.is_in(dir)
    }

    fn is_in(&self, dir: &Arc<Path>) -> bool {
        Arc::ptr_eq(&self.dir, dir) || self.dir.as_os_str() == dir.as_os_str()
    }
}

impl State {
    /// Adds the events since the last call.
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

/// Reads the whole file from its beginning; the buffer grows as needed and never shrinks.
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
        let free_bytes = free.len();
        let offset = u64::try_from(length).unwrap_or(u64::MAX);
        match file.read_at(free, offset) {
            Ok(0) => return Ok(length),
            // A read returns a whole control file when there is room, so that no second read is needed.
            Ok(more) if more < free_bytes / 2 => return Ok(length + more),
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Makes the kernel signal each event of `level` in the group's `memory.pressure_level` (v1).
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

    fn folder() -> (tempfile::TempDir, Arc<Path>) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().into();
        (folder, path)
    }

    fn keeping(descriptors: usize) -> (Files, Budget) {
        let budget = Budget::new(descriptors);
        (Files::keeping(budget.clone(), Arc::default()), budget)
    }

    #[test]
    fn kept_file_is_reread_each_time() {
        let (_folder, dir) = folder();
        let (files, budget) = keeping(8);
        fs::write(dir.join("pids.current"), "7\n").expect("written");
        assert_eq!(files.number(&dir, "pids.current"), Some(7));
        fs::write(dir.join("pids.current"), "12\n").expect("written");
        assert_eq!(files.number(&dir, "pids.current"), Some(12));
        assert_eq!(budget.left(), 7);
        drop(files);
        assert_eq!(budget.left(), 8);
    }

    #[test]
    fn garbage_reads_as_absent_until_fixed() {
        let (_folder, dir) = folder();
        let (files, _) = keeping(8);
        let file = dir.join("memory.current");
        for (text, number) in [
            (&b"12 potatoes\n"[..], None),
            (b"\xff\xfe", None),
            (b"", None),
            (b"-5\n", None),
            (b"99999999999999999999999\n", None),
            (b"4096\n", Some(4096)),
        ] {
            fs::write(&file, text).expect("written");
            assert_eq!(files.number(&dir, "memory.current"), number);
        }
    }

    #[test]
    fn exhausted_budget_reopens_files_each_time() {
        let (_folder, dir) = folder();
        let (files, budget) = keeping(1);
        for name in ["a", "b", "c"] {
            fs::write(dir.join(name), "1\n").expect("written");
        }
        for _ in 0..2 {
            for name in ["a", "b", "c"] {
                assert_eq!(files.number(&dir, name), Some(1));
            }
        }
        assert_eq!(budget.left(), 0);
        assert_eq!(files.inner.borrow().kept.len(), 1);
    }

    #[test]
    fn missing_file_is_cached_unlike_group() {
        let (_folder, dir) = folder();
        let (files, _) = keeping(8);
        assert_eq!(files.number(&dir, "cpu.pressure"), None);
        fs::write(dir.join("cpu.pressure"), "1").expect("written");
        assert_eq!(files.number(&dir, "cpu.pressure"), None);
        let group: Arc<Path> = dir.join("later").into();
        assert_eq!(files.number(&group, "pids.current"), None);
        fs::create_dir(&group).expect("made");
        fs::write(group.join("pids.current"), "1").expect("written");
        assert_eq!(files.number(&group, "pids.current"), Some(1));
    }

    /// Regression: events of a group made in place of a long removed one were not counted.
    #[test]
    fn recreated_group_gets_its_missing_file() {
        let (_folder, dir) = folder();
        let (files, budget) = keeping(8);
        let group: Arc<Path> = dir.join("group").into();
        assert_eq!(files.pressure_events(&group, "low"), None);
        files.forget_events(&group);
        fs::create_dir(&group).expect("made");
        fs::write(group.join("memory.pressure_level"), "").expect("written");
        fs::write(group.join("cgroup.event_control"), "").expect("written");
        assert_eq!(files.pressure_events(&group, "low"), Some(0));
        assert_eq!(budget.left(), 7);
        files.forget_events(&group);
        assert_eq!(budget.left(), 8);
    }

    #[test]
    fn shortage_is_distinct_from_missing_file() {
        let (_folder, dir) = folder();
        let (files, _) = keeping(8);
        files.begin(true, Vec::new());
        assert_eq!(files.number(&dir, "pids.current"), None);
        assert!(files.take_shortage().is_none());
        // A file whose first byte cannot be read.
        let process = Arc::from(Path::new("/proc/self"));
        for files in [&files, &Files::passing()] {
            assert_eq!(files.number(&process, "mem"), None);
            let shortage = files.take_shortage().and_then(|error| error.raw_os_error());
            assert_eq!(shortage, Some(nix::libc::EIO));
            assert!(files.take_shortage().is_none());
        }
        assert_eq!(files.number(&process, "mem"), None);
        files.begin(true, Vec::new());
        assert!(files.take_shortage().is_none());
    }

    #[test]
    fn long_file_is_read_endless_refused() {
        let (_folder, dir) = folder();
        let (files, _) = keeping(8);
        let long = "some-word 1\n".repeat(5000);
        fs::write(dir.join("memory.stat"), &long).expect("written");
        let length = files.read(&dir, "memory.stat", |text| Some(text.len()));
        assert_eq!(length, Some(long.len()));
        let endless = Arc::from(Path::new("/dev"));
        assert_eq!(files.read(&endless, "zero", |text| Some(text.len())), None);
    }
}
