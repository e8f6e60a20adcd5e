//! Log lines on standard error: readable, or JSON for machines.
//!
//! Threads put lines into a bounded queue without waiting; a dedicated thread writes them. So a reader that stops
//! reading blocks no thread: lines that do not fit are dropped and counted, and the log reports their number when it is
//! read again.

mod queue;

use std::{
    ffi::OsString,
    io::{IsTerminal, Write},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use clap::ValueEnum;
use serde_json::{Value, json};
use tracing_subscriber::{
    EnvFilter,
    filter::LevelFilter,
    fmt::{
        self,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    prelude::*,
};

use queue::{Lines, Queue};

/// Maximum time that the end of the process waits for the log: enough to drain a full queue to an active reader.
const FLUSH_TIME: Duration = Duration::from_secs(1);

/// The log of this process, once it has been started.
static LOG: OnceLock<Arc<Queue>> = OnceLock::new();

/// How texts are written that [`say`] takes.
static SAYINGS: Mutex<Sayings> = Mutex::new(Sayings::Written(LogFormat::Text));

enum Sayings {
    Written(LogFormat),
    /// They wait for the format.
    Kept(Vec<String>),
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One readable line per event
    #[default]
    Text,
    /// One JSON object per event
    Json,
}

/// Has texts wait for [`set_format`], or for the end of the process.
pub fn await_format() {
    *sayings() = Sayings::Kept(Vec::new());
}

/// Sets the format of texts, and writes those that waited for it.
pub fn set_format(format: LogFormat) {
    let before = std::mem::replace(&mut *sayings(), Sayings::Written(format));
    if let Sayings::Kept(texts) = before {
        texts.iter().for_each(|text| say(text));
    }
}

fn sayings() -> MutexGuard<'static, Sayings> {
    SAYINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts logging. `KVIK_LOG` (or `RUST_LOG`) sets the level, such as `debug` or `kvik=debug,warn`.
pub fn start(format: LogFormat, default_level: &str) {
    set_format(format);
    let (directives, note) = directives(|name| std::env::var(name).ok(), default_level);
    note.iter().for_each(|note| say(note));
    let registry = tracing_subscriber::registry().with(EnvFilter::new(directives));
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

/// The directives of the first variable that is not empty, else the default level, and a note if a word is no level.
///
/// `tracing` takes such a word for a target of which everything is logged, and without a level among the other words
/// nothing else is, errors included.
fn directives(
    variable: impl Fn(&'static str) -> Option<String>,
    default_level: &str,
) -> (String, Option<String>) {
    let set = |name| Some((name, variable(name).filter(|text| !text.trim().is_empty())?));
    let Some((name, text)) = ["KVIK_LOG", "RUST_LOG"].into_iter().find_map(set) else {
        return (default_level.to_owned(), None);
    };
    let words = || text.split(',').filter(|word| !word.is_empty());
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    let is_target = |word: &str| word.starts_with("kvik") || word.contains(['=', '[', ':']);
    let unknown = words().find(|word| !is_level(word) && !is_target(word));
    match unknown.filter(|_| !words().any(is_level)) {
        Some(word) => {
            let note = format!(
                "note: {name} counts as {default_level}: `{word}` is no level; there are off, error, warn, info, debug and trace"
            );
            (default_level.to_owned(), Some(note))
        }
        None => (text, None),
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

/// Writes a text to standard error, whatever the level, after pending lines of the log: verbatim, or as an event where
/// lines are JSON. Errors are ignored.
pub fn say(text: &str) {
    let format = match &mut *sayings() {
        Sayings::Written(format) => *format,
        Sayings::Kept(texts) => return texts.push(text.to_owned()),
    };
    let line = line(format, text);
    match LOG.get() {
        Some(queue) => queue.push(line.as_bytes()),
        None => {
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }
}

/// [`say`], dimmed where a terminal shows it.
pub fn say_dimmed(text: &str) {
    let is_for_people = matches!(*sayings(), Sayings::Written(LogFormat::Text));
    if is_for_people && is_coloured() { say(&format!("\x1b[2m{text}\x1b[0m")) } else { say(text) }
}

/// The line of a text.
fn line(format: LogFormat, text: &str) -> String {
    match format {
        LogFormat::Text => format!("{text}\n"),
        LogFormat::Json => format!("{}\n", event(text)),
    }
}

/// A text with the fields of an event. Its level is the word before it.
fn event(text: &str) -> Value {
    let levels = [("error: ", "ERROR"), ("warning: ", "WARN"), ("note: ", "INFO")];
    let (level, message) = levels
        .iter()
        .find_map(|(word, level)| Some((*level, text.strip_prefix(word)?)))
        .unwrap_or(("INFO", text));
    let mut timestamp = String::new();
    // A text takes everything.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    json!({"timestamp": timestamp, "level": level, "message": message, "target": "kvik"})
}

/// Waits until the log is written, for a bounded time. Texts whose format nobody has set are for people.
pub fn finish() {
    if matches!(*sayings(), Sayings::Kept(_)) {
        set_format(LogFormat::Text);
    }
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
    fn texts_are_events_where_lines_are_json() {
        for (text, level, message) in [
            ("error: there is no model\n  at all", "ERROR", "there is no model\n  at all"),
            ("warning: slow", "WARN", "slow"),
            ("note: `-c` is --context", "INFO", "`-c` is --context"),
            ("a.gguf  2 GiB", "INFO", "a.gguf  2 GiB"),
        ] {
            assert_eq!(line(LogFormat::Text, text), format!("{text}\n"));
            let line = line(LogFormat::Json, text);
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            let event: Value = serde_json::from_str(&line).unwrap();
            assert_eq!((&event["level"], &event["message"]), (&json!(level), &json!(message)));
            assert!(
                event["timestamp"].as_str().is_some_and(|time| time.starts_with("20") && time.ends_with('Z')),
                "{event}"
            );
        }
    }

    #[test]
    fn an_unknown_level_is_told_and_an_empty_variable_sets_none() {
        let check = |variables: &[(&str, &str)], expect: &str, told: Option<&str>| {
            let set = |asked: &str| {
                let found = variables.iter().find(|(name, _)| *name == asked);
                found.map(|(_, value)| (*value).to_owned())
            };
            let (directives, note) = directives(set, "info");
            assert_eq!(directives, expect, "{variables:?}");
            assert_eq!(note.is_some(), told.is_some(), "{variables:?}: {note:?}");
            assert!(note.unwrap_or_default().contains(told.unwrap_or_default()), "{variables:?}");
        };
        check(&[], "info", None);
        check(&[("KVIK_LOG", ""), ("RUST_LOG", " ")], "info", None);
        check(&[("KVIK_LOG", ""), ("RUST_LOG", "trace")], "trace", None);
        check(&[("KVIK_LOG", "WARN"), ("RUST_LOG", "trace")], "WARN", None);
        for text in ["debug", "0", "kvik=debug,warn", "kvik_server", "hyper,info", "hyper::proto", "off,"] {
            check(&[("KVIK_LOG", text)], text, None);
        }
        // All lines were off, errors included.
        for text in ["warning", "verbose", "hyper,kvik=debug"] {
            let word = text.split(',').next().unwrap();
            check(&[("KVIK_LOG", text)], "info", Some(&format!("KVIK_LOG counts as info: `{word}` is no")));
        }
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
