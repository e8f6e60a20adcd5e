//! Finds special tokens in text.

use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use kvik_cache::Token;
use rustc_hash::FxHashMap;

use super::TokenizerError;
use super::vocab::{Kind, Vocab};

/// Special tokens of a vocabulary.
///
/// The leftmost match wins, and of several the longest. (llama.cpp takes the longest match anywhere first;
/// the two differ only if special tokens overlap in the text, which no known vocabulary allows.)
#[derive(Debug)]
pub(super) struct Specials {
    /// Tokens that match anywhere.
    anywhere: Matchers,
    /// Tokens that match after a space, in the text between those.
    after_space: Option<Matchers>,
}

/// Two sets: with and without the control tokens.
#[derive(Debug)]
struct Matchers {
    all: Matcher,
    user_defined: Matcher,
}

/// A stretch of text: plain, or one special token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part<'t> {
    Plain(&'t str),
    /// Plain text after a token that took its leading space: no space is added before it.
    Rest(&'t str),
    Special(Token),
}

/// The control tokens that are parsed in a text.
#[derive(Debug, Clone, Copy)]
pub(super) enum Controls<'a> {
    /// All.
    Parsed,
    /// None: their names are plain text.
    Text,
    /// All except those that overlap one of these ranges, which are ascending.
    ParsedOutside(&'a [Range<usize>]),
}

/// A special token in a text.
#[derive(Debug)]
struct Found {
    span: Range<usize>,
    token: Token,
    strip: Strip,
    control: bool,
}

/// The adjacent white space that a special token strips.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Strip {
    /// All white space before it.
    pub(super) left: bool,
    /// All white space after it.
    pub(super) right: bool,
    /// A space before it, without which it only matches at the beginning of the text. The text of such a token is
    /// normalized, with the space that a normalizer adds (`normalized` in `tokenizer.json`).
    pub(super) after_space: bool,
}

#[derive(Debug)]
struct Matcher {
    automaton: AhoCorasick,
    tokens: Vec<Token>,
    strips: Vec<Strip>,
    /// Whether the token is a control token, not a user-defined one, which any text may contain.
    controls: Vec<bool>,
    /// Whether text may be cut after the token: no longer token could have matched instead, and the
    /// token does not strip the following text.
    safe_cut: Vec<bool>,
}

impl Specials {
    pub(super) fn new(vocab: &Vocab, strips: &FxHashMap<Token, Strip>) -> Result<Specials, TokenizerError> {
        let after_space = |token: Token| strips.get(&token).is_some_and(|strip| strip.after_space);
        let found_so = strips.values().any(|strip| strip.after_space);
        Ok(Specials {
            anywhere: Matchers::new(vocab, strips, |token| !after_space(token))?,
            after_space: found_so.then(|| Matchers::new(vocab, strips, after_space)).transpose()?,
        })
    }

    /// Calls `part` with every part of `text`, in order; plain parts are never empty, except before a token at
    /// the beginning of the text that takes the added space.
    pub(super) fn split<'t>(&self, text: &'t str, controls: Controls<'_>, part: &mut dyn FnMut(Part<'t>)) {
        let (mut at, mut searched) = (0, 0);
        while let Some(found) = self.anywhere.next(text, searched..text.len(), controls) {
            searched = found.span.end;
            // White space that the previous token stripped may reach up to this one.
            let from = at.min(found.span.start);
            let before = &text[from..found.span.start];
            let before = if found.strip.left { before.trim_end() } else { before };
            self.split_rest(text, from..from + before.len(), controls, part);
            part(Part::Special(found.token));
            at = found.span.end;
            if found.strip.right {
                at = text.len() - text[at..].trim_start().len();
            }
        }
        self.split_rest(text, at..text.len(), controls, part);
    }

    /// Splits a range without tokens that match anywhere. As in the `tokenizers` library, spaces are not white
    /// space for tokens that take one: they are letters there.
    fn split_rest<'t>(
        &self,
        text: &'t str,
        range: Range<usize>,
        controls: Controls<'_>,
        part: &mut dyn FnMut(Part<'t>),
    ) {
        let Some(matchers) = self.after_space.as_ref().filter(|_| !range.is_empty()) else {
            if !range.is_empty() {
                part(Part::Plain(&text[range]));
            }
            return;
        };
        let is_stripped = |c: char| c.is_whitespace() && c != ' ';
        let (mut at, mut searched, mut begun) = (range.start, range.start, false);
        let plain = |text: &'t str, begun: bool, part: &mut dyn FnMut(Part<'t>)| match begun {
            false => part(Part::Plain(text)),
            true if text.is_empty() => {}
            true => part(Part::Rest(text)),
        };
        while let Some(found) = matchers.next(text, searched..range.end, controls) {
            let start = found.span.start;
            let begins = start == range.start;
            let before = if begins { Some("") } else { text[at..start].strip_suffix([' ', '▁']) };
            let Some(before) = before else {
                searched = start + text[start..].chars().next().map_or(1, char::len_utf8);
                continue;
            };
            let before = if found.strip.left { before.trim_end_matches(is_stripped) } else { before };
            // A token at the beginning takes the space that is added there.
            plain(before, begun || begins, part);
            part(Part::Special(found.token));
            (at, begun) = (found.span.end, true);
            if found.strip.right {
                at = range.end - text[at..range.end].trim_start_matches(is_stripped).len();
            }
            searched = at;
        }
        if at < range.end {
            plain(&text[at..range.end], begun, part);
        }
    }

    /// Whether the name of a control token overlaps one of these ranges of the text.
    pub(super) fn controls_in(&self, text: &str, inputs: &[Range<usize>]) -> bool {
        let matchers = [Some(&self.anywhere), self.after_space.as_ref()];
        matchers.into_iter().flatten().any(|matchers| matchers.all.controls_in(text, inputs))
    }

    /// Offsets where `text` may be cut if control tokens are parsed: the tokens of the parts are the tokens of the
    /// whole, regardless of the following text.
    pub(super) fn cuts(&self, text: &str) -> impl Iterator<Item = usize> {
        let all = &self.anywhere.all;
        let matches = all.automaton.find_iter(text);
        matches.filter(|found| all.safe_cut[found.pattern().as_usize()]).map(|found| found.end())
    }
}

impl Matchers {
    fn new(
        vocab: &Vocab,
        strips: &FxHashMap<Token, Strip>,
        belongs: impl Fn(Token) -> bool,
    ) -> Result<Matchers, TokenizerError> {
        Ok(Matchers {
            all: Matcher::new(vocab, &[Kind::Control, Kind::UserDefined, Kind::Unknown], strips, &belongs)?,
            user_defined: Matcher::new(vocab, &[Kind::UserDefined], strips, &belongs)?,
        })
    }

    /// The first special token of a range, the longest of several.
    fn next(&self, text: &str, range: Range<usize>, controls: Controls<'_>) -> Option<Found> {
        let inputs = match controls {
            Controls::Parsed => return self.all.find(text, range),
            Controls::Text => return self.user_defined.find(text, range),
            Controls::ParsedOutside(inputs) => inputs,
        };
        let mut from = range.start;
        loop {
            let found = self.all.find(text, from..range.end)?;
            let (start, end) = (found.span.start, found.span.end);
            if !found.control || !overlaps(inputs, &found.span) {
                return Some(found);
            }
            // A shorter user-defined token may begin at the same position.
            if let Some(found) = self.user_defined.find(text, start..end).filter(|f| f.span.start == start) {
                return Some(found);
            }
            from = start + text[start..].chars().next().map_or(1, char::len_utf8);
        }
    }
}

impl Matcher {
    fn new(
        vocab: &Vocab,
        kinds: &[Kind],
        strips: &FxHashMap<Token, Strip>,
        belongs: &dyn Fn(Token) -> bool,
    ) -> Result<Matcher, TokenizerError> {
        let mut tokens = vocab.of_kinds(kinds);
        tokens.retain(|&token| belongs(token));
        // Keeps one of several tokens with the same text.
        tokens.retain(|&token| {
            vocab.text(token).is_some_and(|text| !text.is_empty() && vocab.special_id(text) == Some(token))
        });
        let texts: Vec<&str> = tokens.iter().filter_map(|&token| vocab.text(token)).collect();
        check_size(&texts)?;
        let strips: Vec<Strip> =
            tokens.iter().map(|token| strips.get(token).copied().unwrap_or_default()).collect();
        let mut safe_cut = occurs_only_at_ends(&texts)?;
        safe_cut.iter_mut().zip(&strips).for_each(|(safe, strip)| *safe &= !strip.right);
        let controls = tokens.iter().map(|&token| vocab.kind(token) != Some(Kind::UserDefined)).collect();
        let automaton = build(&texts, MatchKind::LeftmostLongest)?;
        Ok(Matcher { automaton, tokens, strips, controls, safe_cut })
    }

    /// Whether the name of a control token overlaps one of these ranges of the text.
    fn controls_in(&self, text: &str, inputs: &[Range<usize>]) -> bool {
        let matches = self.automaton.find_iter(text);
        let mut controls = matches.filter(|found| self.controls[found.pattern().as_usize()]);
        controls.any(|found| overlaps(inputs, &found.range()))
    }

    fn find(&self, text: &str, range: Range<usize>) -> Option<Found> {
        let found = self.automaton.find(Input::new(text).range(range))?;
        let pattern = found.pattern().as_usize();
        Some(Found {
            span: found.range(),
            token: self.tokens[pattern],
            strip: self.strips[pattern],
            control: self.controls[pattern],
        })
    }
}

/// Whether a span overlaps one of the ranges, which are ascending.
fn overlaps(ranges: &[Range<usize>], span: &Range<usize>) -> bool {
    let next = ranges.partition_point(|range| range.end <= span.start);
    ranges.get(next).is_some_and(|range| range.start < span.end)
}

/// Maximum bytes of a special token; those of published models have less than a hundred.
const TOKEN_BYTES_MAX: usize = 512;

/// Maximum depth of special tokens that end with one another, times their bytes: the automaton lists, for
/// every byte of every token, all tokens that end there. Published models stay below two million.
const NESTED_BYTES_MAX: usize = 1 << 24;

/// Bounds the memory of the automaton and the time to build it.
fn check_size(texts: &[&str]) -> Result<(), TokenizerError> {
    let bytes: usize = texts.iter().map(|text| text.len()).sum();
    let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
    if longest > TOKEN_BYTES_MAX {
        let reason = format!("one has {longest} bytes, above the limit of {TOKEN_BYTES_MAX}");
        return Err(TokenizerError::TooManySpecials { reason });
    }
    let nested = bytes.saturating_mul(deepest_nesting(texts));
    match nested <= NESTED_BYTES_MAX {
        true => Ok(()),
        false => {
            let reason = format!(
                "{bytes} bytes of tokens that end with one another count {nested}, above the limit of {NESTED_BYTES_MAX}"
            );
            Err(TokenizerError::TooManySpecials { reason })
        }
    }
}

/// Length of the longest chain of tokens each of which ends with the previous one.
fn deepest_nesting(texts: &[&str]) -> usize {
    let mut sorted = texts.to_vec();
    sorted.sort_unstable_by(|a, b| a.bytes().rev().cmp(b.bytes().rev()));
    let (mut open, mut deepest): (Vec<&str>, usize) = (Vec::new(), 0);
    for text in sorted {
        while open.last().is_some_and(|last| !text.ends_with(last)) {
            open.pop();
        }
        open.push(text);
        deepest = deepest.max(open.len());
    }
    deepest
}

/// For each text, whether all its occurrences in other texts are at their ends.
fn occurs_only_at_ends(texts: &[&str]) -> Result<Vec<bool>, TokenizerError> {
    let automaton = build(texts, MatchKind::Standard)?;
    let mut result = vec![true; texts.len()];
    for text in texts {
        for found in automaton.find_overlapping_iter(text).filter(|found| found.end() < text.len()) {
            result[found.pattern().as_usize()] = false;
        }
    }
    Ok(result)
}

fn build(texts: &[&str], kind: MatchKind) -> Result<AhoCorasick, TokenizerError> {
    AhoCorasick::builder()
        .match_kind(kind)
        .build(texts)
        .map_err(|error| TokenizerError::TooManySpecials { reason: error.to_string() })
}
