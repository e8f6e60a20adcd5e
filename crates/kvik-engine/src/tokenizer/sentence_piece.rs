//! SentencePiece-style BPE, as Llama 1, Llama 2 and TinyLlama use it: the best-scored neighbouring
//! pair is merged first, and characters outside the vocabulary fall back to bytes.
//!
//! The file has scores, no merges. Every way to cut a token into two symbols is therefore a merge
//! whose rank follows from the token's score; equal scores have equal rank and go left to right.
//! `BPE` of the `tokenizers` crate cannot state this: its merges have one rank each, which orders
//! equal scores by position in the table, and it demands that both parts are tokens.

use kvik_cache::Token;
use rustc_hash::FxHashMap;

use super::TokenizerError;
use super::merge::{Merger, Ranks};
use super::vocab::Vocab;

/// Symbols from here on are characters that are no token: `CHAR | code point`.
const CHAR: u32 = 1 << 31;

const SPACE: char = '▁';

/// The merges of a vocabulary and what becomes of single characters.
#[derive(Debug)]
pub(super) struct SentencePiece {
    ranks: Ranks,
    chars: FxHashMap<char, Token>,
    bytes: [Option<Token>; 256],
    unknown: Option<Token>,
    prefix: SpacePrefix,
    /// No token has a space after another character: no merge crosses such a place, so text can be
    /// cut there without changing the result.
    cut_at_spaces: bool,
}

/// When a space is put before a stretch of plain text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpacePrefix {
    Never,
    Always,
    /// Unless the text begins with one.
    UnlessSpace,
    /// Only at the very beginning, unless the text begins with one.
    FirstUnlessSpace,
}

impl SentencePiece {
    /// From scores, one per token (GGUF).
    pub(super) fn from_scores(
        vocab: &Vocab,
        scores: &[f32],
        unknown: Option<Token>,
        prefix: SpacePrefix,
    ) -> SentencePiece {
        SentencePiece::new(vocab, ranks_of_scores(vocab, scores), unknown, prefix)
    }

    /// From merges, the earliest first (tokenizer.json).
    pub(super) fn from_merges<'a>(
        vocab: &Vocab,
        merges: impl Iterator<Item = (&'a str, &'a str)>,
        unknown: Option<Token>,
        prefix: SpacePrefix,
    ) -> Result<SentencePiece, TokenizerError> {
        Ok(SentencePiece::new(vocab, Ranks::from_merges(vocab, merges)?, unknown, prefix))
    }

    fn new(vocab: &Vocab, ranks: Ranks, unknown: Option<Token>, prefix: SpacePrefix) -> SentencePiece {
        let tokens = || (0..vocab.len() as Token).filter_map(|id| Some((id, vocab.text(id)?)));
        let chars = tokens().filter_map(|(_, text)| Some((single_char(text)?, vocab.id(text)?)));
        SentencePiece {
            chars: chars.collect(),
            ranks,
            bytes: std::array::from_fn(|byte| vocab.id(&format!("<0x{byte:02X}>"))),
            unknown,
            prefix,
            cut_at_spaces: tokens().all(|(_, text)| !has_space_inside(text)),
        }
    }

    /// Appends the tokens of `text`, in which there are no special tokens; `first` when nothing
    /// stands before it.
    pub(super) fn encode(&self, text: &str, first: bool, out: &mut Vec<Token>) {
        let mut merger = Merger::default();
        let mut symbols = Vec::new();
        let mut last = None;
        for c in self.prefix(text, first).into_iter().chain(text.chars()) {
            let c = if c == ' ' { SPACE } else { c };
            if self.cut_at_spaces && c == SPACE && last.is_some_and(|last| last != SPACE) {
                self.flush(&mut symbols, &mut merger, out);
            }
            symbols.push(self.symbol(c));
            last = Some(c);
        }
        self.flush(&mut symbols, &mut merger, out);
    }

    fn prefix(&self, text: &str, first: bool) -> Option<char> {
        let spaced = text.starts_with([' ', SPACE]);
        let wanted = match self.prefix {
            SpacePrefix::Never => false,
            SpacePrefix::Always => true,
            SpacePrefix::UnlessSpace => !spaced,
            SpacePrefix::FirstUnlessSpace => first && !spaced,
        };
        wanted.then_some(SPACE)
    }

    fn symbol(&self, c: char) -> u32 {
        self.chars.get(&c).copied().unwrap_or(CHAR | u32::from(c))
    }

    fn flush(&self, symbols: &mut Vec<u32>, merger: &mut Merger, out: &mut Vec<Token>) {
        merger.merge(symbols, &self.ranks);
        for symbol in symbols.drain(..) {
            match symbol.checked_sub(CHAR).and_then(char::from_u32) {
                None => out.push(symbol),
                Some(c) => {
                    let mut buffer = [0; 4];
                    let bytes = c.encode_utf8(&mut buffer).bytes();
                    out.extend(bytes.filter_map(|byte| self.bytes[usize::from(byte)].or(self.unknown)));
                }
            }
        }
    }
}

fn single_char(text: &str) -> Option<char> {
    let mut chars = text.chars();
    chars.next().filter(|_| chars.next().is_none())
}

fn has_space_inside(text: &str) -> bool {
    let pairs = text.chars().zip(text.chars().skip(1));
    pairs.into_iter().any(|(a, b)| a != SPACE && b == SPACE)
}

/// One rank per distinct score, the best first.
fn rank_of_tokens(scores: &[f32]) -> Vec<u32> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let mut ranks = vec![0; scores.len()];
    for pair in order.windows(2) {
        let step = u32::from(scores[pair[0]] != scores[pair[1]]);
        ranks[pair[1]] = ranks[pair[0]] + step;
    }
    ranks
}

fn ranks_of_scores(vocab: &Vocab, scores: &[f32]) -> Ranks {
    let token_ranks = rank_of_tokens(scores);
    let mut map = FxHashMap::default();
    for id in 0..vocab.len() as Token {
        let Some(text) = vocab.text(id).filter(|text| vocab.id(text) == Some(id)) else { continue };
        for (cut, _) in text.char_indices().skip(1) {
            let parts = (part(vocab, &text[..cut]), part(vocab, &text[cut..]));
            if let (Some(left), Some(right)) = parts {
                map.insert((left, right), (token_ranks[id as usize], id));
            }
        }
    }
    Ranks::new(map)
}

/// The symbol that a part of a token is while merging: a token, or a single character.
fn part(vocab: &Vocab, text: &str) -> Option<u32> {
    vocab.id(text).or_else(|| single_char(text).map(|c| CHAR | u32::from(c)))
}
