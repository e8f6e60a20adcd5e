//! `POST /v1/completions`

use std::sync::Arc;

use axum::{extract::State, response::Response};

use super::{
    chat::{head, stream},
    text_answer::TextAnswer,
};
use crate::{
    api::request::{
        options::{LOGPROBS_MAX, OPENAI, Options, max_tokens},
        prompt::Prompt,
    },
    app::{
        body::JsonBody,
        report::{
            closing::Origin,
            comparison::{Comparable, Parts, compared_with},
        },
        state::{App, Prepared},
    },
    http::{error::ApiError, fields::Fields},
};

type Result<T> = std::result::Result<T, ApiError>;

/// OpenAI's default for this endpoint.
const MAX_TOKENS: usize = 16;

/// Continues prompts.
pub(crate) async fn route(State(app): State<Arc<App>>, body: JsonBody) -> Result<Response> {
    app.complete(body, read).await
}

/// Reads the body of a completion.
pub(crate) fn read(app: &App, mut fields: Fields) -> Result<Prepared<TextAnswer>> {
    app.accept_model(&fields.string("model")?.unwrap_or_default())?;
    let tokenizer = &app.serving.tokenizer;
    let prompts = Prompt::read(&mut fields)?;
    let options = Options::read(&mut fields, OPENAI, &|text| tokenizer.encode(text, false, true))?;
    let logprobs = fields.integer("logprobs", 0..=LOGPROBS_MAX)?.map(|top| top as usize);
    // 0 computes the prompt only, which warms the cache.
    let max_tokens = max_tokens(&mut fields, app.serving.model.context)?.unwrap_or(MAX_TOKENS);
    let (stream, include_usage) = stream(&mut fields)?;
    let with = compared_with(&mut fields)?;
    let echo = fields.bool("echo")?.unwrap_or(false);
    refuse(&mut fields, &options, echo, logprobs)?;

    // What cannot run is refused before anything is made for its answer.
    options.check_copies(prompts.len())?;
    let request = |prompt: &Prompt| {
        fields.still_wanted()?;
        Ok(options.request(prompt.encode(app)?, max_tokens, logprobs))
    };
    let requests = prompts.iter().map(request).collect::<Result<_>>()?;
    let choices = options.choices as usize;
    let echoes = match echo {
        true => Prompt::texts(&prompts, tokenizer, choices, "echo")?,
        false => vec!["".into(); prompts.len()],
    };
    let head = head(app, "cmpl");
    // The text alone decides the prompt: what changes in it is seen by its tokens.
    let messages = prompts.iter().map(|prompt| app.answered.hash(prompt)).collect();
    let parts = Parts { model: app.answered.hash(&head.model), messages, ..Parts::default() };
    let comparable = Some(Comparable { id: head.id.clone(), parts, with });
    let answer = TextAnswer::new(head, echoes, choices, logprobs.is_some(), include_usage);
    let origin = Origin { messages: None, comparable, schema_notes: options.schema_notes };
    Ok(Prepared { requests, origin, answer, stream })
}

/// Fields that would change the answer if they were obeyed and are not: better refused than ignored.
fn refuse(fields: &mut Fields, options: &Options, echo: bool, logprobs: Option<usize>) -> Result<()> {
    if fields.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(fields.error("suffix", "is not supported: kvik does not fill in the middle"));
    }
    if fields.integer("best_of", 1..=i64::MAX)?.is_some_and(|best| best != i64::from(options.choices)) {
        return Err(fields.error("best_of", "is not supported; ask for `n` answers and choose yourself"));
    }
    if echo && logprobs.is_some() {
        return Err(fields.error("echo", "together with `logprobs` is not supported: kvik gives log-probabilities of generated tokens only"));
    }
    Ok(())
}
