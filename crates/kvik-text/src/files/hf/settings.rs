//! The configuration files next to the weights: chat template, special tokens, end-of-generation tokens.

use std::path::Path;

use kvik_cache::Token;
use serde::Deserialize;
use serde_json::Value;

use super::{read_optional, read_settings};
use crate::files::FileError;

/// The contents of the configuration files.
#[derive(Debug, Default)]
pub struct HfSettings {
    /// The chat template.
    pub chat_template: Option<String>,
    /// The template for conversations with tools, if it is separate.
    pub tool_template: Option<String>,
    /// Special tokens.
    pub hints: TokenizerHints,
    /// The contents of `generation_config.json`; null without the file.
    pub generation: Value,
}

/// Information on tokens from the other files of a model directory.
#[derive(Debug, Clone, Default)]
pub struct TokenizerHints {
    /// Text of the begin-of-text token.
    pub bos: Option<String>,
    /// Text of the end-of-text token.
    pub eos: Option<String>,
    /// Ids of tokens that end an answer.
    pub eog: Vec<Token>,
    /// Whether a text begins with the begin-of-text token; `None` if `tokenizer.json` decides.
    pub add_bos: Option<bool>,
    /// Whether a text ends with the end-of-text token; `None` if `tokenizer.json` decides.
    pub add_eos: Option<bool>,
    /// Rows of the model's embedding: added tokens beyond them are left out. `None` keeps all.
    pub rows: Option<usize>,
}

#[derive(Default, Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Template>,
    bos_token: Option<TokenText>,
    eos_token: Option<TokenText>,
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
    tokenizer_class: Option<String>,
}

/// Classes of transformers that replace the post-processor of `tokenizer.json` by one of their settings. Others ignore
/// `add_bos_token` and `add_eos_token`.
const SETS_BOUNDARIES: [&str; 5] = ["Llama", "CodeLlama", "Gemma", "Cohere", "GPTNeoX"];

impl TokenizerConfig {
    /// Whether a text begins with the begin-of-text token and ends with the end-of-text token, if the settings decide.
    fn boundaries(&self) -> [Option<bool>; 2] {
        let class = self.tokenizer_class.as_deref().unwrap_or_default();
        let family = class.strip_suffix("Fast").unwrap_or(class).strip_suffix("Tokenizer");
        match family.is_some_and(|family| SETS_BOUNDARIES.contains(&family)) {
            true => [self.add_bos_token, self.add_eos_token],
            false => [None, None],
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Template {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TokenText {
    Text(String),
    Added { content: String },
}

impl TokenText {
    fn into_text(self) -> String {
        match self {
            TokenText::Text(text) | TokenText::Added { content: text } => text,
        }
    }
}

impl HfSettings {
    /// Reads the files; missing ones are ignored.
    ///
    /// # Errors
    /// If an existing file cannot be read, or is not JSON.
    pub fn read(directory: &Path) -> Result<HfSettings, FileError> {
        let tokens: TokenizerConfig =
            read_settings(&directory.join("tokenizer_config.json"))?.unwrap_or_default();
        let generation: Value = read_settings(&directory.join("generation_config.json"))?.unwrap_or_default();
        let model: Value = read_settings(&directory.join("config.json"))?.unwrap_or_default();
        let mut eog = ids(&generation["eos_token_id"]);
        // Multimodal models may state it for their decoder.
        [&model, &model["text_config"]].into_iter().for_each(|of| eog.extend(ids(&of["eos_token_id"])));
        let [add_bos, add_eos] = tokens.boundaries();
        let hints = TokenizerHints {
            bos: tokens.bos_token.map(TokenText::into_text),
            eos: tokens.eos_token.map(TokenText::into_text),
            eog,
            add_bos,
            add_eos,
            rows: None,
        };
        let (default, tool_use) = tokens.chat_template.map_or((None, None), default_and_tool_use);
        Ok(HfSettings {
            chat_template: text(&directory.join("chat_template.jinja"))?.or(default),
            tool_template: text(&directory.join("additional_chat_templates/tool_use.jinja"))?.or(tool_use),
            hints,
            generation,
        })
    }
}

/// The text of a file that may be absent.
fn text(path: &Path) -> Result<Option<String>, FileError> {
    Ok(read_optional(path)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// The templates named `default` and `tool_use`.
fn default_and_tool_use(template: Template) -> (Option<String>, Option<String>) {
    let list = match template {
        Template::One(text) => return (Some(text), None),
        Template::Named(list) => list,
    };
    let find = |name: &str| {
        list.iter().find(|named| named.name == name).map(|NamedTemplate { template, .. }| template.clone())
    };
    (find("default"), find("tool_use"))
}

/// The ids in a value: a single id or a list of them.
fn ids(value: &Value) -> Vec<Token> {
    let one = |value: &Value| value.as_u64().and_then(|id| Token::try_from(id).ok());
    match value {
        Value::Array(list) => list.iter().filter_map(one).collect(),
        value => one(value).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// DeepSeek's files ask for a begin-of-text token here alone, Qwen's say false of one that they do not have.
    #[test]
    fn boundary_tokens_are_those_that_the_class_of_the_tokenizer_sets() {
        let directory = tempfile::tempdir().unwrap();
        let hints = |config: Value| {
            std::fs::write(directory.path().join("tokenizer_config.json"), config.to_string()).unwrap();
            let hints = HfSettings::read(directory.path()).unwrap().hints;
            [hints.add_bos, hints.add_eos]
        };
        let set = |class: &str| {
            hints(json!({"add_bos_token": true, "add_eos_token": false, "tokenizer_class": class}))
        };
        for class in ["LlamaTokenizerFast", "LlamaTokenizer", "GemmaTokenizer", "CohereTokenizerFast"] {
            assert_eq!(set(class), [Some(true), Some(false)], "{class}");
        }
        for class in ["PreTrainedTokenizerFast", "Qwen2Tokenizer", "Llama", ""] {
            assert_eq!(set(class), [None, None], "{class}");
        }
        assert_eq!(hints(json!({"tokenizer_class": "LlamaTokenizer"})), [None, None]);
        assert_eq!(hints(json!({"add_bos_token": true})), [None, None]);
    }
}
