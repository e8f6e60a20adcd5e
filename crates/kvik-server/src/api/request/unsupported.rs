//! Fields of OpenAI, llama-server and vLLM that would change the answer and that kvik does not support: they
//! are refused, not ignored. A value that disables the feature, or asks for kvik's own behaviour, passes:
//! many clients send every field they know.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};
use serde_json::Value;

use super::parts::Part;
use crate::http::json::Json;

/// A field, the test for values without effect, and an alternative to the field.
type Unsupported = (&'static str, fn(&Value) -> bool, &'static str);

/// Fields of all generating routes.
const GENERATING: [Unsupported; 27] = [
    ("typical_p", at_least_one, "use `top_p` or `min_p`"),
    ("tfs_z", at_least_one, "use `top_p` or `min_p`"),
    ("top_n_sigma", not_positive, "use `top_p` or `min_p`"),
    ("mirostat", off, "use `temperature` and `top_p`"),
    ("dynatemp_range", off, "use `temperature`"),
    ("dry_multiplier", off, "use `repeat_penalty` or `frequency_penalty`"),
    ("xtc_probability", off, "use `temperature`"),
    ("n_keep", not_positive, "kvik never shifts the context: an answer ends where it is full"),
    ("n_discard", not_positive, "kvik never shifts the context: an answer ends where it is full"),
    ("image_data", off, "kvik reads text only"),
    ("multimodal_data", off, "kvik reads text only"),
    ("post_sampling_probs", off, "probabilities are the model's own, before sampling"),
    ("grammar_lazy", off, "a grammar holds from the first token on"),
    ("bad_words", off, "forbid tokens with `logit_bias`"),
    ("stop_token_ids", off, "use `stop`"),
    ("allowed_token_ids", empty, "use `grammar`, `regex` or `logit_bias`"),
    ("include_stop_str_in_output", off, "append the string yourself"),
    ("skip_special_tokens", on, "control tokens are never part of the text"),
    ("use_beam_search", off, "ask for `n` answers and choose yourself"),
    ("length_penalty", at_one, "it is for beam search"),
    ("early_stopping", off, "it is for beam search"),
    ("truncate_prompt_tokens", empty, "shorten the prompt yourself"),
    // 0 asks for those of the prompt's own tokens.
    ("prompt_logprobs", empty, "kvik gives log-probabilities of generated tokens only"),
    ("logits_processors", off, "use `logit_bias` or a constraint"),
    ("guided_whitespace_pattern", empty, "use `grammar`"),
    ("structural_tag", empty, "use `grammar`"),
    ("thinking_budget_tokens", negative, "use `reasoning_effort` or `enable_thinking`"),
];

/// Fields of conversations.
const CONVERSING: [Unsupported; 8] = [
    ("functions", off, "use `tools`"),
    ("function_call", no_call, "use `tool_choice`"),
    ("modalities", text_only, "kvik reads and writes text only"),
    ("audio", off, "kvik reads and writes text only"),
    ("documents", off, "put them into a message"),
    ("chat_template", empty, "start kvik with --chat-template FILE"),
    ("reasoning_format", ours, "thoughts come as `reasoning_content`"),
    ("thinking_forced_open", off, "it is the template's to open a thought"),
];

/// Refuses unsupported fields of generating routes.
#[derive(Debug)]
pub(crate) struct UnsupportedGenerating;

/// Refuses unsupported fields of conversations.
#[derive(Debug)]
pub(crate) struct UnsupportedConversing;

macro_rules! refuses {
    ($($name:ident: $fields:ident;)*) => {$(
        impl Part for $name {}

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                const NAMES: [&str; $fields.len()] = names($fields);
                deserializer.deserialize_struct(stringify!($name), &NAMES, Refusing(&$fields))?;
                Ok($name)
            }
        }

        #[cfg(test)]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schema(&$fields)
            }
        }
    )*};
}

refuses! {
    UnsupportedGenerating: GENERATING;
    UnsupportedConversing: CONVERSING;
}

const fn names<const N: usize>(fields: [Unsupported; N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut i = 0;
    while i < N {
        names[i] = fields[i].0;
        i += 1;
    }
    names
}

#[cfg(test)]
fn schema(fields: &[Unsupported]) -> schemars::Schema {
    let property = |(name, _, remedy): &Unsupported| {
        let description = format!("Refused unless it changes nothing: {remedy}.");
        ((*name).to_owned(), serde_json::json!({"description": description, "deprecated": true}))
    };
    let properties: serde_json::Map<_, _> = fields.iter().map(property).collect();
    schemars::json_schema!({"type": "object", "properties": properties})
}

/// Visits the fields of a body.
struct Refusing(&'static [Unsupported]);

impl<'de> Visitor<'de> for Refusing {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            match self.0.iter().find(|(known, ..)| *known == name) {
                Some(field) => map.next_value_seed(Neutral(field))?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Accepts only a value without effect.
struct Neutral(&'static Unsupported);

impl<'de> DeserializeSeed<'de> for Neutral {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let (_, is_neutral, remedy) = self.0;
        let Json(value) = Json::deserialize(deserializer)?;
        if is_neutral(&value) {
            return Ok(());
        }
        Err(de::Error::custom(format!("is not supported with this value: {remedy}")))
    }
}

fn off(value: &Value) -> bool {
    match value {
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Null => true,
    }
}

fn on(value: &Value) -> bool {
    *value == Value::Bool(true)
}

/// Returns true if the value is empty, for fields of which no other value is neutral.
fn empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn at_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn at_least_one(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number >= 1.0)
}

fn not_positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number <= 0.0)
}

fn negative(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number < 0.0)
}

fn no_call(value: &Value) -> bool {
    matches!(value.as_str(), Some("none" | "auto"))
}

fn text_only(value: &Value) -> bool {
    value.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind == "text"))
}

fn ours(value: &Value) -> bool {
    matches!(value.as_str(), Some("auto" | "deepseek"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::json::Body;

    fn refused(body: Value) -> Option<String> {
        let body = Body::of(&body).unwrap();
        let read = body.read::<UnsupportedGenerating>().and_then(|_| body.read::<UnsupportedConversing>());
        read.err().map(|error| error.body()["error"]["param"].as_str().unwrap().to_owned())
    }

    #[test]
    fn what_is_switched_off_passes() {
        let check = |body: Value| assert_eq!(refused(body.clone()), None, "{body}");
        check(json!({"typical_p": 1, "tfs_z": 1.0, "top_n_sigma": -1, "mirostat": 0, "mirostat_tau": 5}));
        check(json!({"dynatemp_range": 0.0, "dynatemp_exponent": 1, "dry_multiplier": 0, "dry_base": 1.75}));
        check(json!({"xtc_probability": 0, "xtc_threshold": 0.1, "n_keep": 0, "n_discard": 0}));
        check(json!({"n_keep": -1, "image_data": [], "post_sampling_probs": false, "bad_words": []}));
        check(json!({"functions": [], "function_call": "auto", "modalities": ["text"], "audio": null}));
        check(json!({"allowed_token_ids": [], "structural_tag": "", "chat_template": "", "documents": {}}));
        check(json!({"skip_special_tokens": true, "length_penalty": 1, "thinking_budget_tokens": -1}));
        let names = GENERATING.iter().chain(&CONVERSING).map(|(name, ..)| ((*name).to_owned(), Value::Null));
        check(Value::Object(names.collect()));
    }

    #[test]
    fn what_would_change_the_answer_is_refused_by_name() {
        let check = |name: &str, value: Value| {
            assert_eq!(refused(json!({name: value})).as_deref(), Some(name), "{value}");
        };
        check("typical_p", json!(0.5));
        check("mirostat", json!(2));
        check("dry_multiplier", json!(0.8));
        check("xtc_probability", json!(0.5));
        check("n_keep", json!(24));
        check("image_data", json!([{"data": "x"}]));
        check("post_sampling_probs", json!(true));
        check("bad_words", json!(["no"]));
        check("functions", json!([{"name": "f"}]));
        check("function_call", json!({"name": "f"}));
        check("modalities", json!(["text", "audio"]));
        check("audio", json!({"voice": "x"}));
        check("chat_template", json!("x"));
        check("prompt_logprobs", json!(0));
        let odd = GENERATING.iter().chain(&CONVERSING).map(|(name, ..)| *name);
        odd.for_each(|name| check(name, json!({"odd": 1})));
    }
}
