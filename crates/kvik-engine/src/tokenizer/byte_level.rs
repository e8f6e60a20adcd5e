//! Byte-level BPE, as GPT-2, Llama 3 and Qwen use it: words of bytes, merged by the file's ranks.

use kvik_cache::Token;
use rustc_hash::FxHashMap;

use super::TokenizerError;
use super::merge::{Merger, Pairs};
use super::split::Splitter;
use super::vocab::{Vocab, char_of_byte};

/// Symbols from here on are bytes without a token; they never merge and are left out.
const NO_TOKEN: u32 = 1 << 31;

/// The merges of a vocabulary and how text is cut before merging.
#[derive(Debug)]
pub(super) struct ByteLevel {
    splitter: Splitter,
    byte_symbols: [u32; 256],
    ranks: Ranks,
    /// Whole words by their bytes, where a word that is a token is not merged (Llama 3).
    whole_words: Option<FxHashMap<Box<[u8]>, Token>>,
}

/// `(left, right)` to `(rank, merged)`.
#[derive(Debug)]
struct Ranks(FxHashMap<(u32, u32), (u32, u32)>);

impl Pairs for Ranks {
    fn merge(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        self.0.get(&(left, right)).copied()
    }
}

impl ByteLevel {
    /// `merges` are pairs of token texts, the earliest first.
    pub(super) fn new<'a>(
        vocab: &Vocab,
        merges: impl Iterator<Item = (&'a str, &'a str)>,
        splitter: Splitter,
        ignore_merges: bool,
    ) -> Result<ByteLevel, TokenizerError> {
        let byte_symbols = std::array::from_fn(|byte| {
            let text = char_of_byte(byte as u8);
            vocab.id(text.encode_utf8(&mut [0; 4])).unwrap_or(NO_TOKEN | byte as u32)
        });
        Ok(ByteLevel {
            splitter,
            byte_symbols,
            ranks: ranks(vocab, merges)?,
            whole_words: ignore_merges.then(|| whole_words(vocab)),
        })
    }

    /// Appends the tokens of `text`, in which there are no special tokens.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<Token>) {
        let mut merger = Merger::default();
        let mut symbols = Vec::new();
        self.splitter.split(text, &mut |word| {
            if let Some(&token) = self.whole_words.as_ref().and_then(|words| words.get(word.as_bytes())) {
                out.push(token);
                return;
            }
            symbols.clear();
            symbols.extend(word.bytes().map(|byte| self.byte_symbols[usize::from(byte)]));
            merger.merge(&mut symbols, &self.ranks);
            out.extend(symbols.iter().filter(|&&symbol| symbol < NO_TOKEN));
        });
    }
}

/// Merges whose parts or result are not in the vocabulary can never be used and are left out.
fn ranks<'a>(
    vocab: &Vocab,
    merges: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<Ranks, TokenizerError> {
    let mut map = FxHashMap::default();
    let mut merged_text = String::new();
    for (rank, (left, right)) in merges.enumerate() {
        let rank = u32::try_from(rank).map_err(|_| TokenizerError::TooManyMerges)?;
        merged_text.clear();
        merged_text.push_str(left);
        merged_text.push_str(right);
        let ids = (vocab.id(left), vocab.id(right), vocab.id(&merged_text));
        if let (Some(left), Some(right), Some(merged)) = ids {
            map.entry((left, right)).or_insert((rank, merged));
        }
    }
    Ok(Ranks(map))
}

fn whole_words(vocab: &Vocab) -> FxHashMap<Box<[u8]>, Token> {
    let tokens = (0..vocab.len() as Token).filter(|&token| vocab.is_normal(token));
    tokens.map(|token| (vocab.bytes(token).into(), token)).collect()
}
