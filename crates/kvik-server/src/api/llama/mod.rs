//! llama-server's own endpoints.

mod answer;
mod completion;
mod infill;
mod lora;
mod props;
mod settings;
mod slots;
mod tokens;

use axum::middleware;

use self::answer::{Sent, Whole};
use super::route::{Answer, Dialect, Errors, answers, at, gives};
use crate::{app::guard, http::error::ErrorBody};

/// Returns the routes of this dialect.
pub(super) fn dialect() -> Dialect {
    let continues = |summary| gives::<Whole>(summary).streams::<Sent>();
    let text = continues("Continues prompts").takes::<completion::Fields>();
    let infill = continues("Fills in the middle of a text").takes::<infill::Fields>();
    let tokenize =
        gives::<tokens::Tokenized<'static>>("Turns a text into tokens").takes::<tokens::TextFields>();
    let detokenize =
        gives::<tokens::Detokenized>("Turns tokens into their text").takes::<tokens::TokenFields>();
    let template = gives::<tokens::WrittenPrompt>("Writes the prompt of a conversation")
        .takes::<tokens::TemplateFields>();
    let adapters = gives::<Vec<lora::Adapter>>("Lists the adapters and the scales that apply to all");
    let set_adapters = gives::<lora::Success>("Sets the scales that apply to all").takes::<lora::UsualList>();
    let props = gives::<props::Props>("Shows the model and the defaults")
        .asks(&[("model", "The name of the model, under which a client may be told another window.")]);
    let change = answers(Answer::Refusal, "Refused: properties are set by flags").takes::<slots::Unread>();
    let slots = gives::<Vec<slots::Slot>>("Shows how many requests run")
        .asks(&[("fail_on_no_slot", "Answer 503 where none is free.")]);
    let slot = gives::<slots::Changed>("Saves, restores or erases what a slot has computed")
        .takes::<slots::ActionFields>()
        .asks(&[("action", "save, restore or erase.")]);
    let routes = vec![
        // Without a version prefix, the route has llama-server's own format.
        at(&["/completion", "/completions"]).post(completion::route, text),
        at(&["/tokenize"]).post(tokens::tokenize, tokenize),
        at(&["/detokenize"]).post(tokens::detokenize, detokenize),
        at(&["/apply-template"]).post(tokens::apply_template, template),
        at(&["/lora-adapters"]).get(lora::list, adapters).post(lora::set, set_adapters),
        at(&["/infill"]).post(infill::route, infill),
        at(&["/props"]).get(props::route, props).post(props::change, change),
        // Running requests belong to all tenants.
        at(&["/slots"])
            .get(slots::list, slots)
            .through(|methods| methods.route_layer(middleware::from_fn(guard::admins_only))),
        at(&["/slots/{id}"]).post(slots::change, slot),
    ];
    Dialect { name: "llama-server", errors: Errors::of::<ErrorBody>(), routes, of_server: Vec::new() }
}
