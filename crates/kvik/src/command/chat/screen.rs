//! The output of the terminal: answers as they arrive, and lines about them.

use std::io::{ErrorKind, IsTerminal, Write};

use super::report;
use crate::command::{
    client::{Answer, AnswerPiece},
    output::printable,
};
use kvik_serving::settings::logging::{may_colour, say};

/// Standard output, or a writer of a test in its place.
pub(super) struct Screen {
    out: Box<dyn Write>,
    /// Whether the output interprets escape sequences.
    styled: bool,
    /// Whether the reader has closed the output, as `head` does early.
    closed: bool,
    /// Whether a program types, which finds errors on standard error and in the exit status.
    is_piped: bool,
    /// Whether a line failed.
    has_failed: bool,
}

impl Screen {
    pub(super) fn new() -> Screen {
        let (out, is_piped) = (std::io::stdout(), !std::io::stdin().is_terminal());
        Screen { styled: may_colour(&out), out: Box::new(out), closed: false, is_piped, has_failed: false }
    }

    /// Writes to `out`, without styles.
    #[cfg(test)]
    pub(super) fn plain(out: impl Write + 'static) -> Screen {
        Screen { out: Box::new(out), styled: false, closed: false, is_piped: false, has_failed: false }
    }

    /// The same for what a program types.
    #[cfg(test)]
    pub(super) fn piped(out: impl Write + 'static) -> Screen {
        Screen { is_piped: true, ..Screen::plain(out) }
    }

    /// Whether the program that types has to be told by the exit status that a line failed.
    pub(super) fn fails(&self) -> bool {
        self.is_piped && self.has_failed
    }

    /// Whether nobody reads any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Writes content unchanged, and reasoning dimmed.
    pub(super) fn piece(&mut self, piece: AnswerPiece<'_>) {
        match piece {
            AnswerPiece::Content(text) => self.write(&printable(text)),
            AnswerPiece::Reasoning(text) => self.dim(&printable(text)),
        }
    }

    /// Writes the report at the end of an answer.
    pub(super) fn answered(&mut self, answer: &Answer) {
        self.write("\n");
        if report::was_loop(answer) {
            self.note("the answer repeated itself, and was ended; /set loops on lets it go on");
        }
        self.note(&report::status(answer));
        self.write("\n");
    }

    /// Writes a line of the program's own.
    pub(super) fn line(&mut self, text: &str) {
        self.write(&printable(text));
        self.write("\n");
    }

    /// Says what went wrong: a person reads it among the answers, a program apart from them.
    pub(super) fn error(&mut self, text: &str) {
        self.has_failed = true;
        match self.is_piped {
            true => say(&printable(text)),
            false => self.line(text),
        }
    }

    /// Writes a note, dimmed and in brackets.
    pub(super) fn note(&mut self, text: &str) {
        self.dim(&format!("[{}]", printable(text)));
        self.write("\n");
    }

    fn dim(&mut self, text: &str) {
        if self.styled { self.write(&format!("\x1b[2m{text}\x1b[0m")) } else { self.write(text) }
    }

    fn write(&mut self, text: &str) {
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        self.closed |= written.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe);
    }
}
