//! `kvik run`: prints one answer on standard output.

use std::{io::Write, path::Path, time::Duration};

use anyhow::{bail, ensure};
use clap::{ArgMatches, Args, parser::ValueSource};
use kvik_shelf::Kind;
use kvik_text::answer::Reading;
use serde_json::{Value, json};

use super::{
    piped,
    talk::{self, AnswerPiece, TalkArgs, Turn},
};
use kvik_serving::{
    load::{self, Loaded},
    settings::{
        capacity::Capacity,
        logging::{self, LogFormat},
        model::{CacheArgs, ModelArgs},
    },
};

/// Answers one prompt on standard output; statistics go to standard error
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik run \"Who are you?\"
  kvik run qwen3 \"Why is the sky blue?\"               ask a model of `kvik list`, as -m qwen3
  kvik run -m model.gguf --system \"Answer in one word.\" \"The capital of Norway?\"
  kvik run -m model.gguf --raw \"Once upon a time\"      continue the text, without a chat template
  git diff | kvik run qwen3 \"Write a commit message:\"  what is piped in follows the prompt
  git diff | kvik run -m model.gguf --system \"Write a commit message.\" -

What is piped in stands behind the prompt: what stays the same comes first, and is reused.")]
pub(crate) struct RunArgs {
    /// The prompt, behind the name of a model of `kvik list` if it is for that one; - reads it from standard input
    #[arg(value_name = "PROMPT")]
    words: Vec<String>,
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

/// Runs the command; `matches` show which flags are on the command line.
pub(crate) fn run(args: &RunArgs, matches: &ArgMatches) -> anyhow::Result<()> {
    logging::start(LogFormat::Text, "warn");
    let names_model = matches.value_source("model") == Some(ValueSource::CommandLine);
    let Asked { model: named, prompt } = args.asked(names_model)?;
    let mut model = args.model.clone();
    model.model = named.or(model.model);
    talk::tell_of_names(&model);
    let Loaded { serving, handle, .. } = load::open(&model, &args.cache, Capacity::ONE)?;
    if args.talk.verbose {
        eprintln!("sampling: {}", args.talk.sampling_of(&serving.model.sampling));
    }
    let mut show = |piece: AnswerPiece<'_>| {
        if let AnswerPiece::Content(text) = piece {
            // A reader that closes the pipe early, such as `head`, is no failure.
            let mut out = std::io::stdout();
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }
    };
    let turn = if args.raw {
        let tokens = serving.texts.tokenizer.encode(&prompt, true, true);
        talk::answer(&serving, args.talk.request(&serving, tokens), Reading::Plain.reader(""), &mut show)
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
    fn asked(&self, names_model: bool) -> anyhow::Result<Asked> {
        let is_read = self.words.last().is_some_and(|word| word == "-");
        let piped = if is_read { Some(piped::all()?) } else { piped::behind_prompt()? };
        let is_model = |text: &str| is_model(text, &self.model);
        Asked::of(&self.words, piped.as_deref(), names_model, is_model)
    }

    fn messages(&self, prompt: String) -> Vec<Value> {
        let system = self.talk.system.as_ref().map(|text| json!({"role": "system", "content": text}));
        system.into_iter().chain([json!({"role": "user", "content": prompt})]).collect()
    }
}

/// Whether a word names a model on this machine, or a model's source.
fn is_model(text: &str, model: &ModelArgs) -> bool {
    let path = Path::new(text);
    let is_file = path.extension().is_some_and(|ending| ending == "gguf") && path.is_file();
    let named = || model.models_dir.shelf().ok()?.find(text).ok();
    text.starts_with("hf:") || is_file || named().is_some_and(|manifest| manifest.kind == Kind::Model)
}

/// A prompt and its model; with `None` the model of the flags.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    model: Option<String>,
    prompt: String,
}

impl Asked {
    /// Determines both from the command's words, the piped text, whether -m names the model, and which words are
    /// models.
    fn of(
        words: &[String],
        piped: Option<&str>,
        names_model: bool,
        is_model: impl Fn(&str) -> bool,
    ) -> anyhow::Result<Asked> {
        let is_named = |word: &String| !names_model && is_model(word);
        let (model, prompt) = match words {
            [] => (None, None),
            [one] if is_named(one) && piped.is_none() => bail!(
                "`{one}` is the name of a model, and there is no prompt: `kvik run {one} PROMPT` asks it, `kvik chat -m {one}` talks \
                 with it; as a prompt it follows the model, `kvik run -m MODEL {one}`"
            ),
            [one] if is_named(one) => (Some(one), None),
            [one] => (None, Some(one)),
            [one, two] if is_named(one) => (Some(one), Some(two)),
            [one, ..] => bail!(
                "a prompt of several words stands in quotes{}",
                if names_model { String::new() } else { format!(", and `{one}` is no model of `kvik list`") }
            ),
        };
        let said = prompt.map(String::as_str).filter(|prompt| *prompt != "-");
        let parts: Vec<&str> = said.into_iter().chain(piped).filter(|part| !part.trim().is_empty()).collect();
        ensure!(!parts.is_empty(), "the prompt is empty; write it in quotes, or pipe it in");
        Ok(Asked { model: model.cloned(), prompt: parts.join("\n\n") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str], piped: Option<&str>, names_model: bool) -> anyhow::Result<Asked> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        Asked::of(&words, piped, names_model, |word| word == "smol")
    }

    #[test]
    fn words_and_what_is_piped_in_make_a_prompt() {
        let check = |words: &[&str], piped, names_model, model: Option<&str>, prompt: &str| {
            let expect = Asked { model: model.map(str::to_owned), prompt: prompt.to_owned() };
            assert_eq!(asked(words, piped, names_model).unwrap(), expect, "{words:?} {piped:?}");
        };
        check(&["Hello"], None, false, None, "Hello");
        check(&["Summarise this"], Some("text\n"), false, None, "Summarise this\n\ntext\n");
        check(&["Hello"], Some(""), false, None, "Hello");
        check(&["-"], Some("text"), false, None, "text");
        check(&[], Some("text"), false, None, "text");
        check(&["smol", "Hello"], None, false, Some("smol"), "Hello");
        check(&["smol", "-"], Some("text"), false, Some("smol"), "text");
        check(&["smol"], Some("text"), false, Some("smol"), "text");
        check(&["smol"], None, true, None, "smol");
    }

    #[test]
    fn a_prompt_that_is_none_is_refused_with_the_remedy() {
        let check = |words: &[&str], piped, names_model, says: &[&str]| {
            let error = asked(words, piped, names_model).unwrap_err().to_string();
            says.iter().for_each(|word| assert!(error.contains(word), "{error} says {word}"));
        };
        for empty in ["", " ", "\n\t"] {
            check(&[empty], None, false, &["the prompt is empty"]);
            check(&["smol", empty], None, false, &["the prompt is empty"]);
            check(&["-"], Some(empty), false, &["the prompt is empty"]);
            check(&[], Some(empty), false, &["the prompt is empty"]);
        }
        check(&[], None, false, &["the prompt is empty"]);
        check(
            &["smol"],
            None,
            false,
            &["name of a model", "kvik run smol PROMPT", "kvik chat -m smol", "-m MODEL smol"],
        );
        check(&["Hello", "world"], None, false, &["quotes", "`Hello` is no model"]);
        check(&["Hello", "world"], None, true, &["quotes"]);
        check(&["smol", "Why", "blue?"], None, false, &["quotes"]);
    }
}
