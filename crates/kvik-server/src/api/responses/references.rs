//! References in an input: items that stand for items of stored responses, by their ids.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    api::request::place::Place,
    app::responses::{ReferredItems, Responses, is_reference},
    http::error::ApiError,
};

type Result<T> = std::result::Result<T, ApiError>;

/// Reads the items to which the input in the field `path` refers. Those of other tenants do not exist.
///
/// # Errors
/// If a reference has no id, an id is repeated, or no stored response of the tenant has the item.
pub(super) fn referred(
    path: &str,
    input: &Value,
    responses: &Responses,
    tenant: &str,
) -> Result<ReferredItems> {
    let (mut ids, mut seen) = (Vec::new(), BTreeSet::new());
    let items = input.as_array().into_iter().flatten().enumerate();
    for (index, item) in items.filter(|(_, item)| is_reference(item)) {
        let id = Place::new(format!("{path}[{index}]"), item).need_text("id")?;
        // An input that repeats a long item would take many times the memory of its body. OpenAI refuses it as well.
        if !seen.insert(id) {
            return Err(repeated(path, id));
        }
        ids.push(id);
    }
    if ids.is_empty() {
        return Ok(ReferredItems::default());
    }
    responses.items(tenant, &ids).map_err(|error| ApiError::from(error).at(path))
}

fn repeated(path: &str, id: &str) -> ApiError {
    let message =
        format!("Duplicate item found with id {id}. Remove duplicate items from your input and try again.");
    ApiError::field(path, message)
}
