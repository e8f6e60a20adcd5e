//! Pre-tokenizers: split a text into words before merging. Byte-level vocabularies only.
//!
//! The published patterns end in `\s+(?!\S)|\s+`. The look-ahead needs a backtracking engine, which
//! fails on long runs, so it is done by hand: a run of white space that is followed by other text
//! leaves its last char to that text. Everything else is a plain regular expression and matches
//! in linear time.

use std::ops::Range;

use regex_automata::meta::Regex;

use super::TokenizerError;

/// Splits text into words, in stages: each stage splits the words of the previous one.
#[derive(Debug)]
pub(super) struct Splitter {
    stages: Vec<Stage>,
}

/// A pattern. Its matches become words, and so do the texts between them.
#[derive(Debug)]
struct Stage {
    regex: Regex,
    /// Whether the last pattern of `regex` is the `\s+` that replaces `\s+(?!\S)|\s+`.
    look_ahead: bool,
}

/// Maximum stages; the published pre-tokenizers have up to six.
const STAGES_MAX: usize = 32;

impl Splitter {
    /// A pre-tokenizer from its stages' patterns.
    pub(super) fn from_patterns(patterns: &[&str]) -> Result<Splitter, TokenizerError> {
        if patterns.len() > STAGES_MAX {
            let step = format!("{} patterns to cut text by, above the limit of {STAGES_MAX}", patterns.len());
            return Err(TokenizerError::UnknownStep { step });
        }
        Ok(Splitter { stages: patterns.iter().map(|pattern| Stage::new(pattern)).collect::<Result<_, _>>()? })
    }

    /// Calls `word` with every word of `text`, in order; concatenated they are the text.
    pub(super) fn split<'t>(&self, text: &'t str, word: &mut dyn FnMut(&'t str)) {
        split_stages(&self.stages, text, word);
    }
}

fn split_stages<'t>(stages: &[Stage], text: &'t str, word: &mut dyn FnMut(&'t str)) {
    match stages.split_first() {
        None => word(text),
        Some((first, rest)) => first.split(text, &mut |piece| split_stages(rest, piece, word)),
    }
}

impl Stage {
    fn new(pattern: &str) -> Result<Stage, TokenizerError> {
        let plain = pattern.strip_suffix(r"|\s+(?!\S)|\s+").or(pattern.strip_suffix(r"|\s+(?!\S)"));
        let regex = match plain {
            Some(plain) => Regex::new_many(&[plain, r"\s+"]),
            None => Regex::new(pattern),
        };
        let regex = regex.map_err(|error| TokenizerError::BadPattern {
            pattern: pattern.into(),
            reason: error.syntax_error().map_or_else(|| error.to_string(), ToString::to_string),
        })?;
        Ok(Stage { regex, look_ahead: plain.is_some() })
    }

    fn split<'t>(&self, text: &'t str, word: &mut dyn FnMut(&'t str)) {
        let mut at = 0;
        while let Some(found) = self.find(text, at) {
            if found.start > at {
                word(&text[at..found.start]);
            }
            at = found.end;
            word(&text[found]);
        }
        if at < text.len() {
            word(&text[at..]);
        }
    }

    /// The next non-empty match at or after `at`.
    fn find(&self, text: &str, at: usize) -> Option<Range<usize>> {
        let input = regex_automata::Input::new(text).range(at..);
        let found = self.regex.search(&input)?;
        let mut range = found.range();
        if range.is_empty() {
            return None;
        }
        if self.look_ahead && found.pattern().as_usize() == 1 && range.end < text.len() {
            let last = text[range.clone()].chars().next_back().map_or(0, char::len_utf8);
            if range.len() > last {
                range.end -= last;
            }
        }
        Some(range)
    }
}
