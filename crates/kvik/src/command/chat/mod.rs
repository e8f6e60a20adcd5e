//! `kvik chat`: a conversation in the terminal.
//!
//! ```text
//! line -> TerminalChat -> LocalClient -> the routes of `kvik serve`, in this process
//!              '-> Screen <-'
//! ```
//!
//! The terminal is an ordinary client of the routes, and shares their memory of conversations.

mod client;
mod conversation;
mod editor;
mod engine;
mod kept;
mod line;
mod model;
mod report;
mod screen;
#[cfg(test)]
mod tests;

use std::time::Duration;

use clap::Args;
use kvik_memory::records::Records;

use self::{
    conversation::{Lasting, TerminalChat},
    editor::{LineEditor, Typed},
    engine::{Places, Setup},
    screen::Screen,
};
use super::{
    flags::{accounts::StateArgs, memory::MemoryArgs},
    talk::{self, TalkArgs},
};
use kvik_serving::settings::{
    home,
    logging::{self, LogFormat},
    model::{CacheArgs, ModelArgs},
};

/// Folder of its records in the state directory. They are separate from the server's, which one process at a time
/// writes: an open terminal must not lock a server out of its accounts.
const FOLDER: &str = "chat";
/// How long to wait for another terminal to close the records.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// Talks with the model in the terminal
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik chat                             with the model of `kvik default`
  kvik chat qwen3:0.6b                  with this one, which is fetched once
  kvik chat -m model.gguf --system \"You are a friendly assistant.\"
  kvik chat --resume                    go on with the last conversation
  kvik chat --resume \"my dog\"           go on with the one of that name

After each answer one line says how many tokens of the conversation were reused and when the first
token came: a conversation is computed once, however long it grows. When it is longer than the
context, the model reads a summary of its beginning, its recent messages, and what of the rest fits
the question; /memory shows them, --memory off ends the conversation with the context.

Every conversation is kept in the state directory, under its first words or the name that /save
gives it; with --memory off none is. /help lists the commands; three quotes (\"\"\") begin and end a text
of several lines, and Alt-Enter begins another one.")]
pub(crate) struct ChatArgs {
    /// The model, as -m names it: a name, a short name, a file, a source of the hub
    #[arg(value_name = "NAME", value_parser = home::text)]
    pub(super) name: Option<String>,
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
    /// Go on with the conversation of this name; without a name, with the last one
    #[arg(long, value_name = "NAME", num_args = 0..=1, conflicts_with = "system")]
    resume: Option<Option<String>>,
}

/// Runs the command.
pub(crate) fn run(args: &ChatArgs) -> anyhow::Result<()> {
    logging::start(LogFormat::Text, "warn");
    talk::tell_of_demonstration(&args.model);
    let (setup, lasting) = args.setup()?;
    let engine = setup.open(&args.model)?;
    let mut chat = TerminalChat::new((engine, setup), Screen::new(), args, lasting);
    chat.greet();
    let outcome = args.open_conversation(&mut chat).and_then(|()| converse(&mut chat));
    chat.close();
    outcome
}

impl ChatArgs {
    /// The same for another model, cache and values of answers.
    pub(super) fn with(self, model: ModelArgs, cache: CacheArgs, talk: TalkArgs) -> ChatArgs {
        ChatArgs { model, cache, talk, ..self }
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
        Ok((Setup { cache, memory, records, places }, lasting))
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
fn converse(chat: &mut TerminalChat) -> anyhow::Result<()> {
    let mut editor = LineEditor::open()?;
    loop {
        let draft = chat.take_draft();
        match editor.read(chat.prompt(), &draft)? {
            Typed::Line(line) if chat.enter(&line) => {}
            Typed::Line(_) | Typed::End => break,
            Typed::Interrupt => chat.interrupt(),
        }
    }
    editor.close();
    Ok(())
}
