//! The `--watch` flag: repeats the same request, as the output of one lasting program.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use clap::Args;

use super::lenient;
use crate::terminal;

/// The shortest interval: at a shorter one, the list of a large cluster would never be complete.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Moves to the first line and column, and clears everything below.
const FROM_THE_TOP: &str = "\x1b[H\x1b[J";

/// A flag of verbs that show how something stands.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct WatchFlag {
    /// Repeat the output every two seconds, or at this interval, until interrupted.
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "2secs",
          value_parser = lenient::duration)]
    watch: Option<Duration>,
}

impl WatchFlag {
    /// Shows the output once, or repeatedly until the reader has left. After the first success, an error appears in place
    /// of an answer, and the request is repeated.
    pub(super) fn run(self, show: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let Some(interval) = self.watch else {
            return show();
        };
        let mut is_first = true;
        loop {
            let (outcome, mut text) = terminal::held(&show);
            match outcome {
                Err(error) if is_first => return Err(error),
                Err(error) => {
                    let told = format!("meseta: {error:#}; retrying\n");
                    text += &terminal::printable(&told);
                }
                Ok(()) => is_first = false,
            }
            if let Err(error) = print(&text) {
                terminal::keep(Err(error));
                return Ok(());
            }
            std::thread::sleep(interval.max(INTERVAL_MIN));
        }
    }
}

/// Prints the text: on a terminal in place of the present one, elsewhere after it with an empty line between.
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if out.is_terminal() {
        let rows = rustix::termios::tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_row));
        write!(out, "{FROM_THE_TOP}{}", fitting(text, rows))?;
    } else {
        writeln!(out, "{text}")?;
    }
    out.flush()
}

/// Returns as many lines as a terminal with this number of rows can show, with the number of omitted lines; all lines if it
/// has no rows.
fn fitting(text: &str, rows: usize) -> String {
    let count = text.lines().count();
    // The cursor is in the row below.
    if rows < 3 || count < rows {
        return text.to_owned();
    }
    let shown = rows - 2;
    let mut lines: Vec<&str> = text.lines().take(shown).collect();
    let left = format!("… {} lines more", count - shown);
    lines.push(&left);
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn screen_counts_the_omitted_lines() {
        let text = "1\n2\n3\n4\n5\n";
        for (rows, expected) in [
            (0, text),
            (6, text),
            (5, "1\n2\n3\n… 2 lines more\n"),
            (3, "1\n… 4 lines more\n"),
        ] {
            assert_eq!(fitting(text, rows), expected, "{rows} rows");
        }
    }

    #[test]
    fn output_is_held_until_complete() {
        let (outcome, text) = terminal::held(&|| {
            terminal::say("one");
            terminal::say("two");
            Ok(())
        });
        assert!(outcome.is_ok());
        assert_eq!(text, "one\ntwo\n");
    }
}
