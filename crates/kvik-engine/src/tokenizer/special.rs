//! Finding special tokens in text.

use aho_corasick::{AhoCorasick, MatchKind};
use kvik_cache::Token;

use super::TokenizerError;
use super::vocab::{Kind, Vocab};

/// Special tokens of a vocabulary, in two sets: with and without the control tokens.
///
/// The leftmost match wins, and of those the longest. (llama.cpp takes the longest anywhere first;
/// the two differ only where special tokens overlap in the text, which no known vocabulary allows.)
#[derive(Debug)]
pub(super) struct Specials {
    all: Matcher,
    user_defined: Matcher,
}

/// A stretch of text: plain, or one special token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part<'t> {
    Plain(&'t str),
    Special(Token),
}

#[derive(Debug)]
struct Matcher {
    automaton: AhoCorasick,
    tokens: Vec<Token>,
}

impl Specials {
    pub(super) fn new(vocab: &Vocab) -> Result<Specials, TokenizerError> {
        Ok(Specials {
            all: Matcher::new(vocab, &[Kind::Control, Kind::UserDefined, Kind::Unknown])?,
            user_defined: Matcher::new(vocab, &[Kind::UserDefined])?,
        })
    }

    /// Calls `part` with every part of `text`, in order; plain parts are never empty.
    pub(super) fn split<'t>(&self, text: &'t str, parse_control: bool, part: &mut dyn FnMut(Part<'t>)) {
        let matcher = if parse_control { &self.all } else { &self.user_defined };
        let mut at = 0;
        for found in matcher.automaton.find_iter(text) {
            if found.start() > at {
                part(Part::Plain(&text[at..found.start()]));
            }
            part(Part::Special(matcher.tokens[found.pattern().as_usize()]));
            at = found.end();
        }
        if at < text.len() {
            part(Part::Plain(&text[at..]));
        }
    }
}

impl Matcher {
    fn new(vocab: &Vocab, kinds: &[Kind]) -> Result<Matcher, TokenizerError> {
        let mut tokens = vocab.of_kinds(kinds);
        // Of several tokens with one text, the vocabulary's lookup decides.
        tokens.retain(|&token| vocab.text(token).is_some_and(|text| vocab.id(text) == Some(token)));
        let texts = tokens.iter().filter_map(|&token| vocab.text(token));
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts)
            .map_err(|error| TokenizerError::TooManySpecials { reason: error.to_string() })?;
        Ok(Matcher { automaton, tokens })
    }
}
