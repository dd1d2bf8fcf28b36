//! The output of verbs: lines, JSON and notes, with the text of other parties escaped, and the errors of printing.
//!
//! All output of verbs goes through here. Invariants: text of other parties forges no line, moves no cursor and changes no
//! direction; failed output ends the verb with an error, unless the reader has left (`| head`).

use std::borrow::Cow;
use std::cell::RefCell;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use meseta_daemon::untrusted;
use serde_json::Value;

/// Prints one line. Writes a line feed in it as `
/// `, so that a name cannot make a second line.
pub(crate) fn say(text: &str) {
    put(&one_line(text));
}

/// Prints lines of the program's own text.
pub(crate) fn say_lines(text: &str) {
    put(&printable(text));
}

/// Escapes the text of other parties for a part of a line.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    untrusted::escaped(text, &['\t'])
}

/// Escapes a text for a terminal: lines stay, other harmful characters do not.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    untrusted::escaped(text, &['\n', '\t'])
}

/// Prints a value with indentation.
pub(crate) fn print_json(value: &Value) -> anyhow::Result<()> {
    put(&untrusted::escaped_json(&serde_json::to_string_pretty(
        value,
    )?));
    Ok(())
}

/// Prints a value on one line.
pub(crate) fn print_json_line(value: &Value) {
    put(&untrusted::escaped_json(&value.to_string()));
}

/// Writes a note to standard error, even if it is closed.
pub(crate) fn note_line(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", printable(text));
}

/// Writes a note to standard error, as `eprintln!` would, with the text of other parties escaped.
macro_rules! note {
    ($($argument:tt)*) => { $crate::terminal::note_line(&format!($($argument)*)) };
}
pub(crate) use note;

thread_local! {
    /// The lines that this thread holds back, if any.
    static HELD: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The first error of writing standard output.
static FAILURE: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints one line of output.
pub(crate) fn put(line: &str) {
    HELD.with_borrow_mut(|held| match held {
        Some(held) => {
            held.push_str(line);
            held.push('\n');
        }
        None => keep(writeln!(io::stdout().lock(), "{line}")),
    });
}

/// Returns the text that `show` would print.
pub(crate) fn held(show: &dyn Fn() -> anyhow::Result<()>) -> (anyhow::Result<()>, String) {
    HELD.set(Some(String::new()));
    let outcome = show();
    (outcome, HELD.take().unwrap_or_default())
}

/// Keeps the reason of a failed print for [`finish`].
pub(crate) fn keep(written: io::Result<()>) {
    let Err(error) = written else { return };
    let mut failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
    failure.get_or_insert(error);
}

/// Returns the exit code of a process that has printed everything: an error if printing failed.
pub(crate) fn finish(code: ExitCode) -> ExitCode {
    keep(io::stdout().lock().flush());
    let failure = FAILURE
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    match failure {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            note!("meseta: failed to write to standard output: {error}");
            ExitCode::FAILURE
        }
        _ => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a framework's name coloured the operator's terminal, and a task's name made its own line.
    #[test]
    fn text_of_others_makes_no_line() {
        let text = "a\u{1b}[31mred\0\nstate  TASK_FINISHED\u{9b}K\u{202e}\u{2028}x";
        let expected = r"a\u{1b}[31mred\u{0}\nstate  TASK_FINISHED\u{9b}K\u{202e}\u{2028}x";
        assert_eq!(one_line(text), expected);
        let (_, told) = held(&|| {
            say(text);
            print_json(&serde_json::json!([text]))
        });
        let json = r#""a\u001b[31mred\u0000\nstate  TASK_FINISHED\u009bK\u202e\u2028x""#;
        assert_eq!(told, format!("{expected}\n[\n  {json}\n]\n"));
        assert_eq!(printable("one\n\ttwo\r\u{7}"), "one\n\ttwo\\r\\u{7}");
        assert!(matches!(printable("Jörg…\n"), Cow::Borrowed(_)));
    }
}
