//! `kvik chat`: a conversation in the terminal.

use std::{io::Write, time::Duration};

use clap::Args;
use rustyline::{DefaultEditor, error::ReadlineError};
use serde_json::{Value, json};

use super::talk::{AnswerPiece, TalkArgs, Turn};
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
/system TEXT    set the system message and start anew
/reset          forget the conversation (its prompt stays in the cache)
/stats          show the use of the cache
/quit           leave (also Ctrl-D)";

/// Talks with the model in the terminal
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik chat
  kvik chat -m model.gguf --system \"You are a friendly assistant.\"

After each answer one line says how many tokens of the conversation were reused and when the first
token came: a conversation is computed once, however long it grows.")]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    talk: TalkArgs,
}

/// A line of input: a command, or a message to the model.
#[derive(Debug, PartialEq)]
enum InputLine<'a> {
    Nothing,
    Say(&'a str),
    Help,
    System(&'a str),
    Reset,
    Stats,
    Quit,
    Unknown(&'a str),
}

impl<'a> InputLine<'a> {
    fn parse(line: &'a str) -> InputLine<'a> {
        let line = line.trim();
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match command {
            "" => InputLine::Nothing,
            "/help" | "/?" => InputLine::Help,
            "/system" => InputLine::System(rest.trim()),
            "/reset" => InputLine::Reset,
            "/stats" => InputLine::Stats,
            "/quit" | "/exit" => InputLine::Quit,
            other if other.starts_with('/') => InputLine::Unknown(other),
            _ => InputLine::Say(line),
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
    let mut conversation = TerminalChat { talk: args.talk.clone(), messages: Vec::new() };
    conversation.reset();
    let outcome = converse(&serving, &mut conversation);
    handle.shutdown(Duration::ZERO);
    outcome
}

fn converse(serving: &Serving, conversation: &mut TerminalChat) -> anyhow::Result<()> {
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
            InputLine::Nothing => {}
            InputLine::Help => println!("{HELP}"),
            InputLine::Quit => break,
            InputLine::Reset => conversation.reset(),
            InputLine::Stats => println!("{}", stats(serving)),
            InputLine::System(text) => conversation.set_system(text),
            InputLine::Unknown(command) => println!("there is no command {command}; /help lists them"),
            InputLine::Say(text) => conversation.say(serving, text),
        }
    }
    if let Some(path) = history {
        save(&mut editor, &path);
    }
    Ok(())
}

/// Saves the history; a failure is only reported.
fn save(editor: &mut DefaultEditor, path: &std::path::Path) {
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    if made.is_err() || editor.save_history(path).is_err() {
        eprintln!("the history could not be saved to {}", path.display());
    }
}

/// The conversation so far.
struct TerminalChat {
    talk: TalkArgs,
    messages: Vec<Value>,
}

impl TerminalChat {
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
                // The question is removed, so that a shorter one can follow.
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

/// Prints content as it is, and reasoning dimmed.
fn show(piece: AnswerPiece<'_>) {
    match piece {
        AnswerPiece::Content(text) => print!("{text}"),
        AnswerPiece::Reasoning(text) => print!("\x1b[2m{text}\x1b[0m"),
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
    fn lines_are_commands_or_messages() {
        let check = |line: &str, expect: InputLine<'_>| assert_eq!(InputLine::parse(line), expect, "{line}");
        check("  ", InputLine::Nothing);
        check("hello there ", InputLine::Say("hello there"));
        check("/system  be brief ", InputLine::System("be brief"));
        check("/system", InputLine::System(""));
        check("/reset", InputLine::Reset);
        check("/quit", InputLine::Quit);
        check("/helpme", InputLine::Unknown("/helpme"));
        check("1/2 is a half", InputLine::Say("1/2 is a half"));
    }
}
