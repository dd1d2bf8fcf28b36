//! The log of a daemon: where it goes, what is in it, and how operators get more of it for a while.

use std::sync::Arc;

use anyhow::Context as _;
use meseta_daemon::verbosity::Verbosity;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, reload};

/// Our crates as the log names them.
const OURS: [&str; 6] = [
    "meseta",
    "meseta_agent",
    "meseta_allocator",
    "meseta_daemon",
    "meseta_isolators",
    "meseta_master",
];

/// Logs go to standard error; `MESETA_LOG` filters them (`info` unless set, `debug`,
/// `meseta_master=trace`, ...), `MESETA_LOG_FORMAT=json` makes each line an object.
pub(crate) fn start() -> anyhow::Result<Verbosity> {
    let base = std::env::var("MESETA_LOG").unwrap_or_else(|_| "info".to_owned());
    let filter = EnvFilter::try_new(&base)
        .with_context(|| format!("MESETA_LOG={base:?} is not a log filter; try `info`"))?;
    let (filter, handle) = reload::Layer::new(filter);
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match std::env::var("MESETA_LOG_FORMAT").as_deref() {
        Ok("json") => registry.with(lines.json()).init(),
        Ok("text") | Err(_) => registry.with(lines.with_ansi(false)).init(),
        Ok(other) => anyhow::bail!("MESETA_LOG_FORMAT={other:?} is neither `text` nor `json`"),
    }
    Ok(Verbosity::new(Arc::new(move |level| {
        let wanted = directives(&base, level);
        let applied = EnvFilter::try_new(&wanted)
            .map_err(anyhow::Error::from)
            .and_then(|filter| Ok(handle.reload(filter)?));
        if let Err(error) = applied {
            tracing::error!(%error, level, "the logging level cannot be changed");
        }
    })))
}

/// What a level means: 0 the filter as given, 1 our crates' debugging too, 2 their traces, 3 and above
/// everything that is written at all.
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
