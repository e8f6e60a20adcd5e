//! A tokenizer from the metadata of a GGUF file.

use kvik_cache::Token;
use rustc_hash::FxHashMap;

use super::byte_level::ByteLevel;
use super::pre_tokenizer::PreTokenizer;
use super::sentence_piece::{SentencePiece, SpacePrefix};
use super::special::Strip;
use super::vocab::{Kind, Spelling, Vocab};
use super::{BoundaryTokens, FillTokens, Pieces, Tokenizer, TokenizerError};
use crate::files::gguf::{Gguf, GgufError};

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const MERGES: &str = "tokenizer.ggml.merges";

impl Tokenizer {
    /// Builds the tokenizer that a GGUF file describes.
    pub fn from_gguf(file: &Gguf) -> Result<Tokenizer, TokenizerError> {
        match file.text(MODEL)?.ok_or_else(|| missing(MODEL))? {
            "gpt2" => byte_level(file),
            "gemma4" => sentence_piece_of_merges(file),
            "llama" => sentence_piece(file),
            other => Err(TokenizerError::UnknownModel { found: other.into(), known: "gpt2, gemma4, llama" }),
        }
    }
}

fn byte_level(file: &Gguf) -> Result<Tokenizer, TokenizerError> {
    let vocab = vocab(file, Spelling::ByteLevel)?;
    let pre = PreTokenizer::named(file.text("tokenizer.ggml.pre")?.unwrap_or("default"))?;
    let merges = file.strings(MERGES)?.ok_or_else(|| missing(MERGES))?;
    let pieces = ByteLevel::new(&vocab, pairs(&merges), pre.splitter()?, pre.ignore_merges)?;
    let ends = boundary_tokens(file, &vocab, pre.add_bos)?;
    Tokenizer::assemble(vocab, Pieces::ByteLevel(Box::new(pieces)), ends, &FxHashMap::default(), false)
}

/// The two parts of every merge. The first character of a part can be a space itself.
fn pairs<'m>(merges: &'m [&str]) -> impl Iterator<Item = (&'m str, &'m str)> {
    merges.iter().filter_map(|merge| {
        let second = merge.char_indices().nth(1)?.0;
        let space = second + merge[second..].find(' ')?;
        Some((&merge[..space], &merge[space + 1..]))
    })
}

/// Gemma 4: SentencePiece with listed merges. Its texts always begin with the begin-of-text token, because early
/// files wrongly state that they do not.
fn sentence_piece_of_merges(file: &Gguf) -> Result<Tokenizer, TokenizerError> {
    let vocab = vocab(file, Spelling::SentencePiece)?;
    let merges = file.strings(MERGES)?.ok_or_else(|| missing(MERGES))?;
    let pieces = SentencePiece::from_merges(&vocab, pairs(&merges), None, SpacePrefix::Never)?;
    let pieces = pieces.by_lines(&vocab);
    let mut ends = boundary_tokens(file, &vocab, true)?;
    ends.prefix = ends.bos.into_iter().collect();
    Tokenizer::assemble(vocab, Pieces::SentencePiece(Box::new(pieces)), ends, &FxHashMap::default(), false)
}

fn sentence_piece(file: &Gguf) -> Result<Tokenizer, TokenizerError> {
    const SCORES: &str = "tokenizer.ggml.scores";
    let vocab = vocab(file, Spelling::SentencePiece)?;
    let scores = file.floats(SCORES)?.ok_or_else(|| missing(SCORES))?;
    check_len(SCORES, scores.len(), vocab.len())?;
    let named = special_id(file, "unknown", &vocab)?;
    let unknown = named.or_else(|| vocab.of_kinds(&[Kind::Unknown]).first().copied());
    let prefix = match file.boolean("tokenizer.ggml.add_space_prefix")? {
        Some(false) => SpacePrefix::Never,
        _ => SpacePrefix::Always,
    };
    let pieces = SentencePiece::from_scores(&vocab, &scores[..vocab.len()], unknown, prefix);
    let ends = boundary_tokens(file, &vocab, true)?;
    let strips = strips(file, &vocab)?;
    Tokenizer::assemble(vocab, Pieces::SentencePiece(Box::new(pieces)), ends, &strips, false)
}

/// Special tokens that strip the white space after them: those of Phi-3, recognised by the model's name because
/// its files do not state it.
fn strips(file: &Gguf, vocab: &Vocab) -> Result<FxHashMap<Token, Strip>, GgufError> {
    let name = file.text("general.name")?.unwrap_or_default().to_ascii_lowercase();
    if !name.contains("phi-3") && !name.contains("phi3") {
        return Ok(FxHashMap::default());
    }
    let keeps = ["<unk>", "<s>", "<|endoftext|>"].map(|text| vocab.id(text));
    let special = vocab.of_kinds(&[Kind::Control, Kind::UserDefined, Kind::Unknown]);
    let stripping = special.into_iter().filter(|&id| !keeps.contains(&Some(id)));
    Ok(stripping.map(|id| (id, Strip { right: true, ..Strip::default() })).collect())
}

fn vocab(file: &Gguf, spelling: Spelling) -> Result<Vocab, TokenizerError> {
    const TYPES: &str = "tokenizer.ggml.token_type";
    let texts: Vec<Box<str>> =
        file.strings(TOKENS)?.ok_or_else(|| missing(TOKENS))?.into_iter().map(Box::from).collect();
    let kinds = match file.integers(TYPES)? {
        None => vec![Kind::Normal; texts.len()],
        Some(types) => {
            check_len(TYPES, types.len(), texts.len())?;
            types[..texts.len()].iter().map(|&id| Kind::from_gguf(id)).collect()
        }
    };
    Vocab::new(texts, kinds, spelling)
}

fn boundary_tokens(
    file: &Gguf,
    vocab: &Vocab,
    add_bos_default: bool,
) -> Result<BoundaryTokens, TokenizerError> {
    let more = ["eot", "eom"].map(|name| special_id(file, name, vocab));
    let [eot, eom] = more;
    let bos = special_id(file, "bos", vocab)?;
    let eos = special_id(file, "eos", vocab)?;
    let add_bos = file.boolean("tokenizer.ggml.add_bos_token")?.unwrap_or(add_bos_default);
    let add_eos = file.boolean("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
    Ok(BoundaryTokens {
        bos,
        eos,
        more_eog: [eot?, eom?].into_iter().flatten().collect(),
        prefix: bos.filter(|_| add_bos).into_iter().collect(),
        suffix: eos.filter(|_| add_eos).into_iter().collect(),
        fill: fill_tokens(file, vocab)?,
    })
}

/// The tokens for filling in the middle, under their current or former names.
fn fill_tokens(file: &Gguf, vocab: &Vocab) -> Result<FillTokens, GgufError> {
    let either = |new: &str, old: &str| Ok(special_id(file, new, vocab)?.or(special_id(file, old, vocab)?));
    Ok(FillTokens {
        prefix: either("fim_pre", "prefix")?,
        suffix: either("fim_suf", "suffix")?,
        middle: either("fim_mid", "middle")?,
        repository: special_id(file, "fim_rep", vocab)?,
        file: special_id(file, "fim_sep", vocab)?,
    })
}

/// A special token's id. Ids outside the vocabulary mean "none": converters write -1 for it.
fn special_id(file: &Gguf, name: &str, vocab: &Vocab) -> Result<Option<Token>, GgufError> {
    let id = file.integer(&format!("tokenizer.ggml.{name}_token_id"))?;
    Ok(id.filter(|&id| id < vocab.len() as u64).map(|id| id as Token))
}

fn check_len(key: &str, found: usize, needed: usize) -> Result<(), GgufError> {
    if found >= needed {
        return Ok(());
    }
    Err(GgufError::BadValue {
        key: key.into(),
        found: format!("{found} entries"),
        expected: format!("one for each of the {needed} tokens"),
    })
}

fn missing(key: &str) -> GgufError {
    GgufError::MissingKey { key: key.into() }
}
