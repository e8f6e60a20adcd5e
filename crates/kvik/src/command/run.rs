//! `kvik run`: one answer on standard output.

use std::{
    io::{Read, Write},
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};

use super::talk::{self, AnswerPiece, TalkArgs, Turn};
use crate::{
    serving::load::{self, Capacity, Loaded},
    settings::{
        logging::{self, LogFormat},
        model::{CacheArgs, ModelArgs},
    },
};

/// Answers one prompt on standard output; statistics go to standard error
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik run \"Who are you?\"
  kvik run -m model.gguf --system \"Answer in one word.\" \"The capital of Norway?\"
  kvik run -m model.gguf --raw \"Once upon a time\"      continue the text, without a chat template
  git diff | kvik run -m model.gguf --system \"Write a commit message.\" -")]
pub(crate) struct RunArgs {
    /// The prompt; - reads it from standard input
    prompt: String,
    /// Continue the prompt as it is, without the chat template
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    talk: TalkArgs,
}

/// Runs the command.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    logging::start(LogFormat::Text, "warn");
    let prompt = args.prompt()?;
    let Loaded { serving, handle, .. } = load::open(&args.model, &args.cache, Capacity::ONE)?;
    let mut show = |piece: AnswerPiece<'_>| {
        if let AnswerPiece::Content(text) = piece {
            // A reader that closes the pipe early, such as `head`, is no failure.
            let mut out = std::io::stdout();
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }
    };
    let turn = if args.raw {
        let tokens = serving.tokenizer.encode(&prompt, true, true);
        talk::answer(&serving, args.talk.request(&serving, tokens), None, &mut show)
    } else {
        args.talk.chat(&serving, &args.messages(prompt), &mut show)
    };
    let turn: Turn = turn?;
    let _ = writeln!(std::io::stdout());
    eprintln!("{}", turn.summary());
    handle.shutdown(Duration::ZERO);
    Ok(())
}

impl RunArgs {
    fn prompt(&self) -> anyhow::Result<String> {
        if self.prompt != "-" {
            return Ok(self.prompt.clone());
        }
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("standard input cannot be read as text")?;
        Ok(text)
    }

    fn messages(&self, prompt: String) -> Vec<Value> {
        let system = self.talk.system.as_ref().map(|text| json!({"role": "system", "content": text}));
        system.into_iter().chain([json!({"role": "user", "content": prompt})]).collect()
    }
}
