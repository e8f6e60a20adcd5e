//! `POST /completion`: continues prompts, with llama-server's fields and defaults.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{Echo, LlamaAnswer};
use crate::{
    api::request::{
        defaults::Defaults,
        generation::{GenerationFields, Options},
        number::{AnyTemperature, Whole},
        parts::{FromBody, Part},
        prompt::{Prompt, PromptFields},
    },
    app::{body::JsonBody, keys::Caller, report::trailer::Origin, requests::Prepared, state::App},
    http::{error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// llama-server's defaults.
#[derive(Debug)]
pub(super) struct LlamaServer;

impl Defaults for LlamaServer {
    type Temperature = AnyTemperature;

    const TEMPERATURE: f32 = 0.8;
    const TOP_K: usize = 40;
    const TOP_P: f32 = 0.95;
    const MIN_P: f32 = 0.05;
    const PENALTY_LAST_N: usize = 64;
    const BIAS_MAX: f64 = 1e9;
    const STOP_STRINGS_MAX: usize = 256;
}

/// All fields of a body.
pub(super) type Fields = (PromptFields, GenerationFields<LlamaServer>, CompletionFields);

/// Those of this endpoint alone.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct CompletionFields {
    /// Give the log-probabilities of as many of the likeliest tokens, for each generated one.
    n_probs: Option<Whole<0, 256>>,
    /// Send the answer as it is generated.
    #[serde(default)]
    stream: bool,
    /// Give the ids of the generated tokens.
    #[serde(default)]
    return_tokens: bool,
}

impl Part for CompletionFields {}

/// Continues prompts.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    app.complete(body, read).await
}

fn read(app: &App, _: &Caller, body: &Body) -> Result<Prepared<LlamaAnswer>> {
    let (prompts, generation, fields) = Fields::from_body(body)?;
    let tokenizer = &app.serving.tokenizer;
    let prompts = prompts.prompts()?;
    let options = generation.options(&|text| tokenizer.encode(text, false, true), &app.serving.retaining)?;
    options.check_memory()?;
    let context = app.serving.model.context;
    let max_tokens = options.max_tokens(context, context);
    let probabilities = fields.n_probs.and_then(Whole::count).unwrap_or(0);
    let logprobs = (probabilities > 0).then_some(probabilities);
    let stream = fields.stream;

    let requests = Prompt::requests(&prompts, app, &options, (max_tokens, logprobs), body)?;
    let echo = Echo {
        model: app.serving.model.name.clone(),
        settings: settings(&options, max_tokens, probabilities, stream),
        stop: options.stop.clone(),
        prompts: Prompt::texts(&prompts, tokenizer, options.choices as usize, "n")?,
        max_tokens,
        context,
        return_tokens: fields.return_tokens,
        probabilities: logprobs.is_some(),
    };
    let answer = LlamaAnswer::new(echo, options.choices as usize);
    let Options { schema_notes, kept_prefix, .. } = options;
    let origin = Origin { schema_notes, kept_prefix, ..Origin::default() };
    Ok(Prepared { requests, origin, answer, stream })
}

/// `generation_settings`: what was really used.
pub(super) fn settings(options: &Options, max_tokens: usize, n_probs: usize, stream: bool) -> Value {
    let sampling = &options.sampling;
    json!({
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_last_n": sampling.penalty_last_n,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": options.stop,
        "max_tokens": max_tokens,
        "n_predict": max_tokens,
        "ignore_eos": options.ignore_eos,
        "stream": stream,
        "n_probs": n_probs,
        "cache_prompt": options.reuse,
    })
}
