//! The line editor of the terminal: its history, its keys, and texts of several lines.

use std::{cell::Cell, path::PathBuf};

use anyhow::ensure;
use kvik_memory::records::private::create_private_folder;
use rustyline::{
    Cmd, Editor, Helper, KeyCode, KeyEvent, Modifiers,
    completion::Completer,
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::DefaultHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};

use super::line;
use kvik_serving::settings::{dirs, logging::say};

/// Reads lines with a history that outlasts the program.
pub(super) struct LineEditor {
    editor: Editor<Lines, DefaultHistory>,
    history: Option<PathBuf>,
}

/// A line, or what was typed instead of one.
pub(super) enum Typed {
    Line(String),
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-D, or the end of a pipe.
    End,
}

impl LineEditor {
    pub(super) fn open() -> anyhow::Result<LineEditor> {
        let mut editor = Editor::new()?;
        editor.set_helper(Some(Lines::default()));
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
        let history = dirs::config().map(|directory| directory.join("chat_history"));
        if let Some(path) = &history {
            // The first start has no history.
            let _ = editor.load_history(path);
        }
        Ok(LineEditor { editor, history })
    }

    /// Reads a line, which begins as `draft`.
    pub(super) fn read(&mut self, prompt: &str, draft: &str) -> anyhow::Result<Typed> {
        match self.editor.readline_with_initial(prompt, (draft, "")) {
            Ok(line) => {
                self.editor.add_history_entry(line.trim())?;
                Ok(Typed::Line(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Typed::Interrupt),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(error.into()),
        }
    }

    /// Refuses an input that ended in a text in three quotes, which is then lost.
    pub(super) fn check_end(&self) -> anyhow::Result<()> {
        ensure!(
            !self.editor.helper().is_some_and(|lines| lines.is_open.get()),
            "the input ends in a text that three quotes begin and none end, which is not asked; end it with three quotes"
        );
        Ok(())
    }

    /// Saves the history; a failure is only reported.
    pub(super) fn close(mut self) {
        let Some(path) = self.history.take() else { return };
        let made = path.parent().map_or(Ok(()), create_private_folder);
        if made.is_err() || self.editor.save_history(&path).is_err() {
            say(&format!("the history could not be saved to {}", path.display()));
        }
    }
}

/// The rule by which Enter ends a line or begins another one of the same text.
#[derive(Default)]
struct Lines {
    /// Whether the text that was read last goes on.
    is_open: Cell<bool>,
}

impl Helper for Lines {}

impl Completer for Lines {
    type Candidate = String;
}

impl Hinter for Lines {
    type Hint = String;
}

impl Highlighter for Lines {}

impl Validator for Lines {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        self.is_open.set(line::is_open(context.input()));
        Ok(match self.is_open.get() {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}
