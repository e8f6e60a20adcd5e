//! The response object: the echoed request fields, and the items of the answer as generated so far.

use kvik_engine::api::Report;
use kvik_model::load::SamplingDefaults;
use serde::Serialize;
use serde_json::{Value, json};

use super::item::Item;
use crate::{
    app::{
        report::{
            token_scale::TokenScale,
            trailer::{Ending, Trailer},
            usage::{PromptTokens, ReasoningTokens},
        },
        state::App,
    },
    clock::unix_seconds,
    described::JsonSchema,
    http::{answer::words, error::ApiError, json::bytes_taken},
};

words! {
    ResponseWord = "response";
    MaxOutputTokens = "max_output_tokens";
}

/// An answer, complete or not.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Response {
    #[serde(flatten)]
    base: Base,
    status: Status,
    error: Option<Fault>,
    incomplete_details: Option<IncompleteDetails>,
    pub(super) output: Vec<Item>,
    /// Null while it is in progress.
    usage: Option<ResponseUsage>,
    /// When it has ended.
    #[serde(flatten)]
    ending: Option<Ending>,
}

/// Fields that do not change.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct Base {
    id: String,
    object: ResponseWord,
    created_at: u64,
    model: String,
    background: bool,
    /// The conversation of the server that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation: Option<OwnConversation>,
    #[serde(flatten)]
    echo: Echo,
    store: bool,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(inline)]
struct OwnConversation {
    id: String,
}

/// What the request said, as it said it, or what holds where it said nothing.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct Echo {
    #[schemars(with = "Option<String>")]
    instructions: Value,
    #[schemars(with = "Option<u64>")]
    max_output_tokens: Value,
    #[schemars(with = "Option<u64>")]
    max_tool_calls: Value,
    metadata: Value,
    #[schemars(with = "bool")]
    parallel_tool_calls: Value,
    #[schemars(with = "Option<String>")]
    previous_response_id: Value,
    #[schemars(with = "Option<String>")]
    prompt_cache_key: Value,
    #[schemars(with = "Option<String>")]
    prompt_cache_retention: Value,
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    reasoning: Value,
    #[schemars(with = "Option<String>")]
    safety_identifier: Value,
    #[schemars(with = "String")]
    service_tier: Value,
    #[schemars(with = "f64")]
    temperature: Value,
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    text: Value,
    tool_choice: Value,
    #[schemars(with = "Vec<serde_json::Map<String, serde_json::Value>>")]
    tools: Value,
    #[schemars(with = "u64")]
    top_logprobs: Value,
    #[schemars(with = "f64")]
    top_p: Value,
    #[schemars(with = "String")]
    truncation: Value,
    #[schemars(with = "Option<String>")]
    user: Value,
}

/// Why an answer has failed.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Fault {
    code: &'static str,
    message: String,
}

/// Why an answer is not complete.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct IncompleteDetails {
    reason: MaxOutputTokens,
}

/// What an answer cost.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ResponseUsage {
    input_tokens: usize,
    input_tokens_details: PromptTokens,
    output_tokens: usize,
    output_tokens_details: ReasoningTokens,
    total_tokens: usize,
    /// In the server's currency, where it has prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
}

/// How a response stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum Status {
    InProgress,
    Completed,
    /// It reached the most tokens it may have.
    Incomplete,
    Failed,
}

/// A response as generated so far.
#[derive(Debug, Clone)]
pub(super) struct Output {
    base: Base,
    /// Bytes of the request's fields that it has.
    echo_bytes: u64,
    /// Complete items, and the last one as generated so far.
    pub(super) items: Vec<Item>,
}

impl Output {
    /// Creates the response `id` to a request with the fields `echo`, where it sets no sampling with that in force.
    pub(super) fn new(
        app: &App,
        id: &str,
        (echo, sampling): (&Value, &SamplingDefaults),
        stored: bool,
    ) -> Output {
        let base = Base {
            id: id.to_owned(),
            object: ResponseWord,
            created_at: unix_seconds(),
            model: app.serving.model.name.clone(),
            background: false,
            conversation: None,
            echo: Echo::of(echo, sampling),
            store: stored,
        };
        Output { base, echo_bytes: bytes_taken(echo), items: Vec::new() }
    }

    /// Bytes of the request's fields in one object.
    pub(super) fn echo_bytes(&self) -> u64 {
        self.echo_bytes
    }

    /// Sets the id of the conversation that the response belongs to, if to one.
    pub(super) fn belongs_to(&mut self, conversation: Option<String>) {
        self.base.conversation = conversation.map(|id| OwnConversation { id });
    }

    /// Returns the object in its current state, without the usage and the trailer.
    pub(super) fn response(&self, status: Status) -> Response {
        let is_incomplete = status == Status::Incomplete;
        Response {
            base: self.base.clone(),
            status,
            error: None,
            incomplete_details: is_incomplete.then_some(IncompleteDetails { reason: MaxOutputTokens }),
            output: self.items.clone(),
            usage: None,
            ending: None,
        }
    }

    /// Returns the object of an answer that ended with this error.
    pub(super) fn failed(&self, error: &ApiError) -> Response {
        let error = Fault { code: error.code(), message: error.to_string() };
        Response { error: Some(error), ..self.response(Status::Failed) }
    }

    /// Returns the object at its end, with usage and cache report.
    pub(super) fn ended(&self, status: Status, reasoning_tokens: usize, trailer: &Trailer) -> Response {
        let total = trailer.total();
        let usage = ResponseUsage::of(&total, reasoning_tokens, trailer.scale(), trailer.cost(&total));
        Response { usage: Some(usage), ending: Some(trailer.ending()), ..self.response(status) }
    }
}

impl Echo {
    /// Returns the fields of a request, and the values in force where it sets none.
    fn of(echo: &Value, sampling: &SamplingDefaults) -> Echo {
        let said = |name: &str, usual: Value| {
            let said = echo.get(name).filter(|value| !value.is_null()).cloned();
            said.unwrap_or(usual)
        };
        let if_said = |name| said(name, Value::Null);
        Echo {
            instructions: if_said("instructions"),
            max_output_tokens: if_said("max_output_tokens"),
            max_tool_calls: if_said("max_tool_calls"),
            metadata: said("metadata", json!({})),
            parallel_tool_calls: said("parallel_tool_calls", json!(true)),
            previous_response_id: if_said("previous_response_id"),
            prompt_cache_key: if_said("prompt_cache_key"),
            prompt_cache_retention: if_said("prompt_cache_retention"),
            reasoning: said("reasoning", json!({"effort": null, "summary": null})),
            safety_identifier: if_said("safety_identifier"),
            service_tier: said("service_tier", json!("default")),
            temperature: said("temperature", decimal(sampling.temperature.value)),
            text: said("text", json!({"format": {"type": "text"}})),
            tool_choice: said("tool_choice", json!("auto")),
            tools: said("tools", json!([])),
            top_logprobs: said("top_logprobs", json!(0)),
            top_p: said("top_p", decimal(sampling.top_p.value)),
            truncation: said("truncation", json!("disabled")),
            user: if_said("user"),
        }
    }
}

/// A number in as few digits as it needs.
fn decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

impl ResponseUsage {
    /// The usage of an answer in the scale of its client, and its cost.
    pub(super) fn of(
        report: &Report,
        reasoning_tokens: usize,
        scale: TokenScale,
        cost: Option<f64>,
    ) -> ResponseUsage {
        let prompt = report.prompt_tokens;
        let all = prompt + report.generated_tokens;
        ResponseUsage {
            input_tokens: scale.told(prompt),
            input_tokens_details: PromptTokens { cached_tokens: scale.told(report.cached_tokens) },
            output_tokens: scale.between(prompt, all),
            output_tokens_details: ReasoningTokens {
                reasoning_tokens: scale.between(prompt, prompt + reasoning_tokens),
            },
            total_tokens: scale.told(all),
            cost,
        }
    }
}
