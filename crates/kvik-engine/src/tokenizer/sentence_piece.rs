//! SentencePiece-style BPE, as Llama 1, Llama 2 and TinyLlama use it: the best-scored neighbouring
//! pair is merged first, and characters outside the vocabulary fall back to bytes.
//!
//! The file has scores, no merges. Every way to cut a token into two symbols is therefore a merge
//! whose rank follows from the token's score; equal scores have equal rank and go left to right.
//! `BPE` of the `tokenizers` crate cannot state this: its merges have one rank each, which orders
//! equal scores by position in the table, and it demands that both parts are tokens.

use kvik_cache::Token;
use rustc_hash::FxHashMap;

use super::merge::{Merger, Pairs};
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
    add_space_prefix: bool,
    /// No token has a space after another character: no merge crosses such a place, so text can be
    /// cut there without changing the result.
    cut_at_spaces: bool,
}

#[derive(Debug)]
struct Ranks(FxHashMap<(u32, u32), (u32, u32)>);

impl Pairs for Ranks {
    fn merge(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        self.0.get(&(left, right)).copied()
    }
}

impl SentencePiece {
    /// `scores` has one entry per token.
    pub(super) fn new(
        vocab: &Vocab,
        scores: &[f32],
        unknown: Option<Token>,
        add_space_prefix: bool,
    ) -> SentencePiece {
        let tokens = || (0..vocab.len() as Token).filter_map(|id| Some((id, vocab.text(id)?)));
        let chars = tokens().filter_map(|(_, text)| single_char(text)).filter_map(|c| {
            let mut buffer = [0; 4];
            Some((c, vocab.id(c.encode_utf8(&mut buffer))?))
        });
        SentencePiece {
            chars: chars.collect(),
            ranks: ranks(vocab, scores),
            bytes: std::array::from_fn(|byte| vocab.id(&format!("<0x{byte:02X}>"))),
            unknown,
            add_space_prefix,
            cut_at_spaces: tokens().all(|(_, text)| !has_space_inside(text)),
        }
    }

    /// Appends the tokens of `text`, in which there are no special tokens.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<Token>) {
        let prefix = self.add_space_prefix.then_some(' ');
        let mut merger = Merger::default();
        let mut symbols = Vec::new();
        let mut last = None;
        for c in prefix.into_iter().chain(text.chars()) {
            let c = if c == ' ' { SPACE } else { c };
            if self.cut_at_spaces && c == SPACE && last.is_some_and(|last| last != SPACE) {
                self.flush(&mut symbols, &mut merger, out);
            }
            symbols.push(self.symbol(c));
            last = Some(c);
        }
        self.flush(&mut symbols, &mut merger, out);
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

fn ranks(vocab: &Vocab, scores: &[f32]) -> Ranks {
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
    Ranks(map)
}

/// The symbol that a part of a token is while merging: a token, or a single character.
fn part(vocab: &Vocab, text: &str) -> Option<u32> {
    vocab.id(text).or_else(|| single_char(text).map(|c| CHAR | u32::from(c)))
}
