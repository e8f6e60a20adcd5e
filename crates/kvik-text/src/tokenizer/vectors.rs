//! Vocabularies of published models, with texts and the tokens that llama.cpp gives for them.
//!
//! They are not part of the repository: `KVIK_VOCABULARIES` names a directory of `ggml-vocab-NAME.gguf`, each
//! with an `.inp` of texts and an `.out` of ids, as llama.cpp publishes them in `models/`.

use std::path::{Path, PathBuf};

use kvik_cache::Token;
use kvik_testing::skip;

use super::Tokenizer;
use crate::files::gguf::Gguf;

/// The vocabularies of `models/` whose tokenizers kvik supports.
const PUBLISHED: [&str; 14] = [
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
];

pub(super) type Case = (String, Vec<Token>);

/// The texts and tokens stored with a vocabulary.
pub(super) fn cases(vocabulary: &Path) -> Vec<Case> {
    let read = |extension| {
        let path = vocabulary.with_extension(format!("gguf.{extension}"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let (texts, tokens) = (read("inp"), read("out"));
    let ids = |line: &str| line.split_whitespace().map(|id| id.parse().unwrap()).collect();
    // The published texts end with a separator.
    let texts = texts.split("\n__ggml_vocab_test__\n").map(str::to_owned);
    let cases: Vec<Case> = texts.zip(tokens.lines().map(ids)).collect();
    assert_eq!(cases.len(), tokens.lines().count(), "{}", vocabulary.display());
    cases
}

/// A row of the table: the number of texts, of equal ones, and the first difference or the refusal.
fn compare(vocabulary: &Path) -> (usize, usize, String) {
    let cases = cases(vocabulary);
    let tokenizer = match Tokenizer::from_gguf(&Gguf::open(vocabulary).unwrap()) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return (cases.len(), 0, error.to_string()),
    };
    let encode = |text: &str| tokenizer.encode(text, false, false);
    let wrong: Vec<_> = cases.iter().filter(|(text, expect)| encode(text) != *expect).collect();
    let first = wrong
        .first()
        .map_or(String::new(), |(text, expect)| format!("{text:?}: {:?}, not {expect:?}", encode(text)));
    (cases.len(), cases.len() - wrong.len(), first)
}

fn vocabularies(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let with_texts = |path: &PathBuf| {
        path.extension().is_some_and(|e| e == "gguf") && path.with_extension("gguf.inp").exists()
    };
    let mut found: Vec<PathBuf> = entries.filter(with_texts).collect();
    found.sort();
    found
}

/// Compares every vocabulary of the directory except those of models that kvik does not support (BERT).
#[test]
fn tokens_of_published_vocabularies_are_those_of_llama_cpp() {
    let Some(directory) = std::env::var_os("KVIK_VOCABULARIES").map(PathBuf::from) else {
        return skip("KVIK_VOCABULARIES is not set");
    };
    let found = vocabularies(&directory);
    let name = |path: &Path| path.file_stem().unwrap().to_string_lossy().replace("ggml-vocab-", "");
    let mut failed = Vec::new();
    for path in found.iter().filter(|path| !name(path).contains("bert")) {
        let (texts, equal, why) = compare(path);
        println!("{:<24} {texts:>6} texts {equal:>6} equal  {why:.400}", name(path));
        assert!(texts > 40, "{}", name(path));
        if equal < texts {
            failed.push(name(path));
        }
    }
    let missing: Vec<&&str> =
        PUBLISHED.iter().filter(|&&n| !found.iter().any(|path| name(path) == n)).collect();
    assert!(failed.is_empty() && missing.is_empty(), "not equal: {failed:?}; not found: {missing:?}");
}
