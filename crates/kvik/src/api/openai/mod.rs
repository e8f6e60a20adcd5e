//! OpenAI's API: chat completions, completions, models.

mod chat;
mod chat_answer;
mod completions;
mod count;
mod head;
mod models;
mod shapes;
mod text_answer;

use super::route::{Dialect, at, gives};
use crate::http::error::ApiError;

/// The routes of this dialect.
pub(super) fn dialect() -> Dialect {
    let chat = gives(shapes::chat, "Answers a conversation").takes::<chat::Fields>().streams();
    let text = gives(shapes::text, "Continues texts or token ids").takes::<completions::Fields>().streams();
    let count = gives(shapes::count, "Counts the tokens of a conversation").takes::<count::Fields>();
    let routes = vec![
        at(&["/v1/chat/completions", "/chat/completions"]).post(chat::route, chat),
        at(&["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"])
            .post(count::route, count),
        at(&["/v1/completions"]).post(completions::route, text),
        at(&["/v1/models", "/models"]).get(models::list, gives(shapes::models, "Lists the one model")),
        at(&["/v1/models/{*id}", "/models/{*id}"]).get(models::get, gives(shapes::model, "Shows a model")),
    ];
    Dialect { name: "openai", error: ApiError::body, routes }
}
