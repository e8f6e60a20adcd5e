//! OpenAI's Responses API.

mod answer;
mod body;
mod compact;
mod count;
mod event;
mod grammar;
mod input;
mod item;
pub(super) mod items;
mod output;
mod references;
mod route;
mod stored;
mod tools;
mod undecided;

pub(super) use self::body::{KeepFields, TellFields};
use self::{event::StreamEvent, output::Response};
use super::{
    openai::count::CountedTokens,
    route::{Dialect, Errors, at, gives},
};
use crate::http::error::ErrorBody;

/// Returns the routes of this dialect.
pub(super) fn dialect() -> Dialect {
    let create = gives::<Response>("Answers").takes::<body::Fields>().streams_all::<StreamEvent>();
    let compact = gives::<compact::CompactedResponse>("Makes a compaction item").takes::<compact::Fields>();
    let count = gives::<CountedTokens>("Counts the tokens of an input").takes::<count::Fields>();
    let get = gives::<Response>("Shows an answer that is stored");
    let delete = gives::<stored::DeletedResponse>("Forgets an answer");
    let given = gives::<items::InputItems>("Lists what an answer was given").asks(&items::ITEM_PARAMETERS);
    let routes = vec![
        at(&["/v1/responses", "/responses"]).post(route::route, create),
        at(&["/v1/responses/compact"]).post(compact::route, compact),
        at(&["/v1/responses/input_tokens"]).post(count::route, count),
    ];
    let of_server = vec![
        at(&["/v1/responses/{id}"]).get(stored::get, get).delete(stored::delete, delete),
        at(&["/v1/responses/{id}/input_items"]).get(stored::items, given),
    ];
    Dialect { name: "responses", errors: Errors::of::<ErrorBody>(), routes, of_server }
}
