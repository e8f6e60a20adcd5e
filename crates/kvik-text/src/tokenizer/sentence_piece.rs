//! SentencePiece-style BPE, as in Llama 1, Llama 2 and TinyLlama: merges the best-scored adjacent pair
//! first, and encodes characters outside the vocabulary as bytes.
//!
//! The file has scores instead of merges. Every split of a token into two symbols is therefore a merge
//! whose rank follows from the token's score; equal scores have equal rank and merge left to right.
//! `BPE` of the `tokenizers` crate cannot express this: its merges have one rank each, which orders
//! equal scores by position in the table, and it requires both parts to be tokens.

use kvik_cache::Token;
use rustc_hash::FxHashMap;

use super::TokenizerError;
use super::merge::{Merger, Ranks};
use super::vocab::Vocab;

/// Symbols from here on are characters without a token: `CHAR | code point`.
const CHAR: u32 = 1 << 31;

const SPACE: char = '▁';

/// The merges of a vocabulary and the symbols of single characters.
#[derive(Debug)]
pub(super) struct SentencePiece {
    ranks: Ranks,
    chars: FxHashMap<char, Token>,
    bytes: [Option<Token>; 256],
    unknown: Option<Token>,
    /// Whether consecutive characters without a token or bytes become one unknown token, as in the
    /// sentencepiece library.
    fuses_unknown: bool,
    prefix: SpacePrefix,
    /// No token has a space after another character: no merge crosses that boundary, so text can be
    /// cut there without changing the result.
    cut_at_spaces: bool,
    /// Tokens of newlines only, by their number, if text is cut around runs of newlines.
    newlines: Option<FxHashMap<usize, Token>>,
}

/// The condition on which a space is added before a stretch of plain text.
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
    /// A tokenizer from scores, one per token (GGUF).
    pub(super) fn from_scores(
        vocab: &Vocab,
        scores: &[f32],
        unknown: Option<Token>,
        prefix: SpacePrefix,
    ) -> SentencePiece {
        SentencePiece::new(vocab, ranks_of_scores(vocab, scores), unknown, prefix)
    }

    /// A tokenizer from merges in order of rank (tokenizer.json).
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
            fuses_unknown: true,
            prefix,
            cut_at_spaces: tokens().all(|(_, text)| !has_space_inside(text)),
            newlines: None,
        }
    }

    /// Sets whether consecutive unknown characters become one unknown token instead of one each.
    pub(super) fn fusing_unknown(self, fuses_unknown: bool) -> SentencePiece {
        SentencePiece { fuses_unknown, ..self }
    }

    /// Prevents merges across line boundaries, and keeps a run of newlines that is a token whole (Gemma 4).
    pub(super) fn by_lines(mut self, vocab: &Vocab) -> SentencePiece {
        let tokens = (0..vocab.len() as Token).filter_map(|id| Some((vocab.text(id)?, id)));
        let newlines = tokens.filter(|(text, _)| text.bytes().all(|byte| byte == b'\n'));
        self.newlines = Some(newlines.map(|(text, id)| (text.len(), id)).collect());
        self
    }

    /// Appends the tokens of `text`, which contains no special tokens; `first` if it is at the beginning of
    /// the whole text.
    pub(super) fn encode(&self, text: &str, first: bool, out: &mut Vec<Token>) {
        let Some(newlines) = &self.newlines else {
            return self.encode_run(text, self.prefix(text, first), out);
        };
        let mut rest = text;
        while !rest.is_empty() {
            let is_newlines = rest.starts_with('\n');
            let end = rest.find(|c| (c == '\n') != is_newlines).unwrap_or(rest.len());
            let (run, after) = rest.split_at(end);
            match newlines.get(&end).filter(|_| is_newlines) {
                Some(&token) => out.push(token),
                None => self.encode_run(run, self.prefix(run, first), out),
            }
            rest = after;
        }
    }

    /// Appends the tokens of a text without adding a space before it.
    pub(super) fn encode_rest(&self, text: &str, out: &mut Vec<Token>) {
        self.encode_run(text, None, out);
    }

    /// Appends the tokens of `prefix` and `text`, merged as one.
    fn encode_run(&self, text: &str, prefix: Option<char>, out: &mut Vec<Token>) {
        let mut merger = Merger::default();
        let mut symbols = Vec::new();
        let (mut last, mut after_unknown) = (None, false);
        for c in prefix.into_iter().chain(text.chars()) {
            let c = if c == ' ' { SPACE } else { c };
            if self.cut_at_spaces && c == SPACE && last.is_some_and(|last| last != SPACE) {
                self.flush(&mut symbols, &mut merger, &mut after_unknown, out);
            }
            symbols.push(self.symbol(c));
            last = Some(c);
        }
        self.flush(&mut symbols, &mut merger, &mut after_unknown, out);
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

    /// Merges the symbols and appends their tokens; `after_unknown` if those before end with an unknown character.
    fn flush(
        &self,
        symbols: &mut Vec<u32>,
        merger: &mut Merger,
        after_unknown: &mut bool,
        out: &mut Vec<Token>,
    ) {
        merger.merge(symbols, &self.ranks);
        for symbol in symbols.drain(..) {
            let Some(c) = symbol.checked_sub(CHAR).and_then(char::from_u32) else {
                out.push(symbol);
                *after_unknown = false;
                continue;
            };
            let mut buffer = [0; 4];
            let bytes = c.encode_utf8(&mut buffer).bytes().map(|byte| self.bytes[usize::from(byte)]);
            match bytes.collect::<Option<Vec<Token>>>() {
                Some(bytes) => {
                    out.extend(bytes);
                    *after_unknown = false;
                }
                None => {
                    let is_one = self.fuses_unknown && *after_unknown;
                    out.extend(self.unknown.filter(|_| !is_one));
                    *after_unknown = true;
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

/// Each token's rank; distinct scores have distinct ranks, the best first.
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

/// Every split of a token into two symbols is a merge of the token's rank.
fn ranks_of_scores(vocab: &Vocab, scores: &[f32]) -> Ranks {
    let token_ranks = rank_of_tokens(scores);
    let mut map = FxHashMap::default();
    for_each_cut(vocab, &mut |left, right, id| {
        map.insert((left, right), (token_ranks[id as usize], id));
    });
    Ranks::new(map)
}

/// Calls `cut(left, right, token)` for every split of every token into two symbols; returns the number of
/// parts it visited, which is at most four for every byte of the vocabulary.
///
/// Looking up every prefix and every suffix of a token would take time quadratic in its length: hours for
/// a long token.
fn for_each_cut(vocab: &Vocab, cut: &mut dyn FnMut(u32, u32, Token)) -> usize {
    let ids: Vec<Token> = (0..vocab.len() as Token)
        .filter(|&id| vocab.text(id).is_some_and(|t| vocab.id(t) == Some(id)))
        .collect();
    let mut prefixes = Parts::prefixes(vocab, ids.clone());
    let mut suffixes = Parts::suffixes(vocab, ids.clone());
    let mut visited = 0;
    for id in ids {
        let Some(text) = vocab.text(id) else { continue };
        prefixes.find(id, text.chars().next());
        suffixes.find(id, text.chars().next_back());
        visited += prefixes.found.len() + suffixes.found.len();
        // Pairs the longest prefixes with the shortest suffixes.
        let (mut lefts, mut rights) =
            (prefixes.found.iter().peekable(), suffixes.found.iter().rev().peekable());
        while let (Some((left_len, left)), Some((right_len, right))) = (lefts.peek(), rights.peek()) {
            let len = left_len + right_len;
            if len == text.len() {
                cut(*left, *right, id);
            }
            _ = (len >= text.len()).then(|| lefts.next());
            _ = (len <= text.len()).then(|| rights.next());
        }
    }
    visited
}

/// The symbols that are prefixes of tokens, or those that are suffixes.
struct Parts<'v> {
    vocab: &'v Vocab,
    /// For each token the longest other token that is a prefix, or a suffix, of it.
    longest: Vec<Option<Token>>,
    /// Lengths in bytes, and symbols, longest first.
    found: Vec<(usize, u32)>,
}

impl<'v> Parts<'v> {
    fn prefixes(vocab: &'v Vocab, mut ids: Vec<Token>) -> Parts<'v> {
        ids.sort_unstable_by_key(|&id| vocab.text(id));
        Parts::new(vocab, &ids, |text, part| text.starts_with(part))
    }

    fn suffixes(vocab: &'v Vocab, mut ids: Vec<Token>) -> Parts<'v> {
        let reversed = |id: Token| vocab.text(id).unwrap_or_default().bytes().rev();
        ids.sort_unstable_by(|&a, &b| reversed(a).cmp(reversed(b)));
        Parts::new(vocab, &ids, |text, part| text.ends_with(part))
    }

    /// In `sorted`, a token precedes the tokens that contain it as a part, and parts of parts nest.
    fn new(vocab: &'v Vocab, sorted: &[Token], is_part: impl Fn(&str, &str) -> bool) -> Parts<'v> {
        let text = |id: Token| vocab.text(id).unwrap_or_default();
        let mut longest = vec![None; vocab.len()];
        let mut open: Vec<Token> = Vec::new();
        for &id in sorted {
            while open.last().is_some_and(|&last| !is_part(text(id), text(last))) {
                open.pop();
            }
            longest[id as usize] = open.last().copied();
            open.push(id);
        }
        Parts { vocab, longest, found: Vec::new() }
    }

    /// Finds the parts of a token. `outermost`, its first or last character, is a part even if it is not a
    /// token.
    fn find(&mut self, id: Token, outermost: Option<char>) {
        self.found.clear();
        let mut at = self.longest[id as usize];
        while let Some(part) = at {
            self.found.push((self.vocab.text(part).map_or(0, str::len), part));
            at = self.longest[part as usize];
        }
        let mut buffer = [0; 4];
        if let Some(c) = outermost.filter(|c| self.vocab.id(c.encode_utf8(&mut buffer)).is_none()) {
            self.found.push((c.len_utf8(), CHAR | u32::from(c)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tokenizer::vocab::{Kind, Spelling};

    fn vocab(texts: Vec<String>) -> Vocab {
        let kinds = vec![Kind::Normal; texts.len()];
        Vocab::new(texts.into_iter().map(Box::from).collect(), kinds, Spelling::SentencePiece).unwrap()
    }

    fn cuts(vocab: &Vocab) -> Vec<(u32, u32, Token)> {
        let mut cuts = Vec::new();
        for_each_cut(vocab, &mut |left, right, id| cuts.push((left, right, id)));
        cuts.sort_unstable();
        cuts
    }

    /// The naive reference: the definition.
    fn naive_cuts(vocab: &Vocab) -> Vec<(u32, u32, Token)> {
        let single = |text: &str| single_char(text).map(|c| CHAR | u32::from(c));
        let part = |text: &str| vocab.id(text).or_else(|| single(text));
        let mut cuts = Vec::new();
        for id in 0..vocab.len() as Token {
            let text = vocab.text(id).filter(|text| vocab.id(text) == Some(id)).unwrap_or_default();
            for (at, _) in text.char_indices().skip(1) {
                if let (Some(left), Some(right)) = (part(&text[..at]), part(&text[at..])) {
                    cuts.push((left, right, id));
                }
            }
        }
        cuts.sort_unstable();
        cuts
    }

    proptest! {
        #[test]
        fn every_cut_is_found(texts in prop::collection::vec("[abé]{0,6}|[a▁]{1,9}", 1..60)) {
            let vocab = vocab(texts);
            prop_assert_eq!(cuts(&vocab), naive_cuts(&vocab));
        }
    }

    #[test]
    fn parts_of_hostile_vocabularies_are_visited_a_few_times() {
        let check = |texts: Vec<String>| {
            let bytes: usize = texts.iter().map(String::len).sum();
            let vocab = vocab(texts);
            let visited = for_each_cut(&vocab, &mut |_, _, _| {});
            assert!(visited <= 4 * bytes, "{visited} parts of {bytes} bytes");
        };
        // Looking up every cut of this one would hash 10^15 bytes.
        check(vec!["a".into(), "b".repeat(32 << 20)]);
        check(vec!["a".repeat(16 << 20), "a".into(), "a".repeat((16 << 20) - 1)]);
        check((1..1500).map(|len| "a".repeat(len)).collect());
        check((1..1500).map(|len| format!("{}b{}", "a".repeat(len), "a".repeat(1500 - len))).collect());
    }
}
