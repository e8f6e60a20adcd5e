//! llama-server's flags, read as those of `kvik serve`.
//!
//! clap has one letter after one dash; llama-server has words there (`-np`). So the arguments are rewritten before clap
//! reads them, and only those of `kvik serve`.

use std::ffi::{OsStr, OsString};

/// What a flag of llama-server is here.
#[derive(Debug, Clone, Copy)]
enum Meaning {
    /// The same under another name.
    Flag(&'static str),
    /// A KV format, whose names differ.
    Format(&'static str),
    /// A repository of the Hugging Face hub, which is a model here.
    Repository,
    /// What drafts are made from.
    Drafts,
    /// Nothing: kvik does it anyway, or has no such thing. With a value, or without one.
    Ignored(&'static str, bool),
}

use Meaning::{Drafts, Flag, Format, Ignored, Repository};

const FLAGS: [(&str, Meaning); 44] = [
    ("--spec-draft-model", Flag("--draft")),
    ("-md", Flag("--draft")),
    ("--model-draft", Flag("--draft")),
    ("--spec-type", Drafts),
    ("-c", Flag("--context")),
    ("--ctx-size", Flag("--context")),
    ("-np", Flag("--parallel")),
    ("-n", Flag("--n-predict")),
    ("--predict", Flag("--n-predict")),
    ("-s", Flag("--seed")),
    ("--temperature", Flag("--temp")),
    ("-a", Flag("--alias")),
    ("-ctk", Format("--kv-k")),
    ("--cache-type-k", Format("--kv-k")),
    ("-ctv", Format("--kv-v")),
    ("--cache-type-v", Format("--kv-v")),
    ("-hf", Repository),
    ("-hfr", Repository),
    ("--hf-repo", Repository),
    ("-b", Ignored("kvik finds the size of its batches itself", true)),
    ("--batch-size", Ignored("kvik finds the size of its batches itself", true)),
    ("-ub", Ignored("kvik finds the size of its batches itself", true)),
    ("--ubatch-size", Ignored("kvik finds the size of its batches itself", true)),
    ("-tb", Ignored("--threads holds for prompts as well", true)),
    ("--threads-batch", Ignored("--threads holds for prompts as well", true)),
    ("-ngl", Flag("--gpu-layers")),
    ("--n-gpu-layers", Flag("--gpu-layers")),
    ("-fa", Ignored("attention is always of this kind", true)),
    ("--flash-attn", Ignored("attention is always of this kind", true)),
    ("--slot-save-path", Ignored("prefixes are on disk by themselves; see --cache-disk", true)),
    ("--cache-reuse", Ignored("every prefix of every request is found", true)),
    ("-cb", Ignored("batching is always continuous", false)),
    ("--cont-batching", Ignored("batching is always continuous", false)),
    ("--cache-prompt", Ignored("prompts are always cached", false)),
    ("-kvu", Ignored("there is one cache for all requests", false)),
    ("--kv-unified", Ignored("there is one cache for all requests", false)),
    ("--jinja", Ignored("templates are always read as Jinja", false)),
    ("--slots", Ignored("/slots is always there", false)),
    ("--props", Ignored("properties are set by flags only", false)),
    ("--metrics", Ignored("/metrics is always there", false)),
    ("--no-context-shift", Ignored("the context is never shifted", false)),
    ("--mlock", Ignored("weights are in memory anyway", false)),
    ("--no-mmap", Ignored("weights are in memory anyway", false)),
    ("--no-warmup", Ignored("there is no warm-up", false)),
];

/// The arguments with llama-server's flags rewritten, where the command is `serve`, and what is said about those that
/// have no meaning here.
pub(crate) fn expand(args: Vec<OsString>) -> (Vec<OsString>, Vec<String>) {
    let (mut expanded, mut notes) = (Vec::with_capacity(args.len()), Vec::new());
    let mut rest = args.into_iter();
    for arg in rest.by_ref() {
        let is_serve = arg == "serve";
        expanded.push(arg);
        if is_serve {
            break;
        }
    }
    while let Some(arg) = rest.next() {
        if arg == "--" {
            expanded.push(arg);
            break;
        }
        let (name, attached) = split(&arg);
        let Some((_, meaning)) = FLAGS.iter().find(|(flag, _)| *flag == name) else {
            expanded.push(arg);
            continue;
        };
        let mut value = || attached.map(OsString::from).or_else(|| rest.next()).into_iter();
        match *meaning {
            Flag(flag) => expanded.extend([flag.into()].into_iter().chain(value())),
            Format(flag) => expanded.extend([flag.into()].into_iter().chain(value().map(format))),
            Drafts => expanded.extend(["--speculate".into()].into_iter().chain(value().map(drafts))),
            Repository => expanded.extend(["--model".into()].into_iter().chain(value().map(repository))),
            Ignored(why, takes_value) => {
                notes.push(format!("{name} is ignored: {why}"));
                if takes_value {
                    value();
                }
            }
        }
    }
    expanded.extend(rest);
    (expanded, notes)
}

/// `--flag=value` as two; a value that is no text stays where it is.
fn split(arg: &OsStr) -> (String, Option<&str>) {
    let text = arg.to_str().unwrap_or_default();
    match text.split_once('=') {
        Some((name, value)) if name.starts_with("--") => (name.to_owned(), Some(value)),
        _ => (text.to_owned(), None),
    }
}

/// The name of a KV format.
fn format(value: OsString) -> OsString {
    match value.to_str() {
        Some("q8_0") => "q8".into(),
        Some("q4_0") => "q4".into(),
        _ => value,
    }
}

/// A source of drafts; its n-grams are one here, and what is not there `--speculate` refuses.
fn drafts(value: OsString) -> OsString {
    match value.to_str() {
        Some(name) if name.starts_with("ngram") => "all".into(),
        _ => value,
    }
}

/// A repository as a model.
fn repository(value: OsString) -> OsString {
    let mut model = OsString::from("hf:");
    model.push(value);
    model
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(args: &[&str], expect: &[&str]) {
        let (expanded, _) = expand(args.iter().map(OsString::from).collect());
        assert_eq!(expanded, expect, "{args:?}");
    }

    #[test]
    fn flags_of_llama_server_are_those_of_serve() {
        check(
            &["kvik", "serve", "-c", "4096", "-np", "2"],
            &["kvik", "serve", "--context", "4096", "--parallel", "2"],
        );
        check(&["kvik", "serve", "--ctx-size=4096"], &["kvik", "serve", "--context", "4096"]);
        check(
            &["kvik", "serve", "-ctk", "q8_0", "-ctv", "f16"],
            &["kvik", "serve", "--kv-k", "q8", "--kv-v", "f16"],
        );
        check(&["kvik", "serve", "--spec-type", "ngram-mod"], &["kvik", "serve", "--speculate", "all"]);
        check(&["kvik", "serve", "--spec-type=none"], &["kvik", "serve", "--speculate", "none"]);
        check(&["kvik", "serve", "-hf", "o/r:Q8_0"], &["kvik", "serve", "--model", "hf:o/r:Q8_0"]);
        check(
            &["kvik", "serve", "-s", "-1", "--jinja", "--port", "1"],
            &["kvik", "serve", "--seed", "-1", "--port", "1"],
        );
        check(
            &["kvik", "serve", "-ngl", "99", "-cb", "-t", "4"],
            &["kvik", "serve", "--gpu-layers", "99", "-t", "4"],
        );
        check(&["kvik", "serve", "--n-gpu-layers=4"], &["kvik", "serve", "--gpu-layers", "4"]);
        check(&["kvik", "bench", "-n", "8"], &["kvik", "bench", "-n", "8"]);
        check(&["kvik", "serve", "--", "-c"], &["kvik", "serve", "--", "-c"]);
        check(&["kvik", "serve", "-c"], &["kvik", "serve", "--context"]);
        let (_, notes) = expand(["kvik", "serve", "-fa", "on"].map(OsString::from).to_vec());
        assert_eq!(notes, ["-fa is ignored: attention is always of this kind"]);
    }
}
