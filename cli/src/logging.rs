//! The log of a daemon: its target, its contents, and temporary increases by operators.
//!
//! [`lines`] formats the lines, [`limiter`] limits their number.

mod limiter;
mod lines;

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use meseta_daemon::verbosity::Verbosity;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, reload};

use self::lines::{Format, Lines};

/// The crates of this repository, by their names in the log.
const OURS: [&str; 8] = [
    "meseta",
    "meseta_agent",
    "meseta_allocator",
    "meseta_daemon",
    "meseta_etcd",
    "meseta_isolators",
    "meseta_jobs",
    "meseta_master",
];

/// Starts logging to standard error. `MESETA_LOG` filters the log (`info` unless set, `debug`, `meseta_master=trace`, ...),
/// and `MESETA_LOG_FORMAT=json` makes each line an object.
pub(crate) fn start() -> anyhow::Result<Verbosity> {
    let base = std::env::var("MESETA_LOG")
        .ok()
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| "info".to_owned());
    let filter = EnvFilter::try_new(&base)
        .with_context(|| format!("MESETA_LOG={base:?} is not a log filter; try `info`"))?;
    let (filter, handle) = reload::Layer::new(filter);
    let registry = tracing_subscriber::registry().with(filter);
    let format = match std::env::var("MESETA_LOG_FORMAT").as_deref() {
        Ok("json") => Format::Json,
        Ok("text" | "") | Err(_) => Format::Text,
        Ok(other) => anyhow::bail!("MESETA_LOG_FORMAT={other:?} is neither `text` nor `json`"),
    };
    let lines = Lines::new(format, lines::to_stderr as fn(&[u8]));
    registry.with(lines.clone()).init();
    report_left_out(lines).context("failed to start the thread of the log")?;
    log_panics();
    Ok(Verbosity::new(Arc::new(move |level| {
        let wanted = directives(&base, level);
        let applied = EnvFilter::try_new(&wanted)
            .map_err(anyhow::Error::from)
            .and_then(|filter| Ok(handle.reload(filter)?));
        if let Err(error) = applied {
            tracing::error!(%error, level, "failed to change the logging level");
        }
    })))
}

/// Reports the number of lines that were left out, at intervals.
fn report_left_out(lines: Lines<fn(&[u8])>) -> std::io::Result<()> {
    let report = move || {
        loop {
            std::thread::sleep(limiter::REPORT_INTERVAL);
            lines.report(Instant::now(), false);
        }
    };
    let thread = std::thread::Builder::new().name("log".to_owned());
    thread.spawn(report).map(drop)
}

/// Logs panics: the message may contain foreign text, so it becomes a log line, before the output of the default hook with
/// its optional backtrace.
fn log_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(ToString::to_string);
        tracing::error!(
            thread = std::thread::current().name().unwrap_or("-"),
            place = place.as_deref().unwrap_or("-"),
            why = panic.payload_as_str().unwrap_or("-"),
            "thread panicked"
        );
        if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
            usual(panic);
        }
    }));
}

/// Returns the filter for a level: 0 the filter as given, 1 also debugging of our crates, 2 also their traces, 3 and above
/// everything.
fn directives(base: &str, level: u32) -> String {
    let word = match level {
        0 => return base.to_owned(),
        1 => "debug",
        2 => "trace",
        _ => return format!("{base},trace"),
    };
    let ours = OURS.map(|name| format!("{name}={word}"));
    format!("{base},{}", ours.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_is_a_filter() {
        assert_eq!(directives("warn", 0), "warn");
        assert!(directives("info", 1).contains("meseta_master=debug"));
        assert!(directives("info", 2).contains("meseta_agent=trace"));
        for level in 0..5 {
            EnvFilter::try_new(directives("info,hyper=warn", level)).unwrap();
        }
    }
}
