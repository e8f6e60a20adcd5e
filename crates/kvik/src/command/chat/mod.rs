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
mod kept;
mod line;
mod report;
mod screen;
#[cfg(test)]
mod tests;

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context;
use clap::Args;
use kvik_memory::context::MemorySettings;
use kvik_memory::{
    memory::{MemoryConfig, make_summaries},
    records::Records,
};
use rustyline::{DefaultEditor, error::ReadlineError};

use self::{
    client::LocalClient,
    conversation::{Remembering, TerminalChat},
    line::InputLine,
    screen::Screen,
};
use super::{
    flags::{accounts::StateArgs, memory::MemoryArgs},
    talk::{self, TalkArgs},
};
use kvik_server::{
    accounts::ledger::Ledger,
    api,
    app::{App, AppConfig, keys::Keys},
    http::{Hosts, Senders},
};
use kvik_serving::{
    Serving,
    load::{self, Loaded},
    settings::{
        capacity::Capacity,
        dirs, home,
        logging::{self, LogFormat},
        model::{CacheArgs, ModelArgs},
        size::ByteSize,
    },
};

/// Room for one answer at a time, and for the summaries computed concurrently.
const CAPACITY: Capacity = Capacity { parallel: 4, queue: 16, ..Capacity::ONE };
/// Folder of its records in the state directory. They are separate from the server's, which one process at a time
/// writes: an open terminal must not lock a server out of its accounts.
const FOLDER: &str = "chat";
/// How long to wait for another terminal to close the records.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
/// Maximum body of a request in this process.
const BODY_BYTES_MAX: u64 = 32 << 20;

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
gives it; with --memory off none is. /help lists the commands.")]
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
    let Loaded { serving, budget, handle, .. } = load::open(&args.model, &args.cache, CAPACITY)?;
    serving.chat_template()?;
    let mut screen = Screen::new();
    greet(&mut screen, &serving, ByteSize(budget.bytes()));
    if args.talk.verbose {
        screen.line(&format!("sampling: {}", args.talk.sampling_of(&serving.model.sampling)));
    }
    let (config, remembering) = args.remembering(serving.model.context)?;
    if let Err(why) = &remembering.settings {
        screen.line(&format!("This conversation ends with the context: {why}."));
    }
    let records = args.records()?;
    if let Err(why) = &records {
        screen.line(&format!("Conversations are kept until this program ends: {why}."));
    }
    let lasting = records.as_ref().map(drop).map_err(String::clone);
    let places = Places {
        state_dir: args.state.folder().map(|folder| folder.join(FOLDER)).filter(|_| records.is_ok()),
        cache_disk: args.cache.cache_disk.directory(),
    };
    let app = app(serving, config, records.ok(), places);
    let mut chat =
        TerminalChat::new(app.clone(), client(app)?, screen, args.talk.clone(), remembering, lasting);
    let outcome = args.open_conversation(&mut chat).and_then(|()| converse(&mut chat));
    handle.shutdown(Duration::ZERO);
    outcome
}

fn greet(screen: &mut Screen, serving: &Serving, cache: ByteSize) {
    let model = &serving.model;
    screen.line(&format!(
        "{} ({}), context {} tokens, cache {cache}",
        model.name,
        model.source.for_host(),
        model.context
    ));
    if model.embedded {
        screen.line(
            "This is a very small model that knows little: try \"Who are you?\" or \"My dog is called Bolt.\"",
        );
    }
    screen.line("/help lists the commands.");
}

impl ChatArgs {
    /// The same for another model, cache and values of answers.
    pub(super) fn with(self, model: ModelArgs, cache: CacheArgs, talk: TalkArgs) -> ChatArgs {
        ChatArgs { model, cache, talk, ..self }
    }

    /// Settings of memory. Explicit bounds that do not fit are an error; default ones that do not fit a small context
    /// switch memory off.
    fn remembering(&self, context: usize) -> anyhow::Result<(MemoryConfig, Remembering)> {
        let mut config = self.memory.config(true)?;
        let settings: Result<MemorySettings, String> = match config.settings(context) {
            Err(error) if self.memory.config(false)?.is_wanted() => return Err(error).context("--memory"),
            Err(error) => Err(error.to_string()),
            Ok(settings) => Ok(settings),
        };
        config.on &= settings.is_ok();
        let on = config.on;
        Ok((config, Remembering { on, settings }))
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

/// Directories of the prompt log and of the disk cache.
#[derive(Default)]
struct Places {
    state_dir: Option<PathBuf>,
    cache_disk: Option<PathBuf>,
}

/// The state behind the routes, for one user without a key.
fn app(serving: Serving, memory: MemoryConfig, records: Option<Records>, places: Places) -> Arc<App> {
    let started = Instant::now();
    let config = AppConfig {
        senders: Senders { hosts: Hosts::new(Ipv4Addr::LOCALHOST.into(), Vec::new()), origins: Vec::new() },
        shows_slots: false,
        strict_model: false,
        body_limit: ByteSize(BODY_BYTES_MAX),
        prices: None,
        clock: Arc::new(move || started.elapsed()),
        admission_slots: CAPACITY.parallel + CAPACITY.queue,
        conversations: records.clone(),
        shared_records: None,
        records,
        memory,
        secret: None,
        spans: None,
        sampling: Default::default(),
        state_dir: places.state_dir,
        cache_disk: places.cache_disk,
    };
    let ledger = Ledger::new(None, SystemTime::now);
    App::new(serving, Keys::new([]), Arc::new(ledger), config)
}

/// The routes in this process, and their background tasks.
fn client(app: Arc<App>) -> anyhow::Result<LocalClient> {
    let runtime = tokio::runtime::Runtime::new().context("the threads of the routes cannot be started")?;
    runtime.spawn(make_summaries(app.clone()));
    Ok(LocalClient::new(runtime, api::router(app)))
}

/// Reads lines until the last one.
fn converse(chat: &mut TerminalChat) -> anyhow::Result<()> {
    let mut editor = DefaultEditor::new()?;
    let history = dirs::config().map(|directory| directory.join("chat_history"));
    if let Some(path) = &history {
        // The first start has no history.
        let _ = editor.load_history(path);
    }
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(error.into()),
        };
        editor.add_history_entry(line.trim())?;
        match InputLine::parse(&line) {
            InputLine::Quit => break,
            line => chat.take(line),
        }
    }
    if let Some(path) = history {
        save(&mut editor, &path);
    }
    Ok(())
}

/// Saves the history; a failure is only reported.
fn save(editor: &mut DefaultEditor, path: &Path) {
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    if made.is_err() || editor.save_history(path).is_err() {
        eprintln!("the history could not be saved to {}", path.display());
    }
}
