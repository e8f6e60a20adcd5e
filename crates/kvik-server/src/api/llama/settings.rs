//! The generation settings of an answer, in llama-server's format.

use kvik_cache::Token;
use kvik_engine::api::Sampling;
use serde::Serialize;

use crate::{api::request::generation::Options, described::JsonSchema};

/// `generation_settings`: what was really used.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[cfg_attr(test, derive(Default))]
#[schemars(rename = "GenerationSettings")]
pub(super) struct Settings {
    seed: u64,
    temperature: f64,
    top_k: usize,
    top_p: f64,
    min_p: f64,
    /// -1 is all.
    repeat_last_n: i64,
    repeat_penalty: f64,
    presence_penalty: f64,
    frequency_penalty: f64,
    stop: Vec<String>,
    max_tokens: usize,
    n_predict: usize,
    ignore_eos: bool,
    stream: bool,
    n_probs: usize,
    cache_prompt: bool,
    logit_bias: Vec<Bias>,
}

/// What is added to a token's logit; null of one that is forbidden.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(inline)]
struct Bias {
    token: Token,
    bias: Option<f64>,
}

impl Settings {
    pub(super) fn of(options: &Options, max_tokens: usize, n_probs: usize, stream: bool) -> Settings {
        let sampling = &options.sampling;
        Settings {
            seed: sampling.seed,
            temperature: f64::from(sampling.temperature),
            top_k: sampling.top_k,
            top_p: f64::from(sampling.top_p),
            min_p: f64::from(sampling.min_p),
            repeat_last_n: repeat_last_n(sampling),
            repeat_penalty: f64::from(sampling.repetition_penalty),
            presence_penalty: f64::from(sampling.presence_penalty),
            frequency_penalty: f64::from(sampling.frequency_penalty),
            stop: options.stop.clone(),
            max_tokens,
            n_predict: max_tokens,
            ignore_eos: options.ignore_eos,
            stream,
            n_probs,
            cache_prompt: options.reuse,
            logit_bias: sampling.logit_bias.iter().copied().map(bias).collect(),
        }
    }

    /// These of a prompt with this seed.
    pub(super) fn with_seed(&self, seed: u64) -> Settings {
        Settings { seed, ..self.clone() }
    }
}

/// The tokens that penalties look back on, in llama-server's words: 0 is none, and all are -1.
fn repeat_last_n(sampling: &Sampling) -> i64 {
    match sampling.penalty_last_n {
        0 if sampling.has_penalty() => -1,
        last_n => i64::try_from(last_n).unwrap_or(i64::MAX),
    }
}

fn bias((token, bias): (Token, f32)) -> Bias {
    Bias { token, bias: Some(f64::from(bias)).filter(|bias| bias.is_finite()) }
}
