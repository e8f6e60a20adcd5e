//! The field `logit_bias`: tokens by id or by text, and the change of their logits.

use kvik_cache::Token;
use serde_json::Value;

use super::number::whole_number;
use crate::http::{
    error::ApiError,
    json::{Json, wrong},
};

type Result<T> = std::result::Result<T, ApiError>;

/// Maximum number of entries in `logit_bias`, and of tokens that they name.
const BIASES_MAX: usize = 1024;
/// Maximum bytes of a biased text: a word or a phrase.
pub(super) const BIASED_BYTES_MAX: usize = 256;

/// Schema of the field in both of its forms.
#[cfg(test)]
pub(super) fn schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "anyOf": [
            {"type": "object", "additionalProperties": {"type": ["number", "boolean"]}},
            {"type": "array", "maxItems": BIASES_MAX, "items": {
                "type": "array",
                "prefixItems": [{"type": ["integer", "string"]}, {"type": ["number", "boolean"]}],
                "minItems": 2,
                "maxItems": 2,
            }},
            {"type": "null"},
        ],
    })
}

/// Reads `{"token id": bias}` (OpenAI) or `[[token id or text, bias], ...]` (llama-server); a bias of `false`
/// forbids the token.
pub(super) fn read(
    field: Option<Json>,
    bias_max: f64,
    encode: &dyn Fn(&str) -> Vec<Token>,
) -> Result<Vec<(Token, f32)>> {
    let path = "logit_bias";
    let pairs: Vec<(Value, Value)> = match field.map(|Json(value)| value) {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => map.into_iter().map(|(id, bias)| (id_of(id), bias)).collect(),
        Some(Value::Array(items)) => items
            .into_iter()
            .enumerate()
            .map(|(i, item)| match <[Value; 2]>::try_from(array_items(item)) {
                Ok([token, bias]) => Ok((token, bias)),
                Err(_) => Err(ApiError::field(
                    format!("{path}[{i}]"),
                    format!("`{path}[{i}]` must be a pair: [token id or text, bias]"),
                )),
            })
            .collect::<Result<_>>()?,
        Some(other) => return Err(wrong(path, "an object from token ids to biases", &other)),
    };
    if pairs.len() > BIASES_MAX {
        return Err(ApiError::field(
            path,
            format!("`{path}` has {} entries, the limit is {BIASES_MAX}", pairs.len()),
        ));
    }
    let mut biases = Vec::new();
    for (token, bias) in pairs {
        let bias = bias_of(path, &bias, bias_max)?;
        for token in biased_tokens(path, &token, encode)? {
            biases.push((token, bias));
        }
        if biases.len() > BIASES_MAX {
            let message = format!("`{path}` names more than {BIASES_MAX} tokens, which is the limit");
            return Err(ApiError::field(path, message));
        }
    }
    Ok(biases)
}

/// Converts a key of the object form: a whole number is a token id, whether a vocabulary has it or not; anything else is
/// text, also ` 7` and `3.14`.
fn id_of(key: String) -> Value {
    let is_digit = |c: char| c.is_ascii_digit();
    let digits = key.strip_prefix(['-', '+']).unwrap_or(&key);
    let is_number = digits.starts_with(is_digit) && digits.ends_with(is_digit);
    let whole = key.parse::<f64>().ok().filter(|number| is_number && number.fract() == 0.0);
    whole.map_or(Value::String(key), Value::from)
}

fn array_items(value: Value) -> Vec<Value> {
    if let Value::Array(items) = value { items } else { Vec::new() }
}

fn bias_of(path: &str, bias: &Value, bias_max: f64) -> Result<f32> {
    match (bias, bias.as_f64()) {
        (Value::Bool(false), _) => Ok(f32::NEG_INFINITY),
        // As in OpenAI's API, -100 forbids the token.
        (_, Some(bias)) if (-bias_max..=-100.0).contains(&bias) => Ok(f32::NEG_INFINITY),
        (_, Some(bias)) if (-100.0..=bias_max).contains(&bias) => Ok(bias as f32),
        (other, _) => {
            let expected = format!("a map of biases from -{bias_max} to {bias_max} (or false)");
            Err(wrong(path, &expected, other))
        }
    }
}

fn biased_tokens(path: &str, token: &Value, encode: &dyn Fn(&str) -> Vec<Token>) -> Result<Vec<Token>> {
    match token {
        Value::String(text) if text.len() > BIASED_BYTES_MAX => {
            let message =
                format!("a text in `{path}` has {} bytes, the limit is {BIASED_BYTES_MAX}", text.len());
            Err(ApiError::field(path, message))
        }
        Value::String(text) => Ok(encode(text)),
        id => match whole_number(id).and_then(|id| Token::try_from(id).ok()) {
            Some(id) => Ok(vec![id]),
            None => Err(wrong(path, "a map whose keys are token ids or texts", id)),
        },
    }
}
