//! The counters of ended nested containers: the kernel drops them with the groups, while the outer container goes on.
//!
//! They are kept in the runtime folder of the outer container, so that a restarted agent knows them: one line for all removed
//! containers, and one for each whose groups are about to be removed. Invariant: each container is in the sum once, whenever
//! the agent stops. Until its groups are gone, it has a line of its own, which counts only as far as its groups cannot be
//! read.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use crate::usage::{ContainerUsage, LOCAL_COUNTS};

/// File name in the runtime folder of the outer container.
const FILE: &str = "ended";
/// The longest readable file: some thousand lines.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The prefix of the line of removed containers; the line of another container begins with its folder's `+`.
const GONE: &str = "gone";
const ENDING: char = '+';
/// Placeholder of a missing figure.
const NONE: &str = "-";

/// The noted local figures of nested containers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ended {
    /// Counters of all containers whose groups are gone.
    pub(super) gone: ContainerUsage,
    /// Counters of containers whose groups are being removed, by name.
    pub(super) ending: BTreeMap<String, ContainerUsage>,
}

impl Ended {
    /// Reads the notes in a container's folder. An error means that the folder could not be read, not that it has no notes.
    pub(super) fn read(dir: &Path) -> io::Result<Self> {
        let read = || {
            let file = fs::File::open(dir.join(FILE))?;
            io::read_to_string(io::Read::take(file, FILE_BYTES_MAX))
        };
        match read() {
            Ok(text) => Ok(Self::from_text(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        let new = dir.join("ended.new");
        fs::write(&new, self.to_text())?;
        fs::rename(new, dir.join(FILE))
    }

    /// Whether there are no notes.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Notes the counters of a container whose groups are about to be removed. An earlier note may exist if only some of its
    /// groups could be removed.
    pub(super) fn note(&mut self, name: &str, usage: &ContainerUsage) {
        let noted = self.ending.entry(name.to_owned()).or_default();
        noted.raise_local(usage);
    }

    /// Moves the counters of a container to the removed ones, because its groups are gone. Returns whether it was noted.
    pub(super) fn settle(&mut self, name: &str) -> bool {
        let noted = self.ending.remove(name);
        if let Some(usage) = &noted {
            self.gone.add_local(usage);
        }
        noted.is_some()
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        write_line(&mut text, GONE, &self.gone);
        for (name, usage) in &self.ending {
            write_line(&mut text, &format!("{ENDING}{name}"), usage);
        }
        text
    }

    /// Parses the notes; ignores malformed lines.
    fn from_text(text: &str) -> Self {
        let mut all = Self::default();
        for line in text.lines() {
            let Some((who, usage)) = parse_line(line) else {
                continue;
            };
            match who.strip_prefix(ENDING) {
                Some(name) => all.note(name, &usage),
                None if who == GONE => all.gone = usage,
                None => {}
            }
        }
        all
    }
}

/// Writes the name, the local counters in their order, and the throttled time in seconds.
fn write_line(text: &mut String, who: &str, usage: &ContainerUsage) {
    text.push_str(who);
    for count in usage.local_counts() {
        let _ = match count {
            Some(count) => write!(text, " {count}"),
            None => write!(text, " {NONE}"),
        };
    }
    let _ = match usage.cpu.throttled_secs {
        Some(secs) => writeln!(text, " {secs}"),
        None => writeln!(text, " {NONE}"),
    };
}

fn parse_line(line: &str) -> Option<(&str, ContainerUsage)> {
    let words: Vec<&str> = line.split(' ').collect();
    let (who, rest) = words.split_first()?;
    let (secs, counts) = rest.split_last()?;
    if counts.len() != LOCAL_COUNTS {
        return None;
    }
    let mut usage = ContainerUsage::default();
    for (count, word) in usage.local_counts_mut().into_iter().zip(counts) {
        *count = (*word != NONE).then(|| word.parse()).transpose().ok()?;
    }
    let secs: Option<f64> = (*secs != NONE).then(|| secs.parse()).transpose().ok()?;
    usage.cpu.throttled_secs = secs.filter(|secs| secs.is_finite());
    Some((who, usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(reads: u64, secs: f64) -> ContainerUsage {
        let mut usage = ContainerUsage::default();
        usage.io.reads = Some(reads);
        usage.cpu.throttled_secs = Some(secs);
        usage
    }

    #[test]
    fn noted_container_is_restored_counted_once() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        assert!(Ended::read(dir.path()).expect("nothing").is_empty());
        let mut ended = Ended::default();
        ended.note("one", &usage(3, 0.1));
        // Some of the container's groups were gone at the second note.
        ended.note("one", &ContainerUsage::default());
        ended.note("two", &usage(5, 0.25));
        assert!(ended.settle("two") && !ended.settle("three"));
        ended.write(dir.path()).expect("written");
        let mut read = Ended::read(dir.path()).expect("read");
        assert_eq!(read, ended);
        assert_eq!(read.gone, usage(5, 0.25));
        assert!(read.settle("one") && !read.settle("one"));
        assert_eq!(read.gone.io.reads, Some(8));
        assert_eq!(read.gone.io.writes, None);
    }

    /// Otherwise the file would be written again without its contents.
    #[test]
    fn unreadable_file_is_an_error() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(dir.path().join(FILE)).expect("made");
        assert!(Ended::read(dir.path()).is_err());
    }

    #[test]
    fn malformed_lines_are_ignored() {
        let line = "gone 1 2 3 4 5 6 7 8 0.5";
        assert_eq!(Ended::from_text(line).gone.memory.oom_kills, Some(6));
        for text in [
            "",
            "gone",
            "gone 1 2",
            "else 1 2 3 4 5 6 7 8 0.5",
            "gone - - - - - - - - NaN",
        ] {
            assert!(Ended::from_text(text).is_empty(), "{text}");
        }
        let spoilt = line.replace('6', "many");
        assert!(Ended::from_text(&spoilt).is_empty());
    }
}
