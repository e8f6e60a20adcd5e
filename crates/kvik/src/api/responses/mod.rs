//! OpenAI's Responses API.

mod answer;
mod body;
mod compact;
mod count;
mod input;
mod output;
mod route;
mod shapes;
mod stored;
mod tools;

use super::route::{Dialect, at, gives};
use crate::http::error::ApiError;

/// The routes of this dialect.
pub(super) fn dialect() -> Dialect {
    let create = gives(shapes::response, "Answers").takes::<body::Fields>().streams();
    let compact = gives(shapes::compaction, "Makes a compaction item").takes::<compact::Fields>();
    let count = gives(shapes::count, "Counts the tokens of an input").takes::<count::Fields>();
    let get = gives(shapes::response, "Shows an answer that is stored");
    let delete = gives(shapes::deleted, "Forgets an answer");
    let items = gives(shapes::items, "Lists what an answer was given").asks(&stored::ITEM_PARAMETERS);
    let routes = vec![
        at(&["/v1/responses", "/responses"]).post(route::route, create),
        at(&["/v1/responses/compact"]).post(compact::route, compact),
        at(&["/v1/responses/input_tokens"]).post(count::route, count),
        at(&["/v1/responses/{id}"]).get(stored::get, get).delete(stored::delete, delete),
        at(&["/v1/responses/{id}/input_items"]).get(stored::items, items),
    ];
    Dialect { name: "responses", error: ApiError::body, routes }
}
