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
    /// Whether a person reads.
    is_terminal: bool,
    /// Whether the output interprets escape sequences.
    styled: bool,
    /// Whether the reader has closed the output, as `head` does early.
    closed: bool,
    /// Whether a program types, which finds errors on standard error and in the exit status.
    is_piped: bool,
    /// Whether a line failed.
    has_failed: bool,
    /// Whether the last piece of the answer was reasoning, once there is one.
    in_reasoning: Option<bool>,
}

impl Screen {
    pub(super) fn new() -> Screen {
        let (out, is_piped) = (std::io::stdout(), !std::io::stdin().is_terminal());
        let (is_terminal, styled) = (out.is_terminal(), may_colour(&out));
        Screen { is_terminal, styled, is_piped, ..Screen::plain(out) }
    }

    /// Writes to `out`, which is no terminal.
    pub(super) fn plain(out: impl Write + 'static) -> Screen {
        Screen {
            out: Box::new(out),
            is_terminal: false,
            styled: false,
            closed: false,
            is_piped: false,
            has_failed: false,
            in_reasoning: None,
        }
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

    /// Begins an answer.
    pub(super) fn begin(&mut self) {
        self.in_reasoning = None;
    }

    /// Writes content unchanged, and for a person reasoning too, dimmed and apart from it.
    pub(super) fn piece(&mut self, piece: AnswerPiece<'_>) {
        let is_reasoning = matches!(piece, AnswerPiece::Reasoning(_));
        let before = self.in_reasoning.replace(is_reasoning);
        if self.is_terminal && before.is_some_and(|before| before != is_reasoning) {
            self.write("\n\n");
        }
        match piece {
            AnswerPiece::Content(text) => self.write(&printable(text)),
            AnswerPiece::Reasoning(text) if self.is_terminal => self.dim(&printable(text)),
            AnswerPiece::Reasoning(_) => {}
        }
    }

    /// Writes the report at the end of an answer.
    pub(super) fn answered(&mut self, answer: &Answer) {
        self.write("\n");
        if answer.ends_in_reasoning {
            self.note(report::WITHIN_REASONING);
        }
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

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, io, rc::Rc, time::Duration};

    use serde_json::Value;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Rc<RefCell<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn thoughts_stand_apart_from_the_answer_and_a_program_reads_none() {
        use AnswerPiece::{Content, Reasoning};
        let check = |is_terminal: bool, styled: bool, pieces: &[AnswerPiece<'_>], expect: &str| {
            let written = Written::default();
            let mut screen = Screen { is_terminal, styled, ..Screen::plain(written.clone()) };
            screen.begin();
            pieces.iter().for_each(|piece| screen.piece(*piece));
            let ends_in_reasoning = matches!(pieces.last(), Some(Reasoning(_)));
            let report = Value::Null;
            screen.answered(&Answer { first_token: Duration::ZERO, report, ends_in_reasoning });
            let shown = String::from_utf8(written.0.take()).unwrap();
            assert!(shown.starts_with(&format!("{expect}\n")), "{shown:?} is {expect:?}");
            assert_eq!(shown.contains(report::WITHIN_REASONING), ends_in_reasoning, "{shown:?}");
        };
        let said = [Reasoning("She asks "), Reasoning("who I am."), Content("I am "), Content("a model.")];
        check(false, false, &said, "I am a model.");
        check(true, false, &said, "She asks who I am.\n\nI am a model.");
        check(true, true, &said, "\x1b[2mShe asks \x1b[0m\x1b[2mwho I am.\x1b[0m\n\nI am a model.");
        check(false, false, &said[..2], "");
        check(true, false, &said[..2], "She asks who I am.");
    }
}
