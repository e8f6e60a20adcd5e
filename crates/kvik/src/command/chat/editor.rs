//! The line editor of the terminal: its history, its keys, and texts of several lines.

use std::{
    cell::Cell,
    fs,
    path::{Path, PathBuf},
};

use anyhow::ensure;
use kvik_memory::records::private::create_private_folder;
use rustyline::{
    Cmd, Editor, Helper, KeyCode, KeyEvent, Modifiers,
    completion::Completer,
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::{DefaultHistory, History},
    validate::{ValidationContext, ValidationResult, Validator},
};

use super::line;
use kvik_serving::settings::logging::say;

/// Reads lines with a history.
pub(super) struct LineEditor {
    editor: Editor<Lines, DefaultHistory>,
    /// The file of the history; without one it ends with the program.
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
    pub(super) fn open(history: Option<PathBuf>) -> anyhow::Result<LineEditor> {
        let mut editor = Editor::new()?;
        editor.set_helper(Some(Lines::default()));
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
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

    /// Drops the lines that say one of these texts, and saves the history; a failure is only reported.
    pub(super) fn forget(&mut self, texts: &[String]) {
        if texts.is_empty() {
            return;
        }
        if let Some(path) = self.history.clone() {
            let dropped = self.drop_lines(&path, texts);
            report(&path, &dropped);
        }
    }

    /// Saves the history; a failure is only reported.
    pub(super) fn close(mut self) {
        if let Some(path) = self.history.take() {
            let saved = self.save(&path);
            report(&path, &saved);
        }
    }

    /// Adds the new lines to the file, to which other terminals may have written meanwhile.
    fn save(&mut self, path: &Path) -> anyhow::Result<()> {
        path.parent().map_or(Ok(()), create_private_folder)?;
        Ok(self.editor.append_history(path)?)
    }

    /// Writes the file without these lines, and reads it.
    fn drop_lines(&mut self, path: &Path, texts: &[String]) -> anyhow::Result<()> {
        self.save(path)?;
        let (mut all, mut held) = (DefaultHistory::new(), DefaultHistory::new());
        all.load(path)?;
        for line in all.iter().filter(|line| !line::says(line, texts)) {
            held.add(line)?;
        }
        // An empty history is not written.
        fs::remove_file(path)?;
        held.save(path)?;
        self.editor.clear_history()?;
        let _ = self.editor.load_history(path);
        Ok(())
    }
}

/// Moves the file of an earlier version to `path`, or removes it if there is one already.
pub(super) fn take_over(earlier: &Path, path: &Path) {
    let made = path.parent().map_or(Ok(()), create_private_folder);
    let is_moved = !path.exists() && made.and_then(|()| fs::rename(earlier, path)).is_ok();
    if !is_moved {
        let _ = fs::remove_file(earlier);
    }
}

fn report(path: &Path, saved: &anyhow::Result<()>) {
    if saved.is_err() {
        say(&format!("the history could not be saved to {}", path.display()));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An editor with the history of this file, and with these lines that were typed.
    fn typed(path: &Path, lines: &[&str]) -> LineEditor {
        let mut editor = LineEditor::open(Some(path.to_owned())).unwrap();
        for line in lines {
            editor.editor.add_history_entry(*line).unwrap();
        }
        editor
    }

    fn lines(editor: &LineEditor) -> Vec<&str> {
        editor.editor.history().iter().map(String::as_str).collect()
    }

    #[test]
    fn forgotten_lines_are_in_no_history() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chat/history");
        typed(&path, &["Hello", "My dog is Bolt."]).close();
        let mut editor = typed(&path, &["/stats", "/delete My dog is Bolt."]);
        typed(&path, &["of another terminal"]).close();
        editor.forget(&["My dog is Bolt.".to_owned()]);
        let left = ["Hello", "of another terminal", "/stats"];
        assert_eq!(lines(&editor), left);
        editor.close();
        assert_eq!(lines(&typed(&path, &[])), left);
        typed(&path, &["/stats"]).forget(&left.map(str::to_owned));
        assert_eq!(lines(&typed(&path, &[])), ["/stats"], "commands without a text stay");
    }

    #[test]
    fn a_history_of_an_earlier_version_is_moved_once() {
        let dir = tempfile::tempdir().unwrap();
        let (earlier, path) = (dir.path().join("chat_history"), dir.path().join("chat/history"));
        for (text, expect) in [("one", "one"), ("two", "one")] {
            fs::write(&earlier, text).unwrap();
            take_over(&earlier, &path);
            assert_eq!(fs::read_to_string(&path).unwrap(), expect);
            assert!(!earlier.exists());
        }
    }
}
