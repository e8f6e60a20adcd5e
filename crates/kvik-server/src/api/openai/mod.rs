//! OpenAI's API: chat completions, completions, models.

mod chat;
mod chat_answer;
mod completions;
pub(super) mod count;
mod head;
mod models;
mod text_answer;

use super::route::{Dialect, Errors, Operation, at, gives};
use crate::http::error::ErrorBody;

/// Adds the stream of a chat's answer.
pub(super) fn streams_chat(operation: Operation) -> Operation {
    operation.streams::<chat_answer::ChatFrame>()
}

/// Returns the routes of this dialect.
pub(super) fn dialect() -> Dialect {
    let chat = gives::<chat_answer::WholeChat>("Answers a conversation").takes::<chat::Fields>();
    let text = gives::<text_answer::WholeText>("Continues texts or token ids")
        .takes::<completions::Fields>()
        .streams::<text_answer::TextFrame>();
    let count = gives::<count::CountedTokens>("Counts the tokens of a conversation").takes::<count::Fields>();
    let routes = vec![
        at(&["/v1/chat/completions", "/chat/completions"]).post(chat::route, streams_chat(chat)),
        at(&["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"])
            .post(count::route, count),
        at(&["/v1/completions"]).post(completions::route, text),
    ];
    let of_server = vec![
        at(&["/v1/models", "/models"]).get(models::list, gives::<models::Models>("Lists the models")),
        at(&["/v1/models/{*id}", "/models/{*id}"]).get(models::get, gives::<models::Model>("Shows a model")),
    ];
    Dialect { name: "openai", errors: Errors::of::<ErrorBody>(), routes, of_server }
}
