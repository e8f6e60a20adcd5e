//! The formats of a prompt: text, token ids, a mixture, or several prompts at once.

use std::{fmt, sync::Arc};

use kvik_cache::Token;
use kvik_engine::api::Request;
use kvik_text::tokenizer::Tokenizer;
use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, SeqAccess, value::MapAccessDeserializer},
};

use super::{
    defaults::random_seed,
    generation::Options,
    number::{TokenId, TokenVisitor},
    parts::Part,
};
use crate::{
    app::state::App,
    described::JsonSchema,
    http::{
        error::ApiError,
        json::{Body, OR_ARRAY},
    },
};

/// Maximum number of prompts in one request; each becomes a separate engine request.
const PROMPTS_MAX: usize = 64;
/// Maximum bytes of prompts that one answer repeats.
const REPEATED_BYTES_MAX: usize = 16 << 20;

/// The field `prompt`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct PromptFields {
    /// A text, token ids and texts of one prompt, or an array of prompts.
    prompt: Prompts,
}

impl Part for PromptFields {}

/// A prompt, in pieces.
#[derive(Debug, Clone, PartialEq, Hash)]
pub(crate) struct Prompt(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Hash)]
enum Piece {
    Text(String),
    Tokens(Vec<Token>),
}

/// A prompt as llama-server's object, of which only the text is used.
#[derive(Debug, Deserialize)]
struct PromptObject {
    prompt_string: String,
    /// Images and audio.
    #[serde(default)]
    multimodal_data: Vec<IgnoredAny>,
}

/// Prompts as they were sent.
#[derive(Debug)]
pub(crate) struct Prompts {
    prompts: Vec<Prompt>,
    /// Index of a nested prompt among the tokens of a single prompt.
    misplaced: Option<usize>,
    is_array: bool,
}

impl PromptFields {
    /// Returns the prompts, which are 1 to 64.
    pub(crate) fn prompts(self) -> Result<Vec<Prompt>, ApiError> {
        self.prompt.list("prompt", PROMPTS_MAX)
    }
}

impl Prompts {
    /// True of an empty text, and of an empty array; not of an array of empty texts.
    pub(crate) fn say_nothing(&self) -> bool {
        match self.is_array {
            true => self.prompts.is_empty(),
            false => self.prompts.iter().all(Prompt::is_empty),
        }
    }

    /// Returns the prompts of the field `name`, which are 1 to `max`.
    pub(crate) fn list(self, name: &str, max: usize) -> Result<Vec<Prompt>, ApiError> {
        let Prompts { prompts, misplaced, .. } = self;
        if let Some(i) = misplaced {
            let message = format!("`{name}[{i}]` must be a token id or a string, not an array");
            return Err(ApiError::field(format!("{name}[{i}]"), message));
        }
        match prompts.len() {
            0 => Err(ApiError::field(name, format!("`{name}` is an empty array"))),
            n if n > max => {
                Err(ApiError::field(name, format!("`{name}` holds {n} prompts, the limit is {max}")))
            }
            _ => Ok(prompts),
        }
    }
}

impl Prompt {
    fn of(text: &str) -> Prompt {
        Prompt(vec![Piece::Text(text.to_owned())])
    }

    /// True if the prompt has neither text nor tokens.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|piece| match piece {
            Piece::Text(text) => text.is_empty(),
            Piece::Tokens(ids) => ids.is_empty(),
        })
    }

    /// Returns the text of a prompt that is a text.
    pub(crate) fn text_alone(&self) -> Option<&str> {
        match self.0.as_slice() {
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// True if all of its tokens are the tokenizer's choice.
    pub(crate) fn is_text(&self) -> bool {
        self.0.iter().all(|piece| matches!(piece, Piece::Text(_)))
    }

    /// Returns the token ids that were sent as such.
    pub(crate) fn ids(&self) -> impl Iterator<Item = Token> {
        let ids = |piece: &'_ Piece| if let Piece::Tokens(ids) = piece { ids.clone() } else { Vec::new() };
        self.0.iter().flat_map(ids)
    }

    /// Creates a prompt of these tokens.
    pub(crate) fn of_tokens(tokens: Vec<Token>) -> Prompt {
        Prompt(vec![Piece::Tokens(tokens)])
    }

    fn push(&mut self, item: Item) {
        match (item, self.0.last_mut()) {
            (Item::Text(text), _) => self.0.push(Piece::Text(text)),
            (Item::Token(token), Some(Piece::Tokens(tokens))) => tokens.push(token),
            (Item::Token(token), _) => self.0.push(Piece::Tokens(vec![token])),
        }
    }

    /// Returns the engine's requests for prompts with the same options.
    pub(crate) fn requests(
        prompts: &[Prompt],
        app: &App,
        options: &Options,
        (max_tokens, logprobs): (usize, Option<usize>),
        body: &Body,
    ) -> Result<Vec<Request>, ApiError> {
        // Invalid requests are refused before anything is allocated for the answer.
        options.check_copies(prompts.len())?;
        let request = |prompt: &Prompt| {
            body.still_wanted()?;
            let mut request = options.request(prompt.encode(app)?, max_tokens, logprobs);
            request.prompt_is_text = prompt.is_text();
            // With one seed the same prompt, sent several times, would have the same answer each time.
            if options.seed_per_prompt {
                request.sampling.seed = random_seed();
            }
            Ok(request)
        };
        prompts.iter().map(request).collect()
    }

    /// Tokenizes the prompt; if it begins with text, the model's beginning-of-text token (such as `<s>`)
    /// comes first. A prompt that does not fit in the context is refused as early as possible.
    pub(crate) fn encode(&self, app: &App) -> Result<Vec<Token>, ApiError> {
        let tokenizer = &app.serving.texts.tokenizer;
        let mut tokens = Vec::new();
        for (i, piece) in self.0.iter().enumerate() {
            match piece {
                Piece::Text(text) => {
                    app.check_length(text)?;
                    tokens.extend(tokenizer.encode(text, i == 0, true));
                }
                Piece::Tokens(ids) => tokens.extend_from_slice(ids),
            }
            app.check_tokens(&tokens)?;
        }
        Ok(tokens)
    }

    /// Returns the texts of `prompts`, for answers that repeat each of them `copies` times; `field` is the
    /// field that requests the copies. All prompts are known to fit in the context.
    pub(crate) fn texts(
        prompts: &[Prompt],
        tokenizer: &Tokenizer,
        copies: usize,
        field: &str,
    ) -> Result<Vec<Arc<str>>, ApiError> {
        let mut bytes = 0;
        let text = |prompt: &Prompt| {
            let text = prompt.text(tokenizer);
            bytes += text.len() * copies;
            if bytes > REPEATED_BYTES_MAX {
                let limit = REPEATED_BYTES_MAX >> 20;
                let message = format!(
                    "`{field}` makes the answer repeat more than {limit} MiB of prompts; ask for fewer answers at a time"
                );
                return Err(ApiError::field(field, message));
            }
            Ok(text)
        };
        prompts.iter().map(text).collect()
    }

    fn text(&self, tokenizer: &Tokenizer) -> Arc<str> {
        let piece = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Tokens(ids) => tokenizer.decode(&known(ids, tokenizer)),
        };
        self.0.iter().map(piece).collect::<String>().into()
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Prompts, D::Error> {
        deserializer.deserialize_struct(OR_ARRAY, &PromptObject::FIELDS, PromptsVisitor)
    }
}

struct PromptsVisitor;

impl<'de> de::Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, an array of token ids, or an array of those")
    }

    fn visit_str<E>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts { prompts: vec![Prompt::of(text)], misplaced: None, is_array: false })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Prompts, A::Error> {
        Ok(Prompts { prompts: vec![PromptObject::read(map)?], misplaced: None, is_array: false })
    }

    /// Reads an array: if it holds a bare number, it is one prompt of token ids and texts; otherwise it holds
    /// one prompt per entry.
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Prompts, A::Error> {
        let mut prompts: Vec<Prompt> = Vec::new();
        let mut one: Option<Prompt> = None;
        let (mut misplaced, mut index) = (None, 0);
        while let Some(entry) = seq.next_element::<Entry>()? {
            match (entry, &mut one) {
                (Entry::Item(Item::Text(text)), None) => prompts.push(Prompt::of(&text)),
                (Entry::Item(item), one) => one.get_or_insert_with(|| joined(&mut prompts)).push(item),
                (Entry::Prompt(prompt), None) => {
                    misplaced.get_or_insert(index);
                    prompts.push(prompt);
                }
                (Entry::Prompt(_), Some(_)) => drop(misplaced.get_or_insert(index)),
            }
            index += 1;
        }
        Ok(match one {
            Some(prompt) => Prompts { prompts: vec![prompt], misplaced, is_array: true },
            None => Prompts { prompts, misplaced: None, is_array: true },
        })
    }
}

/// Joins the pieces of texts that turned out to be one prompt.
fn joined(texts: &mut Vec<Prompt>) -> Prompt {
    Prompt(texts.drain(..).flat_map(|Prompt(pieces)| pieces).collect())
}

/// A token id or a text.
#[derive(Debug)]
enum Item {
    Token(Token),
    Text(String),
}

/// An entry of the array `prompt`.
#[derive(Debug)]
enum Entry {
    Item(Item),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Item, D::Error> {
        deserializer.deserialize_any(ItemVisitor { expected: "a token id or a string" })
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entry, D::Error> {
        deserializer.deserialize_struct(OR_ARRAY, &PromptObject::FIELDS, EntryVisitor)
    }
}

/// Reads an item and accepts no arrays, so that prompts are nested no deeper than their types.
struct ItemVisitor {
    expected: &'static str,
}

impl ItemVisitor {
    fn token(&self) -> TokenVisitor {
        TokenVisitor { expected: self.expected }
    }
}

impl From<TokenId> for Item {
    fn from(TokenId(token): TokenId) -> Item {
        Item::Token(token)
    }
}

impl de::Visitor<'_> for ItemVisitor {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Text(text.to_owned()))
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<Item, E> {
        self.token().visit_u64(id).map(Item::from)
    }

    fn visit_i64<E: de::Error>(self, id: i64) -> Result<Item, E> {
        self.token().visit_i64(id).map(Item::from)
    }

    fn visit_f64<E: de::Error>(self, id: f64) -> Result<Item, E> {
        self.token().visit_f64(id).map(Item::from)
    }
}

struct EntryVisitor;

impl EntryVisitor {
    const EXPECTED: &'static str = "a string, a token id, or an array of those";

    fn item(self) -> ItemVisitor {
        ItemVisitor { expected: EntryVisitor::EXPECTED }
    }
}

impl<'de> de::Visitor<'de> for EntryVisitor {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EntryVisitor::EXPECTED)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Entry, E> {
        self.item().visit_str(text).map(Entry::Item)
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<Entry, E> {
        self.item().visit_u64(id).map(Entry::Item)
    }

    fn visit_i64<E: de::Error>(self, id: i64) -> Result<Entry, E> {
        self.item().visit_i64(id).map(Entry::Item)
    }

    fn visit_f64<E: de::Error>(self, id: f64) -> Result<Entry, E> {
        self.item().visit_f64(id).map(Entry::Item)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entry, A::Error> {
        PromptObject::read(map).map(Entry::Prompt)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Entry, A::Error> {
        let mut prompt = Prompt(Vec::new());
        while let Some(item) = seq.next_element()? {
            prompt.push(item);
        }
        Ok(Entry::Prompt(prompt))
    }
}

impl PromptObject {
    const FIELDS: [&str; 2] = ["prompt_string", "multimodal_data"];

    fn read<'de, A: MapAccess<'de>>(map: A) -> Result<Prompt, A::Error> {
        let object = PromptObject::deserialize(MapAccessDeserializer::new(map))?;
        if !object.multimodal_data.is_empty() {
            return Err(de::Error::custom("`multimodal_data` is not supported: kvik reads text only"));
        }
        Ok(Prompt::of(&object.prompt_string))
    }
}

#[cfg(test)]
impl JsonSchema for Prompts {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Prompts".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let item = || {
            vec![
                schemars::json_schema!({"type": "string"}),
                schemars::json_schema!({"type": "integer", "minimum": 0}),
            ]
        };
        let mut entry = item();
        let text = schemars::json_schema!({"type": "string"});
        let object = schemars::json_schema!({
            "type": "object",
            "properties": {"prompt_string": text},
            "required": ["prompt_string"],
        });
        entry.push(schemars::json_schema!({"type": "array", "items": {"anyOf": item()}}));
        entry.push(object.clone());
        schemars::json_schema!({"anyOf": [
            text,
            object,
            {"type": "array", "minItems": 1, "items": {"anyOf": entry}},
        ]})
    }
}

/// Returns the token ids in the vocabulary; the engine refuses a prompt with others.
fn known(ids: &[Token], tokenizer: &Tokenizer) -> Vec<Token> {
    ids.iter().copied().filter(|id| (*id as usize) < tokenizer.vocab_len()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn prompts(body: Value) -> Result<Vec<Prompt>, ApiError> {
        Body::of(&body)?.read::<PromptFields>()?.prompts()
    }

    fn read(prompt: Value) -> Result<Vec<Prompt>, ApiError> {
        prompts(json!({"prompt": prompt}))
    }

    #[test]
    fn every_form() {
        let text = |text: &str| Piece::Text(text.to_owned());
        let tokens = |ids: &[Token]| Piece::Tokens(ids.to_vec());
        let check = |prompt: Value, expect: &[&[Piece]]| {
            let prompts: Vec<Prompt> = expect.iter().map(|pieces| Prompt(pieces.to_vec())).collect();
            assert_eq!(read(prompt.clone()), Ok(prompts), "{prompt}");
        };
        check(json!("hello"), &[&[text("hello")]]);
        check(json!(["a", "b"]), &[&[text("a")], &[text("b")]]);
        check(json!([1, 2, 3]), &[&[tokens(&[1, 2, 3])]]);
        check(json!([[1, 2], [3]]), &[&[tokens(&[1, 2])], &[tokens(&[3])]]);
        check(json!([1, "a", 2, 3]), &[&[tokens(&[1]), text("a"), tokens(&[2, 3])]]);
        check(json!(["a", [1, "b"]]), &[&[text("a")], &[tokens(&[1]), text("b")]]);
        check(json!({"prompt_string": "a"}), &[&[text("a")]]);
        check(json!([{"prompt_string": "a", "multimodal_data": []}, [1]]), &[&[text("a")], &[tokens(&[1])]]);
    }

    #[test]
    fn wrong_forms_name_their_place() {
        let check = |body: Value, at: &str| {
            let error = prompts(body).unwrap_err().body();
            assert_eq!(error["error"]["param"], at, "{error}");
        };
        check(json!({}), "prompt");
        check(json!({"prompt": 5}), "prompt");
        check(json!({"prompt": []}), "prompt");
        check(json!({"prompt": {"text": "x"}}), "prompt.prompt_string");
        check(json!({"prompt": {"prompt_string": "x", "multimodal_data": ["AA"]}}), "prompt");
        check(json!({"prompt": ["a", true]}), "prompt[1]");
        check(json!({"prompt": [1, -2]}), "prompt[1]");
        check(json!({"prompt": [[1], [2, null]]}), "prompt[1][1]");
        check(json!({"prompt": [1, [2]]}), "prompt[1]");
        check(json!({"prompt": [[1], 2]}), "prompt[0]");
        check(json!({"prompt": vec!["x"; 65]}), "prompt");
    }
}
