//! `POST /v1/completions`

use std::sync::Arc;

use axum::{extract::State, response::Response};
use serde::Deserialize;

use super::{
    head::{Head, HeadFields},
    text_answer::TextAnswer,
};
use crate::{
    api::request::{
        bounds::Usual,
        defaults::RequestDefaults,
        fill::{Fill, Marks},
        generation::{GenerationFields, Options, logprobs},
        number::Whole,
        parts::{FromBody, Part},
        prompt::{Prompt, PromptFields},
    },
    app::{
        body::JsonBody,
        keys::Caller,
        report::{
            comparison::{Comparable, Parts},
            trailer::Origin,
        },
        requests::Prepared,
        state::App,
    },
    described::JsonSchema,
    http::{error::ApiError, json::Body},
};

type Result<T> = std::result::Result<T, ApiError>;

/// OpenAI's default for this endpoint.
const MAX_TOKENS: usize = 16;

/// All fields of a body.
pub(super) type Fields = (HeadFields, PromptFields, GenerationFields<Usual>, CompletionFields);

/// Those of this endpoint alone.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct CompletionFields {
    /// Give the log-probability of each generated token, and of as many of the likeliest.
    logprobs: Option<Whole<0, { i64::MAX }>>,
    /// Begin the answer with the prompt; not together with `logprobs`.
    #[serde(default)]
    echo: bool,
    /// What stands after the middle that is wanted, with a prompt of text before it; for models with tokens for it.
    suffix: Option<String>,
    /// Refused where it is not `n`: ask for `n` answers and choose yourself.
    #[schemars(extend("deprecated" = true))]
    best_of: Option<Whole<1, { i64::MAX }>>,
}

impl Part for CompletionFields {}

/// Continues prompts.
pub(super) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    app.complete(body, read).await
}

/// Reads the body of a completion.
fn read(app: &App, _: &Caller, body: &Body) -> Result<Prepared<TextAnswer>> {
    let (head, prompts, generation, fields) = Fields::from_body(body)?;
    app.accept_model(&head.model)?;
    let tokenizer = &app.serving.texts.tokenizer;
    let prompts = prompts.prompts()?;
    let encode = |text: &str| tokenizer.encode(text, false, true);
    let options = generation.options(&RequestDefaults::of(app), &encode, &app.serving.retaining)?;
    // 0 computes only the prompt, which warms the cache.
    let max_tokens = options.max_tokens(MAX_TOKENS, app.serving.model.context);
    let tokens = prompts.len() * options.choices as usize * max_tokens.min(app.serving.model.context);
    let likeliest = |asked| logprobs("logprobs", asked, tokenizer.vocab_len(), tokens);
    let logprobs = fields.logprobs.and_then(Whole::count).map(likeliest).transpose()?;
    let (stream, include_usage) = (head.stream, head.include_usage());
    fields.refuse(&options)?;
    options.check_memory()?;

    let filling = fields.filling(&prompts, app, max_tokens, body)?;
    let asked = filling.as_deref().unwrap_or(&prompts);
    let requests = Prompt::requests(asked, app, &options, (max_tokens, logprobs), body)?;
    let choices = options.choices as usize;
    let echoes = match fields.echo {
        true => Prompt::texts(&prompts, tokenizer, choices, "echo")?,
        false => vec!["".into(); prompts.len()],
    };
    let name = Head::new(app, "cmpl");
    // Only the text decides the prompt, so its tokens show every change.
    let messages = asked.iter().map(|prompt| app.answered.hash(prompt)).collect();
    let parts = Parts { model: app.answered.hash(&name.model), messages, ..Parts::default() };
    let comparable = Some(Comparable { id: name.id.clone(), parts, with: head.compared_with() });
    let answer = TextAnswer::new(name, echoes, choices, logprobs.is_some(), include_usage);
    let Options { schema_notes, kept_prefix, .. } = options;
    let origin = Origin { comparable, schema_notes, kept_prefix, ..Origin::default() };
    Ok(Prepared { requests, origin, answer, stream })
}

impl CompletionFields {
    /// Returns the prompts that ask for the middle between each of `prompts` and the suffix; none without one.
    fn filling(
        &self,
        prompts: &[Prompt],
        app: &App,
        max_tokens: usize,
        body: &Body,
    ) -> Result<Option<Vec<Prompt>>> {
        let Some(after) = self.suffix.as_deref().filter(|suffix| !suffix.is_empty()) else { return Ok(None) };
        let marks = Marks::of(app)?;
        let fill = |prompt: &Prompt| {
            let before = prompt.text_alone().ok_or_else(|| {
                ApiError::field("suffix", "`suffix` goes with a prompt of text, not of token ids")
            })?;
            let fill = Fill { before, begin: "", after, chunks: &[] };
            marks.prompt(app, &fill, max_tokens, body)
        };
        prompts.iter().map(fill).collect::<Result<_>>().map(Some)
    }

    /// Refuses fields that would change the answer and are not supported, instead of ignoring them.
    fn refuse(&self, options: &Options) -> Result<()> {
        let refused = |field: &str, text: &str| Err(ApiError::field(field, format!("`{field}` {text}")));
        if self.best_of.is_some_and(|best| best.get() != i64::from(options.choices)) {
            return refused("best_of", "is not supported; ask for `n` answers and choose yourself");
        }
        if self.echo && self.logprobs.is_some() {
            return refused(
                "echo",
                "together with `logprobs` is not supported: kvik gives log-probabilities of generated tokens only",
            );
        }
        Ok(())
    }
}
