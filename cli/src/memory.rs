//! The memory savings of a daemon.
//!
//! [`give_back`] unmaps pages that only the start needed: a start runs through flag parsing, configuration, recovery,
//! registration. It touches little of the binary's 30 MB of text and constants, but the kernel maps sixteen pages for each
//! touched page, so some 16 MB stay resident, of which a working daemon uses one. Pages that are needed again are mapped
//! again from the page cache, without a read. [`few_arenas`] and [`large_pieces_go_back`] keep freed memory from staying
//! with the allocator, [`tidy`] repeats all that from time to time, and each [`Relief`] decides when. Invariant: a mapping
//! with a page of its own (data, relocated constants) stays untouched.

#![expect(
    unsafe_code,
    reason = "madvise on mappings by their address, and settings of the C library's allocator; no safe wrappers exist"
)]

use std::ops::Range;
use std::time::Duration;

/// The time from when a daemon listens until its start is surely over, including registration.
pub(crate) const AFTER: Duration = Duration::from_secs(4);

/// The pause between two looks for unneeded memory.
pub(crate) const TRIM_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes of the program's pages that a working daemon needs repeatedly; more are released.
const PROGRAM_BYTES_MAX: u64 = 5 << 20;

/// Arenas for all threads together; the C library's default of eight per processor keeps memory that hundreds of launches
/// needed for a moment.
#[cfg(target_env = "gnu")]
const ARENAS: libc::c_int = 2;
/// The size from which pieces, such as answers to scrapes, have a mapping each and go back when they are freed. A fixed
/// value also prevents the C library from raising it with each large piece that is freed.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 128 << 10;

/// Configures the allocator to keep little freed memory. Must run before other threads allocate.
pub(crate) fn few_arenas() {
    #[cfg(target_env = "gnu")]
    for (setting, value) in [
        (libc::M_ARENA_MAX, ARENAS),
        (libc::M_MMAP_THRESHOLD, MAPPED_BYTES),
        (libc::M_TRIM_THRESHOLD, MAPPED_BYTES),
    ] {
        // SAFETY: takes two integers and locks the allocator's own state. A refusal changes nothing.
        unsafe { libc::mallopt(setting, value) };
    }
}

/// The size from which pieces in a master have a mapping each: requests of megabytes, the memory of a password's hash. By
/// default the C library raises the size with each large piece that is freed, and then sixteen arenas keep three or four
/// pieces each: 400 MB after a hundred wrong guesses. Smaller pieces, and all the arenas, stay for the sake of throughput.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 1 << 20;

/// Configures the allocator to release large pieces as they are freed. Must run before other threads allocate.
pub(crate) fn large_pieces_go_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes two integers and locks the allocator's own state. A refusal changes nothing.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES)
    };
}

/// The decision when freed memory goes back to the kernel.
pub(crate) trait Relief: Send + 'static {
    /// The pause between two looks.
    const INTERVAL: Duration;
    /// Whether memory should be released now; must be quick.
    fn is_needed(&mut self) -> bool;
    /// Releases memory, which may take some milliseconds.
    fn relieve(&mut self);
}

/// The size below which a heap is not worth a trim.
const SMALL_HEAP_BYTES: u64 = 64 << 20;
/// The growth since the last check after which releasable memory may soon exist.
const GROWTH_BYTES: u64 = 64 << 20;
/// The longest pause between two trims without effect: each delays allocations by some milliseconds.
const TRIM_PAUSE_MAX: Duration = Duration::from_secs(300);

/// The times to trim a heap that may be large: soon after it grew or a trim was useful, and more and more rarely otherwise.
#[derive(Debug)]
pub(crate) struct Trims {
    /// The heap bytes after the last trim.
    after: u64,
    pause: Duration,
    waited: Duration,
}

impl Trims {
    pub(crate) fn new() -> Self {
        Self {
            after: 0,
            pause: TRIM_INTERVAL,
            waited: Duration::ZERO,
        }
    }

    /// Whether to trim now, [`TRIM_INTERVAL`] after the last call, with this number of heap bytes.
    fn is_due(&mut self, heap: u64) -> bool {
        self.waited += TRIM_INTERVAL;
        if heap > self.after.saturating_add(GROWTH_BYTES) {
            self.pause = TRIM_INTERVAL;
        }
        heap > SMALL_HEAP_BYTES && self.waited >= self.pause
    }

    /// Notes the result of a trim.
    fn done(&mut self, before: u64, after: u64) {
        let is_of_use = after < before - before / 8;
        self.pause = if is_of_use {
            TRIM_INTERVAL
        } else {
            TRIM_PAUSE_MAX.min(self.pause * 2)
        };
        self.waited = Duration::ZERO;
        self.after = after;
    }
}

impl Relief for Trims {
    const INTERVAL: Duration = TRIM_INTERVAL;

    fn is_needed(&mut self) -> bool {
        resident("RssAnon:").is_some_and(|heap| self.is_due(heap))
    }

    fn relieve(&mut self) {
        let Some(before) = resident("RssAnon:") else {
            return;
        };
        trim();
        self.done(before, resident("RssAnon:").unwrap_or(before));
    }
}

/// The rule for releasing freed memory before its usual time: with more than three eighths of the budget resident, as soon
/// as that has grown by a thirty-second part. Memory freed in small pieces, after a large call or answer, otherwise stays
/// with the allocator for some seconds, and adds to the needs of the next call.
#[derive(Debug)]
pub(crate) struct Pressure {
    budget: u64,
    /// The function that releases memory.
    tidy: fn(),
    /// The smallest size since the last trim, in bytes.
    least: u64,
}

impl Pressure {
    pub(crate) const fn new(budget: u64, tidy: fn()) -> Self {
        Self {
            budget,
            tidy,
            least: 0,
        }
    }

    fn is_due(&mut self, heap: u64) -> bool {
        self.least = self.least.min(heap);
        heap > self.budget / 8 * 3 && heap - self.least > self.budget / 32
    }
}

impl Relief for Pressure {
    const INTERVAL: Duration = Duration::from_millis(500);

    fn is_needed(&mut self) -> bool {
        resident("VmRSS:").is_some_and(|heap| self.is_due(heap))
    }

    fn relieve(&mut self) {
        (self.tidy)();
        self.least = resident("VmRSS:").unwrap_or(self.budget);
    }
}

/// Releases the remains of a burst of work: freed memory, and pages of the program.
pub(crate) fn tidy() {
    trim();
    if resident("RssFile:").is_some_and(|bytes| bytes > PROGRAM_BYTES_MAX) {
        give_back();
    }
}

/// Returns the resident bytes of a kind: `RssFile:` for mapped files, `RssAnon:` for the heap and stacks.
fn resident(kind: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let told = status.lines().find_map(|line| line.strip_prefix(kind))?;
    let kilobytes: u64 = told.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Returns freed pages of the allocator to the kernel.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes an integer and locks the allocator's own state; memory in use is not moved.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Unmaps the clean pages of the program and its libraries. Does nothing if procfs does not list them.
pub(crate) fn give_back() {
    let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") else {
        return;
    };
    for range in clean(&smaps) {
        // SAFETY: the range is a private, unwritable mapping of a file with no page of its own, so each of its
        // pages is that of the file, and a later access maps the same bytes again. The program and its
        // libraries are never truncated while they run: an upgrade puts new files in their place, and the
        // kernel refuses to write to a running program. A failure changes nothing.
        unsafe {
            libc::madvise(
                std::ptr::with_exposed_provenance_mut(range.start),
                range.len(),
                libc::MADV_DONTNEED,
            );
        }
    }
}

/// Returns the addresses of private mappings of files that are not writable and have no own page.
fn clean(smaps: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut candidate = None;
    for line in smaps.lines() {
        if let Some(mapping) = unwritable_file(line) {
            candidate = mapping;
        } else if let Some(own) = line.strip_prefix("Anonymous:")
            && let Some(range) = candidate.take()
            && own.trim() == "0 kB"
        {
            found.push(range);
        }
    }
    found
}

/// Parses a line such as `55d8-55e0 r-xp 000 fe:00 123 /usr/bin/meseta`: its addresses, or `Some(None)` for a mapping of
/// another kind; `None` for a line that begins no mapping.
fn unwritable_file(line: &str) -> Option<Option<Range<usize>>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let range = address(start)?..address(end)?;
    let kind = words.next()?;
    let is_file = words.nth(3).is_some_and(|path| path.starts_with('/'));
    Some((is_file && (kind == "r-xp" || kind == "r--p")).then_some(range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clean_file_mappings_are_released() {
        let mapping = |line: &str, own: u32| {
            format!("{line}\nRss: 8 kB\nAnonymous:        {own} kB\nVmFlags: rd mr mw me\n")
        };
        let smaps = [
            mapping("1000-2000 r--p 00000000 fe:00 12 /usr/bin/meseta", 0),
            mapping(
                "2000-5000 r-xp 00001000 fe:00 12 /usr/bin/meseta (deleted)",
                0,
            ),
            mapping("5000-6000 r--p 00004000 fe:00 12 /usr/bin/meseta", 4),
            mapping("6000-7000 rw-p 00005000 fe:00 12 /usr/bin/meseta", 0),
            mapping("7000-8000 rw-p 00000000 00:00 0 [heap]", 8),
            mapping("8000-9000 r--s 00000000 fe:00 13 /var/lib/x", 0),
            mapping("9000-a000 r-xp 00000000 00:00 0 [vdso]", 0),
            mapping("a000-b000 r--p 00000000 00:00 0", 0),
        ];
        assert_eq!(clean(&smaps.concat()), [0x1000..0x2000, 0x2000..0x5000]);
        assert!(clean("garbage\n- -\n1000-2000 r-xp").is_empty());
    }

    #[test]
    fn heap_is_trimmed_when_useful() {
        const MIB: u64 = 1 << 20;
        let mut trims = Trims::new();
        assert!(!trims.is_due(50 * MIB), "small");
        assert!(trims.is_due(1_000 * MIB));
        trims.done(1_000 * MIB, 1_000 * MIB);
        // The whole heap is in use: the next checks come after 20 s, 40 s, 80 s.
        let mut after_looks = Vec::new();
        for _ in 0..3 {
            let looks = (1..100).find(|_| trims.is_due(1_000 * MIB));
            after_looks.push(looks.expect("due some time"));
            trims.done(1_000 * MIB, 1_000 * MIB);
        }
        assert_eq!(after_looks, [2, 4, 8]);
        // The heap grows, and then most of it has been freed.
        assert!(trims.is_due(1_100 * MIB));
        trims.done(1_100 * MIB, 300 * MIB);
        assert!(trims.is_due(300 * MIB));
        for _ in 0..20 {
            trims.done(300 * MIB, 300 * MIB);
        }
        assert_eq!(trims.pause, TRIM_PAUSE_MAX);
    }

    #[test]
    fn heap_near_budget_is_trimmed() {
        let mut pressure = Pressure::new(160, || {});
        assert!(!pressure.is_due(60), "three eighths of it");
        assert!(pressure.is_due(61));
        pressure.least = 61;
        assert!(!pressure.is_due(66));
        assert!(pressure.is_due(67));
        pressure.least = 92;
        assert!(!pressure.is_due(70));
        assert!(pressure.is_due(76), "it has shrunk and grown again");
    }

    /// Code and constants work as before the release.
    #[test]
    fn released_pages_are_read_again() {
        let before = format!("{:?}", std::time::Duration::from_millis(1500));
        give_back();
        assert_eq!(
            format!("{:?}", std::time::Duration::from_millis(1500)),
            before
        );
    }
}
