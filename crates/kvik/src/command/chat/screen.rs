//! The output of the terminal: answers as they arrive, and lines about them.

use std::io::{ErrorKind, Write};

use super::report;
use crate::command::{
    client::{Answer, AnswerPiece},
    output::printable,
};
use kvik_serving::settings::logging::may_colour;

/// Standard output, or a writer of a test in its place.
pub(super) struct Screen {
    out: Box<dyn Write>,
    /// Whether the output interprets escape sequences.
    styled: bool,
    /// Whether the reader has closed the output, as `head` does early.
    closed: bool,
}

impl Screen {
    pub(super) fn new() -> Screen {
        let out = std::io::stdout();
        Screen { styled: may_colour(&out), out: Box::new(out), closed: false }
    }

    /// Writes to `out`, without styles.
    #[cfg(test)]
    pub(super) fn plain(out: impl Write + 'static) -> Screen {
        Screen { out: Box::new(out), styled: false, closed: false }
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
