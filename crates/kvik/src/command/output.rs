//! Standard output of the commands. A reader that closes it early, such as `head`, is no failure: the command ends
//! without a word and with status 0.
//!
//! `println!` panics where standard output takes nothing more. [`end_when_closed`] makes that the end of the process,
//! so that commands need no macro of their own. A command that has more to do, as `kvik rm`, or whose status is an
//! answer, as that of `kvik lint`, calls [`print()`], which goes on.

use std::{
    borrow::Cow,
    io::{self, ErrorKind, IsTerminal, Write},
    panic, process,
};

use anyhow::anyhow;
use kvik_serving::settings::logging;
use serde_json::Value;

/// The text with which `println!` panics, before the error of the system.
const UNPRINTED: &str = "failed printing to stdout: ";

/// Ends this process, instead of panicking, where `println!` finds that standard output takes nothing more.
pub(super) fn end_when_closed() {
    let otherwise = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        let said = panicked.payload().downcast_ref::<String>();
        match said.and_then(|said| said.strip_prefix(UNPRINTED)) {
            Some(error) => end(error),
            None => otherwise(panicked),
        }
    }));
}

/// Ends this process after an error of standard output with this text.
fn end(error: &str) -> ! {
    let outcome = unless_closed(system_error(error));
    if let Err(error) = &outcome {
        logging::say(&format!("error: {error}"));
    }
    logging::finish();
    process::exit(i32::from(outcome.is_err()))
}

/// The system's error with this text, at whose end its number stands.
fn system_error(text: &str) -> io::Error {
    let number = text.rsplit_once("(os error ").and_then(|(_, rest)| rest.strip_suffix(')'));
    let number = number.and_then(|number| number.parse::<i32>().ok());
    number.map_or_else(|| io::Error::other(text), io::Error::from_raw_os_error)
}

/// Prints a text and an end of line, if anyone reads it.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    write(format!("{text}\n").as_bytes()).or_else(unless_closed)
}

/// Writes bytes to standard output at once.
pub(super) fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Takes a reader that has closed the pipe for no failure.
pub(super) fn unless_closed(error: io::Error) -> anyhow::Result<()> {
    match error.kind() {
        ErrorKind::BrokenPipe => Ok(()),
        _ => Err(anyhow!("standard output cannot be written: {error}")),
    }
}

/// A number of a server's answer as a cell of a table. [`Value`] itself would ignore the width of its column.
pub(super) fn count(number: &Value) -> String {
    number.as_u64().map_or_else(|| "-".to_owned(), |number| number.to_string())
}

/// A text of a model for standard output: [`printable`] where that is a terminal, otherwise as it is.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
    if io::stdout().is_terminal() { Cow::Owned(printable(text)) } else { Cow::Borrowed(text) }
}

/// Replaces control characters, so that a model's output cannot control the terminal. A sequence that pieces cut is no
/// exception: it begins with a control character, and without that the terminal shows the rest as text.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let is_obeyed = match c {
            '\n' | '\t' => false,
            // Alone it would write what follows over the line that is there.
            '\r' => chars.peek() != Some(&'\n'),
            c => c.is_control(),
        };
        shown.push(if is_obeyed { '\u{fffd}' } else { c });
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_that_a_model_says() {
        let said = "a\x1b[2Jb\u{9b}c\td\n";
        let shown = "a\u{fffd}[2Jb\u{fffd}c\td\n";
        assert_eq!(printable(said), shown);
        for (cut, _) in said.char_indices() {
            assert_eq!([&said[..cut], &said[cut..]].map(printable).concat(), shown, "cut at {cut}");
        }
    }

    #[test]
    fn a_carriage_return_ends_a_line_and_begins_none_again() {
        for (said, shown) in [
            ("a\r\nb", "a\r\nb"),
            ("10%\r20%", "10%\u{fffd}20%"),
            ("a\r", "a\u{fffd}"),
            ("\r\r\n", "\u{fffd}\r\n"),
        ] {
            assert_eq!(printable(said), shown, "{said:?}");
        }
    }

    #[test]
    fn only_a_pipe_without_a_reader_is_no_failure() {
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        let closed = writer.write_all(b"x").unwrap_err();
        assert!(unless_closed(system_error(&closed.to_string())).is_ok(), "{closed}");
        for other in ["", "Broken pipe", "x (os error y)", "No such file or directory (os error 2)"] {
            let error = unless_closed(system_error(other)).unwrap_err().to_string();
            assert!(error.ends_with(other), "{error} ends with {other}");
        }
    }
}
