//! The output of the terminal: answers as they arrive, and lines about them.

use std::io::{IsTerminal, Write};

use super::report;
use crate::command::client::{Answer, AnswerPiece};
use kvik_serving::settings::logging::may_colour;

/// Standard output, or a writer of a test in its place.
pub(super) struct Screen {
    out: Box<dyn Write>,
    /// Whether the output interprets escape sequences.
    styled: bool,
}

impl Screen {
    pub(super) fn new() -> Screen {
        let out = std::io::stdout();
        let styled = may_colour(out.is_terminal(), std::env::var_os("NO_COLOR"));
        Screen { styled, out: Box::new(out) }
    }

    /// Writes to `out`, without styles.
    #[cfg(test)]
    pub(super) fn plain(out: impl Write + 'static) -> Screen {
        Screen { out: Box::new(out), styled: false }
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
        // A reader that closes the pipe early, such as `head`, is no failure.
        let _ = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
    }
}

/// Replaces control characters, so that a model's output cannot control the terminal.
fn printable(text: &str) -> String {
    let obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t' | '\r');
    text.replace(obeyed, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_that_a_model_says() {
        assert_eq!(printable("a\x1b[2Jb\u{9b}c\td\n"), "a\u{fffd}[2Jb\u{fffd}c\td\n");
    }
}
