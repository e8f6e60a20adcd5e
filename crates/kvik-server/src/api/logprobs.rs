//! Log-probabilities in OpenAI's format, which other dialects share.

use kvik_engine::api::{GeneratedToken, TokenLogprob};
use serde::Serialize;

use crate::described::JsonSchema;

/// A generated token, with the likeliest ones beside it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Logprob {
    #[serde(flatten)]
    chosen: TokenEntry,
    top_logprobs: Vec<TokenEntry>,
}

/// A token and how likely it was.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "TokenLogprob")]
struct TokenEntry {
    token: String,
    /// -9999 of one that is forbidden.
    logprob: f64,
    bytes: Vec<u8>,
}

/// Returns a generated token's entry with its likeliest alternatives; none if log-probabilities were not
/// requested.
pub(crate) fn logprob(token: &GeneratedToken) -> Option<Logprob> {
    let (chosen, likeliest) = token.logprob.as_ref()?;
    Some(Logprob { chosen: entry(chosen), top_logprobs: likeliest.iter().map(entry).collect() })
}

fn entry(token: &TokenLogprob) -> TokenEntry {
    TokenEntry {
        token: String::from_utf8_lossy(&token.bytes).into_owned(),
        logprob: finite(token.logprob),
        bytes: token.bytes.clone(),
    }
}

/// Replaces negative infinity, which JSON lacks and forbidden tokens have, with OpenAI's -9999.
pub(crate) fn finite(logprob: f32) -> f64 {
    if logprob.is_finite() { f64::from(logprob) } else { -9999.0 }
}
