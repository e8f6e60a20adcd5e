//! llama-server's own endpoints.

mod answer;
mod completion;
mod infill;
mod lora;
mod props;
mod shapes;
mod slots;
mod tokens;

use axum::middleware;

use super::{
    request::conversation::ConversationFields,
    route::{Dialect, at, gives},
};
use crate::{app::guard, http::error::ApiError};

/// The routes of this dialect.
pub(super) fn dialect() -> Dialect {
    let text = gives(shapes::completion, "Continues prompts").takes::<completion::Fields>().streams();
    let tokenize = gives(shapes::tokens, "Turns a text into tokens").takes::<tokens::TextFields>();
    let detokenize = gives(shapes::content, "Turns tokens into their text").takes::<tokens::TokenFields>();
    let template = gives(shapes::prompt, "Writes the prompt of a conversation").takes::<ConversationFields>();
    let infill =
        gives(shapes::completion, "Fills in the middle of a text").takes::<infill::Fields>().streams();
    let slots = gives(shapes::slots, "Shows how many requests run")
        .asks(&[("fail_on_no_slot", "Answer 503 where none is free.")]);
    let slot = gives(shapes::slot_changed, "Saves, restores or erases what a slot has computed")
        .takes::<slots::ActionFields>()
        .asks(&[("action", "save, restore or erase.")]);
    let routes = vec![
        // Without a version it is llama-server's own form.
        at(&["/completion", "/completions"]).post(completion::route, text),
        at(&["/tokenize"]).post(tokens::tokenize, tokenize),
        at(&["/detokenize"]).post(tokens::detokenize, detokenize),
        at(&["/apply-template"]).post(tokens::apply_template, template),
        at(&["/lora-adapters"])
            .get(lora::list, gives(shapes::adapters, "Lists the adapters and the scales that apply to all"))
            .post(
                lora::set,
                gives(shapes::success, "Sets the scales that apply to all").takes::<lora::UsualList>(),
            ),
        at(&["/infill"]).post(infill::route, infill),
        at(&["/props"]).get(props::route, gives(shapes::props, "Shows the model and the defaults")).post(
            props::change,
            gives(shapes::nothing, "Refused: properties are set by flags").takes::<slots::Unread>(),
        ),
        // What runs concerns all tenants.
        at(&["/slots"])
            .get(slots::list, slots)
            .through(|methods| methods.route_layer(middleware::from_fn(guard::admins_only))),
        at(&["/slots/{id}"]).post(slots::change, slot),
    ];
    Dialect { name: "llama-server", error: ApiError::body, routes }
}
