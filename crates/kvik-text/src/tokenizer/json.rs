//! A tokenizer from Hugging Face's `tokenizer.json`.
//!
//! The pipelines of Llama, Qwen and similar models are recognised and built from this module's parts,
//! which are linear in the text and cannot fail. Any other pipeline is refused by name: one that is only
//! nearly right would silently give wrong tokens.

use kvik_cache::Token;
use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde_json::Value;

use super::byte_level::ByteLevel;
use super::pre_tokenizer::GPT2;
use super::sentence_piece::{SentencePiece, SpacePrefix};
use super::special::Strip;
use super::split::Splitter;
use super::vocab::{Kind, Spelling, Vocab};
use super::{BoundaryTokens, FillTokens, Pieces, Tokenizer, TokenizerError, fill, oniguruma};
use crate::files::hf::TokenizerHints;

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: Token,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    normalized: bool,
}

#[derive(Deserialize)]
struct Model {
    vocab: FxHashMap<String, Token>,
    merges: Vec<Merge>,
    unk_token: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    /// Whether consecutive unknown characters become one unknown token.
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    ignore_merges: bool,
    dropout: Option<f32>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Joined(String),
    Pair([String; 2]),
}

impl Merge {
    fn parts(&self) -> Option<(&str, &str)> {
        match self {
            Merge::Joined(text) => text.split_once(' '),
            Merge::Pair([left, right]) => Some((left, right)),
        }
    }
}

/// Limit on ids; every id up to the largest takes memory.
const ID_MAX: Token = 1 << 22;

impl Tokenizer {
    /// Builds the tokenizer that a `tokenizer.json` describes.
    pub fn from_json(bytes: &[u8], hints: &TokenizerHints) -> Result<Tokenizer, TokenizerError> {
        check_model_type(bytes)?;
        let file: File = serde_json::from_slice(bytes).map_err(bad_json)?;
        check_model(&file.model)?;
        let pipeline = Pipeline::read(&file)?;
        let spelling = match pipeline.byte_level {
            true => Spelling::ByteLevel,
            false => Spelling::SentencePiece,
        };
        let added = added(&file, hints.rows);
        let vocab = vocab(&file, &added, hints.rows, spelling)?;
        let ends = boundary_tokens(&file, hints, &vocab)?;
        let strips = strips(&added, pipeline.prefix)?;
        let merges = file.model.merges.iter().filter_map(Merge::parts);
        let pieces = match pipeline.byte_level {
            true => {
                let patterns: Vec<&str> = pipeline.patterns.iter().map(String::as_str).collect();
                let splitter = Splitter::from_patterns(&patterns)?;
                let pieces = ByteLevel::new(&vocab, merges, splitter, file.model.ignore_merges)?;
                Pieces::ByteLevel(Box::new(pieces))
            }
            false => {
                let unknown = file.model.unk_token.as_deref().and_then(|text| vocab.id(text));
                let pieces = SentencePiece::from_merges(&vocab, merges, unknown, pipeline.prefix)?;
                let pieces = pieces.fusing_unknown(file.model.fuse_unk);
                Pieces::SentencePiece(Box::new(pieces))
            }
        };
        Tokenizer::assemble(vocab, pieces, ends, &strips, pipeline.nfc)
    }
}

/// Checks the type before the rest is parsed, because vocabularies of other types have other shapes.
fn check_model_type(bytes: &[u8]) -> Result<(), TokenizerError> {
    #[derive(Deserialize)]
    struct File {
        model: Model,
    }
    #[derive(Deserialize)]
    struct Model {
        r#type: Option<String>,
    }
    let file: File = serde_json::from_slice(bytes).map_err(bad_json)?;
    match file.model.r#type.as_deref() {
        None | Some("BPE") => Ok(()),
        Some(other) => Err(TokenizerError::UnknownModel { found: other.into(), known: "BPE" }),
    }
}

fn check_model(model: &Model) -> Result<(), TokenizerError> {
    let empty = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
    if !empty(&model.continuing_subword_prefix) || !empty(&model.end_of_word_suffix) {
        return Err(unknown_step("BPE with prefixes or suffixes of words"));
    }
    match model.dropout {
        Some(dropout) if dropout != 0.0 => Err(unknown_step("BPE with dropout")),
        _ => Ok(()),
    }
}

/// The processing of text before merging.
struct Pipeline {
    byte_level: bool,
    patterns: Vec<String>,
    prefix: SpacePrefix,
    nfc: bool,
}

impl Pipeline {
    fn read(file: &File) -> Result<Pipeline, TokenizerError> {
        let mut pipeline =
            Pipeline { byte_level: false, patterns: Vec::new(), prefix: SpacePrefix::Never, nfc: false };
        let mut replaces_spaces = false;
        for step in steps(file.normalizer.as_ref(), "normalizers") {
            pipeline.normalizer(step, &mut replaces_spaces)?;
        }
        for step in steps(file.pre_tokenizer.as_ref(), "pretokenizers") {
            pipeline.pre_tokenizer(step, &mut replaces_spaces)?;
        }
        match (pipeline.byte_level, replaces_spaces) {
            (true, false) => Ok(pipeline),
            (false, true) if pipeline.patterns.is_empty() && file.model.byte_fallback => Ok(pipeline),
            _ => Err(unknown_step("neither byte-level BPE nor SentencePiece BPE with byte fallback")),
        }
    }

    fn normalizer(&mut self, step: &Value, replaces_spaces: &mut bool) -> Result<(), TokenizerError> {
        match kind(step) {
            "NFC" => self.nfc = true,
            "Prepend" if step["prepend"] == "▁" => self.prefix = SpacePrefix::Always,
            "Replace" if step["pattern"]["String"] == " " && step["content"] == "▁" => {
                *replaces_spaces = true
            }
            other => return Err(unknown_step(&format!("normalizer {other}"))),
        }
        Ok(())
    }

    fn pre_tokenizer(&mut self, step: &Value, replaces_spaces: &mut bool) -> Result<(), TokenizerError> {
        match kind(step) {
            // Gemma's files split at spaces, but the normalizer leaves none.
            "Split" if *replaces_spaces && step["pattern"]["String"] == " " => {}
            "Split" => self.patterns.push(split_pattern(step)?),
            "Digits" => {
                let single = step["individual_digits"] == true;
                self.patterns.push(if single { r"\p{N}" } else { r"\p{N}+" }.into());
            }
            "ByteLevel" if step["add_prefix_space"] != true => {
                self.byte_level = true;
                if step["use_regex"] != false {
                    self.patterns.push(GPT2.into());
                }
            }
            "Metaspace" if step["replacement"] == "▁" => {
                *replaces_spaces = true;
                self.prefix = match step["prepend_scheme"].as_str() {
                    Some("never") => SpacePrefix::Never,
                    Some("first") => SpacePrefix::FirstUnlessSpace,
                    Some("always") => SpacePrefix::UnlessSpace,
                    _ if step["add_prefix_space"] == false => SpacePrefix::Never,
                    _ => SpacePrefix::UnlessSpace,
                };
                // With `split` merges cannot cross words, which gives another result.
                if step["split"] != false {
                    return Err(unknown_step("pre-tokenizer Metaspace with split"));
                }
            }
            other => return Err(unknown_step(&format!("pre-tokenizer {other} with these settings"))),
        }
        Ok(())
    }
}

/// The pattern of a `Split` that keeps all text.
fn split_pattern(step: &Value) -> Result<String, TokenizerError> {
    let keeps_all = match (step["behavior"].as_str(), step["invert"].as_bool().unwrap_or(false)) {
        (Some("Isolated"), _) => true,
        // Keeps the matches; the published patterns match all text.
        (Some("Removed"), true) => true,
        _ => false,
    };
    let pattern = &step["pattern"];
    match (keeps_all, pattern["Regex"].as_str(), pattern["String"].as_str()) {
        (true, Some(regex), _) => oniguruma::translated(regex),
        (true, _, Some(text)) => Ok(escape(text)),
        _ => Err(unknown_step("pre-tokenizer Split with these settings")),
    }
}

/// A pattern that matches exactly this text.
fn escape(text: &str) -> String {
    text.chars().map(|c| format!(r"\x{{{:X}}}", u32::from(c))).collect()
}

/// The steps of a component, with sequences flattened.
fn steps<'v>(component: Option<&'v Value>, list: &str) -> Vec<&'v Value> {
    match component {
        None | Some(Value::Null) => Vec::new(),
        Some(value) => match (kind(value), value[list].as_array()) {
            ("Sequence", Some(inner)) => inner.iter().flat_map(|step| steps(Some(step), list)).collect(),
            _ => vec![value],
        },
    }
}

fn kind(step: &Value) -> &str {
    step["type"].as_str().unwrap_or("without a type")
}

/// The added tokens with their ids. As in the `tokenizers` library, a text that is a token already keeps its id,
/// whatever the file says. Tokens that the model has no rows for are left out: families share one file, and a model
/// without images has none of their tokens.
fn added(file: &File, rows: Option<usize>) -> Vec<(Token, &Added)> {
    let mut ids: FxHashMap<&str, Token> = FxHashMap::default();
    let added = file.added_tokens.iter().map(|added| {
        let id = file.model.vocab.get(&added.content).copied().unwrap_or(added.id);
        (*ids.entry(added.content.as_str()).or_insert(id), added)
    });
    added.filter(|(id, _)| has_row(*id, rows)).collect()
}

/// Whether the model's embedding has a row for this token, as far as its rows are known.
fn has_row(id: Token, rows: Option<usize>) -> bool {
    rows.is_none_or(|rows| (id as usize) < rows)
}

fn vocab(
    file: &File,
    added: &[(Token, &Added)],
    rows: Option<usize>,
    spelling: Spelling,
) -> Result<Vocab, TokenizerError> {
    let of_model = file.model.vocab.iter().map(|(text, &id)| (text.as_str(), id));
    let all = of_model.chain(added.iter().map(|(id, added)| (added.content.as_str(), *id)));
    let stated = file.added_tokens.iter().map(|added| added.id).filter(|&id| has_row(id, rows));
    let largest = all.clone().map(|(_, id)| id).chain(stated).max().ok_or(TokenizerError::Empty)?;
    if largest >= ID_MAX {
        return Err(TokenizerError::IdTooLarge { id: largest, limit: ID_MAX });
    }
    let mut texts = vec![Box::<str>::from(""); largest as usize + 1];
    let mut kinds = vec![Kind::Unused; largest as usize + 1];
    for (text, id) in all {
        texts[id as usize] = text.into();
        kinds[id as usize] = match spelling {
            Spelling::SentencePiece if is_byte(text) => Kind::Byte,
            _ => Kind::Normal,
        };
    }
    for &(id, added) in added {
        let (text, kind) = (&mut texts[id as usize], &mut kinds[id as usize]);
        let special = added.special || looks_special(&added.content);
        *kind = (*kind).max(if special { Kind::Control } else { Kind::UserDefined });
        if *kind == Kind::UserDefined && spelling == Spelling::SentencePiece {
            // The file spells them as pieces; a prompt and an answer have their text.
            *text = text.replace('▁', " ").into();
        }
    }
    Vocab::new(texts, kinds, spelling)
}

/// Whether an added token is a control token by its name. Files declare many of them no special tokens, and text from a
/// user must not be read as one; the rule is that of llama.cpp's converter, so that a directory has the kinds of its file.
fn looks_special(text: &str) -> bool {
    let is_between = |start: &str, end: &str| text.starts_with(start) && text.ends_with(end);
    let is_marked = is_between("<|", "|>") || is_between("<｜", "｜>") || is_between("<unused", ">");
    let is_named = matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]");
    is_marked || is_named || fill::names().any(|name| name == text)
}

fn is_byte(text: &str) -> bool {
    text.len() == 6 && text.starts_with("<0x") && text.ends_with('>')
}

/// A normalizer that adds a space before a text also adds it before the tokens that it is applied to.
fn strips(added: &[(Token, &Added)], prefix: SpacePrefix) -> Result<FxHashMap<Token, Strip>, TokenizerError> {
    if added.iter().any(|(_, added)| added.single_word) {
        return Err(unknown_step("an added token that matches single words only"));
    }
    let strip = |added: &Added| Strip {
        left: added.lstrip,
        right: added.rstrip,
        after_space: added.normalized && prefix == SpacePrefix::Always,
    };
    Ok(added.iter().map(|(id, added)| (*id, strip(added))).collect())
}

fn boundary_tokens(
    file: &File,
    hints: &TokenizerHints,
    vocab: &Vocab,
) -> Result<BoundaryTokens, TokenizerError> {
    let id = |text: &Option<String>| text.as_deref().and_then(|text| vocab.id(text));
    let (mut prefix, mut suffix) = template(file.post_processor.as_ref(), vocab)?;
    let bos = id(&hints.bos).or(prefix.first().copied());
    let eos = id(&hints.eos).or(hints.eog.first().copied());
    if let (Some(bos), Some(add)) = (bos, hints.add_bos) {
        let rest = prefix.strip_prefix(&[bos]).unwrap_or(&prefix);
        prefix = add.then_some(bos).into_iter().chain(rest.iter().copied()).collect();
    }
    if let (Some(eos), Some(add)) = (eos, hints.add_eos) {
        let rest = suffix.strip_suffix(&[eos]).unwrap_or(&suffix);
        suffix = rest.iter().copied().chain(add.then_some(eos)).collect();
    }
    Ok(BoundaryTokens {
        bos,
        eos,
        more_eog: hints.eog.iter().copied().filter(|&id| (id as usize) < vocab.len()).collect(),
        prefix,
        suffix,
        fill: FillTokens::default(),
    })
}

/// Tokens before and after a text, from `TemplateProcessing`.
fn template(processor: Option<&Value>, vocab: &Vocab) -> Result<(Vec<Token>, Vec<Token>), TokenizerError> {
    let (mut prefix, mut suffix) = (Vec::new(), Vec::new());
    for step in steps(processor, "processors") {
        match kind(step) {
            "ByteLevel" => {}
            "TemplateProcessing" => {
                let mut text_seen = false;
                for item in step["single"].as_array().into_iter().flatten() {
                    match item["SpecialToken"]["id"].as_str() {
                        None => text_seen = true,
                        Some(text) => {
                            let id =
                                vocab.id(text).ok_or_else(|| unknown_step("template of a missing token"))?;
                            if text_seen { &mut suffix } else { &mut prefix }.push(id);
                        }
                    }
                }
            }
            other => return Err(unknown_step(&format!("post-processor {other}"))),
        }
    }
    Ok((prefix, suffix))
}

fn unknown_step(step: &str) -> TokenizerError {
    TokenizerError::UnknownStep { step: step.into() }
}

fn bad_json(error: serde_json::Error) -> TokenizerError {
    TokenizerError::BadJson { reason: error.to_string() }
}
