//! Byte-level BPE, as in GPT-2, Llama 3 and Qwen: words of bytes, merged by the file's ranks.

use kvik_cache::Token;
use rustc_hash::FxHashMap;

use super::TokenizerError;
use super::merge::{Merger, Ranks};
use super::split::Splitter;
use super::vocab::{Vocab, char_of_byte};

/// Symbols from here on are bytes without a token; they never merge and yield no token.
const NO_TOKEN: u32 = 1 << 31;

/// The merges of a vocabulary and its pre-tokenizer.
#[derive(Debug)]
pub(super) struct ByteLevel {
    splitter: Splitter,
    byte_symbols: [u32; 256],
    ranks: Ranks,
    /// Tokens by the bytes of whole words, if such a word is not merged (Llama 3).
    whole_words: Option<FxHashMap<Box<[u8]>, Token>>,
}

impl ByteLevel {
    /// `merges` are pairs of token texts in order of rank.
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
            ranks: Ranks::from_merges(vocab, merges)?,
            whole_words: ignore_merges.then(|| whole_words(vocab)),
        })
    }

    /// Appends the tokens of `text`, which contains no special tokens.
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

fn whole_words(vocab: &Vocab) -> FxHashMap<Box<[u8]>, Token> {
    let tokens = (0..vocab.len() as Token).filter(|&token| vocab.is_normal(token));
    tokens.map(|token| (vocab.bytes(token).into(), token)).collect()
}
