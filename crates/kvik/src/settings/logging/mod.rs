//! Log lines on standard error: readable, or JSON for machines.
//!
//! Whoever writes a line puts it into a bounded queue and goes on; a thread of its own writes. So a reader that stops
//! reading stops nobody: lines that find no room are dropped and counted, and the log says how many as soon as it is
//! read again.

mod queue;

use std::{
    ffi::OsString,
    io::{IsTerminal, Write},
    sync::{Arc, OnceLock},
    time::Duration,
};

use clap::ValueEnum;
use tracing_subscriber::{EnvFilter, fmt, prelude::*};

use queue::{Lines, Queue};

/// What the end of the process waits for the log at most: longer than any reader that reads takes for a full queue.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// The log of this process, once it has been started.
static LOG: OnceLock<Arc<Queue>> = OnceLock::new();

/// Format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One readable line per event
    #[default]
    Text,
    /// One JSON object per event
    Json,
}

/// Starts logging. `KVIK_LOG` (or `RUST_LOG`) sets the level, as `debug` or `kvik=debug,warn`.
pub(crate) fn start(format: LogFormat, default_level: &str) {
    let wanted = ["KVIK_LOG", "RUST_LOG"].into_iter().find_map(|name| std::env::var(name).ok());
    let filter = EnvFilter::new(wanted.as_deref().unwrap_or(default_level));
    let registry = tracing_subscriber::registry().with(filter);
    // Without a thread for it there is no log; the rest works.
    let queue = Queue::start(Box::new(std::io::stderr())).unwrap_or_default();
    let queue = LOG.get_or_init(|| queue).clone();
    let writer = move || Lines::new(queue.clone());
    match format {
        LogFormat::Text => {
            let lines =
                fmt::layer().with_writer(writer).with_target(false).with_ansi(is_coloured()).compact();
            registry.with(lines).init();
        }
        LogFormat::Json => {
            let lines = fmt::layer().with_writer(writer).json().flatten_event(true);
            registry.with(lines).init();
        }
    }
}

/// Whether lines have colours: a terminal shows them, a file and a journal keep their escape sequences.
fn is_coloured() -> bool {
    may_colour(std::io::stderr().is_terminal(), std::env::var_os("NO_COLOR"))
}

/// By <https://no-color.org> a variable that is not empty forbids them.
pub(crate) fn may_colour(is_terminal: bool, no_color: Option<OsString>) -> bool {
    is_terminal && no_color.is_none_or(|value| value.is_empty())
}

/// Panics are lines of the log: the usual message would be written by the thread that panics, which then waits for the
/// reader.
pub(crate) fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let backtrace = std::backtrace::Backtrace::capture();
        let name = thread.name().unwrap_or("unnamed");
        match backtrace.status() {
            std::backtrace::BacktraceStatus::Captured => {
                tracing::error!("thread `{name}` {panic}\n{backtrace}");
            }
            _ => tracing::error!("thread `{name}` {panic}"),
        }
    }));
}

/// Lines that were dropped so far, because nobody read the log or it could not be written.
pub(crate) fn dropped() -> u64 {
    LOG.get().map_or(0, |queue| queue.dropped())
}

/// Says something on standard error as it stands, behind what the log has still to write. Who cannot be told is not.
pub(crate) fn say(text: &str) {
    let line = format!("{text}\n");
    match LOG.get() {
        Some(queue) => queue.push(line.as_bytes()),
        None => {
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }
}

/// Waits until the log is written, but not long.
pub(crate) fn finish() {
    if let Some(queue) = LOG.get() {
        queue.flush(FLUSH_TIME);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_has_colours() {
        for (is_terminal, no_color, expect) in [
            (true, None, true),
            (true, Some(""), true),
            (true, Some("1"), false),
            (false, None, false),
            (false, Some(""), false),
        ] {
            assert_eq!(may_colour(is_terminal, no_color.map(OsString::from)), expect, "{no_color:?}");
        }
    }
}
