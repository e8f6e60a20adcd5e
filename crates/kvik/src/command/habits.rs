//! Commands and flags that people know from other programs and kvik does not have, and what does the same here.
//!
//! clap would offer the word that is most alike, `chat` for `create`. docs/coming-from.md has a row for each.

use anyhow::bail;
use clap::{
    ArgMatches,
    error::{ContextKind, ContextValue},
};

/// Words of other programs, and what does the same here.
type Habits = &'static [(&'static [&'static str], &'static str)];

/// Commands of Ollama, LM Studio and llama.cpp.
const COMMANDS: Habits = &[
    (
        &["create"],
        "a table [models.NAME] of config.toml gives a model settings of its own (docs/shelf.md); a system prompt \
         is --system of `kvik run` and `kvik chat`, or the system message of a request",
    ),
    (&["push"], "it uploads nothing"),
    (&["get", "download", "import", "install"], "`kvik pull MODEL` fetches a model and names it"),
    (&["load"], "`kvik ps --load NAME` loads a model of a running server"),
    (&["unload"], "`kvik ps --unload NAME` takes a model out of a running server's memory"),
    (
        &["server", "start", "up", "daemon"],
        "`kvik serve` starts a server, `kvik health` asks whether it answers, `kvik stop` ends it",
    ),
    (&["status"], "`kvik health` asks whether a server answers, `kvik ps` which models it has"),
    (
        &["log", "logs"],
        "`kvik serve` writes its log to standard error, and with KVIK_LOG=debug a line for each request",
    ),
    (
        &["embed", "embedding", "embeddings"],
        "`kvik serve` has the route POST /v1/embeddings (docs/embeddings.md)",
    ),
    (&["models"], "`kvik list` lists the models that have a name, `kvik search` those that can be fetched"),
    (&["delete", "remove"], "`kvik rm NAME` removes a model"),
    (
        &["signin", "signout", "login", "logout"],
        "it has no accounts; HF_TOKEN is the token for models of the Hugging Face hub",
    ),
    (&["quantize", "quantise", "convert"], "--weights q8_0 converts while a model is loaded"),
    (&["version"], "`kvik --version` prints it"),
];

/// Flags of their servers and clients that must not be ignored.
const FLAGS: Habits = &[
    (
        &["--ssl-key-file", "--ssl-cert-file"],
        "it speaks plain HTTP; put a proxy in front (docs/operations.md)",
    ),
    (&["--api-prefix"], "put a proxy in front that removes the prefix (docs/operations.md)"),
    (&["--model-url", "--mu"], "download the file and name it with -m, or fetch a model with `kvik pull`"),
    (&["--docker-repo", "--dr"], "models come from the Hugging Face hub: -m hf:OWNER/REPO"),
    (
        &["--format"],
        "`kvik serve` answers with `response_format` in the form of a JSON schema (docs/http.md)",
    ),
    (
        &["-p", "--prompt"],
        "the prompt stands behind the model, `kvik run MODEL \"PROMPT\"`; a port is --port",
    ),
    (
        &["-c", "--conversation", "--interactive"],
        "`kvik chat` holds a conversation, as -cnv does elsewhere; the tokens of a context are --context",
    ),
    (&["--keepalive"], "`kvik serve --keep-alive TIME` says how long a model of several stays in memory"),
];

/// Explains a word of another program; after any other mistake the process ends with clap's message.
pub(crate) fn explain(error: clap::Error) -> anyhow::Result<ArgMatches> {
    match instead(&error) {
        Some((word, instead)) => bail!("kvik has no `{word}`: {instead}"),
        None => error.exit(),
    }
}

/// Returns the unknown word of a mistake, and what does the same here.
fn instead(error: &clap::Error) -> Option<(&str, &'static str)> {
    let known = [(ContextKind::InvalidSubcommand, COMMANDS), (ContextKind::InvalidArg, FLAGS)];
    known.into_iter().find_map(|(kind, habits)| {
        let Some(ContextValue::String(word)) = error.get(kind) else { return None };
        let (_, instead) = habits.iter().find(|(words, _)| words.contains(&word.as_str()))?;
        Some((word.as_str(), *instead))
    })
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::command::Cli;

    #[test]
    fn words_of_other_programs_are_explained() {
        let check = |args: &[&str], expect: Option<&str>| {
            let error = Cli::try_parse_from([&["kvik"][..], args].concat()).err().unwrap();
            assert_eq!(instead(&error).map(|(word, _)| word), expect, "{args:?}");
        };
        for (words, _) in COMMANDS {
            words.iter().for_each(|&word| check(&[word, "x"], Some(word)));
        }
        for (words, _) in FLAGS {
            words.iter().for_each(|&word| check(&["serve", word, "x"], Some(word)));
        }
        check(&["nonsense"], None);
        check(&["serve", "--nonsense"], None);
    }

    /// A word that became a command is none of other programs alone.
    #[test]
    fn no_command_of_kvik_is_explained_away() {
        let own = |word: &str| Cli::command().find_subcommand(word).is_some();
        for (words, _) in COMMANDS {
            assert!(words.iter().all(|word| !own(word)), "{words:?}");
        }
    }
}
