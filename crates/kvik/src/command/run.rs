//! `kvik run`: prints one answer on standard output.

use std::io::IsTerminal;

use anyhow::{anyhow, bail, ensure};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use kvik_shelf::Kind;
use serde_json::{Value, json};

use super::{
    Cli, Task,
    backend::{Backend, BackendArgs, Setup},
    chat::{self, ChatArgs, report},
    client::{Answer, AnswerPiece, Answered, INTERRUPTED},
    images, output, piped,
    talk::{self, TalkArgs},
};
use kvik_serving::{
    fetch, names,
    settings::{
        home,
        logging::{self, LogFormat, say, say_dimmed},
        model::{CacheArgs, ModelArgs, is_named_by_flag},
    },
};

/// Answers one prompt on standard output; statistics go to standard error
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kvik run \"Who are you?\"                              asks the model of `kvik default`
  kvik run qwen3:0.6b \"Why is the sky blue?\"           asks this one, which is fetched once
  kvik run qwen3:0.6b                                  talks with it in a terminal, as `kvik chat`
  kvik run -m model.gguf --system \"Answer in one word.\" \"The capital of Norway?\"
  kvik run -m model.gguf --raw \"Once upon a time\"      continue the text, without a chat template
  git diff | kvik run \"Write a commit message:\"        what is piped in follows the prompt
  git diff | kvik run -m model.gguf --system \"Write a commit message.\" -

A first word is a model if `kvik list` or `kvik search` names it, or if it looks like one: with a tag
(qwen3:0.6b), with a slash, as a .gguf file. As a prompt such a word stands behind -m MODEL.
Piped input is appended to the prompt: what stays the same comes first, and is reused.

A kvik that serves the model on this machine answers, if there is one: nothing is loaded twice, and its
cache is shared. In a terminal a line says so; --local loads the model here, --url asks another server.")]
pub(crate) struct RunArgs {
    /// The prompt, behind the name of a model if it is for that one; - reads it from standard input
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
    #[command(flatten)]
    backend: BackendArgs,
}

/// Runs the command; `matches` show which flags are on the command line, `loading` is one of loading among them, and
/// `command` is the whole command line.
pub(crate) fn run(
    args: &RunArgs,
    (matches, loading): (&ArgMatches, Option<&str>),
    command: &Command,
) -> anyhow::Result<()> {
    let Asked { model: named, typed, prompt } = args.asked(is_named_by_flag(matches))?;
    images::refuse(&typed)?;
    let mut model = args.model.clone();
    if let Some(named) = &named {
        model.model = Some(home::text(named)?);
    }
    match (prompt, named) {
        (Some(prompt), _) => args.answer(model, loading, prompt),
        (None, Some(named)) if args.raw && is_at_terminal() => Err(without_text(&named)),
        (None, Some(_)) if is_at_terminal() => chat::run(&args.chat(model, command)?, loading).map(drop),
        (None, named) => Err(without_prompt(&named.unwrap_or_default(), &model)),
    }
}

/// The error for a model without a prompt, in a script. A name that is unknown is told with those that it resembles.
fn without_prompt(name: &str, model: &ModelArgs) -> anyhow::Error {
    let unknown = |named| fetch::without_download(named, Kind::Model, &model.models_dir).err();
    model.named().and_then(unknown).unwrap_or_else(|| {
        anyhow!(
            "`{name}` is the name of a model, and there is no prompt: `kvik run {name} PROMPT` asks it, `kvik chat {name}` talks \
             with it; as a prompt it follows the model, `kvik run -m MODEL {name}`"
        )
    })
}

/// The error for a model whose template is left out, and which is given no text: a conversation needs the template.
fn without_text(name: &str) -> anyhow::Error {
    anyhow!(
        "--raw goes on with a text, and there is none: `kvik run --raw {name} TEXT` goes on with it, `kvik chat {name}` talks \
         with the model through its template"
    )
}

/// Whether a person reads and writes.
fn is_at_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

impl RunArgs {
    fn answer(&self, model: ModelArgs, loading: Option<&str>, prompt: String) -> anyhow::Result<()> {
        logging::start(LogFormat::Text, "warn");
        let backend = self.open(model, loading)?;
        if self.talk.verbose {
            say(&format!("sampling: {}", self.talk.sampling_of(&backend.model.sampling)));
        }
        let answer = self.write_answer(&backend, prompt);
        backend.close();
        let Some(answer) = answer? else { return Ok(()) };
        output::print("")?;
        if answer.ends_in_reasoning {
            say_dimmed(report::WITHIN_REASONING);
        }
        if report::was_loop(&answer) {
            say_dimmed("the answer repeated itself, and was ended; --allow-loops lets it go on");
        }
        say(&report::status(&answer));
        Ok(())
    }

    /// Writes the answer as it arrives; `None` if its reader is gone, for whom the rest is not computed.
    fn write_answer(&self, backend: &Backend, prompt: String) -> anyhow::Result<Option<Answer>> {
        let (mut unwritten, client) = (None, &backend.client);
        let mut show = |piece: AnswerPiece<'_>| {
            let AnswerPiece::Content(text) = piece else { return };
            if let Err(error) = output::write(output::shown(text).as_bytes()) {
                unwritten = Some(error);
                client.stop();
            }
        };
        let (path, body) = self.request(backend, prompt);
        let answered = client.answer(path, body, &mut show);
        match (unwritten, answered?) {
            (Some(error), _) => output::unless_closed(error).map(|()| None),
            (None, Answered::Whole(answer)) => Ok(Some(answer)),
            (None, Answered::Stopped) => {
                backend.close();
                std::process::exit(INTERRUPTED)
            }
        }
    }

    /// Opens the model where it answers.
    fn open(&self, mut model: ModelArgs, loading: Option<&str>) -> anyhow::Result<Backend> {
        let backend = match self.backend.server(&model, loading)? {
            Some(backend) => backend,
            None => {
                model.take_default();
                talk::tell_of_demonstration(model.is_embedded());
                return Backend::local(Setup::of_one_answer(&self.cache), &model, !self.raw);
            }
        };
        talk::tell_of_demonstration(backend.model.is_embedded);
        Ok(backend)
    }

    /// The route of the answer, and the request to it.
    fn request(&self, backend: &Backend, prompt: String) -> (&'static str, Value) {
        let mut body = self.talk.body(backend.fields());
        if self.raw {
            body["prompt"] = json!(prompt);
            if body.get("max_tokens").is_none() {
                // OpenAI's route ends after 16 where nothing is said.
                body["max_tokens"] = json!(-1);
            }
            return ("/v1/completions", body);
        }
        body["messages"] = Value::Array(self.messages(prompt));
        // A prompt that is too long is an error, and not summarised.
        body["kvik"]["memory"] = json!(false);
        ("/v1/chat/completions", body)
    }

    /// The same flags for a conversation; what `kvik chat` has besides is as it is there without flags.
    fn chat(&self, model: ModelArgs, command: &Command) -> anyhow::Result<ChatArgs> {
        let matches = command.clone().try_get_matches_from(["kvik", "chat"])?;
        let Task::Chat(chat) = Cli::from_arg_matches(&matches)?.task else {
            bail!("`kvik chat` is not a command")
        };
        Ok(chat.with((model, self.cache.clone()), self.talk.clone(), self.backend.clone()))
    }

    fn asked(&self, names_model: bool) -> anyhow::Result<Asked> {
        let is_read = self.words.last().is_some_and(|word| word == "-");
        let piped = if is_read { Some(piped::all()?) } else { piped::behind_prompt()? };
        let is_model = |word: &str| names::looks_like_model(word, &self.model.models_dir);
        let asked = Asked::of(&self.words, piped.as_deref(), names_model, is_model)?;
        if asked.model.is_none() && !names_model {
            self.tell_of_name();
        }
        Ok(asked)
    }

    /// Notes that a word alone is the prompt where it resembles a name.
    fn tell_of_name(&self) {
        let [word] = &self.words[..] else { return };
        if let Some(name) = names::nearest(word, &self.model.models_dir).filter(|_| !word.contains(' ')) {
            say(&format!("note: `{word}` is the prompt; the model is called `{name}`"));
        }
    }

    fn messages(&self, prompt: String) -> Vec<Value> {
        let system = self.talk.system.as_ref().map(|text| json!({"role": "system", "content": text}));
        system.into_iter().chain([json!({"role": "user", "content": prompt})]).collect()
    }
}

/// A prompt and its model.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    /// That of the first word; `None` for the model of the flags.
    model: Option<String>,
    /// The words, which a person types; what is piped in may be of any kind.
    typed: String,
    /// `None` if there is a model alone.
    prompt: Option<String>,
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
        let words = match words {
            [said @ .., last] if last == "-" => said,
            all => all,
        };
        let (model, said) = match words {
            [first, said @ ..] if !names_model && is_model(first) => (Some(first.clone()), said),
            [first, _, ..] if !names_model => bail!(
                "a prompt of several words stands in quotes, and `{first}` is no model of `kvik list` or `kvik search`"
            ),
            said => (None, said),
        };
        if model.is_some() && said.is_empty() && piped.is_none() {
            return Ok(Asked { model, typed: String::new(), prompt: None });
        }
        let typed = said.join(" ");
        let parts = [Some(typed.as_str()), piped].into_iter().flatten();
        let parts: Vec<&str> = parts.filter(|part| !part.trim().is_empty()).collect();
        ensure!(!parts.is_empty(), "the prompt is empty; write it in quotes, or pipe it in");
        let prompt = Some(parts.join("\n\n"));
        Ok(Asked { model, typed, prompt })
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
            let asked = asked(words, piped, names_model).unwrap();
            let found = (asked.model.as_deref(), asked.prompt.as_deref());
            assert_eq!(found, (model, Some(prompt)), "{words:?} {piped:?}");
        };
        check(&["Hello"], None, false, None, "Hello");
        check(&["Summarise this"], Some("text\n"), false, None, "Summarise this\n\ntext\n");
        check(&["Summarise this", "-"], Some("text"), false, None, "Summarise this\n\ntext");
        check(&["Hello"], Some(""), false, None, "Hello");
        check(&["-"], Some("text"), false, None, "text");
        check(&[], Some("text"), false, None, "text");
        check(&["smol", "Hello"], None, false, Some("smol"), "Hello");
        check(&["smol", "Why", "is", "it blue?"], None, false, Some("smol"), "Why is it blue?");
        check(&["smol", "-"], Some("text"), false, Some("smol"), "text");
        check(&["smol"], Some("text"), false, Some("smol"), "text");
        check(&["smol"], None, true, None, "smol");
        check(&["Hello", "world"], None, true, None, "Hello world");
        let alone = Asked { model: Some("smol".to_owned()), typed: String::new(), prompt: None };
        assert_eq!(asked(&["smol"], None, false).unwrap(), alone);
    }

    /// A list of pictures that is piped in names them, and is to be read as the text that it is.
    #[test]
    fn what_is_piped_in_is_not_taken_for_what_is_typed() {
        let check = |words: &[&str], piped, typed: &str| {
            assert_eq!(asked(words, piped, false).unwrap().typed, typed, "{words:?}");
        };
        check(&["Group these names"], Some("photos/a.jpg\nphotos/b.jpg\n"), "Group these names");
        check(&["smol", "Group", "these names", "-"], Some("photos/a.jpg"), "Group these names");
        check(&["-"], Some("photos/a.jpg"), "");
        check(&["What is on photos/a.jpg?"], None, "What is on photos/a.jpg?");
    }

    #[test]
    fn a_raw_model_without_a_text_is_refused_with_both_remedies() {
        let error = without_text("smol").to_string();
        assert!(
            error.contains("`kvik run --raw smol TEXT`") && error.contains("`kvik chat smol`"),
            "{error}"
        );
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
            check(&["smol", "-"], Some(empty), false, &["the prompt is empty"]);
            check(&[], Some(empty), false, &["the prompt is empty"]);
        }
        check(&[], None, false, &["the prompt is empty"]);
        check(&[], None, true, &["the prompt is empty"]);
        check(&["Hello", "world"], None, false, &["quotes", "`Hello` is no model"]);
    }
}
