//! `POST /completion`: continues prompts, with llama-server's fields.

use std::{sync::Arc, time::Instant};

use axum::{extract::State, response::Response};
use kvik_engine::api::{LineLimits, Request};
use serde::Deserialize;

use super::{
    answer::{Echo, LlamaAnswer},
    settings::Settings,
};
use crate::{
    api::request::{
        bounds::Bounds,
        defaults::RequestDefaults,
        generation::{GenerationFields, Options, logprobs},
        number::{AnyTemperature, Whole},
        parts::{FromBody, Part},
        prompt::{Prompt, PromptFields},
    },
    app::{
        body::JsonBody, keys::Caller, report::trailer::Origin, requests::Prepared, slots::SlotUse, state::App,
    },
    described::JsonSchema,
    http::{error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// llama-server's bounds.
#[derive(Debug)]
pub(super) struct LlamaServer;

impl Bounds for LlamaServer {
    type Temperature = AnyTemperature;

    const PENALTY_LAST_N: i64 = 64;
    const BIAS_MAX: f64 = 1e9;
    const STOP_STRINGS_MAX: usize = 256;
}

/// All fields of a body.
pub(super) type Fields = (PromptFields, GenerationFields<LlamaServer>, CompletionFields);

/// Those of llama-server alone.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct CompletionFields {
    /// Give the log-probabilities of as many of the likeliest tokens, for each generated one; at most the vocabulary.
    n_probs: Option<Whole<0, { i64::MAX }>>,
    /// Send the answer as it is generated.
    #[serde(default)]
    stream: bool,
    /// Give the ids of the generated tokens.
    #[serde(default)]
    return_tokens: bool,
    /// Give these fields of the answer only, by their paths, as `generation_settings/seed`.
    #[serde(default)]
    response_fields: Vec<String>,
    /// Stream how far the prompt is computed.
    #[serde(default)]
    return_progress: bool,
    /// The name under which `/slots/{id}` saves what is computed; every prefix of every request is found without it.
    id_slot: Option<Whole<-1, { i64::MAX }>>,
}

impl Part for CompletionFields {}

/// Continues prompts.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    app.complete(body, read).await
}

fn read(app: &App, caller: &Caller, body: &Body) -> Result<Prepared<LlamaAnswer>> {
    let (prompts, generation, fields) = Fields::from_body(body)?;
    Asked::read(app, generation, fields)?.of(app, caller, &prompts.prompts()?, body)
}

/// Settings for the continuation of prompts.
pub(super) struct Asked {
    options: Options,
    fields: CompletionFields,
    /// Maximum tokens of an answer.
    pub(super) max_tokens: usize,
}

impl Asked {
    pub(super) fn read(
        app: &App,
        generation: GenerationFields<LlamaServer>,
        fields: CompletionFields,
    ) -> Result<Asked> {
        let tokenizer = &app.serving.texts.tokenizer;
        let encode = |text: &str| tokenizer.encode(text, false, true);
        let mut options = generation.options(&RequestDefaults::of(app), &encode, &app.serving.retaining)?;
        options.check_memory()?;
        // As by llama-server, end tokens are never chosen. On OpenAI's routes an answer goes on behind them, as in vLLM.
        if options.ignore_eos {
            let forbidden = tokenizer.eog().iter().map(|&token| (token, f32::NEG_INFINITY));
            options.sampling.logit_bias.extend(forbidden);
        }
        fields.check_slot(app.serving.model.parallel)?;
        let context = app.serving.model.context;
        Ok(Asked { max_tokens: options.max_tokens(context, context), options, fields })
    }

    /// Prepares the continuation of these prompts.
    pub(super) fn of(
        self,
        app: &App,
        caller: &Caller,
        prompts: &[Prompt],
        body: &Body,
    ) -> Result<Prepared<LlamaAnswer>> {
        let Asked { options, fields, max_tokens } = self;
        let (context, tokenizer) = (app.serving.model.context, &app.serving.texts.tokenizer);
        let choices = options.choices as usize;
        let tokens = prompts.len() * choices * max_tokens.min(context);
        let asked = fields.n_probs.and_then(Whole::count).unwrap_or(0);
        let probabilities = logprobs("n_probs", asked, tokenizer.vocab_len(), tokens)?;
        let wanted = (probabilities > 0).then_some(probabilities);

        let requests = Prompt::requests(prompts, app, &options, (max_tokens, wanted), body)?;
        let echo = Echo {
            model: app.serving.model.name.clone(),
            settings: Settings::of(&options, max_tokens, probabilities, fields.stream),
            seeds: requests.iter().map(|request| request.sampling.seed).collect(),
            slot: fields.slot(app, caller, &requests, choices),
            stop: options.stop.clone(),
            prompts: Prompt::texts(prompts, tokenizer, choices, "n")?,
            max_tokens,
            context,
            ends_at_lines: options.line_limits != LineLimits::default(),
            return_tokens: fields.return_tokens,
            probabilities: wanted.is_some(),
            progress: fields.return_progress.then(Instant::now),
            fields: fields.response_fields,
        };
        let answer = LlamaAnswer::new(echo, choices);
        let Options { schema_notes, kept_prefix, .. } = options;
        let origin = Origin { schema_notes, kept_prefix, ..Origin::default() };
        Ok(Prepared { requests, origin, answer, stream: fields.stream })
    }
}

impl CompletionFields {
    /// Returns the slot that a request names, which records one prompt and its answer; none for a private
    /// request, which clears the slot.
    fn slot(&self, app: &App, caller: &Caller, requests: &[Request], choices: usize) -> Option<SlotUse> {
        let slot = self.id_slot.and_then(Whole::count)?;
        let [request] = requests else { return None };
        let (slots, key) = (app.slots.clone(), (caller.tenant.id, slot));
        if !request.reuse {
            slots.clear(key);
            return None;
        }
        (choices == 1).then_some(SlotUse { slots, key, prompt: Vec::new() })
    }

    /// Refuses a slot that llama-server would not have.
    fn check_slot(&self, slots: usize) -> Result<()> {
        let asked = self.id_slot.and_then(Whole::count);
        match asked.filter(|&slot| slot >= slots) {
            None => Ok(()),
            Some(slot) => {
                let message = format!("`id_slot` must be from -1 to {}, not {slot}", slots.saturating_sub(1));
                Err(ApiError::field("id_slot", message))
            }
        }
    }
}
