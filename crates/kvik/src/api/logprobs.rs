//! Log-probabilities as OpenAI writes them, and dialects that do the same.

use kvik_engine::api::{GeneratedToken, TokenLogprob};
use serde_json::{Value, json};

/// The entry of one generated token with the likeliest ones beside it, when the engine was asked for them.
pub(crate) fn logprob(token: &GeneratedToken) -> Option<Value> {
    let (chosen, likeliest) = token.logprob.as_ref()?;
    let mut entry = token_logprob(chosen);
    entry["top_logprobs"] = likeliest.iter().map(token_logprob).collect();
    Some(entry)
}

fn token_logprob(token: &TokenLogprob) -> Value {
    json!({
        "token": String::from_utf8_lossy(&token.bytes),
        "logprob": finite(token.logprob),
        "bytes": token.bytes,
    })
}

/// JSON has no infinity; a forbidden token gets OpenAI's -9999.
pub(crate) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}
