//! The HTTP API: one folder per dialect.
//!
//! A route reads its body off the async threads (parse, check, template, tokenize) into the one request type
//! that the engine takes, and formats the engine's events. Dialects hold no state, and share only what
//! `request` offers to all of them. There are two exceptions: llama-server's slots are pinned prompts of
//! kvik's own dialect, and kvik's own routes accept conversations in other dialects (`spoken`).

mod anthropic;
mod chat;
mod embedding;
mod kvik;
mod llama;
mod logprobs;
mod ollama;
mod openai;
mod openapi;
mod page;
mod progress;
mod reading;
mod request;
mod responses;
mod route;
mod routes;
mod sampling;
mod sglang;
mod spoken;
#[cfg(test)]
mod tests;
mod vllm;

use route::Dialect;

pub use kvik::{prompts::restore as restore_prompts, usage::listing as usage_listing};
pub use request::conversation::conversation_prompt;
pub use routes::{of_model, over, router, shelf_of};
pub use spoken::as_chat;

/// Returns all dialects. A new dialect is one line here, and its module above.
fn dialects() -> Vec<Dialect> {
    vec![
        openai::dialect(),
        responses::dialect(),
        anthropic::dialect(),
        ollama::dialect(),
        llama::dialect(),
        embedding::dialect(),
        kvik::dialect(),
        sglang::dialect(),
        vllm::dialect(),
        page::dialect(),
        routes::operation(),
    ]
}
