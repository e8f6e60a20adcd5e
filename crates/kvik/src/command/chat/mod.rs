//! `kvik chat`: a conversation in the terminal.
//!
//! ```text
//! line -> TerminalChat -> Backend -> the routes of `kvik serve`: in this process, or at a server
//!              '-> Screen <-'
//! ```
//!
//! The terminal is an ordinary client of the routes, and shares their memory of conversations: through a server its
//! conversations are those of the page.

mod conversation;
mod editor;
mod exchange;
mod kept;
mod line;
mod model;
pub(super) mod report;
mod screen;
#[cfg(test)]
mod tests;

use std::{io::IsTerminal, path::PathBuf, time::Duration};

use clap::Args;
use kvik_memory::records::Records;

use self::{
    conversation::{Lasting, TerminalChat},
    editor::{LineEditor, Typed},
    screen::Screen,
};
use super::{
    backend::{Backend, BackendArgs, Places, Setup},
    flags::{accounts::StateArgs, memory::MemoryArgs},
    talk::{self, TalkArgs},
};
use kvik_serving::settings::{
    capacity::Capacity,
    dirs, home,
    logging::{self, LogFormat},
    model::{CacheArgs, ModelArgs},
};

/// Room for one answer at a time, and for the summaries computed concurrently.
const CAPACITY: Capacity = Capacity { parallel: 4, queue: 16, ..Capacity::ONE };
/// Folder of its records in the state directory. They are separate from the server's, which one process at a time
/// writes: an open terminal must not lock a server out of its accounts.
const FOLDER: &str = "chat";
/// File of typed lines in that folder.
const HISTORY: &str = "history";
/// The same in the directory of settings, where earlier versions kept it.
const HISTORY_EARLIER: &str = "chat_history";
/// How long to wait for another terminal to close the records.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// Talks with the model in the terminal
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik chat                             with the model of `kvik default`
  kvik chat qwen3:0.6b                  with this one, which is fetched once
  kvik chat -m model.gguf --system \"You are a friendly assistant.\"
  kvik chat --continue                  go on with the last conversation
  kvik chat --continue \"my dog\"         go on with the one of that name
  kvik chat --url http://gpu:8080       with the model of another machine

A kvik that serves the model on this machine answers, if there is one: nothing is loaded twice, its
cache is shared, and the conversations are those of its page. In a terminal a line says so; --local
loads the model here.

After each answer one line says how many tokens of the conversation were reused and when the first
token came: a conversation is computed once, however long it grows. When it is longer than the
context, the model reads a summary of its beginning, its recent messages, and what of the rest fits
the question; /memory shows them, --memory off ends the conversation with the context.

Every conversation is kept, by the server or in the state directory, under its first words or the name
that /save gives it; here with --memory off none is. The lines that a person types are in the history
of the terminal (chat/history of the state directory), until their conversation is deleted; with --memory
off, and of a program that types, none are. /help lists the commands; three quotes (\"\"\") begin and end
a text of several lines, and Alt-Enter begins another line.")]
pub(crate) struct ChatArgs {
    /// The model, as -m names it: a name, a short name, a file, a source of the hub
    #[arg(value_name = "NAME", value_parser = home::text)]
    pub(super) name: Option<String>,
    /// Go on with the conversation of this name or id; without one, with the last
    #[arg(long = "continue", visible_alias = "resume", value_name = "NAME", num_args = 0..=1, conflicts_with = "system")]
    resume: Option<Option<String>>,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    talk: TalkArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    backend: BackendArgs,
}

/// Runs the command, and returns whether a line failed that a program typed; `loading` is a flag of loading that the
/// command line has.
pub(crate) fn run(args: &ChatArgs, loading: Option<&str>) -> anyhow::Result<bool> {
    logging::start(LogFormat::Text, "warn");
    let (backend, lasting) = args.open(loading)?;
    let mut chat = TerminalChat::new(backend, Screen::new(), args, lasting);
    chat.greet();
    let outcome = args.open_conversation(&mut chat).and_then(|()| converse(&mut chat, args.history()?));
    chat.close();
    outcome.map(|()| chat.screen.fails())
}

impl ChatArgs {
    /// The same for another model, cache and values of answers, and for answers from elsewhere.
    pub(super) fn with(
        self,
        (model, cache): (ModelArgs, CacheArgs),
        talk: TalkArgs,
        backend: BackendArgs,
    ) -> ChatArgs {
        ChatArgs { model, cache, talk, backend, ..self }
    }

    /// Opens the model where it answers, and says whether conversations outlast the program.
    fn open(&self, loading: Option<&str>) -> anyhow::Result<(Backend, Lasting)> {
        if let Some(mut backend) = self.backend.server(&self.model, loading)? {
            talk::tell_of_demonstration(backend.model.is_embedded);
            backend.remembering.on = self.memory.config(true)?.on;
            return Ok((backend, Ok(())));
        }
        let mut model = self.model.clone();
        model.take_default();
        talk::tell_of_demonstration(model.is_embedded());
        self.open_here(&model)
    }

    /// Loads the model in this process.
    fn open_here(&self, model: &ModelArgs) -> anyhow::Result<(Backend, Lasting)> {
        let (setup, lasting) = self.setup()?;
        Ok((Backend::local(setup, model, true)?, lasting))
    }

    /// Everything but the model, and whether conversations outlast the program.
    fn setup(&self) -> anyhow::Result<(Setup, Lasting)> {
        let (records, lasting) = match self.records()? {
            Ok(records) => (Some(records), Ok(())),
            Err(why) => (None, Err(why)),
        };
        let places = Places {
            state_dir: self.state.folder().map(|folder| folder.join(FOLDER)).filter(|_| records.is_some()),
            cache_disk: self.cache.cache_disk.directory(),
        };
        let (cache, memory) = (self.cache.clone(), self.memory.clone());
        Ok((Setup { cache, memory, records, places, capacity: CAPACITY }, lasting))
    }

    /// The records of conversations, or why these end with the program.
    fn records(&self) -> anyhow::Result<Result<Records, String>> {
        if !self.memory.config(true)?.on {
            return Ok(Err("--memory off".to_owned()));
        }
        let Some(folder) = self.state.folder() else {
            return Ok(Err("there is no home directory; give --state-dir".to_owned()));
        };
        Ok(Records::open(&folder.join(FOLDER), LOCK_PATIENCE).map_err(|error| error.to_string()))
    }

    /// The file of typed lines: in a terminal, where conversations are kept.
    fn history(&self) -> anyhow::Result<Option<PathBuf>> {
        let is_kept = std::io::stdin().is_terminal() && self.memory.config(true)?.on;
        let Some(folder) = self.state.folder().filter(|_| is_kept) else { return Ok(None) };
        let path = folder.join(FOLDER).join(HISTORY);
        if let Some(settings) = dirs::config() {
            editor::take_over(&settings.join(HISTORY_EARLIER), &path);
        }
        Ok(Some(path))
    }

    /// Continues the requested conversation, or shows which one could be continued.
    fn open_conversation(&self, chat: &mut TerminalChat) -> anyhow::Result<()> {
        match &self.resume {
            Some(Some(name)) => chat.load(name),
            Some(None) => chat.load_newest(),
            None => chat.show_newest(),
        }
    }
}

/// Reads lines until the last one.
///
/// # Errors
/// If they cannot be read, or a program's end in the middle of a text.
fn converse(chat: &mut TerminalChat, history: Option<PathBuf>) -> anyhow::Result<()> {
    let mut editor = LineEditor::open(history)?;
    let is_piped = !std::io::stdin().is_terminal();
    loop {
        let draft = chat.take_draft();
        // At the prompt of a terminal Ctrl-C is a key; the signal is pressed once the line is entered.
        let begun = (!is_piped).then(|| chat.turn());
        let typed = editor.read(chat.prompt(), &draft)?;
        let turn = begun.unwrap_or_else(|| chat.turn());
        match typed {
            Typed::Line(line) if chat.enter(&line) => editor.forget(&chat.take_deleted()),
            Typed::Line(_) | Typed::End => break,
            Typed::Interrupt => chat.interrupt(),
        }
        turn.end(is_piped);
    }
    let end = if is_piped { editor.check_end() } else { Ok(()) };
    editor.close();
    end
}
