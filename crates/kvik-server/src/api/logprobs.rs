//! Log-probabilities in OpenAI's format, which other dialects share.

use kvik_engine::api::{GeneratedToken, TokenLogprob};
use serde::Serialize;

use super::request::{generation::LOGPROBS_MAX, number::Whole};
use crate::{described::JsonSchema, http::error::ApiError};

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
    /// Those that it adds to the text: none of a control token, of which `token` is the name.
    bytes: Vec<u8>,
}

impl Logprob {
    /// The bytes that the token adds to the text.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.chosen.bytes
    }
}

/// Returns the number of likeliest tokens to report: `logprobs` requests log-probabilities, `top_logprobs` sets
/// their number.
pub(crate) fn likeliest(
    logprobs: bool,
    top_logprobs: Option<Whole<0, LOGPROBS_MAX>>,
) -> Result<Option<usize>, ApiError> {
    let top = top_logprobs.and_then(Whole::count).unwrap_or(0);
    if top > 0 && !logprobs {
        return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
    }
    Ok(logprobs.then_some(top))
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
        bytes: text_bytes(token).to_vec(),
    }
}

/// The bytes that a token adds to the text.
pub(crate) fn text_bytes(token: &TokenLogprob) -> &[u8] {
    if token.shown { &token.bytes } else { &[] }
}

/// Replaces negative infinity, which JSON lacks and forbidden tokens have, with OpenAI's -9999.
pub(crate) fn finite(logprob: f32) -> f64 {
    if logprob.is_finite() { f64::from(logprob) } else { -9999.0 }
}
