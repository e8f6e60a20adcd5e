//! Finds special tokens in text.

use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use kvik_cache::Token;
use rustc_hash::FxHashMap;

use super::TokenizerError;
use super::vocab::{Kind, Vocab};

/// Special tokens of a vocabulary, in two sets: with and without the control tokens.
///
/// The leftmost match wins, and of several the longest. (llama.cpp takes the longest match anywhere first;
/// the two differ only if special tokens overlap in the text, which no known vocabulary allows.)
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

/// Which control tokens are parsed in a text.
#[derive(Debug, Clone, Copy)]
pub(super) enum Controls<'a> {
    /// All.
    Parsed,
    /// None: their names are plain text.
    Text,
    /// Those that do not overlap one of these ranges, which are ascending.
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

/// Whether a special token strips the white space next to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Strip {
    pub(super) left: bool,
    pub(super) right: bool,
}

#[derive(Debug)]
struct Matcher {
    automaton: AhoCorasick,
    tokens: Vec<Token>,
    strips: Vec<Strip>,
    /// Whether it is a control token and not a user-defined one, which any text may contain.
    controls: Vec<bool>,
    /// Whether text may be cut after the token: no longer token could have matched instead, and the
    /// token does not strip the following text.
    safe_cut: Vec<bool>,
}

impl Specials {
    pub(super) fn new(vocab: &Vocab, strips: &FxHashMap<Token, Strip>) -> Result<Specials, TokenizerError> {
        Ok(Specials {
            all: Matcher::new(vocab, &[Kind::Control, Kind::UserDefined, Kind::Unknown], strips)?,
            user_defined: Matcher::new(vocab, &[Kind::UserDefined], strips)?,
        })
    }

    /// Calls `part` with every part of `text`, in order; plain parts are never empty.
    pub(super) fn split<'t>(&self, text: &'t str, controls: Controls<'_>, part: &mut dyn FnMut(Part<'t>)) {
        let (mut at, mut searched) = (0, 0);
        while let Some(found) = self.next(text, searched, controls) {
            searched = found.span.end;
            // White space that the previous token stripped may reach up to this one.
            let mut before = &text[at.min(found.span.start)..found.span.start];
            if found.strip.left {
                before = before.trim_end();
            }
            if !before.is_empty() {
                part(Part::Plain(before));
            }
            part(Part::Special(found.token));
            at = found.span.end;
            if found.strip.right {
                at = text.len() - text[at..].trim_start().len();
            }
        }
        if at < text.len() {
            part(Part::Plain(&text[at..]));
        }
    }

    /// The first special token from `from` on, the longest of several.
    fn next(&self, text: &str, mut from: usize, controls: Controls<'_>) -> Option<Found> {
        let inputs = match controls {
            Controls::Parsed => return self.all.find(text, from..text.len()),
            Controls::Text => return self.user_defined.find(text, from..text.len()),
            Controls::ParsedOutside(inputs) => inputs,
        };
        loop {
            let found = self.all.find(text, from..text.len())?;
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

    /// Whether the name of a control token overlaps one of these ranges of the text.
    pub(super) fn controls_in(&self, text: &str, inputs: &[Range<usize>]) -> bool {
        let matches = self.all.automaton.find_iter(text);
        let mut controls = matches.filter(|found| self.all.controls[found.pattern().as_usize()]);
        controls.any(|found| overlaps(inputs, &found.range()))
    }

    /// Offsets where `text` may be cut if control tokens are parsed: the tokens of the parts are the tokens
    /// of the whole, whatever follows.
    pub(super) fn cuts(&self, text: &str) -> impl Iterator<Item = usize> {
        let matches = self.all.automaton.find_iter(text);
        matches.filter(|found| self.all.safe_cut[found.pattern().as_usize()]).map(|found| found.end())
    }
}

impl Matcher {
    fn new(
        vocab: &Vocab,
        kinds: &[Kind],
        strips: &FxHashMap<Token, Strip>,
    ) -> Result<Matcher, TokenizerError> {
        let mut tokens = vocab.of_kinds(kinds);
        // Among tokens with the same text, keeps the one that the vocabulary's lookup returns.
        tokens.retain(|&token| {
            vocab.text(token).is_some_and(|text| !text.is_empty() && vocab.id(text) == Some(token))
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
