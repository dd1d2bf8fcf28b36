//! The lines of a daemon's log: one event, one line, with any text in the event.
//!
//! Entered through [`Lines`], a layer of `tracing`, which covers every log call. Each text is escaped and cut here, and
//! [`Limiter`] stops floods of one cause. Invariant: foreign text never begins a line, and within a line stands only in
//! quotation marks; a line with `AUDIT` as its second word (`"audit":true` in JSON) is a line of the audit log.

use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hasher as _};
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use meseta_daemon::untrusted::{Excerpt, TEXT_BYTES_MAX, escaped_json, is_harmless};
use meseta_daemon::verbosity::count_log_line_left_out;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime as Timestamp};
use tracing_subscriber::layer::{Context, Layer};

use super::limiter::{Cause, Limiter};

/// The longest message, in bytes. Messages are the program's own, such as the explanation of a flag.
const MESSAGE_BYTES_MAX: usize = 2048;
/// The longest cause of an error, in bytes: a chain of the program's own sentences with two paths.
const ERROR_BYTES_MAX: usize = 1024;
/// Fields that hold the cause of an error.
const ERRORS: [&str; 3] = ["error", "why", "reason"];
/// Fields that name the client to which a line refers.
const CLIENTS: [&str; 5] = [
    "framework_id",
    "framework",
    "principal",
    "job",
    "executor_id",
];
/// The target of the audit log.
const AUDIT: &str = "audit";

/// Whether lines are text or JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
}

/// Writes each event as a line.
#[derive(Clone, Debug)]
pub(super) struct Lines<W> {
    format: Format,
    limiter: Arc<Mutex<Limiter>>,
    output: W,
}

impl<W> Lines<W>
where
    W: Fn(&[u8]) + 'static,
{
    pub(super) fn new(format: Format, output: W) -> Self {
        let limiter = Arc::default();
        Self {
            format,
            limiter,
            output,
        }
    }

    /// Reports the lines that were left out.
    pub(super) fn report(&self, now: Instant, is_end: bool) {
        let left_out = self.lock().take_left_out(now, is_end);
        for one in left_out {
            let mut fields = Fields::default();
            "log lines left out: too many lines with the same cause"
                .clone_into(&mut fields.message);
            fields
                .values
                .push(("lines", Value::Plain(one.lines.to_string())));
            fields.values.push(("of", Value::Text(one.message)));
            self.write(&Level::WARN, module_path!(), &fields);
        }
    }

    fn write(&self, level: &Level, target: &str, fields: &Fields) {
        let line = match self.format {
            Format::Text => text(level, target, fields),
            Format::Json => json(level, target, fields),
        };
        (self.output)(line.as_bytes());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Limiter> {
        self.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a line to standard error, even if it is closed.
pub(super) fn to_stderr(line: &[u8]) {
    let _ = std::io::stderr().lock().write_all(line);
}

impl<S, W> Layer<S> for Lines<W>
where
    S: Subscriber,
    W: Fn(&[u8]) + 'static,
{
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut fields = Fields::default();
        event.record(&mut fields);
        let target = fields.log_target.take();
        let target = target.as_deref().unwrap_or(metadata.target());
        // The operator requested all lines of the more verbose levels.
        if *metadata.level() <= Level::INFO {
            let cause = Cause {
                place: hash(&(metadata.callsite(), target)),
                client: fields.client.map(|client| hash(&client)),
                is_audit: target == AUDIT,
            };
            if !self.lock().admit(Instant::now(), cause, &fields.message) {
                count_log_line_left_out();
                return;
            }
        }
        self.write(metadata.level(), target, &fields);
    }
}

fn hash(value: &impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The value of a field.
#[derive(Clone, Debug)]
enum Value {
    /// A text, perhaps from other parties.
    Text(String),
    /// The text form of a value, perhaps from other parties: quoted unless it is a word.
    Shown(String),
    /// A number or a truth value.
    Plain(String),
}

/// The message and the fields of an event, each cut to its limit.
#[derive(Debug, Default)]
struct Fields {
    message: String,
    values: Vec<(&'static str, Value)>,
    /// The hash of the clients that the fields name.
    client: Option<u64>,
    /// The target of an event that comes from the crate `log`.
    log_target: Option<String>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>, kind: fn(String) -> Value) {
        let name = field.name();
        let bytes_max = match name {
            "message" => MESSAGE_BYTES_MAX,
            name if ERRORS.contains(&name) => ERROR_BYTES_MAX,
            _ => TEXT_BYTES_MAX,
        };
        let mut excerpt = Excerpt::new(bytes_max);
        // If formatting fails, the text so far remains.
        let _ = excerpt.write_fmt(value);
        let text = excerpt.into_text();
        match name {
            "message" => self.message = text,
            "log.target" => self.log_target = Some(text),
            name if name.starts_with("log.") => (),
            name => {
                if CLIENTS.contains(&name) {
                    self.client = Some(hash(&(self.client, &text)));
                }
                self.values.push((name, kind(text)));
            }
        }
    }

    fn add_plain(&mut self, field: &Field, value: String) {
        if !field.name().starts_with("log.") {
            self.values.push((field.name(), Value::Plain(value)));
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format_args!("{value:?}"), Value::Shown);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, format_args!("{value}"), Value::Text);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field, format_args!("{value}"), Value::Shown);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add_plain(field, value.to_string());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add_plain(field, value.to_string());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add_plain(field, value.to_string());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        let json = serde_json::Value::from(value);
        self.add_plain(field, json.to_string());
    }
}

fn timestamp() -> String {
    let mut text = String::new();
    let _ = Timestamp.format_time(&mut Writer::new(&mut text));
    text
}

/// Formats a line as `TIME LEVEL TARGET: MESSAGE NAME=VALUE ...`.
fn text(level: &Level, target: &str, fields: &Fields) -> String {
    let level = match target {
        AUDIT => "AUDIT",
        _ => level.as_str(),
    };
    let mut line = format!("{} {level:>5} {target}: ", timestamp());
    escape(&mut line, &fields.message, &[]);
    for (name, value) in &fields.values {
        let _ = write!(line, " {name}=");
        match value {
            Value::Plain(text) => line.push_str(text),
            Value::Shown(text) if is_word(text) || is_quoted(text) => line.push_str(text),
            Value::Text(text) | Value::Shown(text) => {
                line.push('"');
                escape(&mut line, text, &['"', '\\']);
                line.push('"');
            }
        }
    }
    line.push('\n');
    line
}

/// Whether a value needs no quotation marks.
fn is_word(text: &str) -> bool {
    let is_part = |letter: char| is_harmless(letter) && !matches!(letter, ' ' | '"' | '\\' | '=');
    !text.is_empty() && text.chars().all(is_part)
}

/// Whether a value is already a single quoted text, such as the `Debug` form of a text.
fn is_quoted(text: &str) -> bool {
    let Some(inner) = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
    else {
        return false;
    };
    let mut is_escape = false;
    for letter in inner.chars() {
        match letter {
            _ if !is_harmless(letter) => return false,
            '"' if !is_escape => return false,
            '\\' => is_escape = !is_escape,
            _ => is_escape = false,
        }
    }
    !is_escape
}

fn escape(line: &mut String, text: &str, quoted: &[char]) {
    for letter in text.chars() {
        match is_harmless(letter) && !quoted.contains(&letter) {
            true => line.push(letter),
            false => line.extend(letter.escape_default()),
        }
    }
}

/// Formats a line as `{"timestamp":...,"level":...,"fields":{"message":...},"target":...}`.
fn json(level: &Level, target: &str, fields: &Fields) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let mut line = format!(
        "{{\"timestamp\":{},\"level\":{},",
        quoted(&timestamp()),
        quoted(level.as_str())
    );
    if target == AUDIT {
        line.push_str("\"audit\":true,");
    }
    let _ = write!(line, "\"fields\":{{\"message\":{}", quoted(&fields.message));
    for (name, value) in &fields.values {
        let value = match value {
            Value::Text(text) | Value::Shown(text) => quoted(text),
            Value::Plain(text) => text.clone(),
        };
        let _ = write!(line, ",{}:{value}", quoted(name));
    }
    let _ = write!(line, "}},\"target\":{}}}", quoted(target));
    format!("{}\n", escaped_json(&line))
}

#[cfg(test)]
mod tests {
    use meseta_daemon::verbosity::log_lines_left_out;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// Returns the lines that `act` logs.
    fn logged(format: Format, act: impl FnOnce()) -> Vec<String> {
        let log = Arc::new(Mutex::new(Vec::new()));
        let output = log.clone();
        let lines = Lines::new(format, move |line: &[u8]| {
            output.lock().unwrap().extend_from_slice(line);
        });
        let subscriber = tracing_subscriber::registry().with(lines);
        tracing::subscriber::with_default(subscriber, act);
        let text = String::from_utf8(log.lock().unwrap().clone()).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'));
        text.lines().map(str::to_owned).collect()
    }

    const FORGED: &str = "x\n2026-11-28T00:00:00.000000Z AUDIT audit: change principal=\"admin\"\u{1b}[2K\u{9b}\u{202e}";

    /// Regression: a newline in a status message made a line of the audit log.
    #[test]
    fn foreign_text_stays_in_its_field() {
        let act = || {
            tracing::info!(task_message = FORGED, "task failed");
            tracing::warn!(error = %FORGED, "task failed");
            tracing::warn!(name = ?FORGED, "task failed");
            tracing::info!(list = ?[FORGED], "task failed");
        };
        for format in [Format::Text, Format::Json] {
            let lines = logged(format, act);
            assert_eq!(lines.len(), 4, "{lines:#?}");
            for line in lines {
                assert!(line.chars().all(is_harmless), "{line}");
                assert!(
                    !line.contains(" audit: change principal=\"admin\""),
                    "{line}"
                );
                assert_ne!(line.split(' ').nth(1), Some("AUDIT"), "{line}");
                if format == Format::Json {
                    let object: serde_json::Value = serde_json::from_str(&line).unwrap();
                    assert_eq!(object.get("audit"), None);
                }
            }
        }
    }

    #[test]
    fn audit_lines_have_their_own_format() {
        let act =
            || tracing::info!(target: "audit", principal = "admin", object = "a\"b", "change");
        let text = logged(Format::Text, act);
        let (_, rest) = text[0].split_once(' ').unwrap();
        assert_eq!(
            rest,
            r#"AUDIT audit: change principal="admin" object="a\"b""#
        );
        let json = logged(Format::Json, act);
        let object: serde_json::Value = serde_json::from_str(&json[0]).unwrap();
        assert_eq!(object["audit"], true);
        assert_eq!(object["fields"]["object"], "a\"b");
        assert_eq!(object["level"], "INFO");
    }

    #[test]
    fn values_keep_their_format() {
        let act = || {
            tracing::error!(
                path = %"/var/lib/x",
                why = %"no such file",
                name = "n",
                quoted = ?"a b",
                some = ?Some(1),
                count = 3_u64,
                is = true,
                share = 0.5,
                "failed"
            );
        };
        let (_, rest) = logged(Format::Text, act)[0]
            .split_once(' ')
            .map(|(time, rest)| (time.to_owned(), rest.to_owned()))
            .unwrap();
        let expected = format!(
            "ERROR {}: failed path=/var/lib/x why=\"no such file\" name=\"n\" quoted=\"a b\" some=Some(1) count=3 is=true share=0.5",
            module_path!()
        );
        assert_eq!(rest, expected);
    }

    /// Regression: a URI of 1 MB was written into each of four lines of each failed launch: 2.4 GB in a minute.
    #[test]
    fn floods_of_long_texts_stay_small() {
        let long = "x".repeat(1 << 16);
        for format in [Format::Text, Format::Json] {
            let begun = Instant::now();
            let lines = logged(format, || {
                for _ in 0..1000 {
                    tracing::warn!(error = %format_args!("failed to fetch {long}: refused"), uri = ?long, "task failed");
                }
            });
            let refilled = begun.elapsed().as_secs() * 50 + 50;
            assert!(
                (500..=500 + refilled).contains(&(lines.len() as u64)),
                "{}",
                lines.len()
            );
            assert!(lines.iter().all(|line| line.len() < 2000), "{}", lines[0]);
            assert!(lines[0].contains(": refused"), "{}", lines[0]);
        }
    }

    #[test]
    fn lines_left_out_are_reported() {
        let log = Arc::new(Mutex::new(String::new()));
        let output = log.clone();
        let lines = Lines::new(Format::Text, move |line: &[u8]| {
            let mut log = output.lock().unwrap();
            log.push_str(std::str::from_utf8(line).unwrap());
        });
        let subscriber = tracing_subscriber::registry().with(lines.clone());
        let before = log_lines_left_out();
        tracing::subscriber::with_default(subscriber, || {
            (0..510).for_each(|number| tracing::info!(number, "noise"));
        });
        assert!(log_lines_left_out() >= before + 10, "no metric of it");
        lines.report(Instant::now(), true);
        let log = log.lock().unwrap();
        let last = log.lines().last().unwrap();
        assert!(
            last.ends_with("too many lines with the same cause lines=10 of=\"noise\""),
            "{last}"
        );
    }
}
