//! Tokens for filling in the middle of a text.

use kvik_cache::Token;

use super::Tokenizer;

/// The tokens around the parts of a text whose middle is to be generated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FillTokens {
    /// Before the text that precedes the middle.
    pub prefix: Option<Token>,
    /// Before the text that follows the middle.
    pub suffix: Option<Token>,
    /// Before the middle.
    pub middle: Option<Token>,
    /// Before the name of a repository.
    pub repository: Option<Token>,
    /// Before the name of a file.
    pub file: Option<Token>,
}

/// Names of these tokens for vocabularies whose files do not identify them, as in llama.cpp.
const PREFIX: [&str; 8] = [
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const SUFFIX: [&str; 8] = [
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const MIDDLE: [&str; 8] = [
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const REPOSITORY: [&str; 5] = ["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FILE: [&str; 2] = ["<|file_sep|>", "<file_sep>"];

/// All names.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PREFIX.into_iter().chain(SUFFIX).chain(MIDDLE).chain(REPOSITORY).chain(FILE)
}

impl FillTokens {
    /// Looks missing tokens up by their names.
    pub(super) fn or_named(self, token: impl Fn(&str) -> Option<Token>) -> FillTokens {
        let named = |names: &[&str]| names.iter().find_map(|name| token(name));
        FillTokens {
            prefix: self.prefix.or_else(|| named(&PREFIX)),
            suffix: self.suffix.or_else(|| named(&SUFFIX)),
            middle: self.middle.or_else(|| named(&MIDDLE)),
            repository: self.repository.or_else(|| named(&REPOSITORY)),
            file: self.file.or_else(|| named(&FILE)),
        }
    }
}

impl Tokenizer {
    /// The model's tokens for filling in the middle; `None` for those that it lacks.
    pub fn fill_tokens(&self) -> FillTokens {
        self.fill
    }
}
