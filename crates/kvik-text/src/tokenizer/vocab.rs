//! The vocabulary: text, kind and raw bytes of every token.

use kvik_cache::Token;
use rustc_hash::FxHashMap;

use super::{TokenizerError, fill};

/// The type of a token. Of several tokens with one text the largest counts, so that no control token is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Never used.
    Unused,
    /// A piece of text.
    Normal,
    /// A single byte, such as `<0x0A>`.
    Byte,
    /// Matched as a whole in any text.
    UserDefined,
    /// Represents text that the vocabulary cannot express.
    Unknown,
    /// A control token such as `<|im_end|>`; matched only if special tokens are parsed.
    Control,
}

impl Kind {
    /// As numbered in `tokenizer.ggml.token_type`.
    pub(super) fn from_gguf(id: i64) -> Kind {
        match id {
            1 => Kind::Normal,
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            6 => Kind::Byte,
            _ => Kind::Unused,
        }
    }
}

/// The encoding of bytes in a normal token's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2's alphabet: every char is one byte.
    ByteLevel,
    /// SentencePiece: plain text with `▁` for a space.
    SentencePiece,
}

/// Tokens, by id and by text.
#[derive(Debug)]
pub(super) struct Vocab {
    texts: Vec<Box<str>>,
    kinds: Vec<Kind>,
    ids: FxHashMap<Box<str>, Token>,
    /// Where several tokens have one text: by the id of the text, the token that the file declares special.
    special: FxHashMap<Token, Token>,
    /// Raw bytes of all tokens, one after the other; token `i` is `starts[i]..starts[i + 1]`.
    bytes: Vec<u8>,
    starts: Vec<u32>,
    longest_bytes: usize,
}

impl Vocab {
    /// `texts` and `kinds` have one entry per token.
    pub(super) fn new(
        texts: Vec<Box<str>>,
        mut kinds: Vec<Kind>,
        spelling: Spelling,
    ) -> Result<Vocab, TokenizerError> {
        check_size(&texts)?;
        let (ids, repeated) = index(&texts);
        let id_of = |token: Token| ids[&texts[token as usize]] as usize;
        let mut special = FxHashMap::default();
        for &token in &repeated {
            let (id, kind) = (id_of(token), kinds[token as usize]);
            if kind > kinds[id] {
                kinds[id] = kind;
                special.insert(id as Token, token);
            }
        }
        mark_known_controls(&ids, &mut kinds);
        repeated.iter().for_each(|&token| kinds[token as usize] = kinds[id_of(token)]);
        let (bytes, starts) = (Vec::new(), vec![0]);
        let mut vocab = Vocab { texts, kinds, ids, special, bytes, starts, longest_bytes: 1 };
        vocab.spell_all(spelling);
        Ok(vocab)
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(super) fn text(&self, token: Token) -> Option<&str> {
        self.texts.get(token as usize).map(|text| &**text)
    }

    pub(super) fn kind(&self, token: Token) -> Option<Kind> {
        self.kinds.get(token as usize).copied()
    }

    pub(super) fn id(&self, text: &str) -> Option<Token> {
        self.ids.get(text).copied()
    }

    /// The token that a special text is parsed as.
    pub(super) fn special_id(&self, text: &str) -> Option<Token> {
        let id = self.id(text)?;
        Some(self.special.get(&id).copied().unwrap_or(id))
    }

    /// Tokens whose texts end an answer, regardless of the metadata.
    pub(super) fn ends(&self) -> impl Iterator<Item = Token> {
        ends(&self.ids)
    }

    /// Whether the token is a plain piece of text.
    pub(super) fn is_normal(&self, token: Token) -> bool {
        self.kind(token) == Some(Kind::Normal)
    }

    /// Raw bytes of a token; empty for an id outside the vocabulary.
    pub(super) fn bytes(&self, token: Token) -> &[u8] {
        let i = token as usize;
        match (self.starts.get(i), self.starts.get(i + 1)) {
            (Some(&start), Some(&end)) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }

    /// Length of the longest token in bytes, at least 1.
    pub(super) fn longest_bytes(&self) -> usize {
        self.longest_bytes
    }

    /// All tokens of the given kinds.
    pub(super) fn of_kinds(&self, kinds: &[Kind]) -> Vec<Token> {
        let tokens = self.kinds.iter().enumerate();
        tokens.filter(|(_, kind)| kinds.contains(kind)).map(|(id, _)| id as Token).collect()
    }

    fn spell_all(&mut self, spelling: Spelling) {
        for (text, kind) in self.texts.iter().zip(&self.kinds) {
            let start = self.bytes.len();
            spell(text, *kind, spelling, &mut self.bytes);
            self.longest_bytes = self.longest_bytes.max(self.bytes.len() - start);
            self.starts.push(self.bytes.len() as u32);
        }
    }
}

/// Maximum bytes of a vocabulary's text; offsets are 32 bits.
const TEXT_BYTES_MAX: usize = 1 << 30;

fn check_size(texts: &[Box<str>]) -> Result<(), TokenizerError> {
    let bytes: usize = texts.iter().map(|text| text.len()).sum();
    match texts.len() {
        0 => Err(TokenizerError::Empty),
        _ if bytes > TEXT_BYTES_MAX => Err(TokenizerError::TooLarge { bytes, limit: TEXT_BYTES_MAX }),
        _ => Ok(()),
    }
}

/// Ids by text, and the ids whose text has another id: its last one counts, as in llama.cpp. Empty texts are never
/// looked up.
fn index(texts: &[Box<str>]) -> (FxHashMap<Box<str>, Token>, Vec<Token>) {
    let mut ids = FxHashMap::with_capacity_and_hasher(texts.len(), Default::default());
    let mut repeated = Vec::new();
    for (id, text) in texts.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
        repeated.extend(ids.insert(text.clone(), id as Token));
    }
    (ids, repeated)
}

/// Marks known control tokens regardless of their type in the file: converters often mark them as text.
fn mark_known_controls(ids: &FxHashMap<Box<str>, Token>, kinds: &mut [Kind]) {
    let fill = fill::names().filter_map(|text| ids.get(text).copied());
    for id in ends(ids).chain(fill) {
        kinds[id as usize] = Kind::Control;
    }
    if let Some(id) = html_tag(ids).filter(|_| ids.contains_key(GEMMA_4)) {
        kinds[id as usize] = Kind::Normal;
    }
}

/// Tokens whose texts end an answer.
fn ends(ids: &FxHashMap<Box<str>, Token>) -> impl Iterator<Item = Token> {
    let tag = html_tag(ids);
    let named = END_OF_GENERATION.into_iter().filter_map(move |text| ids.get(text).copied());
    named.filter(move |&id| Some(id) != tag)
}

/// `</s>` in a vocabulary of Gemma, where it is an HTML tag among others and other tokens end an answer.
fn html_tag(ids: &FxHashMap<Box<str>, Token>) -> Option<Token> {
    let is_gemma = [GEMMA_4, "</blockquote>"].iter().any(|&text| ids.contains_key(text));
    ids.get("</s>").copied().filter(|_| is_gemma)
}

/// A token of Gemma 4 alone, whose files declare `</s>` a control token.
const GEMMA_4: &str = "<|tool_response>";

/// Texts of tokens that end an answer, regardless of the metadata (the list of llama.cpp).
const END_OF_GENERATION: [&str; 33] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|fim_pad|>",
    "<fim-pad>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
];

/// Appends the raw bytes of a token.
fn spell(text: &str, kind: Kind, spelling: Spelling, out: &mut Vec<u8>) {
    match (kind, spelling) {
        (Kind::Unused, _) => {}
        (Kind::Control | Kind::UserDefined | Kind::Unknown, _) => out.extend(text.as_bytes()),
        (Kind::Byte, _) => match byte_of(text) {
            Some(byte) => out.push(byte),
            None => out.extend(text.as_bytes()),
        },
        (Kind::Normal, Spelling::SentencePiece) => out.extend(text.replace('▁', " ").as_bytes()),
        (Kind::Normal, Spelling::ByteLevel) => {
            for c in text.chars() {
                match byte_of_char(c) {
                    Some(byte) => out.push(byte),
                    None => out.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
        }
    }
}

/// The byte of a text such as `<0x0A>`.
fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The char of a byte in GPT-2's alphabet: printable Latin-1 is itself, the 68 other
/// bytes follow from U+0100 in order.
pub(super) fn char_of_byte(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        0..=0x20 => shifted(u32::from(byte)),
        0x7F..=0xA0 => shifted(u32::from(byte) - 0x7F + 33),
        0xAD => shifted(67),
    }
}

fn shifted(rank: u32) -> char {
    char::from_u32(0x100 + rank).expect("U+0100 to U+0143 are characters")
}

fn byte_of_char(c: char) -> Option<u8> {
    match u32::from(c) {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(u32::from(c)).ok(),
        rank @ 0x100..=0x120 => u8::try_from(rank - 0x100).ok(),
        rank @ 0x121..=0x142 => u8::try_from(rank - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpt2_alphabet_is_a_bijection() {
        for byte in 0..=255 {
            assert_eq!(byte_of_char(char_of_byte(byte)), Some(byte));
        }
        assert_eq!(char_of_byte(b' '), 'Ġ');
        assert_eq!(char_of_byte(b'\n'), 'Ċ');
        assert_eq!(byte_of_char('▁'), None);
    }

    #[test]
    fn byte_tokens_are_read() {
        assert_eq!(byte_of("<0x0A>"), Some(10));
        assert_eq!(byte_of("<0xFF>"), Some(255));
        assert_eq!(byte_of("<0xFFF>"), None);
        assert_eq!(byte_of("<0x+1>"), None);
    }
}
