//! llama-server's own endpoints.

mod answer;
mod completion;
mod props;
mod shapes;
mod tokens;

use super::{
    request::conversation::ConversationFields,
    route::{Dialect, at, gives},
};
use crate::http::error::ApiError;

/// The routes of this dialect.
pub(super) fn dialect() -> Dialect {
    let text = gives(shapes::completion, "Continues prompts").takes::<completion::Fields>().streams();
    let tokenize = gives(shapes::tokens, "Turns a text into tokens").takes::<tokens::TextFields>();
    let detokenize = gives(shapes::content, "Turns tokens into their text").takes::<tokens::TokenFields>();
    let template = gives(shapes::prompt, "Writes the prompt of a conversation").takes::<ConversationFields>();
    let routes = vec![
        // Without a version it is llama-server's own form.
        at(&["/completion", "/completions"]).post(completion::route, text),
        at(&["/tokenize"]).post(tokens::tokenize, tokenize),
        at(&["/detokenize"]).post(tokens::detokenize, detokenize),
        at(&["/apply-template"]).post(tokens::apply_template, template),
        at(&["/props"]).get(props::route, gives(shapes::props, "Shows the model and the defaults")),
    ];
    Dialect { name: "llama-server", error: ApiError::body, routes }
}
