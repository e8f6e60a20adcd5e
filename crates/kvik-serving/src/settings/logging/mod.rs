//! Log lines on standard error: readable, or JSON for machines.
//!
//! Threads put lines into a bounded queue without waiting; a dedicated thread writes them. So a reader that stops
//! reading blocks no thread: lines that do not fit are dropped and counted, and the log reports their number when it is
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

/// Maximum time that the end of the process waits for the log: enough to drain a full queue to an active reader.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// The log of this process, once it has been started.
static LOG: OnceLock<Arc<Queue>> = OnceLock::new();

/// Format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One readable line per event
    #[default]
    Text,
    /// One JSON object per event
    Json,
}

/// Starts logging. `KVIK_LOG` (or `RUST_LOG`) sets the level, such as `debug` or `kvik=debug,warn`.
pub fn start(format: LogFormat, default_level: &str) {
    let wanted = ["KVIK_LOG", "RUST_LOG"].into_iter().find_map(|name| std::env::var(name).ok());
    let filter = EnvFilter::new(wanted.as_deref().unwrap_or(default_level));
    let registry = tracing_subscriber::registry().with(filter);
    // If the thread cannot be started there is no log; everything else works.
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

/// Whether lines have colours.
fn is_coloured() -> bool {
    may_colour(&std::io::stderr())
}

/// Whether an output may have colours: a terminal shows them, a file or a journal would store the escape sequences.
pub fn may_colour(out: &impl IsTerminal) -> bool {
    out.is_terminal() && are_wanted(std::env::var_os)
}

/// Whether the environment permits colours: a non-empty `NO_COLOR` (<https://no-color.org>), `CLICOLOR=0` and a terminal
/// that calls itself dumb disable them.
fn are_wanted(variable: impl Fn(&'static str) -> Option<OsString>) -> bool {
    let is = |name: &'static str, value: &str| variable(name).is_some_and(|set| set == *value);
    variable("NO_COLOR").is_none_or(|set| set.is_empty()) && !is("CLICOLOR", "0") && !is("TERM", "dumb")
}

/// Logs panics as lines: the default message would be written by the panicking thread, which could block on the reader.
pub fn log_panics() {
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

/// Number of dropped lines so far, because the log was not drained or could not be written.
pub fn dropped() -> u64 {
    LOG.get().map_or(0, |queue| queue.dropped())
}

/// Writes a text verbatim to standard error, after pending lines of the log. Errors are ignored.
pub fn say(text: &str) {
    let line = format!("{text}\n");
    match LOG.get() {
        Some(queue) => queue.push(line.as_bytes()),
        None => {
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }
}

/// [`say`], dimmed where a terminal shows it.
pub fn say_dimmed(text: &str) {
    if is_coloured() { say(&format!("\x1b[2m{text}\x1b[0m")) } else { say(text) }
}

/// Waits until the log is written, for a bounded time.
pub fn finish() {
    if let Some(queue) = LOG.get() {
        queue.flush(FLUSH_TIME);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_has_colours() {
        assert!(!may_colour(&std::fs::File::open("Cargo.toml").unwrap()));
    }

    #[test]
    fn variables_disable_colours() {
        for (name, value, expect) in [
            ("HOME", "0", true),
            ("NO_COLOR", "", true),
            ("NO_COLOR", "1", false),
            ("CLICOLOR", "", true),
            ("CLICOLOR", "1", true),
            ("CLICOLOR", "0", false),
            ("TERM", "xterm", true),
            ("TERM", "dumb", false),
        ] {
            let set = |asked: &str| (asked == name).then(|| OsString::from(value));
            assert_eq!(are_wanted(set), expect, "{name}={value}");
        }
    }
}
