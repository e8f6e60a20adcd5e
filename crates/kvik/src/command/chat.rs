//! `kvik chat`: a conversation in the terminal.

use std::{io::Write, time::Duration};

use clap::Args;
use rustyline::{DefaultEditor, error::ReadlineError};
use serde_json::{Value, json};

use super::talk::{Piece, TalkArgs, Turn};
use crate::{
    serving::{
        Serving,
        load::{self, Capacity, Loaded},
    },
    settings::{
        dirs,
        logging::{self, LogFormat},
        model::{CacheArgs, ModelArgs},
        size::ByteSize,
    },
};

const HELP: &str = "\
/help           this list
/system TEXT    tell the model something before the conversation, and start anew
/reset          forget the conversation (its prompt stays in the cache)
/stats          what the cache holds
/quit           leave (also Ctrl-D)";

/// Talks with the model in the terminal
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik chat
  kvik chat -m model.gguf --system \"You are a friendly assistant.\"

After each answer one line says how many tokens of the conversation were reused and how soon the
first token came: a conversation is computed once, however long it grows.")]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    talk: TalkArgs,
}

/// What a line of input asks for.
#[derive(Debug, PartialEq)]
enum Line<'a> {
    Nothing,
    Say(&'a str),
    Help,
    System(&'a str),
    Reset,
    Stats,
    Quit,
    Unknown(&'a str),
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Line<'a> {
        let line = line.trim();
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match command {
            "" => Line::Nothing,
            "/help" | "/?" => Line::Help,
            "/system" => Line::System(rest.trim()),
            "/reset" => Line::Reset,
            "/stats" => Line::Stats,
            "/quit" | "/exit" => Line::Quit,
            other if other.starts_with('/') => Line::Unknown(other),
            _ => Line::Say(line),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &ChatArgs) -> anyhow::Result<()> {
    logging::start(LogFormat::Text, "warn");
    let Loaded { serving, budget, handle, .. } = load::open(&args.model, &args.cache, Capacity::ONE)?;
    println!(
        "{} ({}), context {} tokens, cache {}",
        serving.model.name,
        serving.model.source,
        serving.model.context,
        ByteSize(budget.bytes())
    );
    if serving.model.embedded {
        println!(
            "This is a very small model that knows little: try \"Who are you?\" or \"My dog is called Bolt.\""
        );
    }
    println!("/help lists the commands.\n");
    let mut conversation = Conversation { talk: args.talk.clone(), messages: Vec::new() };
    conversation.reset();
    let outcome = converse(&serving, &mut conversation);
    handle.shutdown(Duration::ZERO);
    outcome
}

fn converse(serving: &Serving, conversation: &mut Conversation) -> anyhow::Result<()> {
    let mut editor = DefaultEditor::new()?;
    let history = dirs::config().map(|directory| directory.join("chat_history"));
    if let Some(path) = &history {
        // There is none at the first start.
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
        match Line::parse(&line) {
            Line::Nothing => {}
            Line::Help => println!("{HELP}"),
            Line::Quit => break,
            Line::Reset => conversation.reset(),
            Line::Stats => println!("{}", stats(serving)),
            Line::System(text) => conversation.set_system(text),
            Line::Unknown(command) => println!("there is no command {command}; /help lists them"),
            Line::Say(text) => conversation.say(serving, text),
        }
    }
    if let Some(path) = history {
        save(&mut editor, &path);
    }
    Ok(())
}

/// A history that cannot be kept is no reason to fail.
fn save(editor: &mut DefaultEditor, path: &std::path::Path) {
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    if made.is_err() || editor.save_history(path).is_err() {
        eprintln!("the history could not be saved to {}", path.display());
    }
}

/// What was said so far.
struct Conversation {
    talk: TalkArgs,
    messages: Vec<Value>,
}

impl Conversation {
    fn reset(&mut self) {
        let system = self.talk.system.as_ref().map(|text| json!({"role": "system", "content": text}));
        self.messages = system.into_iter().collect();
    }

    fn set_system(&mut self, text: &str) {
        self.talk.system = (!text.is_empty()).then(|| text.to_owned());
        self.reset();
    }

    fn say(&mut self, serving: &Serving, text: &str) {
        self.messages.push(json!({"role": "user", "content": text}));
        match self.talk.chat(serving, &self.messages, &mut show) {
            Ok(turn) => self.keep(&turn),
            Err(error) => {
                // The question is taken back, so that a shorter one can be asked.
                self.messages.pop();
                println!("error: {error:#}");
            }
        }
    }

    fn keep(&mut self, turn: &Turn) {
        self.messages.push(json!({"role": "assistant", "content": turn.content}));
        println!("\n\x1b[2m[{}]\x1b[0m\n", turn.summary());
    }
}

/// Content as it is, reasoning dimmed.
fn show(piece: Piece<'_>) {
    match piece {
        Piece::Content(text) => print!("{text}"),
        Piece::Reasoning(text) => print!("\x1b[2m{text}\x1b[0m"),
    }
    let _ = std::io::stdout().flush();
}

fn stats(serving: &Serving) -> String {
    let stats = serving.engine.stats();
    format!(
        "{} of {} in use; {} prompt tokens so far, {} of them reused",
        ByteSize((stats.kv_bytes - stats.kv_free_bytes) as u64),
        ByteSize(stats.kv_bytes as u64),
        stats.counters.prompt_tokens,
        stats.counters.reused_tokens,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_speech() {
        let check = |line: &str, expect: Line<'_>| assert_eq!(Line::parse(line), expect, "{line}");
        check("  ", Line::Nothing);
        check("hello there ", Line::Say("hello there"));
        check("/system  be brief ", Line::System("be brief"));
        check("/system", Line::System(""));
        check("/reset", Line::Reset);
        check("/quit", Line::Quit);
        check("/helpme", Line::Unknown("/helpme"));
        check("1/2 is a half", Line::Say("1/2 is a half"));
    }
}
